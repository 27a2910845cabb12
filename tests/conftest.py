"""Shapes and types of torch rooms are checked at every call in tests, and each worker keeps to one thread."""

from jaxtyping import install_import_hook

TORCH_ROOMS = [
    "hdccf.data.graph",
    "hdccf.data.sampling",
    "hdccf.encoders",
    "hdccf.losses",
    "hdccf.models",
    "hdccf.pairwise",
    "hdccf.similarity",
]

# Before any test imports them: what is already loaded stays unchecked.
install_import_hook(TORCH_ROOMS, "checking.typechecker")

import torch  # noqa: E402

torch.set_num_threads(1)

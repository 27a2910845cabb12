"""Shapes and types of torch rooms are checked at every call in tests, and each worker keeps to one thread."""

from pathlib import Path

import pytest
from jaxtyping import install_import_hook

TORCH_ROOMS = [
    "hdccf.candidates",
    "hdccf.contrast",
    "hdccf.data.graph",
    "hdccf.data.sampling",
    "hdccf.data.weights",
    "hdccf.diagnostics",
    "hdccf.encoders",
    "hdccf.evaluation.ranking",
    "hdccf.evaluation.scorers",
    "hdccf.explain",
    "hdccf.fold_in",
    "hdccf.lens",
    "hdccf.losses",
    "hdccf.models",
    "hdccf.pairwise",
    "hdccf.pairwise_panels",
    "hdccf.pairwise_passes",
    "hdccf.recommend",
    "hdccf.similar",
    "hdccf.similarity",
    "hdccf.slopes",
    "hdccf.solving",
    "hdccf.warm_start",
]

# Before any test imports them: what is already loaded stays unchecked.
install_import_hook(TORCH_ROOMS, "checking.typechecker")

import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test draws or fetches lands in its own folder, never in the user's cache."""
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "hdccf-cache"))

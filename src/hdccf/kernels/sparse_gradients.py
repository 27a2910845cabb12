"""Gradients of a table's rows: which rows, and what each gets, in place of a table that is nearly all zeros.

They are torch's sparse tensors, so that autograd adds them up by itself. A rule of the optimizers reads them
(`hdccf.training.optim`), or is given the whole table.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

WORTH_NAMING = 2
"""Rows of a table for each that is looked up, from which naming them is faster (decision 25)."""

LEAST_NUMBERS = 1 << 16
"""In a table; below that the compiled loops save less in a training than loading them takes."""


@cache
def has_numba() -> bool:
    return find_spec("numba") is not None


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """As NumPy's, without a copy."""
    return tuple(tensor.detach().numpy() for tensor in tensors)


def saves(index: Int64[Tensor, "..."], table: Float[Tensor, "m d"]) -> bool:
    """Whether naming the rows of an index takes less than a whole table."""
    return table.numel() >= LEAST_NUMBERS and index.numel() * WORTH_NAMING <= len(table)


def gradient_of_rows(
    index: Int64[Tensor, " n"], values: Float[Tensor, "n d"], table: Float[Tensor, "m d"]
) -> Float[Tensor, "m d"]:
    """The gradient of a table whose rows `index` were looked up, from those of the places."""
    if saves(index, table):
        return torch.sparse_coo_tensor(index.unsqueeze(0), values, table.shape, check_invariants=False)
    whole: Tensor = torch.ops.aten.embedding_dense_backward(values, index, len(table), -1, False)
    return whole


def is_compiled(table: Tensor) -> bool:
    """Whether there are compiled loops for the rows of a table."""
    return (table.device.type, table.dtype, table.dim()) == ("cpu", torch.float32, 2) and has_numba()

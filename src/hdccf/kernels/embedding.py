"""Embedding look-ups: dot products of looked-up rows and their gradients, compiled where there is numba."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_NUMBERS = 1 << 16
"""Numbers that are looked up; below that the compiled loops save less than loading them takes."""


@cache
def has_numba() -> bool:
    return find_spec("numba") is not None


def is_compiled(table: Tensor) -> bool:
    """Whether there are compiled loops for the rows of a table."""
    return (table.device.type, table.dtype, table.dim()) == ("cpu", torch.float32, 2) and has_numba()


def arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """As NumPy arrays, without a copy."""
    return tuple(tensor.detach().numpy() for tensor in tensors)


def table_gradient(
    index: Int64[Tensor, " n"], values: Float[Tensor, "n d"], table: Float[Tensor, "m d"], *, sparse: bool
) -> Float[Tensor, "m d"]:
    """The gradient of a table whose rows `index` were looked up, from those of the looked-up rows."""
    if sparse:
        return torch.sparse_coo_tensor(index.unsqueeze(0), values, table.shape, check_invariants=False)
    dense: Tensor = torch.ops.aten.embedding_dense_backward(values, index, len(table), -1, False)
    return dense


def row_dots(vectors: Float[Tensor, "b d"], others: Float[Tensor, "b s d"]) -> Float[Tensor, "b s"]:
    """Σ_d vectors[b, d]·others[b, s, d]."""
    dots: Tensor = _RowDots.apply(vectors, others)  # type: ignore[no-untyped-call]
    return dots


class _RowDots(torch.autograd.Function):
    # An einsum is a batch of tiny matrix products, whose gradients take several times as long as this; a
    # product and a sum keep the product, and write it once more for the gradient.
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, others: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, others)
        dots: Tensor = torch.linalg.vecdot(others, vectors.unsqueeze(1))
        return dots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        vectors, others = ctx.saved_tensors
        of_each = grad.unsqueeze(2)
        return (others * of_each).sum(1), of_each * vectors.unsqueeze(1)


def can_look_up(table: Tensor, columns: Tensor) -> bool:
    """Whether `looked_up_dots` can take these columns of a table, and is worth its loading."""
    kind = (table.device.type, table.dtype) == ("cpu", torch.float32)
    return kind and columns.numel() * table.shape[1] >= LEAST_NUMBERS and has_numba()


def looked_up_dots(
    left: Float[Tensor, "m d"],
    right: Float[Tensor, "n d"],
    rows: Int64[Tensor, " b"],
    columns: Int64[Tensor, "b c"],
    head: Float[Tensor, " d"] | None = None,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, ""]]:
    """Σ_d head[d]·left[rows[b], d]·right[columns[b, c], d], and the sum of squares of all that was looked up.

    Without a head it is ones. No vector is copied for a place that names it, not for the gradient either.
    """
    head = left.new_ones(left.shape[1]) if head is None else head
    dots, squares = _LookedUpDots.apply(left, right, head, rows.contiguous(), columns.contiguous())  # type: ignore[no-untyped-call]
    return dots, squares


class _LookedUpDots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, head: Tensor, rows: Tensor, columns: Tensor
    ) -> tuple[Tensor, Tensor]:
        from hdccf.kernels.embedding_numba import dots_and_squares

        ctx.save_for_backward(left, right, head, rows, columns)
        ctx.set_materialize_grads(False)  # an unused sum of squares costs no gradient
        dots = left.new_empty(columns.shape)
        squares = dots_and_squares(*arrays(left, right, head, rows, columns, dots))
        return dots, left.new_tensor(squares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_dots: Tensor | None, of_squares: Tensor | None) -> tuple[Tensor | None, ...]:
        from hdccf.kernels.embedding_numba import add_gradients

        left, right, head, _, columns = ctx.saved_tensors
        slopes = left.new_zeros(columns.shape) if of_dots is None else of_dots.contiguous()
        penalty = 0.0 if of_squares is None else float(of_squares)
        gradients = [torch.zeros_like(x) for x in (left, right, head)]
        add_gradients(*arrays(*ctx.saved_tensors, slopes), penalty, *arrays(*gradients))  # type: ignore[call-arg]
        return *gradients, None, None

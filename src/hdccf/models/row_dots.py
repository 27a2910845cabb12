"""A vector with each of some others of its own: the hot product of models over pairs."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.kernels.sparse_gradients import LEAST_NUMBERS, arrays, gradient_of_rows, has_numba, saves


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
        ctx.set_materialize_grads(False)  # a sum of squares that nobody asks for costs no gradient
        dots = left.new_empty(columns.shape)
        squares = dots_and_squares(*arrays(left, right, head, rows, columns, dots))
        return dots, left.new_tensor(squares)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_dots: Tensor | None, of_squares: Tensor | None) -> tuple[Tensor | None, ...]:
        from hdccf.kernels.embedding_numba import add_gradients

        left, right, head, rows, columns = ctx.saved_tensors
        slopes = left.new_zeros(columns.shape) if of_dots is None else of_dots.contiguous()
        pull = 0.0 if of_squares is None else float(of_squares)
        sides = [_Side.of(index, table) for index, table in ((rows, left), (columns, right))]
        of_head = torch.zeros_like(head)
        given = [*arrays(*ctx.saved_tensors, slopes), pull, *arrays(*(side.to for side in sides))]
        add_gradients(*given, *arrays(*(side.sums for side in sides), of_head))
        return *(side.gradient() for side in sides), of_head, None, None


class _Side(NamedTuple):
    """Where the gradient of a table is added up: in one as large, or apart for each place of its index."""

    looked_up: Int64[Tensor, "..."]
    table: Float[Tensor, "m d"]
    to: Int64[Tensor, "..."]
    sums: Float[Tensor, "n d"]

    @classmethod
    def of(cls, index: Int64[Tensor, "..."], table: Float[Tensor, "m d"]) -> "_Side":
        if not saves(index, table):
            return cls(index, table, index, torch.zeros_like(table))
        places = torch.arange(index.numel()).view(index.shape)
        return cls(index, table, places, table.new_zeros(index.numel(), table.shape[1]))

    def gradient(self) -> Float[Tensor, "m d"]:
        if self.to is self.looked_up:
            return self.sums
        return gradient_of_rows(self.looked_up.flatten(), self.sums, self.table)

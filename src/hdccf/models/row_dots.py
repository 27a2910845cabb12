"""A vector with each of some others of its own: the hot product of models over pairs."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


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

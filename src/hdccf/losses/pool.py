"""The contrastive loss of a pool of drawn items, fused: cosines without a vector for each positive.

The reference is `ContrastiveLoss.pool_term`. The look-ups of the positives are compiled (`kernels`).
"""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.kernels.sparse_gradients import LEAST_NUMBERS, arrays, gradient_of_rows, is_compiled
from hdccf.losses.block import widest_exponent
from hdccf.similarity import SHORTEST, unit_and_lengths, unit_gradient

PoolIndex = tuple[Int64[Tensor, " r"], Int64[Tensor, " c"], Int64[Tensor, " b"], Int64[Tensor, " b"]]
"""The users, the drawn items, and of each positive its row among the users and its item."""
Places = tuple[Int64[Tensor, " _n"], Int64[Tensor, " _n"]]


def can_fuse_pool(items: Float[Tensor, "n d"], temperature: float) -> bool:
    """Whether the fused loss is available for this table and faster, and its exponents do not underflow."""
    return (
        is_compiled(items)
        and items.numel() >= LEAST_NUMBERS
        and 2 / temperature < widest_exponent(items.dtype)
    )


def fused_pool_loss(
    users: Float[Tensor, "m d"],
    items: Float[Tensor, "n d"],
    index: PoolIndex,
    observed: Places,
    weights: Float[Tensor, " c"],
    temperature: float,
) -> Float[Tensor, " b"]:
    """log(1 + Σ_j w_j e^{(s_j − s)/τ}) of each positive, s being cosines (Eq. 14 with ω = 0, items only)."""
    loss: Tensor = _PoolContrast.apply(users, items, index, observed, weights, temperature)  # type: ignore[no-untyped-call]
    return loss


class _PoolContrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users: Tensor,
        items: Tensor,
        index: PoolIndex,
        observed: Places,
        weights: Tensor,
        temperature: float,
    ) -> Tensor:
        from hdccf.kernels.embedding_numba import unit_dots

        pool_users, pool_columns, positive_rows, positive_items = index
        rows, row_lengths = unit_and_lengths(users.index_select(0, pool_users))
        columns, column_lengths = unit_and_lengths(items.index_select(0, pool_columns))
        # One is taken off every cosine: no exponential is above 1, and none of them all that small.
        negatives = (rows @ columns.T).sub_(1).div_(temperature).exp_().mul_(weights)
        negatives[observed] = 0
        scores, scales = (items.new_empty(len(positive_items)) for _ in range(2))
        unit_dots(*arrays(rows, items, positive_rows, positive_items, scores, scales), SHORTEST)  # type: ignore[call-arg]
        positives = (scores - 1).div_(temperature).exp_()
        sums = negatives.sum(1).index_select(0, positive_rows)
        ctx.index, ctx.temperature = index, temperature
        units = (rows, row_lengths, columns, column_lengths)
        ctx.save_for_backward(users, items, *units, negatives, scores, scales, positives, sums)
        return (sums / positives).log1p_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        from hdccf.kernels.embedding_numba import add_unit_gradients

        users, items, rows, row_lengths, columns, column_lengths, *rest = ctx.saved_tensors
        negatives, scores, scales, positives, sums = rest
        (pool_users, pool_columns, positive_rows, positive_items), tau = ctx.index, ctx.temperature
        of_sums = upstream / (sums + positives) / tau
        of_row = rows.new_zeros(len(rows)).index_add_(0, positive_rows, of_sums)
        gradients = negatives * of_row.unsqueeze(1)
        of_rows, of_columns = gradients @ columns, gradients.T @ rows
        n_positives = len(positive_items)
        of_items = items.new_empty(n_positives + len(pool_columns), items.shape[1])
        given = arrays(rows, items, positive_rows, positive_items, scores, scales, -of_sums * sums)
        add_unit_gradients(*given, SHORTEST, *arrays(of_rows, of_items[:n_positives]))  # type: ignore[call-arg]
        of_items[n_positives:] = unit_gradient(of_columns, columns, column_lengths)
        of_users = unit_gradient(of_rows, rows, row_lengths)
        looked_up = torch.cat((positive_items, pool_columns))
        return (
            gradient_of_rows(pool_users, of_users, users),
            gradient_of_rows(looked_up, of_items, items),
            *(None,) * 4,
        )

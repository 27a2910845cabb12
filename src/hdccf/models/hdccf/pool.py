"""The loss of a pool: by its scores, as every batch's, or compiled where it is a plain one of cosines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.data.pools import Pool
from hdccf.kernels.sparse_gradients import LEAST_NUMBERS, arrays, gradient_of_rows, is_compiled
from hdccf.losses.block import widest_exponent
from hdccf.losses.negatives import NegativeTerm
from hdccf.models.hdccf.scores import pool_log_weights
from hdccf.similarity import SHORTEST, Cosine, Vectors, unit_and_lengths, unit_gradient

if TYPE_CHECKING:
    from hdccf.models.hdccf.model import HDCCFModel


def pool_loss(
    model: "HDCCFModel", pool: Pool, n_positives: int
) -> tuple[Float[Tensor, " b"], Float[Tensor, ""]]:
    """Of each positive, and the share that is clipped; where it is a process's part, of `n_positives`."""
    log_weights = pool_log_weights(model, pool)
    if _is_plain(model):
        loss = compiled_loss(model, pool, log_weights)
        return loss, loss.new_zeros(())
    users, columns = model.user_vectors(pool.users), model.items.of(pool.columns)
    each_user = Vectors(users.embedding[pool.rows], users.factors[pool.rows])
    positive = model.user_item.matching(each_user, model.items.of(pool.items))
    scores = model.user_item.all_pairs(users, columns)
    items: NegativeTerm = model.contrast.pool(scores, positive, pool, log_weights, n_positives)
    return model.contrast.loss(positive, items, None), items.clipped.detach()


def _is_plain(model: "HDCCFModel") -> bool:
    table = model.items.embedding
    return (
        isinstance(model.user_item, Cosine)
        and model.contrast.is_plain
        and is_compiled(table)
        and table.numel() >= LEAST_NUMBERS
        and 2 / model.contrast.temperature < widest_exponent(table.dtype)
    )


def compiled_loss(model: "HDCCFModel", pool: Pool, log_weights: Float[Tensor, " c"]) -> Float[Tensor, " b"]:
    """log(1 + w·Σ_j e^{(s_j − s)/τ}) of cosines, without a vector for each positive."""
    assert model.users is not None  # noqa: S101 - a pool goes with free vectors only
    weights = model.contrast.item_weight * log_weights.exp()
    loss: Tensor = _PoolContrast.apply(  # type: ignore[no-untyped-call]
        model.users.embedding, model.items.embedding, pool, weights, model.contrast.temperature
    )
    return loss


class _PoolContrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, users: Tensor, items: Tensor, pool: Pool, weights: Tensor, temperature: float
    ) -> Tensor:
        rows, row_lengths = unit_and_lengths(users.index_select(0, pool.users))
        columns, column_lengths = unit_and_lengths(items.index_select(0, pool.columns))
        # One is taken off every cosine: no exponential is above 1, and none of them all that small.
        negatives = (rows @ columns.T).sub_(1).div_(temperature).exp_().mul_(weights)
        negatives[pool.observed_rows, pool.observed_columns] = 0
        scores, scales = (items.new_empty(len(pool.items)) for _ in range(2))
        _kernels().unit_dots(*arrays(rows, items, pool.rows, pool.items, scores, scales), SHORTEST)
        positives = (scores - 1).div_(temperature).exp_()
        against = negatives.sum(1).index_select(0, pool.rows)
        ctx.pool, ctx.temperature = pool, temperature
        units = (rows, row_lengths, columns, column_lengths)
        ctx.save_for_backward(users, items, *units, negatives, scores, scales, positives, against)
        return (against / positives).log1p_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        users, items, rows, row_lengths, columns, column_lengths, *rest = ctx.saved_tensors
        negatives, scores, scales, positives, against = rest
        pool, tau = ctx.pool, ctx.temperature
        of_sums = upstream / (against + positives) / tau
        of_row = rows.new_zeros(len(rows)).index_add_(0, pool.rows, of_sums)
        slopes = negatives * of_row.unsqueeze(1)
        of_rows, of_columns = slopes @ columns, slopes.T @ rows
        of_items = items.new_empty(len(pool.items) + len(pool.columns), items.shape[1])
        own = of_items[: len(pool.items)]
        given = arrays(rows, items, pool.rows, pool.items, scores, scales, -of_sums * against)
        _kernels().add_unit_gradients(*given, SHORTEST, *arrays(of_rows, own))
        of_items[len(pool.items) :] = unit_gradient(of_columns, columns, column_lengths)
        of_users = unit_gradient(of_rows, rows, row_lengths)
        every = torch.cat((pool.items, pool.columns))
        return (
            gradient_of_rows(pool.users, of_users, users),
            gradient_of_rows(every, of_items, items),
            None,
            None,
            None,
        )


def _kernels() -> Any:
    return import_module(
        "hdccf.kernels.embedding_numba"
    )  # not at the top: numba takes half a second to import

"""Fused losses of a block (users × items scored once, every observed pair a positive) and of a pool.

`losses.contrastive` has the formulas, for rows with negatives of their own. Here all rows and all columns of
one matrix share its exponentials, which are taken once for both sides and both passes. A pool's loss takes
cosines without a vector for each positive; its reference is `ContrastiveLoss.pool_term`.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.kernels.embedding import LEAST_NUMBERS, arrays, is_compiled, table_gradient
from hdccf.losses.contrastive import contrastive_loss, log_negative_score
from hdccf.similarity import SHORTEST, unit_and_lengths, unit_gradient

Pairs = tuple[Int[Tensor, " _n"], Int[Tensor, " _n"]]
"""Row and column numbers."""


class _BlockSums(torch.autograd.Function):
    """Row and column sums of a masked matrix of e^{s/τ}, which is computed once for both and both passes."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        pairs: tuple[Tensor, Tensor],
        weights: tuple[Tensor, Tensor],
        shift: float,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        column_weights, row_weights = weights
        terms = _exponents(scores, shift, temperature).exp_()
        # Flat, as it is several times faster than by two indices.
        terms.view(-1).index_fill_(0, pairs[0] * terms.shape[1] + pairs[1], 0.0)
        over_columns, over_rows = terms @ column_weights, row_weights @ terms
        ctx.save_for_backward(terms, over_columns, over_rows, column_weights, row_weights)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return over_columns.log() + shift, over_rows.log() + shift

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_columns: Tensor | None, grad_rows: Tensor | None
    ) -> tuple[Tensor, None, None, None, None]:
        terms, over_columns, over_rows, column_weights, row_weights = ctx.saved_tensors
        of_columns = None if grad_columns is None else _per_sum(grad_columns, over_columns, ctx.temperature)
        of_rows = None if grad_rows is None else _per_sum(grad_rows, over_rows, ctx.temperature)
        return _spread(terms, of_columns, column_weights, of_rows, row_weights), None, None, None, None


def _per_sum(grad: Tensor, sums: Tensor, temperature: float) -> Tensor:
    """The gradient of each logarithm of a sum, by the sum; none through an empty one."""
    return torch.where(sums > 0, grad / (sums * temperature), 0.0)


def _spread(
    terms: Tensor,
    of_columns: Tensor | None,
    column_weights: Tensor | None,
    of_rows: Tensor | None,
    row_weights: Tensor | None,
) -> Tensor:
    """∂/∂s = e^{s/τ}·(α_r·w_c + v_r·β_c)/τ."""
    grad = None
    if of_columns is not None and column_weights is not None:
        grad = torch.outer(of_columns, column_weights)
    if of_rows is not None and row_weights is not None:
        grad = torch.outer(row_weights, of_rows) if grad is None else grad.addr_(row_weights, of_rows)
    return torch.zeros_like(terms) if grad is None else grad.mul_(terms)


class _BlockContrast(torch.autograd.Function):
    """log(1 + w_i·F_items/e^{s/τ} + w_u·F_users/e^{s/τ}) of the positives, its gradient written out.

    The gradient of the scores is one pass over the terms, to which what the positives get is added; piece by
    piece it would be two more matrices, one of them mostly zeros (decision 25).
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        places: tuple[Tensor, Tensor],
        positives: Pairs,
        weights: tuple[Tensor | None, Tensor | None],
        shift: float,
        temperature: float,
    ) -> Tensor:
        observed, positive_places = places
        (rows, columns), (column_weights, row_weights) = positives, weights
        terms = _exponents(scores, shift, temperature)
        logits = terms.view(-1).index_select(0, positive_places)
        terms.exp_().view(-1).index_fill_(0, observed, 0.0)
        # Of each side its sums, and for each positive their logarithm relative to it.
        over_columns = over_rows = of_items = of_users = None
        if column_weights is not None:
            over_columns = terms @ column_weights
            of_items = over_columns.log().index_select(0, rows).sub_(logits)
        if row_weights is not None:
            over_rows = row_weights @ terms
            of_users = over_rows.log().index_select(0, columns).sub_(logits)
        loss = torch.zeros_like(logits)
        for side in (of_items, of_users):
            loss = loss if side is None else torch.logaddexp(loss, side)
        of_sides = (over_columns, column_weights, of_items, over_rows, row_weights, of_users)
        ctx.save_for_backward(terms, loss, positive_places, rows, columns, *of_sides)
        ctx.temperature = temperature
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        terms, loss, places, rows, columns, *of_sides = ctx.saved_tensors
        over_columns, column_weights, of_items, over_rows, row_weights, of_users = of_sides
        shares = []

        def side(sums: Tensor | None, relative: Tensor | None, which: Tensor) -> Tensor | None:
            if sums is None or relative is None:
                return None
            shares.append((relative - loss).exp_().mul_(grad))
            of_sums = torch.zeros_like(sums).index_add_(0, which, shares[-1])
            return _per_sum(of_sums, sums, ctx.temperature)

        of_columns, of_rows = side(over_columns, of_items, rows), side(over_rows, of_users, columns)
        to_scores = _spread(terms, of_columns, column_weights, of_rows, row_weights)
        for share in shares:
            to_scores.view(-1).index_add_(0, places, share, alpha=-1 / ctx.temperature)
        return to_scores, None, None, None, None, None


def log_block_scores(
    scores: Float[Tensor, "r c"],
    observed: tuple[Int[Tensor, " n"], Int[Tensor, " n"]],
    *,
    temperature: float,
    log_column_weights: Float[Tensor, " c"] | None = None,
    log_row_weights: Float[Tensor, " r"] | None = None,
) -> tuple[Float[Tensor, " r"], Float[Tensor, " c"]]:
    """`log_negative_score` of every row and of every column of a block, without its observed pairs.

    Equal to calling it on the scores and on their transpose with −inf at `observed` (distinct row and column
    numbers); column weights weigh the terms of a row's sum, row weights those of a column's. The matrix is
    exponentiated once for both, and the mask costs what it has pairs.
    """
    rows, columns = observed
    n_rows, n_columns = scores.shape
    column_weights = _weights(log_column_weights, n_columns, scores)
    row_weights = _weights(log_row_weights, n_rows, scores)
    shift = _one_shift(scores, temperature)
    if shift is not None:
        over_columns, over_rows = _BlockSums.apply(  # type: ignore[no-untyped-call]
            scores.contiguous(), observed, (column_weights, row_weights), shift, temperature
        )
    else:
        # One shift for all would let the smallest sums underflow: each row and each column takes its own.
        mask = torch.zeros_like(scores).index_put_((rows, columns), scores.new_tensor(-math.inf))
        over_columns = log_negative_score(scores, mask + column_weights.log(), temperature=temperature)
        over_rows = log_negative_score(scores.T, mask.T + row_weights.log(), temperature=temperature)
    return over_columns, over_rows


def block_contrastive_loss(
    scores: Float[Tensor, "r c"],
    observed: Pairs,
    positives: Pairs,
    *,
    temperature: float,
    log_column_weights: Float[Tensor, " c"] | None = None,
    log_row_weights: Float[Tensor, " r"] | None = None,
    item_weight: float = 1.0,
    user_weight: float = 1.0,
    bound: float = math.inf,
) -> Float[Tensor, " b"]:
    """`contrastive_loss` of a block's positives, each against its row's and its column's unobserved pairs.

    Equal to it on `log_block_scores` of `observed` (distinct pairs), in a third of the passes. Who knows that
    no |s| is above a `bound` spares the search for the widest exponents.
    """
    n_columns, (rows, columns) = scores.shape[1], positives
    shift = _one_shift(scores, temperature, bound)
    if shift is None:
        over_columns, over_rows = log_block_scores(
            scores,
            observed,
            temperature=temperature,
            log_column_weights=log_column_weights,
            log_row_weights=log_row_weights,
        )
        return contrastive_loss(
            scores[rows, columns],
            over_columns[rows],
            over_rows[columns],
            temperature=temperature,
            item_weight=item_weight,
            user_weight=user_weight,
        )
    places = observed[0] * n_columns + observed[1]
    of_positives = places if positives is observed else rows * n_columns + columns
    weights = (
        _weights(log_column_weights, n_columns, scores) * item_weight if item_weight else None,
        _weights(log_row_weights, len(scores), scores) * user_weight if user_weight else None,
    )
    loss: Tensor = _BlockContrast.apply(  # type: ignore[no-untyped-call]
        scores.contiguous(), (places, of_positives), positives, weights, shift, temperature
    )
    return loss


def _one_shift(scores: Tensor, temperature: float, bound: float = math.inf) -> float | None:
    """What to take off every s/τ before its exponential; None where one for all would let sums underflow."""
    widest = widest_exponent(scores.dtype)
    if 2 * bound / temperature < widest:
        return 0.0
    if not scores.numel():
        return 0.0  # one process of a group may have no rows of a small block: its part of every sum is empty
    lowest, highest = (float(limit) / temperature for limit in scores.detach().aminmax())
    return highest if highest - lowest < widest else None


def _exponents(scores: Tensor, shift: float, temperature: float) -> Tensor:
    exponents = scores / temperature
    return exponents.sub_(shift) if shift else exponents


def _weights(log_weights: Tensor | None, n: int, like: Tensor) -> Tensor:
    return like.new_ones(n) if log_weights is None else log_weights.detach().exp().to(like.dtype)


def widest_exponent(dtype: torch.dtype) -> float:
    """How far apart two exponents may lie and both be normal numbers, with room for weights of 1e-11."""
    return -math.log(torch.finfo(dtype).tiny) - 26.0


PoolIndex = tuple[Int64[Tensor, " r"], Int64[Tensor, " c"], Int64[Tensor, " b"], Int64[Tensor, " b"]]
"""The users, the drawn items, and of each positive its row among the users and its item."""


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
    observed: Pairs,
    weights: Float[Tensor, " c"],
    temperature: float,
    *,
    sparse: bool,
) -> Float[Tensor, " b"]:
    """log(1 + Σ_j w_j e^{(s_j − s)/τ}) of each positive, s being cosines (Eq. 14 with ω = 0, items only).

    With `sparse` the gradients of the tables are sparse tensors of the looked-up rows.
    """
    loss: Tensor = _PoolContrast.apply(users, items, index, observed, weights, temperature, sparse)  # type: ignore[no-untyped-call]
    return loss


class _PoolContrast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        users: Tensor,
        items: Tensor,
        index: PoolIndex,
        observed: Pairs,
        weights: Tensor,
        temperature: float,
        sparse: bool,
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
        ctx.index, ctx.temperature, ctx.sparse = index, temperature, sparse
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
            table_gradient(pool_users, of_users, users, sparse=ctx.sparse),
            table_gradient(looked_up, of_items, items, sparse=ctx.sparse),
            *(None,) * 5,
        )

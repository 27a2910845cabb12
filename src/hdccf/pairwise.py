"""All pairs of the modulated similarity (Eq. 7–8) in tiles: the hot loop.

The modulation is a vector for every *pair*, so the plain way builds d × M × N numbers. Here rows and columns
are cut into tiles that stay in the processor's cache; a tile is computed in place, summed over d at once, and
computed again in the backward pass. Memory is that of the inputs, the M × N result, and two tiles.

Within a tile the pre-activation is one matrix product. With a linear g all that depends on the right side is
linear in its factors, so that the left's factors and the right's own weight fold into one matrix per row,

    z[u, k, i] = a[u, k] + Σ_l (W_right[k, l] + W_product[k, l]·e_u[l])·e_i[l],

(rows·d) × d times d × columns, with a as one more column against a row of ones. Columns run fastest in
memory, so that every other operation streams.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_NUMBERS = 1 << 18
"""Numbers in a tile, a megabyte in float32: about a core's second-level cache. Measured, see decision 046."""

TILE_COLUMNS = 512
"""Columns in a tile at most: long enough to stream, short enough that several rows share one product."""


def modulated_scores(
    left: Float[Tensor, "m d"],
    right: Float[Tensor, "n d"],
    left_part: Float[Tensor, "m d"],
    left_factors: Float[Tensor, "m l"],
    right_factors: Float[Tensor, "n l"],
    right_weight: Float[Tensor, "d l"],
    product_weight: Float[Tensor, "d l"],
) -> Float[Tensor, "m n"]:
    """f[u, i] = Σ_k p_u[k]·q_i[k]·σ( a_u[k] + Σ_l (V[k, l] + W[k, l]·e_u[l])·e_i[l] )²  (7, 8, g linear).

    `left` and `right` are p and q, `left_part` is a, the factors are e, the weights V and W.
    """
    inputs = (left, right, left_part, left_factors, right_factors, right_weight, product_weight)
    scores: Tensor = _Modulated.apply(*inputs)  # type: ignore[no-untyped-call]
    return scores


def tiled_scores(
    score: Callable[..., Tensor],
    left: Sequence[Float[Tensor, "m ..."]],
    right: Sequence[Float[Tensor, "n ..."]],
    shared: Sequence[Tensor],
    depth: int,
) -> Float[Tensor, "m n"]:
    """score(*left rows as r × 1 × …, *right rows as c × …, *shared) of every tile, by any function of torch.

    `depth` is how many numbers the function needs for a pair. What it keeps for its gradient lives as long as
    a tile: the backward pass calls it again.
    """
    scores: Tensor = _Tiled.apply(score, depth, len(left), len(right), *left, *right, *shared)  # type: ignore[no-untyped-call]
    return scores


def tile_shape(n_columns: int, depth: int) -> tuple[int, int]:
    """Rows and columns of a tile with at most TILE_NUMBERS numbers at this depth."""
    width = max(1, min(n_columns, TILE_COLUMNS, TILE_NUMBERS // depth))
    return max(1, TILE_NUMBERS // (depth * width)), width


def _ranges(n: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, n, size)]


class _Modulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        left, right, left_part, left_factors, right_factors, right_weight, product_weight = inputs
        ctx.save_for_backward(*inputs)
        (m, d), n = left.shape, right.shape[0]
        height, width = tile_shape(n, d)
        right_t, factors_t = right.T.contiguous(), _with_ones(right_factors)
        scores, z = left.new_empty(m, n), left.new_empty(height * width * d)
        for rows in _ranges(m, height):
            p = left[rows].unsqueeze(1)  # r 1 d
            folded = torch.addcmul(right_weight, left_factors[rows].unsqueeze(1), product_weight)  # r d l
            folded = torch.cat([folded, left_part[rows].unsqueeze(2)], dim=2)
            for columns in _ranges(n, width):
                tile = _product(folded, factors_t[:, columns], z).sigmoid_().square_()
                tile.mul_(right_t[:, columns])
                scores[rows, columns] = torch.bmm(p, tile).squeeze(1)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        left, right, left_part, left_factors, right_factors, right_weight, product_weight = ctx.saved_tensors
        (m, d), n = left.shape, right.shape[0]
        height, width = tile_shape(n, d)
        right_t, factors_t = right.T.contiguous(), _with_ones(right_factors)
        to_left, to_left_part, to_left_factors = (
            torch.empty_like(x) for x in (left, left_part, left_factors)
        )
        to_right_t, to_factors_t = torch.zeros_like(right_t), torch.zeros_like(factors_t[:-1])
        to_right_weight, to_product_weight = (torch.zeros_like(x) for x in (right_weight, product_weight))
        z, s = (left.new_empty(height * width * d) for _ in range(2))
        for rows in _ranges(m, height):
            # Dimensions first, so that sums over rows and over columns are those of d separate matrices.
            p, e = left[rows].T.contiguous(), left_factors[rows]  # d r, r l
            folded = torch.addcmul(right_weight.unsqueeze(1), e, product_weight.unsqueeze(1))  # d r l
            with_part = torch.cat([folded, left_part[rows].T.unsqueeze(2)], dim=2)
            # f = Σ p·q·m² and m = σ(z), so ∂f/∂z = 2·p·q·m²·(1 − m). 2·p is constant along a tile's row: it
            # scales what is multiplied with the row, or the sum over it, instead of the row.
            twice = 2 * p.unsqueeze(2)
            scaled = (folded * twice).view(-1, folded.shape[2]).T
            to_p, to_part, to_folded = torch.zeros_like(p), torch.zeros_like(p), torch.zeros_like(folded)
            for columns in _ranges(n, width):
                tile = _product(with_part, factors_t[:, columns], z).sigmoid_()  # m
                shared = torch.mul(tile, tile, out=s[: tile.numel()].view_as(tile)).mul_(grad[rows, columns])
                to_right_t[:, columns] += torch.bmm(p.unsqueeze(1), shared).squeeze(1)
                to_p += shared.mul_(right_t[:, None, columns]).sum(2)
                rest = torch.addcmul(shared, shared, tile, value=-1, out=tile)
                to_part += rest.sum(2)
                flat = rest.view(p.numel(), -1)
                to_factors_t[:, columns].addmm_(scaled, flat)
                to_folded.view(p.numel(), -1).addmm_(flat, right_factors[columns])
            to_folded *= twice
            to_left[rows], to_left_part[rows] = to_p.T, (to_part * twice.squeeze(2)).T
            to_left_factors[rows] = (to_folded * product_weight.unsqueeze(1)).sum(0)
            to_right_weight += to_folded.sum(1)
            to_product_weight += to_folded.mul_(e).sum(1)
        to_right, to_right_factors = to_right_t.T, to_factors_t.T
        to_sides = (to_left, to_right, to_left_part, to_left_factors, to_right_factors)
        return (*to_sides, to_right_weight, to_product_weight)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, score: Callable[..., Tensor], depth: int, n_left: int, n_right: int, *tensors: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.score, ctx.depth, ctx.n_left, ctx.n_right = score, depth, n_left, n_right
        left, right, shared = _sides(tensors, n_left, n_right)
        height, width = tile_shape(len(right[0]), depth)
        scores = left[0].new_empty(len(left[0]), len(right[0]))
        for rows in _ranges(len(left[0]), height):
            of_rows = [x[rows].unsqueeze(1) for x in left]
            for columns in _ranges(len(right[0]), width):
                scores[rows, columns] = score(*of_rows, *(x[columns] for x in right), *shared)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        left, right, shared = _sides(tensors, ctx.n_left, ctx.n_right)
        height, width = tile_shape(len(right[0]), ctx.depth)
        to_left, to_right, to_shared = ([torch.zeros_like(x) for x in side] for side in (left, right, shared))
        for rows in _ranges(len(left[0]), height):
            for columns in _ranges(len(right[0]), width):
                given = [x[rows].unsqueeze(1) for x in left] + [x[columns] for x in right] + [*shared]
                given = [x.detach().requires_grad_() for x in given]
                with torch.enable_grad():
                    scores = ctx.score(*given)
                gradients = _sides(
                    torch.autograd.grad(scores, given, grad[rows, columns]), len(left), len(right)
                )
                for total, part in zip(to_left, gradients[0], strict=True):
                    total[rows] += part.squeeze(1)
                for total, part in zip(to_right, gradients[1], strict=True):
                    total[columns] += part
                for total, part in zip(to_shared, gradients[2], strict=True):
                    total += part
        return None, None, None, None, *to_left, *to_right, *to_shared


def _sides(
    tensors: Sequence[Tensor], n_left: int, n_right: int
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    return tensors[:n_left], tensors[n_left : n_left + n_right], tensors[n_left + n_right :]


def _with_ones(factors: Float[Tensor, "n l"]) -> Float[Tensor, "l1 n"]:
    """Transposed, and a row of ones for the part that does not depend on the right side."""
    return torch.cat([factors, factors.new_ones(factors.shape[0], 1)], dim=1).T.contiguous()


def _product(
    folded: Float[Tensor, "a b l"], columns: Float[Tensor, "l c"], buffer: Float[Tensor, " size"]
) -> Float[Tensor, "a b c"]:
    """The product of a tile, in memory taken once: fresh memory for each would cost more than its sigmoid."""
    a, b, _ = folded.shape
    flat = buffer[: a * b * columns.shape[1]].view(a * b, columns.shape[1])
    return torch.mm(folded.view(a * b, -1), columns, out=flat).view(a, b, -1)

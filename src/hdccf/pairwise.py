"""All pairs of the modulated similarity (Eq. 7–8) in tiles: the hot loop.

The modulation is a vector for every *pair*, so the plain way builds d × M × N numbers. Here rows and
columns are cut into tiles that stay in the processor's cache; a tile is computed in place, summed over d at
once, and computed again in the backward pass. Memory is that of the inputs, the M × N result, and one tile.

Within a tile the pre-activation is one matrix product. With the row's factors e_u folded into the weight,

    z[u, k, i] = a[u, k] + c[i, k] + Σ_l (W[k, l]·e_u[l])·e_i[l],

a matrix of (rows·d) × d times one of d × columns; a and c hold what depends on one side alone. Columns run
fastest in memory, so that every other operation streams.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_NUMBERS = 1 << 18
"""Numbers in a tile, a megabyte in float32: about a core's second-level cache. Measured, see decision 046."""

TILE_COLUMNS = 1024
"""Columns in a tile at most: long enough to stream, short enough that several rows share one product."""


def modulated_scores(
    left: Float[Tensor, "m d"],
    right: Float[Tensor, "n d"],
    left_part: Float[Tensor, "m d"],
    right_part: Float[Tensor, "n d"],
    left_factors: Float[Tensor, "m l"],
    right_factors: Float[Tensor, "n l"],
    weight: Float[Tensor, "d l"],
) -> Float[Tensor, "m n"]:
    """f[u, i] = Σ_k p_u[k]·q_i[k]·σ( a_u[k] + c_i[k] + Σ_l W[k, l]·e_u[l]·e_i[l] )²  (7, 8, g linear).

    `left` and `right` are p and q, the parts a and c, the factors e. Never more than a tile of d × M × N.
    """
    inputs = (left, right, left_part, right_part, left_factors, right_factors, weight)
    scores: Tensor = _Modulated.apply(*inputs)  # type: ignore[no-untyped-call]
    return scores


def tile_shape(n_columns: int, depth: int) -> tuple[int, int]:
    """Rows and columns of a tile with at most TILE_NUMBERS numbers at this depth."""
    width = max(1, min(n_columns, TILE_COLUMNS, TILE_NUMBERS // depth))
    return max(1, TILE_NUMBERS // (depth * width)), width


def _tiles(n_rows: int, n_columns: int, depth: int) -> list[tuple[slice, slice]]:
    height, width = tile_shape(n_columns, depth)
    return [
        (slice(top, top + height), slice(start, start + width))
        for start in range(0, n_columns, width)
        for top in range(0, n_rows, height)
    ]


def _modulation(
    left_part: Tensor, right_part: Tensor, folded: Tensor, right_factors: Tensor
) -> Float[Tensor, "r d c"]:
    """σ(z) of one tile; right_part and right_factors are columns' (d × c and l × c), folded is W ⊙ e_u."""
    rows, depth, inner = folded.shape
    z = torch.mm(folded.view(rows * depth, inner), right_factors).view(rows, depth, -1)
    return z.add_(right_part).add_(left_part.unsqueeze(2)).sigmoid_()


class _Modulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        left, right, left_part, right_part, left_factors, right_factors, weight = inputs
        ctx.save_for_backward(*inputs)
        right_t, part_t, factors_t = (x.T.contiguous() for x in (right, right_part, right_factors))
        scores = left.new_empty(left.shape[0], right.shape[0])
        for rows, columns in _tiles(left.shape[0], right.shape[0], left.shape[1]):
            folded = left_factors[rows].unsqueeze(1) * weight
            m = _modulation(left_part[rows], part_t[:, columns], folded, factors_t[:, columns])
            m.square_().mul_(right_t[:, columns])
            scores[rows, columns] = torch.bmm(left[rows].unsqueeze(1), m).squeeze(1)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        left, right, left_part, right_part, left_factors, right_factors, weight = ctx.saved_tensors
        right_t, part_t, factors_t = (x.T.contiguous() for x in (right, right_part, right_factors))
        to_left, to_left_part = torch.zeros_like(left), torch.zeros_like(left_part)
        to_right_t, to_part_t, to_factors_t = (torch.zeros_like(x) for x in (right_t, part_t, factors_t))
        to_left_factors, to_weight = torch.zeros_like(left_factors), torch.zeros_like(weight)
        for rows, columns in _tiles(left.shape[0], right.shape[0], left.shape[1]):
            p = left[rows].unsqueeze(2)
            folded = left_factors[rows].unsqueeze(1) * weight  # r d l
            n_folded = folded.shape[0] * folded.shape[1]
            m = _modulation(left_part[rows], part_t[:, columns], folded, factors_t[:, columns])
            # f = Σ p·q·m² and m = σ(z), so ∂f/∂z = 2·p·q·m²·(1 − m).
            shared = m.square().mul_(grad[rows, columns].unsqueeze(1))  # G·m²
            to_right_t[:, columns] += torch.einsum("rd,rdc->dc", left[rows], shared)
            shared.mul_(right_t[:, columns])  # G·q·m²
            to_left[rows] += shared.sum(2)
            dz = m.neg_().add_(1.0).mul_(shared).mul_(p).mul_(2.0)
            to_left_part[rows] += dz.sum(2)
            to_part_t[:, columns] += dz.sum(0)
            flat = dz.view(n_folded, -1)
            to_factors_t[:, columns].addmm_(folded.view(n_folded, -1).T, flat)
            to_folded = torch.mm(flat, factors_t[:, columns].T).view_as(folded)
            to_left_factors[rows] += torch.einsum("rdl,dl->rl", to_folded, weight)
            to_weight += torch.einsum("rdl,rl->dl", to_folded, left_factors[rows])
        return to_left, to_right_t.T, to_left_part, to_part_t.T, to_left_factors, to_factors_t.T, to_weight

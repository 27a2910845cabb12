"""All pairs of the modulated similarity (Eq. 7–8) in tiles: the hot loop.

The modulation is a vector for every *pair*, so the plain way builds d × M × N numbers. Here rows and columns
are cut into tiles that stay in the processor's cache; a tile is computed in place, summed over d at once, and
computed again in the backward pass. Memory is that of the inputs, the M × N result, and a tile or two for
each core. In this file matrix products and what lies between them (`pairwise_passes`) are torch's, on any
device and in any precision. float32 on a processor where numba is installed goes to `pairwise_panels`, which
does the same in smaller pieces. Either way `pairwise_workers` gives each core pieces of its own.

Within a tile the pre-activation is one matrix product. With a linear g all that depends on the right side is
linear in its factors, so that the left's factors and the right's own weight fold into one matrix per row,

    z[u, k, i] = a[u, k] + Σ_l (W_right[k, l] + W_product[k, l]·e_u[l])·e_i[l],

(rows·d) × d times d × columns, with a as one more column against a row of ones. Columns run fastest in
memory, so that everything between the products streams.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby, product
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.kernels import pairwise_torch as passes
from hdccf.kernels.pairwise_compiled import Panels, can_compile
from hdccf.kernels.threads import share

TILE_NUMBERS = 1 << 19
"""Numbers in a tile, two megabytes in float32. 2¹⁷ to 2²⁰ are alike, see decision 25."""

TILE_COLUMNS = 512
"""Columns in a tile at most: long enough to stream, short enough that several rows share one product."""

LEAST_SHARED = 1 << 20
"""d·M·N from which several cores are faster than one: it takes a tenth of a millisecond to hand work over."""

Tile = tuple[slice, tuple[slice, Tensor, Tensor]]
"""Rows, and columns with the right side's factors there, transposed and not."""


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
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


class _Modulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        block, threads = _block(inputs)
        scores = inputs[0].new_empty(inputs[0].shape[0], inputs[1].shape[0])
        share(partial(block.score, scores), block.parts, threads)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        block, threads = _block(ctx.saved_tensors)
        first, *others = share(partial(block.differentiate, grad.contiguous()), block.parts, threads)
        for other in others:
            for total, part in zip(first, other, strict=True):
                total += part
        return tuple(block.of_inputs(first))


def _block(inputs: Sequence[Tensor]) -> tuple[Any, int]:
    """All pairs as the kernels or as torch wants them, and how many threads share them."""
    left, right = inputs[:2]
    numbers = right.shape[0] * left.numel()
    on_cores = left.device.type == "cpu" and numbers >= LEAST_SHARED
    block = Panels(inputs) if can_compile(left, numbers) else Tiles(inputs)
    return block, torch.get_num_threads() if on_cores else 1


class Tiles:
    """All pairs of two sides, laid out for tiles: what belongs to the right side transposed."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        inputs = [x.detach().contiguous() for x in inputs]
        self.left, right, self.left_part, self.left_factors, right_factors, *weights = inputs
        self.right_weight, self.product_weight = weights
        (m, d), n = self.left.shape, right.shape[0]
        self.right_t = right.T.contiguous()
        # The row of ones is for the part that does not depend on the right side.
        self.factors_t = torch.cat([right_factors, right.new_ones(n, 1)], dim=1).T.contiguous()
        height, self.width = tile_shape(n, d)
        self.height = max(1, min(height, m))
        ranges = _ranges(n, self.width)
        columns = [(range_, self.factors_t[:, range_], right_factors[range_]) for range_ in ranges]
        self.parts: list[Tile] = list(product(_ranges(m, self.height), columns))

    def score(self, scores: Float[Tensor, "m n"], tiles: Sequence[Tile]) -> None:
        views = self._views()
        to_fold = (self.left_part, self.left_factors, self.right_weight, self.product_weight)
        for rows, group in groupby(tiles, itemgetter(0)):
            passes.fold(*to_fold, views(rows).folded, rows.start)
            for _, (columns, factors_t, _) in group:
                view = views(rows, columns)
                torch.mm(view.flat, factors_t, out=view.tile)
                passes.score(view.z, self.left, self.right_t, scores, rows.start, columns.start)

    def differentiate(self, grad: Float[Tensor, "m n"], tiles: Sequence[Tile]) -> list[Tensor]:
        """What these tiles add to the gradients of the inputs, in their order and in this layout."""
        views, weights = self._views(), (self.right_weight, self.product_weight)
        sides = (self.left, self.right_t, self.left_part, self.left_factors, self.factors_t[:-1])
        gradients = [torch.zeros_like(x) for x in (*sides, *weights)]
        to_left, to_right_t, to_part, to_left_factors, to_factors_t, to_weight, to_product_weight = gradients
        to_fold = (self.left_part, self.left_factors, *weights)
        given = (self.left, self.right_t, grad, to_left, to_right_t, to_part)
        to_unfold = (self.left_factors, self.product_weight, to_left_factors, to_weight, to_product_weight)
        for rows, group in groupby(tiles, itemgetter(0)):
            passes.fold(*to_fold, views(rows).folded, rows.start)
            views(rows).to_flat.zero_()
            for _, (columns, factors_t, factors) in group:
                view = views(rows, columns)
                torch.mm(view.flat, factors_t, out=view.tile)
                passes.differentiate(view.z, *given, rows.start, columns.start)
                to_factors_t[:, columns].addmm_(view.flat_t, view.tile)
                view.to_flat.addmm_(view.tile, factors)
            passes.unfold(views(rows).to_folded, *to_unfold, rows.start)
        return gradients

    def of_inputs(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients in the layout of the inputs."""
        to_left, to_right_t, to_part, to_left_factors, to_factors_t, *to_weights = gradients
        return [to_left, to_right_t.T, to_part, to_left_factors, to_factors_t.T, *to_weights]

    def _views(self) -> Callable[..., "_Views"]:
        """A thread's own memory as tiles of the shapes that are asked for.

        Taken once: fresh memory for each tile would cost more than its sigmoid, and fresh views a tenth.
        """
        (d, inner), new = self.right_weight.shape, self.left.new_empty
        buffers = [new(self.height * d * size) for size in (inner + 1, self.width, inner)]

        @cache
        def of_shape(rows: int, columns: int) -> _Views:
            sizes = (inner + 1, columns, inner)
            flat, tile, to_flat = (
                x[: rows * d * y].view(rows * d, y) for x, y in zip(buffers, sizes, strict=True)
            )
            by_rows = [x.view(rows, d, -1) for x in (flat, tile, to_flat)]
            return _Views(flat, tile, to_flat, flat[:, :-1].T, *by_rows)

        def of_tile(rows: slice, columns: slice = slice(0, self.width)) -> _Views:
            return of_shape(rows.stop - rows.start, columns.stop - columns.start)

        return of_tile


class _Views(NamedTuple):
    flat: Float[Tensor, "rd l1"]
    """Folded weights."""

    tile: Float[Tensor, "rd c"]
    """z, then its gradient."""

    to_flat: Float[Tensor, "rd l"]
    """The folded weights' gradient."""

    flat_t: Float[Tensor, "l rd"]
    """Folded weights without the part, transposed."""

    folded: Float[Tensor, "r d l1"]
    z: Float[Tensor, "r d c"]
    to_folded: Float[Tensor, "r d l"]
    """The first three by rows, as the passes take them."""


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

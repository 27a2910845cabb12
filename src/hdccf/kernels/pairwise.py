"""All pairs of the modulated similarity (Eq. 7–8) and of other functions of a pair, in tiles.

The modulation is a vector for every *pair*, so the plain way builds d × M × N numbers. `tiled_scores` cuts
rows and columns into tiles that fit the processor's cache and computes a tile again in the backward pass, by
any function of torch, on any device and in any precision. `modulated_scores` is the compiled form of Eq. 7–8
with a linear g, for float32 on a processor with numba: the right side is cut into panels of as many columns
as two vector registers hold, and each core works on panels of its own (`pairwise_numba`).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise, product
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

TILE_NUMBERS = 1 << 19
"""Numbers in a tile, two megabytes in float32. 2¹⁷ to 2²⁰ are alike, see decision 25."""

TILE_COLUMNS = 512
"""Columns in a tile at most: long enough to stream, short enough that several rows share one product."""

LEAST_NUMBERS = 1 << 20
"""d·M·N from which loading the compiled kernels pays: a second or two, and twelve when first compiled."""

BLOCK_ROWS = 64
"""Rows that a core takes at once: 2 % of the time is in taking them, and there are enough to share."""

BLOCK_COLUMNS = 512
"""Columns that a core takes at once: all that belongs to them stays in its second cache from row to row."""

Where = tuple[int, int, int, int]
"""The first row and the one after the last, the first panel and the one after the last."""

Array = NDArray[np.float32]
Part = TypeVar("Part")
Result = TypeVar("Result")


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


def can_compile(example: Tensor, numbers: int) -> bool:
    """Whether the compiled kernels serve tensors like this one, and d·M·N is large enough for them to pay."""
    fits = example.dtype is torch.float32 and example.device.type == "cpu"
    return fits and numbers >= LEAST_NUMBERS and _kernels() is not None


@cache
def _kernels() -> Any:
    """The compiled kernels; None without numba, or where it finds no folder to keep what it compiles."""
    try:
        from hdccf.kernels import pairwise_numba  # not at the top: numba takes half a second to import
    except (ImportError, RuntimeError):
        return None
    return pairwise_numba


def modulated_scores(
    left: Float[Tensor, "m d"],
    right: Float[Tensor, "n d"],
    left_part: Float[Tensor, "m d"],
    left_factors: Float[Tensor, "m l"],
    right_factors: Float[Tensor, "n l"],
    right_weight: Float[Tensor, "d l"],
    product_weight: Float[Tensor, "d l"],
) -> Float[Tensor, "m n"]:
    """f[u, i] = Σ_k p_u[k]·q_i[k]·σ( a_u[k] + Σ_l (V[k, l] + W[k, l]·e_u[l])·e_i[l] )²  (Eq. 7–8, g linear).

    `left` and `right` are p and q, `left_part` is a, the factors are e, the weights V and W.
    """
    inputs = (left, right, left_part, left_factors, right_factors, right_weight, product_weight)
    scores: Tensor = _Modulated.apply(*inputs)  # type: ignore[no-untyped-call]
    return scores


class _Modulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        panels = Panels(inputs)
        scores = inputs[0].new_empty(inputs[0].shape[0], inputs[1].shape[0])
        share(partial(panels.score, scores.numpy()), panels.parts, torch.get_num_threads())
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        panels = Panels(ctx.saved_tensors)
        work = partial(panels.differentiate, grad.contiguous().numpy())
        first, *others = share(work, panels.parts, torch.get_num_threads())
        for other in others:
            for total, part in zip(first, other, strict=True):
                total += part
        return tuple(panels.of_inputs([torch.from_numpy(x) for x in first]))


class Panels:
    """All pairs of two sides, laid out for the kernels, and the parts of the work to share."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.kernels = _kernels()
        self.shapes = [x.shape for x in inputs]
        left, right, left_part, left_factors, right_factors, *weights = (x.detach() for x in inputs)
        rows, width = self.kernels.ROWS, self.kernels.COLUMNS
        d, inner = (_up(size, rows) for size in weights[0].shape)
        m, n = left.shape[0], _up(right.shape[0], width)
        sides = [_padded(x, m, size) for x, size in ((left, d), (left_part, d), (left_factors, inner))]
        panels = [
            _padded(x, n, size).view(-1, width, size) for x, size in ((right, d), (right_factors, inner))
        ]
        weights = [_padded(x, d, inner) for x in weights]
        given = [*sides, *weights, *(x.transpose(1, 2).contiguous() for x in panels)]
        self.given = tuple(x.numpy() for x in given)
        # The last product has their own dimensions along its columns.
        self.factors = _padded(right_factors, n, _up(inner, width)).view(n // width, width, -1).numpy()
        blocks = product(_ranges(n // width, BLOCK_COLUMNS // width), _ranges(m, BLOCK_ROWS))
        self.parts: list[Where] = [
            (rows.start, rows.stop, panels.start, panels.stop) for panels, rows in blocks
        ]

    def score(self, scores: Array, parts: Sequence[Where]) -> None:
        for where in parts:
            self.kernels.score(self.given, scores, where)

    def differentiate(self, grad: Array, parts: Sequence[Where]) -> tuple[Array, ...]:
        """What these parts add to the gradients, in this layout."""
        gradients = tuple(np.zeros_like(x) for x in self.given)
        for where in parts:
            self.kernels.differentiate(self.given, self.factors, grad, gradients, where)
        return gradients

    def of_inputs(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients in the order and the shapes of the inputs."""
        *of_sides, to_weight, to_product_weight, to_right, to_factors = gradients
        to_left, to_part, to_left_factors = of_sides
        to_right, to_factors = (x.transpose(1, 2).flatten(0, 1) for x in (to_right, to_factors))
        padded = (to_left, to_right, to_part, to_left_factors, to_factors, to_weight, to_product_weight)
        return [x[:rows, :columns] for x, (rows, columns) in zip(padded, self.shapes, strict=True)]


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _padded(x: Float[Tensor, "a b"], rows: int, columns: int) -> Float[Tensor, "{rows} {columns}"]:
    return functional.pad(x, (0, columns - x.shape[1], 0, rows - x.shape[0])).contiguous()


def share(work: Callable[[Sequence[Part]], Result], parts: Sequence[Part], threads: int) -> list[Result]:
    """work(some of the parts) in each of so many threads, in the order of the parts.

    Which thread gets which parts depends on their numbers alone, so that sums over the results repeat bit
    for bit.
    """
    threads = min(threads, len(parts))
    if threads <= 1:
        return [work(parts)]
    bounds = [len(parts) * thread // threads for thread in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, [parts[a:b] for a, b in pairwise(bounds)]))

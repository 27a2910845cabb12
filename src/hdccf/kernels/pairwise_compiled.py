"""All pairs of the modulated similarity laid out for `pairwise_kernels`, for float32 on a processor.

The right side is cut into panels of so many columns as two vector registers hold, each transposed and in one
piece; sizes that do not divide are filled with zeros, which add nothing to any sum.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

LEAST_NUMBERS = 1 << 20
"""d·M·N from which loading the compiled kernels pays: a second or two, and twelve when first compiled."""

BLOCK_ROWS = 64
"""Rows that a core takes at once: 2 % of the time is in taking them, and there are enough to share."""

BLOCK_COLUMNS = 512
"""Columns that a core takes at once: all that belongs to them stays in its second cache from row to row."""

Where = tuple[int, int, int, int]
"""The first row and the one after the last, the first panel and the one after the last."""


def can_compile(example: Tensor, numbers: int) -> bool:
    """Whether the compiled kernels serve tensors like this one, and d·M·N is large enough for them to pay."""
    fits = example.dtype is torch.float32 and example.device.type == "cpu"
    return fits and numbers >= LEAST_NUMBERS and _installed()


@cache
def _installed() -> bool:
    try:
        compiled()
    except (ImportError, RuntimeError):
        # Numba raises a RuntimeError where no folder can be written to keep what it compiles.
        return False
    return True


def compiled() -> Any:
    return import_module(
        "hdccf.kernels.pairwise_numba"
    )  # not at the top: numba takes half a second to import


class Panels:
    """All pairs of two sides, and the parts of the work to share; `pairwise.Tiles` is the same in torch."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self.kernels = compiled()
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
        self.given = [*sides, *weights, *(x.transpose(1, 2).contiguous() for x in panels)]
        # The last product has their own dimensions along its columns.
        self.factors = _padded(right_factors, n, _up(inner, width)).view(n // width, width, -1)
        blocks = product(_ranges(n // width, BLOCK_COLUMNS // width), _ranges(m, BLOCK_ROWS))
        self.parts: list[Where] = [(*of_rows, *of_panels) for of_panels, of_rows in blocks]

    def score(self, scores: Float[Tensor, "m n"], parts: Sequence[Where]) -> None:
        given, found = _arrays(self.given), scores.numpy()
        for where in parts:
            self.kernels.score(given, found, where)

    def differentiate(self, grad: Float[Tensor, "m n"], parts: Sequence[Where]) -> list[Tensor]:
        """What these parts add to the gradients, in this layout."""
        gradients = [torch.zeros_like(x) for x in self.given]
        arrays = (_arrays(self.given), self.factors.numpy(), grad.numpy(), _arrays(gradients))
        for where in parts:
            self.kernels.differentiate(*arrays, where)
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


def _ranges(n: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _arrays(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple(x.numpy() for x in tensors)

"""The compiled loops of looked-up rows: vectors are read, and gradients added, in place.

Imported only where numba is installed and there are many numbers to look up (`kernels.embedding` decides;
the tests hold plain torch against it). float32 only, and arrays in C order. One thread adds everything up in
the order of the batch, so bits repeat.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Longs = NDArray[np.int64]

# Sums over a row may be taken in any order, as lanes of a vector register need.
_options: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp", "reassoc"},
}


@njit("f8(f4[:,::1], f4[:,::1], f4[::1], i8[::1], i8[:,::1], f4[:,::1])", **_options)
def dots_and_squares(
    left: _Floats, right: _Floats, head: _Floats, rows: _Longs, columns: _Longs, dots: _Floats
) -> Any:
    """dots[b, c] = Σ head·left[rows[b]]·right[columns[b, c]]; gives the sum of squares of what was read."""
    total = np.float64(0)
    headed = np.empty_like(head)
    for b in range(len(rows)):
        p = left[rows[b]]
        squares = np.float32(0)
        for k in range(len(head)):
            headed[k] = head[k] * p[k]
            squares += p[k] * p[k]
        for c in range(columns.shape[1]):
            q = right[columns[b, c]]
            dot = np.float32(0)
            for k in range(len(head)):
                dot += headed[k] * q[k]
                squares += q[k] * q[k]
            dots[b, c] = dot
        total += squares
    return total


@njit(
    "void(f4[:,::1], f4[:,::1], f4[::1], i8[::1], i8[:,::1], f4[:,::1], f4, f4[:,::1], f4[:,::1], f4[::1])",
    **_options,
)
def add_gradients(
    left: _Floats,
    right: _Floats,
    head: _Floats,
    rows: _Longs,
    columns: _Longs,
    of_dots: _Floats,
    of_squares: float,
    of_left: _Floats,
    of_right: _Floats,
    of_head: _Floats,
) -> None:
    """Adds the gradients of the dots and of the sum of squares to those of the tables and the head."""
    penalty = np.float32(2) * of_squares
    headed, sums = np.empty_like(head), np.empty_like(head)
    for b in range(len(rows)):
        p, of_p = left[rows[b]], of_left[rows[b]]
        for k in range(len(head)):
            headed[k] = head[k] * p[k]
            sums[k] = np.float32(0)
        for c in range(columns.shape[1]):
            q, of_q, slope = right[columns[b, c]], of_right[columns[b, c]], of_dots[b, c]
            for k in range(len(head)):
                sums[k] += slope * q[k]
                of_q[k] += slope * headed[k] + penalty * q[k]
        for k in range(len(head)):
            of_p[k] += head[k] * sums[k] + penalty * p[k]
            of_head[k] += p[k] * sums[k]


@njit("void(f4[:,::1], f4[:,::1], i8[::1], i8[::1], f4[::1], f4[::1], f4)", **_options)
def unit_dots(
    left: _Floats,
    right: _Floats,
    rows: _Longs,
    columns: _Longs,
    dots: _Floats,
    scales: _Floats,
    shortest: float,
) -> None:
    """dots[b] = left[rows[b]]·right[columns[b]]·scales[b], the last one making right's row a unit vector.

    But one that is shorter than `shortest` is divided by that.
    """
    for b in range(len(rows)):
        p, q = left[rows[b]], right[columns[b]]
        dot, squares = np.float32(0), np.float32(0)
        for k in range(left.shape[1]):
            dot += p[k] * q[k]
            squares += q[k] * q[k]
        scales[b] = np.float32(1) / max(np.sqrt(squares), shortest)
        dots[b] = dot * scales[b]


@njit(
    "void(f4[:,::1], f4[:,::1], i8[::1], i8[::1], f4[::1], f4[::1], f4[::1], f4,f4[:,::1], f4[:,::1])",
    **_options,
)
def add_unit_gradients(
    left: _Floats,
    right: _Floats,
    rows: _Longs,
    columns: _Longs,
    dots: _Floats,
    scales: _Floats,
    of_dots: _Floats,
    shortest: float,
    of_left: _Floats,
    of_places: _Floats,
) -> None:
    """The gradient of `unit_dots`: added to that of left's rows, written for each place of right's."""
    for b in range(len(rows)):
        p, q, of_p, of_q = left[rows[b]], right[columns[b]], of_left[rows[b]], of_places[b]
        # What is divided by ε is only scaled: its length is no part of its gradient.
        along = dots[b] if scales[b] * shortest < 1 else np.float32(0)
        slope, scaled = of_dots[b] * scales[b], scales[b] * along
        for k in range(left.shape[1]):
            of_p[k] += slope * q[k]
            of_q[k] = slope * (p[k] - scaled * q[k])

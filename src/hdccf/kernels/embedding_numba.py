"""Compiled loops over rows of tables: looked-up dots and their gradients, Adam on touched rows, negatives.

Imported only where numba is installed and there is enough work (`kernels.embedding`, `training.optim` and
`data.graph` decide; each has the same in torch, which the tests hold against it). float32 only, and arrays in
C order. One thread adds everything up in the order of the batch, so bits repeat.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]

_exact: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp"},
}
# Sums over a row may be taken in any order, as lanes of a vector register need.
_options: dict[str, Any] = _exact | {"fastmath": {"contract", "nsz", "arcp", "reassoc"}}


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


@njit("void(i8[::1], i4[::1], i4[::1])", **_exact)
def link_rows(index: _Longs, last: _Ints, before: _Ints) -> None:
    """last[row] is the last place of a row in the index, before[i] the one before place i; −1 is none."""
    last[:] = np.int32(-1)
    for i in range(len(index)):
        before[i] = last[index[i]]
        last[index[i]] = i


@njit(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], i8[::1], i4[::1], i4[::1], f4[:,::1], UniTuple(f4, 5))",
    **_exact,
)
def adam_some(
    table: _Floats,
    mean: _Floats,
    square: _Floats,
    index: _Longs,
    last: _Ints,
    before: _Ints,
    values: _Floats,
    rates: tuple[float, ...],
) -> None:
    """A step of Adam with the rows of an index; the others and their moments stay."""
    new, kept, newer, length, epsilon = rates
    dim = table.shape[1]
    gradient = np.zeros(dim, np.float32)
    for i in range(len(index)):
        row = np.uint64(index[i])  # without a sign the loops over a row need not ask for it
        if last[row] != i:
            continue  # its turn is at its last place
        for k in range(dim):
            gradient[k] = values[i, k]
        place = before[i]
        while place >= 0:
            for k in range(dim):
                gradient[k] += values[place, k]
            place = before[place]
        vector, its_mean, its_square = table[row], mean[row], square[row]
        for k in range(dim):
            g = gradient[k]
            m = its_mean[k] + new * (g - its_mean[k])
            v = kept * its_square[k] + newer * g * g
            its_mean[k], its_square[k] = m, v
            vector[k] -= length * m / (np.sqrt(v) + epsilon)


@njit(cache=True, nogil=True)
def add_neighbours_below(
    nodes: _Longs, ranks: _Longs, starts: _Longs, gap_keys: _Longs, n_columns: int, found: _Longs
) -> None:
    """found[b, s] = the column that is number ranks[b, s] among those that are not nodes[b]'s neighbours."""
    for b in range(len(nodes)):
        first, size = starts[nodes[b]], starts[nodes[b] + 1] - starts[nodes[b]]
        base = nodes[b] * (n_columns + 1)
        for s in range(ranks.shape[1]):
            low, left, wanted = first, size, base + ranks[b, s]
            while left > 0:
                half = left >> 1
                if gap_keys[low + half] <= wanted:
                    low += half + 1
                    left -= half + 1
                else:
                    left = half
            found[b, s] = ranks[b, s] + low - first

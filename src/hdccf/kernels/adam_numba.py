"""Adam over all rows of a table, or some, from a gradient that names the few which have one, compiled.

Imported only where numba is installed (`hdccf.training.optim` decides; the tests hold torch's own Adam against
it). float32 only, and arrays in C order. Rows do not depend on each other, so bits are the same for any
number of threads.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]

_options: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp"},
}


@njit("void(i8[::1], i4[::1], i4[::1])", **_options)
def link_rows(index: _Longs, last: _Ints, before: _Ints) -> None:
    """last[row] is the last place of a row in the index, before[i] the one before place i; −1 is none."""
    last[:] = np.int32(-1)
    for i in range(len(index)):
        before[i] = last[index[i]]
        last[index[i]] = i


@njit(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], i4[::1], i4[::1], f4[:,::1], i8, i8, UniTuple(f4, 7))",
    **_options,
)
def adam_rows(
    table: _Floats,
    mean: _Floats,
    square: _Floats,
    last: _Ints,
    before: _Ints,
    values: _Floats,
    start: int,
    stop: int,
    rates: tuple[float, ...],
) -> None:
    """A step of Adam from one row to before another; a row's gradient is the sum over its places.

    `rates` are 1 − β₁, β₂, 1 − β₂, the length of the step, ε, the decay that adds to the gradient and what
    remains of a vector after one that does not, the two bias corrections multiplied into the length and ε.
    """
    new, kept, newer, length, epsilon, decay, remains = rates
    dim = table.shape[1]
    gradient = np.zeros(dim, np.float32)
    for row in range(start, stop):
        place = last[row]
        for k in range(dim):
            gradient[k] = decay * table[row, k]
        while place >= 0:
            for k in range(dim):
                gradient[k] += values[place, k]
            place = before[place]
        for k in range(dim):
            g = gradient[k]
            m = mean[row, k] + new * (g - mean[row, k])
            v = kept * square[row, k] + newer * g * g
            mean[row, k], square[row, k] = m, v
            table[row, k] = remains * table[row, k] - length * m / (np.sqrt(v) + epsilon)


@njit(
    "void(f4[:,::1], f4[:,::1], f4[:,::1], i8[::1], i4[::1], i4[::1], f4[:,::1], UniTuple(f4, 5))",
    **_options,
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

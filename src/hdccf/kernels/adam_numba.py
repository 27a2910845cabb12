"""Adam over the rows of a table that a sparse gradient touches, compiled (`training.optim` calls it).

float32 only, arrays in C order. `RowAdam` has the same in torch, which the tests hold against it.
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

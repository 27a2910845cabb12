"""The compiled loop of `Neighbours.draw_others`: a search within the node's own neighbours, not within all.

Imported only where numba is installed and there are many pairs (`hdccf.data.graph` decides and has the same
in torch, which the tests hold against it).
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Longs = NDArray[np.int64]


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

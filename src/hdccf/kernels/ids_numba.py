"""Numbering of ids, grouping of rows by user and merging of repeated pairs, compiled by numba.

Each loop does in one pass what NumPy and Polars do in several in `hdccf.data`, with the same result.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]


@njit(cache=True, nogil=True)
def number_hashes(hashes: NDArray[np.uint64], table: _Ints, known: NDArray[np.uint64], codes: _Ints) -> Any:
    """Fills in the number of each hash in order of first appearance; how many there are.

    `table`, of zeros, is an open-addressing hash table whose length is a power of two; `known` gets the
    distinct hashes. Where there are more than `known` has room for, −1.
    """
    mask = len(table) - 1
    count = 0
    for row in range(len(hashes)):
        key = hashes[row]
        slot = np.int64(key & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
        while table[slot] and known[table[slot] - 1] != key:
            slot = (slot + 1) & mask
        if not table[slot]:
            if count == len(known):
                return -1
            known[count] = key
            count += 1
            table[slot] = count
        codes[row] = table[slot] - 1
    return count


@njit(cache=True, nogil=True)
def group_by_user(
    users: _Ints, items: _Ints, times: _Longs, cursor: _Longs, to: _Ints, to_times: _Longs
) -> None:
    """Copies each row to its user's next place, which `cursor` has and counts on; `times` may be empty."""
    timed = len(times) > 0
    for row in range(len(users)):
        place = cursor[users[row]]
        cursor[users[row]] = place + 1
        to[place] = items[row]
        if timed:
            to_times[place] = times[row]


@njit(cache=True, nogil=True)
def merge_repeats(
    starts: _Longs, items: _Ints, times: _Longs, last: _Longs, users: _Ints, counts: _Ints
) -> Any:
    """Moves the first row of each pair together, in place; how many pairs remain.

    User `k` has the rows from `starts[k]` to `starts[k + 1]`. `last`, of −1, has a place for each item;
    `users` and `counts` are filled in.
    """
    timed = len(times) > 0
    kept: Any = 0
    for user in range(len(starts) - 1):
        first = kept
        for row in range(starts[user], starts[user + 1]):
            item = items[row]
            if last[item] >= first:
                counts[last[item]] += 1
                continue
            last[item] = kept
            users[kept] = user
            items[kept] = item
            counts[kept] = 1
            if timed:
                times[kept] = times[row]
            kept += 1
    return kept

"""Compiled loops from the bytes of a Parquet page to codes: numbers that point into a dictionary, and ids.

Every loop looks at where it is before it reads, so that a damaged file is noticed, and nothing is judged: the
file is then read in another way. Loaded only where numba is; the rest is in `hdccf.data.parquet`.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hdccf.data.fields import FIRST, LONGEST_ID, SECOND, eight

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int32]
_Keys = NDArray[np.uint64]
_MOST_BITS = 31


@njit(cache=True, nogil=True)
def _careful(page: _Bytes, at: Any, size: Any) -> Any:
    """Up to eight bytes as one number, as many as there still are."""
    value = np.uint64(0)
    for byte in range(min(size, len(page) - at)):
        value |= np.uint64(page[at + byte]) << np.uint64(8 * byte)
    return value


@njit(cache=True, nogil=True)
def _run(page: _Bytes, at: Any) -> Any:
    """The header of a run and where it ends; 0 stands for none."""
    header: Any = 0
    shift = 0
    while at < len(page) and shift < 35:
        byte = np.int64(page[at])
        at += 1
        header |= (byte & 127) << shift
        if byte < 128:
            return header, at
        shift += 7
    return 0, at


@njit(cache=True, nogil=True)
def _unpack(page: _Bytes, at: Any, width: Any, codes: _Ints, first: Any, last: Any, seen: Any) -> Any:
    """Numbers of so many bits each, from byte `at` on, to `codes`; returns what `read_indices` does."""
    ordered: Any = True
    mask, bit, step = np.uint64((1 << width) - 1), np.uint64(8 * at), np.uint64(width)
    # So many start where eight bytes can still be read.
    early = first + min(max((8 * (len(page) - 7 - at) + width - 1) // max(width, 1), 0), last - first)
    for place in range(np.uint64(first), np.uint64(last)):
        byte = np.int64(bit >> np.uint64(3))
        word = eight(page, byte) if place < np.uint64(early) else _careful(page, byte, np.int64(8))
        number = np.int64((word >> (bit & np.uint64(7))) & mask)
        ordered &= number <= seen + 1
        seen = max(seen, number)
        codes[place] = number
        bit += step
    return seen, ordered


@njit(cache=True, nogil=True)
def read_indices(page: _Bytes, count: int, codes: _Ints, row: int, seen: Any) -> Any:
    """The numbers of `count` rows, to `codes` from `row` on.

    Returns the largest number so far (`seen` is that of the rows before), -2 where the bytes are damaged, and
    whether each new number was the next one, as it is where a dictionary was made of these rows.
    """
    width: Any = np.int64(page[0]) if len(page) else 99
    if width > _MOST_BITS:
        return -2, False
    ordered: Any = True
    mask, at, stop = np.uint64((1 << width) - 1), np.int64(1), row + count
    while row < stop:
        header, at = _run(page, at)
        if header < 2:
            return -2, False
        last = row + min((header >> 1) * (8 if header & 1 else 1), stop - row)
        if header & 1:
            end = at + (header >> 1) * width
            if end > len(page):
                return -2, False
            seen, next_ones = _unpack(page, at, width, codes, row, last, seen)
            ordered &= next_ones
            at = end
        else:
            size = (width + 7) >> 3
            if at + size > len(page):
                return -2, False
            number = np.int64(_careful(page, at, np.int64(size)))
            if number > np.int64(mask):
                return -2, False
            ordered &= number <= seen + 1
            seen = max(seen, number)
            for place in range(row, last):
                codes[place] = number
            at += size
        row = last
    return seen, ordered


@njit(cache=True, nogil=True)
def none_missing(levels: _Bytes, count: int) -> bool:
    """Whether all of `count` rows have a value: the level of each is one bit, in runs."""
    at, row = np.int64(0), 0
    while row < count:
        header, at = _run(levels, at)
        if header < 2:
            return False
        if header & 1:
            end = at + (header >> 1)
            if end > len(levels):
                return False
            for place in range(at, end):
                missing = np.uint8(255) & ~levels[place]
                left = count - row
                if left < 8:
                    missing &= (1 << max(left, 0)) - 1
                if missing:
                    return False
                row += 8
            at = end
        else:
            if at >= len(levels) or levels[at] != 1:
                return False
            row += header >> 1
            at += 1
    return True


@njit(cache=True, nogil=True)
def text_keys(page: _Bytes, keys: _Keys) -> bool:
    """16-byte keys of texts, each with its length in four bytes before it; whether all are short enough."""
    at: Any = np.int64(0)
    for row in range(len(keys)):
        if at + 20 <= len(page):
            length: Any = np.int64(eight(page, at) & np.uint64(0xFFFFFFFF))
            if length > LONGEST_ID:
                return False
            low, high = eight(page, at + 4) & FIRST[length], eight(page, at + 12) & SECOND[length]
        else:
            length = np.int64(_careful(page, at, np.int64(4)))
            if length > LONGEST_ID or at + 4 + length > len(page):
                return False
            low = _careful(page, at + 4, np.int64(min(length, 8)))
            high = _careful(page, at + 12, np.int64(length - 8))
        keys[row, 0] = low
        keys[row, 1] = high | (np.uint64(length) << np.uint64(56))
        at += 4 + length
    return True


@njit(cache=True, nogil=True)
def by_appearance(codes: _Ints, order: _Ints) -> Any:
    """`order` gets each number's rank of first appearance among the codes, or -1; returns how many appear."""
    order[:] = -1
    count = 0
    for code in codes:
        if order[code] < 0:
            order[code] = count
            count += 1
    return count

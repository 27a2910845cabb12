"""Compressed sparse rows: rows sorted into histories, merged where a pair repeats, and transposed."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hdccf.errors import DataError

IntArray = NDArray[np.int32]
TimeArray = NDArray[np.int64]

COMPILED_FROM = 1_000_000
"""Rows from which compiled loops are used, if numba is installed; below, loading them costs more."""


class Adjacency(NamedTuple):
    """Compressed sparse rows: the neighbours of `k` are `neighbours[starts[k]:starts[k + 1]]`.

    `rows` says which row of the `Interactions` each entry is, so that times and counts can be looked up;
    `slice(None)` where the entries are the rows in order.
    """

    starts: NDArray[np.int64]
    neighbours: IntArray
    rows: IntArray | slice

    def of(self, index: int) -> IntArray:
        """The neighbours of one user or item."""
        return self.neighbours[self.starts[index] : self.starts[index + 1]]

    @property
    def degrees(self) -> NDArray[np.int64]:
        """The number of neighbours of each user or item."""
        return np.diff(self.starts)


class Rows(NamedTuple):
    """Columns of one length, in any order and with repeats."""

    users: IntArray
    items: IntArray
    times: TimeArray | None
    counts: NDArray[np.integer[Any]] | None

    def check_lengths(self) -> None:
        """Refuses columns that are longer or shorter than the users."""
        for name, column in self._asdict().items():
            if column is not None and len(column) != len(self.users):
                raise DataError(
                    f"{len(column)} {name} were given for {len(self.users)} users; give one for each row"
                )

    def take(self, rows: NDArray[Any]) -> "Rows":
        """Some of the rows, by their numbers."""
        return Rows(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


def row_starts(codes: IntArray, size: int) -> NDArray[np.int64]:
    """Where each code starts once the rows are sorted by code; and the end."""
    starts = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=size), out=starts[1:])
    return starts


def transpose(starts: NDArray[np.int64], columns: IntArray, n_columns: int) -> Adjacency:
    """CSR by column of CSR by row; entries of a column stay in order. SciPy does it by a counting sort."""
    index = np.int32 if len(columns) <= np.iinfo(np.int32).max else np.int64
    numbered = sparse.csr_array(
        (np.arange(len(columns), dtype=np.int32), columns, starts.astype(index)),
        shape=(len(starts) - 1, n_columns),
    )
    by_column = numbered.tocsc()
    return Adjacency(by_column.indptr.astype(np.int64), by_column.indices, by_column.data)


def load_kernels(rows: int) -> Any:
    """The module of compiled loops, where there are so many rows that loading it pays; else None."""
    return _kernels() if rows >= COMPILED_FROM else None


@cache
def _kernels() -> Any:
    try:
        from hdccf.kernels import ids_numba
    except (ImportError, RuntimeError):
        # Numba raises a RuntimeError where there is no folder to keep what it compiles.
        return None
    return ids_numba


def sort_histories(rows: Rows, n_users: int, n_items: int) -> Rows:
    """Rows by user, time and arrival; of a pair that repeats, the first row with the sum of the counts."""
    kernels = load_kernels(len(rows.users))
    if rows.times is not None and not _ascends(rows.times):
        rows = rows.take(stable_order(rows.times))
    if kernels is not None and rows.counts is None:
        return _merge_by_kernels(kernels, rows, n_users, n_items)
    if not _ascends(rows.users):
        # A matrix with one entry in each row: transposed, it lists the rows of each user in order.
        rows = rows.take(transpose(np.arange(len(rows.users) + 1), rows.users, n_users).neighbours)
    return _merge_repeats(rows, n_users, n_items)


def _merge_by_kernels(kernels: Any, rows: Rows, n_users: int, n_items: int) -> Rows:
    """Groups rows that are in order of time by user and merges repeats, in compiled loops."""
    starts = row_starts(rows.users, n_users)
    given = np.empty(0, np.int64) if rows.times is None else rows.times
    items, times = np.empty(len(rows.users), np.int32), np.empty(len(given), np.int64)
    kernels.group_by_user(rows.users, rows.items, given, starts[:-1].copy(), items, times)
    users, counts = np.empty_like(items), np.empty_like(items)
    kept = kernels.merge_repeats(starts, items, times, np.full(n_items, -1), users, counts)
    return Rows(users[:kept], items[:kept], None if rows.times is None else times[:kept], counts[:kept])


def _merge_repeats(rows: Rows, n_users: int, n_items: int) -> Rows:
    """Keeps the first row of each pair, with the sum of its counts; rows must be sorted by user."""
    starts, users, places = transpose(row_starts(rows.users, n_users), rows.items, n_items)
    order = np.asarray(places)
    # Within an item, rows of the same user are adjacent, the first one in front.
    begins = np.ones(len(users), np.bool_)
    np.not_equal(users[1:], users[:-1], out=begins[1:])
    begins[starts[:-1][np.diff(starts) > 0]] = True
    if begins.all():
        return rows
    counts = np.ones(len(users), np.int32) if rows.counts is None else rows.counts.astype(np.int32)
    first = order[begins]
    counts[first] = np.add.reduceat(counts[order], np.flatnonzero(begins))
    return rows._replace(counts=counts).take(np.sort(first))


def _ascends(values: NDArray[np.integer[Any]]) -> bool:
    return bool(np.all(values[1:] >= values[:-1]))


def stable_order(keys: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """`np.argsort(keys, kind="stable")`, several times faster.

    NumPy sorts plain 64-bit numbers with vector instructions but not their positions, so key and position go
    into one number. Times that are whole seconds are counted in seconds to make room.
    """
    if not len(keys):
        return np.empty(0, np.int64)
    lowest, highest = int(keys.min()), int(keys.max())
    position_bits = max(1, (len(keys) - 1).bit_length())
    for unit in (1, 1_000_000):
        if (highest - lowest) // unit >= 1 << (63 - position_bits):
            continue
        shifted = keys.astype(np.int64)
        shifted -= lowest
        if unit > 1:
            shifted, remainder = np.divmod(shifted, unit)
            if remainder.any():
                break
        shifted <<= position_bits
        shifted |= np.arange(len(keys), dtype=np.int64)
        shifted.sort()
        shifted &= (1 << position_bits) - 1
        return shifted
    return np.argsort(keys, kind="stable")

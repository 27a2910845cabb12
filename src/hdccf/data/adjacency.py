"""Compressed sparse rows: rows sorted into histories, cleared of repeated pairs, and transposed."""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hdccf.errors import DataError

IntArray = NDArray[np.int32]
TimeArray = NDArray[np.int64]

COMPILED_FROM = 1_000_000
"""Rows from which on compiled loops are used, if numba is installed: below, loading them takes longer."""


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


def _take(column: NDArray[Any] | None, rows: NDArray[Any]) -> Any:
    return None if column is None else column[rows]


def row_starts(codes: IntArray, size: int) -> NDArray[np.int64]:
    """Where each code starts once the rows are sorted by code; and the end."""
    starts = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=size), out=starts[1:])
    return starts


def load_kernels(rows: int) -> Any:
    """The module of compiled loops, where there are so many rows that loading it pays; else None."""
    return _kernels() if rows >= COMPILED_FROM else None


@cache
def _kernels() -> Any:
    try:
        return import_module("hdccf.data.kernels")
    except (ImportError, RuntimeError):
        # Numba raises a RuntimeError where there is no folder to keep what it compiles.
        return None


def histories(rows: Rows, n_users: int, n_items: int) -> tuple[Rows, Adjacency]:
    """Rows by user, time and arrival without repeated pairs, and the same by item."""
    kernels = load_kernels(len(rows.users))
    if kernels is not None and rows.counts is None:
        merged = _by_kernels(kernels, rows, n_users, n_items)
        return merged, transpose(row_starts(merged.users, n_users), merged.items, n_items)
    order = _history_order(rows.users, rows.times, n_users)
    starts = row_starts(rows.users, n_users)
    if order is not None:
        users_in_order = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(starts))
        rows = Rows(users_in_order, *(_take(column, order) for column in rows[1:]))
    by_item = transpose(starts, rows.items, n_items)
    repeats = _find_repeats(by_item)
    if len(repeats):
        rows = _merge_repeats(rows, by_item, repeats)
        by_item = transpose(row_starts(rows.users, n_users), rows.items, n_items)
    return rows, by_item


def _by_kernels(kernels: Any, rows: Rows, n_users: int, n_items: int) -> Rows:
    """The same by compiled loops."""
    if rows.times is not None and not _ascends(rows.times):
        by_time = stable_order(rows.times)
        rows = Rows(*(_take(column, by_time) for column in rows))
    starts, given = (
        row_starts(rows.users, n_users),
        np.empty(0, np.int64) if rows.times is None else rows.times,
    )
    items, times = np.empty(len(rows.users), np.int32), np.empty(len(given), np.int64)
    kernels.group_by_user(rows.users, rows.items, given, starts[:-1].copy(), items, times)
    users, counts = np.empty_like(items), np.empty_like(items)
    kept = kernels.merge_repeats(starts, items, times, np.full(n_items, -1), users, counts)
    return Rows(users[:kept], items[:kept], None if rows.times is None else times[:kept], counts[:kept])


def _history_order(users: IntArray, times: TimeArray | None, n_users: int) -> NDArray[np.integer[Any]] | None:
    """The order by user, then time, then arrival; None where the rows have it already."""
    by_time = None
    if times is not None and not _ascends(times):
        if _ascends(users) and bool(np.all((times[1:] >= times[:-1]) | (users[1:] != users[:-1]))):
            return None
        by_time = stable_order(times)
        users = users[by_time]
    if _ascends(users):
        return by_time
    # A matrix with one entry in each row: transposed, it lists the rows of each user as they arrived.
    by_user = transpose(np.arange(len(users) + 1), users, n_users).neighbours
    return by_user if by_time is None else by_time[by_user]


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


def transpose(starts: NDArray[np.int64], columns: IntArray, n_columns: int) -> Adjacency:
    """CSR by column of CSR by row; entries of a column stay in order. SciPy does it by a counting sort."""
    index = np.int32 if len(columns) <= np.iinfo(np.int32).max else np.int64
    numbered = sparse.csr_array(
        (np.arange(len(columns), dtype=np.int32), columns, starts.astype(index)),
        shape=(len(starts) - 1, n_columns),
    )
    by_column = numbered.tocsc()
    return Adjacency(by_column.indptr.astype(np.int64), by_column.indices, by_column.data)


def _find_repeats(by_item: Adjacency) -> NDArray[np.int64]:
    """The entries whose pair is that of the entry before: with rows by user, repeats are adjacent."""
    users = by_item.neighbours
    repeated = np.zeros(len(users), np.bool_)
    np.equal(users[1:], users[:-1], out=repeated[1:])
    repeated[by_item.starts[:-1][by_item.degrees > 0]] = False
    return np.flatnonzero(repeated)


def _merge_repeats(rows: Rows, by_item: Adjacency, repeats: NDArray[np.int64]) -> Rows:
    """Keeps the first row of each pair, with the sum of the pair's counts."""
    entries = np.asarray(by_item.rows)
    # The entry before a run of repeats is the first of their pair.
    run_begins = np.diff(repeats, prepend=-2) != 1
    first = (repeats[run_begins] - 1)[np.cumsum(run_begins) - 1]
    counts = np.ones(len(entries), np.int32) if rows.counts is None else rows.counts.astype(np.int32)
    np.add.at(counts, entries[first], counts[entries[repeats]])
    kept = np.ones(len(entries), np.bool_)
    kept[entries[repeats]] = False
    return Rows(*(_take(column, kept) for column in rows._replace(counts=counts)))

"""Rows in order: sorted into histories, turned from users to items, and cleared of repeated pairs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

IntArray = NDArray[np.int32]
TimeArray = NDArray[np.int64]


class Adjacency(NamedTuple):
    """Compressed rows: the neighbours of `k` are `neighbours[starts[k]:starts[k + 1]]`.

    `rows` says which row of the `Interactions` each entry is, so that times and counts can be looked up;
    `slice(None)` where the entries are the rows in order.
    """

    starts: NDArray[np.int64]
    neighbours: IntArray
    rows: IntArray | slice

    def of(self, index: int) -> IntArray:
        return self.neighbours[self.starts[index] : self.starts[index + 1]]

    @property
    def degrees(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


class Collapsed(NamedTuple):
    """Rows without repeated pairs, and both adjacencies."""

    users: IntArray
    items: IntArray
    times: TimeArray | None
    counts: IntArray
    by_user: Adjacency
    by_item: Adjacency


def history_order(users: IntArray, times: TimeArray | None) -> NDArray[np.int64] | None:
    """The order by user, then time, then arrival; None where the rows have it already."""
    order = None
    if times is not None and not _ascends(times):
        if _ascends(users) and _ascends_within(users, times):
            return None
        order = stable_order(times)
        users = users[order]
    if not _ascends(users):
        by_user = stable_order(users)
        order = by_user if order is None else order[by_user]
    return order


def _ascends(values: NDArray[np.integer[Any]]) -> bool:
    return bool(np.all(values[1:] >= values[:-1]))


def _ascends_within(users: IntArray, times: TimeArray) -> bool:
    return bool(np.all((times[1:] >= times[:-1]) | (users[1:] != users[:-1])))


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


def transpose(starts: NDArray[np.int64], items: IntArray, n_items: int) -> Adjacency:
    """Rows sorted by item and then by row, so by user and time: SciPy's transposition is a counting sort."""
    n_users = len(starts) - 1
    index = np.int32 if len(items) <= np.iinfo(np.int32).max else np.int64
    numbered = sparse.csr_array(
        (np.arange(len(items), dtype=np.int32), items, starts.astype(index)), shape=(n_users, n_items)
    )
    columns = numbered.tocsc()
    return Adjacency(columns.indptr.astype(np.int64), columns.indices, columns.data)


def collapse(
    starts: NDArray[np.int64],
    items: IntArray,
    times: TimeArray | None,
    counts: NDArray[np.integer[Any]] | None,
    n_items: int,
) -> Collapsed:
    """Collapses repeats in histories: the first row of a pair stays, and gets the sum of its counts."""
    users = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
    often: IntArray = np.ones(len(users), np.int32) if counts is None else counts.astype(np.int32, copy=False)
    by_item = transpose(starts, items, n_items)
    repeats = find_repeats(by_item)
    if repeats is not None:
        kept, often = add_up_repeats(by_item, repeats, often)
        users, items = users[kept], items[kept]
        times = None if times is None else times[kept]
        starts = starts_without(starts, kept)
        by_item = without_repeats(by_item, repeats, kept)
    return Collapsed(users, items, times, often, Adjacency(starts, items, slice(None)), by_item)


def find_repeats(by_item: Adjacency) -> NDArray[np.bool_] | None:
    """Which entries of `by_item` are a pair that the entry before is, too; None where there are none."""
    if len(by_item.neighbours) < 2:
        return None
    repeats = np.zeros(len(by_item.neighbours), np.bool_)
    np.equal(by_item.neighbours[1:], by_item.neighbours[:-1], out=repeats[1:])
    starts = by_item.starts[:-1]
    repeats[starts[starts < len(repeats)]] = False
    return repeats if repeats.any() else None


def add_up_repeats(
    by_item: Adjacency, repeats: NDArray[np.bool_], counts: IntArray
) -> tuple[NDArray[np.bool_], IntArray]:
    """Which rows are the first of their pair, and the counts that they then have."""
    rows = np.asarray(by_item.rows)
    again = np.flatnonzero(repeats)
    # Repeats that follow each other belong to one pair, and the entry before the first of them leads it: rows
    # ascend within an item, so that it is the earliest.
    begins = np.diff(again, prepend=-2) != 1
    leader = (again[begins] - 1)[np.cumsum(begins) - 1]
    kept = np.ones(len(counts), np.bool_)
    kept[rows[again]] = False
    summed = counts.copy()
    np.add.at(summed, rows[leader], counts[rows[again]])
    return kept, summed[kept]


def starts_without(starts: NDArray[np.int64], kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    dropped = np.flatnonzero(~kept)
    return starts - np.searchsorted(dropped, starts)


def without_repeats(by_item: Adjacency, repeats: NDArray[np.bool_], kept: NDArray[np.bool_]) -> Adjacency:
    leads = ~repeats
    new_row = np.cumsum(kept, dtype=np.int32)
    new_row -= 1
    rows = new_row[np.asarray(by_item.rows)[leads]]
    return Adjacency(starts_without(by_item.starts, leads), by_item.neighbours[leads], rows)

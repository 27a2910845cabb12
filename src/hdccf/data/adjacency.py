"""Compressed sparse rows: rows sorted into histories, merged where a pair repeats, and transposed."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

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


@cache
def load_kernels() -> Any:
    """The module of compiled loops; None without numba."""
    try:
        from hdccf.kernels import ids_numba
    except (ImportError, RuntimeError):
        # Numba raises a RuntimeError where there is no folder to keep what it compiles.
        return None
    return ids_numba


def sort_histories(
    users: IntArray,
    items: IntArray,
    times: TimeArray | None,
    counts: IntArray | None,
    n_users: int,
    n_items: int,
) -> tuple[IntArray, IntArray, TimeArray | None, IntArray]:
    """Rows by user, time and arrival; of a pair that repeats, the first row with the sum of the counts."""
    if times is not None and np.any(times[1:] < times[:-1]):
        order = stable_order(times)
        users, items, times = users[order], items[order], times[order]
        counts = None if counts is None else counts[order]
    if counts is None and len(users) >= COMPILED_FROM and (kernels := load_kernels()) is not None:
        starts, free = row_starts(users, n_users), np.full(n_items, -1)
        given = np.empty(0, np.int64) if times is None else times
        grouped, moments = np.empty(len(users), np.int32), np.empty(len(given), np.int64)
        kernels.group_by_user(users, items, given, starts[:-1].copy(), grouped, moments)
        owners, sums = np.empty_like(grouped), np.empty_like(grouped)
        size = kernels.merge_repeats(starts, grouped, moments, free, owners, sums)
        return owners[:size], grouped[:size], None if times is None else moments[:size], sums[:size]
    order = stable_order(users)
    keys = users[order].astype(np.int64) * n_items + items[order]
    by_pair = stable_order(keys)
    begins = np.flatnonzero(np.diff(keys[by_pair], prepend=-1))
    counts = np.ones(len(users), np.int32) if counts is None else counts[order]
    if len(begins) < len(keys):
        firsts = by_pair[begins]
        counts[firsts] = np.add.reduceat(counts[by_pair], begins)
        kept = np.sort(firsts)
        order, counts = order[kept], counts[kept]
    return users[order], items[order], None if times is None else times[order], counts


def stable_order(keys: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The order that sorts the keys, equal ones as they came; of many, Polars finds it faster than NumPy."""
    if len(keys) < COMPILED_FROM:
        return np.argsort(keys, kind="stable")
    order = pl.DataFrame({"key": keys}).select(pl.arg_sort_by("key", maintain_order=True))
    return order.to_series().to_numpy()


def places_among(keys: pl.Series, distinct: pl.Series) -> pl.Series:
    """The place of each key among the distinct ones; null where it is none of them."""
    places = pl.DataFrame({"key": distinct, "place": np.arange(len(distinct), dtype=np.int32)})
    return pl.DataFrame({"key": keys}).join(places, on="key", how="left", maintain_order="left")["place"]

"""Large sources through compiled loops, where numba is installed: ids → codes → histories → CSR both ways.

Everything here has a NumPy way elsewhere that gives exactly the same: `ids.group_ids`,
`adjacency.history_order` and `adjacency.collapse`. Compiling takes some seconds once; numba keeps the result
beside the package or in the user's cache, and small sources never come here.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.adjacency import Adjacency, Collapsed, IntArray, TimeArray

LEAST_ROWS = 1_000_000
_MOST_ROWS = np.iinfo(np.int32).max
_ROOM = 1 << 16
_INLINE = 12  # Arrow keeps texts of up to so many bytes within the 16 of their view
_SEEDS = (20_190, 76_543)
_NO_TIMES = np.empty(0, np.int64)
_NO_COUNTS = np.empty(0, np.int32)


def worthwhile(rows: int) -> bool:
    """Whether there are so many rows that loading the compiled loops pays, and numba to compile them."""
    return LEAST_ROWS <= rows <= _MOST_ROWS and _installed()


@cache
def _installed() -> bool:
    try:
        import_module("pyarrow")
        _kernels()
    except (ImportError, RuntimeError):
        # Numba raises a RuntimeError where no folder can be written to keep what it compiles.
        return False
    return True


def _kernels() -> Any:
    return import_module("hdccf.data.kernels")  # not at the top: numba takes half a second to import


class Numberer:
    """Numbers 16-byte keys in order of first appearance, block after block."""

    def __init__(self) -> None:
        self.kernels = _kernels()
        self.table = np.zeros(2 * _ROOM, np.int32)
        self.known = np.empty((_ROOM, 2), np.uint64)
        self.firsts = np.empty(_ROOM, np.int64)
        self.rows = self.count = 0

    def add(self, keys: NDArray[np.uint64], codes: IntArray) -> None:
        """Fills in the codes of some more keys."""
        row, before = 0, self.count
        while True:
            row, self.count = self.kernels.number_keys(
                keys, codes, row, self.table, self.known, self.firsts, self.count
            )
            if row == len(keys):
                break
            self._grow()
        self.firsts[before : self.count] += self.rows
        self.rows += len(keys)

    def _grow(self) -> None:
        self.known = np.resize(self.known, (2 * len(self.known), 2))
        self.firsts = np.resize(self.firsts, len(self.known))
        self.table = np.zeros(2 * len(self.known), np.int32)
        self.kernels.fill_table(self.table, self.known, self.count)


def number_texts(ids: pl.Series) -> tuple[IntArray, NDArray[np.int64]]:
    """The code of each text in order of first appearance, and the row where each was first seen."""
    codes, numberer = np.empty(len(ids), np.int32), Numberer()
    for keys in _keys(ids):
        numberer.add(keys, codes[numberer.rows : numberer.rows + len(keys)])
    return codes, numberer.firsts[: numberer.count]


def _keys(ids: pl.Series) -> list[NDArray[np.uint64]]:
    """16 bytes that tell texts apart, chunk by chunk: the text itself, or two hashes where some are long."""
    chunks = []
    for chunk in ids.get_chunks():
        array = chunk.to_arrow(compat_level=pl.CompatLevel.newest())
        views = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
        chunks.append(views[array.offset : array.offset + len(array)])
    # A view starts with the text's length, in four bytes.
    if all(views.view("<u4")[:, 0].max(initial=0) <= _INLINE for views in chunks):
        return chunks
    hashes = np.empty((len(ids), 2), np.uint64)
    for column, seed in enumerate(_SEEDS):
        hashes[:, column] = ids.hash(seed).to_numpy()
    return [hashes]


def histories(
    users: IntArray, items: IntArray, times: TimeArray | None, n_users: int
) -> tuple[NDArray[np.int64], IntArray, TimeArray | None]:
    """Rows in any order → where each user's start, and items and times by user, then time, then arrival."""
    kernels = _kernels()
    halves = [slice(0, len(users) // 2), slice(len(users) // 2, len(users))]
    counts = np.zeros((2, n_users), np.int64)
    both(lambda half: kernels.count_codes(users[halves[half]], counts[half]))
    starts = _starts(counts.sum(axis=0))
    cursors = np.stack([starts[:-1], starts[:-1] + counts[0]])
    given = _NO_TIMES if times is None else times
    their_items, their_times = np.empty(len(items), np.int32), np.empty(len(given), np.int64)
    both(
        lambda half: kernels.place_rows(
            users[halves[half]],
            items[halves[half]],
            given[halves[half]],
            cursors[half],
            their_items,
            their_times,
        )
    )
    if times is None:
        return starts, their_items, None
    if not bool(np.all(times[1:] >= times[:-1])):
        cuts = _cuts(starts)
        both(lambda half: kernels.sort_within(starts, *cuts[half], their_items, their_times))
    return starts, their_items, their_times


def collapse(
    starts: NDArray[np.int64],
    items: IntArray,
    times: TimeArray | None,
    counts: IntArray | None,
    n_items: int,
    *,
    reuse: bool,
) -> Collapsed:
    """Collapses repeats in histories, and turns them; with `reuse` the given arrays are overwritten."""
    kernels = _kernels()
    n_users, rows = len(starts) - 1, len(items)
    given = _NO_TIMES if times is None else times
    kept_items, kept_times = (items, given) if reuse else (np.empty_like(items), np.empty_like(given))
    kept_users, kept_counts = np.empty(rows, np.int32), np.empty(rows, np.int32)
    degrees, of_item = np.empty(n_users, np.int64), np.zeros((2, n_items), np.int64)
    cuts = _cuts(starts)
    kept = both(
        lambda half: kernels.collapse(
            starts,
            *cuts[half],
            n_items,
            items,
            given,
            _NO_COUNTS if counts is None else counts,
            kept_users,
            kept_items,
            kept_times,
            kept_counts,
            degrees,
            of_item[half],
        )
    )
    middle, total = kept[0], kept[0] + kept[1]
    moved = int(starts[cuts[1][0]])
    columns: list[NDArray[Any]] = [kept_users, kept_items, kept_times, kept_counts]
    if moved != middle:
        for column in columns:
            column[middle:total] = column[moved : moved + kept[1]]
    kept_users, kept_items, kept_times, kept_counts = (column[:total] for column in columns)
    item_starts = _starts(of_item.sum(axis=0))
    cursors = np.stack([item_starts[:-1], item_starts[:-1] + of_item[0]])
    neighbours, places = np.empty(total, np.int32), np.empty(total, np.int32)
    parts = ((0, middle), (middle, total))
    both(lambda half: kernels.turn(kept_users, kept_items, *parts[half], cursors[half], neighbours, places))
    return Collapsed(
        kept_users,
        kept_items,
        None if times is None else kept_times,
        kept_counts,
        Adjacency(_starts(degrees), kept_items, slice(None)),
        Adjacency(item_starts, neighbours, places),
    )


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _cuts(starts: NDArray[np.int64]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The users in two parts with about as many rows each."""
    middle = int(np.searchsorted(starts[:-1], starts[-1] // 2))
    return (0, middle), (middle, len(starts) - 1)


def both(work: Callable[[int], Any]) -> list[Any]:
    """The work on halves 0 and 1, each on a processor of its own."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, (0, 1)))

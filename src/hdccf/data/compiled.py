"""Large sources through compiled loops, where numba is installed: ids → codes → histories → CSR both ways.

Everything here has a NumPy way elsewhere that gives exactly the same: `ids.group_ids`,
`adjacency.history_order` and `adjacency.collapse`. Compiling takes some seconds once; numba keeps the result
beside the package or in the user's cache, and small sources never come here.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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
_FEW = 22  # bits: a table of 16 MB at most, of which only the lines are touched where ids are
_MOST_HELPERS = 32  # for as many readings at the same time
_INLINE = 12  # Arrow keeps texts of up to so many bytes within the 16 of their view
_SEEDS = (20_190, 76_543)
_NO_TIMES = np.empty(0, np.int64)
_NO_COUNTS = np.empty(0, np.int32)


def worthwhile(rows: int) -> bool:
    """Whether there are so many rows that loading the compiled loops pays, and numba to compile them."""
    return LEAST_ROWS <= rows <= _MOST_ROWS and _installed()


@cache
def _installed() -> bool:
    if sys.byteorder != "little":  # the loops take texts for numbers
        return False
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
    """Numbers 16-byte keys in order of first appearance, block after block.

    Ids such as `user_0012345` differ in few bits. While there are at most `_FEW`, those bits are a key's
    place in a table, and nothing has to be compared; where there are more, it is a hash table.
    """

    def __init__(self) -> None:
        self.kernels = _kernels()
        room = max(_ROOM, int(self.kernels.BLOCK))
        self.table = np.zeros(1, np.int32)
        self.known = np.empty((room + 1, 2), np.uint64)
        self.known[0] = self.kernels.NOBODY
        self.firsts = np.empty(room, np.int64)
        self.rows = self.count = 0
        self.differing, self.few = (0, 0), True
        self.places = _places(self.differing)

    def add(self, keys: NDArray[np.uint64], codes: IntArray) -> None:
        """Fills in the codes of some more keys."""
        row, keys = 0, frozen(keys)
        if self.few and len(keys):
            self._tell_apart(keys)
        while row < len(keys):
            if self.few:
                row, self.count = self.kernels.number_places(keys, codes, row, *self.state, *self.places)
            else:
                row, self.count = self.kernels.number_keys(keys, codes, row, *self.state)
            if row < len(keys):
                self._grow()
        self.rows += len(keys)

    @property
    def state(self) -> tuple[int, IntArray, NDArray[np.uint64], NDArray[np.int64], int]:
        """What the loops work on."""
        return self.rows, self.table, self.known, self.firsts, self.count

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The known keys, in order of first appearance."""
        return self.known[1 : self.count + 1]

    def _tell_apart(self, keys: NDArray[np.uint64]) -> None:
        """Makes another table where keys differ in bits that were the same in all before."""
        one = self.known[1] if self.count else keys[0]
        found = self.kernels.differing(keys, *one)
        differing = (self.differing[0] | int(found[0]), self.differing[1] | int(found[1]))
        if differing == self.differing:
            return
        self.differing, bits = differing, sum(word.bit_count() for word in differing)
        self.few = bits <= _FEW
        if self.few:
            self.table, self.places = np.zeros(1 << bits, np.int32), _places(differing)
            self.kernels.fill_places(self.table, self.known, self.count, *self.places)
        else:
            self._hash()

    def _hash(self) -> None:
        self.table = np.zeros(2 * len(self.firsts), np.int32)
        self.kernels.fill_table(self.table, self.known, self.count)

    def _grow(self) -> None:
        """Doubles the room."""
        known, firsts, room = self.known, self.firsts, 2 * len(self.firsts)
        self.known, self.firsts = np.empty((room + 1, 2), np.uint64), np.empty(room, np.int64)
        self.known[: len(known)], self.firsts[: len(firsts)] = known, firsts
        if not self.few:
            self._hash()

    def take(self, other: "Numberer") -> IntArray:
        """Numbers what another has seen after all this one has; the number here of each of its codes."""
        numbers, before = np.empty(other.count, np.int32), self.count
        self.rows, rows = 0, self.rows
        self.add(other.keys, numbers)
        # A key that was new here was first seen where the other one saw it.
        self.firsts[before : self.count] = other.firsts[self.firsts[before : self.count]] + rows
        self.rows = rows + other.rows
        return numbers


def _places(differing: tuple[int, int]) -> tuple[Any, Any, np.uint64]:
    """What the loops need to make a place of the bits in which keys differ."""
    wanted = import_module("hdccf.data.bits").wanted
    return wanted(differing[0]), wanted(differing[1]), np.uint64(differing[0].bit_count())


def number_texts(columns: Sequence[pl.Series]) -> list[tuple[IntArray, NDArray[np.int64]]]:
    """Of each column the texts' codes in order of first appearance, and the row where each was first seen.

    The columns are equally long. One thread numbers the first half of them, and one the second.
    """
    keys = [_keys(column) for column in columns]
    codes = [np.empty(len(column), np.int32) for column in columns]
    middle = len(codes[0]) // 2

    def number(half: int) -> list[Numberer]:
        numberers = []
        for chunks, numbers in zip(keys, codes, strict=True):
            mine, place = Numberer(), middle if half else 0
            for chunk in chunks[half]:
                mine.add(chunk, numbers[place : place + len(chunk)])
                place += len(chunk)
            numberers.append(mine)
        return numberers

    first, second = both(number)
    for ahead, behind, numbers in zip(first, second, codes, strict=True):
        renumber([numbers[middle:]], ahead.take(behind))
    return [(numbers, one.firsts[: one.count]) for numbers, one in zip(codes, first, strict=True)]


def renumber(parts: Sequence[IntArray], numbers: IntArray) -> None:
    """Each code becomes the number that stands for it, in place and with both processors."""
    halves = [half for part in parts for half in (part[: len(part) // 2], part[len(part) // 2 :])]
    both(lambda half: [_kernels().renumber(codes, numbers) for codes in halves[half::2]])


def _keys(ids: pl.Series) -> list[list[NDArray[np.uint64]]]:
    """16 bytes that tell texts apart, by chunk of each half: the text, or hashes where some are long."""
    middle = len(ids) // 2
    halves = [_views(ids[:middle]), _views(ids[middle:])]
    longest = both(lambda half: max(map(_kernels().longest_text, halves[half]), default=0))
    if max(longest) <= _INLINE:
        return halves
    hashes = np.empty((len(ids), 2), np.uint64)
    for column, seed in enumerate(_SEEDS):
        hashes[:, column] = ids.hash(seed).to_numpy()
    return [[hashes[:middle]], [hashes[middle:]]]


def _views(ids: pl.Series) -> list[NDArray[np.uint64]]:
    """Arrow's 16-byte views of texts, chunk by chunk."""
    chunks = []
    for chunk in ids.get_chunks():
        array = chunk.to_arrow(compat_level=pl.CompatLevel.newest())
        views = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
        chunks.append(frozen(views[array.offset : array.offset + len(array)]))
    return chunks


def histories(
    users: IntArray, items: IntArray, times: TimeArray | None, n_users: int
) -> tuple[NDArray[np.int64], IntArray, TimeArray | None]:
    """Rows in any order → where each user's start, and items and times by user, then time, then arrival."""
    kernels = _kernels()
    halves = [slice(0, len(users) // 2), slice(len(users) // 2, len(users))]
    counts = np.zeros((2, n_users), np.int64)
    both(lambda half: kernels.count_codes(users[halves[half]], counts[half]))
    starts = starts_of(counts.sum(axis=0))
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
        cuts = cut(starts)
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
    cuts = cut(starts)
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
    close_gap((kept_times, kept_users, kept_items, kept_counts), kept, int(starts[cuts[1][0]]))
    total = sum(kept)
    kept_users, kept_items, kept_counts = kept_users[:total], kept_items[:total], kept_counts[:total]
    return Collapsed(
        kept_users,
        kept_items,
        None if times is None else kept_times[:total],
        kept_counts,
        Adjacency(starts_of(degrees), kept_items, slice(None)),
        turn(kept_users, kept_items, kept[0], of_item),
    )


def turn(users: IntArray, items: IntArray, middle: int, of_item: NDArray[np.integer[Any]]) -> Adjacency:
    """Rows sorted by user → by item; `of_item` counts the items before and after row `middle` apart."""
    starts, rows = starts_of(of_item.sum(axis=0)), len(users)
    cursors = np.stack([starts[:-1], starts[:-1] + of_item[0]])
    neighbours, places = np.empty(rows, np.int32), np.empty(rows, np.int32)
    parts = ((0, middle), (middle, rows))
    both(lambda half: _kernels().turn(users, items, *parts[half], cursors[half], neighbours, places))
    return Adjacency(starts, neighbours, places)


def close_gap(columns: Sequence[NDArray[Any]], kept: Sequence[int], moved: int) -> None:
    """Moves what the second half kept, which starts at `moved`, behind what the first did; in place."""
    middle, total = kept[0], kept[0] + kept[1]

    def move(half: int) -> None:
        # Times come first, and are about as much to move as all the rest.
        for column in columns[1:] if half else columns[:1]:
            column[middle:total] = column[moved : moved + kept[1]]

    if moved != middle:
        both(move)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to, as Arrow's arrays are: so a loop is compiled for one kind only."""
    view = array.view()
    view.flags.writeable = False
    return view


def starts_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def cut(starts: NDArray[np.int64]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Users, items or buckets in two runs with about as many rows each."""
    middle = int(np.searchsorted(starts[:-1], starts[-1] // 2))
    return (0, middle), (middle, len(starts) - 1)


def both(work: Callable[[int], Any]) -> list[Any]:
    """The work on halves 0 and 1, each on a processor of its own."""
    second = _helpers().submit(work, 1)
    try:
        first = work(0)
    finally:
        wait([second])  # nobody goes on while the other half may still write
    return [first, second.result()]


@cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that stay, as new ones for each step cost 5 % of a small reading; made where none is idle."""
    return ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="hdccf-read")


if hasattr(os, "register_at_fork"):
    # A forked process has no threads but the one that forked.
    os.register_at_fork(after_in_child=_helpers.cache_clear)

"""Codes of a large source → histories without repeats and CSR both ways, as `adjacency.collapse` makes them.

The loops are in `hdccf.data.buckets`. Rows come in parts, as files are read, in two halves: each is worked on
by a thread of its own. Where a row does not fit into 64 bits, `hdccf.data.compiled` has a slower way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data import compiled
from hdccf.data.adjacency import Adjacency, Collapsed, IntArray, TimeArray

_BITS = 63  # of a record; the sign stays out of it
_IN_A_BUCKET = 1 << 15  # records, so that a bucket and its copy in order fit into a second-level cache
_FEWEST_BUCKETS = 1 << 8  # or too many rows in a row go to the same one, and each waits for the one before
_MOST_BUCKETS = 1 << 11  # so that their ends fit into a first-level cache
_UNITS = (1, 1_000, 1_000_000)
_NO_TIMES = np.empty(0, np.int64)


class Part(NamedTuple):
    """Some rows that follow each other; no times where the source has none."""

    users: IntArray
    items: IntArray
    times: TimeArray | None


@dataclass(frozen=True)
class Halves:
    """All rows of a source, in order, in two halves of parts."""

    first: Sequence[Part]
    second: Sequence[Part]
    room: Part | None = None
    """Whole columns that may be overwritten once the parts, which lie in them, were read."""

    def __getitem__(self, half: int) -> Sequence[Part]:
        return self.second if half else self.first

    @property
    def parts(self) -> list[Part]:
        return [*self.first, *self.second]

    @property
    def rows(self) -> int:
        return sum(len(part.users) for part in self.parts)

    @property
    def times(self) -> list[TimeArray]:
        """The times of each part; nothing where the source has none."""
        return [part.times for part in self.parts if part.times is not None]

    @cached_property
    def time_range(self) -> tuple[int, int]:
        """The earliest and the latest time; there must be some."""

        def ends(half: int) -> list[int]:
            columns = [part.times for part in self[half] if part.times is not None and len(part.times)]
            return [int(end) for column in columns for end in (column.min(), column.max())]

        either = [end for half in compiled.both(ends) for end in half]
        return min(either), max(either)

    def with_times(self, times: TimeArray) -> "Halves":
        """The same rows with other times."""
        halves: tuple[list[Part], list[Part]] = ([], [])
        place = 0
        for half in (0, 1):
            for part in self[half]:
                halves[half].append(part._replace(times=times[place : place + len(part.users)]))
                place += len(part.users)
        return Halves(*halves)


@dataclass(frozen=True)
class Coded:
    """A large source as codes, with the id that stands behind each."""

    user_ids: pl.Series
    item_ids: pl.Series
    halves: Halves
    factor: int | None = None
    """What makes microseconds of the times; None where their size has to tell."""


def in_halves(
    users: IntArray, items: IntArray, times: Sequence[TimeArray] | None, room: Part | None = None
) -> Halves:
    """Whole columns of codes, and times in chunks as they were read."""
    halves: tuple[list[Part], list[Part]] = ([], [])
    middle, place = len(users) // 2, 0
    for size, chunk in [(len(users), None)] if times is None else [(len(chunk), chunk) for chunk in times]:
        end = place + size
        for half, rows in enumerate((slice(place, min(end, middle)), slice(max(place, middle), end))):
            if rows.start < rows.stop:
                own = None if chunk is None else chunk[rows.start - place : rows.stop - place]
                halves[half].append(Part(users[rows], items[rows], own))
        place = end
    return Halves(*halves, room)


class _Times(NamedTuple):
    """How times fit into a record: as ticks of `unit` since `lowest`, in `bits`."""

    lowest: int
    unit: int
    bits: int


def arrange(halves: Halves, n_users: int, n_items: int, factor: int = 1) -> Collapsed:
    """Pairs by user, time and arrival, without repeats, and both adjacencies.

    `factor` makes microseconds of the times.
    """
    rows = halves.rows
    shift, item_bits = _shift(n_users, rows), max(1, (n_items - 1).bit_length())
    times = _fit_times(halves, _BITS - shift - item_bits)
    if times is None:
        return _directly(halves, n_users, n_items, factor)
    records, starts, ordered = _by_bucket(halves, n_users, shift, item_bits, times, rows)
    timed = bool(halves.times)
    kept_users, kept_items, kept_times = _room(halves, rows)
    kept_counts = np.empty(rows, np.int32)
    degrees, of_item = np.empty(n_users, np.int64), np.zeros((2, n_items), np.int32)
    cuts = compiled.cut(starts)
    kept = compiled.both(
        lambda half: _buckets().keep_firsts(
            records,
            starts,
            *cuts[half],
            half == 0,
            shift,
            times.bits,
            item_bits,
            times.lowest * factor,
            times.unit * factor,
            ordered,
            kept_users,
            kept_items,
            kept_times,
            kept_counts,
            degrees,
            of_item[half],
        )
    )
    begin = int(starts[cuts[1][0]]) - kept[0]
    those = slice(begin, begin + sum(kept))
    kept_users, kept_items, kept_counts = kept_users[those], kept_items[those], kept_counts[those]
    return Collapsed(
        kept_users,
        kept_items,
        kept_times[those] if timed else None,
        kept_counts,
        Adjacency(compiled.starts_of(degrees), kept_items, slice(None)),
        turn(kept_users, kept_items, kept[0], of_item, n_users, records),
    )


def _room(halves: Halves, rows: int) -> tuple[IntArray, IntArray, TimeArray]:
    """Where the rows that are kept go: over those that were read, if nobody else needs them."""
    timed = bool(halves.times)
    if halves.room is None:
        return np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows if timed else 0, np.int64)
    users, items, times = halves.room
    return users[:rows], items[:rows], _NO_TIMES if times is None or not timed else times[:rows]


def turn(
    users: IntArray,
    items: IntArray,
    middle: int,
    of_item: IntArray,
    n_users: int,
    room: NDArray[np.int64],
) -> Adjacency:
    """Rows sorted by user → by item; `of_item` counts the items before and after row `middle` apart.

    `room` is overwritten: memory that the system has handed out already is not cleared once more.
    """
    rows, n_items = len(users), of_item.shape[1]
    shift, user_bits, row_bits = _shift(n_items, rows), n_users.bit_length(), rows.bit_length()
    if shift + user_bits + row_bits > _BITS:
        return compiled.turn(users, items, middle, of_item)
    starts = compiled.starts_of(of_item.sum(axis=0))
    neighbours, places = np.empty(rows, np.int32), np.empty(rows, np.int32)
    parts = ((0, middle), (middle, rows))
    firsts = np.arange(0, n_items, 1 << shift)
    bucket_starts = np.append(starts[firsts], rows)
    cursors = np.stack([bucket_starts[:-1], bucket_starts[:-1] + np.add.reduceat(of_item[0], firsts)])
    widths = (shift, user_bits, row_bits)
    compiled.both(
        lambda half: _buckets().send_to_items(users, items, *parts[half], *widths, cursors[half], room)
    )
    cuts, cursor = compiled.cut(bucket_starts), starts[:-1].copy()
    compiled.both(
        lambda half: _buckets().place_by_item(
            room, bucket_starts, *cuts[half], *widths, cursor, neighbours, places
        )
    )
    return Adjacency(starts, neighbours, places)


def _buckets() -> Any:
    return import_module("hdccf.data.buckets")  # not at the top: it needs numba


def _by_bucket(
    halves: Halves, n_users: int, shift: int, item_bits: int, times: _Times, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], bool]:
    """All rows as records by bucket, where each bucket starts, and whether the rows were in order of time."""
    kernels = _buckets()
    counts = np.zeros((2, ((n_users - 1) >> shift) + 1), np.int64)

    def count(half: int) -> None:
        for part in halves[half]:
            kernels.count_buckets(part.users, shift, counts[half])

    compiled.both(count)
    starts = compiled.starts_of(counts.sum(axis=0))
    cursors = np.stack([starts[:-1], starts[:-1] + counts[0]])
    records = np.empty(rows, np.int64)

    def send(half: int) -> bool:
        ordered = True
        for part in halves[half]:
            ordered &= kernels.send_to_users(
                part.users,
                part.items,
                compiled.frozen(_NO_TIMES if part.times is None else part.times),
                shift,
                times.lowest,
                times.unit,
                times.bits,
                item_bits,
                cursors[half],
                records,
            )
        return ordered

    ordered = all(compiled.both(send)) and _parts_ascend(halves.times)
    return records, starts, ordered


def _parts_ascend(times: Sequence[TimeArray]) -> bool:
    """Whether no part starts earlier than the one before ends."""
    return all(before[-1] <= after[0] for before, after in pairwise(times))


def _fit_times(halves: Halves, room: int) -> _Times | None:
    """The unit in which times fit into so many bits; None where there is none."""
    if not halves.times:
        return _Times(0, 1, 0)
    lowest, highest = halves.time_range
    for unit in _UNITS:
        bits = ((highest - lowest) // unit).bit_length()
        if bits <= room and (unit == 1 or not any(((times - lowest) % unit).any() for times in halves.times)):
            return _Times(lowest, unit, bits)
    return None


def _directly(halves: Halves, n_users: int, n_items: int, factor: int) -> Collapsed:
    """The way for rows that are too wide for a record, such as a decade in microseconds."""
    users = np.concatenate([part.users for part in halves.parts])
    items = np.concatenate([part.items for part in halves.parts])
    times = np.concatenate(halves.times) * factor if halves.times else None
    starts, their_items, their_times = compiled.histories(users, items, times, n_users)
    return compiled.collapse(starts, their_items, their_times, None, n_items, reuse=True)


def _shift(codes: int, rows: int) -> int:
    """How many of a code's last bits to leave out, so that buckets have the right size, or their number."""
    in_a_bucket = min(_IN_A_BUCKET, rows // _FEWEST_BUCKETS + 1)
    for_size = (codes * in_a_bucket // max(rows, 1)).bit_length() - 1
    for_number = ((codes - 1) // _MOST_BUCKETS).bit_length()
    return max(0, for_size, for_number)

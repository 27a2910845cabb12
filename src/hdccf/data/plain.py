"""Large plain text files straight to codes, without a text for each field in between.

Plain means: not compressed, ASCII, one byte between fields, no quotation mark, as many fields on each line,
ids of 1 to 15 bytes, and times that are whole numbers of up to 16 digits. Where anything else is met, the
file is left to Polars (`hdccf.data.text`): its reading is the measure of this one, and its errors name lines.
"""

import mmap
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hdccf.data import compiled
from hdccf.data.arrange import Coded, Halves, Part
from hdccf.data.ids import vocabulary
from hdccf.data.keys import texts
from hdccf.data.lines import Dialect

_WINDOW = 1 << 23  # bytes at a time: so many that each table of ids, once in the cache, is used for a while
_SMALLER = 1 << 20  # and so many of files whose tables are small
_SHORTEST = 4  # bytes of a line: two ids, what stands between them, and its end
_SAMPLE = 1 << 16  # bytes that tell how long lines are
_NO_QUOTE = b"\r"  # is refused anyway


class _NotPlainError(Exception):
    """Something that only Polars should judge."""


class Places(NamedTuple):
    """The number of columns, and where among them user, item and time stand, from 0; -1 for no time."""

    width: int
    user: int
    item: int
    time: int


def read_plain(path: Path, dialect: Dialect, places: Places) -> Coded | None:
    """Codes and ids of a file that is not empty; nothing where it is not plain."""
    with path.open("rb") as stream:
        # Nobody closes the mapping: it goes with the last array that looks at it.
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    begin = 0
    if dialect.header:
        begin = mapping.find(b"\n") + 1
        if not begin or (dialect.quote and dialect.quote in mapping[:begin]):
            return None
    middle = max(begin, mapping.rfind(b"\n", begin, (begin + len(mapping)) // 2) + 1)
    cuts = (begin, middle, len(mapping))
    length = max(1, _SAMPLE // max(1, mapping[begin : begin + _SAMPLE].count(b"\n")))
    # Rows for half of the file if all its lines are so long, and some more: untouched memory costs nothing.
    each = (len(mapping) - begin) * 11 // (20 * length) + 1
    room = _part(2 * each, places)
    halves = [_Half(mapping, dialect, places, _cut(room, half * each, (half + 1) * each)) for half in (0, 1)]
    try:
        compiled.both(lambda half: halves[half].read(cuts[half], cuts[half + 1]))
    except _NotPlainError:
        return None
    return _joined(halves[0], halves[1], room)


def _joined(first: "_Half", second: "_Half", room: Part) -> Coded | None:
    """Both halves under the same codes."""
    compiled.renumber([part.users for part in second.parts], first.users.take(second.users))
    compiled.renumber([part.items for part in second.parts], first.items.take(second.items))
    halves = Halves(first.parts, second.parts, room if first.fits and second.fits else None)
    if not halves.rows:
        return None
    return Coded(
        vocabulary(texts(first.users.keys), typed=False),
        vocabulary(texts(first.items.keys), typed=False),
        halves,
    )


class _Half:
    """Reads a part of a file that starts and ends with whole lines."""

    def __init__(self, mapping: mmap.mmap, dialect: Dialect, places: Places, room: Part) -> None:
        self.kernels: Any = import_module("hdccf.data.fields")  # not at the top: it needs numba
        self.mapping, self.places = mapping, places
        self.marks = (dialect.separator[0], (dialect.quote or _NO_QUOTE)[0])
        self.users, self.items = compiled.Numberer(), compiled.Numberer()
        self.room, self.fits, self.parts = room, True, list[Part]()
        self.window = min(_WINDOW, max(_SMALLER, len(mapping) // 32))
        self.ends = np.empty(self.window + 8, np.int32)
        self.keys = np.empty((2, self.window // _SHORTEST + 1, 2), np.uint64)

    def read(self, begin: int, end: int) -> None:
        """Fills `parts`: one, in the room that was given, unless the lines become much shorter."""
        part, filled = self.room, 0
        while begin < end:
            data, first, last, after = self._window(begin, end)
            fields, lines, plain = self.kernels.find_ends(data, first, last, *self.marks, self.ends)
            if not plain or fields != lines * self.places.width:
                raise _NotPlainError
            if filled + lines > len(part.users):
                self._keep(part, filled)
                # As many rows as the rest of the file has if its lines are as long as these, and some more.
                rows = (end - begin) * lines * 21 // ((last - first) * 20) + lines
                part, filled, self.fits = _part(rows, self.places), 0, False
            self._read_rows(data, first, lines, _cut(part, filled, filled + lines))
            filled += lines
            begin = after
        self._keep(part, filled)

    def _window(self, begin: int, end: int) -> tuple[NDArray[np.uint8], int, int, int]:
        """Some whole lines: the bytes, from where to where in them, and where the next ones start."""
        after = end
        size = min(self.window, _SMALLER) if self.users.few and self.items.few else self.window
        if end - begin > size:
            after = self.mapping.rfind(b"\n", begin, begin + size) + 1
            if not after:
                raise _NotPlainError
        if after + self.kernels.BEYOND <= len(self.mapping):
            # Counted from here, places within any file fit into 32 bits.
            return np.frombuffer(self.mapping, np.uint8, offset=begin), 0, after - begin, after
        # The loops look beyond the end, so the file's last lines are copied to where that is allowed.
        lines = self.mapping[begin:after]
        lines += b"" if lines.endswith(b"\n") else b"\n"
        return np.frombuffer(lines + bytes(self.kernels.BEYOND), np.uint8), 0, len(lines), after

    def _read_rows(self, data: NDArray[np.uint8], begin: int, lines: int, part: Part) -> None:
        if self.keys.shape[1] < lines:
            raise _NotPlainError
        row = 0
        while row < lines and self.users.few and self.items.few:
            states = [(*ids.state, *ids.places) for ids in (self.users, self.items)]
            reached, self.users.count, self.items.count = self.kernels.number_rows(
                data, begin, self.ends, row, lines, self.places, self.keys, *part, *states
            )
            if reached < 0:
                raise _NotPlainError
            stop = min(reached + int(self.kernels.TURN), lines)
            # What the tables are not made for yet goes the longer way, which makes others.
            self.users.rows += reached - row
            self.items.rows += reached - row
            self._number(part, reached, stop)
            row = stop
        if row < lines:
            users, items = self.keys
            if not self.kernels.read_rows(
                data, begin, self.ends, row, lines, self.places, users, items, part.times
            ):
                raise _NotPlainError
            self._number(part, row, lines)

    def _number(self, part: Part, first: int, last: int) -> None:
        users, items = self.keys[:, : last - first]
        self.users.add(users, part.users[first:last])
        self.items.add(items, part.items[first:last])

    def _keep(self, part: Part, rows: int) -> None:
        if rows:
            kept = _cut(part, 0, rows)
            self.parts.append(kept if self.places.time >= 0 else kept._replace(times=None))


def _part(rows: int, places: Places) -> Part:
    times = np.empty(rows if places.time >= 0 else 0, np.int64)
    return Part(np.empty(rows, np.int32), np.empty(rows, np.int32), times)


def _cut(part: Part, first: int, last: int) -> Part:
    times = None if part.times is None else part.times[first:last]
    return Part(part.users[first:last], part.items[first:last], times)

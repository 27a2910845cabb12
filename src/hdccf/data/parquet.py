"""A large Parquet file straight to codes: its dictionaries are numbered, and no row's text is ever made.

Flat columns of texts of up to 15 bytes or of whole numbers, without missing values, in pages that are written
plainly or as numbers into a dictionary: what Polars, pyarrow and pandas write by default. Where anything else
is met, the file is left to Polars: its reading is the measure of this one, and all errors are its.
"""

import json
import mmap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data import compiled
from hdccf.data.adjacency import IntArray
from hdccf.data.arrange import Coded, Part, in_halves
from hdccf.data.columns import Columns
from hdccf.data.ids import vocabulary
from hdccf.data.keys import texts
from hdccf.data.pages import Page, StrangeError, pages

_TEXT, _LONG, _INT = "BYTE_ARRAY", "INT64", "INT32"
_WHOLE = {"NONE", "INT_8", "INT_16", "INT_32", "INT_64"}
_TIMES = {"NONE": None, "INT_64": None, "microseconds": 1, "milliseconds": 1_000}
_EVEN = 0.4  # of the rows must at least be in the smaller half, or each thread gets columns of its own


class _Chunk(NamedTuple):
    """A column within one row group: its bytes, and its rows among all."""

    begin: int
    size: int
    codec: str
    first: int
    last: int


class _Column(NamedTuple):
    """A column of the file."""

    physical: str
    kind: str
    optional: bool
    chunks: Sequence[_Chunk]


def read_parquet(path: Path, columns: Columns) -> Coded | None:
    """Codes and ids of a large file; nothing where it is small, or holds what only Polars should judge."""
    if columns.title is not None or not compiled.worthwhile(rows := _rows(path)):
        return None
    try:
        return _File(path, columns, rows).read()
    except (StrangeError, KeyError, TypeError, OSError, ValueError):
        # Whatever a damaged file's bytes lead to; Arrow's own exceptions are such, too.
        return None


def _rows(path: Path) -> int:
    """How many rows the file says it has."""
    return int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())


class _File:
    """One reading of one file."""

    def __init__(self, path: Path, columns: Columns, rows: int) -> None:
        from pyarrow.parquet import read_metadata

        about = read_metadata(path)
        self.rows, self.sizes = (
            rows,
            [about.row_group(group).num_rows for group in range(about.num_row_groups)],
        )
        if about.num_rows != rows or sum(self.sizes) != rows:
            raise StrangeError
        self.user, self.item = _column(about, columns.user), _column(about, columns.item)
        self.time = None if columns.time is None else _column(about, columns.time)
        for ids in (self.user, self.item):
            if (ids.physical, ids.kind) != (_TEXT, "UTF8") and not (
                ids.physical in (_LONG, _INT) and ids.kind in _WHOLE
            ):
                raise StrangeError
        if self.time is not None and (self.time.physical != _LONG or self.time.kind not in _TIMES):
            raise StrangeError
        with path.open("rb") as stream:
            # Nobody closes the mapping: it goes with the last array that looks at it.
            self.data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def read(self) -> Coded:
        users, items = np.empty(self.rows, np.int32), np.empty(self.rows, np.int32)
        times = np.empty(self.rows if self.time is not None else 0, np.int64)
        ends = np.cumsum(self.sizes)
        groups = int(np.argmin(np.abs(ends - self.rows // 2))) + 1
        middle = int(ends[groups - 1])
        if min(middle, self.rows - middle) < _EVEN * self.rows:
            groups, middle = 0, 0
        of_user = [_Ids(self.data, self.user, users) for _ in range(2)]
        of_item = [_Ids(self.data, self.item, items) for _ in range(2)]
        timed = [] if self.time is None else [(self.time, chunk) for chunk in self.time.chunks]
        shared = iter(timed)

        def work(half: int) -> None:
            mine = slice(groups, None) if half else slice(0, groups)
            for ids in (of_user[half], of_item[half]):
                # Where halves would be uneven, one thread has the users, and the other one the items.
                if groups or (ids is of_user[half]) == (half == 0):
                    ids.read(mine if groups else slice(None))
            # And whoever of them is done takes the times of the next row group.
            for column, chunk in timed[mine] if groups else shared:
                _read_times(self.data, column, chunk, times)

        compiled.both(work)
        for of in (of_user, of_item):
            if groups:
                compiled.renumber([of[1].codes[middle:]], of[0].numberer.take(of[1].numberer))
        known = of_user[0], of_item[0 if groups else 1]
        room = Part(users, items, times)
        halves = in_halves(users, items, None if self.time is None else [times], room)
        factor = None if self.time is None else _TIMES[self.time.kind]
        return Coded(known[0].vocabulary(), known[1].vocabulary(), halves, factor)


def _column(about: Any, name: str) -> _Column:
    """Where a flat column is; one within another has its name and a dot before its own."""
    named = [place for place in range(about.num_columns) if about.schema.column(place).path == name]
    if len(named) != 1 or "." in name:
        raise StrangeError
    schema = about.schema.column(named[0])
    if schema.max_repetition_level or schema.max_definition_level > 1:
        raise StrangeError
    chunks, first = [], 0
    for group in range(about.num_row_groups):
        rows, column = about.row_group(group).num_rows, about.row_group(group).column(named[0])
        begin = column.data_page_offset
        if column.has_dictionary_page:
            begin = min(begin, column.dictionary_page_offset)
        chunks.append(_Chunk(begin, column.total_compressed_size, column.compression, first, first + rows))
        first += rows
    return _Column(schema.physical_type, _kind(schema), schema.max_definition_level == 1, chunks)


def _kind(schema: Any) -> str:
    """What a column's numbers or bytes are: the older name of it, and for times the unit."""
    logical = schema.logical_type
    if logical.type == "TIMESTAMP":
        return str(json.loads(logical.to_json())["timeUnit"])
    if schema.converted_type == "NONE" != logical.type:
        raise StrangeError
    return str(schema.converted_type)


class _Ids:
    """Numbers one column of ids, or a half of it."""

    def __init__(self, data: NDArray[np.uint8], column: _Column, codes: IntArray) -> None:
        self.kernels: Any = import_module("hdccf.data.values")  # not at the top: it needs numba
        self.data, self.column, self.codes = data, column, codes
        self.numberer = compiled.Numberer()

    def read(self, groups: slice) -> None:
        for chunk in self.column.chunks[groups]:
            self._read_chunk(chunk)

    def _read_chunk(self, chunk: _Chunk) -> None:
        keys = np.empty((0, 2), np.uint64)
        start, seen, ordered = chunk.first, -1, True
        for page, first, last in _data_pages(self.data, self.column, chunk):
            if page.kind == "dictionary":
                keys = self._keys(page)
            elif page.kind == "indices":
                seen, next_ones = self.kernels.read_indices(page.values, page.size, self.codes, first, seen)
                if not -1 <= seen < len(keys):
                    raise StrangeError
                ordered &= next_ones
            else:
                self._number(keys, start, first, seen, ordered)
                self.numberer.add(self._keys(page), self.codes[first:last])
                start, seen, ordered = last, -1, True
        self._number(keys, start, chunk.last, seen, ordered)

    def _number(self, keys: NDArray[np.uint64], first: int, last: int, seen: int, ordered: bool) -> None:
        """Rows that hold numbers into a dictionary get the codes of its ids."""
        if first == last:
            return
        if ordered:
            numbers = self._numbers(keys[: seen + 1])
        else:
            # A dictionary may be sorted, or hold ids that no row has.
            ranks = np.empty(len(keys), np.int32)
            used = np.empty(self.kernels.by_appearance(self.codes[first:last], ranks), np.int64)
            used[ranks[ranks >= 0]] = np.flatnonzero(ranks >= 0)
            numbers = self._numbers(keys[used])[ranks]
        import_module("hdccf.data.kernels").renumber(self.codes[first:last], numbers)

    def _numbers(self, keys: NDArray[np.uint64]) -> IntArray:
        numbers = np.empty(len(keys), np.int32)
        self.numberer.add(keys, numbers)
        return numbers

    def _keys(self, page: Page) -> NDArray[np.uint64]:
        """16 bytes that tell a page's ids apart."""
        if self.column.physical == _TEXT:
            keys = np.empty((page.size, 2), np.uint64)
            if not self.kernels.text_keys(page.values, keys):
                raise StrangeError
            return keys
        keys = np.zeros((page.size, 2), np.uint64)
        keys[:, 0] = _integers(page, self.column.physical).astype(np.int64).view(np.uint64)
        return keys

    def vocabulary(self) -> pl.Series:
        keys = self.numberer.keys
        if self.column.physical == _TEXT:
            return vocabulary(texts(keys), typed=True)
        return pl.Series(keys[:, 0].copy().view(np.int64))


def _read_times(data: NDArray[np.uint8], column: _Column, chunk: _Chunk, times: NDArray[np.int64]) -> None:
    kernels: Any = import_module("hdccf.data.values")
    known = times[:0]
    for page, first, last in _data_pages(data, column, chunk):
        if page.kind == "dictionary":
            known = _integers(page, column.physical)
        elif page.kind == "plain":
            times[first:last] = _integers(page, column.physical)
        else:
            places = np.empty(page.size, np.int32)
            seen, _ = kernels.read_indices(page.values, page.size, places, 0, -1)
            if not 0 <= seen < len(known):
                raise StrangeError
            np.take(known, places, out=times[first:last], mode="clip")  # or NumPy fills a copy first


def _data_pages(data: NDArray[np.uint8], column: _Column, chunk: _Chunk) -> Any:
    """The pages of a chunk with the rows that they fill; all rows have a value, and all are filled."""
    kernels: Any = import_module("hdccf.data.values")
    row = chunk.first
    if chunk.first == chunk.last:
        return
    for page in pages(data, chunk.begin, chunk.size, chunk.codec, column.optional):
        after = row if page.kind == "dictionary" else row + page.size
        if not row <= after <= chunk.last:
            raise StrangeError
        if page.levels is not None and not kernels.none_missing(page.levels, page.size):
            raise StrangeError
        yield page, row, after
        row = after
    if row != chunk.last:
        raise StrangeError


def _integers(page: Page, physical: str) -> NDArray[np.signedinteger[Any]]:
    kind = "<i8" if physical == _LONG else "<i4"
    if page.size < 0:
        raise StrangeError
    return np.frombuffer(page.values, kind, page.size)

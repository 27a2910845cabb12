"""The pages of one Parquet column, as bytes: where they are, what they hold, and no more.

Polars reads any Parquet file into texts. Most files have each id of a row group once, in a dictionary, and
then short numbers for the rows: `hdccf.data.parquet` numbers the dictionaries and never makes the texts. What
is not understood here is left to Polars, which stays the measure. The headers of pages are Thrift's compact
protocol; the layout is at https://parquet.apache.org/docs/file-format/.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd", "GZIP": "gzip"}
_PLAIN = 0
_DICTIONARY = (2, 8)  # the old and the new name of numbers that point into the dictionary
_DATA, _DICTIONARY_PAGE, _DATA_2 = 0, 2, 3  # kinds of pages
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 0, 1, 2, 3, 7, 8, 12
_INTEGERS = (4, 5, 6)


class StrangeError(Exception):
    """Something that only Polars should judge."""


class Page(NamedTuple):
    """The values of one page, and levels that say which are missing; None where it is known that none is."""

    kind: str
    """`dictionary`, or how the rows' values are written: `indices` into it, or `plain`."""
    size: int
    """How many values there are."""
    values: NDArray[np.uint8]
    levels: NDArray[np.uint8] | None


def pages(data: NDArray[np.uint8], begin: int, size: int, codec: str, optional: bool) -> Iterator[Page]:
    """The pages of a column's `size` bytes from `begin` on; `optional` where values may be missing."""
    at, end = begin, begin + size
    if begin < 0 or end > len(data):
        raise StrangeError
    decompress = _decompressor(codec)
    while at < end:
        header, at = _struct(data, at, end)
        packed = data[at : at + header.get(3, -1)]
        at += len(packed)
        if at > end or header.get(2, -1) < 0:
            raise StrangeError
        yield _page(header, packed, decompress, optional)


def _page(header: dict[int, Any], packed: NDArray[np.uint8], decompress: Any, optional: bool) -> Page:
    kind, size = header.get(1), header[2]
    if kind == _DICTIONARY_PAGE and header[7].get(2) in (_PLAIN, 2):
        return Page("dictionary", header[7][1], decompress(packed, size), None)
    if kind == _DATA:
        about, values, levels = header[5], decompress(packed, size), None
        if optional:
            length = int.from_bytes(values[:4].tobytes(), "little")
            levels, values = values[4 : 4 + length], values[4 + length :]
        return Page(_written(about[2]), about[1], values, levels)
    if kind == _DATA_2:
        about = header[8]
        before = about[5] + about[6]
        if about[2] or before < 0:
            raise StrangeError
        values = packed[before:]
        if about.get(7, True):
            values = decompress(values, size - before)
        return Page(_written(about[4]), about[1], values, None)
    raise StrangeError


def _written(encoding: int) -> str:
    if encoding in _DICTIONARY:
        return "indices"
    if encoding == _PLAIN:
        return "plain"
    raise StrangeError


def _decompressor(name: str) -> Any:
    import pyarrow as pa

    if name not in CODECS:
        raise StrangeError
    codec = CODECS[name]
    if codec is None:
        return lambda packed, _: packed
    unpack = pa.Codec(codec).decompress
    return lambda packed, size: np.frombuffer(unpack(pa.py_buffer(packed), size), np.uint8)


def _struct(data: NDArray[np.uint8], at: int, end: int) -> tuple[dict[int, Any], int]:
    """A Thrift structure, by the numbers of its fields, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while at < end:
        mark = int(data[at])
        at += 1
        if mark == _STOP:
            return fields, at
        if mark >> 4:
            number += mark >> 4
        else:
            number, at = _integer(data, at, end)
        fields[number], at = _value(data, at, end, mark & 15)
    raise StrangeError


def _value(data: NDArray[np.uint8], at: int, end: int, kind: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind in _INTEGERS:
        return _integer(data, at, end)
    if kind == _STRUCT:
        return _struct(data, at, end)
    if kind == _BINARY:  # the least and the largest value, of no use here
        length, at = _varint(data, at, end)
        return None, at + length
    if kind in (_BYTE, _DOUBLE):
        return None, at + (1 if kind == _BYTE else 8)
    raise StrangeError  # no page's header has lists or maps


def _integer(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """A whole number, written in zigzag: 0, -1, 1, -2."""
    value, at = _varint(data, at, end)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = int(data[at])
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise StrangeError

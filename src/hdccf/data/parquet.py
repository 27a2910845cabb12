"""A check of Parquet files before Polars reads them, which a damaged header can make abort the process.

Polars (2.1) trusts the number of values in a page's header. One flipped bit makes it negative, Polars asks
for 2·10¹⁸ bytes, and Rust ends the process: no exception, no limit on memory and no other engine or
`parallel` option prevents it, and reading in a child process would copy everything. So the headers, a few
bytes for each page of about a megabyte, are walked through first (10 M rows: 10 ms); the pages themselves
are left to Polars.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

Data = bytes | mmap.mmap
_MAGIC = b"PAR1"
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Types of Thrift's compact protocol, in which Parquet's headers are written."""


def read_parquet(path: Path) -> pl.DataFrame:
    """A file's table; a damaged file is a `ComputeError`."""
    check_headers(path)
    try:
        return pl.read_parquet(path, glob=False)
    except pl.exceptions.PanicException as cause:
        raise pl.exceptions.ComputeError(str(cause)) from cause


def check_headers(path: Path) -> None:
    """Refuses a file in which a page claims fewer values than none, or more than there can be."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for start, values in _columns(data):
                _check_pages(data, start, values)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        why = cause if isinstance(cause, ValueError) else "a header cannot be parsed"
        raise pl.exceptions.ComputeError(str(why)) from cause


def _columns(data: Data) -> Iterator[tuple[int, int]]:
    """The first page and the number of values of each column of each group of rows, by the file's end."""
    if data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise ValueError("it does not start and end with PAR1")
    size = int.from_bytes(data[-8:-4], "little")
    if size > len(data) - 12:
        raise ValueError(f"its last part has {size} bytes, more than the file")
    for group in _struct(data[-8 - size : -8], 0)[0][4]:
        for column in group[1]:
            facts = column[3]
            yield facts.get(11) or facts[9], facts[5]  # the dictionary's page, where there is one, is first


def _check_pages(data: Data, at: int, values: int) -> None:
    seen = 0
    while seen < values:
        if not 0 < at < len(data):
            raise ValueError(f"a page starts at byte {at} of {len(data)}")
        header, at = _struct(data, at)
        dictionary, unpacked, packed = 7 in header, header[2], header[3]
        claimed = (header[7] if dictionary else header.get(5) or header[8])[1]
        # A dictionary may hold values that no row has.
        most = unpacked if dictionary else values - seen
        if not 0 <= claimed <= most or packed < 0:
            raise ValueError(f"a page of {packed} bytes claims {claimed} values, of at most {most}")
        seen += 0 if dictionary else claimed
        at += packed


def _struct(data: Data, at: int) -> tuple[dict[int, Any], int]:
    """A Thrift structure by its fields' numbers, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        fields[number], at = (None, at) if kind in _BOOLEANS else _value(data, at, kind)
    return fields, at + 1


def _value(data: Data, at: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _STRUCT:
        return _struct(data, at)
    if kind == _BINARY:
        size, at = _varint(data, at)
        return None, at + size
    if kind in _LISTS:
        head, at = data[at], at + 1
        size, at = _varint(data, at) if head >> 4 == 15 else (head >> 4, at)
        values = []
        for _ in range(size):
            value, at = _value(data, at, head & 15)
            values.append(value)
        return values, at
    if kind in (*_BOOLEANS, _BYTE):
        return None, at + 1
    if kind == _DOUBLE:
        return None, at + 8
    raise ValueError(f"a header has a field of type {kind}")


def _integer(data: Data, at: int) -> tuple[int, int]:
    """A signed integer, in zigzag form."""
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: Data, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("an integer has more than 64 bits")

"""Text files line by line: what Polars is too fast to tell, namely which line is wrong and why.

Reading a good file comes here only to look at its first lines; a bad one is walked once, to name the line.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import polars as pl

from hdccf.errors import SourceError

_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"
_BLOCK = 1 << 20


class Dialect(NamedTuple):
    """How a text file is cut into fields; an empty quotation mark means that there is none."""

    separator: bytes
    quote: bytes
    header: bool


class Record(NamedTuple):
    """One row of the file: the line where it starts and its number of fields, 0 for a blank line."""

    line: int
    fields: int


def compression(path: Path) -> str:
    """`gzip`, `zstd` or nothing, from the file's first bytes: a name may lie."""
    with path.open("rb") as stream:
        start = stream.read(4)
    return "gzip" if start.startswith(_GZIP) else "zstd" if start.startswith(_ZSTD) else ""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked; what breaks while they are read is a `SourceError`."""
    packed = compression(path)
    try:
        if packed == "gzip":
            with gzip.open(path, "rb") as stream:
                yield stream  # type: ignore[misc]  # GzipFile reads as any binary stream does
        elif packed == "zstd":
            yield _open_zstd(path)
        else:
            with path.open("rb") as plain:
                yield plain
    except (EOFError, OSError) as cause:
        if isinstance(cause, (FileNotFoundError, PermissionError, IsADirectoryError)):
            raise
        raise damaged(path, cause) from cause


def damaged(path: Path, cause: BaseException) -> SourceError:
    detail = " ".join(str(cause).split())
    return SourceError(f"{path} is truncated or damaged ({detail}); fetch or write it again")


def first_lines(path: Path, encoding: str, count: int = 100) -> tuple[int, list[str]]:
    """The number of blank lines at the start, and the first lines after; encoding faults show later."""
    blank, lines = 0, list[str]()
    with open_bytes(path) as stream:
        for raw in stream:
            text = raw.removeprefix(_BOM).decode(encoding, errors="replace").rstrip("\r\n")
            if text:
                lines.append(text)
            elif not lines:
                blank += 1
            if len(lines) == count:
                break
    return blank, lines


def records(stream: BinaryIO, dialect: Dialect, path: Path) -> Iterator[Record]:
    """Each row, the header among them; refuses what is not UTF-8, and quotation marks without an end."""
    separator, quote = dialect.separator, dialect.quote
    line_number = 0
    lines = iter(stream)
    for raw in lines:
        line_number += 1
        start = line_number
        _check_utf8(raw, path, line_number)
        if not quote or quote not in raw:
            text = raw.rstrip(b"\r\n")
            yield Record(start, text.count(separator) + 1 if text else 0)
            continue
        row = raw
        while row.count(quote) % 2:
            # A quoted field may hold line ends: the row goes on until its marks are in pairs.
            raw = next(lines, b"")
            if not raw:
                raise SourceError(
                    f"{path}, line {start}: a quotation mark has no end; mend the line, or give quote='' "
                    "(--quote '') to read quotation marks as they are"
                )
            line_number += 1
            _check_utf8(raw, path, line_number)
            row += raw
        yield Record(start, _quoted_fields(row, dialect, path, start))


def find_fault(path: Path, payload: bytes | None, dialect: Dialect) -> list[int]:
    """Walks the file; raises at the first bad line, and otherwise gives the numbers of the blank rows."""
    width, row, blank = 0, 0, []
    with _stream(path, payload) as stream:
        for record in records(stream, dialect, path):
            if not width:
                # Blank lines before the first row are skipped by the reader, too.
                width = record.fields
                row = 0 if dialect.header else min(1, record.fields)
                continue
            if not record.fields:
                blank.append(row)
            elif record.fields != width:
                raise SourceError(
                    f"{path}, line {record.line}: {record.fields} fields where the first line has {width}; "
                    "mend the line, or give the right separator"
                )
            row += 1
    return blank


def line_of_row(path: Path, payload: bytes | None, dialect: Dialect, row: int) -> int:
    """The line on which data row `row` (from 0, blank lines not counted) starts."""
    with _stream(path, payload) as stream:
        rows = (record.line for record in records(stream, dialect, path) if record.fields)
        for number, line in enumerate(rows):
            if number == row + dialect.header:
                return line
    raise IndexError(row)


def count_byte(path: Path, payload: bytes | None, byte: bytes) -> int:
    """How often a byte occurs, without holding the file."""
    if payload is not None:
        return payload.count(byte)
    total = 0
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total += int(np.count_nonzero(np.frombuffer(block, np.uint8) == byte[0]))
    return total


@contextmanager
def _stream(path: Path, payload: bytes | None) -> Iterator[BinaryIO]:
    if payload is not None:
        yield io.BytesIO(payload)
    else:
        with open_bytes(path) as stream:
            yield stream


def _check_utf8(raw: bytes, path: Path, line: int) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        likely = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
        raise SourceError(
            f"{path}, line {line}: byte {cause.start + 1} (0x{raw[cause.start]:02x}) is not UTF-8; give the "
            f"encoding, for example encoding='{likely}' (--encoding {likely})"
        ) from cause


def _quoted_fields(row: bytes, dialect: Dialect, path: Path, line: int) -> int:
    text = io.StringIO(row.decode("utf-8"), newline="")
    rows = list(csv.reader(text, delimiter=dialect.separator.decode(), quotechar=dialect.quote.decode()))
    if len(rows) != 1:
        # The marks were in pairs only across lines, though the first of them did not start a field.
        raise SourceError(
            f"{path}, line {line}: a stray quotation mark; mend the line, or give quote='' (--quote '') to "
            "read quotation marks as they are"
        )
    return len(rows[0])


def _open_zstd(path: Path) -> BinaryIO:
    """Python 3.11 cannot unpack zstd itself: Arrow can, and Polars can where the text is UTF-8."""
    try:
        import pyarrow as pa
    except ImportError:
        try:
            text = pl.read_lines(path)["line"].str.join("\n").item()
        except pl.exceptions.ComputeError as cause:
            raise SourceError(
                f"{path} is zstd and not UTF-8; unpack it, or install Arrow: pip install 'hdccf[arrow]'"
            ) from cause
        return io.BytesIO(str(text).encode())
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))

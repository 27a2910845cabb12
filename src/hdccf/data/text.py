"""Delimited text and JSON Lines as tables: plain or compressed, in any encoding; Polars does the parsing.

Polars does not say which line of a bad file is wrong and why: such a file is read once more, line by line.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hdccf.console import note
from hdccf.data.columns import Columns, OpenTable, Table, TextOptions
from hdccf.errors import SourceError, one_line

_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"
_STAND_IN = b"\x1f"  # ASCII's "unit separator", which no text holds
_SEPARATORS = ("\t", ",", ";", "|", "::", " ")
_SAMPLE = 100  # lines from which separator, header and types are guessed
_BLOCK = 1 << 20
_WHOLE = re.compile(r"\s*-?\d{1,18}\s*")
_NUMBER_OR_TIME = re.compile(r"\s*(-?\d+(\.\d+)?([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?)\s*")
_MEND_JSON = 'mend the line: one object on each, such as {"user": 1, "item": 2}'
_NO_QUOTE = "mend the line, or give quote='' (--quote '') to read quotation marks as they are"
_READ_FAILED = (OSError, pl.exceptions.PolarsError)


def damaged(path: Path, cause: BaseException) -> SourceError:
    """The error for a file that breaks off or cannot be unpacked."""
    return SourceError(f"{path} is truncated or damaged ({one_line(cause)}); fetch or write it again")


class TextFile:
    """A text file; `content` is its text as UTF-8 where Polars cannot read the file as it is."""

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        try:
            "".encode(encoding)
        except LookupError as cause:
            raise SourceError(
                f"encoding={encoding!r} is unknown; give one such as utf-8, latin-1 or cp1252"
            ) from cause
        self.path = path
        is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig", "ascii")
        self.content: bytes | None = None if is_utf8 else self._decode(encoding)

    @property
    def source(self) -> Path | bytes:
        """What Polars can read."""
        return self.path if self.content is None else self.content

    @property
    def compression(self) -> str:
        """`gzip`, `zstd` or nothing, from the first bytes: a name may be wrong."""
        with self.path.open("rb") as stream:
            start = stream.read(4)
        return "gzip" if start.startswith(_GZIP) else "zstd" if start.startswith(_ZSTD) else ""

    def lines(self) -> Iterator[bytes]:
        """Each line with its end."""
        with self._open() as stream:
            yield from stream

    def read(self) -> bytes:
        """All of the text."""
        with self._open() as stream:
            return stream.read()

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            with self._stream() as stream:
                yield stream
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except (EOFError, OSError) as cause:
            raise damaged(self.path, cause) from cause

    def _stream(self) -> BinaryIO:
        if self.content is not None:
            return io.BytesIO(self.content)
        if self.compression == "gzip":
            return gzip.open(self.path, "rb")  # type: ignore[return-value]  # reads as any binary stream does
        return _open_zstd(self.path) if self.compression == "zstd" else self.path.open("rb")

    def _decode(self, encoding: str) -> bytes:
        self.content = None
        raw = self.read()
        try:
            return raw.decode(encoding).encode()
        except UnicodeDecodeError as cause:
            line = raw.count(b"\n", 0, cause.start) + 1
            raise SourceError(
                f"{self.path}, line {line}: byte 0x{raw[cause.start]:02x} does not fit "
                f"encoding={encoding!r}; give the right one"
            ) from cause

    def one_byte(self, separator: str) -> bytes:
        """The separator as Polars wants it; one of several bytes is replaced in the text."""
        raw = separator.encode()
        if len(raw) == 1:
            return raw
        text = self.read()
        if _STAND_IN in text:
            raise SourceError(
                f"{self.path} holds the control character 0x1f, so {separator!r} cannot be its separator"
            )
        self.content = text.replace(raw, _STAND_IN)
        return _STAND_IN

    def count(self, byte: bytes) -> int:
        """How often a byte occurs in the file, which must not be compressed, without holding the file."""
        if self.content is not None:
            return self.content.count(byte)
        total = 0
        with self.path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                total += int(np.count_nonzero(np.frombuffer(block, np.uint8) == byte[0]))
        return total


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


# -- delimited text ------------------------------------------------------------------------------------------


def open_csv(path: Path, options: TextOptions, separator: str | None = None) -> OpenTable:
    """A file of fields with separators. `separator` is what its name suggests, where nothing was given."""
    if len(options.quote.encode()) > 1:
        raise SourceError(f"quote={options.quote!r} is no quotation mark; give one character, or '' for none")
    file = TextFile(path, options.encoding)
    separator = options.separator or separator or _guess_separator(file, options.quote)
    table = _Csv(file, file.one_byte(separator), options.quote.encode())
    head = table.head()
    table.header = _has_header(head, path) if options.header is None else options.header
    names = (
        _unique_names(head.row(0)) if table.header else [str(number) for number in range(1, head.width + 1)]
    )
    samples = head.slice(1) if table.header else head
    if not samples.height:
        raise SourceError(f"{path} has a header and no rows; give a file with rows of user and item")

    def fetch(columns: Columns) -> Table:
        return Table(table.fetch(columns, names, samples), table.locate)

    return OpenTable(str(path), names, fetch, None if table.header else head.row(0), typed=False)


class _Csv:
    """A file of fields; an empty quotation mark means that there is none."""

    def __init__(self, file: TextFile, separator: bytes, quote: bytes) -> None:
        self.file, self.separator, self.quote = file, separator, quote
        self.header = False
        self.blank_lines = 0
        """Before the first row; without a header Polars would take them for rows of one field."""
        self.sample = self._first_lines()

    def _first_lines(self) -> bytes:
        sample: list[bytes] = []
        for raw in self.file.lines():
            self.blank_lines += self.blank_lines == len(sample) and _is_blank(raw)
            sample.append(raw)
            if len(sample) == self.blank_lines + _SAMPLE:
                break
        if len(sample) == self.blank_lines:
            raise _empty(self.file.path)
        return b"".join(sample)

    def head(self) -> pl.DataFrame:
        """The first rows as text, the header among them."""
        # Of a large file Polars would parse far more than the first rows; quoted fields may go on after them.
        source = self.file.source if self.quote and self.quote in self.sample else self.sample
        try:
            return self._scan(source).head(_SAMPLE).collect()
        except _READ_FAILED as cause:
            raise self._explain(cause) from cause

    def fetch(self, columns: Columns, names: Sequence[str], samples: pl.DataFrame) -> pl.DataFrame:
        """The chosen columns; refuses ragged rows, which Polars reads silently, and drops blank lines."""
        # Polars has its own way with repeated names, so columns are matched by their place.
        own = self._scan(self.file.source).collect_schema().names()
        position = dict(zip(names, own, strict=True))
        types: dict[str, Any] = {}
        if columns.time is not None and _all_whole(samples.to_series(names.index(columns.time))):
            types = {position[columns.time]: pl.Int64}
        # The last column tells whether a row is too short: its missing fields are read as nulls.
        wanted = list(dict.fromkeys([*columns.names, names[-1]]))
        try:
            try:
                frame = self._read([position[name] for name in wanted], types)
            except pl.exceptions.ComputeError:
                # Perhaps only a time that is no number: as text it can be shown. Anything else fails again.
                frame = self._read([position[name] for name in wanted], {})
        except _READ_FAILED as cause:
            raise self._explain(cause) from cause
        frame.columns = wanted
        if frame[names[-1]].null_count() or self._may_be_too_wide(frame, len(names)):
            blank = self.check_rows()
            frame = frame.with_row_index("").filter(~pl.col("").is_in(blank)).drop("") if blank else frame
        return frame.select(columns.names)

    def _scan(self, source: Path | bytes, types: dict[str, Any] | None = None) -> pl.LazyFrame:
        return pl.scan_csv(
            source,
            has_header=self.header,
            skip_rows=0 if self.header else self.blank_lines,
            separator=self.separator.decode(),
            quote_char=self.quote.decode() or None,
            schema_overrides=types or {},
            infer_schema=False,
            glob=False,
        )

    def _read(self, wanted: list[str], types: dict[str, Any]) -> pl.DataFrame:
        return self._scan(self.file.source, types).select(wanted).collect()

    def _may_be_too_wide(self, frame: pl.DataFrame, width: int) -> bool:
        """Whether rows may hold more fields than the first; Polars sees it where it reads every column."""
        if frame.width == width:
            return False
        if self.file.content is None and self.file.compression:
            return True
        return self.file.count(self.separator) != (frame.height + self.header) * (width - 1)

    # -- line by line ----------------------------------------------------------------------------------------

    def locate(self, row: int) -> str:
        """The file and the line on which data row `row` (from 0, blank lines not counted) starts."""
        filled = (line for line, fields in self._rows() if fields)
        return f"{self.file.path}, line {next(islice(filled, row + self.header, None))}"

    def check_rows(self) -> list[int]:
        """Raises at the first line that is wrong, and otherwise gives the numbers of the blank rows."""
        width, row, blank = 0, 0, []
        for line, fields in self._rows():
            if not width:
                # Blank lines before the first row are skipped by Polars, too.
                width = fields
                row = 0 if self.header else min(1, fields)
                continue
            if not fields:
                blank.append(row)
            elif fields != width:
                raise SourceError(
                    f"{self.file.path}, line {line}: {fields} fields where the first line has {width}; "
                    "mend the line, or give the right separator"
                )
            row += 1
        return blank

    def _rows(self) -> Iterator[tuple[int, int]]:
        """The line where each row starts, header included, and its number of fields; 0 where it is blank."""
        lines = enumerate(self.file.lines(), start=1)
        for start, row in lines:
            line, raw = start, row
            _check_utf8(raw, self.file.path, line)
            while self.quote and row.count(self.quote) % 2:
                # A quoted field may hold line ends: the row goes on until its marks are in pairs.
                line, raw = next(lines, (line, b""))
                if not raw:
                    raise SourceError(
                        f"{self.file.path}, line {start}: a quotation mark has no end; {_NO_QUOTE}"
                    )
                _check_utf8(raw, self.file.path, line)
                row += raw
            yield start, self._count_fields(row, start)

    def _count_fields(self, row: bytes, line: int) -> int:
        if not self.quote or self.quote not in row:
            text = row.rstrip(b"\r\n")
            return text.count(self.separator) + 1 if text else 0
        stream = io.StringIO(row.decode("utf-8"), newline="")
        rows = list(csv.reader(stream, delimiter=self.separator.decode(), quotechar=self.quote.decode()))
        if len(rows) != 1:
            # The marks were in pairs only across lines, though the first of them did not start a field.
            raise SourceError(f"{self.file.path}, line {line}: a stray quotation mark; {_NO_QUOTE}")
        return len(rows[0])

    def _explain(self, cause: Exception) -> SourceError:
        """What is wrong with a file that could not be read: the line where it can be told."""
        if isinstance(cause, OSError):
            return damaged(self.file.path, cause)
        try:
            self.check_rows()
        except SourceError as fault:
            return fault
        return SourceError(f"{self.file.path} cannot be read as text with separators ({one_line(cause)})")


def _empty(path: Path) -> SourceError:
    return SourceError(f"{path} is empty; give a file with rows of user and item")


def _is_blank(raw: bytes) -> bool:
    return not raw.removeprefix(_BOM).rstrip(b"\r\n")


def _guess_separator(file: TextFile, quote: str) -> str:
    """The separator that occurs in the first line and, outside quotation marks, as often in the others."""
    filled = (raw.removeprefix(_BOM).rstrip(b"\r\n") for raw in file.lines() if not _is_blank(raw))
    lines = [raw.decode(errors="replace") for raw in islice(filled, 20)]
    if not lines:
        raise _empty(file.path)
    mark = re.escape(quote)
    bare = [re.sub(f"{mark}[^{mark}]*{mark}", "", line) for line in lines] if quote else lines
    scores = {}
    for separator in _SEPARATORS:
        counts = [line.count(separator) for line in bare]
        if counts[0]:
            scores[separator] = sum(count == counts[0] for count in counts)
    if not scores:
        raise SourceError(
            f"{file.path}, line 1: no separator in {lines[0][:60]!r}; "
            "give separator= (--separator), or format="
        )
    best = max(scores, key=lambda separator: scores[separator])
    if best not in ",\t":
        note(f"{file.path}: took {best!r} as the separator")
    return best


def _has_header(head: pl.DataFrame, path: Path) -> bool:
    if not any(_NUMBER_OR_TIME.fullmatch(name or "") for name in head.row(0)):
        return True
    note(f"{path}: its first line holds values, so it has no header; else give header=True (--header)")
    return False


def _check_utf8(raw: bytes, path: Path, line: int) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        likely = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
        raise SourceError(
            f"{path}, line {line}: byte {cause.start + 1} (0x{raw[cause.start]:02x}) is not UTF-8; give the "
            f"encoding, for example encoding='{likely}' (--encoding {likely})"
        ) from cause


def _unique_names(names: Sequence[str | None]) -> list[str]:
    """The header's names; one that is missing or repeated gets its number, so that each can be asked for."""
    unique: list[str] = []
    for number, name in enumerate(names, start=1):
        name = (name or "").strip()
        unique.append(name if name and name not in unique else f"{name}#{number}")
    return unique


def _all_whole(values: pl.Series) -> bool:
    return all(_WHOLE.fullmatch(value or "") for value in values)


# -- JSON Lines ----------------------------------------------------------------------------------------------


def open_jsonl(path: Path, options: TextOptions) -> OpenTable:
    """One JSON object a line; ids and times may be numbers or text."""
    file = TextFile(path, options.encoding)
    try:
        lazy = pl.scan_ndjson(file.source)
        names = lazy.collect_schema().names()
    except _READ_FAILED as cause:
        raise _explain_json(file, cause) from cause

    def locate(row: int) -> str:
        filled = (line for line, raw in enumerate(file.lines(), start=1) if raw.strip())
        return f"{path}, line {next(islice(filled, row, None))}"

    def fetch(columns: Columns) -> Table:
        try:
            try:
                frame = lazy.select(columns.names).collect()
            except pl.exceptions.ComputeError:
                # A column whose later values are of another type than the first hundred: look at all of them.
                everything = pl.scan_ndjson(file.source, infer_schema_length=None)
                frame = everything.select(columns.names).collect()
        except _READ_FAILED as cause:
            raise _explain_json(file, cause) from cause
        return Table(frame, locate)

    return OpenTable(str(path), names, fetch)


def _explain_json(file: TextFile, cause: Exception) -> SourceError:
    """The first line that is no JSON object."""
    if isinstance(cause, OSError):
        return damaged(file.path, cause)
    seen = False
    try:
        for line, raw in enumerate(file.lines(), start=1):
            if not raw.strip():
                continue
            seen = True
            fault = _json_fault(raw)
            if fault:
                return SourceError(f"{file.path}, line {line}: {fault}")
    except SourceError as fault_of_stream:
        return fault_of_stream
    if not seen:
        return _empty(file.path)
    return SourceError(f"{file.path} cannot be read as JSON Lines ({one_line(cause)})")


def _json_fault(raw: bytes) -> str:
    """What keeps a line from being a JSON object; empty if nothing does."""
    try:
        return "" if isinstance(json.loads(raw), dict) else f"it is no JSON object; {_MEND_JSON}"
    except UnicodeDecodeError:
        return "it is not UTF-8; give encoding=, for example encoding='latin-1' (--encoding latin-1)"
    except json.JSONDecodeError as error:
        return f"it is no JSON ({error.msg}, character {error.pos + 1}); {_MEND_JSON}"
    except ValueError as error:
        return f"it is no JSON ({error}); {_MEND_JSON}"

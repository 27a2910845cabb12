"""Delimited text and JSON Lines as tables: plain or compressed, in any encoding; Polars does the parsing."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from hdccf.console import note
from hdccf.data.columns import Columns, OpenTable, Table, TextOptions
from hdccf.data.lines import (
    Dialect,
    compression,
    count_byte,
    damaged,
    find_fault,
    first_lines,
    line_of_row,
    open_bytes,
)
from hdccf.errors import SourceError

_SEPARATORS = ("\t", ",", ";", "|", "::", " ")
_STAND_IN = b"\x1f"  # "unit separator": what ASCII set aside for this, and no text holds
_HEAD = 100  # rows that are looked at first
_MEND = 'mend the line: one object on each, such as {"user": 1, "item": 2}'
_BEGINNING = 1 << 16  # bytes that nearly always hold so many
_WHOLE = re.compile(r"\s*-?\d{1,18}\s*")
_NUMBER_OR_TIME = re.compile(r"\s*(-?\d+(\.\d+)?([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?)\s*")


def open_csv(path: Path, options: TextOptions, separator: str | None = None) -> OpenTable:
    """A file of fields with separators. `separator` is what its name suggests, where nothing was given."""
    blank_lines, lines = first_lines(path, _known_encoding(options.encoding))
    if not lines:
        raise SourceError(f"{path} is empty; give a file with rows of user and item")
    separator = options.separator or separator or _guess_separator(lines, options.quote, path)
    dialect, payload = _dialect(path, options, separator)
    reader = _Reader(path, payload, dialect, blank_lines)
    head = reader.head()
    header = options.header
    if header is None:
        header = not any(_NUMBER_OR_TIME.fullmatch(name or "") for name in head.row(0))
        if not header:
            note(
                f"{path}: its first line holds values, so it has no header; else give header=True (--header)"
            )
    reader.dialect = dialect._replace(header=header)
    names = _unique_names(head.row(0)) if header else [str(number) for number in range(1, head.width + 1)]
    samples = head.slice(1) if header else head
    if not samples.height:
        raise SourceError(f"{path} has a header and no rows; give a file with rows of user and item")

    def fetch(columns: Columns) -> Table:
        return reader.fetch(columns, names, samples)

    return OpenTable(str(path), names, fetch, None if header else head.row(0), typed=False)


class _Reader:
    """One CSV file; `payload` is its text as UTF-8 where it had to be converted first."""

    def __init__(self, path: Path, payload: bytes | None, dialect: Dialect, blank_lines: int) -> None:
        self.path, self.payload, self.dialect = path, payload, dialect
        self.blank_lines = blank_lines
        """Before the first row; without a header Polars would take them for rows of one field."""

    def head(self) -> pl.DataFrame:
        """The first rows as text, the header among them."""
        try:
            return self._scan(header=False, source=self._beginning()).head(_HEAD).collect()
        except (OSError, pl.exceptions.PolarsError) as cause:
            raise self._explain(cause) from cause

    def _beginning(self) -> bytes | None:
        """The first lines, where they do: of a large file Polars parses far more than it is asked for."""
        if self.payload is not None or compression(self.path):
            return None
        with self.path.open("rb") as stream:
            start = stream.read(_BEGINNING)
        quoted = bool(self.dialect.quote) and self.dialect.quote in start
        if quoted or start.count(b"\n") <= _HEAD + self.blank_lines:
            return None
        return start[: start.rfind(b"\n") + 1]

    def fetch(self, columns: Columns, names: Sequence[str], samples: pl.DataFrame) -> Table:
        # Polars has its own way with repeated names, so columns are matched by their place.
        own = self._scan(header=self.dialect.header).collect_schema().names()
        position = dict(zip(names, own, strict=True))
        samples = samples.rename(dict(zip(samples.columns, own, strict=True)))
        types: dict[str, pl.DataType | type[pl.DataType]] = {}
        if columns.time is not None and _all_whole(samples[position[columns.time]]):
            types[position[columns.time]] = pl.Int64
        # The last column tells whether a row is too short: its missing fields are read as nulls.
        wanted = list(dict.fromkeys([*columns.names, names[-1]]))
        try:
            try:
                frame = self._read([position[name] for name in wanted], types)
            except pl.exceptions.ComputeError:
                # Perhaps only a time that is no number: as text it can be shown. Anything else fails again.
                frame = self._read([position[name] for name in wanted], {})
            frame.columns = wanted
            frame = self._without_blanks(frame, len(names))
        except (OSError, pl.exceptions.PolarsError) as cause:
            raise self._explain(cause) from cause
        return Table(frame.select(columns.names), self._locate)

    def _scan(
        self, *, header: bool, types: dict[str, Any] | None = None, source: bytes | None = None
    ) -> pl.LazyFrame:
        """The file, or `source` in its place."""
        source = self.payload if source is None else source
        return pl.scan_csv(
            self.path if source is None else source,
            has_header=header,
            skip_rows=0 if header else self.blank_lines,
            separator=self.dialect.separator.decode(),
            quote_char=self.dialect.quote.decode() or None,
            schema_overrides=types or {},
            infer_schema=False,
            glob=False,
        )

    def _read(self, wanted: list[str], types: dict[str, Any]) -> pl.DataFrame:
        return self._scan(header=self.dialect.header, types=types).select(wanted).collect()

    def _without_blanks(self, frame: pl.DataFrame, width: int) -> pl.DataFrame:
        """Refuses ragged rows, which Polars reads silently; drops blank lines, which it reads as nulls."""
        if frame.columns and frame[frame.columns[-1]].null_count() == 0 and not self._too_wide(frame, width):
            return frame
        blank = find_fault(self.path, self.payload, self.dialect)
        if not blank:
            return frame
        return frame.with_row_index("").filter(~pl.col("").is_in(blank)).drop("")

    def _too_wide(self, frame: pl.DataFrame, width: int) -> bool:
        """Whether rows may hold more fields than the first; Polars sees it where it reads every column."""
        if frame.width == width:
            return False
        if self.payload is None and compression(self.path):
            return True
        separators = count_byte(self.path, self.payload, self.dialect.separator)
        return separators != (frame.height + self.dialect.header) * (width - 1)

    def _locate(self, row: int) -> str:
        return f"{self.path}, line {line_of_row(self.path, self.payload, self.dialect, row)}"

    def _explain(self, cause: Exception) -> SourceError:
        """What is wrong with a file that could not be read: the line where it can be told."""
        if isinstance(cause, OSError):
            return damaged(self.path, cause)
        try:
            find_fault(self.path, self.payload, self.dialect)
        except SourceError as fault:
            return fault
        return SourceError(
            f"{self.path} cannot be read as text with separators ({' '.join(str(cause).split())})"
        )


def open_jsonl(path: Path, options: TextOptions) -> OpenTable:
    """One JSON object a line; ids and times may be numbers or text."""
    source: Path | bytes = path
    if not _is_utf8(options.encoding):
        source = _decoded(path, options.encoding)
    try:
        lazy = pl.scan_ndjson(source)
        names = lazy.collect_schema().names()
    except (OSError, pl.exceptions.PolarsError) as cause:
        raise _explain_json(path, source, cause) from cause

    def fetch(columns: Columns) -> Table:
        try:
            try:
                frame = lazy.select(columns.names).collect()
            except pl.exceptions.ComputeError:
                # A column whose later values are of another type than the first hundred: look at all of them.
                everything = pl.scan_ndjson(source, infer_schema_length=None)
                frame = everything.select(columns.names).collect()
        except (OSError, pl.exceptions.PolarsError) as cause:
            raise _explain_json(path, source, cause) from cause
        return Table(frame, lambda row: f"{path}, line {_json_line(path, source, row)}")

    return OpenTable(str(path), names, fetch)


def _guess_separator(lines: list[str], quote: str, path: Path) -> str:
    """The separator that occurs in the first line and, outside quotation marks, as often in the others."""
    lines = lines[:20]
    bare = (
        [re.sub(f"{re.escape(quote)}[^{re.escape(quote)}]*{re.escape(quote)}", "", line) for line in lines]
        if quote
        else lines
    )
    scores = {}
    for separator in _SEPARATORS:
        counts = [line.count(separator) for line in bare]
        if counts[0]:
            scores[separator] = sum(count == counts[0] for count in counts)
    if not scores:
        raise SourceError(
            f"{path}, line 1: no separator in {lines[0][:60]!r}; give separator= (--separator), or format="
        )
    best = max(scores, key=lambda separator: scores[separator])
    if best not in ",\t":
        note(f"{path}: took {best!r} as the separator")
    return best


def _dialect(path: Path, options: TextOptions, separator: str) -> tuple[Dialect, bytes | None]:
    """The dialect, and the file's text where Polars cannot read the file as it is."""
    if len(options.quote.encode()) > 1:
        raise SourceError(f"quote={options.quote!r} is no quotation mark; give one character, or '' for none")
    mark = options.quote.encode()
    payload = None if _is_utf8(options.encoding) else _decoded(path, options.encoding)
    raw = separator.encode()
    if len(raw) > 1:
        if payload is None:
            with open_bytes(path) as stream:
                payload = stream.read()
        if _STAND_IN in payload:
            raise SourceError(
                f"{path} holds the control character 0x1f, so {separator!r} cannot be its separator"
            )
        payload, raw = payload.replace(raw, _STAND_IN), _STAND_IN
    return Dialect(raw, mark, header=False), payload


def _decoded(path: Path, encoding: str) -> bytes:
    with open_bytes(path) as stream:
        raw = stream.read()
    try:
        return raw.decode(encoding).encode()
    except UnicodeDecodeError as cause:
        line = raw.count(b"\n", 0, cause.start) + 1
        raise SourceError(
            f"{path}, line {line}: byte 0x{raw[cause.start]:02x} does not fit encoding={encoding!r}; "
            "give the right one"
        ) from cause


def _known_encoding(encoding: str) -> str:
    try:
        "".encode(encoding)
    except LookupError as cause:
        raise SourceError(
            f"encoding={encoding!r} is unknown; give one such as utf-8, latin-1 or cp1252"
        ) from cause
    return encoding


def _is_utf8(encoding: str) -> bool:
    return _known_encoding(encoding).lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig", "ascii")


def _unique_names(names: Sequence[str | None]) -> list[str]:
    """The header's names; one that is missing or repeated gets its number, so that each can be asked for."""
    unique: list[str] = []
    for number, name in enumerate(names, start=1):
        name = (name or "").strip()
        unique.append(name if name and name not in unique else f"{name}#{number}")
    return unique


def _all_whole(values: pl.Series) -> bool:
    return all(_WHOLE.fullmatch(value or "") for value in values)


def _json_records(path: Path, source: Path | bytes) -> Iterator[tuple[int, bytes]]:
    if isinstance(source, bytes):
        yield from enumerate(source.split(b"\n"), start=1)
    else:
        with open_bytes(path) as stream:
            yield from enumerate(stream, start=1)


def _json_line(path: Path, source: Path | bytes, row: int) -> int:
    filled = (line for line, raw in _json_records(path, source) if raw.strip())
    return next(line for number, line in enumerate(filled) if number == row)


def _json_fault(error: ValueError) -> str:
    return (
        f"{error.msg}, character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
    )


def _explain_json(path: Path, source: Path | bytes, cause: Exception) -> SourceError:
    """The first line that is no JSON object."""
    if isinstance(cause, OSError):
        return damaged(path, cause)
    seen = 0
    try:
        for line, raw in _json_records(path, source):
            if not raw.strip():
                continue
            seen += 1
            try:
                fault = None if isinstance(json.loads(raw), dict) else f"it is no JSON object; {_MEND}"
            except UnicodeDecodeError:
                fault = "it is not UTF-8; give encoding=, for example encoding='latin-1' (--encoding latin-1)"
            except ValueError as error:
                fault = f"it is no JSON ({_json_fault(error)}); {_MEND}"
            if fault:
                return SourceError(f"{path}, line {line}: {fault}")
    except SourceError as fault_of_stream:
        return fault_of_stream
    if not seen:
        return SourceError(f"{path} is empty; give a file with rows of user and item")
    return SourceError(f"{path} cannot be read as JSON Lines ({' '.join(str(cause).split())})")

"""Files as tables: delimited text, JSON Lines and Parquet, plain or compressed; Polars does the parsing.

Polars does not say which line of a bad file is wrong and why: such a file is read once more, line by line.
"""

import csv
import gzip
import io
import json
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from hdccf.console import note
from hdccf.data.columns import OpenTable, Table, TextOptions
from hdccf.data.parquet import check_headers
from hdccf.errors import SourceError, one_line

FORMATS = {
    "csv": {".csv", ".txt", ".dat", ".data", ".rating", ".inter"},
    "tsv": {".tsv", ".tab"},
    "jsonl": {".jsonl", ".ndjson", ".json"},
    "parquet": {".parquet", ".pq"},
}
PACKED = {".gz", ".gzip", ".zst", ".zstd"}
_GZIP, _ZSTD, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"
_NOT_PLAIN = (_GZIP, _ZSTD, _BOM, b"\r", b"\n")
_STAND_IN = "\x1f"  # ASCII's "unit separator", which no text holds
_SEPARATORS = ("\t", ",", ";", "|", "::", " ")
_NUMBER_OR_TIME = re.compile(r"\s*(-?\d+(\.\d+)?([eE][+-]?\d+)?|\d{4}-\d\d-\d\d([T ].*)?)\s*")
_BLOCK = 1 << 20
_MEND_JSON = 'mend the line: one object on each, such as {"user": 1, "item": 2}'
_NO_QUOTE = "mend the line, or give quote='' (--quote '') to read quotation marks as they are"
_READ_FAILED = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def damaged(path: Path, cause: BaseException) -> SourceError:
    """The error for a file that breaks off or cannot be unpacked."""
    return SourceError(f"{path} is truncated or damaged ({one_line(cause)}); fetch or write it again")


def read_text(path: Path, encoding: str = "utf-8") -> bytes:
    """The text of a file as UTF-8 without a byte-order mark; gzip and zstd are unpacked."""
    try:
        "".encode(encoding)
    except LookupError as cause:
        raise SourceError(
            f"encoding={encoding!r} is unknown; give one such as utf-8, latin-1 or cp1252"
        ) from cause
    raw = path.read_bytes()
    # The first bytes tell the compression; a file's name may be wrong.
    try:
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
        elif raw.startswith(_ZSTD):
            raw = _unpack_zstd(path)
    except (EOFError, OSError, zlib.error) as cause:
        raise damaged(path, cause) from cause
    if _is_utf8(encoding):
        return raw.removeprefix(_BOM)
    try:
        return raw.decode(encoding).encode()
    except UnicodeDecodeError as cause:
        line = raw.count(b"\n", 0, cause.start) + 1
        raise SourceError(
            f"{path}, line {line}: byte 0x{raw[cause.start]:02x} does not fit encoding={encoding!r}; "
            "give the right one"
        ) from cause


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig", "ascii")


def _unpack_zstd(path: Path) -> bytes:
    """Python 3.11 cannot unpack zstd itself: Arrow can, and Polars can where the text is UTF-8."""
    try:
        import pyarrow as pa
    except ImportError:
        try:
            return str(pl.read_lines(path)["line"].str.join("\n").item()).encode()
        except pl.exceptions.ComputeError as cause:
            raise SourceError(
                f"{path} is zstd and not UTF-8; unpack it, or install Arrow: pip install 'hdccf[arrow]'"
            ) from cause
    with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
        return bytes(stream.read())


def _empty(path: Path) -> SourceError:
    return SourceError(f"{path} is empty; give a file with rows of user and item")


# -- delimited text ------------------------------------------------------------------------------------------


def open_csv(path: Path, options: TextOptions, separator: str | None = None) -> OpenTable:
    """A file of fields with separators. `separator` is what its name suggests, where nothing was given."""
    if len(options.quote.encode()) > 1:
        raise SourceError(f"quote={options.quote!r} is no quotation mark; give one character, or '' for none")
    file = _Csv(path, options, separator)
    first, *others = islice((fields for _, fields in file.rows() if fields), 2)
    holds_values = any(_NUMBER_OR_TIME.fullmatch(name) for name in first)
    file.header = not holds_values if options.header is None else options.header
    if options.header is None and holds_values:
        note(f"{path}: its first line holds values, so it has no header; else give header=True (--header)")
    if file.header and not others:
        raise SourceError(f"{path} has a header and no rows; give a file with rows of user and item")
    file.names = []
    for number, name in enumerate(map(str.strip, first), start=1):
        # One that is missing or repeated gets its number, so that each can be asked for.
        is_plain = name and name not in file.names
        file.names.append((name if is_plain else f"{name}#{number}") if file.header else str(number))
    return OpenTable(str(path), file.names, file.fetch, None if file.header else first, typed=False)


class _Csv:
    """A file of fields. An empty quotation mark means that there is none."""

    header: bool
    names: list[str]

    def __init__(self, path: Path, options: TextOptions, separator: str | None) -> None:
        self.path, self.quote, self.first_line = path, options.quote, 1
        with path.open("rb") as stream:
            start = stream.read(4)
        self.text: bytes | None = None
        """Where Polars cannot read the file as it is."""
        if not start or not _is_utf8(options.encoding) or start.startswith(_NOT_PLAIN):
            whole = read_text(path, options.encoding)
            self.text = whole.lstrip(b"\r\n")
            self.first_line += whole.count(b"\n", 0, len(whole) - len(self.text))
            if not self.text:
                raise _empty(path)
        self.separator = options.separator or separator or self._guess_separator()
        if len(self.separator.encode()) > 1:
            # Polars takes one byte only.
            text = path.read_bytes() if self.text is None else self.text
            if _STAND_IN.encode() in text:
                raise SourceError(
                    f"{path} holds the control character 0x1f, so {self.separator!r} cannot be its separator"
                )
            self.text = text.replace(self.separator.encode(), _STAND_IN.encode())
            self.separator = _STAND_IN

    def _open(self) -> BinaryIO:
        return self.path.open("rb") if self.text is None else io.BytesIO(self.text)

    def _guess_separator(self) -> str:
        """The separator that occurs in the first line and as often in the others, quoted fields apart."""
        with self._open() as stream:
            filled = (raw.rstrip(b"\r\n") for raw in stream if raw.rstrip(b"\r\n"))
            lines = [raw.decode(errors="replace") for raw in islice(filled, 20)]
        mark = re.escape(self.quote)
        bare = [re.sub(f"{mark}[^{mark}]*{mark}", "", line) for line in lines] if mark else lines
        scores = {}
        for separator in _SEPARATORS:
            counts = [line.count(separator) for line in bare]
            if counts[0]:
                scores[separator] = sum(count == counts[0] for count in counts)
        if not scores:
            raise SourceError(
                f"{self.path}, line 1: no separator in {lines[0][:60]!r}; "
                "give separator= (--separator), or format="
            )
        best = max(scores, key=lambda separator: scores[separator])
        if best not in ",\t":
            note(f"{self.path}: took {best!r} as the separator")
        return best

    def fetch(self, names: Sequence[str], integer: str | None) -> Table:
        """These columns; refuses ragged rows, which Polars reads silently, and drops blank lines."""
        # The last column tells whether a row is too short: its missing fields are read as nulls.
        wanted = list(dict.fromkeys([*names, self.names[-1]]))
        try:
            try:
                frame = self._scan(integer).select(wanted).collect()
            except pl.exceptions.ComputeError:
                frame = self._scan(None).select(wanted).collect()
        except _READ_FAILED as cause:
            self.check_rows()
            raise SourceError(
                f"{self.path} cannot be read as text with separators ({one_line(cause)})"
            ) from cause
        # Polars sees that a row has too many fields only where it reads every column.
        expected = (frame.height + self.header) * (len(self.names) - 1)
        too_wide = frame.width < len(self.names) and self._count_separators() != expected
        if (too_wide or frame[self.names[-1]].null_count()) and (blank := self.check_rows()):
            frame = frame.with_row_index("").filter(~pl.col("").is_in(blank))
        return Table(frame.select(names), self.locate)

    def _scan(self, integer: str | None) -> pl.LazyFrame:
        return pl.scan_csv(
            self.path if self.text is None else self.text,
            glob=False,
            has_header=self.header,
            new_columns=self.names,
            schema_overrides=[pl.Int64 if name == integer else pl.String for name in self.names],
            infer_schema=False,
            separator=self.separator,
            quote_char=self.quote or None,
        )

    def _count_separators(self) -> int:
        total, byte = 0, ord(self.separator)
        with self._open() as stream:
            while block := stream.read(_BLOCK):
                total += int(np.count_nonzero(np.frombuffer(block, np.uint8) == byte))
        return total

    def locate(self, row: int) -> str:
        """The file and the line on which data row `row` (from 0, blank lines not counted) starts."""
        filled = (line for line, fields in self.rows() if fields)
        return f"{self.path}, line {next(islice(filled, row + self.header, None))}"

    def check_rows(self) -> list[int]:
        """Raises at the first line that is wrong, and otherwise gives the numbers of the blank rows."""
        blank = []
        for row, (line, fields) in enumerate(self.rows()):
            if not fields:
                blank.append(row - self.header)
            elif len(fields) != len(self.names):
                raise SourceError(
                    f"{self.path}, line {line}: {len(fields)} fields where the first line has "
                    f"{len(self.names)}; mend the line, or give the right separator"
                )
        return blank

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """The line where each row starts, header included, and its fields; none where it is blank."""
        seen: list[str] = []

        def lines() -> Iterator[str]:
            with self._open() as stream:
                for raw in stream:
                    seen.append(raw.decode())
                    yield seen[-1]

        start = self.first_line
        quote: dict[str, Any] = {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        try:
            for fields in csv.reader(lines(), delimiter=self.separator, **quote):
                if self.quote and sum(line.count(self.quote) for line in seen) % 2:
                    raise SourceError(
                        f"{self.path}, line {start}: a quotation mark without a second one; {_NO_QUOTE}"
                    )
                yield start, fields
                start += len(seen)
                seen.clear()
        except csv.Error as cause:
            raise SourceError(f"{self.path}, line {start}: {one_line(cause)}; {_NO_QUOTE}") from cause
        except UnicodeDecodeError as cause:
            likely = "utf-16" if cause.object.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
            byte = f"byte {cause.start + 1} (0x{cause.object[cause.start]:02x})"
            raise SourceError(
                f"{self.path}, line {start + len(seen)}: {byte} is not UTF-8; give the encoding, for example "
                f"encoding='{likely}' (--encoding {likely})"
            ) from cause


# -- JSON Lines ----------------------------------------------------------------------------------------------


def open_jsonl(path: Path, options: TextOptions) -> OpenTable:
    """One JSON object a line; ids and times may be numbers or text."""
    text = read_text(path, options.encoding)
    try:
        columns = pl.scan_ndjson(text).collect_schema().names()
    except _READ_FAILED as cause:
        raise _explain_json(path, text, cause) from cause

    def locate(row: int) -> str:
        filled = (line for line, raw in enumerate(io.BytesIO(text), start=1) if raw.strip())
        return f"{path}, line {next(islice(filled, row, None))}"

    def fetch(names: Sequence[str], integer: str | None) -> Table:
        try:
            try:
                frame = pl.scan_ndjson(text).select(names).collect()
            except pl.exceptions.ComputeError:
                # A column whose later values are of another type than the first hundred: look at all of them.
                frame = pl.scan_ndjson(text, infer_schema_length=None).select(names).collect()
        except _READ_FAILED as cause:
            raise _explain_json(path, text, cause) from cause
        return Table(frame, locate)

    return OpenTable(str(path), columns, fetch)


def _explain_json(path: Path, text: bytes, cause: BaseException) -> SourceError:
    """The first line that is no JSON object."""
    if not text.strip():
        return _empty(path)
    for line, raw in enumerate(io.BytesIO(text), start=1):
        try:
            if not raw.strip() or isinstance(json.loads(raw), dict):
                continue
            fault = f"it is no JSON object; {_MEND_JSON}"
        except UnicodeDecodeError:
            fault = "it is not UTF-8; give encoding=, for example encoding='latin-1' (--encoding latin-1)"
        except json.JSONDecodeError as error:
            fault = f"it is no JSON ({error.msg}, character {error.pos + 1}); {_MEND_JSON}"
        return SourceError(f"{path}, line {line}: {fault}")
    return SourceError(f"{path} cannot be read as JSON Lines ({one_line(cause)})")


# -- files and data frames -----------------------------------------------------------------------------------


def open_paths(source: str, text: TextOptions, kind: str | None) -> OpenTable:
    """A file, the files of a folder, or those that a glob finds, as one table; `kind` is one of `FORMATS`."""
    if kind is not None and kind not in FORMATS:
        raise SourceError(f"format={kind!r} is unknown; choose one of {', '.join(sorted(FORMATS))}")
    files = _files(Path(source).expanduser(), source, kind)
    kinds = {kind or _format_of(file) for file in files}
    if len(kinds) > 1:
        raise SourceError(
            f"{source} holds {' and '.join(sorted(kinds))} files; read one format at a time, with a glob"
        )
    only = kinds.pop()
    return open_several([_open_file(file, only, text) for file in files], source)


def open_frame(frame: pl.DataFrame | pl.LazyFrame, name: str) -> OpenTable:
    """A data frame in memory, or a lazy one."""

    def fetch(names: Sequence[str], integer: str | None) -> Table:
        return Table(frame.lazy().select(names).collect(), lambda row: f"{name}, row {row + 1}")

    return OpenTable(name, frame.lazy().collect_schema().names(), fetch)


def _files(path: Path, source: str, kind: str | None) -> list[Path]:
    """The file itself, the files in a folder and its folders, or those that a glob finds; by name."""
    if path.is_file():
        return [path]
    if path.is_dir():
        endings = set().union(*FORMATS.values()) if kind is None else FORMATS[kind]
        # Writers of folders leave marks such as _SUCCESS and hidden files, which are no data.
        found = [
            file
            for file in sorted(path.rglob("*"))
            if _ending(file) in endings
            and file.is_file()
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        ]
        missing = f"the folder {source} holds no {kind or 'data'} files ({', '.join(sorted(endings))})"
    elif any(mark in source for mark in "*?["):
        pattern = str(path.relative_to(path.anchor))
        found = [file for file in sorted(Path(path.anchor).glob(pattern)) if file.is_file()]
        missing = f"no file matches {source}; check the pattern, seen from {Path.cwd()}"
    else:
        found, missing = [], f"there is no file or folder {source}; check the path, seen from {Path.cwd()}"
    if not found:
        raise SourceError(missing)
    return found


def _ending(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in PACKED]
    return suffixes[-1] if suffixes else ""


def _format_of(file: Path) -> str:
    for kind, endings in FORMATS.items():
        if _ending(file) in endings:
            return kind
    start = _start_of(file)
    return "parquet" if start == b"PAR1" else "jsonl" if start[:1] == b"{" else "csv"


def _start_of(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            start = stream.read(16)
    except OSError as cause:
        raise SourceError(f"{file} cannot be read ({cause.strerror}); check its permissions") from cause
    if not start:
        raise SourceError(f"{file} is empty; give a file with rows of user and item")
    if start.startswith(b"SQLite format 3"):
        raise SourceError(
            f"{file} is an SQLite database; say which rows to read, with {shlex.quote(str(file))} --query "
            f"'SELECT …', or in Python with hdccf.read_sql('SELECT …', 'sqlite:///{file}')"
        )
    return start[:4]


def _open_file(file: Path, kind: str, text: TextOptions) -> OpenTable:
    _start_of(file)
    if kind == "jsonl":
        return open_jsonl(file, text)
    if kind != "parquet":
        return open_csv(file, text, separator="\t" if kind == "tsv" else None)
    try:
        check_headers(file)
        opened = open_frame(pl.scan_parquet(file, glob=False), str(file))
    except _READ_FAILED as cause:
        raise damaged(file, cause) from cause

    def fetch(names: Sequence[str], integer: str | None) -> Table:
        try:
            return opened.fetch(names, integer)
        except _READ_FAILED as cause:
            raise damaged(file, cause) from cause

    return OpenTable(opened.name, opened.columns, fetch)


def open_several(parts: Sequence[OpenTable], name: str) -> OpenTable:
    """Files that hold parts of one table, one after another."""
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        if set(part.columns) != set(parts[0].columns):
            raise SourceError(
                f"{part.name} has the columns {', '.join(part.columns)}, but {parts[0].name} has "
                f"{', '.join(parts[0].columns)}; read files with the same columns"
            )

    def fetch(names: Sequence[str], integer: str | None) -> Table:
        tables = [part.fetch(names, integer) for part in parts]
        ends = np.cumsum([table.frame.height for table in tables])

        def locate(row: int) -> str:
            place = int(np.searchsorted(ends, row, side="right"))
            return tables[place].locate(row - int(ends[place]) + tables[place].frame.height)

        try:
            frame = pl.concat([table.frame for table in tables], how="vertical_relaxed")
        except pl.exceptions.PolarsError as cause:
            kinds = "; ".join(sorted({str(dict(table.frame.schema)) for table in tables}))
            raise SourceError(
                f"{name}: its files hold columns of different types ({kinds}); make them equal"
            ) from cause
        return Table(frame, locate)

    return OpenTable(name, parts[0].columns, fetch, parts[0].first_row, parts[0].typed)

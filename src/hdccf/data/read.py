"""The reader: files, folders, globs, data frames, Arrow tables and sparse matrices → `Interactions`."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.data.columns import (
    ALLOWED,
    BadTimeError,
    Columns,
    OpenTable,
    Table,
    TextOptions,
    choose_columns,
    to_microseconds,
)
from hdccf.data.ids import number_ids
from hdccf.data.interactions import IntArray, Interactions
from hdccf.data.text import damaged, open_csv, open_jsonl
from hdccf.errors import SourceError

FORMATS = {
    "csv": {".csv", ".txt", ".dat", ".data", ".rating", ".inter"},
    "tsv": {".tsv", ".tab"},
    "jsonl": {".jsonl", ".ndjson", ".json"},
    "parquet": {".parquet", ".pq"},
}
_PACKED = {".gz", ".gzip", ".zst", ".zstd"}
_FRAMES = "a path, a Polars or pandas data frame, an Arrow table, or a SciPy sparse matrix"


def read(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    title: str | int | None = None,
    minimum_rating: float | None = None,
    separator: str | None = None,
    header: bool | None = None,
    quote: str = '"',
    encoding: str = "utf-8",
    time_format: str | None = None,
    drop_nulls: bool = False,
    format: str | None = None,  # noqa: A002  # what everyone calls it
) -> Interactions:
    """Reads users, items and, where there are any, times and titles.

    Ids are numbered in order of first appearance; repeated pairs are merged and counted.

    Parameters
    ----------
    source
        A path (CSV and its relatives, JSON Lines, Parquet; plain, gzip or zstd), a folder or a glob of such
        files, a folder that `Interactions.save` wrote, a Polars or pandas data frame, an Arrow table, or a
        SciPy sparse matrix (rows are users).
    user, item, time, rating, title
        Columns, by name or by number from 1. Those that are not given are guessed from the usual names, and
        the guess is printed. `time=""` reads no times.
    minimum_rating
        Leaves out rows with a lower rating; without it every row counts.
    separator, header, quote, encoding
        How text files are written; the separator and whether there is a header are otherwise guessed.
        `quote=""` reads quotation marks as they are.
    time_format
        A strftime format for times in another order than ISO 8601, such as `"%d/%m/%Y %H:%M"`.
    drop_nulls
        Leaves out rows without user, item or time, which are otherwise refused.
    format
        `csv`, `tsv`, `jsonl` or `parquet`, where the file's name does not say so.

    Returns
    -------
    Interactions
        The pairs under contiguous ids, sorted by user and time.

    Examples
    --------
    >>> hdccf.read("ratings.csv", user="customer", item="sku", minimum_rating=4)
    """
    opened = _open(source, TextOptions(separator, header, quote, encoding), format)
    if isinstance(opened, Interactions):
        return opened
    return to_interactions(
        opened,
        {"user": user, "item": item, "time": time, "rating": rating, "title": title},
        minimum_rating=minimum_rating,
        time_format=time_format,
        drop_nulls=drop_nulls,
    )


def to_interactions(
    opened: OpenTable,
    given: Mapping[str, str | int | None],
    *,
    minimum_rating: float | None = None,
    time_format: str | None = None,
    drop_nulls: bool = False,
    sort_ids: bool = False,
) -> Interactions:
    """Chooses the columns of a table, reads them, and numbers the ids by first appearance or by value."""
    filtering = minimum_rating is not None
    columns = choose_columns(
        opened.columns, given, source=opened.name, need_rating=filtering, first_row=opened.first_row
    )
    if columns.rating is not None and not filtering:
        note(f"{opened.name}: every row counts, whatever its {columns.rating!r}, without minimum_rating")
    table = opened.fetch(columns)
    if not table.frame.height:
        raise SourceError(f"{opened.name} has no rows; give a source with rows of user and item")
    table = _without_nulls(table, columns, opened.name, filtering, drop_nulls)
    if not table.frame.height:
        raise SourceError(f"{opened.name} has no row without a missing value; give other columns")
    if columns.rating is not None and minimum_rating is not None:
        table = _at_least(table, columns.rating, minimum_rating, opened.name)
    times = _times(table, columns, opened.name, time_format)
    frame = table.frame

    def number(name: str) -> tuple[pl.Series, IntArray]:
        ids, codes = number_ids(frame[name], source=opened.name, typed=opened.typed)
        return (ids.sort(), _ranks(ids)[codes]) if sort_ids else (ids, codes)

    # Both columns at the same time: Polars and NumPy release the interpreter's lock.
    with ThreadPoolExecutor(2) as pool:
        (user_ids, users), (item_ids, items) = pool.map(number, (columns.user, columns.item))
    _refuse_single(user_ids, item_ids, columns, opened.name)
    titles = None if columns.title is None else _first_titles(frame[columns.title], items, len(item_ids))
    return Interactions.from_codes(
        users, items, user_ids=user_ids, item_ids=item_ids, times=times, titles=titles
    )


# -- opening -------------------------------------------------------------------------------------------------


def _open(source: Any, text: TextOptions, kind: str | None) -> OpenTable | Interactions:
    if isinstance(source, Interactions):
        return source
    if isinstance(source, (str, Path)):
        return _open_paths(str(source), text, kind)
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return open_frame(source, "the data frame")
    if hasattr(source, "tocoo") and hasattr(source, "nnz"):
        return open_frame(_matrix_frame(source), "the matrix")
    if hasattr(source, "__arrow_c_stream__"):
        return open_frame(pl.DataFrame(source), "the table")
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return open_frame(pl.from_pandas(source), "the data frame")
    raise SourceError(f"a {type(source).__name__} cannot be read; give {_FRAMES}")


def open_frame(frame: pl.DataFrame | pl.LazyFrame, name: str) -> OpenTable:
    """A data frame in memory, or a lazy one."""
    lazy = frame.lazy()

    def fetch(columns: Columns) -> Table:
        return Table(lazy.select(columns.names).collect(), lambda row: f"{name}, row {row + 1}")

    return OpenTable(name, lazy.collect_schema().names(), fetch)


def _matrix_frame(matrix: Any) -> pl.DataFrame:
    """The stored entries of a sparse matrix that are not zero, in order of row and column."""
    entries = matrix.tocsr().tocoo()
    stored = entries.data != 0
    return pl.DataFrame(
        {
            "user": entries.row[stored].astype(np.int64),
            "item": entries.col[stored].astype(np.int64),
            "weight": entries.data[stored].astype(np.float64),
        }
    )


def _open_paths(source: str, text: TextOptions, kind: str | None) -> OpenTable | Interactions:
    if kind is not None and kind not in FORMATS:
        raise SourceError(f"format={kind!r} is unknown; choose one of {', '.join(sorted(FORMATS))}")
    path = Path(source).expanduser()
    if path.is_dir() and (path / "meta.json").is_file():
        return Interactions.load(path)
    files = _files(path, source, kind)
    kinds = {kind or _format_of(file) for file in files}
    if len(kinds) > 1:
        raise SourceError(
            f"{source} holds {' and '.join(sorted(kinds))} files; read one format at a time, with a glob"
        )
    only = kinds.pop()
    return open_several([_open_file(file, only, text) for file in files], source)


def _files(path: Path, source: str, kind: str | None) -> list[Path]:
    """The file itself, the files in a folder and its folders, or those that a glob finds; by name."""
    if path.is_file():
        return [path]
    if path.is_dir():
        endings = set().union(*FORMATS.values()) if kind is None else FORMATS[kind]
        found = [
            file for file in sorted(path.rglob("*")) if _is_data(file, path) and _ending(file) in endings
        ]
        if not found:
            raise SourceError(
                f"the folder {source} holds no {kind or 'data'} files ({', '.join(sorted(endings))})"
            )
        return found
    if any(mark in source for mark in "*?["):
        anchor = Path(path.anchor) if path.anchor else Path()
        pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
        found = [file for file in sorted(anchor.glob(pattern)) if file.is_file()]
        if not found:
            raise SourceError(f"no file matches {source}; check the pattern, seen from {Path.cwd()}")
        return found
    raise SourceError(f"there is no file or folder {source}; check the path, seen from {Path.cwd()}")


def _is_data(file: Path, folder: Path) -> bool:
    """Writers of folders leave marks such as _SUCCESS and hidden files, which are no data."""
    return file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _ending(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
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
            start = stream.read(4)
    except OSError as cause:
        raise SourceError(f"{file} cannot be read ({cause.strerror}); check its permissions") from cause
    if not start:
        raise SourceError(f"{file} is empty; give a file with rows of user and item")
    return start


def _open_file(file: Path, kind: str, text: TextOptions) -> OpenTable:
    _start_of(file)
    if kind == "parquet":
        return _open_parquet(file)
    if kind == "jsonl":
        return open_jsonl(file, text)
    return open_csv(file, text, separator="\t" if kind == "tsv" else None)


def _open_parquet(path: Path) -> OpenTable:
    """One Parquet file; only the needed columns are read."""
    try:
        lazy = pl.scan_parquet(path, glob=False)
        names = lazy.collect_schema().names()
    except (OSError, pl.exceptions.PolarsError) as cause:
        raise damaged(path, cause) from cause

    def fetch(columns: Columns) -> Table:
        try:
            frame = lazy.select(columns.names).collect()
        except (OSError, pl.exceptions.PolarsError) as cause:
            raise damaged(path, cause) from cause
        return Table(frame, lambda row: f"{path}, row {row + 1}")

    return OpenTable(str(path), names, fetch)


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

    def fetch(columns: Columns) -> Table:
        tables = [part.fetch(columns) for part in parts]

        def locate(row: int) -> str:
            for table in tables:
                if row < table.frame.height:
                    return table.locate(row)
                row -= table.frame.height
            raise IndexError(row)

        try:
            frame = pl.concat([table.frame for table in tables], how="vertical_relaxed")
        except pl.exceptions.PolarsError as cause:
            kinds = "; ".join(sorted({str(dict(table.frame.schema)) for table in tables}))
            raise SourceError(
                f"{name}: its files hold columns of different types ({kinds}); make them equal"
            ) from cause
        return Table(frame, locate)

    return OpenTable(name, parts[0].columns, fetch, parts[0].first_row, parts[0].typed)


# -- rows ----------------------------------------------------------------------------------------------------


def _without_nulls(table: Table, columns: Columns, source: str, need_rating: bool, drop: bool) -> Table:
    """Refuses rows without user, item, time or (where it is needed) rating, or drops them and says so."""
    needed = [columns.user, columns.item, columns.time, columns.rating if need_rating else None]
    counts = {name: table.frame[name].null_count() for name in dict.fromkeys(needed) if name is not None}
    missing = {name: count for name, count in counts.items() if count}
    if not missing:
        return table
    listed = " and ".join(f"{count:,} in column {name!r}" for name, count in missing.items())
    empty = table.frame.select(pl.any_horizontal(pl.col(list(missing)).is_null())).to_series()
    if not drop:
        raise SourceError(
            f"{table.locate(int(empty.arg_max() or 0))}: missing value ({listed}, of {len(empty):,} rows); "
            "mend the source, or give drop_nulls=True (--drop-nulls) to leave such rows out"
        )
    note(f"{source}: left out {int(empty.sum()):,} of {len(empty):,} rows with a missing value ({listed})")
    return table.filter(~empty)


def _at_least(table: Table, rating: str, minimum: float, source: str) -> Table:
    values = table.frame[rating]
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False) if values.dtype == pl.String else values
    if not (numbers.dtype.is_numeric() or numbers.dtype == pl.Boolean):
        raise SourceError(f"{source}: column {rating!r} holds {values.dtype}; a rating must be a number")
    numbers = numbers.cast(pl.Float64)
    if numbers.null_count():
        row = int(numbers.is_null().arg_max() or 0)
        where = f"{table.locate(row)}, column {rating!r}"
        raise SourceError(f"{where}: {values[row]!r} is no number; mend it, or give another rating=")
    keep = numbers >= minimum
    if not keep.any():
        highest = float(numbers.to_numpy().max())
        raise SourceError(f"{source}: no {rating!r} is at least {minimum:g}; the highest is {highest:g}")
    return table if keep.all() else table.filter(keep)


def _times(table: Table, columns: Columns, source: str, time_format: str | None) -> NDArray[np.int64] | None:
    if columns.time is None:
        return None
    try:
        return to_microseconds(table.frame[columns.time], source=source, time_format=time_format)
    except BadTimeError as bad:
        raise SourceError(
            f"{table.locate(bad.row)}, column {columns.time!r}: {bad.value!r} is no time; {ALLOWED} are "
            "read, and other orders with time_format= (--time-format), for example '%d/%m/%Y %H:%M'"
        ) from bad


def _ranks(ids: pl.Series) -> IntArray:
    return ids.rank("ordinal").to_numpy().astype(np.int32) - np.int32(1)


def _first_titles(titles: pl.Series, items: IntArray, n_items: int) -> pl.Series:
    """The first title that is given for each item."""
    frame = pl.DataFrame({"item": items, "title": titles.cast(pl.String)}).drop_nulls()
    named = frame.unique("item", keep="first", maintain_order=True)
    every = pl.DataFrame({"item": np.arange(n_items, dtype=np.int32)})
    return every.join(named, on="item", how="left", maintain_order="left")["title"]


def _refuse_single(users: pl.Series, items: pl.Series, columns: Columns, source: str) -> None:
    for kind, name, ids in (("user", columns.user, users), ("item", columns.item, items)):
        if len(ids) < 2:
            raise SourceError(
                f"{source}: column {name!r} has one {kind} only, {ids[0]!r}; two are the least: give "
                f"more rows, or another column with {kind}= (--{kind})"
            )

"""What every source becomes first: named columns that can be fetched, and a name for each row's place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from hdccf.data.arrange import Coded
from hdccf.data.columns import Columns
from hdccf.data.lines import damaged
from hdccf.data.parquet import read_parquet
from hdccf.errors import SourceError


@dataclass(frozen=True)
class TextOptions:
    """How text files are to be read; None means: look at the file."""

    separator: str | None = None
    header: bool | None = None
    quote: str = '"'
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Table:
    """The columns that were asked for. `locate(row)` says where a row stands, for error messages."""

    frame: pl.DataFrame
    locate: Callable[[int], str]


@dataclass(frozen=True)
class Opened:
    """A source whose columns are known but not yet read."""

    name: str
    columns: Sequence[str]
    fetch: Callable[[Columns], Table]
    first_row: Sequence[object] | None = field(default=None)
    """Shown in place of names where the columns have none."""
    codes: Callable[[Columns], Coded | None] | None = field(default=None)
    """Straight to codes; gives nothing where the source is not large and plain enough for that."""


def open_frame(frame: pl.DataFrame | pl.LazyFrame, name: str) -> Opened:
    """A data frame that is at hand or can be computed."""
    lazy = frame.lazy()

    def fetch(columns: Columns) -> Table:
        return Table(lazy.select(columns.names).collect(), lambda row: f"{name}, row {row + 1}")

    return Opened(name, lazy.collect_schema().names(), fetch)


def open_parquet(path: Path) -> Opened:
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

    return Opened(str(path), names, fetch, codes=lambda columns: read_parquet(path, columns))


def open_several(parts: Sequence[Opened], name: str) -> Opened:
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

    return Opened(name, parts[0].columns, fetch, parts[0].first_row)

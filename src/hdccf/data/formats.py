"""The formats in which public data sets are published: options of the reader, and adjacency lists.

A rating is an interaction whatever its value, as in the paper. Ids are numbered in ascending order.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.columns import Columns, OpenTable, Table, TextOptions
from hdccf.data.download import find_file
from hdccf.data.interactions import Interactions
from hdccf.data.read import open_several, to_interactions
from hdccf.data.text import TextFile, open_csv
from hdccf.errors import SourceError

_AGAIN = "or get the file again"


@dataclass(frozen=True)
class Titles:
    """A table of items with their titles; columns are names or numbers from 1, as in `hdccf.read`."""

    file: str
    text: TextOptions
    item: str | int = 1
    title: str | int = 2
    year: str | int | None = None
    """A column of its own for the year, which goes behind the title."""

    def read(self, folder: Path) -> pl.DataFrame | None:
        """`item` and `title`; None where the file, which is optional, is not there."""
        path = find_file(folder, self.file)
        if path is None:
            return None
        table = open_csv(path, self.text)
        item, title = (_column(table, wanted) for wanted in (self.item, self.title))
        year = None if self.year is None else _column(table, self.year)
        fetched = _with_whole_numbers(table, (item,)).fetch(Columns(item, item, title=title, rating=year))
        shown = pl.col(title)
        if year is not None:
            known = pl.col(year).str.contains(r"^\d+$")
            shown = pl.when(known).then(pl.format("{} ({})", title, year)).otherwise(shown)
        titles = fetched.frame.select(pl.col(item).alias("item"), shown.alias("title"))
        return titles.unique("item", keep="last")


@dataclass(frozen=True)
class Delimited:
    """Files of one event a line; columns are names or numbers from 1, as in `hdccf.read`."""

    files: tuple[str, ...]
    """Several are read one after another: of events at the same time the later file's are the later ones."""
    text: TextOptions
    user: str | int = 1
    item: str | int = 2
    time: str | int = 4
    titles: Titles | None = None

    def __call__(self, folder: Path) -> Interactions:
        """The interactions in a folder with the files as they are published."""
        paths = [need_file(folder, name) for name in self.files]
        try:
            table = open_several([open_csv(path, self.text) for path in paths], str(folder))
            ids = tuple(_column(table, wanted) for wanted in (self.user, self.item))
            given = {"user": self.user, "item": self.item, "time": self.time, "title": ""}
            data = to_interactions(_with_whole_numbers(table, ids), given, sort_ids=True)
            titles = None if self.titles is None else self.titles.read(folder)
        except SourceError as cause:
            raise SourceError(f"{cause}; {_AGAIN}") from cause
        if titles is None:
            return data
        named = pl.DataFrame({"item": data.item_ids}).join(
            titles, on="item", how="left", maintain_order="left"
        )
        # An item without a title is called by its id.
        shown = named.select(pl.coalesce("title", pl.col("item").cast(pl.String)).alias("title"))
        return replace(data, titles=shown["title"])


def adjacency_lists(folder: Path) -> Interactions:
    """All parts of a split with one line a user, together."""
    parts = [_read_lists(path) for path in _parts(folder).values()]
    users, items = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _from_ids(users, items)


def adjacency_list_parts(folder: Path) -> dict[str, Interactions]:
    """`train.txt`, `test.txt` and, if there, `valid.txt`, with one line a user: the user, then the items."""
    return {part: _from_ids(*_read_lists(path)) for part, path in _parts(folder).items()}


def _parts(folder: Path) -> dict[str, Path]:
    paths = {"train": need_file(folder, "train.txt")}
    validation = find_file(folder, "valid.txt")
    if validation is not None:
        paths["validation"] = validation
    return {**paths, "test": need_file(folder, "test.txt")}


def _read_lists(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The user and the item of each pair."""
    users, items, lengths = list[int](), list[int](), list[int]()
    for number, line in enumerate(TextFile(path).lines(), start=1):
        try:
            user, *row = map(int, line.split())
        except ValueError as cause:
            shown = line.decode(errors="replace").strip()[:60]
            raise SourceError(
                f"{path}, line {number}: {shown!r} should be a user and that user's items, whole numbers "
                f"by spaces; mend the line, {_AGAIN}"
            ) from cause
        users.append(user)
        items.extend(row)
        lengths.append(len(row))
    if not items:
        raise SourceError(f"{path} holds no interactions; get the file again")
    return np.repeat(np.array(users, np.int64), lengths), np.array(items, np.int64)


def _from_ids(users: NDArray[np.int64], items: NDArray[np.int64]) -> Interactions:
    user_ids, user_codes = np.unique(users, return_inverse=True)
    item_ids, item_codes = np.unique(items, return_inverse=True)
    return Interactions.from_codes(
        user_codes, item_codes, user_ids=pl.Series(user_ids), item_ids=pl.Series(item_ids)
    )


def _column(table: OpenTable, wanted: str | int) -> str:
    """The name of a column that is given by its name or by its number from 1."""
    if isinstance(wanted, int) and wanted <= len(table.columns):
        return table.columns[wanted - 1]
    if wanted in table.columns:
        return str(wanted)
    raise SourceError(f"{table.name} has no column {wanted}, only {', '.join(table.columns)}")


def _with_whole_numbers(table: OpenTable, names: tuple[str, ...]) -> OpenTable:
    """The same table, in which these columns are integers; the first value that is none is named."""

    def fetch(columns: Columns) -> Table:
        fetched = table.fetch(columns)
        numbers = fetched.frame.with_columns(pl.col(names).str.strip_chars().cast(pl.Int64, strict=False))
        for name in names:
            if numbers[name].null_count():
                row = int(numbers[name].is_null().arg_max() or 0)
                where, value = f"{fetched.locate(row)}, column {name!r}", fetched.frame[name][row]
                raise SourceError(f"{where}: {value!r} is no whole number; mend the line")
        return Table(numbers, fetched.locate)

    return replace(table, fetch=fetch, typed=True)


def need_file(folder: Path, name: str) -> Path:
    """The file of that name, plain or compressed, or an error."""
    path = find_file(folder, name)
    if path is None:
        raise SourceError(f"{folder} has neither {name} nor {name}.gz; put one of them there")
    return path

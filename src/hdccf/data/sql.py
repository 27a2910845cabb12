"""The rows of a SQL query → Interactions: SQLite by the standard library, PostgreSQL by psycopg."""

import re
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from hdccf.data.interactions import Interactions
from hdccf.data.read import open_frame, to_interactions
from hdccf.errors import SourceError, one_line

_ROWS_AT_A_TIME = 100_000


def read_sql(
    query: str,
    uri: str,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    title: str | int | None = None,
    minimum_rating: float | None = None,
    time_format: str | None = None,
    drop_nulls: bool = False,
) -> Interactions:
    """Runs one query and reads its rows; the connection is for reading only.

    Parameters
    ----------
    query
        A SELECT in the dialect of the database.
    uri
        `sqlite:///relative/path.db`, `sqlite:////absolute/path.db`, or `postgresql://user@host/database`.
    user, item, time, rating, title, minimum_rating, time_format, drop_nulls
        As in `hdccf.read`.

    Returns
    -------
    Interactions
        The pairs under contiguous ids, sorted by user and time.

    Examples
    --------
    >>> hdccf.read_sql("SELECT customer, sku, bought_at FROM orders", "sqlite:///shop.db", user=1, item=2)
    """
    scheme = uri.partition(":")[0]
    if scheme == "sqlite":
        frame = _from_sqlite(query, uri)
    elif scheme in ("postgresql", "postgres"):
        frame = _from_postgres(query, uri)
    else:
        raise SourceError(
            f"{_without_password(uri)!r} is no database that can be read; give sqlite:///file.db or postgresql://host/database"
        )
    return to_interactions(
        open_frame(frame, f"the query on {_without_password(uri)}"),
        {"user": user, "item": item, "time": time, "rating": rating, "title": title},
        minimum_rating=minimum_rating,
        time_format=time_format,
        drop_nulls=drop_nulls,
    )


def _from_sqlite(query: str, uri: str) -> pl.DataFrame:
    match = re.fullmatch(r"sqlite:///(.+)", uri)
    if match is None:
        raise SourceError(f"{uri!r} names no file; give sqlite:///relative.db or sqlite:////absolute.db")
    path = Path(unquote(match[1]))
    if not path.is_file():
        raise SourceError(
            f"there is no SQLite file {path}; give sqlite:///relative.db or sqlite:////absolute.db"
        )
    try:
        # Without mode=ro a slip in the query could change the user's data.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return _collect(connection.execute(query), query)
    except (sqlite3.Error, sqlite3.Warning) as cause:
        raise SourceError(f"the query on {path} failed ({one_line(cause)}): {one_line(query)}") from cause


def _from_postgres(query: str, uri: str) -> pl.DataFrame:
    try:
        import psycopg
    except ImportError as cause:
        raise SourceError(
            "PostgreSQL needs psycopg; install it with: pip install 'hdccf[postgres]'"
        ) from cause
    try:
        with psycopg.connect(uri, connect_timeout=10) as connection:
            connection.read_only = True
            # A cursor with a name stays on the server, which then sends the rows in portions.
            with connection.cursor(name="hdccf") as cursor:
                cursor.execute(query)
                return _collect(cursor, query)
    except psycopg.Error as cause:
        where = _without_password(uri)
        raise SourceError(f"the query on {where} failed ({one_line(cause)}): {one_line(query)}") from cause


def _collect(cursor: Any, query: str) -> pl.DataFrame:
    if cursor.description is None:
        raise SourceError(f"the query gives no rows; give a SELECT: {one_line(query)}")
    names = [column[0] for column in cursor.description]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"the query gives {', '.join(repeated)} more than once; name each column with AS")
    portions = list(_portions(cursor, names))
    try:
        return pl.concat(portions, how="vertical_relaxed") if portions else pl.DataFrame(schema=names)
    except pl.exceptions.PolarsError:
        # A column of several types, as SQLite allows: as text all of its values can stand together.
        return pl.concat([portion.cast(pl.String) for portion in portions])


def _portions(cursor: Any, names: Sequence[str]) -> Iterator[pl.DataFrame]:
    while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
        columns = zip(*rows, strict=True)
        yield pl.DataFrame([_column(name, values) for name, values in zip(names, columns, strict=True)])


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    kinds = {type(value) for value in values} - {type(None)}
    if uuid.UUID in kinds or (len(kinds) > 1 and str in kinds):
        return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
    return pl.Series(name, values, strict=False)


def _without_password(uri: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", uri)

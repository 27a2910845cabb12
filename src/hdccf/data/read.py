"""The reader: files, folders, globs, data frames, sparse matrices and SQL queries → `Interactions`."""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.data.adjacency import IntArray
from hdccf.data.columns import (
    OpenTable,
    Table,
    TextOptions,
    choose_columns,
    number_ids,
    to_microseconds,
    with_missing,
)
from hdccf.data.interactions import Interactions
from hdccf.data.tables import open_frame, open_paths
from hdccf.errors import ConfigError, SourceError, one_line, without_secrets

_FRAMES = "a path, a Polars or pandas data frame, an Arrow table, or a SciPy sparse matrix"
_ROWS_AT_A_TIME = 100_000


def read(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    title: str | int | None = None,
    weight: str | int | None = None,
    event: str | int | None = None,
    event_weights: Mapping[str, float] | None = None,
    repeats: str = "first",
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
    weight
        A column with how much each row counts as a positive: numbers from 0, which leaves a row out.
    event, event_weights
        A column with the type of each event, and how much each type counts, such as
        `{"view": 1, "cart": 3, "buy": 5}`; 0 leaves a type out, and one that is not named is refused.
    repeats
        A pair that repeats keeps the time of its `first` or its `last` event, and the largest weight of them;
        with `all` it has the sum of their weights (1 each without a weight), and the time of the last.
    minimum_rating
        Leaves out rows with a lower rating; without it every row counts.
    separator, header, quote, encoding
        How text files are written; the separator and whether there is a header are otherwise guessed.
        `quote=""` reads quotation marks as they are.
    time_format
        A strftime format for times in another order than ISO 8601, such as `"%d/%m/%Y %H:%M"`.
    drop_nulls
        Leaves out rows without user, item, time or, where there is a `minimum_rating`, a finite rating; they
        are otherwise refused.
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
    columns = {"user": user, "item": item, "time": time, "rating": rating, "title": title}
    return to_interactions(
        opened,
        columns | {"weight": weight, "event": event},
        event_weights=event_weights,
        repeats=repeats,
        minimum_rating=minimum_rating,
        time_format=time_format,
        drop_nulls=drop_nulls,
    )


def to_interactions(
    opened: OpenTable,
    given: Mapping[str, str | int | None],
    *,
    event_weights: Mapping[str, float] | None = None,
    repeats: str = "first",
    minimum_rating: float | None = None,
    time_format: str | None = None,
    drop_nulls: bool = False,
    integer_ids: bool = False,
) -> Interactions:
    """Chooses the columns of a table, reads them, and numbers the ids by first appearance.

    With `integer_ids` ids must be integers, and are numbered in ascending order.
    """
    source, filtering = opened.name, minimum_rating is not None
    _check_event_weights(given, event_weights)
    columns = choose_columns(opened, given, need_rating=filtering)
    if "rating" in columns and not filtering:
        note(f"{source}: every row counts, whatever its {columns['rating']!r}, without minimum_rating")
    table = opened.fetch(list(dict.fromkeys(columns.values())), columns.get("time"))
    if not table.frame.height:
        raise SourceError(f"{source} has no rows; give a source with rows of user and item")
    table = with_missing(table, [columns[role] for role in ("user", "item", "time") if role in columns])
    needed = [name for role, name in columns.items() if role != "title" and (role != "rating" or filtering)]
    table = _without_nulls(table, needed, source, drop_nulls)
    if minimum_rating is not None:
        table = _at_least(table, columns["rating"], minimum_rating, source, drop_nulls)
    table, weights = _weighted(table, columns, event_weights, source)
    if integer_ids:
        table = with_integers(table, [columns["user"], columns["item"]])
    times = None
    if "time" in columns:
        times = to_microseconds(table, columns["time"], source=source, time_format=time_format)
    frame = table.frame

    def number(role: str) -> tuple[pl.Series, IntArray]:
        ids, codes = number_ids(frame[columns[role]], source=source, typed=opened.typed or integer_ids)
        if len(ids) < 2:
            raise SourceError(
                f"{source}: column {columns[role]!r} has one {role} only, {ids[0]!r}; two are the least: "
                f"give more rows, or another column with {role}= (--{role})"
            )
        if not integer_ids:
            return ids, codes
        return ids.sort(), (ids.rank("ordinal").to_numpy().astype(np.int32) - np.int32(1))[codes]

    # Both columns at the same time: Polars and NumPy release the interpreter's lock.
    with ThreadPoolExecutor(2) as pool:
        (user_ids, users), (item_ids, items) = pool.map(number, ("user", "item"))
    titles = None
    if "title" in columns:
        # The first title that is given for each item.
        named = pl.DataFrame({"item": items, "title": frame[columns["title"]].cast(pl.String)}).drop_nulls()
        every = pl.DataFrame({"item": np.arange(len(item_ids), dtype=np.int32)})
        first = named.unique("item", keep="first", maintain_order=True)
        titles = every.join(first, on="item", how="left", maintain_order="left")["title"]
    ids: dict[str, Any] = {"user_ids": user_ids, "item_ids": item_ids, "titles": titles}
    return Interactions.from_codes(users, items, times=times, weights=weights, repeats=repeats, **ids)


# -- opening -------------------------------------------------------------------------------------------------


def _open(source: Any, text: TextOptions, kind: str | None) -> OpenTable | Interactions:
    if isinstance(source, Interactions):
        return source
    if isinstance(source, (str, Path)):
        try:
            path = Path(source).expanduser()
            is_saved = path.is_dir() and (path / "meta.json").is_file()
            return Interactions.load(path) if is_saved else open_paths(str(source), text, kind)
        except (OSError, RuntimeError) as cause:  # no permission, a name that is too long; no home folder
            raise SourceError(f"{str(source)[:200]} cannot be read ({one_line(cause)[:200]})") from cause
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return open_frame(source, "the data frame")
    if hasattr(source, "tocoo") and hasattr(source, "nnz"):
        entries = source.tocsr().tocoo()  # in order of row and column
        columns = {"user": entries.row, "item": entries.col, "weight": entries.data.astype(np.float64)}
        return open_frame(pl.DataFrame(columns).filter(pl.col("weight") != 0), "the matrix")
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return open_frame(_from_pandas(source), "the data frame")
    if hasattr(source, "__arrow_c_stream__"):
        return open_frame(pl.DataFrame(source), "the table")
    raise SourceError(f"a {type(source).__name__} cannot be read; give {_FRAMES}")


def _from_pandas(source: Any) -> pl.DataFrame:
    """As Polars reads it; columns of mixed types, which it refuses, become text as in other sources."""
    try:
        return pl.DataFrame(source)
    except (TypeError, ValueError):  # of Arrow
        texts = source.apply(
            lambda column: (
                column.where(column.isna(), column.astype(str)) if column.dtype == object else column
            )
        )
    try:
        return pl.DataFrame(texts)
    except (TypeError, ValueError) as cause:
        raise SourceError(f"the data frame cannot be read ({one_line(cause)}); mend it") from cause


# -- rows ----------------------------------------------------------------------------------------------------


def _without_nulls(table: Table, needed: Sequence[str], source: str, drop: bool) -> Table:
    """Refuses rows in which a needed value is missing, or drops them and says so."""
    counts = {name: table.frame[name].null_count() for name in dict.fromkeys(needed)}
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
    if empty.all():
        raise SourceError(f"{source} has no row without a missing value; give other columns")
    note(f"{source}: left out {int(empty.sum()):,} of {len(empty):,} rows with a missing value ({listed})")
    return table.filter(~empty)


def _numbers(table: Table, name: str, role: str, source: str) -> pl.Series:
    """A column as numbers, of which none is missing; some may not be finite."""
    values = table.frame[name]
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False) if values.dtype == pl.String else values
    if not (numbers.dtype.is_numeric() or numbers.dtype == pl.Boolean):
        raise SourceError(f"{source}: column {name!r} holds {values.dtype}; a {role} must be a number")
    table.refuse(name, numbers.is_null(), f"is no number; mend it, or give another {role}=")
    return numbers.cast(pl.Float64)


def _check_event_weights(
    given: Mapping[str, str | int | None], event_weights: Mapping[str, float] | None
) -> None:
    weight, event = (given.get(role) not in (None, "") for role in ("weight", "event"))
    if weight and event:
        raise ConfigError(
            "weight and event (--weight, --event) were both given; one of them says what a row counts"
        )
    if event != bool(event_weights):
        raise ConfigError(
            "event and event_weights go together, such as --event type --event-weights view=1,cart=3,buy=5"
        )
    bad = [name for name, each in (event_weights or {}).items() if not 0 <= each < float("inf")]
    if bad:
        raise ConfigError(
            f"event_weights has {event_weights[bad[0]]} for {bad[0]!r}; give numbers from 0"  # type: ignore[index]
        )


def _weighted(
    table: Table, columns: Mapping[str, str], event_weights: Mapping[str, float] | None, source: str
) -> tuple[Table, NDArray[np.float64] | None]:
    """The rows with a weight above 0, and these weights; None where there are none."""
    if "weight" in columns:
        numbers = _numbers(table, columns["weight"], "weight", source)
        bad = ~numbers.is_finite() | (numbers < 0)
        table.refuse(
            columns["weight"], bad, "is no weight; give finite numbers from 0, which leaves a row out"
        )
    elif event_weights:
        types = table.frame[columns["event"]].cast(pl.String).str.strip_chars()
        unknown = types.filter(~types.is_in(list(event_weights))).value_counts(sort=True).rows()
        if unknown:
            listed = ", ".join(f"{name!r} ({rows:,} rows)" for name, rows in unknown[:10])
            raise SourceError(
                f"{source}: column {columns['event']!r} has {listed}, which event_weights "
                f"(--event-weights) does not name; give each a weight, where 0 leaves its rows out"
            )
        numbers = types.replace_strict(dict(event_weights), return_dtype=pl.Float64)
    else:
        return table, None
    kept = numbers > 0
    if not kept.any():
        raise SourceError(f"{source} has no row with a weight above 0; give other weights")
    if not kept.all():
        note(f"{source}: left out {int((~kept).sum()):,} of {len(kept):,} rows with the weight 0")
        table, numbers = table.filter(kept), numbers.filter(kept)
    return table, numbers.to_numpy()


def _at_least(table: Table, rating: str, minimum: float, source: str, drop: bool) -> Table:
    numbers = _numbers(table, rating, "rating", source)
    finite = numbers.is_finite()
    if not (drop and finite.any()):
        fault = "mend it, or give drop_nulls=True (--drop-nulls) to leave such rows out"
        table.refuse(rating, ~finite, f"is no finite number; {fault}")
    if not finite.all():
        note(f"{source}: left out {int((~finite).sum()):,} rows whose {rating!r} is no finite number")
    # NaN would count as the largest number.
    keep = finite & (numbers >= minimum)
    if not keep.any():
        highest = float(numbers.filter(finite).to_numpy().max())
        raise SourceError(f"{source}: no {rating!r} is at least {minimum:g}; the highest is {highest:g}")
    return table if keep.all() else table.filter(keep)


def with_integers(table: Table, names: Sequence[str]) -> Table:
    """The same table, in which these columns of text are integers."""
    numbers = table.frame.with_columns(pl.col(names).str.strip_chars().cast(pl.Int64, strict=False))
    for name in names:
        table.refuse(name, numbers[name].is_null(), "is no whole number; mend the line")
    return Table(numbers, table.locate)


# -- SQL -----------------------------------------------------------------------------------------------------


def read_sql(
    query: str,
    uri: str,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    title: str | int | None = None,
    weight: str | int | None = None,
    event: str | int | None = None,
    event_weights: Mapping[str, float] | None = None,
    repeats: str = "first",
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
    user, item, time, rating, title, weight, event, event_weights, repeats
        As in `hdccf.read`.
    minimum_rating, time_format, drop_nulls
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
            f"{without_secrets(uri)!r} is no database that can be read; give sqlite:///file.db or "
            "postgresql://host/database"
        )
    columns = {"user": user, "item": item, "time": time, "rating": rating, "title": title}
    return to_interactions(
        open_frame(frame, f"the query on {without_secrets(uri)}"),
        columns | {"weight": weight, "event": event},
        event_weights=event_weights,
        repeats=repeats,
        minimum_rating=minimum_rating,
        time_format=time_format,
        drop_nulls=drop_nulls,
    )


def _from_sqlite(query: str, uri: str) -> pl.DataFrame:
    match = re.fullmatch(r"sqlite:///(.+)", uri)
    if match is None:
        raise SourceError(
            f"{without_secrets(uri)!r} names no file; give sqlite:///relative.db or sqlite:////absolute.db"
        )
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
    except (psycopg.Error, ValueError) as cause:  # the latter for characters that no URI can hold
        why = one_line(cause)
        if _repeats_secret(why, uri):
            why = f"{type(cause).__name__}, whose text is left out since it repeats a part of the password"
        # Not from the cause, whose text a traceback would show.
        raise SourceError(f"the query on {without_secrets(uri)} failed ({why}): {one_line(query)}") from None


def _collect(cursor: Any, query: str) -> pl.DataFrame:
    """All rows, fetched in portions, so that only one of them is held as Python objects."""
    if cursor.description is None:
        raise SourceError(f"the query gives no rows; give a SELECT: {one_line(query)}")
    names = [column[0] for column in cursor.description]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SourceError(f"the query gives {', '.join(repeated)} more than once; name each column with AS")
    portions = [pl.DataFrame(schema=dict.fromkeys(names, pl.Null))]
    while rows := cursor.fetchmany(_ROWS_AT_A_TIME):
        columns = zip(names, zip(*rows, strict=True), strict=True)
        portions.append(pl.DataFrame([_column(name, values) for name, values in columns]))
    try:
        return pl.concat(portions, how="vertical_relaxed")
    except pl.exceptions.PolarsError:
        pass
    try:
        # A column of several types, as SQLite allows: as text all of its values can stand together.
        return pl.concat([portion.cast(pl.String) for portion in portions])
    except pl.exceptions.PolarsError as cause:
        raise SourceError(
            f"the query gives a column of bytes beside other types ({one_line(cause)}); cast it to text"
        ) from cause


def _column(name: str, values: Sequence[Any]) -> pl.Series:
    column = pl.Series(name, values, strict=False)
    if column.dtype != pl.Object:
        return column
    # UUIDs, for example.
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)


def _repeats_secret(text: str, uri: str) -> bool:
    """Whether a message repeats a word of the password: libpq names a part that it cannot read."""
    secrets = re.findall(r"://[^:]*:(.*)@", uri) + re.findall(r"pass[^=&]*=([^&]*)", uri, re.IGNORECASE)
    words = re.findall(r"\w+", " ".join([*secrets, *map(unquote, secrets)]))
    return any(re.search(rf"\b{word}\b", text) for word in words)

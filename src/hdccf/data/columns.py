"""Columns of a source: which one is the user, item, time or rating, and how times and ids are parsed."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.data import adjacency
from hdccf.data.adjacency import IntArray, places_among
from hdccf.errors import SourceError

# The likeliest names first: a name from an earlier line wins over one from a later line, and between two of
# the same line nothing is chosen.
_USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": (
        "user userid useridentifier uid",
        "customer customerid client clientid member memberid reviewer reviewerid",
        "account accountid visitor visitorid person personid profileid listener listenerid",
        "username login author authorid session sessionid",
    ),
    "item": (
        "item itemid iid",
        "product productid sku asin parentasin article articleid stockcode",
        "movie movieid film filmid book bookid isbn song songid track trackid",
        "artist artistid business businessid place placeid location locationid venue venueid",
        "video videoid game gameid news newsid page pageid document documentid docid",
        "content contentid ad adid poi poiid recipe recipeid anime animeid",
    ),
    "time": (
        "timestamp ts time datetime unixtime epoch",
        "unixreviewtime eventtime eventtimestamp reviewtime createdat occurredat ratedat",
        "date day when created purchasedate orderdate invoicedate",
    ),
    "rating": ("rating ratings stars score overall", "weight value count plays playcount quantity strength"),
    "title": ("title itemtitle movietitle producttitle booktitle", "itemname productname moviename"),
}


@dataclass(frozen=True)
class TextOptions:
    """How text files are read; None means that the file is looked at."""

    separator: str | None = None
    header: bool | None = None
    quote: str = '"'
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Table:
    """The columns that were asked for. `locate(row)` says where a row is, for error messages."""

    frame: pl.DataFrame
    locate: Callable[[int], str]

    def filter(self, keep: pl.Series) -> "Table":
        """Some of the rows, which still know where they are in the source."""
        rows, locate = keep.arg_true(), self.locate
        return Table(self.frame.filter(keep), lambda row: locate(int(rows[row])))


@dataclass(frozen=True)
class OpenTable:
    """A table whose columns are known but not yet read."""

    name: str
    columns: Sequence[str]
    fetch: Callable[[Sequence[str], str | None], Table]
    """Reads some columns. One of text that is named is read as integers where all its values are."""
    first_row: Sequence[object] | None = None
    """Shown in place of names where the columns have none."""
    typed: bool = True
    """Whether the source knows types: in a CSV file ids that are all integers are taken as integers."""


def choose_columns(
    opened: OpenTable, given: Mapping[str, str | int | None], *, need_rating: bool = False
) -> dict[str, str]:
    """The column of each role: those that were given, and guesses for the others, which are printed.

    A rating is guessed only where `need_rating`. An empty name means that there is none.
    """
    names, source = opened.columns, opened.name
    chosen = {role: find_column(opened, want, role) for role, want in given.items() if want not in (None, "")}
    guessed: list[str] = []
    for role in _USUAL_NAMES:
        required = role in ("user", "item") or (role == "rating" and need_rating)
        if role in chosen or (not required and (role == "rating" or given.get(role) == "")):
            continue
        name = _guess(names, role, set(chosen.values()), source)
        if name is not None:
            chosen[role] = name
            guessed.append(f"{role}={name!r}")
        elif required:
            shown = _listing(names, opened.first_row)
            raise SourceError(f"{source}: no column is plainly the {role}, of {shown}: {_how(role)}")
    if chosen["user"] == chosen["item"]:
        raise SourceError(f"{source}: {chosen['user']!r} cannot be both user and item; give two columns")
    if guessed:
        note(f"{source}: took {', '.join(guessed)} from the columns {_listing(names)}")
    return chosen


def find_column(opened: OpenTable, want: str | int | None, role: str) -> str:
    """The name of a column that is given by its name, or by its number from 1."""
    if isinstance(want, str):
        alike = [name for name in opened.columns if name.strip() == want.strip()]
        if alike:
            return want if want in alike else alike[0]
    number = int(str(want)) if str(want).isdecimal() else 0
    if 1 <= number <= len(opened.columns):
        return opened.columns[number - 1]
    there = _listing(opened.columns)
    raise SourceError(f"{opened.name}: no column {want!r} for the {role}, only {there}: {_how(role)}")


def _guess(names: Sequence[str], role: str, taken: set[str], source: str) -> str | None:
    for usual in _USUAL_NAMES[role]:
        found = [name for name in names if name not in taken and _plain(name) in usual.split()]
        if len(found) > 1:
            # 'user' beside 'user_id' is a name and its key; of others, none is chosen.
            keys = [name for name in found if _plain(name).endswith("id")]
            if len(keys) == 1 and len({_plain(name).removesuffix("id") for name in found}) == 1:
                found = keys
        if len(found) > 1 and role != "title":
            both = " and ".join(repr(name) for name in found)
            raise SourceError(f"{source}: {both} could each be the {role}: {_how(role)}")
        if found:
            return found[0]
    return None


def _plain(name: str) -> str:
    """`userId`, `user_id`, `User ID` and RecBole's `user_id:token` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _listing(names: Sequence[str], first_row: Sequence[object] | None = None) -> str:
    if first_row is not None:
        return ", ".join(f"{name} (such as {value!r})" for name, value in zip(names, first_row, strict=True))
    shown = [repr(name) for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _how(role: str) -> str:
    return f"give {role}= (--{role}) with a column's name or its number from 1"


# -- times ---------------------------------------------------------------------------------------------------

# Up to this magnitude a number counts seconds, milliseconds, microseconds; beyond, nanoseconds. The first
# limit is the year 5138 in seconds and 1973 in milliseconds, so only milliseconds before 1973 are misread.
_UNITS = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))
_BODIES = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y%m%d %H%M%S%.f", "%Y%m%d")
_ZONE = r"(?:\s*(Z|z|UTC|GMT)|\s?([+-])(\d{2}):?(\d{2})?)$"
ALLOWED = "epoch seconds or milliseconds, ISO 8601 such as 2024-05-17T08:30:00Z, or dates"


class BadTimeError(Exception):
    """The first value that is no time, by its row; the caller knows the file and the line."""

    def __init__(self, row: int, value: object) -> None:
        super().__init__(row, value)
        self.row, self.value = row, value


def to_microseconds(times: pl.Series, *, source: str, time_format: str | None = None) -> NDArray[np.int64]:
    """Native datetimes and dates, numbers by their magnitude, and text; without a zone the time is UTC.

    There must be no nulls. `time_format` is a strftime format for text in another order.
    """
    if times.dtype == pl.String:
        return _from_text(times, source, time_format)
    if isinstance(times.dtype, (pl.Datetime, pl.Date)):
        return times.cast(pl.Datetime("us")).to_physical().to_numpy()
    if times.dtype.is_integer():
        return _from_integers(times, source)
    if times.dtype.is_float() or times.dtype.is_decimal():
        return _from_floats(times.cast(pl.Float64), source)
    raise SourceError(
        f"{source}: column {times.name!r} holds {times.dtype}, which is no time; {ALLOWED} are read"
    )


def _from_integers(times: pl.Series, source: str) -> NDArray[np.int64]:
    lowest, highest = times.min(), times.max()
    if not isinstance(lowest, int) or not isinstance(highest, int):
        return np.empty(0, np.int64)
    if lowest >= 19_000_101 and highest <= 21_001_231:
        # 20240517 is a day far more often than an hour in August 1970.
        days = times.cast(pl.String).str.to_date("%Y%m%d", strict=False)
        if not days.null_count():
            note(f"{source}: read {times.name!r} as days such as {lowest}")
            return to_microseconds(days, source=source)
    values = times.cast(pl.Int64, strict=False)
    _refuse_first_null(values, times)
    magnitude = max(abs(lowest), abs(highest))
    for limit, factor in _UNITS:
        if magnitude < limit:
            return values.to_numpy() * np.int64(factor)
    return values.to_numpy() // np.int64(1_000)


def _from_floats(times: pl.Series, source: str) -> NDArray[np.int64]:
    _refuse_first_null(times.set(~times.is_finite(), None), times)
    values = times.to_numpy()
    whole = np.round(values).astype(np.int64)
    if np.array_equal(whole, values):
        return _from_integers(pl.Series(times.name, whole), source)
    magnitude = float(np.abs(values).max())
    factor = next((float(factor) for limit, factor in _UNITS if magnitude < limit), 1e-3)
    return np.round(values * factor).astype(np.int64)


def _from_text(times: pl.Series, source: str, time_format: str | None) -> NDArray[np.int64]:
    numbers = times.cast(pl.Int64, strict=False)
    if time_format is None and not numbers.null_count():
        return _from_integers(numbers, source)
    text = times.str.strip_chars()
    if time_format is not None:
        moments = _parse(text, time_format)
        _refuse_first_null(moments, times)
        return moments.to_physical().to_numpy()
    floats = text.cast(pl.Float64, strict=False)
    if not floats.null_count():
        return _from_floats(floats, source)
    if floats.null_count() * 2 <= len(text):
        _refuse_first_null(floats, times)
    return _from_iso(times, text)


def _from_iso(times: pl.Series, text: pl.Series) -> NDArray[np.int64]:
    """Day, optional time of day, optional fraction, optional zone."""
    zones = text.str.slice(10).str.extract_groups(_ZONE).struct.unnest()
    zones.columns = ["utc", "sign", "hours", "minutes"]
    minutes = pl.col("hours").cast(pl.Int64) * 60 + pl.col("minutes").cast(pl.Int64).fill_null(0)
    signed = pl.when(pl.col("sign") == "-").then(-minutes).otherwise(minutes)
    offset = zones.select(signed.fill_null(0)).to_series()
    plain = (
        (text.str.slice(0, 10) + text.str.slice(10).str.replace(_ZONE, ""))
        .str.replace(r"^(\d{4})/(\d{2})/(\d{2})", "$1-$2-$3")
        .str.replace(r"^([\d-]{8,10})[Tt]", "$1 ")
    )
    moments = _parse(plain, _BODIES[0])
    for body in _BODIES[1:]:
        if moments.null_count():
            moments = pl.select(pl.coalesce(moments, _parse(plain, body))).to_series()
    _refuse_first_null(moments, times)
    return moments.to_physical().to_numpy() - offset.to_numpy() * np.int64(60_000_000)


def _parse(text: pl.Series, body: str) -> pl.Series:
    if re.search("%(H|I|M|S|T|R|X|c)", body):
        moments = text.str.to_datetime(body, time_unit="us", strict=False, time_zone=None)
        return moments.dt.replace_time_zone(None)
    return text.str.to_date(body, strict=False).cast(pl.Datetime("us"))


def _refuse_first_null(parsed: pl.Series, times: pl.Series) -> None:
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        raise BadTimeError(row, times[row])


# -- ids -----------------------------------------------------------------------------------------------------

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


def number_ids(ids: pl.Series, *, source: str, typed: bool = True) -> tuple[pl.Series, IntArray]:
    """Distinct ids in order of first appearance, and the number among them of each row's id; no nulls.

    Where the source knows no types (CSV), ids that are all plain integers become integers; `007` stays text,
    so that every id comes back as it was written.
    """
    ids = _as_text_or_integers(ids, source)
    if ids.dtype != pl.String:
        vocabulary = ids.unique(maintain_order=True)
        return vocabulary, places_among(ids, vocabulary).to_numpy()
    vocabulary, codes = _number_texts(ids)
    # The first ones nearly always settle whether all are integers.
    parts = vocabulary.head(1_000), vocabulary
    if not typed and all(bool(part.str.contains(_CANONICAL_INTEGER).all()) for part in parts):
        vocabulary = vocabulary.cast(pl.Int64)
    return vocabulary, codes


def _number_texts(ids: pl.Series) -> tuple[pl.Series, IntArray]:
    if len(ids) >= adjacency.COMPILED_FROM and (kernels := adjacency.load_kernels()) is not None:
        hashes, codes, room = ids.hash().to_numpy(), np.empty(len(ids), np.int32), 1 << 16
        # A table that is too small proves so within the first rows.
        while (
            size := kernels.number_hashes(
                hashes, np.zeros(2 * room, np.int32), np.empty(room, np.uint64), codes
            )
        ) < 0:
            room *= 8
        first_rows = np.zeros(size, np.int64)
        first_rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        vocabulary = ids.gather(first_rows)
        if (vocabulary.gather(codes) == ids).all():
            return vocabulary, codes
        # Two ids have the same 64-bit hash, about once in 40,000 sources of 30 million ids.
    texts = ids.cast(pl.Categorical(pl.Categories.random()))
    distinct = texts.unique(maintain_order=True)
    code = np.empty(len(distinct), np.int32)
    code[distinct.to_physical().to_numpy()] = np.arange(len(distinct), dtype=np.int32)
    return distinct.cast(pl.String), code[texts.to_physical().to_numpy()]


def _as_text_or_integers(ids: pl.Series, source: str) -> pl.Series:
    kind = ids.dtype
    if kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum)):
        return ids.cast(pl.String)
    if kind == pl.UInt64 and ids.cast(pl.Int64, strict=False).null_count():
        return ids.cast(pl.String)
    if kind.is_integer() and kind != pl.Int128:
        return ids.cast(pl.Int64)
    if kind.is_float() or kind.is_decimal():
        # pandas turns integers into floats where a value was missing; 3.0 was 3.
        whole = ids.cast(pl.Int64, strict=False)
        if not whole.null_count() and bool((whole.cast(kind) == ids).all()):
            return whole
    raise SourceError(
        f"{source}: column {ids.name!r} holds {kind}, which is no id; text and integers are read"
    )

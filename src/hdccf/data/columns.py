"""Columns of a source: which one is the user, item, time or rating, and how times and ids are parsed."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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

    def refuse(self, name: str, bad: pl.Series | NDArray[np.bool_], fault: str) -> None:
        """Raises at the first row in which a column's value is bad, if there is one."""
        if bad.any():
            row = int(np.argmax(bad))
            # As a number where it is a date, as Polars cannot show one that is out of range.
            value = self.frame[name].to_physical()[row]
            raise SourceError(f"{self.locate(row)}, column {name!r}: {value!r} {fault}")


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
    published: bool = False
    """Whether its columns are known: a missing one is then the file's fault."""

    def remedy(self, role: str) -> str:
        """What to do where a column cannot be found."""
        if self.published:
            return "not the published file, so mend it"
        return f"give {role}= (--{role}) with a column's name or its number from 1"


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
        name = _guess(opened, role, set(chosen.values()))
        if name is not None:
            chosen[role] = name
            guessed.append(f"{role}={name!r}")
        elif required:
            shown = _listing(names, opened.first_row)
            raise SourceError(f"{source}: no column is plainly the {role}, of {shown}: {opened.remedy(role)}")
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
    there, remedy = _listing(opened.columns), opened.remedy(role)
    raise SourceError(f"{opened.name}: no column {want!r} for the {role}, only {there}: {remedy}")


def _guess(opened: OpenTable, role: str, taken: set[str]) -> str | None:
    for usual in _USUAL_NAMES[role]:
        found = [name for name in opened.columns if name not in taken and _plain(name) in usual.split()]
        if len(found) > 1:
            # 'user' beside 'user_id' is a name and its key; of others, none is chosen.
            keys = [name for name in found if _plain(name).endswith("id")]
            if len(keys) == 1 and len({_plain(name).removesuffix("id") for name in found}) == 1:
                found = keys
        if len(found) > 1 and role != "title":
            both = " and ".join(repr(name) for name in found)
            raise SourceError(f"{opened.name}: {both} could each be the {role}: {opened.remedy(role)}")
        if found:
            return found[0]
    return None


def guess_column(opened: OpenTable, role: str) -> str | None:
    """The column whose name is usual for a role; None where there is none."""
    return _guess(opened, role, set())


def _plain(name: str) -> str:
    """`userId`, `user_id`, `User ID` and RecBole's `user_id:token` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _listing(names: Sequence[str], first_row: Sequence[object] | None = None) -> str:
    if first_row is not None:
        return ", ".join(f"{name} (such as {value!r})" for name, value in zip(names, first_row, strict=True))
    shown = [repr(name) for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


# -- times ---------------------------------------------------------------------------------------------------

# A number below the limit counts this unit; at it, the next. The first limit is the year 5138 in seconds and
# 1973 in milliseconds, so only milliseconds before 1973 are misread.
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_LIMITS = (10**11, 10**14, 10**17, 2**63)
_USUAL = (315_532_800, 4_102_444_800)  # 1980 and 2100, in seconds
_DAYS = (19_000_101, 21_001_231)  # 20240517 is a day far more often than an hour in August 1970
# Python's own datetimes have these years, and Polars panics on much later ones.
_FIRST, _END = -62_135_596_800_000_000, 253_402_300_800_000_000
_NATIVE = {"Date": 86_400_000_000, "ms": 1_000, "us": 1}
_BODIES = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y%m%d %H%M%S%.f", "%Y%m%d")
_ZONE = r"(?:\s*(Z|z|UTC|GMT)|\s?([+-])(\d{2}):?(\d{2})?)$"
_ALLOWED = (
    "is no time; epoch seconds or milliseconds, ISO 8601 such as 2024-05-17T08:30:00Z, or dates are read, "
    "and other orders with time_format= (--time-format), for example '%d/%m/%Y %H:%M'"
)

Refuse = Callable[[pl.Series | NDArray[np.bool_], str], None]
"""`Table.refuse` of the column of times."""


def to_microseconds(
    table: Table, column: str, *, source: str, time_format: str | None = None
) -> NDArray[np.int64]:
    """Native datetimes and dates, numbers by the magnitude of most, and text; without a zone the time is UTC.

    There must be no nulls. `time_format` is a strftime format for text in another order.
    """
    times = table.frame[column]
    refuse = partial(table.refuse, column)
    if times.dtype == pl.String:
        moments = _from_text(times, refuse, source, time_format)
    elif isinstance(times.dtype, (pl.Datetime, pl.Date)):
        moments = _from_native(times)
    elif times.dtype.is_numeric():
        moments = _from_numbers(times, refuse, source)
    else:
        raise SourceError(
            f"{source}: column {column!r} holds {times.dtype}, which is no time; "
            "epochs, text and dates are read"
        )
    refuse((moments < _FIRST) | (moments >= _END), "is not between the years 1 and 9999; mend it")
    return moments


def _from_native(times: pl.Series) -> NDArray[np.int64]:
    values: NDArray[np.int64] = times.to_physical().to_numpy().astype(np.int64)
    factor = _NATIVE.get(getattr(times.dtype, "time_unit", "Date"))
    if factor is None:  # nanoseconds
        return values // 1_000
    return np.clip(values, _FIRST // factor - 1, _END // factor) * factor  # beyond both ends it is refused


def _from_numbers(times: pl.Series, refuse: Refuse, source: str) -> NDArray[np.int64]:
    """Epochs in the unit of most values, or days such as 20240517; values of another unit are refused."""
    if times.dtype.is_integer():
        numbers = times.cast(pl.Int64, strict=False)
    else:
        numbers = times.cast(pl.Float64)
        numbers = numbers.set(~numbers.is_finite(), None)
    refuse(numbers.is_null(), _ALLOWED)
    values = numbers.to_numpy()
    days = _as_days(numbers)
    if days is not None:
        note(f"{source}: read {times.name!r} as days such as {int(values[0])}")
        refuse(days.is_null(), "is no day such as 20240517, as most of this column are")
        return _from_native(days)

    unit = bisect_right(_LIMITS, values.min())
    # Nearly always all are of one unit.
    if values.min() <= 0 or not unit == bisect_right(_LIMITS, values.max()) < len(_UNITS):
        unit = _common_unit(values, refuse)
    note(f"{source}: read {times.name!r} as {_UNITS[unit]} since 1970")
    whole = values.astype(np.int64, copy=False)
    if whole is values or np.array_equal(whole, values):
        return whole * 1_000 ** (2 - unit) if unit < 3 else whole // 1_000
    return np.round(values * 1_000.0 ** (2 - unit)).astype(np.int64)


def _common_unit(values: NDArray[Any], refuse: Refuse) -> int:
    """The unit of most values; refuses the first of another."""

    def beyond(limit: int) -> NDArray[np.bool_]:
        return (values >= limit) | (values <= -limit)

    # That of the median, zeros apart, which are of every unit.
    filled = max(1, int(np.count_nonzero(values)))
    unit = sum(2 * int(np.count_nonzero(beyond(limit))) >= filled for limit in _LIMITS[:-1])
    first, end = _USUAL
    usual = [(values >= first * 1_000**power) & (values < end * 1_000**power) for power in range(unit)]
    coarser = np.logical_or.reduce(usual) if usual else np.zeros(len(values), np.bool_)
    # Where as many lie between these and the usual years of the unit, all are counted from some start.
    between = (values >= end) & (values < first * 1_000**unit) & ~coarser
    if np.count_nonzero(between) >= np.count_nonzero(coarser):
        coarser[:] = False
    other = coarser | beyond(_LIMITS[unit])
    refuse(other, f"is not in {_UNITS[unit]}, as most of this column are; give one unit")
    return unit


def _as_days(numbers: pl.Series) -> pl.Series | None:
    """Whole numbers as days, where half of them at least are days; null where one is none."""
    if 2 * int(numbers.is_between(*_DAYS).sum()) < len(numbers):
        return None
    whole = numbers.cast(pl.Int64, strict=False)
    days = whole.cast(pl.String).str.to_date("%Y%m%d", strict=False).set(whole != numbers, None)
    return days if 2 * days.null_count() <= len(days) else None


def _from_text(times: pl.Series, refuse: Refuse, source: str, time_format: str | None) -> NDArray[np.int64]:
    numbers = times.cast(pl.Int64, strict=False)
    if time_format is None and not numbers.null_count():
        return _from_numbers(numbers, refuse, source)
    text = times.str.strip_chars()
    if time_format is not None:
        moments = _parse(text, time_format)
        refuse(moments.is_null(), _ALLOWED)
        return moments.to_physical().to_numpy()
    floats = text.cast(pl.Float64, strict=False)
    if floats.null_count() * 2 <= len(text):
        refuse(floats.is_null(), _ALLOWED)
        return _from_numbers(floats, refuse, source)
    return _from_iso(text, refuse)


def _from_iso(text: pl.Series, refuse: Refuse) -> NDArray[np.int64]:
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
    refuse(moments.is_null(), _ALLOWED)
    return moments.to_physical().to_numpy() - offset.to_numpy() * np.int64(60_000_000)


def _parse(text: pl.Series, body: str) -> pl.Series:
    if re.search("%(H|I|M|S|T|R|X|c)", body):
        moments = text.str.to_datetime(body, time_unit="us", strict=False, time_zone=None)
        return moments.dt.replace_time_zone(None)
    return text.str.to_date(body, strict=False).cast(pl.Datetime("us"))


# -- ids -----------------------------------------------------------------------------------------------------

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})(\.0+)?$"
_MISSING = ("", "NaN", "nan", "null", "NULL", "None")
"""What programs write where an id or a time is missing."""


def with_missing(table: Table, names: Sequence[str]) -> Table:
    """The same table, in which the values of these columns that stand for none are nulls."""
    known: list[pl.Expr] = []
    for name in names:
        kind, values = table.frame[name].dtype, pl.col(name)
        if kind == pl.String:
            known.append(pl.when(~values.is_in(_MISSING)).then(values))
        elif kind.is_float():
            known.append(values.fill_nan(None))
    return Table(table.frame.with_columns(known), table.locate)


def number_ids(ids: pl.Series, *, source: str, typed: bool = True) -> tuple[pl.Series, IntArray]:
    """Distinct ids in order of first appearance, and the number among them of each row's id; no nulls.

    Where the source knows no types (CSV), ids that are all plain integers become integers, and so do whole
    numbers with a fraction of zeros, which pandas writes: `1.0` is 1. `007` stays text.
    """
    ids = _as_text_or_integers(ids, source)
    if ids.dtype != pl.String:
        vocabulary = ids.unique(maintain_order=True)
        return vocabulary, places_among(ids, vocabulary).to_numpy()
    vocabulary, codes = _number_texts(ids)
    # The first ones nearly always settle whether all are integers.
    parts = vocabulary.head(1_000), vocabulary
    if not typed and all(bool(part.str.contains(_WHOLE).all()) for part in parts):
        if not bool(vocabulary.str.contains(_CANONICAL_INTEGER).all()):
            return number_ids(ids.str.replace(r"\..*$", ""), source=source, typed=False)
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

"""Times of any usual kind → microseconds since 1970 (UTC)."""

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.errors import SourceError

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
    magnitude = max(abs(lowest), abs(highest))
    values = times.cast(pl.Int64, strict=False)
    if values.null_count():
        raise BadTimeError(int(values.is_null().arg_max() or 0), magnitude)
    for limit, factor in _UNITS:
        if magnitude < limit:
            return values.to_numpy() * np.int64(factor) if factor > 1 else values.to_numpy()
    return values.to_numpy() // np.int64(1_000)


def _from_floats(times: pl.Series, source: str) -> NDArray[np.int64]:
    values = times.to_numpy()
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(bad.argmax())
        raise BadTimeError(row, float(values[row]))
    whole = np.round(values).astype(np.int64)
    if np.array_equal(whole, values):
        return _from_integers(pl.Series(times.name, whole), source)
    magnitude = float(np.abs(values).max())
    factor = next((float(factor) for limit, factor in _UNITS if magnitude < limit), 1e-3)
    return np.round(values * factor).astype(np.int64)


def _from_text(times: pl.Series, source: str, time_format: str | None) -> NDArray[np.int64]:
    text = times.str.strip_chars()
    if time_format is not None:
        moments = _parse(text, time_format)
        _refuse_first_null(moments, times)
        return moments.to_physical().to_numpy()
    numbers = text.cast(pl.Int64, strict=False)
    if not numbers.null_count():
        return _from_integers(numbers, source)
    floats = text.cast(pl.Float64, strict=False)
    if not floats.null_count():
        return _from_floats(floats, source)
    strangers = numbers.is_null() & floats.is_null()
    if int(strangers.sum()) * 2 <= len(text):
        row = int(strangers.arg_max() or 0)
        raise BadTimeError(row, times[row])
    return _from_iso(times, text)


def _from_iso(times: pl.Series, text: pl.Series) -> NDArray[np.int64]:
    """Day, optional time of day, optional fraction, optional zone."""
    zones = text.str.slice(10).str.extract_groups(_ZONE).struct.unnest()
    zones.columns = ["utc", "sign", "hours", "minutes"]
    offset = zones.select(
        (
            (pl.col("hours").cast(pl.Int64) * 60 + pl.col("minutes").cast(pl.Int64).fill_null(0))
            * pl.when(pl.col("sign") == "-").then(-1).otherwise(1)
        ).fill_null(0)
    ).to_series()
    plain = (
        (text.str.slice(0, 10) + text.str.slice(10).str.replace(_ZONE, ""))
        .str.replace(r"^(\d{4})/(\d{2})/(\d{2})", "$1-$2-$3")
        .str.replace(r"^([\d-]{8,10})[Tt]", "$1 ")
    )
    moments = pl.Series(plain.name, [None], dtype=pl.Datetime("us")).new_from_index(0, len(plain))
    for body in _BODIES:
        if not moments.null_count():
            break
        moments = pl.select(pl.coalesce(moments, _parse(plain, body))).to_series()
    _refuse_first_null(moments, times)
    return moments.to_physical().to_numpy() - offset.to_numpy() * np.int64(60_000_000)


def _parse(text: pl.Series, body: str) -> pl.Series:
    if re.search("%(H|I|M|S|T|R|X|c)", body):
        return text.str.to_datetime(body, time_unit="us", strict=False, time_zone=None).dt.replace_time_zone(
            None
        )
    return text.str.to_date(body, strict=False).cast(pl.Datetime("us"))


def _refuse_first_null(moments: pl.Series, times: pl.Series) -> None:
    if moments.null_count():
        row = int(moments.is_null().arg_max() or 0)
        raise BadTimeError(row, times[row])

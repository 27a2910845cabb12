"""Times of any usual kind against Python's own."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdccf.data.columns import BadTimeError, to_microseconds
from hdccf.errors import SourceError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(datetime(1974, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(values: list[Any] | pl.Series, **options: Any) -> list[int]:
    series = values if isinstance(values, pl.Series) else pl.Series("time", values)
    return to_microseconds(series, source="test", **options).tolist()  # type: ignore[no-any-return]


@settings(deadline=None)
@given(st.lists(moments, min_size=1, max_size=5), st.sampled_from([1_000_000, 1_000, 1]))
def test_epochs_by_magnitude(values: list[datetime], unit: int) -> None:
    numbers = [micros(value) // unit for value in values]
    expected = [number * unit for number in numbers]
    assert read(numbers) == expected
    assert read([str(number) for number in numbers]) == expected
    assert read([float(number) for number in numbers]) == pytest.approx(expected, rel=1e-12)
    assert read([micros(value) * 1_000 + 7 for value in values]) == [micros(value) for value in values]


@settings(deadline=None)
@given(st.lists(moments, min_size=1, max_size=5), st.integers(-14 * 60, 14 * 60))
def test_iso_8601(values: list[datetime], offset: int) -> None:
    expected = [micros(value) for value in values]
    zone = timezone(timedelta(minutes=offset))
    assert read([value.astimezone(zone).isoformat() for value in values]) == expected
    assert read([value.replace(tzinfo=None).isoformat() for value in values]) == expected
    assert read([value.replace(tzinfo=None).isoformat(" ") + "Z" for value in values]) == expected
    assert read(pl.Series(values)) == expected
    assert read(
        pl.Series(values).dt.convert_time_zone("Asia/Tokyo").cast(pl.Datetime("ms", "Asia/Tokyo"))
    ) == [value // 1_000 * 1_000 for value in expected]


@settings(deadline=None)
@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 12, 31)), min_size=1, max_size=5))
def test_dates(values: list[date]) -> None:
    expected = [micros(datetime(value.year, value.month, value.day, tzinfo=UTC)) for value in values]
    assert read(values) == expected
    assert read([value.isoformat() for value in values]) == expected
    assert read([f"{value:%Y/%m/%d}" for value in values]) == expected
    assert read([int(f"{value:%Y%m%d}") for value in values]) == expected
    assert read([f"{value:%d.%m.%Y}" for value in values], time_format="%d.%m.%Y") == expected


def test_kinds_of_text_may_mix() -> None:
    texts = [
        "2020-01-02",
        "2020-01-02T00:00",
        " 2020-01-02 00:00:00.0 ",
        "20200102T000000Z",
        "2020-01-01 23:00-01",
    ]
    assert len(set(read(texts))) == 1


def test_fractions_of_seconds() -> None:
    assert read([1_600_000_000.25, 1_600_000_001.5]) == [1_600_000_000_250_000, 1_600_000_001_500_000]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (["2020-01-01", "2020-13-01"], 1),
        (["1600000000", "soon", "1600000001"], 1),
        (["31/12/2020", "01/02/2021"], 0),
        (["2020-01-01T25:00:00"], 0),
        ([1.5e9, float("nan")], 1),
        ([1.5e9, float("inf")], 1),
    ],
)
def test_the_first_value_that_is_no_time(values: list[Any], row: int) -> None:
    with pytest.raises(BadTimeError) as caught:
        read(values)
    assert caught.value.row == row


def test_a_format_that_does_not_fit() -> None:
    with pytest.raises(BadTimeError) as caught:
        read(["31/12/2020", "2020-12-31"], time_format="%d/%m/%Y")
    assert caught.value.value == "2020-12-31"


def test_types_that_are_no_times() -> None:
    with pytest.raises(SourceError, match="'time' holds Boolean"):
        read([True, False])

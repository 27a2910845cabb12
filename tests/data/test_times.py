"""Times of any usual kind against Python's own."""

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hdccf
from hdccf.data.columns import Table, to_microseconds
from hdccf.errors import SourceError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.datetimes(datetime(1974, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(values: list[Any] | pl.Series, **options: Any) -> list[int]:
    series = values if isinstance(values, pl.Series) else pl.Series("time", values)
    table = Table(pl.DataFrame({"time": series}), lambda row: f"row {row}")
    return to_microseconds(table, "time", source="test", **options).tolist()  # type: ignore[no-any-return]


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
    with pytest.raises(SourceError, match=f"^row {row}, column 'time': .* is no time"):
        read(values)


@pytest.mark.parametrize("as_kind", [int, float, str])
@pytest.mark.parametrize(
    ("limit", "below", "at"), [(10**11, 10**6, 10**3), (10**14, 10**3, 1), (10**17, 1, 10**-3)]
)
def test_the_limits_of_units_are_exact(limit: int, below: int, at: float, as_kind: type) -> None:
    last = limit - 1 if as_kind is not float else int(math.nextafter(limit, 0))
    assert read([as_kind(last)]) == pytest.approx([last * below], rel=0, abs=1 if as_kind is float else 0)
    assert read([as_kind(limit)]) == [round(limit * at)]
    # Before 1970 too, as far as there are years.
    if limit * at < 6e16:
        assert read([as_kind(-limit)]) == [round(-limit * at)]


@pytest.mark.parametrize("as_kind", [int, float, str])
@pytest.mark.parametrize(
    ("most", "other", "unit"),
    [
        (1_600_000_000, 1_600_000_000_000_000_000, "seconds"),
        (1_600_000_000, 1_600_000_000_000, "seconds"),
        (1_600_000_000_000, 1_600_000_000, "milliseconds"),
        (1_600_000_000_000, 1_600_000_000_000_000, "milliseconds"),
        (1_600_000_000_000_000, 1_600_000_000, "microseconds"),
        (1_600_000_000_000_000, 1_600_000_000_000, "microseconds"),
        (1_600_000_000_000_000_000, 1_600_000_000_000_000, "nanoseconds"),
        (20_240_517, 1_600_000_000, "20240517"),
        (20_240_517, 20_241_345, "20240517"),
    ],
)
def test_a_value_of_another_unit_is_refused(most: int, other: int, unit: str, as_kind: type) -> None:
    shown = re.escape(repr(as_kind(other)))
    with pytest.raises(SourceError, match=f"^row 2, .*: {shown} is .*{unit}"):
        read([as_kind(most), as_kind(most), as_kind(other), as_kind(most)])


def test_zeros_and_small_numbers_are_of_every_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert read([0, 0, 0, 1_600_000_000_000, 5]) == [0, 0, 0, 1_600_000_000_000_000, 5_000]
    assert capsys.readouterr().err == "note: test: read 'time' as milliseconds since 1970\n"
    assert read(list(range(5))) == [position * 1_000_000 for position in range(5)]
    assert read([0, 0]) == [0, 0]
    hours = [hour * 3_600_000_000 for hour in range(600)]  # since some start, not since 1970
    assert read(hours) == [hour * 1_000 for hour in hours]
    assert read([-86_400_000, 1_600_000_000_000]) == [-86_400_000_000, 1_600_000_000_000_000]  # 1969
    assert read([20_240_517.0, 20_240_518.0])[1] - read(["2024-05-17"])[0] == 86_400_000_000
    capsys.readouterr()
    read(pl.Series([datetime(2024, 5, 17)]))  # noqa: DTZ001
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([1_600_000_000, 2**64 - 1], dtype=pl.UInt64),
        pl.Series([1_600_000_000, 2**100], dtype=pl.Int128),
        pl.Series([1_600_000_000, -(2**63)]),
        pl.Series([1_600_000_000_000_000_000, -(2**63)]),
        pl.Series([1.6e18, 1e300]),
        pl.Series([1.6e9, -1e300]),
        pl.Series(["1600000000", "9" * 25]),
        pl.Series(["1600000000", "1e300"]),
        pl.Series([19_000, 110_000_000], dtype=pl.Int32).cast(pl.Date),
        pl.Series([0, 2**62]).cast(pl.Datetime("ms")),
        pl.Series([0, -(2**62)]).cast(pl.Datetime("us")),
        pl.Series(["2020-01-01", "300000-01-01"]),
    ],
)
def test_what_is_out_of_range_is_refused(values: pl.Series) -> None:
    with pytest.raises(SourceError, match=r"^row 2, column 'time'"):
        read(pl.concat([values.head(1), values]))


def test_one_nanosecond_value_changes_no_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    events = pl.DataFrame(
        {
            "user": np.repeat(np.arange(200), 10),
            "item": np.concatenate([rng.permutation(50)[:10] for _ in range(200)]),
            "ts": 1_600_000_000 + rng.integers(0, 10**6, 2_000),
        }
    )
    late = events.with_columns(
        ts=pl.when(pl.int_range(2_000) == 777).then(pl.col("ts") * 10**9).otherwise("ts")
    )
    late.write_csv(tmp_path / "log.csv")
    with pytest.raises(
        SourceError, match=r"log.csv, line 779, column 'ts': 16\d{17} is not in seconds, as most"
    ):
        hdccf.read(tmp_path / "log.csv")


def test_a_format_that_does_not_fit() -> None:
    with pytest.raises(SourceError, match="'2020-12-31' is no time"):
        read(["31/12/2020", "2020-12-31"], time_format="%d/%m/%Y")


def test_types_that_are_no_times() -> None:
    with pytest.raises(SourceError, match="'time' holds Boolean"):
        read([True, False])

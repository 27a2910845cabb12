"""Rows put in order bucket by bucket, against sorting and collapsing them with NumPy."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hdccf.data import arrange as room
from hdccf.data import compiled
from hdccf.data.arrange import Halves, Part, arrange, in_halves
from hdccf.data.interactions import Interactions
from hdccf.data.times import integer_factor, to_microseconds
from sameness import assert_same

N_USERS, N_ITEMS = 9, 7  # the last of each has no rows
rows = st.lists(
    st.tuples(st.integers(0, N_USERS - 2), st.integers(0, N_ITEMS - 2), st.integers(-3, 3)),
    min_size=1,
    max_size=60,
)


def ids(count: int) -> pl.Series:
    return pl.Series([str(number) for number in range(count)])


def slowly(
    users: NDArray[np.int32], items: NDArray[np.int32], times: NDArray[np.int64] | None
) -> Interactions:
    return Interactions.from_codes(users, items, user_ids=ids(N_USERS), item_ids=ids(N_ITEMS), times=times)


def quickly(halves: Halves, factor: int = 1) -> Interactions:
    done = arrange(halves, N_USERS, N_ITEMS, factor)
    return Interactions.from_collapsed(done, user_ids=ids(N_USERS), item_ids=ids(N_ITEMS))


@settings(deadline=None)
@given(rows, st.booleans(), st.lists(st.integers(0, 60), max_size=3), st.sampled_from([1, 4, 1 << 15]))
@pytest.mark.parametrize("scale", [None, 1, 1_000, 10**17 + 1])
def test_as_numpy_does(
    scale: int | None, table: list[tuple[int, int, int]], ordered: bool, cuts: list[int], in_a_bucket: int
) -> None:
    """No times, small ones, ones that fit in another unit, and ones that do not fit."""
    users, items = (np.array([row[column] for row in table], np.int32) for column in (0, 1))
    times = None
    if scale is not None:
        times = np.array([row[2] for row in table], np.int64) * scale
        times = np.sort(times) if ordered else times
    chunks = None if times is None else np.split(times, sorted(min(cut, len(table)) for cut in cuts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_IN_A_BUCKET", in_a_bucket)
        patch.setattr(room, "_FEWEST_BUCKETS", 1)
        patch.setattr(room, "_BITS", 63 if scale != 1_000 else 18)
        assert_same(quickly(in_halves(users, items, chunks)), slowly(users, items, times))


def test_a_unit_is_found_where_microseconds_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = np.array([0, 1, 0], np.int32), np.array([1, 2, 3], np.int32)
    times = np.array([5_000_007, 7, 9_000_007], np.int64)
    monkeypatch.setattr(room, "_BITS", 24)
    monkeypatch.setattr(compiled, "histories", lambda *given: pytest.fail("the direct way was taken"))
    assert_same(quickly(in_halves(users, items, [times])), slowly(users, items, times))


def test_rows_too_wide_for_a_record_take_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    users, items = np.array([0, 1, 0], np.int32), np.array([1, 2, 3], np.int32)
    times = np.array([5, 7, 1 << 62], np.int64)
    original, asked = compiled.histories, list[int]()

    def watched(*given: Any) -> Any:
        asked.append(len(given))
        return original(*given)

    monkeypatch.setattr(compiled, "histories", watched)
    assert_same(quickly(in_halves(users, items, [times])), slowly(users, items, times))
    assert asked


def test_halves_may_be_empty() -> None:
    part = Part(np.array([1, 0], np.int32), np.array([0, 1], np.int32), np.array([3, 4], np.int64))
    for halves in (Halves([part], []), Halves([], [part])):
        assert_same(quickly(halves, factor=10), slowly(part.users, part.items, np.array([30, 40])))


def test_other_times_for_the_same_rows() -> None:
    codes = np.arange(6, dtype=np.int32)
    halves = in_halves(codes, codes, [np.zeros(2, np.int64), np.zeros(4, np.int64)])
    assert [len(part.users) for part in halves.parts] == [2, 1, 3]
    renewed = halves.with_times(np.arange(6))
    assert np.concatenate(renewed.times).tolist() == list(range(6))
    assert renewed.time_range == (0, 5)


@pytest.mark.parametrize("moment", [0, 5, -5, 1_700_000_000, 1_700_000_000_123, 1_700_000_000_123_456])
def test_the_factor_is_the_one_of_single_times(moment: int) -> None:
    factor = integer_factor(moment, moment)
    assert factor is not None
    assert to_microseconds(pl.Series([moment]), source="").tolist() == [moment * factor]


@pytest.mark.parametrize("moment", [20240517, 1_700_000_000_123_456_789])
def test_days_and_nanoseconds_have_no_factor(moment: int) -> None:
    assert integer_factor(moment, moment) is None

"""Grouping ids by one sort against a dictionary, with hashes that confuse everything."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdccf.data import ids as module
from hdccf.data.ids import Groups, group_ids
from hdccf.errors import SourceError


def check(groups: Groups, values: list[Any]) -> None:
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    assert groups.vocabulary.to_list() == list(codes)
    assert groups.codes().tolist() == [codes[value] for value in values]
    starts = groups.starts()
    placed = np.full(len(values), -1)
    for places, rows in groups.pieces(0, len(codes)):
        placed[places] = rows
    for value, code in codes.items():
        expected = [row for row, other in enumerate(values) if other == value]
        assert placed[starts[code] : starts[code + 1]].tolist() == expected


values = st.lists(
    st.sampled_from(["", "a", "b", "aa", "é", "日本", "x" * 40, "x" * 41]), min_size=1, max_size=60
)
numbers = st.lists(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 10**12]), min_size=1, max_size=60)


@settings(deadline=None)
@given(values)
def test_text(column: list[str]) -> None:
    check(group_ids(pl.Series(column), source=""), column)
    check(group_ids(pl.Series(column, dtype=pl.Categorical), source=""), column)


@settings(deadline=None)
@given(numbers)
def test_integers(column: list[int]) -> None:
    check(group_ids(pl.Series(column), source=""), column)


@settings(max_examples=30, deadline=None)
@given(values, st.integers(1, 3))
def test_ids_that_the_first_hash_confuses(column: list[str], kept: int) -> None:
    # The first hash knows `kept` values only, so that nearly every group has to be parted.
    whole = pl.Series.hash

    def poor(series: pl.Series, seed: int = 0, *rest: Any) -> pl.Series:
        good = whole(series, seed, *rest)
        return good % kept * 2**60 if seed == module._SEEDS[0] else good

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.Series, "hash", poor)
        check(group_ids(pl.Series(column), source=""), column)


def test_many_rows_cross_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE", 64)
    column = [f"id-{number}" for number in np.random.default_rng(0).integers(0, 90, 1_000)]
    check(group_ids(pl.Series(column), source=""), column)


def test_untyped_integers_become_integers_only_if_all_are() -> None:
    assert group_ids(pl.Series(["1", "-2", "0"]), source="", typed=False).vocabulary.to_list() == [1, -2, 0]
    for odd in ("007", "-0", "1.0", "", " 1", "9" * 19):
        kept = group_ids(pl.Series(["1", odd]), source="", typed=False).vocabulary
        assert kept.to_list() == ["1", odd]
    assert group_ids(pl.Series(["1", "2"]), source="", typed=True).vocabulary.to_list() == ["1", "2"]


@pytest.mark.parametrize("column", [[1.5, 2.0], [True, False], [[1], [2]], [b"a", b"b"]])
def test_other_types_are_refused(column: list[Any]) -> None:
    with pytest.raises(SourceError, match="which is no id; text and integers are read"):
        group_ids(pl.Series("user", column), source="the data frame")

"""Numbering of ids in order of first appearance, against a dictionary."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdccf.data import adjacency
from hdccf.data.columns import number_ids
from hdccf.errors import SourceError


def check(column: pl.Series) -> None:
    values = column.to_list()
    expected = {value: code for code, value in enumerate(dict.fromkeys(values))}
    vocabulary, codes = number_ids(column, source="")
    assert vocabulary.to_list() == list(expected)
    assert codes.tolist() == [expected[value] for value in values]


values = st.lists(
    st.sampled_from(["", "a", "b", "aa", "é", "日本", "x" * 40, "x" * 41]), min_size=1, max_size=60
)
numbers = st.lists(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 10**12]), min_size=1, max_size=60)


@settings(deadline=None)
@given(values)
def test_text(column: list[str]) -> None:
    check(pl.Series(column))
    check(pl.Series(column, dtype=pl.Categorical))


@settings(deadline=None)
@given(numbers)
def test_integers(column: list[int]) -> None:
    check(pl.Series(column))


@settings(max_examples=30, deadline=None)
@given(values, st.integers(1, 3), st.sampled_from([0, 1 << 40]))
def test_ids_with_the_same_hash(column: list[str], distinct: int, compiled_from: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency, "COMPILED_FROM", compiled_from)
        whole = pl.Series.hash
        patch.setattr(pl.Series, "hash", lambda series, *seeds: whole(series, *seeds) % distinct)
        check(pl.Series(column))


def test_untyped_integers_become_integers_only_if_all_are() -> None:
    def kept(column: list[str], typed: bool) -> list[Any]:
        return number_ids(pl.Series(column), source="", typed=typed)[0].to_list()

    assert kept(["1", "-2", "0"], typed=False) == [1, -2, 0]
    for odd in ("007", "-0", "1.0", "", " 1", "9" * 19):
        assert kept(["1", odd], typed=False) == ["1", odd]
    assert kept(["1", "2"], typed=True) == ["1", "2"]


@pytest.mark.parametrize("column", [[1.5, 2.0], [True, False], [[1], [2]], [b"a", b"b"]])
def test_other_types_are_refused(column: list[Any]) -> None:
    with pytest.raises(SourceError, match="which is no id; text and integers are read"):
        number_ids(pl.Series("user", column), source="the data frame")

"""Numbering of ids in order of first appearance, against a dictionary."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hdccf
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
    for odd in ("007", "-0", "1.5", "1.", "", " 1", "9" * 19):
        assert kept(["1", odd], typed=False) == ["1", odd]
    # Whole numbers as pandas writes them, where a value was missing.
    assert kept(["1.0", "-2.00", "1", "0.0"], typed=False) == [1, -2, 0]
    assert kept(["1.0", "a"], typed=False) == ["1.0", "a"]
    assert kept(["1.0", "2.0"], typed=True) == ["1.0", "2.0"]
    assert kept(["1", "2"], typed=True) == ["1", "2"]


def test_whole_floats_are_the_same_ids_in_every_format(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1.0, 2.0, 1.0], "item": [10.0, 10.0, 20.0]})
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    frame.write_ndjson(tmp_path / "log.jsonl")
    for source in (frame, *tmp_path.iterdir()):
        data = hdccf.read(source)
        assert (data.user_ids.to_list(), data.item_ids.to_list()) == ([1, 2], [10, 20])


@pytest.mark.parametrize("missing", ["", "NaN", "nan", "null", "NULL", "None"])
def test_what_programs_write_for_nothing_is_a_missing_id(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f'user,item\n1,a\n2,b\n"{missing}",a\n1,b\n2,{missing}\n')
    with pytest.raises(
        SourceError, match=r"line 4: missing value \(1 in column 'user' and 1 in column 'item', of 5"
    ):
        hdccf.read(path)
    data = hdccf.read(path, drop_nulls=True)
    assert (data.user_ids.to_list(), data.item_ids.to_list(), len(data)) == ([1, 2], ["a", "b"], 3)
    assert "left out 2 of 5 rows" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["", "NaN", "null", "None"])
def test_what_programs_write_for_nothing_is_a_missing_time(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"user,item,time\n1,a,5\n2,b,{missing}\n2,c,7\n")
    with pytest.raises(SourceError, match=r"line 3: missing value \(1 in column 'time', of 3 rows\)"):
        hdccf.read(path)
    assert len(hdccf.read(path, drop_nulls=True)) == 2
    frame = pl.DataFrame({"user": [1, 2, 2], "item": ["a", "b", "c"], "time": [5.0, float("nan"), 7.0]})
    assert len(hdccf.read(frame, drop_nulls=True)) == 2


def test_not_a_number_is_a_missing_id() -> None:
    frame = pl.DataFrame({"user": [1.0, float("nan"), 2.0], "item": ["a", "b", "b"]})
    with pytest.raises(SourceError, match="row 2: missing value"):
        hdccf.read(frame)
    assert hdccf.read(frame, drop_nulls=True).user_ids.to_list() == [1, 2]


@pytest.mark.parametrize("column", [[1.5, 2.0], [True, False], [[1], [2]], [b"a", b"b"]])
def test_other_types_are_refused(column: list[Any]) -> None:
    with pytest.raises(SourceError, match="which is no id; text and integers are read"):
        number_ids(pl.Series("user", column), source="the data frame")

"""The compiled loops against the NumPy ways that they stand in for: equal, value for value."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdccf.data import compiled
from hdccf.data.adjacency import Collapsed, collapse
from hdccf.data.ids import group_ids, number_ids
from hdccf.data.interactions import Interactions
from hdccf.data.sources import read
from sameness import assert_equal, assert_same


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LEAST_ROWS", 0)


def slowly(source: Any, **options: Any) -> Interactions:
    """Read without compiled loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "LEAST_ROWS", 1 << 40)
        return read(source, **options)


texts = st.sampled_from(["", "a", "b", "aa", "é", "日本", "a\0", "x" * 12, "x" * 13, "y" * 40])


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=60), st.integers(0, 60))
def test_texts_are_numbered_as_groups_are(column: list[str], cut: int) -> None:
    # Two chunks, as files with several row groups give them.
    ids = pl.concat([pl.Series(column[:cut], dtype=pl.String), pl.Series(column[cut:], dtype=pl.String)])
    numbered, groups = number_ids(ids, source=""), group_ids(ids, source="")
    assert numbered.vocabulary.to_list() == groups.vocabulary.to_list()
    assert numbered.codes().tolist() == groups.codes().tolist()


@pytest.mark.parametrize("length", [5, 20])
def test_the_table_of_ids_grows(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(compiled, "_ROOM", 4)
    rng = np.random.default_rng(0)
    column = pl.Series([f"{number:0{length}d}" for number in rng.integers(0, 900, 3_000)])
    ids = pl.concat([column[:1_000], column[1_000:]])
    numbered, groups = number_ids(ids, source=""), group_ids(ids, source="")
    assert numbered.vocabulary.to_list() == groups.vocabulary.to_list()
    assert numbered.codes().tolist() == groups.codes().tolist()


rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(-3, 3)), min_size=1, max_size=60)


@settings(deadline=None)
@given(rows, st.booleans(), st.booleans(), st.booleans())
def test_collapsing_histories(
    table: list[tuple[int, int, int]], timed: bool, counted: bool, reuse: bool
) -> None:
    users, items, times = (np.array(column) for column in zip(*table, strict=True))
    order = np.argsort(users, kind="stable")
    # User 5 and item 6 have no rows.
    starts = np.searchsorted(users[order], np.arange(7))
    given = (
        items[order].astype(np.int32),
        times[order] if timed else None,
        np.arange(1, len(users) + 1, dtype=np.int32) if counted else None,
    )
    expected = collapse(starts, *given, 7)
    before = [None if column is None else column.copy() for column in given]
    assert_collapsed(compiled.collapse(starts, *given, 7, reuse=reuse), expected)
    if not reuse:
        for column, copy in zip(given, before, strict=True):
            assert_equal(column, copy)


def assert_collapsed(done: Collapsed, expected: Collapsed) -> None:
    for column, other in zip(done[:4], expected[:4], strict=True):
        assert_equal(column, other)
    for one, like in ((done.by_user, expected.by_user), (done.by_item, expected.by_item)):
        assert_equal(one.starts, like.starts)
        assert_equal(one.neighbours, like.neighbours)
    assert_equal(done.by_item.rows, expected.by_item.rows)


@settings(deadline=None)
@given(rows.filter(lambda table: len({row[0] for row in table}) > 1 < len({row[1] for row in table})))
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("time", [None, ""])
def test_reading_any_table(ordered: bool, time: str | None, table: list[tuple[int, int, int]]) -> None:
    frame = pl.DataFrame(
        {
            "user": [f"u{user}" for user, _, _ in table],
            "item": [f"i{item}" for _, item, _ in table],
            "time": sorted(row[2] for row in table) if ordered else [row[2] for row in table],
        }
    )
    assert_same(read(frame, time=time), slowly(frame, time=time))


def test_a_long_history_out_of_order() -> None:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "user": [f"u{user}" for user in rng.integers(0, 3, 2_000)],
            "item": [f"i{item}" for item in rng.integers(0, 300, 2_000)],
            "time": rng.integers(0, 50, 2_000),
        }
    )
    assert_same(read(frame), slowly(frame))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(2)
    frame = pl.DataFrame(
        {
            "user": [f"user_{user:07d}" for user in rng.integers(0, 300, 5_000)],
            "item": rng.integers(0, 90, 5_000).astype(str),
            "time": np.sort(rng.integers(1_600_000_000, 1_700_000_000, 5_000)),
        }
    )
    path = tmp_path / f"log.{kind}"
    frame.write_parquet(path, row_group_size=700) if kind == "parquet" else frame.write_csv(path)
    assert_same(read(path), slowly(path))


def test_small_sources_do_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LEAST_ROWS", 3)
    monkeypatch.setattr(compiled, "_kernels", lambda: pytest.fail("kernels were asked for"))
    assert len(read(pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"]}))) == 2


def test_without_numba_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"user": ["a", "b", "a"], "item": ["x", "y", "x"]})
    compiled_one = read(frame)
    monkeypatch.setattr(compiled, "_installed", lambda: False)
    monkeypatch.setattr(compiled, "_kernels", lambda: pytest.fail("kernels were asked for"))
    assert_same(read(frame), compiled_one)


@pytest.mark.parametrize("cause", [ImportError("no numba"), RuntimeError("cannot cache function")])
def test_numba_that_cannot_be_used_is_done_without(monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    def fail(name: str) -> None:
        raise cause

    monkeypatch.setattr(compiled, "import_module", fail)
    compiled._installed.cache_clear()
    try:
        assert not compiled.worthwhile(10)
        assert len(read(pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"]}))) == 2
    finally:
        compiled._installed.cache_clear()


def test_an_error_waits_for_the_other_half() -> None:
    ended = list[int]()

    def work(half: int) -> None:
        if half == 0:
            raise ValueError("the first half")
        time.sleep(0.2)
        ended.append(half)

    with pytest.raises(ValueError, match="the first half"):
        compiled.both(work)
    assert ended == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_helpers_of_its_own() -> None:
    code = """if True:
        import os
        from hdccf.data.compiled import both
        assert both(lambda half: half) == [0, 1]
        child = os.fork()
        if not child:
            os._exit(both(lambda half: 40 + half)[1])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "41", done.stderr

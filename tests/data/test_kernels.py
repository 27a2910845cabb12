"""The compiled loops of reading against NumPy and Polars: equal, value for value."""

import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hdccf
from hdccf.data import adjacency

pytest.importorskip("hdccf.kernels.ids_numba")

logs = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.tuples(st.integers(0, size), st.integers(0, size), st.integers(0, 5)), min_size=2, max_size=40
    )
)


def read(log: pl.DataFrame, compiled_from: int, time: str) -> hdccf.Interactions:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adjacency, "COMPILED_FROM", compiled_from)
        return hdccf.read(log, user="user", item="item", time=time)


@settings(deadline=None)
@given(logs, st.sampled_from(["time", ""]))
def test_any_log_is_read_the_same(log: list[tuple[int, int, int]], time: str) -> None:
    users, items, times = (list(column) for column in zip(*log, strict=True))
    # Two users and two items at least are what the reader wants.
    frame = pl.DataFrame(
        {
            "user": [f"u{user}" for user in [*users, -1, -2]],
            "item": [f"i{item}" for item in [*items, -1, -2]],
            "time": [*times, 0, 9],
        }
    )
    assert read(frame, 0, time).fingerprint == read(frame, 1 << 40, time).fingerprint


def test_more_ids_than_the_first_table_has_room_for() -> None:
    ids = np.random.default_rng(0).permutation(70_000)
    frame = pl.DataFrame({"user": ids, "item": ids[::-1] % 5}).cast(pl.String)
    assert read(frame, 0, "").fingerprint == read(frame, 1 << 40, "").fingerprint


def test_without_numba_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdccf.kernels.ids_numba", None)
    monkeypatch.delattr("hdccf.kernels.ids_numba", raising=False)
    adjacency.load_kernels.cache_clear()
    try:
        assert adjacency.load_kernels() is None
    finally:
        adjacency.load_kernels.cache_clear()

"""`Interactions` against a slow, literal version with dictionaries, and its round trip through a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hdccf
from hdccf.data import adjacency
from hdccf.data.adjacency import stable_order
from hdccf.data.interactions import Interactions
from hdccf.errors import DataError


class Row(NamedTuple):
    user: int
    item: int
    time: int
    often: int


N_USERS, N_ITEMS = 5, 6
rows = st.builds(
    Row, st.integers(0, N_USERS - 1), st.integers(0, N_ITEMS - 1), st.integers(-3, 3), st.integers(1, 4)
)
tables = st.lists(rows, max_size=40)


def build(table: list[Row], *, times: bool = True, counts: bool = True) -> Interactions:
    return Interactions.from_codes(
        np.array([row.user for row in table], np.int64),
        np.array([row.item for row in table], np.int64),
        user_ids=pl.Series([f"u{k}" for k in range(N_USERS)]),
        item_ids=pl.Series(range(10, 10 + N_ITEMS)),
        times=np.array([row.time for row in table], np.int64) if times else None,
        counts=np.array([row.often for row in table], np.int64) if counts else None,
    )


def literal(table: list[Row], *, times: bool = True) -> list[Row]:
    """Each pair once: its earliest row, its counts added; by user, then time, then arrival."""
    first: dict[tuple[int, int], tuple[int, int]] = {}
    totals: dict[tuple[int, int], int] = {}
    for arrival, row in enumerate(table):
        pair, moment = (row.user, row.item), (row.time if times else 0, arrival)
        first[pair] = min(first.get(pair, moment), moment)
        totals[pair] = totals.get(pair, 0) + row.often
    pairs = sorted(first, key=lambda pair: (pair[0], first[pair]))
    return [Row(*pair, first[pair][0], totals[pair]) for pair in pairs]


def as_rows(data: Interactions) -> list[Row]:
    times = np.zeros(len(data), np.int64) if data.times is None else data.times
    columns = (data.users, data.items, times, data.counts)
    return [Row(*map(int, values)) for values in zip(*columns, strict=True)]


@settings(deadline=None)
@given(tables, st.booleans(), st.booleans())
def test_equals_the_literal_version(table: list[Row], times: bool, counts: bool) -> None:
    data = build(table, times=times, counts=counts)
    counted = table if counts else [row._replace(often=1) for row in table]
    assert as_rows(data) == literal(counted, times=times)
    assert (data.times is None) == (not times)


@settings(deadline=None)
@given(tables)
def test_both_directions_hold_the_pairs(table: list[Row]) -> None:
    data = build(table)
    pairs = {(row.user, row.item) for row in table}
    for user in range(N_USERS):
        expected = [row.item for row in literal(table) if row.user == user]
        assert data.by_user.of(user).tolist() == expected
    for item in range(N_ITEMS):
        assert data.by_item.of(item).tolist() == sorted(user for user, other in pairs if other == item)
    rows_of_items = np.asarray(data.by_item.rows)
    assert data.users[rows_of_items].tolist() == data.by_item.neighbours.tolist()
    assert data.by_item.degrees.tolist() == np.bincount(data.items, minlength=N_ITEMS).tolist()
    assert data.by_user.degrees.tolist() == np.bincount(data.users, minlength=N_USERS).tolist()


@settings(deadline=None)
@given(tables)
def test_matrix_holds_ones_in_ascending_columns(table: list[Row]) -> None:
    expected = np.zeros((N_USERS, N_ITEMS))
    for row in table:
        expected[row.user, row.item] = 1
    matrix = build(table).matrix
    assert matrix.toarray().tolist() == expected.tolist()
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        assert np.all(np.diff(matrix.indices[start:stop]) > 0)


@settings(deadline=None)
@given(tables, st.data())
def test_subset_and_compact(table: list[Row], data: st.DataObject) -> None:
    whole = build(table)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole))), np.bool_)
    part = whole.subset(mask)
    assert as_rows(part) == [row for row, kept in zip(as_rows(whole), mask, strict=True) if kept]
    assert as_rows(whole.subset(np.flatnonzero(mask))) == as_rows(part)
    small = part.compact()
    assert small.frame().equals(part.frame())
    assert small.n_users == len(set(part.users.tolist()))
    assert small.n_items == len(set(part.items.tolist()))


def test_subset_refuses_rows_out_of_order() -> None:
    data = build([Row(0, 0, 0, 1), Row(1, 1, 0, 1)])
    with pytest.raises(DataError, match="ascend"):
        data.subset(np.array([1, 0]))


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_stable_order_is_a_stable_argsort(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(adjacency, "COMPILED_FROM", least)
    keys = np.random.default_rng(0).integers(-50, 50, 1000)
    assert stable_order(keys).tolist() == sorted(range(1000), key=keys.__getitem__)
    assert stable_order(keys[:0]).tolist() == []


def test_what_is_in_it() -> None:
    day = 86_400_000_000
    data = build([Row(0, 1, 0, 1), Row(0, 2, day, 2), Row(4, 1, 10 * day, 1)])
    assert len(data) == 3
    assert (data.n_users, data.n_items) == (N_USERS, N_ITEMS)
    assert data.density == pytest.approx(3 / 30)
    assert repr(data) == "Interactions(5 users × 6 items, 3 pairs, 10.000 % dense, 1970-01-01 to 1970-01-11)"
    assert [data.by_user.of(user).tolist() for user in range(N_USERS)] == [[1, 2], [], [], [], [1]]
    assert data.frame()["user"].to_list() == ["u0", "u0", "u4"]
    assert data.frame()["count"].to_list() == [1, 2, 1]
    assert build([]).density == 0


def test_immutable() -> None:
    data = build([Row(0, 1, 0, 1)])
    with pytest.raises(ValueError, match="read-only"):
        data.items[0] = 3
    with pytest.raises(AttributeError):
        data.items = data.users  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": [0, 5]}, "user codes run from 0 to 5; with 5 ids: 0 to 4"),
        ({"items": [-1, 0]}, "item codes run from -1 to 0"),
        ({"items": [0]}, "1 items were given for 2 users"),
        ({"times": [0]}, "1 times were given for 2 users"),
        ({"counts": [1, 1, 1]}, "3 counts were given for 2 users"),
        ({"titles": pl.Series(["B"])}, "1 titles were given for 6 items"),
    ],
)
def test_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    rows_given = {"users": [0, 1], "items": [0, 1], "times": [0, 0], "counts": [1, 1]} | changes
    columns: dict[str, Any] = {
        name: np.array(values) if isinstance(values, list) else values for name, values in rows_given.items()
    }
    with pytest.raises(DataError, match=message):
        Interactions.from_codes(
            **columns, user_ids=pl.Series(range(N_USERS)), item_ids=pl.Series(range(N_ITEMS))
        )


# -- fingerprint and folder ----------------------------------------------------------------------------------


def test_fingerprint_tells_everything_apart() -> None:
    table = [Row(0, 1, 5, 1), Row(1, 2, 6, 1)]
    base = build(table)
    others = [
        build([table[0], Row(1, 3, 6, 1)]),
        build([table[0], Row(1, 2, 7, 1)]),
        build([table[0], Row(1, 2, 6, 2)]),
        build(table, times=False),
        replace(base, user_ids=pl.Series(["u", "0u1", "u2", "u3", "u4"])),
        replace(base, item_ids=base.item_ids.cast(pl.String)),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
    assert build(list(table)).fingerprint == base.fingerprint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    build([Row(0, 1, 5, 1), Row(1, 2, 6, 1)]).save(tmp_path / "data")
    return tmp_path / "data"


def test_load_explains_what_is_wrong(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no saved interactions \(no meta.json\)"):
        Interactions.load(tmp_path)
    meta = json.loads((saved / "meta.json").read_text())
    for text, message in (
        (json.dumps(meta | {"version": 99}), "format version 99; this hdccf reads version 1"),
        (json.dumps(meta | {"format": "other"}), "no saved interactions; give"),
        ("{", "damaged"),
        (json.dumps(meta | {"fingerprint": "0" * 16}), "damaged: its fingerprint"),
    ):
        (saved / "meta.json").write_text(text)
        with pytest.raises(DataError, match=message):
            Interactions.load(saved)
    (saved / "meta.json").write_text(json.dumps(meta))
    whole = (saved / "pairs.parquet").read_bytes()
    (saved / "pairs.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged"):
        Interactions.load(saved)


@pytest.mark.parametrize("file", ["pairs", "users", "items"])
@pytest.mark.parametrize("change", ["null", "text", "gone", "folder"])
def test_a_changed_table_is_one_line(file: str, change: str, tmp_path: Path) -> None:
    hdccf.read(pl.DataFrame({"user": [1, 2], "item": [3, 4]})).save(tmp_path / "saved")
    path = tmp_path / "saved" / f"{file}.parquet"
    frame = pl.read_parquet(path)
    column = frame.columns[0]
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change == "gone":
        frame.rename({column: "other"}).write_parquet(path)
    else:
        value = pl.lit(None) if change == "null" else pl.lit("x")
        frame.with_columns(value.alias(column)).write_parquet(path)
    with pytest.raises(DataError, match="saved is damaged") as caught:
        hdccf.read(tmp_path / "saved")
    assert "\n" not in str(caught.value)

"""Parquet files straight to codes, against Polars: equal value for value, and the others left to it."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdccf.data import compiled, tables, values
from hdccf.data.columns import Columns
from hdccf.data.parquet import read_parquet
from hdccf.data.sources import read
from sameness import assert_same
from two_ways import Watch, assert_equal_outcomes, by_polars


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LEAST_ROWS", 0)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch, tables, "read_parquet")


def log(rows: int = 3_000, seed: int = 0, users: int = 900, items: int = 300) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": [f"u{number}" for number in rng.integers(0, users, rows)],
            "item": [f"item-{number:05d}" for number in rng.integers(0, items, rows)],
            "time": np.sort(rng.integers(1_600_000_000, 1_700_000_000, rows)),
        }
    )


def polars_writes(**options: Any) -> Callable[[Any, Path], None]:
    return lambda table, path: pl.DataFrame(table).write_parquet(path, **options)


def arrow_writes(**options: Any) -> Callable[[Any, Path], None]:
    return lambda table, path: pq.write_table(table, path, **options)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "Polars": polars_writes(),
    "Polars, row groups": polars_writes(row_group_size=700),
    "Polars, small pages": polars_writes(data_page_size=500, row_group_size=1_500),
    "Polars, snappy": polars_writes(compression="snappy"),
    "Polars, not packed": polars_writes(compression="uncompressed"),
    "pyarrow": arrow_writes(),
    "pyarrow, row groups": arrow_writes(row_group_size=700),
    "pyarrow, uneven row groups": arrow_writes(row_group_size=2_000),
    "pyarrow, dictionaries that overflow": arrow_writes(dictionary_pagesize_limit=900, write_batch_size=64),
    "pyarrow, no dictionaries": arrow_writes(use_dictionary=False),
    "pyarrow, second version of pages": arrow_writes(data_page_version="2.0", data_page_size=400),
    "pyarrow, second version, not packed": arrow_writes(data_page_version="2.0", compression="none"),
    "pyarrow, gzip": arrow_writes(compression="gzip"),
    "pyarrow, zstd": arrow_writes(compression="zstd"),
    "pandas": lambda table, path: table.to_pandas().to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writers(tmp_path: Path, watch: Watch, name: str) -> None:
    path = tmp_path / "log.parquet"
    WRITERS[name](log(), path)
    assert_same(read(path), by_polars(path))
    assert watch.taken[0]


def changed(column: str, made: Any) -> pa.Table:
    table = log(2_000)
    values = made(table[column])
    column_of = pa.array(values) if isinstance(values, list) else values
    return table.set_column(table.column_names.index(column), column, column_of)


def shuffled(column: pa.ChunkedArray) -> pa.Array:
    """A dictionary in another order than that of the rows, with values that none has."""
    known = [*column.unique().to_pylist(), "nobody", "nothing"][::-1]
    return pa.DictionaryArray.from_arrays(
        pa.array([known.index(text) for text in column.to_pylist()], pa.int32()), pa.array(known)
    )


TAKEN = {
    "beyond ASCII": changed("user", lambda ids: [f"日{text}é" for text in ids.to_pylist()]),
    "an empty text": changed("user", lambda ids: [text[2:] for text in ids.to_pylist()]),
    "15 bytes": changed("user", lambda ids: [text.rjust(15, "x") for text in ids.to_pylist()]),
    "large texts": changed("user", lambda ids: ids.cast(pa.large_string())),
    "a dictionary in another order": changed("item", shuffled),
    "integers": changed("user", lambda ids: [int(text[1:]) - 400 for text in ids.to_pylist()]),
    "short integers": changed(
        "item", lambda ids: pa.array([int(i[5:]) for i in ids.to_pylist()], pa.int32())
    ),
    "very short integers": changed(
        "item", lambda ids: pa.array([int(text[5:]) % 99 for text in ids.to_pylist()], pa.int8())
    ),
    "one value in long runs": changed("item", lambda ids: [f"i{row // 700}" for row in range(len(ids))]),
    "microseconds": changed("time", lambda times: times.cast(pa.timestamp("s")).cast(pa.timestamp("us"))),
    "milliseconds with a zone": changed("time", lambda times: times.cast(pa.timestamp("ms", "UTC"))),
    "numbers that are milliseconds": changed("time", lambda times: [t * 1_000 for t in times.to_pylist()]),
    "days as numbers": changed("time", lambda times: [20240101 + row % 28 for row in range(len(times))]),
    "another order of time": changed("time", lambda times: times.to_pylist()[::-1]),
    "no times": log(2_000).drop_columns(["time"]),
    "one user": changed("user", lambda ids: ["u"] * len(ids)),
    "a column that nobody needs": log(2_000).append_column("note", pa.array([[1, 2]] * 2_000)),
    "columns that cannot be missing": log(2_000).cast(
        pa.schema([field.with_nullable(False) for field in log(2).schema])
    ),
}
LEFT = {
    "16 bytes": changed("user", lambda ids: [text.rjust(16, "x") for text in ids.to_pylist()]),
    "a missing user": changed("user", lambda ids: [None, *ids.to_pylist()[1:]]),
    "a missing item far behind": changed("item", lambda ids: [*ids.to_pylist()[:-1], None]),
    "a missing time": changed("time", lambda times: [*times.to_pylist()[:-9], None, *times.to_pylist()[-8:]]),
    "no value at all": changed("user", lambda ids: pa.nulls(len(ids), pa.string())),
    "unsigned integers": changed("user", lambda ids: pa.array(range(len(ids)), pa.uint64())),
    "fractions": changed("user", lambda ids: [row / 2 for row in range(len(ids))]),
    "nanoseconds": changed("time", lambda times: times.cast(pa.timestamp("s")).cast(pa.timestamp("ns"))),
    "dates": changed("time", lambda times: pa.array([row % 9_999 for row in range(len(times))], pa.date32())),
    "short numbers as times": changed("time", lambda times: times.cast(pa.int32())),
    "times as texts": changed(
        "time", lambda times: [f"2024-05-{1 + row % 28:02d}" for row in range(len(times))]
    ),
    "a list of users": changed("user", lambda ids: [[text] for text in ids.to_pylist()]),
}


@pytest.mark.parametrize("write", [polars_writes(row_group_size=600), arrow_writes(row_group_size=600)])
@pytest.mark.parametrize("name", TAKEN)
def test_columns_that_are_read_here(tmp_path: Path, watch: Watch, name: str, write: Any) -> None:
    path = tmp_path / "log.parquet"
    write(TAKEN[name], path)
    assert_equal_outcomes(path)
    assert watch.taken[0]


@pytest.mark.parametrize("name", LEFT)
def test_columns_that_are_left_to_polars(tmp_path: Path, watch: Watch, name: str) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(LEFT[name], path, row_group_size=600)
    assert_equal_outcomes(path)
    assert_equal_outcomes(path, drop_nulls=True)
    assert True not in watch.taken


@pytest.mark.parametrize(
    "options",
    [{"use_dictionary": False, "column_encoding": {"user": "DELTA_BYTE_ARRAY"}}, {"compression": "lz4"}],
)
def test_pages_that_are_left_to_polars(tmp_path: Path, watch: Watch, options: dict[str, Any]) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(log(), path, **options)
    assert_same(read(path), by_polars(path))
    assert watch.taken[0] is False


def test_ratings_and_titles_are_left_to_polars(tmp_path: Path, watch: Watch) -> None:
    path = tmp_path / "log.parquet"
    table = (
        log().append_column("rating", pa.array(np.arange(3_000) % 5)).append_column("title", log()["item"])
    )
    pq.write_table(table, path)
    assert_equal_outcomes(path, title="title")
    assert_equal_outcomes(path, title="", minimum_rating=3)
    assert watch.taken == [False, False]  # of titles; with a minimum nothing is tried


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_empty_row_groups(tmp_path: Path, watch: Watch, compression: str) -> None:
    path = tmp_path / "log.parquet"
    with pq.ParquetWriter(path, log().schema, compression=compression) as writer:
        for part in (log()[:0], log(500), log()[:0], log(700, seed=2), log()[:0]):
            writer.write_table(part)
    assert_same(read(path), by_polars(path))
    assert watch.taken[0]


def test_tables_that_grow(tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_ROOM", 512)
    path = tmp_path / "log.parquet"
    pq.write_table(log(20_000, users=9_000, items=4_000), path, row_group_size=3_000)
    assert_same(read(path), by_polars(path))
    assert watch.taken[0]


def test_bytes_that_are_no_texts(tmp_path: Path, watch: Watch) -> None:
    """A file that says UTF-8 and holds something else gets Polars' verdict."""
    path = tmp_path / "log.parquet"
    pq.write_table(changed("user", lambda ids: ["zz" + text for text in ids.to_pylist()]), path)
    written = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert written.compression == "SNAPPY"
    plain = tmp_path / "plain.parquet"
    pq.write_table(pq.read_table(path), plain, compression="none")
    plain.write_bytes(plain.read_bytes().replace(b"zz", b"z\xff"))
    assert_equal_outcomes(plain)
    assert watch.taken[0] is False


def test_damaged_bytes_never_go_further(tmp_path: Path) -> None:
    """Each byte of the pages wrong in turn: the outcome is an answer or one sentence, never a crash."""
    path = tmp_path / "log.parquet"
    stream = io.BytesIO()
    pq.write_table(log(60, users=9, items=5), stream, compression="none", row_group_size=30)
    good = stream.getvalue()
    rng = np.random.default_rng(1)
    end = len(good) - int.from_bytes(good[-8:-4], "little") - 8
    for place in rng.choice(np.arange(4, end), 120, replace=False):
        path.write_bytes(good[:place] + bytes([int(rng.integers(256))]) + good[place + 1 :])
        coded = read_parquet(path, Columns("user", "item", "time"))
        if coded is not None:
            for part in coded.halves.parts:
                assert 0 <= part.users.min() <= part.users.max() < len(coded.user_ids)
                assert 0 <= part.items.min() <= part.items.max() < len(coded.item_ids)


def literal_indices(page: bytes, count: int) -> list[int]:
    """The runs of numbers as the format's description has them, bit by bit."""
    width, at, found = page[0], 1, list[int]()
    while len(found) < count:
        header = shift = 0
        while True:
            header |= (page[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if page[at - 1] < 128:
                break
        if header & 1:
            size = (header >> 1) * width
            bits = int.from_bytes(page[at : at + size], "little")
            found += [(bits >> (width * place)) % (1 << width) for place in range(8 * (header >> 1))]
        else:
            size = (width + 7) // 8
            found += [int.from_bytes(page[at : at + size], "little")] * (header >> 1)
        at += size
    return found[:count]


runs = st.lists(
    st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 2**31 - 1)), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs, st.integers(0, 31), st.integers(0, 7))
def test_indices_equal_the_literal_reading(
    table: list[tuple[bool, int, int]], width: int, fewer: int
) -> None:
    page, total = bytes([width]), 0
    for packed, length, seed in table:
        header = length << 1 | packed
        page += bytes([header & 127 | 128, header >> 7]) if header > 127 else bytes([header])
        if packed:
            page += np.random.default_rng(seed).bytes(length * width)
            total += 8 * length
        else:
            page += (seed % (1 << width)).to_bytes((width + 7) // 8, "little")
            total += length
    count = max(1, total - fewer)
    codes = np.full(count + 1, -7, np.int32)
    seen, ordered = values.read_indices(np.frombuffer(page, np.uint8), count, codes, 0, -1)
    expected = literal_indices(page, count)
    assert codes.tolist() == [*expected, -7]
    assert seen == max(expected)
    most = np.maximum.accumulate([-1, *expected])
    assert ordered == all(number <= before + 1 for number, before in zip(expected, most, strict=False))
    cut = np.frombuffer(page[:-1], np.uint8)
    assert not width or values.read_indices(cut, total, np.empty(total, np.int32), 0, -1)[0] == -2


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_missing_values_are_noticed(present: list[bool]) -> None:
    groups = -(-len(present) // 8)
    bits = sum(bit << place for place, bit in enumerate(present))
    levels = np.frombuffer(bytes([groups << 1 | 1]) + bits.to_bytes(groups, "little"), np.uint8)
    assert values.none_missing(levels, len(present)) == all(present)
    run = np.frombuffer(bytes([len(present) << 1, present[0]]), np.uint8)
    assert values.none_missing(run, len(present)) == present[0]
    assert not values.none_missing(run, len(present) + 1)

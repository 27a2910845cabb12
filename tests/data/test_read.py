"""Every kind of source gives the same interactions, and any id comes back as it was."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

import hdccf
from hdccf.data.columns import _MISSING
from hdccf.data.interactions import Interactions
from hdccf.errors import SourceError

# In order of time except for the last row, with one pair twice.
LOG = pl.DataFrame(
    {
        "customer_id": ["ann", "bob", "ann", "cyd", "ann"],
        "sku": [7, 7, 9, 8, 7],
        "ts": [1_600_000_000, 1_600_000_010, 1_600_000_020, 1_600_000_030, 1_500_000_000],
        "stars": [5.0, 2.0, 4.0, 3.0, 5.0],
        "title": ["Seven", "Seven", "Nine", None, "7"],
    }
)
SECOND = 1_000_000


def events(data: Interactions) -> list[tuple[Any, ...]]:
    """What was read, under the source's own ids."""
    times = [None] * len(data) if data.times is None else data.times.tolist()
    frame = data.frame()
    return list(zip(frame["user"], frame["item"], times, frame["count"], strict=True))


EXPECTED = [
    ("ann", 7, 1_500_000_000 * SECOND, 2),
    ("ann", 9, 1_600_000_020 * SECOND, 1),
    ("bob", 7, 1_600_000_010 * SECOND, 1),
    ("cyd", 8, 1_600_000_030 * SECOND, 1),
]


def write_csv(path: Path, separator: str = ",") -> Path:
    header = separator.join(LOG.columns)
    rows = (separator.join("" if value is None else str(value) for value in row) for row in LOG.iter_rows())
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def write_packed(path: Path, pack: Callable[[bytes], bytes]) -> Path:
    plain = write_csv(path.with_name("plain"))
    path.write_bytes(pack(plain.read_bytes()))
    plain.unlink()
    return path


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def write_parquet(path: Path, frame: pl.DataFrame = LOG) -> Path:
    path.parent.mkdir(exist_ok=True)
    frame.write_parquet(path)
    return path


def write_folder(path: Path) -> Path:
    write_parquet(path / "part-0.parquet", LOG.head(2))
    write_parquet(path / "part-1" / "late.parquet", LOG.tail(3))
    (path / "_SUCCESS").write_text("")
    return path


def write_jsonl(path: Path) -> Path:
    LOG.write_ndjson(path)
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    "csv": lambda folder: write_csv(folder / "log.csv"),
    "text path": lambda folder: str(write_csv(folder / "log.csv")),
    "tsv": lambda folder: write_csv(folder / "log.tsv", "\t"),
    "semicolons": lambda folder: write_csv(folder / "log.csv", ";"),
    "bars": lambda folder: write_csv(folder / "log.txt", "|"),
    "double colons": lambda folder: write_csv(folder / "log.dat", "::"),
    "gzip": lambda folder: write_packed(folder / "log.csv.gz", gzip.compress),
    "gzip without a name": lambda folder: write_packed(folder / "log", gzip.compress),
    "zstd": lambda folder: write_packed(folder / "log.csv.zst", zstd),
    "parquet": lambda folder: write_parquet(folder / "log.parquet"),
    "parquet without a name": lambda folder: write_parquet(folder / "log"),
    "parquet folder": lambda folder: write_folder(folder / "logs"),
    "parquet glob": lambda folder: f"{write_folder(folder / 'logs')}/**/*.parquet",
    "csv glob": lambda folder: f"{write_csv(folder / 'log.csv').parent}/*.csv",
    "jsonl": lambda folder: write_jsonl(folder / "log.jsonl"),
    "polars": lambda _: LOG,
    "polars lazy": lambda _: LOG.lazy(),
    "polars categories": lambda _: LOG.with_columns(pl.col("customer_id").cast(pl.Categorical)),
    "pandas": lambda _: LOG.to_pandas(),
    "pandas objects": lambda _: LOG.to_pandas().astype({"customer_id": object}),
    "arrow": lambda _: LOG.to_arrow(),
    "arrow dictionary": lambda _: pa.table(
        LOG.to_arrow().set_column(0, "customer_id", LOG.to_arrow()["customer_id"].dictionary_encode())
    ),
}


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_every_source_gives_the_same(kind: str, tmp_path: Path) -> None:
    data = hdccf.read(SOURCES[kind](tmp_path))
    assert events(data) == EXPECTED
    assert data.user_ids.to_list() == ["ann", "bob", "cyd"]
    assert data.item_ids.to_list() == [7, 9, 8]
    assert data.titles is not None
    assert data.titles.to_list() == ["Seven", "Nine", None]


def test_a_pandas_column_of_numbers_and_texts_is_read_as_text() -> None:
    frame = pd.DataFrame({"user": [1, "a", None, 1], "item": ["x", "y", "x", 2.5], "more": [[1], "b", 2, {}]})
    data = hdccf.read(frame, drop_nulls=True)
    assert data.frame().select("user", "item").rows() == [("1", "x"), ("1", "2.5"), ("a", "y")]
    twice = pd.DataFrame([["a", "x", 1], ["b", "y", 2]], columns=["user", "item", "item"])
    with pytest.raises(SourceError, match=r"the data frame cannot be read .*non-unique"):
        hdccf.read(twice)


def test_a_saved_folder_and_interactions_themselves(tmp_path: Path) -> None:
    data = hdccf.read(LOG)
    data.save(tmp_path / "saved")
    again = hdccf.read(tmp_path / "saved")
    assert again.fingerprint == data.fingerprint
    assert again.titles is not None
    assert again.titles.to_list() == ["Seven", "Nine", None]
    assert hdccf.read(data) is data


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csc_matrix, sparse.coo_array])
def test_sparse_matrix(kind: Any) -> None:
    matrix = kind(np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], np.int64))
    data = hdccf.read(matrix)
    assert events(data) == [(0, 1, None, 1), (2, 0, None, 1), (2, 2, None, 1)]
    assert events(hdccf.read(matrix, minimum_rating=2)) == [(0, 1, None, 1), (2, 2, None, 1)]


def test_minimum_rating_keeps_equal_ones() -> None:
    assert [event[:2] for event in events(hdccf.read(LOG, minimum_rating=3))] == [
        ("ann", 7),
        ("ann", 9),
        ("cyd", 8),
    ]


def test_guesses_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "log.csv")
    hdccf.read(path, minimum_rating=1)
    said = capsys.readouterr().err
    for guess in ("user='customer_id'", "item='sku'", "time='ts'", "rating='stars'", "title='title'"):
        assert guess in said
    hdccf.read(path, user="customer_id", item="sku", time="ts", title="title")
    assert capsys.readouterr().err == f"note: {path}: read 'ts' as seconds since 1970\n"


def test_columns_by_number_without_a_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "u.data"
    path.write_text("196\t242\t3\t881250949\n186\t302\t3\t891717742\n22\t377\t1\t878887116\n")
    data = hdccf.read(path, user=1, item="2", rating=3, time=4, minimum_rating=2)
    assert events(data) == [(196, 242, 881250949 * SECOND, 1), (186, 302, 891717742 * SECOND, 1)]
    assert "no header" in capsys.readouterr().err
    assert len(hdccf.read(path, user=1, item=2, header=True)) == 2


def test_header_may_be_denied(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("ann,x\nbob,y\n")
    assert events(hdccf.read(path, user=1, item=2, header=False)) == [
        ("ann", "x", None, 1),
        ("bob", "y", None, 1),
    ]


def test_times_can_be_left_out() -> None:
    data = hdccf.read(LOG, time="")
    assert data.times is None
    assert events(data)[0] == ("ann", 7, None, 2)


def test_nulls_are_dropped_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\na,b\n,c\nd,\ne,f\n")
    assert [event[:2] for event in events(hdccf.read(path, drop_nulls=True))] == [("a", "b"), ("e", "f")]
    assert "left out 2 of 4 rows" in capsys.readouterr().err


def test_encoding(tmp_path: Path) -> None:
    for name, encoding in (("a.csv", "latin-1"), ("b.csv", "utf-16"), ("c.csv", "cp1252")):
        (tmp_path / name).write_bytes("user,item\nZoë,café\nbob,thé\n".encode(encoding))
        assert hdccf.read(tmp_path / name, encoding=encoding).user_ids.to_list() == ["Zoë", "bob"]
    (tmp_path / "d.jsonl").write_bytes('{"user":"é","item":1}\n{"user":"b","item":2}\n'.encode("latin-1"))
    assert hdccf.read(tmp_path / "d.jsonl", encoding="latin-1").user_ids.to_list() == ["é", "b"]


def test_text_oddities(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for text in (
        "\ufeffuser,item\na,b\nc,d\n",
        "user,item\r\na,b\r\nc,d\r\n",
        "\n\nuser,item\n\na,b\n\n\nc,d\n\n",
        'user,item\n"a","b"\n"c","d"',
        "user , item\na,b\nc,d\n",
    ):
        path.write_bytes(text.encode())
        assert [event[:2] for event in events(hdccf.read(path))] == [("a", "b"), ("c", "d")]


def test_quotation_marks_can_be_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text('user\titem\ttitle\na\tb\t5" disk\nc\td\t"odd\n')
    titles = hdccf.read(path, quote="").titles
    assert titles is not None
    assert titles.to_list() == ['5" disk', '"odd']


def test_other_number_types_as_ids() -> None:
    frame = pd.DataFrame({"user": [1.0, 2.0, None], "item": [3, 4, 5]})
    assert hdccf.read(frame, drop_nulls=True).user_ids.to_list() == [1, 2]
    wide = pl.DataFrame(
        {"user": pl.Series([2**64 - 1, 1], dtype=pl.UInt64), "item": pl.Series([1, 2], dtype=pl.Int8)}
    )
    assert hdccf.read(wide).user_ids.to_list() == [str(2**64 - 1), "1"]


def test_json_ids_of_mixed_type(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"user":1,"item":1}\n' * 200 + '{"user":"u","item":2}\n')
    assert hdccf.read(path).user_ids.to_list() == ["1", "u"]


def test_files_with_columns_in_another_order(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", LOG.head(2))
    write_parquet(tmp_path / "b.parquet", LOG.tail(3).select(reversed(LOG.columns)))
    assert events(hdccf.read(tmp_path)) == EXPECTED


# -- any table of ids ----------------------------------------------------------------------------------------

# Surrogates cannot be written as UTF-8 by anyone, and a lone carriage return ends a line for some writers.
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=8)
odd_marks = st.sampled_from([" ", '"', ",", "\n", "a\nb", "\t", '""', "'", "::", "|;", "#"])
odd_words = st.sampled_from(["007", "-0", "NA", "none", "é", "日本", "1e5"])
texts = any_text.filter(lambda text: text not in _MISSING) | odd_marks | odd_words
integers = st.integers(-(2**63), 2**63 - 1)


@st.composite
def id_tables(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(st.integers(2, 12))
    columns = {
        name: draw(st.lists(draw(st.sampled_from([texts, integers])), min_size=rows, max_size=rows))
        for name in ("user", "item")
    }
    assume(all(len(set(values)) > 1 for values in columns.values()))
    return pl.DataFrame(columns)


def first_seen(values: pl.Series) -> list[Any]:
    return list(dict.fromkeys(values.to_list()))


def check(data: Interactions, table: pl.DataFrame, kind: type | None = None) -> None:
    """Vocabularies in order of first appearance; users' items in order of arrival; each pair counted."""
    for ids, column in ((data.user_ids, table["user"]), (data.item_ids, table["item"])):
        expected = first_seen(column)
        assert [str(one) for one in ids] == [str(one) for one in expected]
        assert kind is not None or ids.to_list() == expected
    pairs: dict[tuple[str, str], int] = {}
    for user, item in table.iter_rows():
        pairs[str(user), str(item)] = pairs.get((str(user), str(item)), 0) + 1
    users = [str(one) for one in first_seen(table["user"])]
    expected_pairs = sorted(pairs, key=lambda pair: users.index(pair[0]))
    assert [(str(user), str(item)) for user, item, *_ in events(data)] == expected_pairs
    assert data.counts.tolist() == [pairs[pair] for pair in expected_pairs]


@settings(max_examples=60, deadline=None)
@given(table=id_tables())
def test_any_ids_round_trip(tmp_path_factory: pytest.TempPathFactory, table: pl.DataFrame) -> None:
    folder = tmp_path_factory.mktemp("ids")
    check(hdccf.read(table), table)
    table.write_parquet(folder / "t.parquet")
    check(hdccf.read(folder / "t.parquet"), table)
    table.write_ndjson(folder / "t.jsonl")
    check(hdccf.read(folder / "t.jsonl"), table)
    hdccf.read(table).save(folder / "saved")
    check(hdccf.read(folder / "saved"), table)
    # A CSV knows no types: ids that are all plain integers come back as integers, whatever wrote them.
    table.write_csv(folder / "t.csv", quote_style="non_numeric")
    check(hdccf.read(folder / "t.csv", separator=",", header=True, time=""), table, kind=str)
    table.write_csv(folder / "t.tsv", separator="\t", quote_style="always")
    check(hdccf.read(folder / "t.tsv", header=True), table, kind=str)


def test_balanced_quotation_marks_within_a_field(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text('user,item,note\na,the "best" one,1\nb,y,\n')
    assert hdccf.read(path).item_ids.to_list() == ['the "best" one', "y"]

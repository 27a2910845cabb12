"""Bad input: one line that names file, line and column, and says what to do; nothing is written."""

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import hdccf
from hdccf.errors import SourceError

GOOD = "user,item,rating,time\na,x,5,2020-01-01\nb,y,4,2020-01-02\n"
LONG = "user,item\n" + "".join(f"u{row % 997},i{row % 991}\n" for row in range(5_000))

_PACKED = gzip.compress(LONG.encode())
SPOILT_GZIP = _PACKED[:200] + b"\xff" * 50 + _PACKED[250:]


def parquet_bytes(folder: Path) -> bytes:
    path = folder / "whole.parquet"
    pl.DataFrame({"user": [f"u{row}" for row in range(5_000)], "item": range(5_000)}).write_parquet(path)
    content = path.read_bytes()
    path.unlink()
    return content


# The content of log.csv, options, what the message must say.
BAD_CSV: dict[str, tuple[str | bytes, dict[str, Any], str]] = {
    "missing column": (GOOD, {"user": "who"}, r"no column 'who' for the user, only 'user', 'item'"),
    "column number": (GOOD, {"user": 9}, r"no column 9 for the user"),
    "no guess": ("a,b\n1,2\n", {}, r"no column is plainly the user, of 'a', 'b': give user= \(--user\)"),
    "two guesses": (
        "customer_id,client_id,sku\n1,2,3\n",
        {},
        r"'customer_id' and 'client_id' could each be the user: give user=",
    ),
    "one column twice": (GOOD, {"user": "item", "item": "item"}, r"cannot be both user and item"),
    "no names": ("1,2\n3,4\n", {}, r"of 1 \(such as '1'\), 2 \(such as '2'\)"),
    "empty": ("", {}, r"log.csv is empty"),
    "blank": ("\n\n", {}, r"log.csv is empty"),
    "header only": ("user,item\n", {}, r"a header and no rows"),
    "not UTF-8": (
        "user,item\na,x\nb,é\n".encode("latin-1"),
        {},
        r"log.csv, line 3: byte 3 \(0xe9\) is not UTF-8; .* encoding='latin-1' \(--encoding latin-1\)",
    ),
    "UTF-16": (GOOD.encode("utf-16"), {}, r"encoding='utf-16'"),
    "wrong encoding": ("user,item\na,é\n", {"encoding": "ascii-8"}, r"encoding='ascii-8' is unknown"),
    "encoding does not fit": (
        b"user,item\na,b\nc,\x81\n",
        {"encoding": "cp1252"},
        r"line 3: byte 0x81 does not fit encoding='cp1252'",
    ),
    "time": (
        "user,item,ts\na,x,1600000000\nb,y,soon\n",
        {},
        r"log.csv, line 3, column 'ts': 'soon' is no time; epoch seconds",
    ),
    "late time": (
        "user,item,ts\n" + "a,x,1600000000\n" * 500 + "b,y,never\n",
        {},
        r"line 502, column 'ts': 'never' is no time",
    ),
    "time after a quoted line end": (
        'user,item,ts\n"a\nb",x,2020-01-01\nb,y,2020-02-30\n',
        {},
        r"line 4, column 'ts': '2020-02-30'",
    ),
    "order of day and month": ("user,item,date\na,x,31/12/2020\n", {}, r"--time-format"),
    "null ids": (
        "user,item\na,x\n,y\nb,\n,z\n",
        {},
        r"line 3: missing value \(2 in column 'user' and 1 in column 'item', of 4 rows\); .*--drop-nulls",
    ),
    "nothing but nulls": ("user,item\n,y\nb,\n", {"drop_nulls": True}, r"no row without a missing"),
    "null time": ("user,item,ts\na,x,1600000000\nb,y,\n", {}, r"line 3: missing value \(1 in .*'ts'"),
    "null rating": ("user,item,rating\na,x,\nb,y,1\n", {"minimum_rating": 1}, r"line 2: missing value"),
    "single user": ("user,item\na,x\na,y\n", {}, r"column 'user' has one user only, 'a'; .*--user"),
    "single item": ("user,item\na,x\nb,x\n", {}, r"column 'item' has one item only, 'x'; .*--item"),
    "short row": ("user,item,n\na,x,1\nb,y\nc,z,1\n", {}, r"line 3: 2 fields where the first line has 3"),
    "long row": ("user,item,n\na,x,1\nb,y,1,2\n", {}, r"line 3: 4 fields where the first line has 3"),
    "long row, all columns": ("user,item\na,x\nb,y\nb,y,1\n", {}, r"line 4: 3 fields"),
    "long row, quotes": ('user,item,n\n"a,b",x,1\nb,y,1,2\n', {}, r"line 3: 4 fields"),
    "stray quote": (
        'user,item,n\na,5" disk,1\nb,3" nail,2\n',
        {},
        r"line 2: a quotation mark without a second one.*quote=''",
    ),
    "open quote": (
        'user,item\na,"x\nb,y\n',
        {},
        r"line 2: a quotation mark without a second one.*--quote ''",
    ),
    "no separator": ("user\na\n", {}, r"line 1: no separator in 'user'; give separator="),
    "wrong separator": (GOOD, {"separator": ";"}, r"no column is plainly the user"),
    "quote": (GOOD, {"quote": "''"}, r"quote=\"''\" is no quotation mark"),
    "rating": (
        GOOD.replace(",4,", ",good,"),
        {"minimum_rating": 3},
        r"line 3, column 'rating': 'good' is no number",
    ),
    "no rating": ("user,item\na,x\nb,y\n", {"minimum_rating": 3}, r"no column is plainly the rating"),
    "no rating that high": (GOOD, {"minimum_rating": 9}, r"no 'rating' is at least 9; the highest is 5"),
    "format": (GOOD, {"format": "xls"}, r"format='xls' is unknown; choose one of csv, jsonl, parquet, tsv"),
}
# The same for other files, after their names.
BAD: dict[str, tuple[str, str | bytes, dict[str, Any], str]] = {
    **{case: ("log.csv", *bad) for case, bad in BAD_CSV.items()},
    "long row, gzip": (
        "log.csv.gz",
        gzip.compress(b"user,item,n\na,x,1\nb,y,1,2\n"),
        {},
        r"log.csv.gz, line 3: 4 fields",
    ),
    "short row, double colons": ("log.dat", "user::item\na::x\nb\n", {}, r"line 3: 1 fields"),
    "truncated gzip": (
        "log.csv.gz",
        gzip.compress(LONG.encode())[:-200],
        {},
        r"log.csv.gz is truncated or damaged",
    ),
    "gzip of nothing": ("log.csv.gz", gzip.compress(LONG.encode())[:8], {}, r"truncated or damaged"),
    "truncated zstd": (
        "log.csv.zst",
        pa.compress(LONG.encode(), codec="zstd", asbytes=True)[:-50],
        {},
        r"log.csv.zst is truncated or damaged",
    ),
    "truncated gzip of JSON": (
        "log.jsonl.gz",
        gzip.compress(b'{"user":"a","item":1}\n' * 3_000)[:-20],
        {},
        r"log.jsonl.gz is truncated or damaged",
    ),
    "no JSON": (
        "log.jsonl",
        '{"user":"a","item":1}\n{"user":"b"\n',
        {},
        r"log.jsonl, line 2: it is no JSON \(Expecting ',' delimiter, character 13\); mend the line",
    ),
    "no JSON object": ("log.jsonl", "[1, 2]\n", {}, r"line 1: it is no JSON object; mend the line"),
    "JSON without a key": (
        "log.jsonl",
        '{"user":"a","item":1}\n\n{"item":2}\n',
        {},
        r"line 3: missing value",
    ),
    "JSON not UTF-8": (
        "log.jsonl",
        '{"user":"é","item":1}\n'.encode("latin-1"),
        {},
        r"line 1: it is not UTF-8",
    ),
    "JSON time": (
        "log.jsonl",
        '{"user":"a","item":1,"ts":"x"}\n',
        {},
        r"line 1, column 'ts': 'x' is no time",
    ),
    "gzip with a wrong byte": ("log.csv.gz", SPOILT_GZIP, {}, r"log.csv.gz is truncated or damaged"),
    "gzip of JSON with a wrong byte": ("log.jsonl", SPOILT_GZIP, {}, r"log.jsonl is truncated or damaged"),
    "long field": (
        "log.csv",
        f"user,item\n{'a' * 140_000},x\nb,y\n",
        {},
        r"line 2: field larger than field limit",
    ),
    "NUL bytes": ("log.csv", b"\x00\x01\x02", {}, r"line 1: no separator"),
    "CSV that claims to be Parquet": ("log.parquet", GOOD, {}, r"log.parquet is truncated or damaged"),
    "empty Parquet": ("log.parquet", "", {}, r"log.parquet is empty"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_files(case: str, tmp_path: Path) -> None:
    name, content, options, message = BAD[case]
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SourceError, match=message) as caught:
        hdccf.read(path, **options)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("damage", ["end", "middle", "half"])
def test_damaged_parquet(damage: str, tmp_path: Path) -> None:
    whole = parquet_bytes(tmp_path)
    broken = {
        "end": whole[:-20],
        "half": whole[: len(whole) // 2],
        "middle": whole[:40] + b"\0" * 200 + whole[240:],
    }
    (tmp_path / "log.parquet").write_bytes(broken[damage])
    with pytest.raises(
        SourceError, match=r"log\.parquet is truncated or damaged .*; fetch or write it again"
    ):
        hdccf.read(tmp_path / "log.parquet")


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no file or folder .*nope\.csv"):
        hdccf.read(tmp_path / "nope.csv")
    with pytest.raises(SourceError, match=r"no file matches .*nope\*\.csv"):
        hdccf.read(f"{tmp_path}/nope*.csv")
    with pytest.raises(SourceError, match=r"the folder .* holds no data files"):
        hdccf.read(tmp_path)
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.jsonl").write_text('{"user":1,"item":2}\n')
    with pytest.raises(SourceError, match="holds csv and jsonl files"):
        hdccf.read(tmp_path)


def test_paths_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=r"aaa cannot be read \(.*File name too long"):
        hdccf.read("a" * 5_000)
    (tmp_path / "log.csv").write_text(GOOD)

    def refuse(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    with pytest.raises(SourceError, match=r"log\.csv cannot be read \(Permission denied\)"):
        hdccf.read(tmp_path / "log.csv")


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(GOOD)
    (tmp_path / "b.csv").write_text("user,thing\na,b\n")
    with pytest.raises(SourceError, match=r"b\.csv has the columns user, thing, but .*a\.csv has user, item"):
        hdccf.read(tmp_path)
    (tmp_path / "b.csv").write_text(GOOD.replace("2020-01-02", "someday"))
    with pytest.raises(SourceError, match=r"b\.csv, line 3, column 'time': 'someday'"):
        hdccf.read(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([1, 2], "a list cannot be read; give a path"),
        (pl.DataFrame({"user": [1.5, 2.5], "item": [1, 2]}), "column 'user' holds Float64, which is no id"),
        (pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": [True, False]}), "'time' holds Boolean"),
        (pl.DataFrame({"user": [], "item": []}), "the data frame has no rows"),
        (pl.DataFrame({"user": [1, None], "item": [1, 2]}), "the data frame, row 2: missing value"),
        (
            pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": ["2020-01-01", "x"]}),
            "the data frame, row 2, column",
        ),
    ],
)
def test_bad_frames(source: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        hdccf.read(source)


def test_rows_keep_their_lines_after_a_filter(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "user,item,rating,time\na,x,1,2020-01-01\n\n,y,5,2020-01-01\nb,y,5,bad\nc,x,5,2020-01-01\n"
    )
    with pytest.raises(SourceError, match="line 5, column 'time': 'bad'"):
        hdccf.read(path, drop_nulls=True, minimum_rating=2)


def test_a_rating_without_a_minimum_is_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    hdccf.read(pl.DataFrame({"user": [1, 2], "item": [1, 2], "stars": [1, 2]}), rating="stars")
    assert "every row counts" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "polars", "pandas", "sql"])
def test_ratings_that_are_not_finite(kind: str, bad: float, tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3], "rating": [5.0, bad, 4.0]})
    options: dict[str, Any] = {"minimum_rating": 3}
    reader, source = hdccf.read, tmp_path / f"log.{kind}"
    if kind == "csv":
        frame.write_csv(source)
    elif kind == "jsonl":
        source.write_text("".join(f'{{"user":{u},"item":{i},"rating":"{r}"}}\n' for u, i, r in frame.rows()))
    elif kind == "parquet":
        frame.write_parquet(source)
    elif kind != "sql":
        source = frame if kind == "polars" else frame.to_pandas()  # type: ignore[assignment]
    else:
        # SQLite itself keeps NaN as null.
        rows = " union all ".join(
            f"select {u} as user, {u} as item, '{r}' as rating" for u, _, r in frame.rows()
        )
        sqlite3.connect(tmp_path / "shop.db").close()
        reader, source = hdccf.read_sql, rows  # type: ignore[assignment]
        options["uri"] = f"sqlite:///{tmp_path}/shop.db"
    place = {"csv": "line 3", "jsonl": "line 2"}.get(kind, "row 2")
    with pytest.raises(SourceError, match=rf"{place}(, column 'rating': .*no finite number|: missing value)"):
        reader(source, **options)
    assert reader(source, **options, drop_nulls=True).user_ids.to_list() == [1, 3]

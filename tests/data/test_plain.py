"""Plain files straight to codes, against Polars: equal value for value, and the others left to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdccf.data import compiled, plain, text
from hdccf.data.sources import read
from hdccf.errors import SourceError
from sameness import assert_same
from two_ways import Watch, assert_equal_outcomes, by_polars


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "LEAST_ROWS", 0)


def watching(patch: pytest.MonkeyPatch) -> Watch:
    return Watch(patch, text, "read_plain")


PLAIN = {
    "header": b"user,item,time\na,x,1\nb,y,2\na,x,3\n",
    "no final newline": b"user,item,time\na,x,1\nb,y,2\na,z,3",
    "no header": b"a,x,1\nb,y,2\na,z,3\n",
    "tabs": b"user\titem\ttime\na\tx\t1\nb\ty\t2\n",
    "spaces": b"a x 10\nb y 20\n",
    "other order and more columns": b"time,rating,item,note,user\n7,4.5,x,,a\n8,,y,n,b\n",
    "user last": b"item,user\nx,a\ny,b\n",
    "no times": b"user,item\na,x\nb,y\na,x\n",
    "integers": b"user,item,time\n10,7,5\n9,-3,4\n10,-3,3\n",
    "leading zeros": b"user,item,time\n007,7,0005\n7,8,4\n",
    "out of order of time": b"user,item,time\na,x,9\nb,x,2\na,y,3\na,x,1\n",
    "long times": b"user,item,time\na,x,1234567890123456\nb,y,123456789012345\n",
    "days": b"user,item,time\na,x,20240517\nb,y,20240518\n",
    "ids of 15 bytes": b"user,item\n123456789abcdef,x\n123456789abcdeg,y\n",
    "an empty field that nobody needs": b"user,item,note\na,x,\nb,y,\n",
    "a null byte within an id": b"user,item\na\0,x\na,y\n",
    "a byte order mark before the header": b"\xef\xbb\xbfuser,item\na,x\nb,y\n",
    "a header beyond ASCII": "user,item,Größe\na,x,1\nb,y,2\n".encode(),
}
NOT_PLAIN = {
    "quotation marks": b'user,item,time\n"a",x,1\nb,"y,z",2\n',
    "a quoted header": b'"user","item"\na,x\nb,y\n',
    "carriage returns": b"user,item,time\r\na,x,1\r\nb,y,2\r\n",
    "a blank line": b"user,item,time\na,x,1\n\nb,y,2\n",
    "a blank line at the end": b"user,item,time\na,x,1\nb,y,2\n\n",
    "a blank line at the start": b"\nuser,item,time\na,x,1\nb,y,2\n",
    "beyond ASCII": "user,item\né,x\nb,日本\n".encode(),
    "not UTF-8": b"user,item\n\xe9,x\nb,y\n",
    "an empty user": b"user,item,time\n,x,1\nb,y,2\n",
    "an empty item": b"user,item,time\na,,1\nb,y,2\n",
    "an empty time": b"user,item,time\na,x,\nb,y,2\n",
    "a long id": b"user,item\n123456789abcdefg,x\nb,y\n",
    "a negative time": b"user,item,time\na,x,-5\nb,y,2\n",
    "a fractional time": b"user,item,time\na,x,5.5\nb,y,2\n",
    "an ISO time": b"user,item,time\na,x,2024-05-17\nb,y,2024-05-18\n",
    "a time of 17 digits": b"user,item,time\na,x,12345678901234567\nb,y,12345678901234568\n",
    "a time with a space": b"user,item,time\na,x, 5\nb,y,2\n",
    "no time at all": b"user,item,time\na,x,soon\nb,y,2\nb,z,3\n",
    "a row too long": b"user,item,time\na,x,1\nb,y,2,3\n",
    "a row too short": b"user,item,time\na,x,1\nb,y\n",
    "fields from one row in the next": b"user,item,time\na,x\n1,b,y,2\n",
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(PLAIN[name])
    watch = watching(monkeypatch)
    columns: dict[str, Any] = {"user": 1, "item": 2, "time": 3} if name in ("no header", "spaces") else {}
    assert_same(read(path, **columns), by_polars(path, **columns))
    assert watch.taken == [True]


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_files_that_are_not_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(NOT_PLAIN[name])
    watch = watching(monkeypatch)
    assert_equal_outcomes(path)
    assert_equal_outcomes(path, drop_nulls=True)
    assert True not in watch.taken


@pytest.mark.parametrize("options", [{"minimum_rating": 4}, {"title": "title"}, {"encoding": "latin-1"}])
def test_what_only_polars_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,rating,title\na,x,4,X\nb,y,5,Y\nb,x,2,X\n")
    watch = watching(monkeypatch)
    assert_equal_outcomes(path, **options)
    assert not watch.taken


def test_quotation_marks_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text('user,item\n"a,x\nb",y\n')
    watch = watching(monkeypatch)
    assert_same(read(path, quote=""), by_polars(path, quote=""))
    assert watch.taken == [True]


def test_one_user_only_is_refused_with_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\na,x\na,y\n")
    assert_equal_outcomes(path)
    with pytest.raises(SourceError, match="one user only"):
        read(path)


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("window", [64, 200, 1 << 20])
def test_many_windows_and_tables_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, ending: bytes
) -> None:
    rng = np.random.default_rng(window)
    users, items, times = (rng.integers(0, most, 6_000) for most in (2_500, 1_200, 10**9))
    # Lines become longer and shorter, so that rooms for parts are guessed wrongly.
    lines = [
        f"{'u' * (row // 1_000)}{user},{item},{time}"
        for row, (user, item, time) in enumerate(zip(users, items, times, strict=True))
    ]
    path = tmp_path / "log.csv"
    path.write_bytes(b"user,item,time\n" + "\n".join(lines).encode() + ending)
    monkeypatch.setattr(plain, "_WINDOW", window)
    monkeypatch.setattr(compiled, "_ROOM", 512)
    watch = watching(monkeypatch)
    assert_same(read(path), by_polars(path))
    assert watch.taken == [True]


def test_a_line_longer_than_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,note\n" + f"a,x,{'n' * 500}\nb,y,n\n" * 9)
    monkeypatch.setattr(plain, "_WINDOW", 256)
    watch = watching(monkeypatch)
    assert_same(read(path), by_polars(path))
    assert watch.taken == [False]


def test_a_fault_far_behind_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv"
    good = [f"u{row % 7},i{row % 5},{row}" for row in range(20_000)]
    monkeypatch.setattr(plain, "_WINDOW", 4_096)
    for fault in ("u1,i1", "u1,i1,1,1", "u1,,1", "u1,i1,x", "u1,é,1", '"u1",i1,1', "", "u1,i1,1.5"):
        path.write_text("user,item,time\n" + "\n".join([*good[:15_000], fault, *good[15_000:]]) + "\n")
        watch = watching(monkeypatch)
        assert_equal_outcomes(path)
        assert watch.taken == [False], fault


fields = st.sampled_from(
    ["a", "b", "7", "12", "0", "-1", "007", "x" * 12, "y" * 15, "z" * 16, "", "é", " ", "1.5"]
)
times = st.sampled_from(["1", "20", "3000", "1600000000", "1600000000123", "", "-4", "1.5", "x", "20240517"])
rows = st.lists(st.tuples(fields, fields, times, fields), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows,
    st.integers(2, 4),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, None, 1, 3]),
)
def test_any_table(
    tmp_path: Path,
    table: list[tuple[str, ...]],
    width: int,
    newline: str,
    header: bool,
    ended: bool,
    odd_width: int | None,
) -> None:
    names = [("user", "item", "time", "note")[:width]] if header else []
    lines = [",".join(row[:width]) for row in [*names, *table]]
    if odd_width is not None:
        lines.append(",".join(table[0][:odd_width]))
    path = tmp_path / "log.csv"
    path.write_bytes((newline.join(lines) + newline * ended).encode())
    columns: dict[str, Any] = {"user": 1, "item": 2, "time": 3 if width > 2 else ""}
    assert_equal_outcomes(path, header=header, drop_nulls=True, **columns)

"""A file or a folder is there in full or not at all."""

import errno
import os
from pathlib import Path

import polars as pl
import pytest

from graphs import small_split
from hdccf.errors import DiskFullError, HdccfError
from hdccf.files import atomic_directory, atomic_file, write_json


class StoppedError(Exception):
    """Whatever stops the writer half-way."""


def test_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("all of it")
        assert not path.exists()
    assert path.read_text() == "all of it"
    assert [entry.name for entry in path.parent.iterdir()] == ["result.txt"]


def test_file_of_an_interrupted_writer_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise StoppedError

    with pytest.raises(StoppedError):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "result.txt"
    path.write_text("old")
    with (
        pytest.raises(HdccfError, match=r"exists; choose another name, .*--overwrite"),
        atomic_file(path, overwrite=False),
    ):
        pytest.fail("must not begin")
    assert path.read_text() == "old"


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("")
        with atomic_directory(tmp_path / "folder") as folder:
            (folder / "inside").write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750


def test_directory_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with atomic_directory(path) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
        assert not path.exists()
    assert (path / "deep" / "file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [path]


def test_directory_of_an_interrupted_writer_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").write_text("old")

    def write() -> None:
        with atomic_directory(path, overwrite=True) as folder:
            (folder / "new").write_text("half")
            raise StoppedError

    with pytest.raises(StoppedError):
        write()
    assert [entry.name for entry in path.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_directory_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").write_text("old")
    with (
        pytest.raises(HdccfError, match=r"exists; choose another folder, .*--overwrite"),
        atomic_directory(path),
    ):
        pytest.fail("must not begin")
    with atomic_directory(path, overwrite=True) as folder:
        (folder / "new").write_text("new")
    assert [entry.name for entry in path.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_directory_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").write_text("old")
    replace = Path.replace

    def fails_for_the_new_one(self: Path, target: Path) -> Path:
        if (self / "new").exists():
            raise OSError("no")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fails_for_the_new_one)

    def write() -> None:
        with atomic_directory(path, overwrite=True) as folder:
            (folder / "new").write_text("new")

    with pytest.raises(OSError, match="no"):
        write()
    assert [entry.name for entry in path.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_readable_and_strict(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    write_json(path, {"name": "é", "n": 1})
    assert path.read_text(encoding="utf-8") == '{\n  "name": "é",\n  "n": 1\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"loss": float("nan")})
    assert path.read_text(encoding="utf-8").startswith('{\n  "name"')


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_directory(tmp_path / "run") as folder:
            (folder / "mine").write_text("mine")
            (tmp_path / "run").mkdir()

    with pytest.raises(HdccfError, match="was created by another process meanwhile; choose another folder"):
        write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("cause", [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)"),
])  # fmt: skip
def test_a_full_disk_is_told_in_one_line_and_nothing_is_left(tmp_path: Path, cause: Exception) -> None:
    for writer in (atomic_file, atomic_directory):
        told = pytest.raises(DiskFullError, match=r"^.*/new could not be written: .*; make room, or")
        with told as caught, writer(tmp_path / "new"):
            raise cause
        assert caught.value.errno in (errno.ENOSPC, errno.EDQUOT)
    assert list(tmp_path.iterdir()) == []


def test_a_split_that_finds_no_room_is_not_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pl.DataFrame.write_parquet

    def full(frame: pl.DataFrame, file: Path) -> None:
        real(frame, Path("/dev/full") if file.name == "items.parquet" else file)

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(DiskFullError, match=r"^.*/split could not be written: No space left on device;"):
        small_split().save(tmp_path / "split")
    assert list(tmp_path.iterdir()) == []

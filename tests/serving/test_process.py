"""A real server process on a free loopback port: it says where it listens, reloads, and stops gracefully."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from command_line import error_of
from hdccf.serving import app as app_module
from training import give_weights

pytest_plugins = ["service_fixtures"]

SLOW = """
import sys, time
from hdccf.serving import routes
real = routes._scored
def slow(*arguments):
    print("scoring", file=sys.stderr, flush=True)
    time.sleep(1.0)
    return real(*arguments)
routes._scored = slow
from hdccf.cli import main
main()
"""
"""The command line with a model that takes a second a pair."""


class Server:
    """A process, and the lines that it has written so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []

    def line_with(self, words: str) -> str:
        """Waits for it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"no line with {words!r} in {self.lines}")

    def address(self) -> str:
        found = re.search(r"http://[0-9.]+:\d+", self.line_with("serving on"))
        assert found
        return found[0]

    def ends(self) -> int:
        self.lines.append(self.process.communicate(timeout=60)[1])
        return self.process.returncode


@contextmanager
def started(run: Path, *options: str, code: str = "from hdccf.cli import main; main()") -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(run), "--port", "0", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield Server(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_request_under_way_is_answered_before_the_server_stops(run: Path) -> None:
    with started(run, code=SLOW) as server:
        address = server.address()
        answers: list[httpx2.Response] = []

        def ask() -> None:
            body = {"pairs": [{"user": 1, "item": 1}]}
            answers.append(httpx2.post(f"{address}/v1/score", json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        server.line_with("scoring")
        server.process.send_signal(signal.SIGTERM)
        assert server.ends() == 0
        asking.join()
        assert [answer.status_code for answer in answers] == [200]
        assert "stopped" in server.lines[-1]
        assert "Traceback" not in "".join(server.lines)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{address}/healthz")


def test_a_hangup_takes_a_new_model_and_slow_bodies_are_given_up(
    run: Path, other_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = tmp_path / "serve.toml"
    config.write_text("timeout_seconds = 0.5\nport = 1\nthreads = 1\n")
    with started(copy, "--config", str(config)) as server:
        address = server.address()
        before = httpx2.get(f"{address}/readyz").json()["model"]
        give_weights(other_run, copy)
        server.process.send_signal(signal.SIGHUP)
        server.line_with("answers now")
        after = httpx2.get(f"{address}/readyz").json()["model"]
        assert after != before
        (copy / "best.safetensors").write_bytes(b"nothing")
        server.process.send_signal(signal.SIGHUP)
        server.line_with("the old model goes on")
        assert httpx2.get(f"{address}/readyz").json()["model"] == after

        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as half:
            half.sendall(
                b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            answer = half.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 408
        server.process.send_signal(signal.SIGINT)
        assert server.ends() == 0


def send(address: str, data: bytes) -> bytes:
    """What a server answers to these bytes, until it closes the connection."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        answer = b""
        with suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                answer += more
        return answer


def test_rude_clients_are_cut_off(run: Path, key_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text("timeout_seconds = 1.0\n")
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    with started(run, "--config", str(config), "--api-key-file", str(key_file)) as server:
        address = server.address()
        kept_open = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for half in (b"", b"\r\n", start, kept_open + start):
            began = time.monotonic()
            answer = send(address, half)
            assert 0.5 < time.monotonic() - began < 10
            assert (b" 408 " in answer) == (half in (b"\r\n", start))
        # A body that nobody waits for, as its key is missing.
        late = send(address, b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert late.startswith(b"HTTP/1.1 401 ")

        used = processor_seconds(server.process.pid)
        for large in (
            b"X-A: " + b"a" * (60 << 20),
            b"X-A: a\r\n" * (1 << 20),
            b"X-A: " + b"a" * 70_000 + b"\r\n\r\n",
        ):
            answer = send(address, start + large)
            assert not answer or answer.startswith(b"HTTP/1.1 431 ")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert processor_seconds(server.process.pid) - used < 0.5
        assert send(address, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")

        assert httpx2.get(f"{address}/v1/page/run").status_code == 401
        assert httpx2.get(f"{address}/healthz").status_code == 200
        assert "Traceback" not in "".join(server.lines)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["RUN", "--port", "70000"], "'--port': Input should be less than or equal to 65535"),
        (["RUN", "--port", "TAKEN"], "cannot listen on 127.0.0.1 port"),
        (["RUN", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["RUN", "--config", "none.toml"], "none.toml does not exist"),
        (["RUN", "--cors-origin", "shop"], "no origin"),
        (["RUN", "--port", "0", "--api-key-file", "none"], "the key cannot be read"),
        (["NONE", "--port", "0"], "holds no run"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    run: Path,
    tmp_path: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"RUN": str(run), "TAKEN": str(taken.getsockname()[1]), "NONE": str(tmp_path)}
        typed = [given.get(argument, argument) for argument in arguments]
        assert said in error_of(capsys, "serve", *typed)


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """Nagle's algorithm is off for accepted connections."""
    with app_module._listen("127.0.0.1", 0) as made, socket.create_connection(made.getsockname()):
        connection, _ = made.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_server_loads_no_trainer(run: Path) -> None:
    code = (
        "import sys; from hdccf.serving.app import create_app; create_app(sys.argv[1]); "
        "print([name for name in sys.modules if name in ('hdccf.training.fit', 'hdccf.training.optim')])"
    )
    found = subprocess.run([sys.executable, "-c", code, run], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

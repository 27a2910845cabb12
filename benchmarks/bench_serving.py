"""Requests to a served model over loopback: latency and throughput beside the raw scoring time, and memory.

A server process of its own, and one client process with some connections that each ask, wait for the answer
and ask again. Raw is what the library takes for the same question in this process, one after another, on one
thread. Memory is the server's resident set after a first load and at the end.
Processor time is counted as well: on a machine that others use too, waiting says more about them.
At last events and recommendations are mixed, the server is killed (SIGKILL), and the log is searched for
every event that was acknowledged.

    python benchmarks/bench_serving.py [--quick] [--json] [--seconds 20] [--connections 16] [--run RUN]
    python benchmarks/bench_serving.py --events-only [--seconds 10] [--connections 16] [--run RUN]
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hdccf
from hdccf.recommend.recommender import Recommender

_MOST_EVENTS = 50_000
"""In a phase; what is measured stays bounded on any machine."""
_COLUMNS = ("raw ms", "raw cpu ms", "server cpu ms", "p50 ms", "p99 ms", "a second", "errors")


@dataclass
class Load:
    """What a phase of load found."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0
    took: float = 0.0


async def one_connection(address: tuple[str, int], requests: list[bytes], until: float, load: Load) -> None:
    reader, writer = await asyncio.open_connection(*address)
    number = 0
    while time.perf_counter() < until:
        started = time.perf_counter()
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is None:
            raise RuntimeError(f"an answer without a length: {head!r}")
        await reader.readexactly(int(length[1]))
        load.seconds.append(time.perf_counter() - started)
        load.errors += not head.startswith(b"HTTP/1.1 200 ")
        number += 1
    writer.close()
    await writer.wait_closed()


async def put_under_load(
    address: tuple[str, int], requests: list[bytes], connections: int, seconds: float
) -> Load:
    load, started = Load(), time.perf_counter()
    # Each connection begins elsewhere in the list.
    turned = [requests[k:] + requests[:k] for k in range(connections)]
    until = started + seconds
    await asyncio.gather(*(one_connection(address, each, until, load) for each in turned))
    load.took = time.perf_counter() - started
    return load


def request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content


def questions(model: Recommender) -> dict[str, tuple[list[bytes], Callable[[], object]]]:
    """For each kind: requests to send, and the same asked of the library."""
    users = model.split.train.user_ids.to_list()[:200]
    lists = [model.split.train.item_ids.gather(model.events.by_user.of(k)[-20:]).to_list() for k in range(50)]
    recommend, turn = "/v1/recommend", iter(range(1 << 30))

    def user() -> Any:
        return users[next(turn) % len(users)]

    return {
        "one user": (
            [request(recommend, {"users": [user], "k": 10}) for user in users],
            lambda: model.recommend([user()], k=10),
        ),
        "64 users": (
            [request(recommend, {"users": users[k : k + 64], "k": 10}) for k in range(0, 128, 8)],
            lambda: model.recommend(users[:64], k=10),
        ),
        "a new user": (
            [request(recommend, {"items": some, "k": 10}) for some in lists],
            lambda: model.recommend_for_items([lists[next(turn) % len(lists)]], k=10),
        ),
        "reasons": (
            [request("/v1/explain", {"user": user, "k": 1}) for user in users],
            lambda: model.explain(user(), k=1),
        ),
    }


def raw_seconds(ask: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The median of asking the library, and the mean of its processor time."""
    ask()
    took, end, busy = [], time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        started = time.perf_counter()
        ask()
        took.append(time.perf_counter() - started)
    return float(np.median(took)), (time.process_time() - busy) / len(took)


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[int, tuple[str, int]]]:
    command = [sys.executable, "-c", "from hdccf.cli import main; main()", "serve", str(run), "--port", "0"]
    command += options
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"serving on http://([0-9.]+):(\d+)", line):
                yield process.pid, (found[1], int(found[2]))
                break
        else:
            raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def resident_megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor_seconds(pid: int) -> float:
    """Of all threads, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(run: Path, seconds: float, connections: int) -> dict[str, float]:
    torch.set_num_threads(1)
    model = hdccf.load_run(run)
    print(f"{model!r}, {connections} connections, {seconds:g} s each")
    print(f"{'':>13}" + "".join(f"{name:>14}" for name in _COLUMNS))
    found: dict[str, float] = {}
    with served(run) as (pid, address):
        asked = questions(model)
        for requests, _ in asked.values():
            asyncio.run(put_under_load(address, requests, connections, 0.5))
        start = resident_megabytes(pid)
        for name, (requests, ask) in asked.items():
            raw, raw_busy = raw_seconds(ask, min(seconds / 4, 2))
            before = processor_seconds(pid)
            load = asyncio.run(put_under_load(address, requests, connections, seconds))
            busy = (processor_seconds(pid) - before) / len(load.seconds)
            p50, p99 = np.percentile(load.seconds, [50, 99])
            milliseconds = [1e3 * float(value) for value in (raw, raw_busy, busy, p50, p99)]
            row = [*milliseconds, len(load.seconds) / load.took, load.errors]
            print(f"{name:>13}" + "".join(f"{value:>14.2f}" for value in row), flush=True)
            for column, value in zip(_COLUMNS, row, strict=True):
                found[f"{name}: {column}".replace(" ", "_")] = value
        found["memory_growth_mb"] = resident_megabytes(pid) - start
        print(f"resident memory {start:.0f} MB, {found['memory_growth_mb']:+.1f} MB after all of it")
        found |= asyncio.run(_swapping(pid, address, asked["one user"][0], connections, seconds))
    return found


async def _clicking(
    address: tuple[str, int],
    requests: list[bytes],
    numbers: Iterator[int],
    pairs: list[tuple[Any, Any]],
    until: float,
) -> tuple[set[str], Load, Load]:
    """One connection that sends an event, then asks for recommendations, and so on."""
    reader, writer = await asyncio.open_connection(*address)
    acknowledged: set[str] = set()
    events, asked = Load(), Load()
    while time.perf_counter() < until and (number := next(numbers)) < _MOST_EVENTS:
        user, item = pairs[number % len(pairs)]
        event = {"id": f"e{number}", "user": user, "item": item}
        for load, content in (
            (events, request("/v1/events", {"events": [event]})),
            (asked, requests[number % len(requests)]),
        ):
            started = time.perf_counter()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            load.seconds.append(time.perf_counter() - started)
            done = head.startswith(b"HTTP/1.1 200 ")
            load.errors += not done
            if load is events and done:
                acknowledged.add(str(event["id"]))
    writer.close()
    return acknowledged, events, asked


async def _mixed(
    address: tuple[str, int],
    requests: list[bytes],
    pairs: list[tuple[Any, Any]],
    connections: int,
    seconds: float,
) -> tuple[set[str], Load, Load]:
    numbers, until = iter(range(1 << 30)), time.perf_counter() + seconds
    parts = await asyncio.gather(
        *(_clicking(address, requests, numbers, pairs, until) for _ in range(connections))
    )
    acknowledged: set[str] = set().union(*(part[0] for part in parts))
    loads = []
    for found in ([part[1] for part in parts], [part[2] for part in parts]):
        each = [value for load in found for value in load.seconds]
        loads.append(Load(each, sum(load.errors for load in found), seconds))
    return acknowledged, loads[0], loads[1]


def events_and_answers(run: Path, seconds: float, connections: int) -> dict[str, float]:
    """Events mixed with recommendations of the same users; then a kill, and what the log has of them."""
    model = hdccf.load_run(run)
    users = model.split.train.user_ids.to_list()[:200]
    items = model.split.train.item_ids.to_list()[:50]
    pairs = [(user, item) for item in items for user in users]
    requests = [request("/v1/recommend", {"users": [user], "k": 10}) for user in users]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        with served(run, "--events", str(log)) as (pid, address):
            acknowledged, events, asked = asyncio.run(_mixed(address, requests, pairs, connections, seconds))
            os.kill(pid, signal.SIGKILL)
        kept = {json.loads(line)["id"] for line in log.read_text().splitlines()}
    lost, found = acknowledged - kept, {"lost_events_errors": float(len(acknowledged - kept))}
    for name, load in (("events", events), ("answers", asked)):
        p50, p99 = np.percentile(load.seconds, [50, 99]) * 1e3
        rate = len(load.seconds) / load.took
        found |= {
            f"mixed_{name}_errors": load.errors,
            f"mixed_{name}_p50_ms": p50,
            f"mixed_{name}_p99_ms": p99,
        }
        print(
            f"mixed, {name}: {len(load.seconds)} requests, {load.errors} errors, {rate:.0f} a second, "
            f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )
    print(f"acknowledged {len(acknowledged)} events, lost after kill -9: {len(lost)}")
    return found


async def _swapping(
    pid: int, address: tuple[str, int], requests: list[bytes], connections: int, seconds: float
) -> dict[str, float]:
    """The same load while a new model is taken every second."""

    async def hang_up() -> int:
        for _ in range(int(seconds) - 1):
            await asyncio.sleep(1)
            os.kill(pid, signal.SIGHUP)
        return int(seconds) - 1

    load, swaps = await asyncio.gather(put_under_load(address, requests, connections, seconds), hang_up())
    p99 = float(np.percentile(load.seconds, 99)) * 1e3
    counts = f"{len(load.seconds)} requests, {load.errors} errors"
    print(f"with {swaps} new models meanwhile: {counts}, p99 {p99:.2f} ms")
    return {"swapping_errors": load.errors, "swapping_p99_ms": p99}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true", help="the figures as JSON in the last line")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load for each kind of request")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--events-only", action="store_true", help="only events mixed with recommendations")
    parser.add_argument("--run", type=Path, help="a run to serve; one is trained on synthetic if not given")
    options = parser.parse_args()
    seconds = 4.0 if options.quick else options.seconds
    with tempfile.TemporaryDirectory() as folder:
        run = options.run
        if run is None:
            run = Path(folder) / "run"
            split = hdccf.leave_one_out(hdccf.synthetic_world(seed=0).interactions)
            hdccf.fit(split, hdccf.HDCCF(epochs=1), out=run)
        found = {} if options.events_only else measure(run, seconds, options.connections)
        found |= events_and_answers(run, seconds, options.connections)
    if any(value for name, value in found.items() if name.endswith("errors")):
        sys.exit("some requests were not answered with 200")
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in found.items()}))


if __name__ == "__main__":
    main()

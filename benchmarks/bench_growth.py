"""How time and memory grow from 1 to 50 million interactions, with users and items growing too.

    python benchmarks/bench_growth.py             1, 4, 16 and 50 million; about 20 minutes, 20 GB of memory
    python benchmarks/bench_growth.py --quick     0.2 and 2 million, within a minute
    python benchmarks/bench_growth.py --json      also one JSON object of ratios on the last line

Each world is drawn by `hdccf.data.synthetic` in a process of its own and written as Parquet; another process
of its own then reads it, splits it, draws batches, takes a fixed number of steps and evaluates. Columns:

    read, split     ns an interaction: the file into Interactions; leave-one-out
    graph           ns an interaction: what a sampler needs before its first batch
    block, in-batch ns for each positive that is drawn
    steps           ns an interaction of the data: 20 steps without modulation on blocks, dense Adam
    step            ns for each pair that such a step scores, with updates of touched rows only
    full, top-10    ns a scored pair: evaluation and recommendation of 1,000 users
    bytes           the process's peak memory above what its libraries take, an interaction

A ratio is the largest world's figure over the smallest's; within 2 is linear. Memory that grew with users ×
items would show: 50 million interactions have 6 billion such pairs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import numpy as np
import polars as pl
import torch

import hdccf
from hdccf.data.graph import Graph, Neighbours
from hdccf.data.samplers import BlockSampler, InBatchSampler
from hdccf.data.synthetic import synthetic_world
from hdccf.evaluation.ranking import Ranker
from hdccf.models import entry_named
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.recommend.topk import Wanted, exact_best
from hdccf.rng import generator_for
from hdccf.training.optim import Stepper

T = TypeVar("T")
MILLION = 1_000_000
SIZES, QUICK = (1 * MILLION, 4 * MILLION, 16 * MILLION, 50 * MILLION), (MILLION // 5, 2 * MILLION)
STEPS, USERS = 20, 1000
COLUMNS = ("read", "split", "graph", "block", "in-batch", "steps", "step", "full", "top-10", "bytes")


def make(n: int, path: Path) -> None:
    data = synthetic_world(n).interactions
    users, items = data.user_ids.gather(data.users), data.item_ids.gather(data.items)
    frame = pl.DataFrame({"user": users, "item": items, "time": data.times})
    frame.write_parquet(path)


def took(run: Callable[[], T], repeats: int = 2) -> tuple[float, T]:
    """The shortest of some times, and what came of it."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - start)
    return best, result


def one(path: Path) -> dict[str, float]:
    """Everything of one world, in nanoseconds (bytes) each; see above."""
    base, found = kilobytes("VmRSS"), {}
    seconds, data = took(lambda: hdccf.read(path, user="user", item="item", time="time"))
    n = len(data)
    found["read"] = seconds / n
    # A copy each time, as what is computed once is kept with the data.
    seconds, split = took(lambda: hdccf.leave_one_out(replace(data)))
    found["split"] = seconds / n
    seconds, graph = took(lambda: Graph.of(replace(split.train)))
    found["graph"] = seconds / n
    del data
    samplers(graph, found)
    found["steps"] = steps(split, n_steps=STEPS, sparse_updates=False)[0] / n
    seconds, scored, model = steps(split, n_steps=STEPS, sparse_updates=True)
    found["step"] = seconds / scored
    found |= answers(split, model)
    facts = {"interactions": n, "users": split.n_users, "items": split.n_items}
    nanoseconds = {name: 1e9 * value for name, value in found.items()}
    return {**facts, **nanoseconds, "bytes": 1024 * (kilobytes("VmHWM") - base) / n}


def samplers(graph: Graph, found: dict[str, float]) -> None:
    weights = torch.ones(graph.n_pairs)
    for name, sampler in (
        ("block", BlockSampler(graph, weights, 128, 8192)),
        ("in-batch", InBatchSampler(graph, weights, 512, 2)),
    ):
        batches = sampler.epoch(generator_for(0, "growth"))
        next(batches)  # shuffles the epoch, and touches what is made at its first use
        seconds, drawn = took(lambda batches=batches: list(islice(batches, STEPS)))  # type: ignore[misc]
        found[name] = seconds / sum(len(batch.weights) for batch in drawn)


def steps(split: hdccf.Split, *, n_steps: int, sparse_updates: bool) -> tuple[float, int, Any]:
    settings = HDCCF(**PRESETS["time-blind"], sparse_updates=sparse_updates)
    generator = generator_for(0, "growth")
    model: Any = entry_named("hdccf").build(settings, split.train, generator)
    stepper, scored = Stepper(model.groups["all"], settings), 0
    batches = model.batches(generator)
    seconds = 0.0
    for number, batch in enumerate(islice(batches, n_steps + 1)):
        start = time.perf_counter()
        for objective in model.objectives(batch, generator):
            stepper.step(objective.loss)
        if number:  # the first one allocates the moments
            seconds += time.perf_counter() - start
            scored += len(batch.users) * (split.n_items if batch.columns is None else len(batch.columns))
    return seconds, scored, model


def answers(split: hdccf.Split, model: Any) -> dict[str, float]:
    some = np.sort(np.random.default_rng(0).permutation(len(split.validation))[:USERS])
    ranker = Ranker(replace(split, validation=split.validation.subset(some)), "validation", folder=None)
    scorer, pairs = model.scorer(), len(some) * split.n_items
    rows = torch.from_numpy(split.validation.users[some].astype(np.int64))
    wanted = Wanted(10, Neighbours.of(split.train.by_user, split.n_items), None)
    runs: dict[str, Callable[[], object]] = {
        "full": lambda: ranker.measure(scorer, ("ndcg@10",), ("full",)),
        "top-10": lambda: list(exact_best(scorer, rows, wanted)),
    }
    return {name: took(run)[0] / pairs for name, run in runs.items()}


def kilobytes(field: str) -> int:
    """A line of what Linux says of this process."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def own_process(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="0.2 and 2 million interactions")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    parser.add_argument("--millions", type=float, nargs="+", help="other sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.make:
        make(int(options.make[0]), Path(options.make[1]))
        return
    if options.one:
        print(json.dumps(one(options.one)))
        return
    sizes = [round(MILLION * x) for x in options.millions] if options.millions else SIZES
    rows = []
    print(f"{'interactions':>12} {'users':>8} {'items':>7} " + " ".join(f"{name:>8}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for n in QUICK if options.quick else sizes:
            path = Path(folder) / f"{n}.parquet"
            own_process("--make", str(n), str(path))
            row = json.loads(own_process("--one", str(path), "--threads", str(options.threads)))
            path.unlink()
            rows.append(row)
            start = f"{row['interactions']:>12,} {row['users']:>8,} {row['items']:>7,} "
            print(start + " ".join(f"{row[name]:>8.3g}" for name in COLUMNS), flush=True)
    ratios = {name: rows[-1][name] / rows[0][name] for name in COLUMNS}
    print(f"{'ratio':>29} " + " ".join(f"{ratios[name]:>8.2f}" for name in COLUMNS))
    if options.json:
        print(json.dumps({f"growth_{name}": round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()

"""A step by workers on Ray beside a step of one process: time, bytes on the wire, memory, start-up.

    python benchmarks/bench_distributed.py [--quick] [--json] [--dataset ml-1m] [--seconds 4]

The same batches and steps in four ways: one process with one thread and with two; one worker; two workers
of one thread each. And two processes of one thread that know nothing of each other, side by side: how much
longer a step takes there than alone is contention, which two workers on one machine have as well. What two
workers take beyond half a step under contention is overhead: drawing batches twice, waiting, and the wire.

Bytes are counted twice: what a worker hands over, by purpose, and what the loop-back interface carried in all
(both directions and Ray's own talk, less what it carried while nothing happened). Times are medians.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import torch

from hdccf.config import Settings, TrainingSettings
from hdccf.data.interactions import Interactions
from hdccf.experiments.plans import open_split
from hdccf.models import entry_named, name_of
from hdccf.models.factorization import BPR
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.rng import generator_for
from hdccf.training.optim import Stepper

SETTINGS: dict[str, Settings] = {
    "history": HDCCF(),
    "both_sides": HDCCF(user_vector="free", user_side=0.05),
    "in-batch": HDCCF(**{**PRESETS["unmodulated"], "batch_size": 512}),
    "bpr": BPR(),
}
WARM_UP = 3


def steps(settings: Settings, train: Interactions, process_group: ProcessGroup) -> Iterator[None]:
    """A step each time that it is asked, as the loop does it."""
    assert isinstance(settings, TrainingSettings)
    model: Any = entry_named(name_of(settings)).build(settings, train, generator_for(0, "initial values"))
    model.process_group = process_group
    steppers = {
        name: Stepper(group, settings, process_group=process_group) for name, group in model.groups.items()
    }
    epochs: Iterator[Iterator[Any]] = (model.batches(generator_for(0, "epoch")) for _ in repeat(None))
    for batch in chain.from_iterable(epochs):
        for objective in model.objectives(batch, generator_for(0, "step")):
            process_group.all_reduce(objective.loss.detach().double())
            steppers[objective.group].step(objective.loss)
        yield


def timed(some: Iterator[None], n_steps: int) -> list[float]:
    """Seconds of each of so many steps."""
    for _ in islice(some, WARM_UP):
        pass
    marks = [time.perf_counter(), *(time.perf_counter() for _ in islice(some, n_steps))]
    return [later - earlier for earlier, later in pairwise(marks)]


def alone(dataset: str, n_steps: dict[str, int], threads: int) -> dict[str, float]:
    """The median step of each model, in this process."""
    torch.set_num_threads(threads)
    train = open_split(dataset).train
    return {
        name: statistics.median(timed(steps(settings, train, SINGLE_PROCESS), n_steps[name]))
        for name, settings in SETTINGS.items()
    }


def side_by_side(dataset: str, n_steps: dict[str, int]) -> dict[str, float]:
    """The median step of each model, of two processes at the same time."""
    command = [sys.executable, __file__, "--dataset", dataset, "--only-steps", json.dumps(n_steps)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return {name: statistics.mean(each[name] for each in found) for name in SETTINGS}


def on_the_wire() -> int:
    """Bytes that the loop-back interface has received since the machine started."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    return 0


def measure_worker(config: dict[str, Any]) -> dict[str, Any]:
    """What each worker runs: all models, step by step."""
    from hdccf.distributed.sharding import TorchProcessGroup, WorkerData
    from hdccf.distributed.store import Store

    began = time.time()
    torch.set_num_threads(1)
    group = TorchProcessGroup()
    data = WorkerData(Store(config["store"]), group)
    train = data.pairs()
    ready = time.time()
    idle = -on_the_wire()
    time.sleep(2)
    idle += on_the_wire()
    models = {}
    for name, settings in SETTINGS.items():
        some = steps(settings, train, group)
        next(some)
        group.sent.clear()
        before, at = on_the_wire(), time.perf_counter()
        seconds = timed(some, config["n_steps"][name])
        done = WARM_UP + len(seconds)
        carried = on_the_wire() - before - idle / 2 * (time.perf_counter() - at)
        models[name] = {
            "seconds": statistics.median(seconds),
            "carried": carried / done,
            **{f"sent {purpose}": sent / done for purpose, sent in group.sent.items()},
        }
    wire = {"latency_seconds": exchange(group, 1, 200), "seconds_a_byte": exchange(group, 1 << 22, 5) / 2**24}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    facts = torch.zeros(group.size, 4, dtype=torch.float64)
    facts[group.rank] = torch.tensor([began, ready, peak, len(data.split.train)], dtype=torch.float64)
    return {"models": models, "workers": group.all_reduce(facts).tolist(), **wire}


def exchange(group: Any, numbers: int, times: int) -> float:
    """Seconds of adding up so many float32 across workers."""
    table = torch.ones(numbers)
    group.all_reduce(table)
    began = time.perf_counter()
    for _ in range(times):
        group.all_reduce(table)
    return (time.perf_counter() - began) / times


def together(workers: int, store: str, n_steps: dict[str, int], place: str) -> dict[str, Any]:
    """What so many workers measured, with the seconds until the last of them was ready."""
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    from hdccf.config import Cluster
    from hdccf.distributed.driver import connected

    asked = time.time()
    with connected(Cluster(workers=workers), progress=False):
        trainer = TorchTrainer(
            measure_worker,
            train_loop_config={"store": store, "n_steps": n_steps},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=train.ScalingConfig(num_workers=workers),
            run_config=train.RunConfig(name=f"workers-{workers}", storage_path=place),
        )
        found: dict[str, Any] = trainer.fit().return_value
    starts, readies, peaks, pairs = zip(*found["workers"], strict=True)
    return {
        "models": found["models"],
        "latency_seconds": found["latency_seconds"],
        "seconds_a_byte": found["seconds_a_byte"],
        "start_seconds": max(starts) - asked,
        "load_seconds": max(ready - start for start, ready in zip(starts, readies, strict=True)),
        "peak_bytes": max(peaks),
        "pairs": max(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, on the synthetic world")
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    parser.add_argument("--dataset", default=None)
    parser.add_argument("--seconds", type=float, default=4.0, help="of steps of each model, one way")
    parser.add_argument("--only-steps", help=argparse.SUPPRESS)
    options = parser.parse_args()
    dataset = options.dataset or ("synthetic" if options.quick else "ml-1m")
    if options.only_steps:
        print(json.dumps(alone(dataset, json.loads(options.only_steps), 1)))
        return
    found = measured(dataset, 1.0 if options.quick else options.seconds)
    show(dataset, found)
    if options.json:
        print(json.dumps(ratios(found)))


def measured(dataset: str, seconds: float) -> dict[str, Any]:
    from hdccf.distributed.store import write_store

    short = alone(dataset, dict.fromkeys(SETTINGS, 5), 1)
    n_steps = {name: max(10, min(300, int(seconds / each))) for name, each in short.items()}
    with tempfile.TemporaryDirectory(prefix="hdccf-bench-") as place:
        write_store(open_split(dataset), f"{place}/store")
        ways: dict[str, Callable[[], Any]] = {
            "one thread": lambda: alone(dataset, n_steps, 1),
            "two threads": lambda: alone(dataset, n_steps, 2),
            "side by side": lambda: side_by_side(dataset, n_steps),
            "one worker": lambda: together(1, f"{place}/store", n_steps, place),
            "two workers": lambda: together(2, f"{place}/store", n_steps, place),
        }
        return {name: way() for name, way in ways.items()}


def ratios(found: dict[str, Any]) -> dict[str, Any]:
    """Per model: times over that of one process with two threads, and kilobytes a step."""
    two = found["two workers"]["models"]
    return {
        name: {
            "one_worker_over_one_thread": found["one worker"]["models"][name]["seconds"]
            / found["one thread"][name],
            "two_workers_over_two_threads": two[name]["seconds"] / found["two threads"][name],
            "two_workers_over_one_thread": two[name]["seconds"] / found["one thread"][name],
            "contention": found["side by side"][name] / found["one thread"][name],
            "sent_kilobytes": sum(v for key, v in two[name].items() if key.startswith("sent")) / 1000,
        }
        for name in SETTINGS
    }


def show(dataset: str, found: dict[str, Any]) -> None:
    print(f"{dataset}: milliseconds a step")
    ways = ("one thread", "two threads", "side by side")
    print(f"{'':12}" + "".join(f"{way:>14}" for way in (*ways, "one worker", "two workers")))
    for name in SETTINGS:
        row = [1e3 * found[way][name] for way in ways]
        row += [1e3 * found[way]["models"][name]["seconds"] for way in ("one worker", "two workers")]
        print(f"{name:12}" + "".join(f"{value:14.2f}" for value in row))
    print("two workers, kilobytes a step and worker:")
    for name, facts in found["two workers"]["models"].items():
        parts = ", ".join(f"{key} {value / 1000:.1f}" for key, value in facts.items() if key != "seconds")
        print(f"{name:12}{parts}")
    for way in ("one worker", "two workers"):
        facts = found[way]
        print(
            f"{way}: {facts['start_seconds']:.1f} s until all workers run, {facts['load_seconds']:.1f} s to "
            f"read, at most {facts['peak_bytes'] / 1e6:.0f} MB and {facts['pairs']:,.0f} pairs in a worker"
        )
    two = found["two workers"]
    print(
        f"adding up across two workers: {1e6 * two['latency_seconds']:.0f} µs for one number, "
        f"{1e-9 / two['seconds_a_byte']:.2f} GB/s of 16 MB"
    )


if __name__ == "__main__":
    main()

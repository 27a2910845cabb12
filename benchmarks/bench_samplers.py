"""What negatives cost: in-batch (the paper's) against uniform and against blocks, and sampling ahead.

    python benchmarks/bench_samplers.py [--quick] [--json] [--dataset ml-100k] [--seconds 60] [--seeds 3]
    python benchmarks/bench_samplers.py --ahead [--dataset ml-1m]      only: a batch drawn ahead by a thread

Seconds an epoch, the best validation NDCG@10 (99 negatives), and seconds of training until 98 % of the best
that all of them have reached. Vectors are free, of dimension 64, and cosines; what differs is in `SAMPLERS`:
blocks and in-batch have that step size of .001, .002, .004 and .008 that was best on validation, uniform has
in-batch's. Evaluation is not counted. `--ahead` compares steps that draw their batch with steps whose batch
a second thread has drawn during the step before.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import torch

import hdccf
from curves import Point, Validator, our_curve, processor_to, seconds_to
from hdccf.data.samplers import prefetch
from hdccf.experiments.plans import open_split
from hdccf.models import entry_named
from hdccf.models.hdccf.settings import HDCCF
from hdccf.training.optim import Stepper

COMMON: dict[str, Any] = {"user_vector": "free", "embedding_dim": 64, "temperature": 0.2, "user_side": 0.3}
SAMPLERS: dict[str, dict[str, Any]] = {
    "block": {"sampler": "block", "learning_rate": 4e-3},
    "in-batch": {"sampler": "in-batch", "learning_rate": 8e-3},
    "uniform": {"sampler": "uniform", "learning_rate": 8e-3},
}
HISTORY: dict[str, dict[str, Any]] = {"history": {"user_vector": "history", "embedding_dim": 128}}
SHARE = 0.98


def settings_of(sampler: str) -> HDCCF:
    return HDCCF(**{**COMMON, **SAMPLERS[sampler]})


def to_quality(
    split: hdccf.Split, samplers: list[str], seconds: float, threads: int, seeds: int, by_processor: bool
) -> dict[str, float]:
    judge, until = Validator(split), processor_to if by_processor else seconds_to
    share: dict[str, Any] = {"seconds": seconds, "threads": threads, "by_processor": by_processor}
    curves: dict[str, list[list[Point]]] = {
        name: [our_curve(split, settings_of(name), judge, seed=seed, **share) for seed in range(seeds)]
        for name in samplers
    }
    best = {name: median(max(p.value for p in curve) for curve in some) for name, some in curves.items()}
    target = SHARE * min(best.values())
    print(f"{'':>10} {'s an epoch':>11} {'best NDCG@10':>13} {'s to ' + format(target, '.4f'):>12}")
    epoch: dict[str, float] = {}
    reached: dict[str, float] = {}
    for name, some in curves.items():
        ends = [curve[-1] for curve in some]
        epoch[name] = min((end.processor if by_processor else end.seconds) / end.epoch for end in ends)
        reached[name] = median(until(curve, target) or float("inf") for curve in some)
        print(f"{name:>10} {epoch[name]:>11.3f} {best[name]:>13.4f} {reached[name]:>12.2f}", flush=True)
    ratios = {}
    for other in (name for name in samplers if name != "in-batch"):
        ratios[f"in_batch_epoch_of_{other}"] = epoch["in-batch"] / epoch[other]
        ratios[f"in_batch_to_quality_of_{other}"] = reached["in-batch"] / reached[other]
    return ratios


# -- a batch ahead -------------------------------------------------------------------------------------------


def steps(split: hdccf.Split, seconds: float, most: int) -> dict[str, float]:
    """An epoch by the shortest of its steps, and what a batch ahead makes of it: the median over rounds."""
    ratios, epoch = {}, {}
    print(f"{'':>10} {'ms a step':>10} {'ahead':>10} {'ratio':>7} {'s an epoch':>11}")
    for name, values in {**SAMPLERS, **HISTORY}.items():
        settings, generator = HDCCF(**{**COMMON, **values}), torch.Generator().manual_seed(0)
        model = entry_named("hdccf").build(settings, split.train, generator)
        stepper = Stepper(model.groups["all"], settings)
        plain: list[float] = []
        overlapped: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(plain) < 2:
            drawn = model.batches(generator), prefetch(model.batches(generator))
            for batches, times in zip(drawn, (plain, overlapped), strict=True):
                times.append(_step_seconds(model, stepper, batches, generator, most))
        ratios[f"ahead_{name}"] = median(b / a for a, b in zip(plain, overlapped, strict=True))
        epoch[name] = min(plain) * model.n_batches
        shown = f"{1e3 * min(plain):>10.2f} {1e3 * min(overlapped):>10.2f} {ratios[f'ahead_{name}']:>7.2f}"
        print(f"{name:>10} {shown} {epoch[name]:>11.2f}", flush=True)
    for other in ("block", "uniform"):
        ratios[f"in_batch_steps_of_{other}"] = epoch["in-batch"] / epoch[other]
    return ratios


def _step_seconds(
    model: Any, stepper: Stepper, batches: Iterator[Any], generator: torch.Generator, most: int
) -> float:
    next(batches)  # shuffling an epoch is not what a step costs
    start, done = time.perf_counter(), 0
    for batch in batches:
        for objective in model.objectives(batch, generator):
            float(objective.loss.detach())  # as the trainer looks at it
            stepper.step(objective.loss)
        done += 1
        if done == most:
            break
    return (time.perf_counter() - start) / done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only what a step takes")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each sampler and seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--by-processor", action="store_true", help="count its seconds, beside other work")
    parser.add_argument("--ahead", action="store_true", help="only whether a batch drawn ahead pays")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    split = open_split(arguments.dataset)
    print(f"{len(split.train):,} pairs, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
    ratios: dict[str, float] = {}
    if not (arguments.ahead or arguments.quick):
        budget = arguments.seconds, arguments.threads, arguments.seeds, arguments.by_processor
        ratios |= to_quality(split, arguments.samplers, *budget)
    ratios |= steps(split, *((1.0, 3) if arguments.quick else (10.0, 16)))
    if arguments.json:
        print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()

"""What a training step on a block takes beside what it cannot do without.

    python benchmarks/bench_step.py [--quick] [--json] [--dataset ml-1m] [--threads 2]

Cannot do without: the three products of its shape (scores, and the gradients of both sides), one exponential
of each score, and the optimizer's pass over the tables, each timed alone in the same rounds. A ratio is the
step's shortest time over the sum of theirs; below 2 they are more than half of it. A step is drawing the
batch, scores and loss, backward pass and optimizer, as the trainer does it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import chain, pairwise, repeat
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import torch

import hdccf
from hdccf.experiments.plans import open_split
from hdccf.models import entry_named
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.training.optim import Stepper

SETTINGS = {
    "block": HDCCF(**PRESETS["time-blind"]),
    "both_sides": HDCCF(**{**PRESETS["time-blind"], "user_side": 0.05}),
    "history": HDCCF(),
}
PARTS = ("drawing", "loss", "backward", "optimizer")


class Steps:
    """A model that takes one step after the other, and says what each part took."""

    def __init__(self, split: hdccf.Split, settings: HDCCF) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.model: Any = entry_named("hdccf").build(settings, split.train, self.generator)
        self.stepper = Stepper(self.model.groups["all"], settings)
        epochs: Iterator[Iterator[Any]] = (self.model.batches(self.generator) for _ in repeat(None))
        self.batches, self.full = chain.from_iterable(epochs), settings.block_users

    def __call__(self) -> list[float]:
        marks = [time.perf_counter()]
        batch = next(self.batches)
        if len(batch.users) < self.full:  # an epoch's last; the next one shuffles, which no step costs
            next(self.batches)
            return self()
        marks.append(time.perf_counter())
        (objective,) = self.model.objectives(batch, self.generator)
        float(objective.loss.detach())  # as the trainer looks at it
        marks.append(time.perf_counter())
        for parameter in self.stepper.parameters:
            parameter.grad = None
        objective.loss.backward()
        marks.append(time.perf_counter())
        for optimizer in self.stepper.optimizers.values():
            optimizer.step()
        marks.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks)]


def needed(split: hdccf.Split, settings: HDCCF, steps: Steps) -> dict[str, Callable[[], object]]:
    """What no step is without, on memory of its own."""
    rows, columns, d = settings.block_users, split.n_items, settings.embedding_dim
    p, q, scores = torch.randn(rows, d), torch.randn(columns, d), torch.randn(rows, columns)
    tables = [torch.randn_like(x).requires_grad_() for x in steps.stepper.parameters]
    for table in tables:
        table.grad = torch.randn_like(table)
    adam = torch.optim.Adam(tables, lr=1e-3, fused=True)
    return {
        "scores": lambda: p @ q.T,
        "to_users": lambda: scores @ q,
        "to_items": lambda: scores.T @ p,
        "exponentials": scores.exp,
        "adam": adam.step,
    }


def measure(split: hdccf.Split, settings: HDCCF, seconds: float) -> tuple[list[float], dict[str, float]]:
    """Shortest times of the step's parts, and of what is needed, in turns."""
    steps = Steps(split, settings)
    pieces = needed(split, settings, steps)
    parts, alone = [float("inf")] * len(PARTS), dict.fromkeys(pieces, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(4):
            parts = [min(pair) for pair in zip(parts, steps(), strict=True)]
        for name, run in pieces.items():
            for _ in range(2):
                start = time.perf_counter()
                run()
                alone[name] = min(alone[name], time.perf_counter() - start)
    return parts, alone


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds each")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    split = open_split(options.dataset)
    print(f"{options.threads} threads, load {os.getloadavg()[0]:.1f}; milliseconds")
    print(f"{'':>12} " + " ".join(f"{name:>12}" for name in (*PARTS, "step", "needed", "ratio")))
    ratios = {}
    for name, settings in SETTINGS.items():
        parts, alone = measure(split, settings, 3.0 if options.quick else 15.0)
        step, least = sum(parts), sum(alone.values())
        ratios[f"step_{name}_of_needed"] = round(step / least, 3)
        figures = (*(1e3 * x for x in (*parts, step, least)), step / least)
        print(f"{name:>12} " + " ".join(f"{figure:>12.3f}" for figure in figures), flush=True)
        print(" " * 13 + ", ".join(f"{piece} {1e3 * taken:.3f}" for piece, taken in alone.items()))
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()

"""One epoch of every model on ML-1M, and of BPR, ENMF and NeuMF beside RecBole's.

    python benchmarks/bench_models.py                     all of ML-1M's training part; many minutes
    python benchmarks/bench_models.py --models bpr enmf   only these
    python benchmarks/bench_models.py --quick             a 32nd of the pairs, within a minute
    python benchmarks/bench_models.py --json              also one JSON object of ratios on the last line

The pairs are the training part of leave-one-out on the 5-core. Models have their published settings and go
through the trainer as ever, with nothing held out, so that nothing is evaluated. A model that is solved and
not trained shows what its whole solution takes.

RecBole runs in an environment of its own, made at the first call (some minutes), with the same release of
torch, the same threads, pairs, batches, dimensions and optimizer, and without evaluation either. Both sides
take turns, an epoch each, up to three times or for 90 seconds, and the best epoch of each counts. What is set
alike for each model stands in `PEERS`. Seconds of processor time are printed too: they are what can be
compared where other jobs leave no processor for a second thread.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import numpy as np
import torch

import hdccf
from hdccf.config import FitOptions, Settings, TrainingSettings
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions, k_core
from hdccf.data.split import leave_one_out, predefined_split
from hdccf.models import MODELS
from hdccf.models.negatives import redrawn
from hdccf.training.fit import StopTraining, fit
from peers.asked import Asked, recbole_requirements, write_pairs
from peers.environments import python_with

ROUNDS, ENOUGH_SECONDS = 3, 90.0


class Took(NamedTuple):
    seconds: float
    processor: float

    @classmethod
    def best(cls, several: list["Took"]) -> "Took":
        return cls(min(each.seconds for each in several), min(each.processor for each in several))


# -- RecBole -------------------------------------------------------------------------------------------------


def _bpr(settings: Any) -> dict[str, Any]:
    return {"train_batch_size": settings.batch_size, "embedding_size": settings.embedding_dim}


def _neumf(settings: Any) -> dict[str, Any]:
    factors, negatives = settings.embedding_dim, settings.negatives
    drawn = {"distribution": "uniform", "sample_num": negatives, "alpha": 1.0, "dynamic": False}
    return {
        # RecBole counts ones and zeros, we count ones.
        "train_batch_size": settings.batch_size * (1 + negatives),
        "train_neg_sample_args": {**drawn, "candidate_num": 0},
        "mf_embedding_size": factors,
        "mlp_embedding_size": 2 * factors,
        "mlp_hidden_size": [2 * factors, factors],
        "dropout_prob": 0.0,
    }


def _enmf(settings: Any) -> dict[str, Any]:
    return {
        "train_batch_size": settings.block_users,
        "embedding_size": settings.embedding_dim,
        "dropout_prob": 1 - settings.keep_probability,
        "negative_weight": settings.negative_weight,
        "train_neg_sample_args": None,
    }


PEERS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "bpr": ("BPR", _bpr),
    "enmf": ("ENMF", _enmf),
    "neumf": ("NeuMF", _neumf),
}


class RecBole(Asked):
    """The other process: it sleeps until it is asked for an epoch."""

    def __init__(self, train: Interactions, folder: Path, threads: int) -> None:
        write_pairs(train, folder / "pairs")
        self.n_pairs = len(train)
        python = python_with("recbole", recbole_requirements())
        super().__init__(python, "recbole_epoch.py", folder, "pairs", str(threads))

    def epoch(self, name: str, settings: Settings) -> Took:
        model, options_of = PEERS[name]
        optimizer = {
            "learner": getattr(settings, "optimizer", "adam"),
            "learning_rate": getattr(settings, "learning_rate", 1e-3),
        }
        answer = self.ask(json.dumps({"model": model, "options": {**optimizer, **options_of(settings)}}))
        if answer["pairs"] != self.n_pairs:
            raise SystemExit(f"RecBole trains on {answer['pairs']} pairs, we on {self.n_pairs}")
        return Took(answer["seconds"], answer["processor"])


# -- ours ----------------------------------------------------------------------------------------------------


def our_epochs(
    train: Interactions, settings: TrainingSettings, threads: int, rounds: int, between: Callable[[], Took]
) -> tuple[list[Took], list[Took]]:
    """Epochs of the trainer, and after each of them what `between` took."""
    ours: list[Took] = []
    theirs: list[Took] = []
    started = Took(time.perf_counter(), time.process_time())

    def at_the_end(record: dict[str, Any]) -> None:
        nonlocal started
        taken = Took(time.perf_counter() - started.seconds, time.process_time() - started.processor)
        # The first began with the trainer's own clock, after the model was built.
        ours.append(taken if ours else Took(min(taken.seconds, record["seconds"]), taken.processor))
        theirs.append(between())
        if sum(each.seconds for each in (*ours, *theirs)) > ENOUGH_SECONDS:
            raise StopTraining
        started = Took(time.perf_counter(), time.process_time())

    wanted = settings.changed(epochs=rounds, patience=rounds, evaluate_every=1)
    fit(predefined_split(train), wanted, options=FitOptions(threads=threads), on_evaluation=at_the_end)
    return ours, theirs


def solution(train: Interactions, settings: Settings, threads: int) -> Took:
    start, processor = time.perf_counter(), time.process_time()
    fit(predefined_split(train), settings, options=FitOptions(threads=threads))
    return Took(time.perf_counter() - start, time.process_time() - processor)


# -- draws ---------------------------------------------------------------------------------------------------


def measure_draws(train: Interactions, ratios: dict[str, float]) -> None:
    """Negatives by one binary search each, against drawing again until none was observed."""
    graph, generator = Graph.of(train), torch.Generator().manual_seed(0)
    users = graph.pair_users[torch.randint(graph.n_pairs, (2048,), generator=generator)]

    def any_item(asked: torch.Tensor) -> torch.Tensor:
        return torch.randint(graph.n_items, (len(asked),), generator=generator)

    def rejecting() -> object:
        return redrawn(any_item, any_item, graph, users, 1)

    def searching() -> object:
        return graph.items_of.draw_others(users, 1, generator)

    best = {"search": float("inf"), "rejection": float("inf")}
    for _ in range(50):
        for name, draw in (("search", searching), ("rejection", rejecting)):
            start = time.perf_counter()
            draw()
            best[name] = min(best[name], time.perf_counter() - start)
    each = {name: seconds / len(users) * 1e9 for name, seconds in best.items()}
    ratios["draw_faster_than_rejection"] = best["rejection"] / best["search"]
    print(f"a negative: {each['search']:.0f} ns by search, {each['rejection']:.0f} ns by rejection")


# -- all -----------------------------------------------------------------------------------------------------


def measure(
    name: str, train: Interactions, threads: int, recbole: RecBole | None, ratios: dict[str, float]
) -> None:
    settings = MODELS[name].settings()
    if not isinstance(settings, TrainingSettings):
        took = solution(train, settings, threads)
        print(f"{name:>14} {took.seconds:8.2f} {took.processor:10.2f}   solved, with all that it takes")
        return
    peer = recbole if name in PEERS else None
    rounds = 1 if peer is None else ROUNDS
    between = (lambda: Took(0.0, 0.0)) if peer is None else (lambda: peer.epoch(name, settings))
    ours, theirs = (Took.best(side) for side in our_epochs(train, settings, threads, rounds, between))
    line = f"{name:>14} {ours.seconds:8.2f} {ours.processor:10.2f}"
    if peer is not None:
        ratios[f"{name}_faster_than_recbole"] = theirs.seconds / ours.seconds
        ratios[f"{name}_processor_time_of_recbole"] = theirs.processor / ours.processor
        line += f" {theirs.seconds:8.2f} {theirs.processor:10.2f}"
        line += f" {theirs.seconds / ours.seconds:6.1f} {theirs.processor / ours.processor:10.1f}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a 32nd of the pairs")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train = leave_one_out(k_core(hdccf.load("ml-1m"), users=5, items=5)).train
    if arguments.quick:
        train = train.subset(np.random.default_rng(0).random(len(train)) < 1 / 32)
    ratios: dict[str, float] = {}
    print(f"{len(train):,} pairs, {arguments.threads} threads, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        measure_all(arguments.models, train, Path(folder), arguments.threads, ratios)
    measure_draws(train, ratios)
    if arguments.json:
        print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


def measure_all(
    names: list[str], train: Interactions, folder: Path, threads: int, ratios: dict[str, float]
) -> None:
    print(
        f"{'':>14} {'s':>8} {'processor':>10} {'RecBole':>8} {'processor':>10} {'ratio':>6} {'processor':>10}"
    )
    beside = [name for name in names if name in PEERS]
    if beside:
        try:
            with RecBole(train, folder, threads) as recbole:
                for name in beside:
                    measure(name, train, threads, recbole, ratios)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"RecBole cannot be installed here ({error}); ours alone:")
            beside = []
    for name in names:
        if name not in beside:
            measure(name, train, threads, None, ratios)


if __name__ == "__main__":
    main()

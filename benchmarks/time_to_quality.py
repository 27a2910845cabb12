"""Seconds until each system is as good as tuned BPR, and as tuned ALS: 95 % and 99 % of their NDCG@10.

    python benchmarks/time_to_quality.py [--dataset ml-1m gowalla-m1] [--minutes-each 10] [--systems …]
    python benchmarks/time_to_quality.py --targets --dataset gowalla-m1     what tuned BPR and ALS reach
    python benchmarks/time_to_quality.py --quick --json                     ML-100K, what runs in this process

Same split, same frozen 99 negatives on the validation part, same threads, dimension 64. Evaluation is counted
for nobody; ours counts everything else from `fit` on, the others their own training only. A system ends when
it has reached all targets, has not got better at eight looks, or its minutes are over. implicit and Cornac
have the settings that were best on validation (results/bpr_outside.jsonl; ALS: quality_targets.json),
RecBole's models their own defaults, but for ENMF (see below), ours its preset `spectral` with larger steps
(`IN_HASTE`, chosen on validation), and the modulated one dimension 32. With `--by-processor` the minutes are
those of the processor, so that a system can be run beside other work.

Each system is a line of results/time_to_quality.jsonl, and one that is there is not run again (--again does).
results/time_to_quality.md and .png are written from the lines; --report does only that.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as implicit asks for

import numpy as np
import torch
from scipy import sparse

import hdccf
from curves import METRIC, Curve, Point, Validator, our_curve, seconds_to
from hdccf.console import note
from hdccf.experiments.plans import open_split
from hdccf.models.als import ALS
from hdccf.models.base import VectorScorer
from hdccf.models.factorization import BPR
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.similarity import Dot, Vectors
from peers.asked import Cornac, RecBole
from quality_report import LINES, RESULTS, SHARES, draw, latest, levels_of, ratios_of, table

HERE = Path(__file__).parent
TARGETS, DIM = HERE / "quality_targets.json", 64
GOWALLA_BPR: dict[str, Any] = {"learning_rate": 5e-3, "batch_size": 8192, "l2": 5e-3}
"""The best on validation in results/gowalla.jsonl."""


class Race:
    """What all systems share: data, judge, budget."""

    def __init__(self, dataset: str, seconds: float, threads: int, by_processor: bool = False) -> None:
        self.dataset, self.seconds, self.threads = dataset, seconds, threads
        self.by_processor = by_processor
        self.split = open_split(dataset)
        self.judge = Validator(self.split)
        kept = json.loads(TARGETS.read_text(encoding="utf-8")) if TARGETS.exists() else {}
        self.targets: dict[str, Any] = kept.get(dataset, {})
        levels = [self.targets[name]["value"] for name in ("bpr", "als") if name in self.targets]
        self.enough = max(SHARES) * max(levels) if levels else float("inf")

    def curve(self) -> Curve:
        return Curve(self.judge, self.seconds, self.enough, by_processor=self.by_processor)

    def ours(self, **values: Any) -> list[Point]:
        settings = HDCCF(**{**PRESETS["spectral"], **IN_HASTE[self.dataset], **values})
        return our_curve(
            self.split,
            settings,
            self.judge,
            seconds=self.seconds,
            enough=self.enough,
            threads=self.threads,
            by_processor=self.by_processor,
        )

    def matrix(self) -> sparse.csr_matrix:
        return sparse.csr_matrix(self.split.train.matrix, dtype=np.float32)

    def tuned(self, system: str) -> dict[str, float]:
        """The best trial of the comparison with other libraries, where it has this data set."""
        file = RESULTS / "bpr_outside.jsonl"
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        tried = [x for x in lines if (x["system"], x["part"]) == (system, "validation")]
        here = [x for x in tried if x["dataset"] == self.dataset] or tried
        values: dict[str, float] = max(here, key=lambda line: line["found"]["ndcg@10"])["values"]
        return values


def _dot(users: Any, items: Any) -> VectorScorer:
    p, q = (torch.from_numpy(np.array(x, np.float32)) for x in (users, items))
    return VectorScorer(Dot(), Vectors(p, p), Vectors(q, q))


def implicit_bpr(race: Race) -> list[Point]:
    from implicit.cpu.bpr import BayesianPersonalizedRanking

    values = race.tuned("implicit")
    model = BayesianPersonalizedRanking(
        factors=DIM,
        learning_rate=values["step"],
        regularization=values["penalty"],
        iterations=2,
        random_state=np.random.default_rng(0),  # an object, so that going on draws anew
        num_threads=race.threads,
    )
    return _implicit(race, model, every=2)


def implicit_als(race: Race) -> list[Point]:
    from implicit.cpu.als import AlternatingLeastSquares

    values = race.targets.get("als", {}).get("settings", {"l2": 1.0, "alpha": 5.0})
    model = AlternatingLeastSquares(
        factors=DIM,
        regularization=values["l2"],
        alpha=values["alpha"],
        iterations=1,
        num_threads=race.threads,
        random_state=0,
    )
    return _implicit(race, model, every=1)


def _implicit(race: Race, model: Any, every: int) -> list[Point]:
    matrix, curve, epoch = race.matrix(), race.curve(), 0
    while not curve.ended:
        curve.begin()
        model.fit(matrix, show_progress=False)  # goes on from its factors
        epoch += every
        curve.look(epoch, lambda: _dot(model.user_factors, model.item_factors))
    return curve.points


def cornac_bpr(race: Race) -> list[Point]:
    values, curve, every, epoch = race.tuned("cornac"), race.curve(), 5, 0
    options = {"k": DIM, "learning_rate": values["step"], "lambda_reg": values["penalty"]}
    with tempfile.TemporaryDirectory() as folder:
        options["num_threads"] = race.threads
        with Cornac(race.split.train, Path(folder), options) as cornac:
            while not curve.ended:
                seconds, processor, p, q = cornac.train(every)
                epoch += every
                curve.add(epoch, seconds, processor, lambda p=p, q=q: _dot(p, q))  # type: ignore[misc]
    return curve.points


def recbole(model: str, **options: Any) -> Callable[[Race], list[Point]]:
    def run(race: Race) -> list[Point]:
        curve, epoch = race.curve(), 0
        with (
            tempfile.TemporaryDirectory() as folder,
            RecBole(race.split, race.judge, Path(folder), race.threads) as peer,
        ):
            while not curve.ended:
                seconds, processor, scorer = peer.train(model, options)
                epoch += 1
                curve.add(epoch, seconds, processor, lambda scorer=scorer: scorer)  # type: ignore[misc]
        return curve.points

    return run


_LARGER_STEPS: dict[str, Any] = {"learning_rate": 0.016, "temperature": 0.12}
IN_HASTE: dict[str, dict[str, Any]] = {
    "ml-100k": _LARGER_STEPS,
    "ml-1m": _LARGER_STEPS,
    # A block touches a tenth of the rows.
    "gowalla-m1": {
        "learning_rate": 0.05,
        "temperature": 0.18,
        "sampler": "pool",
        "negatives": 1536,
        "sparse_updates": True,
    },
}
"""Of some step sizes and sizes of blocks what was there first on validation (results/benchmarks.md)."""

# With RecBole's own defaults ENMF takes one step an epoch on small data and learns nothing in the time.
PUBLISHED_ENMF: dict[str, Any] = {
    "embedding_size": DIM,
    "train_neg_sample_args": None,
    "train_batch_size": 256,
    "learner": "adagrad",
    "learning_rate": 0.05,
    "dropout_prob": 0.3,
    "negative_weight": 0.1,
}
SYSTEMS: dict[str, Callable[[Race], list[Point]]] = {
    "hdccf": lambda race: race.ours(),
    "hdccf modulated": lambda race: race.ours(similarity="modulated", embedding_dim=32, temperature=0.2),
    "implicit ALS": implicit_als,
    "implicit BPR": implicit_bpr,
    "Cornac BPR": cornac_bpr,
    "RecBole BPR": recbole("BPR", embedding_size=DIM),
    "RecBole ENMF": recbole("ENMF", **PUBLISHED_ENMF),
    "RecBole NeuMF": recbole("NeuMF", mf_embedding_size=DIM, mlp_embedding_size=DIM),
    "RecBole LightGCN": recbole("LightGCN", embedding_size=DIM),
}
IN_THIS_PROCESS = [name for name in SYSTEMS if name.startswith(("hdccf", "implicit"))]


# -- what tuned BPR and ALS reach ----------------------------------------------------------------------------


def find_targets(race: Race, trials: int) -> None:
    """Random trials of ALS; BPR from what was tuned elsewhere. Kept in a file that is committed."""
    rng = np.random.default_rng(0)
    best: dict[str, Any] = {"value": 0.0}
    for trial in range(trials):
        values: dict[str, Any] = {
            "l2": float(10 ** rng.uniform(-2, 2)),
            "alpha": float(10 ** rng.uniform(-0.3, 1.7)),
        }
        settings = ALS(embedding_dim=DIM, iterations=15, **values)
        value = race.judge(hdccf.fit(race.split, settings, seed=0))
        note(f"{race.dataset}: ALS {trial} {values} {value:.4f}")
        if value > best["value"]:
            best = {"value": round(value, 5), "settings": values, "trials": trials}
    kept = json.loads(TARGETS.read_text(encoding="utf-8")) if TARGETS.exists() else {}
    kept[race.dataset] = {"metric": METRIC, "bpr": _tuned_bpr(race), "als": best}
    TARGETS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _tuned_bpr(race: Race) -> dict[str, Any]:
    lines = (RESULTS / "bpr_outside.jsonl").read_text(encoding="utf-8").splitlines()
    tried = [x for x in map(json.loads, lines) if (x["dataset"], x["part"]) == (race.dataset, "validation")]
    ours = [line for line in tried if line["system"] == "hdccf"]
    if ours:
        best = max(ours, key=lambda line: line["found"]["ndcg@10"])
        value = round(best["found"]["ndcg@10"], 5)
        return {"value": value, "settings": best["values"], "trials": len(ours), "from": "bpr_outside.jsonl"}
    settings = BPR(embedding_dim=DIM, **(GOWALLA_BPR if race.dataset == "gowalla-m1" else {}))
    curve = our_curve(race.split, settings, race.judge, seconds=race.seconds, every=5, threads=race.threads)
    chosen = settings.model_dump(include={"learning_rate", "batch_size", "l2"})
    return {"value": max(point.value for point in curve), "settings": chosen, "trials": 1}


def run(race: Race, system: str) -> dict[str, Any]:
    load = round(os.getloadavg()[0], 1)
    curve = SYSTEMS[system](race)
    best = max(curve, key=lambda point: point.value)
    note(f"{race.dataset}, {system}: {best.value:.4f} after {best.seconds:.1f} s, {len(curve)} looks")
    return {"dataset": race.dataset, "system": system, "threads": race.threads, "load": load, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", nargs="+", default=["ml-1m", "gowalla-m1"])
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--minutes-each", type=float, default=10.0, help="of training, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--by-processor", action="store_true", help="the minutes are the processor's")
    parser.add_argument("--targets", action="store_true", help="find the targets instead")
    parser.add_argument("--trials", type=int, default=10, help="of ALS, with --targets")
    parser.add_argument("--again", action="store_true", help="run also what has a line")
    parser.add_argument("--report", action="store_true", help="run nothing: the table and the figure only")
    parser.add_argument("--quick", action="store_true", help="ML-100K, a few seconds each, nothing kept")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        options.dataset, options.minutes_each, options.systems = ["ml-100k"], 0.1, IN_THIS_PROCESS
    ratios: dict[str, float] = {}
    for dataset in () if options.report else options.dataset:
        race = Race(dataset, 60 * options.minutes_each, options.threads, options.by_processor)
        if options.targets:
            find_targets(race, options.trials)
            continue
        for system in options.systems:
            if options.quick:
                found = run(race, system)
                for label, level in levels_of(race.targets).items():
                    seconds = seconds_to(found["curve"], level)
                    ratios[f"{label}: {system}"] = -1.0 if seconds is None else round(seconds, 3)
            elif options.again or system not in latest(dataset):
                line = json.dumps(run(race, system))
                # Opened only now: the file may have been replaced while the system ran, as git does.
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        if not options.quick:
            ratios |= ratios_of(dataset, race.targets)
    if not (options.quick or options.targets):
        targets = json.loads(TARGETS.read_text(encoding="utf-8")) if TARGETS.exists() else {}
        (RESULTS / "time_to_quality.md").write_text(table(list(SYSTEMS), targets), encoding="utf-8")
        draw(list(SYSTEMS), targets)
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    main()

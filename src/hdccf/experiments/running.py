"""Training, testing and recording of a study's rows; each is done once and resumed after a kill."""

import json
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import polars as pl
import torch
from filelock import FileLock
from numpy.typing import NDArray

from hdccf.config import FitOptions, TrainingSettings
from hdccf.console import note
from hdccf.data.split import Split
from hdccf.errors import HdccfError, RunError
from hdccf.evaluation import Evaluation, evaluate
from hdccf.evaluation.ranking import Ranker
from hdccf.experiments.journal import Journal, Record, Run
from hdccf.experiments.plans import Row
from hdccf.experiments.tasks import Task, all_training, with_validation
from hdccf.models import entry_named
from hdccf.models.base import Scorer
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder
from hdccf.rng import generator_for
from hdccf.training.fit import fit, resume


@dataclass(frozen=True)
class Outcome:
    """What became of a study's rows."""

    records: dict[str, list[Record]]
    """By label; a row that could not be run has none."""
    failures: dict[str, str]
    """Label → why."""


@dataclass(frozen=True, eq=False)
class Runner:
    """Everything that the rows of one data set have in common."""

    dataset: str
    task: Task
    split: Split
    journal: Journal
    work: Path
    """Runs under way, to be gone on with."""
    threads: int | None = None
    progress: bool = False

    def run(self, rows: list[Row]) -> Outcome:
        """Trains what is not in the journal yet; a row that is impossible here is told and left out."""
        runs = {(row.label, seed): self._run(row, seed) for row in rows for seed in range(row.seeds)}
        missing = {place: run for place, run in runs.items() if self.journal.find(run) is None}
        failures: dict[str, str] = {}
        if self.progress and len(missing) < len(runs):
            note(f"{len(runs) - len(missing)} of {len(runs)} runs are in {self.journal.path} already")
        for number, ((label, seed), run) in enumerate(missing.items(), 1):
            if label in failures:
                continue
            if self.progress:
                left = _time_left(self.journal.records(), list(missing.values())[number - 1 :])
                note(f"run {number} of {len(missing)}: {label}, seed {seed}; {left}")
            try:
                self._do(run)
            except HdccfError as error:
                if isinstance(error, RunError):  # interrupted, or a folder that is in the way: not the row's
                    raise
                failures[label] = str(error)
                note(f"{label} is left out: {error}")
        found: dict[str, list[Record]] = {row.label: [] for row in rows}
        for (label, _), run in runs.items():
            record = self.journal.find(run)
            if record is not None:
                found[label].append(record)
        return Outcome(found, failures)

    def _run(self, row: Row, seed: int) -> Run:
        return Run(
            dataset=self.dataset,
            split=self.split.fingerprint,
            settings=entry_named(row.model).settings(**row.settings),
            seed=seed,
            protocols=self.task.protocols,
            metrics=self.task.metrics,
            retrain=self.task.retrain,
            given=row.given,
            densities=row.densities,
        )

    def _do(self, run: Run) -> None:
        """One process works at a run; one that waited for it finds it done."""
        self.work.mkdir(parents=True, exist_ok=True)
        with FileLock(self.work / f"{run.key}.lock"):
            if self.journal.find(run) is not None:
                return
            record, found = self._trained_and_tested(run)
            self.journal.append(record, found)
            for folder in self.work.glob(f"{run.key}*"):
                if folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)
        (self.work / f"{run.key}.lock").unlink(missing_ok=True)

    def _trained_and_tested(self, run: Run) -> tuple[Record, Evaluation]:
        folder = self.work / run.key
        started = time.monotonic()
        split, training, seconds = self.split, {}, 0.0
        trained = isinstance(run.settings, TrainingSettings)
        if trained or not run.retrain:
            fitted = self._fit(folder, self.split, run.settings, run.seed)
            training, seconds = _training_facts(folder), fitted.seconds
        if run.retrain:
            split, settings = all_training(self.split), run.settings
            if isinstance(settings, TrainingSettings):
                epochs = training["best_epoch"]
                settings = settings.changed(epochs=epochs, evaluate_every=epochs)
            fitted = self._fit(folder.with_name(f"{folder.name}-all"), split, settings, run.seed)
            seconds += fitted.seconds
        found = self._evaluate(run, fitted, split)
        record = {
            **run.facts(),
            "key": run.key,
            "changed": sorted(run.settings.model_dump(exclude_defaults=True)),
            "values": _asked(found, run),
            **training,
            "seconds": round(seconds, 3),
            "wall_seconds": round(time.monotonic() - started, 3),
            **_provenance(),
        }
        if run.given:
            record["given"] = _asked(self._evaluate(run, _with_validation_given(fitted, split), split), run)
        if run.densities:
            record["densities"] = densities_of(fitted, split)
        names = [f"{protocol}/{metric}" for protocol in run.protocols for metric in run.metrics]
        # Of all that evaluation knows, what tests need, at half the size.
        kept = found.per_user.select("user", *(pl.col(name).cast(pl.Float32) for name in names))
        return record, replace(found, per_user=kept)

    def _fit(self, folder: Path, split: Split, settings: Any, seed: int) -> Recommender:
        """In a folder, so that a run that is killed goes on where it was."""
        options = FitOptions(threads=self.threads)
        try:
            if _can_go_on(folder, split):
                return resume(folder, progress=self.progress)
            return fit(split, settings, seed=seed, out=folder, options=options, progress=self.progress)
        except RunError as error:
            if "interrupted" in str(error):
                raise RunError("interrupted; call the same command again to go on") from error
            raise

    def _evaluate(self, run: Run, scorer: Scorer, split: Split) -> Evaluation:
        return evaluate(
            scorer, split, "test", run.protocols, self.task.ks, beyond_accuracy=False, progress=self.progress
        )


def _can_go_on(folder: Path, split: Split) -> bool:
    """What a kill left half made, and what is of another split, is begun anew."""
    if not folder.exists():
        return False
    try:
        if RunFolder.open(folder).split().fingerprint == split.fingerprint:
            return True
    except RunError:
        pass
    shutil.rmtree(folder)
    return False


def _asked(found: Evaluation, run: Run) -> dict[str, dict[str, float]]:
    return {
        protocol: {name: found.values[protocol][name] for name in run.metrics} for protocol in run.protocols
    }


def _training_facts(folder: Path) -> Record:
    """From the folder of a run that has ended: its best epoch, and what the negatives did in it."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    at_best = [r for r in RunFolder.open(folder).metrics() if r["epoch"] == result["best_epoch"]]
    return {
        "best_epoch": result["best_epoch"],
        "validation": result["best_value"],
        "terms": at_best[0]["terms"] if at_best else {},
    }


def _with_validation_given(fitted: Recommender, split: Split) -> Scorer:
    """The same weights, with each user's validation items as the end of their history."""
    generator = generator_for(fitted.seed, "initial values")
    model = entry_named(fitted.name).build(fitted.settings, with_validation(split), generator)
    model.load_state_dict(fitted.model.state_dict())
    return model.scorer()


def _provenance() -> Record:
    from hdccf import __version__

    return {
        "commit": commit_of(Path(__file__).parents[1]) or f"hdccf {__version__}",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit_of(package: Path) -> str:
    """The code's commit, "-dirty" where that has changed since; results beside it change with every run."""

    def git(*asked: str) -> str:
        try:
            found = subprocess.run(["git", *asked], capture_output=True, text=True, check=False, cwd=package)  # noqa: S603, S607
        except OSError:
            return ""
        return found.stdout.strip()

    commit = git("describe", "--always", "--abbrev=10")
    return f"{commit}-dirty" if git("status", "--porcelain", "--", ".") else commit


def _time_left(records: list[Record], pending: list[Run]) -> str:
    """From what runs of the same model, or else of any that is pending, took on this data set."""
    took: dict[str, list[float]] = {}
    for record in records:
        if record["dataset"] == pending[0].dataset and record["model"] in {run.model for run in pending}:
            # A run that was resumed has its last part on the wall's clock only.
            seconds = max(record["wall_seconds"], record["seconds"])
            took.setdefault(record["model"], []).append(seconds)
    if not took:
        return "time left: unknown before the first has ended"
    # The latest ones: settings of a study are alike, and machines are not always as busy.
    means = {model: mean(values[-3:]) for model, values in took.items()}
    overall = mean(seconds for values in took.values() for seconds in values)
    return f"about {_words(sum(means.get(run.model, overall) for run in pending))} left"


def _words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


BINS = 50
TAIL = 0.01
"""Of each side, left out of the overlap's width: its ends would else be two outliers."""

_USERS_AT_ONCE = 1024


@torch.inference_mode()
def densities_of(scorer: Scorer, split: Split) -> dict[str, Any]:
    """Of the test items, and of the items of sampled ranking that their users never touched."""
    ranker = Ranker(split, "test")
    queries = ranker.queries
    positive, negative = [], []
    rows = np.repeat(np.arange(len(queries)), queries.held_out)
    for begin in range(0, len(rows), _USERS_AT_ONCE):
        some = slice(begin, begin + _USERS_AT_ONCE)
        users = torch.from_numpy(queries.users[rows[some]])
        items = torch.from_numpy(queries.items[some])
        positive.append(scorer.score_rows(users, items.unsqueeze(1)).numpy().ravel())
    for begin in range(0, len(queries), _USERS_AT_ONCE):
        some = slice(begin, begin + _USERS_AT_ONCE)
        drawn = ranker.negatives[some].astype(np.int64)
        users = torch.from_numpy(queries.users[some])
        found = scorer.score_rows(users, torch.from_numpy(np.maximum(drawn, 0))).numpy()
        negative.append(found[drawn >= 0])
    return described(np.concatenate(positive), np.concatenate(negative))


def described(positive: NDArray[Any], negative: NDArray[Any]) -> dict[str, Any]:
    """Densities over 0–100 in bins, the interval where both sides lie, and the area that they share."""
    lowest, highest = min(positive.min(), negative.min()), max(positive.max(), negative.max())
    span = max(float(highest - lowest), np.finfo(np.float32).tiny)
    sides = {
        name: 100.0 * (values.astype(np.float64) - lowest) / span
        for name, values in (("positive", positive), ("negative", negative))
    }
    edges = np.linspace(0.0, 100.0, BINS + 1)
    found = {name: np.histogram(values, edges, density=True)[0] for name, values in sides.items()}
    low = float(np.quantile(sides["positive"], TAIL))
    high = float(np.quantile(sides["negative"], 1 - TAIL))
    shared = float(np.minimum(found["positive"], found["negative"]).sum() * 100.0 / BINS)
    return {
        "bins": {name: [round(float(value), 6) for value in values] for name, values in found.items()},
        "interval": [round(low, 3), round(max(low, high), 3)],
        "width": round(max(0.0, high - low), 3),
        "shared_area": round(shared, 4),
    }

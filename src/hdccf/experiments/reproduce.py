"""`hdccf reproduce`: trains and records each row of a study once, and writes its tables and figures."""

import hashlib
import itertools
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from statistics import mean

import polars as pl
import torch
from filelock import FileLock

from hdccf.config import FitOptions, Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.errors import ConfigError, HdccfError, RunError
from hdccf.evaluation import Evaluation, evaluate
from hdccf.evaluation.candidates import CANDIDATE_FORMAT
from hdccf.experiments import plans
from hdccf.experiments.diagnostics import diagnostics_of
from hdccf.experiments.figures import densities_of, draw_bars, draw_densities, draw_sweeps
from hdccf.experiments.plans import STUDIES, Plan, Row, Task, all_training, part_name, without_times
from hdccf.experiments.studies import cut_half_a_line
from hdccf.experiments.tables import Outcome, Record, Results, write_study, write_table
from hdccf.models import entry_named
from hdccf.models.base import Model, Scorer
from hdccf.plots import refuse_without_matplotlib
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder
from hdccf.rng import generator_for
from hdccf.training.fit import fit, resume

# -- the journal ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One training of a row, and what is asked of it afterwards."""

    dataset: str
    split: str
    """The fingerprint."""
    task: Task
    row: Row
    seed: int

    @cached_property
    def settings(self) -> Settings:
        """The row's settings over the model's defaults."""
        return entry_named(self.row.model).settings(**self.row.settings)

    def facts(self) -> Record:
        """Everything that decides the result. What is only asked in addition is no part of it."""
        return {
            "model": self.row.model,
            "dataset": self.dataset,
            "split": self.split,
            "seed": self.seed,
            "settings": self.settings.model_dump(mode="json"),
            "protocols": list(self.task.protocols),
            "metrics": list(self.task.metrics),
            "retrain": self.task.retrain,
            "candidates": self._candidates,
            # Not with every run: a journal's older lines have no such fact.
            **({"calibrated": True} if self.row.calibrated else {}),
            **({"time_blind": True} if self.row.time_blind else {}),
        }

    @property
    def _candidates(self) -> str | None:
        """The rule by which negatives are drawn, where a metric of the task is over sampled ones."""
        asked = (*self.task.protocols, self.task.validation_metric.partition(":")[0])
        return CANDIDATE_FORMAT if {"sampled", "popular"} & set(asked) else None

    @property
    def key(self) -> str:
        """A name for its files."""
        digest = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:16]
        return f"{self.row.model}-seed{self.seed}-{digest}"

    def is_answered_by(self, record: Record) -> bool:
        """Whether a record is of this run, though the model may have gained or lost settings since.

        A setting that is new since must be at its default; one that is gone must not have been changed.
        """
        facts = self.facts()
        now, then = facts.pop("settings"), record["settings"]
        defaults = type(self.settings)().model_dump(mode="json")
        return (
            all(record.get(name) == value for name, value in facts.items())
            and record.get("calibrated", False) == self.row.calibrated
            and record.get("time_blind", False) == self.row.time_blind
            and (not self.row.given or "given" in record)
            and (not self.row.densities or "densities" in record)
            and all(name not in record["changed"] for name in then.keys() - now.keys())
            and all(value == then.get(name, defaults[name]) for name, value in now.items())
        )


class Journal:
    """A JSON Lines file of finished runs, and beside it a folder with each run's values by user."""

    def __init__(self, path: Path, per_user: Path) -> None:
        self.path, self.per_user = path, per_user
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))

    def records(self) -> list[Record]:
        """The lines in order; a last one that a kill cut short is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def find(self, run: Run) -> Record | None:
        """The latest record of a run, if there is one."""
        return next((each for each in reversed(self.records()) if run.is_answered_by(each)), None)

    def append(self, record: Record, evaluation: Evaluation) -> None:
        """Saves the values by user first, since a line says that they are there."""
        evaluation.save(self.per_user / record["key"], overwrite=True)
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("ab+") as file:
            cut_half_a_line(file)
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def evaluation(self, record: Record) -> Evaluation | None:
        """The values by user, where this machine has them."""
        folder = self.per_user / record["key"]
        return Evaluation.load(folder) if folder.exists() else None


# -- studies -------------------------------------------------------------------------------------------------

ALL = "all"
_TITLES = {
    "ablation": "Ablations",
    "scores": "Relevance scores of positive and negative items",
    "omega": "Probability of a false negative",
    "neighbours": "Positive neighbours",
    "beta": "Frequency correction",
    "temperature": "Temperature",
    "recency": "Half-lives",
}
_FIGURES = {"ablation": draw_bars, "scores": draw_densities}
"""The figures of studies that are no sweep."""


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One data set, and the folder that its results go to."""

    plan: Plan
    split: Split
    threads: int | None = None
    source: str = ""
    """Where the data came from, in words."""
    allow_dirty: bool = False
    """Whether results of changed code may be written beside that code."""
    fresh: bool = False
    """Whether to run again what the journal has."""
    progress: bool = False

    @cached_property
    def commit(self) -> str:
        """That of the code when it started; it may change on the disk while runs are under way."""
        return commit_of(PACKAGE) or f"hdccf {version('hdccf')}"

    @property
    def journal(self) -> Journal:
        """The finished runs of the data set."""
        results = self.plan.results
        return Journal(results / "journal" / f"{self.plan.dataset}.jsonl", results / "per-user")

    @property
    def work(self) -> Path:
        """The folder of the runs under way, which are resumed after a kill."""
        return self.plan.results / ".runs"

    def run(self, study: str) -> list[Path]:
        """Runs a study, or all of them, and gives the stems of the files that it wrote."""
        self._refuse_dirty()
        has_times = self.plan.has_times
        studies = [name for name in STUDIES if name != "recency" or has_times] if study == ALL else [study]
        if "table" in studies and not has_times and self.progress:
            note(f"{self.plan.dataset} has no times, so there is no time-aware part")
        if self.plan.time_aware and not has_times:
            raise ConfigError(f"{self.plan.dataset} has no times; leave out --time-aware")
        both = [False, True] if has_times else [False]
        if studies != ["table"]:
            refuse_without_matplotlib()
        wanted = both if self.plan.time_aware is None else [self.plan.time_aware]
        parts = [(name, part) for name in studies for part in (wanted if name == "table" else [False])]
        every = [self._rows(*part) for part in parts]
        chosen = [self._chosen(rows) for rows in every]
        stems = [self._stem(*part) for part in parts]
        for stem, rows, asked in zip(stems, every, chosen, strict=True):
            _refuse_loss(stem, [*(row.label for row in asked), *self._recorded(rows)])
        for number, (name, time_aware) in enumerate(parts):
            if name == "table" and self.progress:
                for row in chosen[number]:
                    note(f"{row.label}: {row.origin}")
            failures = self.train(chosen[number], chosen[number + 1 :]).failures
            # Rows that were not asked for keep their place in the table.
            outcome = self._outcome(every[number], failures)
            _refuse_loss(stems[number], [label for label, found in outcome.records.items() if found])
            if not any(outcome.records.values()):
                raise ConfigError(f"no row of {name} could be run: {'; '.join(failures.values())}")
            if name == "table":
                self._table(every[number], outcome, time_aware, stems[number])
            else:
                self._study(name, every[number], outcome, stems[number])
        return stems

    def _rows(self, study: str, time_aware: bool) -> list[Row]:
        return plans.table(self.plan, True) if time_aware else STUDIES[study](self.plan)

    def _stem(self, study: str, time_aware: bool) -> Path:
        return self.plan.results / study / part_name(self.plan.dataset, time_aware)

    def _recorded(self, rows: list[Row]) -> list[str]:
        return [label for label, found in self._outcome(rows, {}).records.items() if found]

    def _refuse_dirty(self) -> None:
        """Results that are kept beside the code name the commit that they can be made again with."""
        results = self.plan.results.resolve()
        if self.commit.endswith(DIRTY) and not self.allow_dirty and results.is_relative_to(root_of(PACKAGE)):
            raise ConfigError(
                f"{PACKAGE} has changed since its commit, so results in {results} could not be made "
                "again; commit first, or give another --out, or --allow-dirty"
            )

    def _table(self, rows: list[Row], outcome: Outcome, time_aware: bool, stem: Path) -> None:
        title = f"{self.plan.dataset}, {'time-aware' if time_aware else 'time-blind'}"
        results = Results.of(title, rows, outcome, self._command("table", rows, outcome))
        write_table(results.compared(self.journal.evaluation, stem), stem)

    def _study(self, study: str, rows: list[Row], outcome: Outcome, stem: Path) -> None:
        title = f"{_TITLES[study]} on {self.plan.dataset}"
        results = Results.of(title, rows, outcome, self._command(study, rows, outcome))
        results = results.compared(self.journal.evaluation, stem)
        write_study(results, stem)
        _FIGURES.get(study, draw_sweeps)(results, stem)

    def _chosen(self, rows: list[Row]) -> list[Row]:
        """Those that are asked for, in the study's order."""
        labels, only = [row.label for row in rows], self.plan.only
        for label in only:
            if label not in labels:
                raise ConfigError(f"only={label!r} is no row of this study; choose some of {labels}")
        return [row for row in rows if row.label in only] if only else rows

    def _command(self, study: str, rows: list[Row], outcome: Outcome) -> str:
        plan = self.plan
        present = [row.label for row in rows if outcome.records[row.label]]
        missing = len(present) + len(outcome.failures) < len(rows)
        seeds = "" if plan.seeds is None else f" --seeds {plan.seeds}"
        budget = "" if plan.budget == "full" else f" --budget {plan.budget}"
        changed = "".join(f" --set {name}={value}" for name, value in plan.overrides.items())
        only = "".join(f" --only {quote(label)}" for label in present) if missing else ""
        data = plan.given or f"--dataset {plan.dataset}"
        return f"hdccf reproduce {study} {data}{seeds}{budget}{changed}{only}"

    # -- runs ------------------------------------------------------------------------------------------------

    def train(self, rows: list[Row], later: Sequence[list[Row]] = ()) -> Outcome:
        """Trains what is not in the journal yet; a row that is impossible here is reported and left out.

        The estimated time counts the rows of `later` parts as well.
        """
        runs, missing = self._runs(rows), self._missing(rows)
        here = {run.key for run in missing}
        ahead = {run.key: run for part in later for run in self._missing(part) if run.key not in here}
        failures: dict[str, str] = {}
        if self.progress and len(missing) < len(runs):
            note(f"{len(runs) - len(missing)} of {len(runs)} runs are in {self.journal.path} already")
        for number, run in enumerate(missing):
            label = run.row.label
            if label in failures:
                continue
            if self.progress:
                pending = [each for each in missing[number:] if each.row.label not in failures]
                left = _time_left(self.journal.records(), [*pending, *ahead.values()])
                left += f", with {len(ahead)} runs of later parts" if ahead else ""
                note(f"run {number + 1} of {len(missing)}: {label}, seed {run.seed}; {left}")
            try:
                self._do(run)
            except RunError:  # interrupted, or a folder that is in the way: not the row's
                raise
            except HdccfError as error:
                failures[label] = str(error)
                note(f"{label} is left out: {error}")
        return self._outcome(rows, failures)

    def _outcome(self, rows: list[Row], failures: dict[str, str]) -> Outcome:
        """What the journal has of the rows, with all their seeds: a table never loses any."""
        found: dict[str, list[Record]] = {row.label: [] for row in rows}
        for row in rows:
            for seed in itertools.count():
                record = self.journal.find(self.run_of(row, seed))
                if record is not None:
                    found[row.label].append(record)
                elif seed >= row.seeds:
                    break
        return Outcome(found, failures)

    def _runs(self, rows: list[Row]) -> list[Run]:
        return [self.run_of(row, seed) for row in rows for seed in range(row.seeds)]

    def _missing(self, rows: list[Row]) -> list[Run]:
        return [run for run in self._runs(rows) if self.fresh or self.journal.find(run) is None]

    def run_of(self, row: Row, seed: int) -> Run:
        """The run of a row with a seed."""
        return Run(self.plan.dataset, self.split.fingerprint, self.plan.task, row, seed)

    def _do(self, run: Run) -> None:
        """One process works at a run; another that waited for it finds it done."""
        self.work.mkdir(parents=True, exist_ok=True)
        with FileLock(self.work / f"{run.key}.lock"):
            if not self.fresh and self.journal.find(run) is not None:
                return
            self.journal.append(*self._trained_and_tested(run))
            for folder in self.work.glob(f"{run.key}*"):
                if folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)
        (self.work / f"{run.key}.lock").unlink(missing_ok=True)

    def _trained_and_tested(self, run: Run) -> tuple[Record, Evaluation]:
        """The record of a run, and its values by user."""
        folder, task, settings = self.work / run.key, run.task, run.settings
        started = time.monotonic()
        split = without_times(self.split) if run.row.time_blind else self.split
        training: Record = {}
        seconds, calibration = 0.0, None
        if isinstance(settings, TrainingSettings) or not task.retrain:
            fitted = self._fit(folder, split, run)
            training, seconds = _training_facts(folder), fitted.seconds
            calibration = fitted.calibration if run.row.calibrated else None
        if task.retrain:
            split = all_training(split)
            if isinstance(settings, TrainingSettings):
                # A cosine over fewer epochs would be another training than the one that was validated.
                epochs = settings.epochs if settings.schedule == "cosine" else training["best_epoch"]
                settings = settings.changed(epochs=epochs, evaluate_every=epochs)
            fitted = self._fit(folder.with_name(f"{folder.name}-all"), split, run, settings)
            seconds += fitted.seconds
            if calibration is not None:
                calibration = calibration.on(settings, fitted.model.scorer(), split.train)

        def scores(model: Model, history: Interactions) -> Scorer:
            scorer = model.scorer()
            return scorer if calibration is None else calibration.apply(scorer, history)

        tested = all_training(self.split) if task.retrain else self.split
        test = partial(_evaluated, split=tested, task=task, progress=self.progress)
        found = test(scores(fitted.model, split.train))
        record = {
            **run.facts(),
            "key": run.key,
            "changed": sorted(run.settings.model_dump(exclude_defaults=True)),
            "values": _asked(found, task),
            **training,
            **({} if calibration is None else {"calibration": calibration.describe()}),
            "seconds": round(seconds, 3),
            "wall_seconds": round(time.monotonic() - started, 3),
            "commit": self.commit,
            "source": self.source,
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if run.row.given:
            history = split.joined("train", "validation")
            record["given"] = _asked(test(scores(_with_histories(fitted, history), history)), task)
        if run.row.densities:
            record["densities"] = densities_of(fitted, split)
        if run.row.diagnostics:
            record["diagnostics"] = diagnostics_of(fitted.model, split)
        names = [f"{protocol}/{metric}" for protocol in task.protocols for metric in task.metrics]
        # Of all that evaluation knows, what tests need, at half the size.
        kept = found.per_user.select("user", *(pl.col(name).cast(pl.Float32) for name in names))
        return record, replace(found, per_user=kept)

    def _fit(self, folder: Path, split: Split, run: Run, settings: Settings | None = None) -> Recommender:
        """Trains in a folder, or resumes; what a kill left half made, or is of another split, is replaced."""
        try:
            same = RunFolder.open(folder).split().fingerprint == split.fingerprint
        except RunError:
            same = False
        if folder.exists() and not same:
            shutil.rmtree(folder)
        try:
            if same:
                return resume(folder, progress=self.progress)
            # Tables compare the models as published, but for the rows that are called calibrated.
            options = FitOptions(threads=self.threads, calibrate=run.row.calibrated)
            return fit(
                split,
                settings or run.settings,
                seed=run.seed,
                out=folder,
                options=options,
                progress=self.progress,
            )
        except RunError as error:
            if "interrupted" in str(error):
                raise RunError("interrupted; call the same command again to go on") from error
            raise


def _evaluated(scorer: Scorer, split: Split, task: Task, progress: bool) -> Evaluation:
    """The test part under the task's protocols; `popular` is an evaluation of its own."""
    ks = sorted({int(metric.partition("@")[2]) for metric in task.metrics})
    test = partial(evaluate, scorer, split, ks=ks, beyond_accuracy=False, progress=progress)
    found = test(protocols=[protocol for protocol in task.protocols if protocol != "popular"])
    if "popular" not in task.protocols:
        return found
    popular = test(protocols=("sampled",), weighting="popularity")
    columns = [
        pl.Series(name.replace("sampled/", "popular/"), popular.per_user[name])
        for name in popular.per_user.columns
        if name.startswith("sampled/")
    ]
    values = {**found.values, "popular": popular.values["sampled"]}
    return replace(found, values=values, per_user=found.per_user.with_columns(columns))


def _asked(found: Evaluation, task: Task) -> dict[str, dict[str, float]]:
    """The values of the task's metrics."""
    return {
        protocol: {name: found.values[protocol][name] for name in task.metrics} for protocol in task.protocols
    }


def _training_facts(folder: Path) -> Record:
    """The best epoch of a run that has ended, its validation metric and loss terms."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    at_best = [r for r in RunFolder.open(folder).metrics() if r["epoch"] == result["best_epoch"]]
    terms = at_best[0]["terms"] if at_best else {}
    return {"best_epoch": result["best_epoch"], "validation": result["best_value"], "terms": terms}


def _with_histories(fitted: Recommender, history: Interactions) -> Model:
    """The same weights over other histories of the same users."""
    generator = generator_for(fitted.seed, "initial values")
    model = entry_named(fitted.name).build(fitted.settings, history, generator)
    model.load_state_dict(fitted.model.state_dict())
    return model


def _refuse_loss(stem: Path, labels: Sequence[str]) -> None:
    """A table that exists is not replaced by one without some of its rows."""
    file = stem.with_name(f"{stem.name}.csv")
    if not file.exists():
        return
    rows = pl.read_csv(file, infer_schema=False).to_series(0).unique(maintain_order=True)
    lost = [row for row in rows if row not in labels]
    if lost:
        raise ConfigError(
            f"{file} has rows that the journal has no runs of: {', '.join(lost)}; run them too (without "
            "--only), or give another --out"
        )


PACKAGE, DIRTY = Path(__file__).parents[1], "-dirty"


def commit_of(package: Path) -> str:
    """The code's commit, "-dirty" where that has changed since; results beside it change with every run."""
    commit = _git(package, "describe", "--always", "--abbrev=10")
    return f"{commit}{DIRTY}" if _git(package, "status", "--porcelain", "--", ".") else commit


def root_of(package: Path) -> Path:
    """The repository of the code; the code's own folder where there is none."""
    return Path(_git(package, "rev-parse", "--show-toplevel") or package)


def _git(package: Path, *asked: str) -> str:
    """What git says about the code; nothing where there is no git or no repository."""
    try:
        found = subprocess.run(["git", *asked], capture_output=True, text=True, check=False, cwd=package)  # noqa: S603, S607
    except OSError:
        return ""
    return found.stdout.strip()


def _time_left(records: list[Record], pending: list[Run]) -> str:
    """From what the latest runs of each model took on this data set; a model without runs takes the mean of
    the others."""
    took: dict[str, list[float]] = {}
    for record in records:
        if record["dataset"] == pending[0].dataset:
            # A run that was resumed has its last part on the wall's clock only.
            seconds = max(record["wall_seconds"], record["seconds"])
            took.setdefault(record["model"], []).append(seconds)
    if not took:
        return "time left: unknown before the first has ended"
    means = {model: mean(values[-3:]) for model, values in took.items()}
    overall = mean(means.values())
    left = sum(means.get(run.row.model, overall) for run in pending)
    unit, size, digits = ("s", 1, 0) if left < 90 else ("min", 60, 0) if left < 5400 else ("h", 3600, 1)
    return f"about {left / size:.{digits}f} {unit} left"

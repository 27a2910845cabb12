"""`fit` and `resume`: train a model from a split and settings in this process."""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hdccf import checkpoint
from hdccf.config import FitOptions, Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.read import read
from hdccf.data.split import Split, leave_one_out, no_split
from hdccf.errors import ConfigError, RunError
from hdccf.files import locked, write_json
from hdccf.models import MODELS, entry_named, name_of
from hdccf.models.base import Model
from hdccf.models.calibration import Calibration
from hdccf.models.hdccf.settings import automatic_candidates
from hdccf.recommend.recommender import Recommender, Weights, load_run
from hdccf.recommend.run_folder import RunFolder, removed_if_it_fails
from hdccf.rng import generator_for
from hdccf.training.calibrate import Calibrator, calibrate_run, metric_of, parse_metric, validation_ranker
from hdccf.training.loop import (
    Diagnosis,
    Loop,
    StopTraining,
    Watch,
    at_most,
    automatic_threads,
    beyond_chance,
    device_named,
)
from hdccf.training.race import append_to, explain_choice, race, read_race, sample_for_race
from hdccf.training.state import CheckpointStore, FolderStore, TrainingState
from hdccf.training.telemetry import Board, MLflow, Stopwatch, TensorBoard, Writer, table
from hdccf.training.warm_start import start_from

__all__ = ["Diagnosis", "StopTraining", "Watch", "fit", "parse_metric", "resume"]


def fit(
    data: Any,
    settings: Settings | Mapping[str, Settings] | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    options: FitOptions | None = None,
    progress: bool = False,
    about: dict[str, Any] | None = None,
    diagnosis: Diagnosis | None = None,
    on_evaluation: Watch | None = None,
    init_from: str | Path | None = None,
    refit: bool | None = None,
) -> Recommender:
    """Trains a model on the training part of a split and selects its epoch on the validation part.

    Parameters
    ----------
    data
        A split, from `leave_one_out` or another split function; or interactions, or anything that
        `hdccf.read` reads, whose last two of each user are held out, and trained on in the end (`refit`).
    settings
        The model's settings, such as `HDCCF(temperature=0.1)`. Several by name are candidates, of which the
        best on validation is trained to the end. Without any, HDCCF's own candidates for this data are
        compared (or, with `init_from`, that run's settings taken).
    seed
        Same seed, same machine and same number of threads: same bits.
    out
        A folder for the run: settings, split, checkpoints, metrics. An interrupted training continues with
        `resume(out)`. Without it nothing is written.
    options
        Device, threads, checkpoint intervals, TensorBoard, profiling, workers.
    progress
        Whether to show a progress bar.
    about
        Facts about the data source, kept in run.json.
    diagnosis
        Called with the model and the last batch of an epoch; its values are logged.
    on_evaluation
        Called with every record of metrics.jsonl; raise `StopTraining` to end early.
    init_from
        A run whose weights are the start, for all users and items that it knows.
    refit
        Whether to train once more on all events, for as many epochs as validation selected, and to answer
        with those weights; `evaluate` goes by the weights that have not seen the held-out events. Without it
        interactions are refitted, and splits are not.

    Returns
    -------
    The trained model with its best weights.

    Examples
    --------
    >>> split = hdccf.leave_one_out(hdccf.load("ml-100k"))  # doctest: +SKIP
    >>> model = hdccf.fit(split)  # doctest: +SKIP
    >>> model = hdccf.fit(split, hdccf.HDCCF(temperature=0.15), seed=1)  # doctest: +SKIP
    >>> model = hdccf.fit(hdccf.read("orders.csv"))  # for use: trained on all events  # doctest: +SKIP
    """
    options = options or FitOptions()
    if refit is None and options.refit is None and not isinstance(data, Split):
        refit = True
        note("each user's last events are held out for validation, and all are trained on in the end (refit)")
    options = options if refit is None else options.changed(refit=refit)
    device_named(options.device)  # before any data is read
    if options.mlflow is not None:
        MLflow(options.mlflow)
    split = data if isinstance(data, Split) else leave_one_out(read(data))
    candidates = _candidates(split, settings, init_from)
    given = _Given(seed, options, progress, diagnosis, on_evaluation, about or {})
    fitting = _Fitting(split, candidates, given)
    if init_from is not None:
        fitting.start_from(init_from)
    if out is None:
        return fitting.run(None)
    options, about = fitting.given.options, fitting.given.about
    with locked(Path(out), RunError):
        folder = RunFolder.create(Path(out), candidates, split, seed, options, about)
        with removed_if_it_fails(folder.path):
            return fitting.run(folder)


def resume(
    path: str | Path,
    *,
    progress: bool = False,
    diagnosis: Diagnosis | None = None,
    on_evaluation: Watch | None = None,
) -> Recommender:
    """Continues a run from its last checkpoint; the result has the same bits as without the interruption.

    Parameters
    ----------
    path
        The folder of the run.
    progress, diagnosis, on_evaluation
        As in `fit`.

    Examples
    --------
    >>> hdccf.resume("runs/ml-100k-hdccf-seed0")  # doctest: +SKIP
    """
    run = RunFolder.open(path)
    if run.result.exists() and not run.checkpoint.exists():
        return load_run(path)  # it was solved, or kept with `save`
    given = _Given(run.seed, run.options, progress, diagnosis, on_evaluation, run.config["data"])
    fitting = _Fitting(run.split(), run.candidates, given)
    # The first checkpoint has what a run started from; only one that was stopped before it asks again.
    source = run.config["data"].get("init_from")
    if source is not None and not run.checkpoint.exists():
        fitting.start_from(source["run"])
    with locked(run.path, RunError):
        return fitting.run(run)


def _candidates(
    split: Split, settings: Settings | Mapping[str, Settings] | None, init_from: str | Path | None
) -> dict[str, Settings]:
    """The settings to choose from, by name; one where there is nothing to choose or to choose by."""
    if settings is None and init_from is not None:
        settings = RunFolder.open(init_from).settings
    if settings is None:
        settings = automatic_candidates(split.train, validated=len(split.validation) > 0)
    if isinstance(settings, Settings):
        return {name_of(settings): settings}
    if not settings:
        raise ConfigError("there are no candidates; give settings by name, or one model's settings")
    if not len(split.validation):
        settings = dict(list(settings.items())[:1])
    if len(settings) > 1:
        untrained = [name for name, one in settings.items() if not isinstance(one, TrainingSettings)]
        if untrained:
            raise ConfigError(f"{untrained[0]} is not trained in epochs, so it cannot be a candidate")
        if len({metric_of(one) for one in settings.values()}) > 1:
            raise ConfigError("candidates are compared by one metric; give all the same validation_metric")
    return dict(settings)


def _check_weights(settings: Settings, split: Split) -> None:
    if split.train.weights is not None and not settings.weighs_positives:
        able = [name for name, entry in MODELS.items() if entry.settings.weighs_positives]
        raise ConfigError(
            f"the data has weights, and {name_of(settings)} cannot weigh its positives; read the data "
            f"without weight, event and repeats='all', or choose one of {able}"
        )


@dataclass(frozen=True)
class _Given:
    """What a training is given besides data and settings."""

    seed: int
    options: FitOptions
    progress: bool
    diagnosis: Diagnosis | None
    on_evaluation: Watch | None
    about: dict[str, Any]


class _Fitting:
    """The choice among candidates, if there are several, the training of the chosen one, and the refit."""

    def __init__(self, split: Split, candidates: Mapping[str, Settings], given: _Given) -> None:
        self.split, self.candidates, self.given = split, candidates, given
        for settings in candidates.values():
            parse_metric(metric_of(settings))  # before anything is built
            _check_weights(settings, split)
        # What cannot be trained is refused before there is a folder of it.
        first = next(iter(candidates.values()))
        self.training = _Training(split, first, given, self._calibrator(split, first))
        # Bits repeat for the same number of threads, so a run remembers how many there were.
        scores = split.n_users * split.n_items
        threads = given.options.threads or automatic_threads(self.training.model, scores)
        self.given = self.training.given = replace(given, options=given.options.changed(threads=threads))

    def _calibrator(self, split: Split, settings: Settings) -> Calibrator | None:
        """What calibrates at every evaluation; None where validation goes by the model's own scores."""
        wanted = self.given.options.calibrate and settings.calibration == "full" and len(split.validation)
        return Calibrator(split, metric_of(settings)) if wanted else None

    def start_from(self, source: str | Path) -> None:
        found = self.training.start_from(source)
        self.given = replace(self.given, about={**self.given.about, "init_from": found})

    def run(self, folder: RunFolder | None) -> Recommender:
        before = torch.get_num_threads()
        torch.set_num_threads(self.given.options.threads or before)
        try:
            if len(self.candidates) > 1:
                folder = self._choose(folder)
            self.training.keep_in(folder)
            self.training.finish()
            self.training.calibrate()
            refit = None
            if self.given.options.refit and len(self.split.validation) + len(self.split.test):
                refit = self._refit(self.training)
            return self._finished(folder, refit)
        finally:
            torch.set_num_threads(before)

    def _refit(self, first: "_Training") -> "_Training":
        """Trains the chosen settings once more, on all events and for as many epochs as were selected."""
        whole, epochs = no_split(self.split.joined()), first.state.best_epoch
        options = self.given.options.changed(refit=False, mlflow=None)
        given = replace(self.given, options=options, diagnosis=None, on_evaluation=None)
        again = _Training(whole, first.settings, given, None)
        if first.folder is not None:
            place, run = first.folder.refit, {name_of(first.settings): first.settings}
            if not place.exists():
                RunFolder.create(place, run, whole, given.seed, options, given.about)
            again.keep_in(RunFolder.open(place))
        source = given.about.get("init_from")
        if source is not None and not (again.folder and again.folder.checkpoint.exists()):
            again.start_from(source["run"])
        if given.progress:
            length = f" for {epochs} epochs, as validation selected" if again.model.groups else ""
            note(f"refit: training once more, on all {len(whole.train):,} pairs{length}")
        again.finish(epochs)
        if first.calibration is not None:
            again.calibration = first.calibration.on(first.settings, again.model.scorer(), whole.train)
        again.keep_result()
        return again

    def _finished(self, folder: RunFolder | None, refit: "_Training | None") -> Recommender:
        """The model that answers; its run has a result.json from now on."""
        training, again = self.training, None
        result, seconds = training.result, training.state.seconds
        if refit is not None:
            calibration = refit.calibration
            if calibration is None:
                calibration = Calibration.neutral(training.settings, refit.model.scorer(), refit.split.train)
            again, seconds = Weights(refit.model, calibration), seconds + refit.state.seconds
            result["refit"] = {"epochs": result["best_epoch"], "pairs": len(refit.split.train)}
        training.keep_result(result)
        options = self.given.options.model_dump(mode="json")
        config = {"options": options, "data": self.given.about} if folder is None else folder.config
        return Recommender(
            training.model,
            training.settings,
            self.split,
            seed=self.given.seed,
            seconds=seconds,
            calibration=training.calibration,
            path=None if folder is None else folder.path,
            config=config,
            refit=again,
            result=result,
        )

    def _choose(self, folder: RunFolder | None) -> RunFolder | None:
        """Compares the candidates, and leaves the training of the best; gives the folder of its run."""
        sample, first = sample_for_race(self.split), self.training
        # The filter's scores are the same for all candidates.
        calibrators = {first.settings.calibration: first.calibrator} if sample is self.split else {}

        def start(name: str) -> _Training:
            settings = self.candidates[name]
            if settings.calibration not in calibrators:
                calibrators[settings.calibration] = self._calibrator(sample, settings)
            training = _Training(sample, settings, self.given, calibrators[settings.calibration])
            training.keep_in(None if folder is None else folder.of_candidate(name))
            return training

        lines = [] if folder is None else read_race(folder.race)
        log = lines.append if folder is None else append_to(folder.race, lines)
        minutes, progress = self.given.options.minutes, self.given.progress
        every = {
            name: one.evaluate_every
            for name, one in self.candidates.items()
            if isinstance(one, TrainingSettings)
        }
        name, training = race(every, start, done=list(lines), log=log, minutes=minutes, progress=progress)
        settings = self.candidates[name]
        if progress:
            note(explain_choice(name, lines, metric_of(settings)))
        whole = sample is self.split
        if training is None or not whole:
            training = _Training(self.split, settings, self.given, self._calibrator(self.split, settings))
        self.training = training
        return None if folder is None else folder.chosen(name, keep=whole)


class _Training:
    """One training of one model, in parts that a race can interrupt: `advance`, then `finish`."""

    def __init__(
        self, split: Split, settings: Settings, given: "_Given", calibrator: Calibrator | None
    ) -> None:
        self.split, self.settings, self.given, self.calibrator = split, settings, given, calibrator
        self.folder: RunFolder | None = None
        self.device = device_named(given.options.device)
        build = entry_named(name_of(settings)).build
        with at_most(1):  # the model's size decides how many there are later
            self.model = build(settings, split.train, generator_for(given.seed, "initial values"))
        self.model.to(self.device)
        self.warm = False
        self.loop: Loop | None = None
        self.watch: Stopwatch | None = None
        self.state = TrainingState()
        self.calibration: Calibration | None = None
        self.tracker: MLflow | None = None

    def start_from(self, source: str | Path) -> dict[str, Any]:
        self.warm = True
        held_out = len(self.split.validation) + len(self.split.test)
        found = start_from(self.model, name_of(self.settings), self.split.train, source, refit=not held_out)
        if self.given.progress:
            note(
                f"starting from {found['run']}: {found['users']:,} users and {found['items']:,} items known, "
                f"{found['new_users']:,} and {found['new_items']:,} new"
            )
        return found

    def keep_in(self, folder: RunFolder | None) -> None:
        """Where checkpoints go; None keeps nothing."""
        self.folder = folder
        if self.loop is not None:
            self.loop.store = self._store()

    def _store(self) -> CheckpointStore:
        return CheckpointStore() if self.folder is None else FolderStore(self.folder)

    def advance(self, until: int | None = None, *, progress: bool = False) -> None:
        """Trains to the end, or to the end of an epoch."""
        if self.loop is None:
            self.watch = Stopwatch() if self.given.options.profile else None
            self.loop = Loop(
                self.model,
                self.settings,
                SplitValidator(self.split, self.settings, self.calibrator),
                self._store(),
                seed=self.given.seed,
                options=self.given.options,
                device=self.device,
                clock=self.watch or nullcontext,
                diagnosis=self.given.diagnosis,
                on_evaluation=self.given.on_evaluation,
            )
        loop, folder = self.loop, self.folder
        writers: list[Writer] = [] if self.tracker is None else [self.tracker]
        loop.progress, self.state = progress, loop.state
        if folder is not None and self.given.options.tensorboard:
            writers.append(TensorBoard(folder.path))
        loop.run(Board(*writers), warm=self.warm, until=until)
        self.state = loop.state

    def _report_profile(self) -> None:
        """Where the time of the training went, where it is to be told."""
        if self.watch is None:
            return
        profile = self.watch.report()
        if self.folder is not None:
            with checkpoint.explained(self.folder.profile):
                write_json(self.folder.profile, profile)
        if self.given.progress:
            note(table(profile))

    def finish(self, epochs: int | None = None) -> None:
        """Trains to the end, or for so many epochs, and leaves the model with its best weights."""
        folder = self.folder
        if self.model.groups:
            if self.given.options.mlflow is not None:
                self.tracker = MLflow(self.given.options.mlflow)
                self.tracker.begin(folder, self.settings)
            self.advance(epochs, progress=self.given.progress)
            if self.tracker is not None and self.result["best_value"] is not None:
                self.tracker.write({"best_value": self.state.best_value}, self.state.best_epoch)
            self._report_profile()
        elif folder is None or not folder.best.exists():
            started = time.monotonic()
            self.model.solve(generator_for(self.given.seed, "solution"), self.given.progress)
            self.state.seconds = time.monotonic() - started
        self._keep_best()

    def calibrate(self) -> None:
        if self.given.options.calibrate:
            self.calibration = calibrate_run(
                self.model, self.split, self.folder, progress=self.given.progress, calibrator=self.calibrator
            )

    @property
    def result(self) -> dict[str, Any]:
        return result_of(self.state, len(self.split.validation) > 0)

    def keep_result(self, result: dict[str, Any] | None = None) -> None:
        """Tells the run that it has ended, and how."""
        folder = self.folder
        if folder is None:
            return
        with checkpoint.explained(folder.result):
            if self.calibration is not None and not folder.calibration.exists():
                folder.save_tensors(folder.calibration, *self.calibration.to_parts())
            # One that was solved before has its own result already, with the seconds that it took.
            if self.model.groups or not folder.result.exists():
                write_json(folder.result, self.result if result is None else result)

    def _keep_best(self) -> None:
        """Leaves the model with its best weights, and a run with a file of them."""
        folder, best = self.folder, {} if self.loop is None else self.loop.best
        if not best and folder is not None and folder.best.exists():
            best, _ = folder.load_tensors(folder.best, self.device)
            checkpoint.fill(self.model, best, folder.best)
        if not best:
            best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            if folder is not None:
                folder.save_tensors(folder.best, best, {"epoch": self.state.best_epoch})
        self.model.load_state_dict(best)


class SplitValidator:
    """The settings' validation metric on the validation part of a split, which may be empty.

    With a calibrator it is that of the calibrated scores, which are what the model will answer with.
    """

    def __init__(self, split: Split, settings: Settings, calibrator: Calibrator | None = None) -> None:
        self.metric, self.calibrator = metric_of(settings), calibrator
        self.ranker = validation_ranker(split, self.metric) if len(split.validation) else None

    def __call__(self, model: Model) -> dict[str, float]:
        if self.ranker is None:
            return {}
        if self.calibrator is not None:
            facts = self.calibrator(model).facts
            return {self.metric: facts["after"], "uncalibrated": facts["before"]}
        protocol, name, _ = parse_metric(self.metric)
        return {self.metric: self.ranker.measure(model.scorer(), (name,), (protocol,))[protocol][name]}

    @cached_property
    def chance(self) -> float:
        if self.ranker is None:
            return -math.inf
        protocol, name, _ = parse_metric(self.metric)
        values = self.ranker.chance(protocol, name)
        return beyond_chance(float(np.nansum(values)), int(np.count_nonzero(~np.isnan(values))))


def result_of(state: TrainingState, validated: bool) -> dict[str, Any]:
    """What result.json says of a training that has ended."""
    value = state.best_value if validated and math.isfinite(state.best_value) else None
    return {"best_epoch": state.best_epoch, "best_value": value, "seconds": round(state.seconds, 3)}

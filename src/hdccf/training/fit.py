"""`fit` and `resume`: train a model from a split and settings in this process."""

import math
import time
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import VALIDATION_METRIC, FitOptions, Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.split import Split
from hdccf.errors import ConfigError, RunError
from hdccf.evaluation.ranking import Ranker
from hdccf.files import locked, write_json
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder
from hdccf.rng import generator_for
from hdccf.training.calibrate import calibrate_run, parse_metric
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
from hdccf.training.state import CheckpointStore, FolderStore, TrainingState
from hdccf.training.telemetry import Stopwatch, open_tensorboard, table
from hdccf.training.warm_start import start_from

__all__ = ["Diagnosis", "StopTraining", "Watch", "fit", "parse_metric", "resume"]


def fit(
    split: Split,
    settings: Settings,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    options: FitOptions | None = None,
    progress: bool = False,
    about: dict[str, Any] | None = None,
    diagnosis: Diagnosis | None = None,
    on_evaluation: Watch | None = None,
    init_from: str | Path | None = None,
) -> Recommender:
    """Trains a model on `split.train` and selects its epoch on `split.validation`.

    Parameters
    ----------
    split
        Training, validation and test parts, from `leave_one_out` or another split function.
    settings
        The model's settings, such as `HDCCF(temperature=0.1)`.
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

    Returns
    -------
    The trained model with its best weights.

    Examples
    --------
    >>> split = hdccf.leave_one_out(hdccf.load("ml-100k"))  # doctest: +SKIP
    >>> model = hdccf.fit(split, hdccf.HDCCF(), seed=0)  # doctest: +SKIP
    """
    if not isinstance(split, Split):
        raise ConfigError(
            "fit takes a split; make one with hdccf.leave_one_out(data) or another split function"
        )
    options = options or FitOptions()
    # What cannot be trained is refused before there is a folder of it.
    training = _Training(split, settings, seed, options, progress, diagnosis, on_evaluation)
    options, about = training.options, about or {}
    if init_from is not None:
        about = {**about, "init_from": training.start_from(init_from)}
    if out is None:
        return training.run(None)
    with locked(Path(out), RunError):
        return training.run(RunFolder.create(Path(out), settings, split, seed, options, about))


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
    training = _Training(run.split(), run.settings, run.seed, run.options, progress, diagnosis, on_evaluation)
    # The first checkpoint has what a run started from; only one that was stopped before it asks again.
    source = run.config["data"].get("init_from")
    if source is not None and not run.checkpoint.exists():
        training.start_from(source["run"])
    with locked(run.path, RunError):
        return training.run(run)


class _Training:
    """One training of one model: the parts, and what becomes of them."""

    def __init__(
        self,
        split: Split,
        settings: Settings,
        seed: int,
        options: FitOptions,
        progress: bool,
        diagnosis: Diagnosis | None,
        on_evaluation: Watch | None = None,
    ) -> None:
        self.split, self.settings, self.seed, self.on_evaluation = split, settings, seed, on_evaluation
        self.progress, self.diagnosis = progress, diagnosis
        self.run_folder: RunFolder | None = None
        if isinstance(settings, TrainingSettings):
            parse_metric(settings.validation_metric)  # before anything is built
        self.device = device_named(options.device)
        build = entry_named(name_of(settings)).build
        with at_most(1):  # the model's size decides how many there are later
            self.model = build(settings, split.train, generator_for(seed, "initial values"))
        self.model.to(self.device)
        # Bits repeat for the same number of threads, so a run remembers how many there were.
        threads = options.threads or automatic_threads(self.model, split.n_users * split.n_items)
        self.options = options.changed(threads=threads)
        self.state, self.warm = TrainingState(), False
        self.best: dict[str, Tensor] = {}

    def run(self, folder: RunFolder | None) -> Recommender:
        before = torch.get_num_threads()
        torch.set_num_threads(self.options.threads or before)
        try:
            return self._run(folder)
        finally:
            torch.set_num_threads(before)

    def _run(self, folder: RunFolder | None) -> Recommender:
        self.run_folder = folder
        if self.model.groups:
            self._train()
        elif folder is None or not folder.best.exists():
            started = time.monotonic()
            self.model.solve(generator_for(self.seed, "solution"), self.progress)
            self.state.seconds = time.monotonic() - started
        self._keep_best()
        calibration = None
        if self.options.calibrate:
            calibration = calibrate_run(self.model, self.split, folder, progress=self.progress)
        # One that was solved before has its own result already, with the seconds that it took.
        if folder is not None and (self.model.groups or not folder.result.exists()):
            with checkpoint.explained(folder.result):
                write_json(folder.result, result_of(self.state, len(self.split.validation) > 0))
        kept: dict[str, Any] = {} if folder is None else {"path": folder.path, "config": folder.config}
        return Recommender(
            self.model,
            self.settings,
            self.split,
            seed=self.seed,
            seconds=self.state.seconds,
            calibration=calibration,
            **kept,
        )

    def start_from(self, source: str | Path) -> dict[str, Any]:
        self.warm = True
        found = start_from(self.model, name_of(self.settings), self.split.train, source)
        if self.progress:
            note(
                f"starting from {found['run']}: {found['users']:,} users and {found['items']:,} items known, "
                f"{found['new_users']:,} and {found['new_items']:,} new"
            )
        return found

    def _train(self) -> None:
        watch = Stopwatch() if self.options.profile else None
        folder = self.run_folder
        loop = Loop(
            self.model,
            self.settings,
            SplitValidator(self.split, self.settings),
            CheckpointStore() if folder is None else FolderStore(folder),
            seed=self.seed,
            options=self.options,
            device=self.device,
            clock=watch or nullcontext,
            progress=self.progress,
            diagnosis=self.diagnosis,
            on_evaluation=self.on_evaluation,
        )
        loop.run(
            open_tensorboard(folder.path if folder and self.options.tensorboard else None), warm=self.warm
        )
        self.state, self.best = loop.state, loop.best
        if watch is None:
            return
        report = watch.report()
        if folder is not None:
            with checkpoint.explained(folder.profile):
                write_json(folder.profile, report)
        if self.progress:
            note(table(report))

    def _keep_best(self) -> None:
        """Leaves the model with its best weights, and a run with a file of them."""
        folder = self.run_folder
        if not self.best and folder is not None and folder.best.exists():
            self.best, _ = folder.load_tensors(folder.best, self.device)
            checkpoint.fill(self.model, self.best, folder.best)
        if not self.best:
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            if folder is not None:
                folder.save_tensors(folder.best, self.best, {"epoch": self.state.best_epoch})
        self.model.load_state_dict(self.best)


class SplitValidator:
    """The settings' validation metric on the validation part of a split, which may be empty."""

    def __init__(self, split: Split, settings: Settings) -> None:
        self.metric = getattr(settings, "validation_metric", VALIDATION_METRIC)
        self.ranker = Ranker(split, "validation") if len(split.validation) else None

    def __call__(self, model: Model) -> dict[str, float]:
        if self.ranker is None:
            return {}
        protocol, name = parse_metric(self.metric)
        return {self.metric: self.ranker.measure(model.scorer(), (name,), (protocol,))[protocol][name]}

    @cached_property
    def chance(self) -> float:
        if self.ranker is None:
            return -math.inf
        values = self.ranker.chance(*parse_metric(self.metric))
        return beyond_chance(float(np.nansum(values)), int(np.count_nonzero(~np.isnan(values))))


def result_of(state: TrainingState, validated: bool) -> dict[str, Any]:
    """What result.json says of a training that has ended."""
    value = state.best_value if validated and math.isfinite(state.best_value) else None
    return {"best_epoch": state.best_epoch, "best_value": value, "seconds": round(state.seconds, 3)}

"""One loop for every model: step, evaluate, keep the best, stop early, and go on after any interruption.

Randomness is derived from (seed, epoch) for the batches and (seed, epoch, step) for the steps, so a
checkpoint needs no generator state, and the work after it is the same whether or not the process lived
through it.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.data.split import Split
from hdccf.devices import at_most, device_named, moved
from hdccf.display import TrainingDisplay
from hdccf.errors import ConfigError, EvaluationError, RunError, TrainingError
from hdccf.evaluation.metrics import check_names
from hdccf.evaluation.ranking import Ranker, check_protocols
from hdccf.files import write_json
from hdccf.interrupts import Interruptible
from hdccf.keeping import Keeper
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model, SmallSteps, Solved
from hdccf.optimizers import Stepper
from hdccf.profiling import Clock, Stopwatch, no_clock, table, timed
from hdccf.progress import note
from hdccf.randomness import generator_for
from hdccf.recommend import Recommender
from hdccf.runs import FitOptions, RunFolder
from hdccf.standing import Standing
from hdccf.tracking import open_tensorboard
from hdccf.warm_start import start_from

_WORTH_SHARING = 1 << 22
"""So many numbers in a step, looked up or moved by the optimizer, are faster with several threads."""

Diagnosis = Callable[[Model, Any], dict[str, float]]
Watch = Callable[[dict[str, Any]], None]
"""Told of every evaluation, by the record that metrics.jsonl gets. It may raise `StopTraining`."""


class StopTraining(Exception):  # noqa: N818 - nothing went wrong
    """Raised by who watches: training ends here, with the best so far, as if patience had run out."""


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
    """Trains a model on `split.train`, chooses its epoch on `split.validation`, and gives it back.

    With `out` everything is kept in that folder, and training that was stopped goes on with `resume(out)`.
    With `init_from` it starts from that run's weights, for all users and items that the run has known.
    """
    if not isinstance(split, Split):
        raise ConfigError(
            "fit takes a split; make one with hdccf.leave_one_out(data) or another split function"
        )
    options = options or FitOptions()
    # Bits repeat for the same number of threads, so a run remembers how many there were.
    options = replace(options, threads=options.threads or torch.get_num_threads())
    # What cannot be trained is refused before there is a folder of it.
    training = _Training(split, settings, seed, options, progress, diagnosis, on_evaluation)
    about = about or {}
    if init_from is not None:
        about = {**about, "init_from": training.start_from(init_from)}
    run = None if out is None else RunFolder.create(Path(out), settings, split, seed, options, about)
    return training.run(run)


def resume(
    path: str | Path,
    *,
    progress: bool = False,
    diagnosis: Diagnosis | None = None,
    on_evaluation: Watch | None = None,
) -> Recommender:
    """Goes on with a run from its last checkpoint; ends as it would have ended undisturbed."""
    run = RunFolder.open(path)
    training = _Training(run.split(), run.settings, run.seed, run.options, progress, diagnosis, on_evaluation)
    # The first checkpoint has what a run started from; only one that was stopped before it asks again.
    source = run.config["data"].get("init_from")
    if source is not None and not run.checkpoint.exists():
        training.start_from(source["run"])
    return training.run(run)


class _Training:
    """One training of one model: the parts, and the loop over them."""

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
        self.progress, self.options, self.diagnosis = progress, options, diagnosis
        self.run_folder: RunFolder | None = None
        if isinstance(settings, TrainingSettings):
            self.metric = parse_metric(settings.validation_metric)
        self.device = device_named(options.device)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        build = entry_named(name_of(settings)).build
        self.model = build(settings, split.train, generator_for(seed, "initial values"))
        if isinstance(self.model, torch.nn.Module):
            self.model.to(self.device)
        self.standing, self.warm = Standing(), False
        self.clock: Clock = no_clock
        self.keeper = Keeper(self.model, options, self.device)

    def run(self, folder: RunFolder | None) -> Recommender:
        self.run_folder = self.keeper.folder = folder
        if self.model.groups:
            self._train()
        elif isinstance(self.model, Solved) and not (folder is not None and folder.best.exists()):
            self._solve(self.model)
        self.keeper.give_best(self.standing.best_epoch)
        # One that was solved before has its own result already, with the seconds that it took.
        if folder is not None and (self.model.groups or not folder.result.exists()):
            with checkpoint.explained(folder.result):
                write_json(folder.result, self._result())
        config = self.run_folder.config if self.run_folder else {}
        path = self.run_folder.path if self.run_folder else None
        return Recommender(
            self.model,
            self.settings,
            self.split,
            seed=self.seed,
            seconds=self.standing.seconds,
            path=path,
            config=config,
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

    def _solve(self, model: Solved) -> None:
        started = time.monotonic()
        model.solve(generator_for(self.seed, "solution"), self.progress)
        self.standing.seconds = time.monotonic() - started

    # -- the loop --------------------------------------------------------------------------------------------

    def _train(self) -> None:
        settings = self.settings
        if not isinstance(settings, TrainingSettings):
            raise ConfigError(
                f"{type(settings).__name__} has no training settings, but its model has parameters"
            )
        watch = Stopwatch() if self.options.profile else None
        self.clock = watch or no_clock
        groups = self.model.groups
        self.steppers = {name: Stepper(group, settings, self.clock) for name, group in groups.items()}
        ranker = Ranker(self.split, "validation") if len(self.split.validation) else None
        self._restore()
        standing, started = self.standing, time.monotonic() - self.standing.seconds
        board = open_tensorboard(
            self.run_folder.path if self.run_folder and self.options.tensorboard else None
        )
        with (
            Interruptible() as interrupted,
            board,
            TrainingDisplay(settings.epochs, self.model.n_batches, enabled=self.progress) as display,
        ):
            while not standing.finished:
                batch = self._epoch(started, display, interrupted)
                record = self._end_of_epoch(ranker, batch)
                if record is not None:
                    display.evaluated(record, best=standing.waited == 0)
                    board.add(record)
                    if self.run_folder is not None:
                        self.run_folder.log(record)
                    self._tell(record)
                if self.standing.finished or (standing.epoch - 1) % self.options.checkpoint_epochs == 0:
                    self._checkpoint()
        if watch is not None:
            self._tell_where_the_time_went(watch.report())

    def _restore(self) -> None:
        standing = self.keeper.restore(self.steppers, self.progress)
        if standing is not None:
            self.standing = standing
        elif self.warm:
            self._checkpoint()

    def _epoch(self, started: float, display: TrainingDisplay, interrupted: Interruptible) -> Any:
        """The steps of the present epoch that are still to be done; gives its last batch."""
        standing, batch = self.standing, None
        drawn = self.model.batches(generator_for(self.seed, "epoch", standing.epoch))
        with at_most(self._threads_of_a_step()):
            for number, batch in enumerate(timed(self.clock, "sampling", drawn)):
                if number < standing.step:
                    continue  # done before the interruption; drawing it keeps the generator in step
                self._step(batch, number)
                standing.step, standing.seconds = number + 1, time.monotonic() - started
                display.stepped(standing.epoch, standing.step)
                if interrupted:
                    self._checkpoint()
                    self._stop_here()
                elif self.keeper.is_due():
                    self._checkpoint()
        return batch

    def _threads_of_a_step(self) -> int:
        """One where waiting for each other would take longer than the work that is shared."""
        threads, model = torch.get_num_threads(), self.model
        if not isinstance(model, SmallSteps) or model.numbers_a_step is None:
            return threads
        parameters = sum(parameter.numel() for group in model.groups.values() for parameter in group)
        return threads if parameters + model.numbers_a_step >= _WORTH_SHARING else 1

    def _step(self, batch: Any, number: int) -> None:
        epoch = self.standing.epoch
        generator = generator_for(self.seed, "step", epoch, number, device=self.device)
        objectives = self.model.objectives(moved(batch, self.device), generator)
        for objective in timed(self.clock, "scores and loss", objectives):
            # The terms first: where one of them is at fault it is named, not the sum.
            values = {**objective.terms, "loss": objective.loss.detach()}
            for name, value in values.items():
                number_ = float(value)
                if not math.isfinite(number_):
                    raise TrainingError(
                        _not_finite(name, number_, objective.group, epoch, number, self.settings)
                    )
                self.standing.sums[name] = self.standing.sums.get(name, 0.0) + number_
            self.steppers[objective.group].step(objective.loss)

    def _end_of_epoch(self, ranker: Ranker | None, batch: Any) -> dict[str, Any] | None:
        """Evaluates where it is time, notes the best, and moves on to the next epoch."""
        standing, settings = self.standing, self.settings
        assert isinstance(settings, TrainingSettings)  # noqa: S101 - _train has refused others
        epoch, last = standing.epoch, standing.epoch >= settings.epochs
        record = None
        self._refuse_lost_weights()
        if epoch % settings.evaluate_every == 0 or last:
            means = {name: total / standing.step for name, total in standing.sums.items()}
            with self.clock("evaluation"):
                validation = self._validate(ranker, settings.validation_metric)
                diagnostics = self._diagnose(batch)
            record = {
                "epoch": epoch,
                "loss": means.pop("loss"),
                "terms": means,
                "validation": validation,
                "diagnostics": diagnostics,
                "seconds": round(standing.seconds, 3),
            }
            # Without a validation part the last epoch is the one that counts.
            value = validation.get(settings.validation_metric, float(epoch))
            if value > standing.best_value:
                standing.best_value, standing.best_epoch, standing.waited = value, epoch, 0
                with self.clock("checkpoints"):
                    self.keeper.remember_best(epoch)
            else:
                standing.waited += 1
        standing.finished = bool(last or standing.waited >= settings.patience)
        standing.epoch, standing.step, standing.sums = epoch + 1, 0, {}
        return record

    def _tell(self, record: dict[str, Any]) -> None:
        try:
            if self.on_evaluation is not None:
                self.on_evaluation(record)
        except StopTraining:
            self.standing.finished = True

    def _refuse_lost_weights(self) -> None:
        """A loss shows what the step before did to the weights; of an epoch's last step this does."""
        for name, tensor in self.model.state_dict().items():
            if not bool(torch.isfinite(tensor).all()):
                epoch, step = self.standing.epoch, self.standing.step - 1
                raise TrainingError(_not_finite(name, math.nan, "weights", epoch, step, self.settings))

    def _validate(self, ranker: Ranker | None, metric: str) -> dict[str, float]:
        if ranker is None:
            return {}
        protocol, name = self.metric
        return {metric: ranker.measure(self.model.scorer(), (name,), (protocol,))[protocol][name]}

    def _diagnose(self, batch: Any) -> dict[str, float]:
        batch = moved(batch, self.device)
        found = self.model.diagnose(batch)
        return found if self.diagnosis is None else {**found, **self.diagnosis(self.model, batch)}

    def _checkpoint(self) -> None:
        with self.clock("checkpoints"):
            self.keeper.save(self.standing, self.steppers)

    def _stop_here(self) -> None:
        if self.run_folder is None:
            raise KeyboardInterrupt
        raise RunError(
            f"interrupted at epoch {self.standing.epoch}, step {self.standing.step}, and saved; "
            f"go on with: hdccf train --resume {self.run_folder.path}"
        )

    def _tell_where_the_time_went(self, report: dict[str, Any]) -> None:
        if self.run_folder is not None:
            with checkpoint.explained(self.run_folder.profile):
                write_json(self.run_folder.profile, report)
        if self.progress:
            note(table(report))

    def _result(self) -> dict[str, Any]:
        standing = self.standing
        judged = math.isfinite(standing.best_value) and len(self.split.validation) > 0
        value = standing.best_value if judged else None
        return {"best_epoch": standing.best_epoch, "best_value": value, "seconds": round(standing.seconds, 3)}


def parse_metric(metric: str) -> tuple[str, str]:
    """Protocol and name of a `validation_metric`, before an epoch is spent on it."""
    protocol, colon, name = metric.partition(":")
    if not colon:
        raise ConfigError(f"validation_metric={metric!r} names no protocol; write it like sampled:ndcg@10")
    try:
        check_protocols((protocol,))
        check_names((name,))
    except EvaluationError as cause:
        raise ConfigError(f"validation_metric={metric!r} is not possible: {cause}") from cause
    return protocol, name


def _not_finite(term: str, value: float, group: str, epoch: int, step: int, settings: Settings) -> str:
    rate = getattr(settings, "learning_rate", None)
    temperature = getattr(settings, "temperature", None)
    tried = f"learning_rate={rate}" + ("" if temperature is None else f", temperature={temperature}")
    return (
        f"{term} of group {group!r} became {value} in epoch {epoch}, batch {step}, with {tried}; "
        "try a smaller learning rate or a larger temperature"
    )

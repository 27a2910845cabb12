"""The one loop of every model: step, evaluate, keep the best, stop early, and go on after any interruption.

Randomness is derived from (seed, epoch) for the batches and (seed, epoch, step) for the steps, so a
checkpoint needs no generator state, and the work after it is the same whether or not the process lived
through it. In a team every member runs this loop, in step with the others.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.console import note
from hdccf.errors import ConfigError, RunError, TrainingError
from hdccf.models.base import Model, SmallSteps
from hdccf.parallel import ALONE, Team
from hdccf.recommend.run_folder import FitOptions
from hdccf.rng import generator_for
from hdccf.training.devices import at_most, moved
from hdccf.training.display import TrainingDisplay
from hdccf.training.interrupts import Interruptible
from hdccf.training.optim import Rule, Stepper
from hdccf.training.profiling import Clock, no_clock, timed
from hdccf.training.state import Standing
from hdccf.training.store import Keeper
from hdccf.training.telemetry import Board

_WORTH_SHARING = 1 << 22
"""So many numbers in a step, looked up or moved by the optimizer, are faster with several threads."""

Diagnosis = Callable[[Model, Any], dict[str, float]]
Judge = Callable[[Model], dict[str, float]]
"""The validation metric of a model, by its name; nothing where there is nothing to judge by."""
Watch = Callable[[dict[str, Any]], None]
"""Told of every evaluation, by the record that metrics.jsonl gets. It may raise `StopTraining`."""


class StopTraining(Exception):  # noqa: N818 - nothing went wrong
    """Raised by who watches: training ends here, with the best so far, as if patience had run out."""


class Loop:
    """One training of one model; `run` goes on from where its keeper says, to the end."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        judge: Judge,
        keeper: Keeper,
        *,
        seed: int,
        options: FitOptions,
        device: torch.device,
        team: Team = ALONE,
        clock: Clock = no_clock,
        progress: bool = False,
        diagnosis: Diagnosis | None = None,
        on_evaluation: Watch | None = None,
    ) -> None:
        if not isinstance(settings, TrainingSettings):
            raise ConfigError(
                f"{type(settings).__name__} has no training settings, but its model has parameters"
            )
        self.model, self.settings, self.judge, self.keeper = model, settings, judge, keeper
        self.seed, self.options, self.device, self.team, self.clock = seed, options, device, team, clock
        self.progress, self.diagnosis, self.on_evaluation = progress, diagnosis, on_evaluation
        self.standing = Standing()
        self.steppers = {name: Stepper(group, settings, clock, team) for name, group in model.groups.items()}
        self.best: dict[str, Tensor] = {}
        self.last_checkpoint = time.monotonic()

    def run(self, board: Board, *, warm: bool = False) -> None:
        """With `warm` the weights that it starts from are not to be had again, and are saved at once."""
        self._restore(warm)
        standing, started = self.standing, time.monotonic() - self.standing.seconds
        with (
            Interruptible() as interrupted,
            board,
            TrainingDisplay(self.settings.epochs, self.model.n_batches, enabled=self.progress) as display,
        ):
            while not standing.finished:
                batch = self._epoch(started, display, interrupted)
                record = self._end_of_epoch(batch)
                if record is not None:
                    display.evaluated(record, best=standing.waited == 0)
                    board.add(record)
                    self.keeper.log(record)
                    self._tell(record)
                if self.standing.finished or (standing.epoch - 1) % self.options.checkpoint_epochs == 0:
                    self._checkpoint()

    def _epoch(self, started: float, display: TrainingDisplay, interrupted: Interruptible) -> Any:
        """The steps of the present epoch that are still to be done; gives its last batch."""
        standing, batch = self.standing, None
        drawn = self.model.batches(generator_for(self.seed, "epoch", standing.epoch))
        with at_most(self._threads_of_a_step()):
            for number, batch in enumerate(timed(self.clock, "sampling", drawn)):
                if number < standing.step:
                    continue  # done before the interruption; drawing it keeps the generator in step
                due = self._step(batch, number)
                standing.step, standing.seconds = number + 1, time.monotonic() - started
                display.stepped(standing.epoch, standing.step)
                if interrupted:
                    self._checkpoint()
                    self.keeper.stop_here(standing.epoch, standing.step)
                elif due:
                    self._checkpoint()
        return batch

    def _threads_of_a_step(self) -> int:
        """One where waiting for each other would take longer than the work that is shared."""
        threads, model = torch.get_num_threads(), self.model
        if not isinstance(model, SmallSteps) or model.numbers_a_step is None:
            return threads
        moved = [parameter.numel() for group in model.groups.values() for parameter in group]
        parameters = 0 if self.settings.sparse_updates else sum(moved)
        return threads if parameters + model.numbers_a_step >= _WORTH_SHARING else 1

    def _step(self, batch: Any, number: int) -> bool:
        """One batch; says whether it is time for a checkpoint, of which the first of a team decides."""
        epoch = self.standing.epoch
        due = torch.tensor(float(self.team.rank == 0 and self._checkpoint_is_due()), dtype=torch.float64)
        generator = generator_for(self.seed, "step", epoch, number, device=self.device)
        objectives = self.model.objectives(moved(batch, self.device), generator)
        for objective in timed(self.clock, "scores and loss", objectives):
            # The terms first: where one of them is at fault it is named, not the sum.
            values = {**objective.terms, "loss": objective.loss.detach(), "due": due}
            # One exchange for all of them, in float64, which changes no number that is shown.
            own = torch.stack([value.to(self.device, torch.float64) for value in values.values()])
            *totals, due_now = self.team.total(own).tolist()
            for name, value in zip(values, totals, strict=False):
                if not math.isfinite(value):
                    raise TrainingError(
                        _not_finite(name, value, objective.group, epoch, number, self.settings)
                    )
                self.standing.sums[name] = self.standing.sums.get(name, 0.0) + value
            stepper = self.steppers[objective.group]
            stepper.shrink_to(self._share_of_a_step(number))
            stepper.step(objective.loss)
        return bool(due_now)

    def _share_of_a_step(self, number: int) -> float:
        """Of the learning rate: by what is done alone, so that a run goes on as if it had not stopped."""
        if self.settings.schedule == "constant":
            return 1.0
        done = (self.standing.epoch - 1 + number / self.model.n_batches) / self.settings.epochs
        return 0.5 * (1 + math.cos(math.pi * done))

    def _end_of_epoch(self, batch: Any) -> dict[str, Any] | None:
        """Evaluates where it is time, notes the best, and moves on to the next epoch."""
        standing, settings = self.standing, self.settings
        epoch, last = standing.epoch, standing.epoch >= settings.epochs
        record = None
        self._refuse_lost_weights()
        if epoch % settings.evaluate_every == 0 or last:
            means = {name: total / standing.step for name, total in standing.sums.items()}
            with self.clock("evaluation"):
                validation = self.judge(self.model)
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
                self._remember_best()
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

    def _diagnose(self, batch: Any) -> dict[str, float]:
        batch = moved(batch, self.device)
        found = self.model.diagnose(batch)
        return found if self.diagnosis is None else {**found, **self.diagnosis(self.model, batch)}

    # -- what is kept ----------------------------------------------------------------------------------------

    def _remember_best(self) -> None:
        with self.clock("checkpoints"):
            state = self.model.state_dict()
            self.keeper.keep_best(state, self.standing.best_epoch)
            # Of a team's runs the keeper alone has the best: a second copy in every member would help nobody.
            if self.team.size == 1:
                self.best = {name: tensor.detach().clone() for name, tensor in state.items()}

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.last_checkpoint > 60 * self.options.checkpoint_minutes

    def _checkpoint(self) -> None:
        self.last_checkpoint = time.monotonic()
        with self.clock("checkpoints"):
            self.keeper.save(*self._packed())

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        numbers: dict[str, Any] = {}
        for prefix, optimizer in self._optimizers():
            more_tensors, more_numbers = checkpoint.pack_optimizer(optimizer, prefix)
            tensors.update(more_tensors)
            numbers.update(more_numbers)
        return tensors, {"standing": self.standing.to_json(), "optimizers": numbers}

    def _restore(self, warm: bool) -> None:
        kept = self.keeper.load(self.device)
        if kept is None:
            self.keeper.forget_after(0)
            if warm:
                self._checkpoint()
            return
        tensors, facts = kept
        place = self.keeper.place
        of_model = {
            name.removeprefix("model."): x for name, x in tensors.items() if name.startswith("model.")
        }
        checkpoint.fill(self.model, of_model, Path(place))
        try:
            self.standing = Standing.from_json(facts["standing"])
            for prefix, optimizer in self._optimizers():
                checkpoint.unpack_optimizer(optimizer, prefix, tensors, facts["optimizers"])
        except (KeyError, TypeError, ValueError) as cause:
            raise RunError(f"{place} is not this run's checkpoint ({cause!r}); train again") from cause
        if self.standing.best_epoch and self.team.size == 1:
            self.best = self.keeper.load_best(self.device) or {}
            if not self.best:
                raise RunError(
                    f"{self.keeper.best_place} is gone, and with it the best weights so far; train again"
                )
        self.keeper.forget_after(self.standing.epoch - 1)
        if self.progress:
            note(f"going on at epoch {self.standing.epoch}, step {self.standing.step}")

    def _optimizers(self) -> list[tuple[str, Rule]]:
        return [
            (f"optimizer.{group}.{kind}", optimizer)
            for group, stepper in self.steppers.items()
            for kind, optimizer in stepper.optimizers.items()
        ]


def _not_finite(term: str, value: float, group: str, epoch: int, step: int, settings: Settings) -> str:
    rate = getattr(settings, "learning_rate", None)
    temperature = getattr(settings, "temperature", None)
    tried = f"learning_rate={rate}" + ("" if temperature is None else f", temperature={temperature}")
    return (
        f"{term} of group {group!r} became {value} in epoch {epoch}, batch {step}, with {tried}; "
        "try a smaller learning rate or a larger temperature"
    )

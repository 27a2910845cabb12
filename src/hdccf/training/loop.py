"""The one loop of every model: step, evaluate, keep the best, stop early, and go on after any interruption.

Randomness is derived from (seed, epoch) for the batches and (seed, epoch, step) for the steps, so a
checkpoint needs no generator state, and the work after it is the same whether or not the process lived
through it. In a process group every member runs this loop, in step with the others.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import FitOptions, Settings, TrainingSettings
from hdccf.console import Interruptible, TrainingDisplay, note
from hdccf.errors import ConfigError, RunError, TrainingError
from hdccf.models.base import Model
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup, processors
from hdccf.rng import generator_for
from hdccf.training.optim import MovingAverage, Rule, Stepper
from hdccf.training.state import CheckpointStore, TrainingState
from hdccf.training.telemetry import Board, Clock

_WORTH_SHARING = 1 << 22
"""So many numbers in a step, looked up or moved by the optimizer, or so many scores to be ranked, are faster
with several threads."""

T = TypeVar("T")
Diagnosis = Callable[[Model, Any], dict[str, float]]
Watch = Callable[[dict[str, Any]], None]
"""Told of every evaluation, by the record that metrics.jsonl gets. It may raise `StopTraining`."""


class Validator(Protocol):
    """The validation metric of a model, by its name; nothing where there is no validation part."""

    @property
    def chance(self) -> float:
        """The highest value that may be that of a random order (`beyond_chance`)."""
        ...

    def __call__(self, model: Model) -> dict[str, float]: ...


class StopTraining(Exception):  # noqa: N818 - nothing went wrong
    """Raised by who watches: training ends here, with the best so far, as if patience had run out."""


class Loop:
    """One training of one model; `run` goes on from where its store says, to the end or to a given epoch."""

    def __init__(
        self,
        model: Model,
        settings: Settings,
        validate: Validator,
        store: CheckpointStore,
        *,
        seed: int,
        options: FitOptions,
        device: torch.device,
        process_group: ProcessGroup = SINGLE_PROCESS,
        clock: Clock = nullcontext,
        progress: bool = False,
        diagnosis: Diagnosis | None = None,
        on_evaluation: Watch | None = None,
    ) -> None:
        if not isinstance(settings, TrainingSettings):
            raise ConfigError(
                f"{type(settings).__name__} has no training settings, but its model has parameters"
            )
        self.model, self.settings, self.validate, self.store = model, settings, validate, store
        self.seed, self.options, self.device = seed, options, device
        self.process_group, self.clock = process_group, clock
        self.progress, self.diagnosis, self.on_evaluation = progress, diagnosis, on_evaluation
        self.state = TrainingState()
        self.steppers = {
            name: Stepper(group, settings, clock, process_group) for name, group in model.groups.items()
        }
        self.average: MovingAverage | None = None
        if settings.average_epochs:
            trained = dict.fromkeys(parameter for group in model.groups.values() for parameter in group)
            self.average = MovingAverage(trained, settings.average_epochs * model.n_batches)
        self.best: dict[str, Tensor] = {}
        self._restored = False
        self.last_checkpoint = time.monotonic()

    def run(self, board: Board, *, warm: bool = False, until: int | None = None) -> None:
        """Trains to the end, or pauses after epoch `until`: a second call goes on with the same bits.

        With `warm` the initial weights come from another run and are saved at once.
        """
        if not self._restored:
            self._restore(warm)
            self._restored = True
        state, started = self.state, time.monotonic() - self.state.seconds
        with (
            Interruptible() as interrupted,
            board,
            TrainingDisplay(
                until or self.settings.epochs, self.model.n_batches, enabled=self.progress
            ) as display,
        ):
            while not state.finished and (until is None or state.epoch <= until):
                batch = self._epoch(started, display, interrupted)
                record = self._end_of_epoch(batch)
                if record is not None:
                    display.evaluated(record, best=state.best_epoch == record["epoch"])
                    board.add(record)
                    self.store.log(record)
                    try:
                        if self.on_evaluation is not None:
                            self.on_evaluation(record)
                    except StopTraining:
                        state.finished = True
                done = state.epoch - 1
                if state.finished or done % self.options.checkpoint_epochs == 0 or done == until:
                    self._checkpoint()

    def _epoch(self, started: float, display: TrainingDisplay, interrupted: Interruptible) -> Any:
        """The steps of the present epoch that are still to be done; gives its last batch."""
        state, batch = self.state, None
        drawn = self.model.batches(generator_for(self.seed, "epoch", state.epoch))
        threads = torch.get_num_threads() if worth_sharing(self.model) else 1
        with at_most(threads), matmul_precision(self.options.matmul_precision):
            for number, batch in enumerate(timed(self.clock, "sampling", drawn)):
                if number < state.step:
                    continue  # done before the interruption; drawing it keeps the generator in step
                due = self._step(batch, number)
                state.step, state.seconds = number + 1, time.monotonic() - started
                display.stepped(state.epoch, state.step)
                if interrupted:
                    self._checkpoint()
                    self.store.raise_interrupted(state.epoch, state.step)
                elif due:
                    self._checkpoint()
        return batch

    def _step(self, batch: Any, number: int) -> bool:
        """One batch; says whether it is time for a checkpoint, of which the first process decides."""
        epoch, waited = self.state.epoch, time.monotonic() - self.last_checkpoint
        decides = self.process_group.rank == 0 and waited > 60 * self.options.checkpoint_minutes
        due = torch.tensor(float(decides), dtype=torch.float64)
        generator = generator_for(self.seed, "step", epoch, number, device=self.device)
        objectives = self.model.objectives(moved(batch, self.device), generator)
        for objective in timed(self.clock, "scores and loss", objectives):
            # The terms first: where one of them is at fault it is named, not the sum.
            values = {**objective.terms, "loss": objective.loss.detach(), "due": due}
            # One exchange for all of them, in float64, which changes no number that is shown.
            own = torch.stack([value.to(self.device, torch.float64) for value in values.values()])
            if self.process_group.size > 1:
                own = self.process_group.all_reduce(own)
            *totals, due_now = own.tolist()
            for name, value in zip(values, totals, strict=False):
                if not math.isfinite(value):
                    raise TrainingError(
                        _not_finite(name, value, objective.group, epoch, number, self.settings)
                    )
                self.state.sums[name] = self.state.sums.get(name, 0.0) + value
            stepper = self.steppers[objective.group]
            stepper.set_lr_factor(self._lr_factor(number))
            stepper.step(objective.loss)
        if self.average is not None:
            self.average.update((epoch - 1) * self.model.n_batches + number + 1)
        return bool(due_now)

    def _lr_factor(self, number: int) -> float:
        """Of the learning rate: by what is done alone, so that a run goes on as if it had not stopped."""
        if self.settings.schedule == "constant":
            return 1.0
        done = (self.state.epoch - 1 + number / self.model.n_batches) / self.settings.epochs
        return 0.5 * (1 + math.cos(math.pi * done))

    def _end_of_epoch(self, batch: Any) -> dict[str, Any] | None:
        """Evaluates where it is time, notes the best, and moves on to the next epoch."""
        state, settings = self.state, self.settings
        epoch, last = state.epoch, state.epoch >= settings.epochs
        record = None
        self._refuse_lost_weights()
        if epoch % settings.evaluate_every == 0 or last:
            with nullcontext() if self.average is None else self.average.applied():
                record = self._evaluate(batch)
        state.finished = bool(last or state.waited >= settings.patience)
        state.epoch, state.step, state.sums = epoch + 1, 0, {}
        return record

    def _evaluate(self, batch: Any) -> dict[str, Any]:
        """The record of the present weights, which are remembered if they are the best."""
        state, settings = self.state, self.settings
        means = {name: total / state.step for name, total in state.sums.items()}
        with self.clock("evaluation"):
            validation = self.validate(self.model)
            last_batch = moved(batch, self.device)
            diagnostics = self.model.diagnose(last_batch)
            if self.diagnosis is not None:
                diagnostics |= self.diagnosis(self.model, last_batch)
        # Without a validation part the last epoch is the one that counts.
        value = validation.get(settings.validation_metric, float(state.epoch))
        if value > state.best_value:
            state.best_value, state.best_epoch, state.waited = value, state.epoch, 0
            self._remember_best()
        elif state.best_value > self.validate.chance:
            # A model that orders items no better than chance has not begun to learn.
            state.waited += 1
        return {
            "epoch": state.epoch,
            "loss": means.pop("loss"),
            "terms": means,
            "validation": validation,
            "diagnostics": diagnostics,
            "seconds": round(state.seconds, 3),
        }

    def _refuse_lost_weights(self) -> None:
        """A loss shows what the step before did to the weights; of an epoch's last step this does."""
        for name, tensor in self.model.state_dict().items():
            if not bool(torch.isfinite(tensor).all()):
                epoch, step = self.state.epoch, self.state.step - 1
                raise TrainingError(_not_finite(name, math.nan, "weights", epoch, step, self.settings))

    def _remember_best(self) -> None:
        with self.clock("checkpoints"):
            state = self.model.state_dict()
            self.store.save_best(state, self.state.best_epoch)
            # In a process group only the store keeps the best weights.
            if self.process_group.size == 1:
                self.best = {name: tensor.detach().clone() for name, tensor in state.items()}

    def _checkpoint(self) -> None:
        self.last_checkpoint = time.monotonic()
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        numbers: dict[str, Any] = {}
        for prefix, optimizer in self._optimizers():
            more_tensors, more_numbers = checkpoint.pack_optimizer(optimizer, prefix)
            tensors.update(more_tensors)
            numbers.update(more_numbers)
        if self.average is not None:
            averages = enumerate(self.average.averages)
            tensors |= {f"average.{number}": tensor for number, tensor in averages}
        with self.clock("checkpoints"):
            self.store.save(tensors, {"state": self.state.to_json(), "optimizers": numbers})

    def _restore(self, warm: bool) -> None:
        kept = self.store.load(self.device)
        if kept is None:
            self.store.truncate_log(0)
            if warm:
                self._checkpoint()
            return
        tensors, facts = kept
        place = self.store.location
        named = ((name.partition("."), tensor) for name, tensor in tensors.items())
        of_model = {name: tensor for (kind, _, name), tensor in named if kind == "model"}
        checkpoint.fill(self.model, of_model, Path(place))
        try:
            for number, average in enumerate(self.average.averages if self.average else ()):
                average.copy_(tensors[f"average.{number}"])
            self.state = TrainingState.from_json(facts["state"])
            for prefix, optimizer in self._optimizers():
                checkpoint.unpack_optimizer(optimizer, prefix, tensors, facts["optimizers"])
        except (KeyError, TypeError, ValueError) as cause:
            raise RunError(f"{place} is not this run's checkpoint ({cause!r}); train again") from cause
        if self.state.best_epoch and self.process_group.size == 1:
            self.best = self.store.load_best(self.device) or {}
            if not self.best:
                raise RunError(f"the best weights beside {place} are gone; train again")
        self.store.truncate_log(self.state.epoch - 1)
        if self.progress:
            note(f"going on at epoch {self.state.epoch}, step {self.state.step}")

    def _optimizers(self) -> list[tuple[str, Rule]]:
        return [
            (f"optimizer.{group}.{kind}", optimizer)
            for group, stepper in self.steppers.items()
            for kind, optimizer in stepper.optimizers.items()
        ]


def worth_sharing(model: Model) -> bool:
    """Whether a step takes longer than several threads would wait for each other."""
    if model.lookups_per_step is None:
        return True
    moved = [parameter.numel() for group in model.groups.values() for parameter in group]
    parameters = 0 if getattr(model.settings, "sparse_updates", False) else sum(moved)
    return parameters + model.lookups_per_step >= _WORTH_SHARING


def automatic_threads(model: Model, n_scores: int) -> int:
    """One where neither a step nor a ranking of so many scores gains from more; else one a processor.

    By sizes alone, not by the machine's load: the same training has the same bits tomorrow.
    """
    available = min(torch.get_num_threads(), processors())
    small = model.groups and not worth_sharing(model) and n_scores < _WORTH_SHARING
    return 1 if small else available


def beyond_chance(total: float, count: float) -> float:
    """The mean of `count` users' expected values in a random order, and three standard errors.

    A value between 0 and 1 with the mean p has a variance of at most p(1 − p).
    """
    if not count:
        return -math.inf
    mean = total / count
    return mean + 3 * math.sqrt(mean * (1 - mean) / count)


def timed(clock: Clock, stage: str, values: Iterable[T]) -> Iterator[T]:
    """The same values; the time until each of them is there goes to the stage."""
    iterator, end = iter(values), object()
    while True:
        with clock(stage):
            value: Any = next(iterator, end)
        if value is end:
            return
        yield value


def _not_finite(term: str, value: float, group: str, epoch: int, step: int, settings: Settings) -> str:
    rate = getattr(settings, "learning_rate", None)
    temperature = getattr(settings, "temperature", None)
    tried = f"learning_rate={rate}" + ("" if temperature is None else f", temperature={temperature}")
    return (
        f"{term} of group {group!r} became {value} in epoch {epoch}, batch {step}, with {tried}; "
        "try a smaller learning rate or a larger temperature"
    )


def device_named(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as cause:
        raise ConfigError(f"device={name!r} is not available on this machine; take cpu") from cause
    return device


def moved(value: Any, device: torch.device) -> Any:
    """A batch's tensors on the device that computes; batches are (nested) tuples of them."""
    if device.type == "cpu" or value is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device)
    return type(value)(*(moved(part, device) for part in value)) if isinstance(value, tuple) else value


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Operations within are shared among no more threads than this."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """The precision of matrix products within, in PyTorch's words; evaluation keeps the highest."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

"""What a training keeps: its best weights so far, and checkpoints to go on from."""

import time
from typing import Any

import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.errors import RunError
from hdccf.models.base import Model
from hdccf.optimizers import Rule, Stepper
from hdccf.progress import note
from hdccf.runs import FitOptions, RunFolder
from hdccf.standing import Standing


class Keeper:
    """Of one model; without a folder only the best weights are kept, in memory."""

    def __init__(self, model: Model, options: FitOptions, device: torch.device) -> None:
        self.model, self.options, self.device = model, options, device
        self.folder: RunFolder | None = None
        self.best: dict[str, Tensor] = {}
        self._last = time.monotonic()

    def remember_best(self, epoch: int) -> None:
        self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        if self.folder is not None:
            checkpoint.save(self.folder.best, self.best, {"epoch": epoch})

    def give_best(self, epoch: int) -> None:
        """Leaves the model with its best weights, and a run with a file of them."""
        if not self.best and self.folder is not None and self.folder.best.exists():
            self.best, _ = checkpoint.load(self.folder.best, self.device)
            checkpoint.fill(self.model, self.best, self.folder.best)
        if not self.best:
            self.remember_best(epoch)
        self.model.load_state_dict(self.best)

    def is_due(self) -> bool:
        return time.monotonic() - self._last > 60 * self.options.checkpoint_minutes

    def save(self, standing: Standing, steppers: dict[str, Stepper]) -> None:
        self._last = time.monotonic()
        if self.folder is None:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        numbers: dict[str, Any] = {}
        for prefix, optimizer in _optimizers(steppers):
            more_tensors, more_numbers = checkpoint.pack_optimizer(optimizer, prefix)
            tensors.update(more_tensors)
            numbers.update(more_numbers)
        facts = {"standing": standing.to_json(), "optimizers": numbers}
        checkpoint.save(self.folder.checkpoint, tensors, facts)

    def restore(self, steppers: dict[str, Stepper], progress: bool) -> Standing | None:
        """Where the last checkpoint stood, and model and optimizers as they were then; None without one."""
        run = self.folder
        if run is None:
            return None
        if not run.checkpoint.exists():
            run.forget_after(0)
            return None
        tensors, facts = checkpoint.load(run.checkpoint, self.device)
        of_model = {
            name.removeprefix("model."): x for name, x in tensors.items() if name.startswith("model.")
        }
        checkpoint.fill(self.model, of_model, run.checkpoint)
        try:
            standing = Standing.from_json(facts["standing"])
            for prefix, optimizer in _optimizers(steppers):
                checkpoint.unpack_optimizer(optimizer, prefix, tensors, facts["optimizers"])
        except (KeyError, TypeError, ValueError) as cause:
            raise RunError(
                f"{run.checkpoint} is not this run's checkpoint ({cause!r}); train again"
            ) from cause
        if standing.best_epoch and not run.best.exists():
            raise RunError(f"{run.best} is gone, and with it the best weights so far; train again")
        run.forget_after(standing.epoch - 1)
        if progress:
            note(f"going on at epoch {standing.epoch}, step {standing.step}")
        return standing


def _optimizers(steppers: dict[str, Stepper]) -> list[tuple[str, Rule]]:
    return [
        (f"optimizer.{group}.{kind}", optimizer)
        for group, stepper in steppers.items()
        for kind, optimizer in stepper.optimizers.items()
    ]

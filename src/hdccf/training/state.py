"""Training state, and the stores that keep it: a run's folder, or none."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from hdccf.errors import RunError
from hdccf.recommend.run_folder import REFIT, RunFolder, resume_command

Tensors = dict[str, Tensor]


@dataclass
class TrainingState:
    """Where training stands: everything about it that is not a tensor."""

    epoch: int = 1
    """The epoch that is under way."""
    step: int = 0
    """How many of its steps are done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Loss and terms of its steps so far, added up."""
    best_value: float = -math.inf
    best_epoch: int = 0
    waited: int = 0
    """Evaluations since the best."""
    seconds: float = 0.0
    finished: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "best_value": None if self.best_epoch == 0 else self.best_value}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "TrainingState":
        value = facts.pop("best_value")
        return cls(**facts, best_value=-math.inf if value is None else value)


class CheckpointStore:
    """Keeps checkpoints, the best weights and a record of each evaluation. The base class keeps nothing."""

    location = "memory"
    """Where the checkpoint is, for messages."""

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        """The last checkpoint, if there is one."""
        return None

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        """Replaces the last checkpoint, all or nothing."""

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        """Replaces the best weights."""

    def load_best(self, device: torch.device) -> Tensors | None:
        """The best weights, if there are any."""
        return None

    def log(self, record: dict[str, Any]) -> None:
        """Adds the record of an evaluation."""

    def truncate_log(self, epoch: int) -> None:
        """Removes the records of epochs that will be trained again."""

    def raise_interrupted(self, epoch: int, step: int) -> None:
        """Raises the error that tells the user how to continue."""
        raise KeyboardInterrupt


class FolderStore(CheckpointStore):
    """In the folder of a run."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.location = run, str(run.checkpoint)
        self.log, self.truncate_log = run.log, run.truncate_log  # type: ignore[method-assign]

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        return self.run.load_tensors(self.run.checkpoint, device) if self.run.checkpoint.exists() else None

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        self.run.save_tensors(self.run.checkpoint, tensors, facts)

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        self.run.save_tensors(self.run.best, tensors, {"epoch": epoch})

    def load_best(self, device: torch.device) -> Tensors | None:
        return self.run.load_tensors(self.run.best, device)[0] if self.run.best.exists() else None

    def raise_interrupted(self, epoch: int, step: int) -> None:
        path = self.run.path
        whole = path.parents[1] if path.parent.name == "race" else path
        whole = path.parent if path.name == REFIT and (path.parent / "run.json").exists() else whole
        raise RunError(
            f"interrupted at epoch {epoch}, step {step}, and saved; go on with: {resume_command(whole)}"
        )

"""Training state, and the stores that keep it: a run's folder, or none."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.errors import RunError
from hdccf.recommend.run_folder import RunFolder

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


class CheckpointStore(Protocol):
    """What the loop asks of it: where to go on, the best weights, and a line an evaluation."""

    @property
    def location(self) -> str:
        """Where the checkpoint is, for messages."""
        ...

    @property
    def best_location(self) -> str:
        """Where the best weights are, for messages."""
        ...

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        """The last checkpoint, if there is one."""
        ...

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        """A checkpoint in the place of the last one, all or nothing."""
        ...

    def save_best(self, tensors: Tensors, epoch: int) -> None: ...

    def load_best(self, device: torch.device) -> Tensors | None: ...

    def log(self, record: dict[str, Any]) -> None: ...

    def truncate_log(self, epoch: int) -> None:
        """Takes back the lines of epochs that will be trained again."""
        ...

    def raise_interrupted(self, epoch: int, step: int) -> None:
        """Raises what tells the user of an interruption how to go on."""
        ...


class NullStore:
    """Keeps nothing: what is not given back at the end is lost."""

    location = best_location = "memory"

    def load(self, device: torch.device) -> None:
        return None

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        pass

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        pass

    def load_best(self, device: torch.device) -> None:
        return None

    def log(self, record: dict[str, Any]) -> None:
        pass

    def truncate_log(self, epoch: int) -> None:
        pass

    def raise_interrupted(self, epoch: int, step: int) -> None:
        raise KeyboardInterrupt


class FolderStore:
    """In the folder of a run."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @property
    def location(self) -> str:
        return str(self.run.checkpoint)

    @property
    def best_location(self) -> str:
        return str(self.run.best)

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        return checkpoint.load(self.run.checkpoint, device) if self.run.checkpoint.exists() else None

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        checkpoint.save(self.run.checkpoint, tensors, facts)

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        checkpoint.save(self.run.best, tensors, {"epoch": epoch})

    def load_best(self, device: torch.device) -> Tensors | None:
        return checkpoint.load(self.run.best, device)[0] if self.run.best.exists() else None

    def log(self, record: dict[str, Any]) -> None:
        self.run.log(record)

    def truncate_log(self, epoch: int) -> None:
        self.run.truncate_log(epoch)

    def raise_interrupted(self, epoch: int, step: int) -> None:
        raise RunError(
            f"interrupted at epoch {epoch}, step {step}, and saved; "
            f"go on with: hdccf train --resume {self.run.path}"
        )

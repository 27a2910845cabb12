"""Where a training stands between two steps, as a checkpoint keeps it."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any


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

"""Settings of models that predict from a user's history: how much each item of it still says."""

from typing import Literal

from jaxtyping import Float32
from pydantic import Field
from torch import Tensor

from hdccf.config import Settings
from hdccf.data.interactions import Interactions
from hdccf.data.weights import positive_weights


class WeightedHistories(Settings):
    """What is learnt knows no time; what it is applied to, the user's history, may fade with it."""

    recency_half_life: float | None = Field(default=None, gt=0)
    """When predicting, the age at which an item of the history counts half (plus the floor), so that users
    get what goes with their latest items; none is the published model, which knows no time."""
    recency_floor: float = Field(default=0.0, ge=0, le=1)
    """What the oldest item of the history still counts."""
    recency_unit: Literal["interactions", "days"] = "interactions"
    """Whether age is counted in the user's later interactions or in days before their last."""

    def weights_of(self, train: Interactions) -> Float32[Tensor, " pairs"]:
        return positive_weights(
            train, half_life=self.recency_half_life, floor=self.recency_floor, unit=self.recency_unit
        )

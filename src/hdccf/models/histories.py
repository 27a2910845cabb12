"""Settings of models that predict from a user's history: how much each item of it still says."""

from typing import Literal

from pydantic import Field
from scipy import sparse

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


def weighted_histories(train: Interactions, settings: WeightedHistories) -> sparse.csr_array:
    """Users × items, each pair as much as it counts when predicting."""
    weights = positive_weights(
        train,
        half_life=settings.recency_half_life,
        floor=settings.recency_floor,
        unit=settings.recency_unit,
    )
    return sparse.csr_array(
        (weights.numpy(), train.items, train.by_user.starts), shape=(train.n_users, train.n_items)
    )

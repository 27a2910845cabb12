"""How much each positive pair counts: a property of the data, open to every model."""

import numpy as np
import torch
from jaxtyping import Float32
from scipy import sparse
from torch import Tensor

from hdccf.config import PositiveSettings, RecencySettings
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError

_DAY_IN_MICROSECONDS = 86_400_000_000


def positive_weights(
    train: Interactions,
    *,
    half_life: float | None = None,
    floor: float = 0.0,
    unit: str = "interactions",
    count_power: float = 0.0,
) -> Float32[Tensor, " pairs"]:
    """Recency times repetition, for each pair in the order of the rows.

    floor + (1 − floor)·½^(age / half_life), the age of a pair being how many interactions the user has had
    since (`unit="interactions"`) or how many days before their last one it was (`"days"`); times
    count^count_power.
    """
    weights = np.ones(len(train))
    if half_life is not None:
        if train.times is None:
            raise ConfigError(
                "recency was asked for, but the interactions have no times; give a time column or turn it off"
            )
        last = train.by_user.starts[1:][train.users] - 1
        age = (last - np.arange(len(train))).astype(np.float64)
        if unit == "days":
            age = (train.times[last] - train.times) / _DAY_IN_MICROSECONDS
        weights = floor + (1 - floor) * np.exp2(-age / half_life)
    if count_power:
        weights *= train.counts.astype(np.float64) ** count_power
    return torch.from_numpy(weights.astype(np.float32))


def weights_of(settings: PositiveSettings, train: Interactions) -> Float32[Tensor, " pairs"]:
    """`positive_weights` as a model's settings have them, times the weights of the data."""
    weights = positive_weights(
        train,
        half_life=settings.recency_half_life,
        floor=settings.recency_floor,
        unit=settings.recency_unit,
        count_power=settings.count_power,
    )
    return weights if train.weights is None else weights * torch.from_numpy(train.weights.copy())


def weighted_histories(train: Interactions, settings: RecencySettings) -> sparse.csr_array:
    """Users × items, each pair as much as it counts when predicting."""
    weights = positive_weights(
        train, half_life=settings.recency_half_life, floor=settings.recency_floor, unit=settings.recency_unit
    )
    if train.weights is not None:
        weights = weights * torch.from_numpy(train.weights.copy())
    return sparse.csr_array(
        (weights.numpy(), train.items, train.by_user.starts), shape=(train.n_users, train.n_items)
    )

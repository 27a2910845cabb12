"""Where the truth is known: how many of a batch's negatives are false, and how the gradient weighs them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hdccf.data.batches import Block, InBatch, SampledBatch
from hdccf.data.interactions import Interactions
from hdccf.data.synthetic import World
from hdccf.losses.diagnostics import false_negative_rates


def false_negative_rate(world: World, train: Interactions) -> Callable[[Any, Any], dict[str, float]]:
    """A diagnosis for `fit` on data from `world`, which may have lost users and items in preparation."""
    world_users, world_items = world.codes_of(train)

    def diagnose(model: Any, batch: InBatch | SampledBatch | Block) -> dict[str, float]:
        with torch.no_grad():
            negatives = model.item_negatives(batch)
        if negatives is None:
            return {}
        users = world_users[batch.users.numpy()]
        if isinstance(batch, SampledBatch):
            items = world_items[batch.negative_items.numpy()]
            rows = np.broadcast_to(users[:, None], items.shape)
            liked = world.liked_pairs(rows.ravel(), items.ravel()).reshape(items.shape)
        else:
            columns = batch.item_negatives.columns if isinstance(batch, InBatch) else batch.columns
            items = world_items if columns is None else world_items[columns.numpy()]
            liked = world.liked(users, items)
        return false_negative_rates(negatives, torch.from_numpy(liked), model.settings.temperature)

    return diagnose

"""Diagnostics of a trained model: how its modulation varies, and its gradient on known false negatives."""

import numpy as np
import torch
from numpy.typing import NDArray

from hdccf.data.split import Split
from hdccf.losses.diagnostics import modulation_spread
from hdccf.models.base import Model
from hdccf.recommend.lens import held_out_items

PAIRS = 20_000
USERS = 2_000
"""Larger data is looked at by a sample of so many."""
_USERS_AT_ONCE = 256


def diagnostics_of(model: Model, split: Split, seed: int = 0) -> dict[str, float]:
    """What `of_modulation` and `of_false_negatives` find; a model that has neither has no diagnostics."""
    return {**of_modulation(model, split, seed), **of_false_negatives(model, split, seed)}


@torch.no_grad()
def of_modulation(model: Model, split: Split, seed: int = 0) -> dict[str, float]:
    """Mean and spread of m (Eq. 8) over pairs of any user and any item; nothing without a modulation."""
    n_items = split.train.n_items
    pairs = _some(split.train.n_users * n_items, PAIRS, seed)
    m = model.modulation(torch.from_numpy(pairs // n_items), torch.from_numpy(pairs % n_items))
    return {} if m is None else modulation_spread(m)


@torch.no_grad()
def of_false_negatives(model: Model, split: Split, seed: int = 0) -> dict[str, float]:
    """The share of a user's negative gradient on the held-out items, averaged over users who have some.

    Beside it what the same gradient for all unobserved items would give, and the share on training items,
    which is 0 unless training takes them as negatives. Nothing where the loss weighs its negatives otherwise.
    """
    scorer, found = model.scorer(), []
    every = np.unique(np.concatenate([split.validation.users, split.test.users])).astype(np.int64)
    users = every[_some(len(every), USERS, seed)]
    for some in np.array_split(users, max(1, -(-len(users) // _USERS_AT_ONCE))):
        for user, scores in zip(some, scorer.score_block(torch.from_numpy(some)), strict=True):
            observed, held_out = torch.zeros((2, len(scores)), dtype=torch.bool)
            observed[torch.from_numpy(split.train.by_user.of(user).astype(np.int64))] = True
            held_out[torch.from_numpy(held_out_items(split, int(user)).astype(np.int64))] = True
            held_out &= ~observed
            negatives = model.negative_shares(scores, observed) if bool(held_out.any()) else None
            if negatives is not None:
                shares, uniform = negatives.shares.double(), held_out.sum() / (~observed).sum()
                found.append([float(shares[held_out].sum()), float(uniform), float(shares[observed].sum())])
    if not found:
        return {}
    names = ("on-false-negatives", "uniform-on-false-negatives", "on-training-items")
    return dict(zip(names, np.mean(found, 0).tolist(), strict=True))


def _some(n: int, most: int, seed: int) -> NDArray[np.int64]:
    """All of n places, or a sample of them that the seed decides."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))

"""Small interactions for tests of batches, models and training: random with every edge, tastes, checkers."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, leave_one_out


def interactions(
    pairs: Sequence[tuple[int, int]],
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    times: Sequence[int] | NDArray[np.int64] | None = None,
    counts: Sequence[int] | None = None,
) -> Interactions:
    """Pairs in the order in which they happened; users are named u0, u1, …, items 100, 101, …"""
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    n_users = int(users.max()) + 1 if n_users is None else n_users
    n_items = int(items.max()) + 1 if n_items is None else n_items
    return Interactions.from_codes(
        users,
        items,
        user_ids=pl.Series([f"u{user}" for user in range(n_users)]),
        item_ids=pl.Series(np.arange(100, 100 + n_items)),
        times=None if times is None else np.asarray(times, np.int64),
        counts=None if counts is None else np.asarray(counts, np.int32),
    )


def random_interactions(
    seed: int,
    n_users: int = 7,
    n_items: int = 9,
    share: float = 0.35,
    *,
    full: bool = True,
    timed: bool = True,
) -> Interactions:
    """A random graph in random order of time; with `full`, user 0 has every item and item 0 every user.

    Then the pair (0, 0) has nothing left to be its negative on either side. The last user has one item only.
    """
    rng = np.random.default_rng(seed)
    mask = rng.random((n_users, n_items)) < share
    mask[np.arange(n_users), rng.integers(n_items, size=n_users)] = True
    mask[rng.integers(n_users, size=n_items), np.arange(n_items)] = True
    mask[-1] = False
    if full:
        mask[0], mask[:, 0] = True, True
    else:
        mask[-1, 1] = True
    pairs = rng.permutation(np.argwhere(mask))
    times = rng.permutation(len(pairs)) * 3_600_000_000 if timed else None
    made = [(int(user), int(item)) for user, item in pairs]
    return interactions(made, n_users=n_users, n_items=n_items, times=times)


def tastes(
    seed: int = 0, n_users: int = 40, n_items: int = 30, each: int = 8, *, timed: bool = True
) -> Interactions:
    """Two groups of users, each with a taste for half of the items and some of the others."""
    rng = np.random.default_rng(seed)
    pairs = []
    for user in range(n_users):
        weights = np.where(np.arange(n_items) % 2 == user % 2, 8.0, 1.0)
        chosen = rng.choice(n_items, each, replace=False, p=weights / weights.sum())
        pairs += [(user, int(item)) for item in chosen]
    times = np.arange(len(pairs)) * 3_600_000_000 if timed else None
    return interactions(pairs, n_users=n_users, n_items=n_items, times=times)


def small_split(seed: int = 0, *, timed: bool = True) -> Split:
    return leave_one_out(tastes(seed, timed=timed))


def checkerboard(size: int) -> Interactions:
    """User u has every item of u's parity but item u: the one that is left to be recommended."""
    pairs = [(user, item) for user in range(size) for item in range(user % 2, size, 2) if item != user]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(pairs))
    times = np.arange(len(pairs)) * 3_600_000_000
    return interactions([pairs[place] for place in order], n_users=size, n_items=size, times=times)

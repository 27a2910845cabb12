"""The k-core: the largest part of the data in which every user and every item has enough interactions."""

import numpy as np
from numpy.typing import NDArray

from hdccf.data.interactions import Adjacency, Interactions
from hdccf.errors import ConfigError, DataError

_Indices = NDArray[np.int64]


def k_core(data: Interactions, users: int = 5, items: int = 5) -> Interactions:
    """The largest part in which every user has at least `users` items and every item at least `items` users.

    Dropping a weak user may weaken an item and the other way round, so it is repeated until nothing changes;
    the time is linear in the number of pairs.

    Parameters
    ----------
    data
        The interactions to filter.
    users
        How many items a user must have; 0 for no limit.
    items
        How many users an item must have; 0 for no limit.

    Returns
    -------
    Interactions
        The core, its contiguous ids without gaps.

    Examples
    --------
    >>> hdccf.k_core(hdccf.load("ml-100k"), users=10, items=10)
    """
    for name, least in (("users", users), ("items", items)):
        if least < 0:
            raise ConfigError(f"{name}={least} is impossible in a k-core; give 0 (no limit) or more")
    alive, of_user, of_item = _peel(data, users, items)
    if not of_user.any():
        raise DataError(
            f"nothing is left of {len(data):,} pairs in the core of {users} items a user and {items} users "
            "an item; ask for a smaller core"
        )
    core = data if alive.all() else data.subset(alive)
    return core.close_gaps(of_user, of_item)


def _peel(
    data: Interactions, least_of_user: int, least_of_item: int
) -> tuple[NDArray[np.bool_], _Indices, _Indices]:
    """Which rows are in the core, and the degrees that users and items have there."""
    alive = np.ones(len(data), np.bool_)
    of_user, of_item = data.by_user.degrees, data.by_item.degrees
    weak_users = np.flatnonzero((of_user < least_of_user) & (of_user > 0))
    weak_items = np.flatnonzero((of_item < least_of_item) & (of_item > 0))
    while len(weak_users) or len(weak_items):
        lost_by_items = _drop(data.by_user, weak_users, of_user, data.items, alive)
        weak_items = np.union1d(weak_items, _weakened(of_item, lost_by_items, least_of_item))
        lost_by_users = _drop(data.by_item, weak_items, of_item, data.users, alive)
        weak_users = _weakened(of_user, lost_by_users, least_of_user)
        weak_items = weak_items[:0]
    return alive, of_user, of_item


def _drop(
    adjacency: Adjacency,
    weak: _Indices,
    degrees: _Indices,
    others: NDArray[np.int32],
    alive: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """Drops the rows of weak users or items, in place; the items or users that lose a row each time."""
    entries = _ranges(adjacency.starts, weak)
    rows = entries if isinstance(adjacency.rows, slice) else adjacency.rows[entries]
    rows = rows[alive[rows]]
    alive[rows] = False
    degrees[weak] = 0
    return others[rows]


def _weakened(degrees: _Indices, losers: NDArray[np.int32], least: int) -> _Indices:
    """Takes one degree from each loser, in place; those that now have too few, but not none."""
    if len(losers) > len(degrees) // 8:
        # So many that counting over all is cheaper than sorting the losers.
        degrees -= np.bincount(losers, minlength=len(degrees))
        return np.flatnonzero((degrees < least) & (degrees > 0))
    np.subtract.at(degrees, losers, 1)
    weak = np.unique(losers[degrees[losers] < least]).astype(np.int64)
    return weak[degrees[weak] > 0]


def _ranges(starts: _Indices, keys: _Indices) -> _Indices:
    """starts[k] … starts[k + 1] − 1 for each k of `keys`, one after another."""
    lengths = starts[keys + 1] - starts[keys]
    ends = np.cumsum(lengths)
    return np.repeat(starts[keys] - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)

"""The k-core by peeling: what falls is found from what changed, and everything is moved once, at the end."""

from dataclasses import replace
from itertools import count

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError, DataError

Codes = NDArray[np.int64]

# Finding the rows of weak items by a look at all rows costs a tenth of the index by item. The first passes
# drop nearly all that falls; whoever needs more gets the index, so that a long chain stays linear.
_LOOKS_BEFORE_INDEX = 10


def k_core(data: Interactions, users: int = 5, items: int = 5) -> Interactions:
    """The largest part in which every user has at least `users` items and every item at least `items` users.

    Dropping a weak user may weaken an item and the other way round, so it is repeated until nothing changes.
    The result does not depend on the order.
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
    return _closed_up(data, alive, of_user, of_item)


def _peel(
    data: Interactions, least_of_user: int, least_of_item: int
) -> tuple[NDArray[np.bool_], Codes, Codes]:
    """Which rows are in the core, and the degrees that users and items have there."""
    alive = np.ones(len(data), np.bool_)
    of_user = data.by_user.degrees
    of_item = np.bincount(data.items, minlength=data.n_items)
    weak_users, weak_items = np.flatnonzero(of_user < least_of_user), np.flatnonzero(of_item < least_of_item)
    for passes in count():
        fallen = _ranges(data.by_user.starts, weak_users)
        fallen = fallen[alive[fallen]]
        alive[fallen] = False
        of_user[weak_users] = 0
        # In the first pass items may be weak without having lost anything.
        weak_items = _weakened(of_item, data.items[fallen], least_of_item, also=weak_items)
        if not len(weak_items):
            return alive, of_user, of_item
        fallen = _rows_of_items(data, weak_items, by_look=passes < _LOOKS_BEFORE_INDEX)
        fallen = fallen[alive[fallen]]
        alive[fallen] = False
        of_item[weak_items] = 0
        weak_users = _weakened(of_user, data.users[fallen], least_of_user, also=weak_items[:0])
        weak_items = weak_items[:0]
    raise AssertionError("a core is reached after finitely many passes")


def _weakened(degrees: Codes, losers: NDArray[np.int32], least: int, *, also: Codes) -> Codes:
    """Takes one degree from each loser, in place, and gives those that have too few now, but not none."""
    if len(losers) > len(degrees) // 8:
        # So many that counting everyone is cheaper than sorting them out.
        degrees -= np.bincount(losers, minlength=len(degrees))
        return np.flatnonzero((degrees < least) & (degrees > 0))
    np.subtract.at(degrees, losers, 1)
    weak = np.union1d(losers[degrees[losers] < least], also).astype(np.int64)
    return weak[degrees[weak] > 0]


def _rows_of_items(data: Interactions, items: Codes, *, by_look: bool) -> Codes:
    if by_look:
        weak = np.zeros(data.n_items, np.bool_)
        weak[items] = True
        return np.flatnonzero(weak[data.items])
    starts, _, rows = data.by_item
    numbers = _ranges(starts, items)
    return numbers if isinstance(rows, slice) else rows[numbers].astype(np.int64)


def _ranges(starts: Codes, keys: Codes) -> Codes:
    """starts[k] … starts[k + 1] − 1 for each k of `keys`, one after another."""
    lengths = starts[keys + 1] - starts[keys]
    ends = np.cumsum(lengths)
    return np.repeat(starts[keys] - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def _closed_up(data: Interactions, alive: NDArray[np.bool_], of_user: Codes, of_item: Codes) -> Interactions:
    """`data.subset(alive).compact()` with the degrees known: users are counted off instead of looked up."""
    kept_users, kept_items = of_user > 0, of_item > 0
    if kept_users.all() and kept_items.all() and alive.all():
        return data
    n_users = int(np.count_nonzero(kept_users))
    items = data.items[alive]
    if not kept_items.all():
        items = (np.cumsum(kept_items, dtype=np.int32) - np.int32(1))[items]
    in_core = pl.Series(kept_items)
    return replace(
        data,
        users=np.repeat(np.arange(n_users, dtype=np.int32), of_user[kept_users]),
        items=items,
        times=None if data.times is None else data.times[alive],
        counts=data.counts[alive],
        user_ids=data.user_ids.filter(pl.Series(kept_users)),
        item_ids=data.item_ids.filter(in_core),
        titles=None if data.titles is None else data.titles.filter(in_core),
    )

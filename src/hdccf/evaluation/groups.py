"""Who is served well: users by how much they did in training, items by how popular they are there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

USER_GROUPS = ("light", "medium", "heavy")
ITEM_GROUPS = ("tail", "middle", "head")


@dataclass(frozen=True, eq=False)
class Group:
    """Those with `least` to `most` training interactions."""

    name: str
    least: int
    most: int
    members: NDArray[np.bool_]


def user_groups(activity: NDArray[np.int64]) -> list[Group]:
    """Thirds of the users by their training interactions; users with equally many stay together."""
    ascending = np.sort(activity)
    return _cut(activity, [ascending[len(ascending) * third // 3] for third in (1, 2)], USER_GROUPS)


def item_groups(popularity: NDArray[np.int64]) -> list[Group]:
    """Tail, middle and head, each with about a third of the training interactions: the head is few items."""
    ascending = np.sort(popularity)
    cumulated = np.cumsum(ascending)
    places = np.searchsorted(cumulated, [cumulated[-1] / 3, 2 * cumulated[-1] / 3], side="right")
    return _cut(popularity, [ascending[min(place, len(ascending) - 1)] for place in places], ITEM_GROUPS)


def _cut(values: NDArray[np.int64], limits: list[np.int64], names: tuple[str, ...]) -> list[Group]:
    """Below the first limit, from there to below the second, and the rest; no groups that nobody is in."""
    which = np.searchsorted(np.array(limits), values, side="right")
    groups = []
    for number, name in enumerate(names):
        members = which == number
        if members.any():
            inside = values[members]
            groups.append(Group(name, int(inside.min()), int(inside.max()), members))
    return groups

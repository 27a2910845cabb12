"""Who is served well: users by how much they did in training, items by how popular they are there."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]
Values = NDArray[np.float64]

USER_GROUPS = ("light", "medium", "heavy")
ITEM_GROUPS = ("tail", "middle", "head")


@dataclass(frozen=True, eq=False)
class Groups:
    """Who belongs to which group; groups that nobody belongs to are not there."""

    names: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    """The least and the most training interactions of each group."""
    which: IndexArray
    """Of each user or item the number of its group."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> IndexArray:
        return np.bincount(self.which, minlength=len(self))

    def means(self, values: Values, which: IndexArray | None = None) -> dict[str, float]:
        """The mean of each group's values, NaN left out; groups without a value are not there.

        `which` says whose values they are where there is not one for each user or item.
        """
        which = self.which if which is None else which
        known = ~np.isnan(values)
        if not known.all():
            values, which = values[known], which[known]
        counts = np.bincount(which, minlength=len(self))
        sums = np.bincount(which, weights=values, minlength=len(self))
        return {
            name: float(total / count)
            for name, total, count in zip(self.names, sums, counts, strict=True)
            if count
        }


def user_groups(activity: IndexArray) -> Groups:
    """Thirds of the users by their training interactions; users with equally many stay together."""
    ascending = np.sort(activity)
    return _cut(activity, [ascending[len(ascending) * third // 3] for third in (1, 2)], USER_GROUPS)


def item_groups(popularity: IndexArray) -> Groups:
    """Tail, middle and head, each with about a third of the training interactions: the head is few items."""
    ascending = np.sort(popularity)
    cumulated = np.cumsum(ascending)
    places = np.searchsorted(cumulated, [cumulated[-1] / 3, 2 * cumulated[-1] / 3], side="right")
    return _cut(popularity, [ascending[min(place, len(ascending) - 1)] for place in places], ITEM_GROUPS)


def _cut(values: IndexArray, limits: list[np.int64], names: tuple[str, ...]) -> Groups:
    """Below the first limit, from there to below the second, and the rest."""
    thirds = np.searchsorted(np.array(limits), values, side="right")
    present, which = np.unique(thirds, return_inverse=True)
    inside = [values[thirds == third] for third in present]
    ranges = tuple((int(some.min()), int(some.max())) for some in inside)
    return Groups(tuple(names[third] for third in present), ranges, which)

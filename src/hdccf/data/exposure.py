"""Who gets to see what: independent of tastes, constant over all pairs or driven by popularity.

User u is shown Poisson(rate) items, each drawn from one distribution w, with repeats. A Poisson number that
is divided among the items is an independent Poisson number for each of them, so the pairs are exposed
independently, with probability q_i = 1 − e^(−rate · w_i): exactly, at the cost of one draw for each exposure
rather than one for each pair.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from hdccf.data.hashing import key_of, uniforms, words_at
from hdccf.data.tastes import Codes, Floats, Tastes, root, some_pairs
from hdccf.errors import ConfigError

# Above this share of the liked pairs nearly all draws repeat earlier ones, and nothing is left to predict.
MOST_OBSERVED = 0.95


@dataclass(frozen=True, eq=False)
class Exposure:
    """The drawn exposures, recomputable for any user: draw number n is at place n of one sequence."""

    probabilities: Floats
    """q_i: the probability that an item is shown to a user, the same for all users."""
    starts: Codes
    """User u has draws number starts[u] to starts[u + 1] − 1."""
    key: int
    accept: Floats
    """Walker's alias table: cell c gives item c with this probability …"""
    alias: NDArray[np.int32]
    """… and otherwise this one."""

    def draws(self, first_user: int, last_user: int) -> tuple[Codes, Codes]:
        """Users and items of all draws of the users from `first_user` to before `last_user`, with repeats."""
        starts = self.starts[first_user : last_user + 1]
        users = np.repeat(np.arange(first_user, last_user), np.diff(starts))
        return users, self._items(np.arange(starts[0], starts[-1]))

    def items_of(self, user: int) -> Codes:
        """The items that were shown to `user`, ascending."""
        return np.unique(self.draws(user, user + 1)[1])

    def _items(self, places: Codes) -> Codes:
        scaled = uniforms(words_at(self.key, places)) * len(self.accept)
        cells = scaled.astype(np.int64)
        # The fraction that is left over is itself uniform, and decides between the cell's two items.
        scaled -= cells
        return np.where(scaled < self.accept[cells], cells, self.alias[cells])


def draw_exposure(
    tastes: Tastes, n_interactions: int, *, dial: float, seed: int, exposure_seed: int
) -> Exposure:
    """Exposures under which `n_interactions` liked pairs are seen in expectation.

    The fame of the items belongs to the world, `seed`; who is shown what belongs to `exposure_seed`.
    """
    n_users, n_items = len(tastes.users), len(tastes.items)
    weights = _weights(tastes.appeal, dial, np.random.default_rng([seed, 2]))
    rate = _rate(tastes, weights, n_interactions, np.random.default_rng([seed, 3]))
    shown = np.random.default_rng([exposure_seed, 4]).poisson(rate, n_users)
    accept, alias = _alias_table(weights) if dial else (np.ones(n_items), np.zeros(n_items, np.int32))
    return Exposure(
        probabilities=-np.expm1(-rate * weights),
        starts=np.concatenate(([0], np.cumsum(shown))),
        key=key_of(exposure_seed, "exposure"),
        accept=accept,
        alias=alias,
    )


def _weights(appeal: Floats, dial: float, rng: np.random.Generator) -> Floats:
    """Zipf's law over the items by fame, to the power of the dial: 0 is the same for all, 1 the law itself.

    Fame follows appeal in part only: what is shown most is not always what pleases most.
    """
    fame = appeal + 0.5 * rng.standard_normal(len(appeal))
    rank = np.empty(len(fame))
    rank[np.argsort(-fame)] = np.arange(len(fame))
    # The shift keeps the few first from taking everything, as it does in catalogues.
    weights: Floats = (rank + 10.0) ** -dial
    weights /= weights.sum()
    return weights


def _rate(tastes: Tastes, weights: Floats, n_interactions: int, rng: np.random.Generator) -> float:
    """How many items a user must be shown so that the expected Σ p_ui · q_i is as asked for."""
    n_users, n_items = len(tastes.users), len(tastes.items)
    users, items = some_pairs(rng, n_users, n_items)
    density = np.full(len(users), 1.0 / n_items)
    if len(users) < n_users * n_items:
        # Half of a sample's items are drawn as they are shown: a few of them make up much of the sum.
        half = len(items) // 2
        items[:half] = np.searchsorted(np.cumsum(weights)[:-1], rng.random(half))
        density = 0.5 / n_items + 0.5 * weights[items]
    stands_for = n_users / (len(users) * density)
    probabilities = expit(tastes.logits_of_pairs(users, items))
    # The expected number of users who like each item.
    liked = np.bincount(items, probabilities * stands_for, n_items)
    most = int(MOST_OBSERVED * liked.sum())
    if n_interactions > most:
        raise ConfigError(
            f"n_interactions={n_interactions:,} is too many for {n_users:,} users × {n_items:,} items, with "
            f"{liked.sum():,.0f} liked pairs; ask for at most {most:,}, or for more users, items or likes"
        )
    log_rate = root(lambda x: float(liked @ -np.expm1(-np.exp(x) * weights)) - n_interactions)
    return float(np.exp(log_rate))


def _alias_table(weights: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Walker's method: each cell holds 1/n, filled by its own item and topped up by one that has too much."""
    left = (weights * len(weights)).tolist()
    accept, alias = [1.0] * len(left), list(range(len(left)))
    small = [item for item, weight in enumerate(left) if weight < 1.0]
    large = [item for item, weight in enumerate(left) if weight >= 1.0]
    while small and large:
        needs, gives = small.pop(), large[-1]
        accept[needs], alias[needs] = left[needs], gives
        left[gives] -= 1.0 - left[needs]
        if left[gives] < 1.0:
            small.append(large.pop())
    return np.array(accept), np.array(alias, np.int32)

"""The generative process of a synthetic world: preferences, exposure, histories and titles.

All random numbers that belong to a pair come from a counter-based generator, so that any pair can be looked
up again and none is stored. `docs/synthetic.md` has the formulas and the measurements.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import expit

from hdccf.config import Options
from hdccf.data.adjacency import IntArray, TimeArray
from hdccf.data.splitmix import Words, key_of, mix, uniforms, words_at
from hdccf.errors import ConfigError

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# -- settings ------------------------------------------------------------------------------------------------


class WorldSettings(Options):
    """What a world is made from; equal settings give equal worlds. `synthetic_world` has the defaults."""

    n_users: int = Field(ge=2)
    n_items: int = Field(ge=2)
    n_interactions: int = Field(ge=1)
    """The expected number of observed pairs; the world has it to within 1 % + 4/√n."""
    exposure: float = Field(ge=0, le=1)
    """0: every pair is exposed with the same probability; 1: by popularity (Zipf); between: its power."""
    drift: float = Field(ge=0, le=10)
    """How far tastes move in a user's time, in units of their strength; 0: a history's order says nothing."""
    liked: float = Field(gt=0, le=0.5)
    """The share of all pairs that are liked."""
    strength: float = Field(ge=0, le=10)
    """The standard deviation of personal taste in log-odds; 0: everyone likes the same."""
    dimensions: int = Field(ge=2)
    """The number of latent dimensions of taste."""
    seed: int = Field(ge=0)
    exposure_seed: int = Field(ge=0)
    """Who is shown what. Worlds that differ in this only have the same users, items and likes."""


# -- preferences ---------------------------------------------------------------------------------------------

N_GENRES = 10
# Pairs from which means over a larger world are taken: an error of about a third of a percent.
SAMPLED_PAIRS = 1 << 19


@dataclass(frozen=True, eq=False)
class Tastes:
    """log-odds(u likes i) = user_u · item_i + leniency_u + appeal_i, and how they move with time."""

    users: Floats
    """Each user's taste, users × dimensions; the strength of tastes is in its length."""
    items: Floats
    """Each item's character, items × dimensions, unit length, around its genre's."""
    leniency: Floats
    """How easily each user is pleased; the common level, which sets the share of liked pairs, is in it."""
    appeal: Floats
    """How much each item pleases anyone."""
    directions: Floats
    """Where each user's taste moves to in the course of time, users × dimensions."""
    genres: NDArray[np.int32]
    """The genre of each item, 0 to 9."""
    user_keys: Words
    item_keys: Words

    def logits(self, users: Indices, items: Indices, *, pairs: bool = False) -> Floats:
        """users × items log-odds; with `pairs` those of the n-th user and the n-th item."""
        logits = _products(self.users[users], self.items[items], pairs)
        logits += self.leniency[users if pairs else users[:, None]]
        logits += self.appeal[items]
        return logits

    def tilt(self, users: Indices, items: Indices, *, pairs: bool = False) -> Floats:
        """How much the log-odds rise from the middle of a user's time to its end; shaped as `logits`."""
        return _products(self.directions[users], self.items[items], pairs)

    def liked(self, users: Indices, items: Indices, *, pairs: bool = False) -> NDArray[np.bool_]:
        """Where the pair's own uniform number is below its probability; shaped as `logits`.

        Double precision throughout: a block and a list of pairs may round the log-odds differently, by 1e-16,
        and so a like would come out differently once in 10¹⁵ pairs.
        """
        words = self.user_keys[users if pairs else users[:, None]] ^ self.item_keys[items]
        liked: NDArray[np.bool_] = uniforms(mix(words)) < expit(self.logits(users, items, pairs=pairs))
        return liked


def draw_tastes(settings: WorldSettings) -> Tastes:
    """Tastes under which the share `settings.liked` of all pairs is liked, on average over the draws."""
    n_users, n_items, dimensions = settings.n_users, settings.n_items, settings.dimensions
    rng = np.random.default_rng([settings.seed, 1])
    centres = _directions(rng, N_GENRES, dimensions)
    genres = rng.integers(0, N_GENRES, n_items, dtype=np.int32)
    items = centres[genres] + 0.7 * _directions(rng, n_items, dimensions)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    # A product of unit vectors varies by 1/√dimensions: undo that, so that `strength` is in log-odds.
    scale = settings.strength * np.sqrt(dimensions)
    tastes = Tastes(
        users=scale * _directions(rng, n_users, dimensions),
        items=items,
        leniency=0.7 * rng.standard_normal(n_users),
        appeal=0.5 * rng.standard_normal(n_items),
        directions=settings.drift * scale * _directions(rng, n_users, dimensions),
        genres=genres,
        user_keys=words_at(key_of(settings.seed, "users"), np.arange(n_users)),
        item_keys=words_at(key_of(settings.seed, "items"), np.arange(n_items)),
    )
    logits = tastes.logits(*some_pairs(rng, n_users, n_items), pairs=True)
    level = root(lambda shift: float(expit(logits + shift).mean()) - settings.liked)
    return replace(tastes, leniency=tastes.leniency + level)


def _products(left: Floats, right: Floats, pairs: bool) -> Floats:
    products: Floats = np.einsum("nd,nd->n", left, right) if pairs else left @ right.T
    return products


def _directions(rng: np.random.Generator, n: int, dimensions: int) -> Floats:
    vectors = rng.standard_normal((n, dimensions))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def some_pairs(rng: np.random.Generator, n_users: int, n_items: int) -> tuple[Indices, Indices]:
    """All pairs of a small world, and a uniform sample of a large one."""
    if n_users * n_items <= SAMPLED_PAIRS:
        return np.repeat(np.arange(n_users), n_items), np.tile(np.arange(n_items), n_users)
    return rng.integers(0, n_users, SAMPLED_PAIRS), rng.integers(0, n_items, SAMPLED_PAIRS)


def root(error: Callable[[float], float]) -> float:
    """Where `error`, which rises, is zero."""
    return float(brentq(error, -60.0, 60.0, xtol=1e-9))


# -- exposure ------------------------------------------------------------------------------------------------

# User u is shown Poisson(rate) items, each drawn from one distribution w, with repeats. A Poisson number that
# is divided among the items is an independent Poisson number for each of them, so the pairs are exposed
# independently, with probability q_i = 1 − e^(−rate · w_i): exactly, at the cost of one draw for each
# exposure rather than one for each pair.

# Above this share of the liked pairs nearly all draws repeat earlier ones, and nothing is left to predict.
MOST_OBSERVED = 0.95


@dataclass(frozen=True, eq=False)
class Exposure:
    """The drawn exposures, recomputable for any user: draw number n is at place n of one sequence."""

    probabilities: Floats
    """q_i: the probability that an item is shown to a user, the same for all users."""
    starts: Indices
    """User u has draws number starts[u] to starts[u + 1] − 1."""
    key: int
    accept: Floats
    """Walker's alias table: cell c gives item c with this probability …"""
    alias: NDArray[np.int32]
    """… and otherwise this one."""

    def draws(self, first_user: int, last_user: int) -> tuple[Indices, Indices]:
        """Users and items of all draws of the users from `first_user` to before `last_user`, with repeats."""
        starts = self.starts[first_user : last_user + 1]
        users = np.repeat(np.arange(first_user, last_user), np.diff(starts))
        scaled = uniforms(words_at(self.key, np.arange(starts[0], starts[-1]))) * len(self.accept)
        cells = scaled.astype(np.int64)
        # The fraction that is left over is itself uniform, and decides between the cell's two items.
        scaled -= cells
        return users, np.where(scaled < self.accept[cells], cells, self.alias[cells])


def draw_exposure(tastes: Tastes, settings: WorldSettings) -> Exposure:
    """Exposures under which `settings.n_interactions` liked pairs are seen in expectation.

    The fame of the items belongs to the world, `seed`; who is shown what belongs to `exposure_seed`.
    """
    seed, dial, n_items = settings.seed, settings.exposure, settings.n_items
    weights = _weights(tastes.appeal, dial, np.random.default_rng([seed, 2]))
    rate = _rate(tastes, weights, settings.n_interactions, np.random.default_rng([seed, 3]))
    shown = np.random.default_rng([settings.exposure_seed, 4]).poisson(rate, settings.n_users)
    accept, alias = _alias_table(weights) if dial else (np.ones(n_items), np.zeros(n_items, np.int32))
    return Exposure(
        probabilities=-np.expm1(-rate * weights),
        starts=np.concatenate(([0], np.cumsum(shown))),
        key=key_of(settings.exposure_seed, "exposure"),
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
    probabilities = expit(tastes.logits(users, items, pairs=True))
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


# -- histories -----------------------------------------------------------------------------------------------

# A user's taste moves along a line from moment −1 to 1, and with it the odds of a like:
# by e^(moment · tilt). A liked item is met at a moment drawn in proportion to these odds, so items that the
# later taste favours come late. *Whether* a pair is liked or exposed does not depend on the moment: drift
# orders the histories and changes nothing else.

_DRAWS_AT_ONCE = 1 << 16
_MOMENTS = 1 << 22
"""Moments are told apart to this fraction of a user's time."""

_SECOND_IN_MICROSECONDS = 1_000_000
_OPENING = 18_628 * 86_400 * _SECOND_IN_MICROSECONDS  # 1 January 2021
_OPEN_DAYS = 3 * 365.0


def draw_histories(
    tastes: Tastes, shown: Exposure, seed: int, advance: Callable[[int], None]
) -> tuple[Indices, IntArray, TimeArray]:
    """Each user's number of observed pairs; all items, user after user in order of time; and the times."""
    rng = np.random.default_rng([seed, 6])
    n_users = len(tastes.users)
    joined = _OPEN_DAYS * 0.8 * rng.random(n_users)
    stayed = np.minimum(200.0 * np.exp(rng.standard_normal(n_users)), _OPEN_DAYS - joined)
    key = np.uint64(key_of(seed, "moments"))
    degrees: list[Indices] = []
    items: list[IntArray] = []
    times: list[TimeArray] = []
    # All users are shown about as many items.
    at_once = max(1, _DRAWS_AT_ONCE * n_users // max(1, int(shown.starts[-1])))
    for first in range(0, n_users, at_once):
        last = min(first + at_once, n_users)
        users, codes, gaps = _history(tastes, shown, first, last, key)
        degree = np.bincount(users - first, minlength=last - first)
        # How much of the user's stay has passed at each pair: the gaps so far, of all the user's gaps.
        passed, ends = np.cumsum(gaps), np.cumsum(degree)
        before = np.concatenate(([0.0], passed))
        begin, end = before[ends - degree], before[ends]
        length = np.maximum(end - begin, 1e-12)
        shares = (passed - np.repeat(begin, degree)) / np.repeat(length, degree)
        days = joined[users] + stayed[users] * shares
        degrees.append(degree)
        items.append(codes.astype(np.int32))
        times.append(_OPENING + (days * 86_400).astype(np.int64) * _SECOND_IN_MICROSECONDS)
        advance(int(shown.starts[last] - shown.starts[first]))
    return np.concatenate(degrees), np.concatenate(items), np.concatenate(times)


def _history(
    tastes: Tastes, shown: Exposure, first: int, last: int, key: np.uint64
) -> tuple[Indices, Indices, Floats]:
    """The distinct pairs that are shown and liked, by user and moment, and the gap of time before each."""
    users, items = shown.draws(first, last)
    liked = tastes.liked(users, items, pairs=True)
    distinct = np.unique(users[liked] << 32 | items[liked])
    users, items = distinct >> 32, distinct & 0xFFFFFFFF
    words = mix(tastes.user_keys[users] ^ tastes.item_keys[items] ^ key)
    moments = _moments(tastes.tilt(users, items, pairs=True), uniforms(words))
    steps = ((moments + 1) * (0.5 * (_MOMENTS - 1))).astype(np.int64)
    order = np.lexsort((steps, users))  # stable: of the same moment by item
    # Heavy-tailed gaps, in no unit: a few evenings with many films, and weeks with none.
    gaps = (1.0 - uniforms(mix(words[order]))) ** -0.7
    return users[order], items[order], gaps


def _moments(tilt: Floats, uniform: Floats) -> Floats:
    """Moments in [−1, 1] with density ∝ e^(moment · tilt), by the inverse of the distribution function.

    F⁻¹(x) = log(e^−a + x·(e^a − e^−a)) / a, written with a ≥ 0 so that nothing overflows; a = 0 is uniform.
    """
    a: Floats = np.maximum(np.abs(tilt), 1e-9)
    moments: Floats = 1.0 + np.log(uniform - (uniform - 1.0) * np.exp(-2.0 * a)) / a
    np.clip(moments, -1.0, 1.0, out=moments)
    return np.where(tilt < 0, -moments, moments)


def density_of_moment(tilt: Floats, moment: float) -> Floats:
    """The density of `_moments` over that of no tilt: e^(moment · a) · a / sinh(a), whose mean is 1."""
    a: Floats = np.maximum(np.abs(tilt), 1e-9)
    density: Floats = 2.0 * a * np.exp(np.where(tilt < 0, -moment, moment) * a - a) / -np.expm1(-2.0 * a)
    return density

"""The negatives lens: how likely an unobserved item is a *false* negative, and what weight the loss gave it.

The unobserved items of a user are a mixture, p = ω·p⁺ + (1 − ω)·p⁻ (the paper's decomposition before Eq. 12).
By Bayes' rule an unobserved item with score s is then liked with probability ω·p⁺(s) / p(s).

- p: the scores of what is not in training.
- p⁺: the scores of held-out pairs. Training pairs would not do: the model has been pulled towards them, and
  towards no false negative.
- Scores are taken in each user's own units, z = (s − mean) / deviation over their unobserved items, so that
  one p and one p⁺ serve all users (decision 21).
- ω cannot be learnt from p and p⁺ alone, but bounded: it is at least the share that is known to be held out,
  and at most what makes the hardest negatives false for certain.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hdccf.data.split import Split
from hdccf.errors import ConfigError, DataError
from hdccf.losses.diagnostics import NegativeShares
from hdccf.models.base import Model, Scorer

Values = NDArray[np.float64]

FEWEST_POSITIVES = 10
POINTS = 20_000
"""Scores that a density is made of; more change nothing that can be seen."""
GRID = 200
TAIL = 0.001
"""The hardest thousandth of the unobserved: too few to compare densities there, so that the ratio stays."""
_SCORES = 20_000_000
"""Scores that are looked at; a large catalogue is looked at with fewer users."""
_USERS_AT_ONCE = 256


class Units(NamedTuple):
    """A user's own scale of scores."""

    mean: float
    deviation: float

    def of(self, scores: Values) -> Values:
        return (scores - self.mean) / self.deviation


@dataclass(frozen=True, eq=False)
class Lens:
    """p⁺ and p of one model on one split, and what they say of ω. Made by `estimate`."""

    positive: Values
    """Held-out pairs, in their users' units, ascending."""
    unobserved: Values
    bandwidth: float
    grid: Values
    ratio: Values
    """p⁺ / p on the grid; beyond its ends it stays as it is there."""
    omega_min: float
    """ω is no smaller: so many of the unobserved are held out, and so liked."""

    @property
    def omega_max(self) -> float:
        """ω is no larger: the ω with which the hardest are liked for certain."""
        return max(self.omega_min, min(1.0, 1.0 / float(self.ratio.max())))

    @property
    def omega_mid(self) -> float:
        """The geometric mean of both bounds: where nothing else is known of ω."""
        return math.sqrt(self.omega_min * self.omega_max)

    def probability(self, units: Values, omega: float) -> Values:
        """ω·p⁺(z) / p(z), at most 1."""
        if not 0 <= omega <= 1:
            raise ConfigError(f"omega={omega} is no probability; give a number from 0 to 1")
        return np.clip(omega * np.interp(units, self.grid, self.ratio), 0.0, 1.0)


def density(points: Values, at: Values, bandwidth: float) -> Values:
    """Of each place the mean of Gaussians around the points."""
    bells: Values = np.exp(-0.5 * np.square((at[:, None] - points[None, :]) / bandwidth)).mean(1)
    return bells / (bandwidth * math.sqrt(2 * math.pi))


def bandwidth_of(points: Values) -> float:
    """Scott's rule for a Gaussian."""
    return max(1.06 * float(points.std()) * math.pow(len(points), -0.2), 1e-3)


def units_of(unobserved: Values) -> Units:
    """A user whose items all have one score has no units but 1."""
    return Units(float(unobserved.mean()), float(unobserved.std()) or 1.0)


def estimate(scorer: Scorer, split: Split, *, seed: int = 0) -> Lens:
    """Compares the scores of held-out pairs with those of everything that is not in training.

    `scorer` must know the training part only. Of large data some users are looked at, drawn by the seed.
    """
    generator = np.random.default_rng(seed)
    held_out = np.unique(np.concatenate([split.validation.users, split.test.users])).astype(np.int64)
    most = max(FEWEST_POSITIVES, _SCORES // max(split.train.n_items, 1))
    users = np.sort(generator.choice(held_out, min(most, len(held_out)), replace=False))
    positive, unobserved, n_unobserved = _in_units(scorer, split, users, generator)
    if len(positive) < FEWEST_POSITIVES:
        raise DataError(
            f"the run holds out {len(positive)} pairs, too few to tell how the scores of liked items lie; "
            f"the lens needs {FEWEST_POSITIVES}"
        )
    omega_min = len(positive) / n_unobserved
    return compared(_some(positive, generator), _some(unobserved, generator), omega_min)


def compared(positive: Values, unobserved: Values, omega_min: float) -> Lens:
    """The ratio of both densities, with one bandwidth for both: what it blurs at the ends cancels."""
    width = bandwidth_of(positive)
    low, high = np.quantile(unobserved, [TAIL, 1 - TAIL])
    grid = np.linspace(float(low), float(high), GRID)
    below = density(unobserved, grid, width)
    ratio = density(positive, grid, width) / np.maximum(below, np.finfo(np.float64).tiny)
    return Lens(np.sort(positive), np.sort(unobserved), width, grid, ratio, omega_min)


def _in_units(
    scorer: Scorer, split: Split, users: NDArray[np.int64], generator: np.random.Generator
) -> tuple[Values, Values, int]:
    """Held-out pairs and a sample of the unobserved, in their users' units; how many unobserved there are."""
    positive, unobserved, n_unobserved = [np.zeros(0)], [np.zeros(0)], 0
    each = -(-POINTS // max(len(users), 1))
    for some in np.array_split(users, max(1, -(-len(users) // _USERS_AT_ONCE))):
        scores = scorer.score_block(torch.from_numpy(some)).double().numpy()
        for user, row in zip(some, scores, strict=True):
            left = np.ones(len(row), np.bool_)
            left[split.train.by_user.of(user)] = False
            if not left.any():
                continue
            units = units_of(row[left])
            positive.append(units.of(row[held_out_items(split, int(user))]))
            drawn = generator.choice(np.flatnonzero(left), min(each, int(left.sum())), replace=False)
            unobserved.append(units.of(row[drawn]))
            n_unobserved += int(left.sum())
    return np.concatenate(positive), np.concatenate(unobserved), max(n_unobserved, 1)


def _some(values: Values, generator: np.random.Generator) -> Values:
    return values if len(values) <= POINTS else generator.choice(values, POINTS, replace=False)


@dataclass(frozen=True, eq=False)
class UserNegatives:
    """What the lens shows of one user, by contiguous ids."""

    items: NDArray[np.int64]
    """The hardest unobserved ones, hardest first."""
    scores: Values
    probabilities: Values
    shares: Values | None
    held_out: NDArray[np.bool_]
    """Those that are in the held-out parts: false negatives for certain."""
    all_shares: NegativeShares | None
    expected: float
    """How many of the user's unobserved items are liked, by the lens."""
    grid: Values
    """Scores, for the curves."""
    curves: dict[str, Values]
    """Densities on the grid: "unobserved" and "training" of the user, "positives" of all users."""


def negatives_of(
    lens: Lens, model: Model, scorer: Scorer, split: Split, user: int, *, k: int, omega: float
) -> UserNegatives:
    """The k hardest unobserved items of a user; `scorer` is the one that `lens` was made with."""
    scores = scorer.score_block(torch.tensor([user]))[0]
    observed = torch.zeros(len(scores), dtype=torch.bool)
    had = torch.from_numpy(split.train.by_user.of(user).astype(np.int64))
    observed[had] = True
    if bool(observed.all()):
        raise DataError("every item is in the user's history, so that there are no negatives")
    values, left = scores.double().numpy(), ~observed.numpy()
    units = units_of(values[left])
    probabilities = lens.probability(units.of(values), omega)
    hardest = np.argsort(np.where(left, -values, np.inf), kind="stable")[: min(k, int(left.sum()))]
    with torch.no_grad():
        shares = model.negative_shares(scores, observed)
    grid = np.linspace(float(values.min()), float(values.max()), GRID)
    curves = {"unobserved": _curve(values[left], grid)}
    if len(had) > 1:
        curves["training"] = _curve(values[had.numpy()], grid)
    curves["positives"] = density(lens.positive, units.of(grid), lens.bandwidth) / units.deviation
    return UserNegatives(
        items=hardest,
        scores=values[hardest],
        probabilities=probabilities[hardest],
        shares=None if shares is None else shares.shares.double().numpy()[hardest],
        held_out=np.isin(hardest, held_out_items(split, user)),
        all_shares=shares,
        expected=float(probabilities[left].sum()),
        grid=grid,
        curves=curves,
    )


def held_out_items(split: Split, user: int) -> NDArray[np.int32]:
    """A user's validation and test items: the known false negatives."""
    return np.concatenate([split.validation.by_user.of(user), split.test.by_user.of(user)])


def _curve(points: Values, grid: Values) -> Values:
    return density(points[:POINTS], grid, bandwidth_of(points))

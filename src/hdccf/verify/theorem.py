"""Theorem 1 on synthetic worlds whose preferences are known: the debiased score, and the loss in the limit.

The scores are the real model's, with vectors set from the world's tastes. They depend on likes and never on
exposure: Theorem 1 takes false negatives and observed positives for draws from one distribution, and over
exposures that is so exactly if the scores do not depend on them.

The score: given the likes and how many of them were observed, a row's observed positives are a uniform draw
from what it likes, so the row's error has mean zero. Rows are independent, since pairs are exposed
independently: the interval is that of a mean of independent rows.

The loss: the negative score is unbiased, its logarithm is not. At finite size the loss is too small by about
half the score's relative variance, which falls as one over the size. So the loss less the ideal loss is
fitted by a + b / size, and the theorem is about a, the limit. Every repetition has worlds of its own, likes
included, so that their limits are independent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf.console import track
from hdccf.data.batches import Block, InBatch, SampledBatch
from hdccf.data.synthetic import World, synthetic_world
from hdccf.losses.negatives import NegativeTerm
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.rng import generator_for
from hdccf.verify.propositions import observed_matrix
from hdccf.verify.report import Curve, Finding, Floats, mean_interval

TEMPERATURE = 0.5
SIZE = 32.0
"""Q, the same for all sizes of samples, as the appendix has it."""


def known_world(n: int, seed: int, exposure_seed: int | None = None, exposure: float = 0.0) -> World:
    """n × n, a fifth of the pairs liked and a tenth observed, so that a ninth of the negatives are false.

    Tastes are mild: every item is liked by some and every user likes some, as the theorem needs positives.
    """
    return synthetic_world(
        n * n // 10,
        n_users=n,
        n_items=n,
        exposure=exposure,
        exposure_seed=exposure_seed,
        drift=0.0,
        liked=0.2,
        strength=1.0,
        seed=seed,
    )


@dataclass(frozen=True)
class Rows:
    """One side: for each user its items, or for each item its users."""

    terms: Float[Tensor, "n m"]
    """e^{f/τ} of all pairs."""
    liked: Bool[Tensor, "n m"]
    observed: Bool[Tensor, "n m"]
    omega: Float[Tensor, " n"]
    """The share of false negatives among what was not observed: the true ω⁺ of each row."""

    @cached_property
    def ideal(self) -> Float[Tensor, " n"]:
        """E[e^{f/τ}] over the row's true negatives."""
        return self._mean(~self.liked)

    @cached_property
    def biased(self) -> Float[Tensor, " n"]:
        """The same over all that was not observed, which is what a sampler sees."""
        return self._mean(~self.observed)

    @cached_property
    def debiased(self) -> Float[Tensor, " n"]:
        """What the debiased score becomes with all negatives and all positives: the ideal one plus what false
        negatives differ from observed positives."""
        taken = self.omega * self._mean(self.observed)
        return (self.biased - taken) / (1 - self.omega)

    def _mean(self, which: Bool[Tensor, "n m"]) -> Float[Tensor, " n"]:
        return (self.terms * which).sum(1) / which.sum(1).clamp_min(1)


class KnownWorld:
    """A synthetic world with the real model on it."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        tastes = world.tastes
        common = {"user_vector": "free", "similarity": "cosine", "temperature": TEMPERATURE, "user_side": 1.0}
        chosen = HDCCF.model_validate({**common, "embedding_dim": tastes.users.shape[1] + 1, **settings})
        self.model = HDCCFModel(chosen, world.interactions, generator_for(0, "verify", "overwritten"))
        # Appeal is among the scores, so that popular items are harder: otherwise β would not matter.
        users = np.column_stack([tastes.users, np.full(world.n_users, 2.0)])
        items = np.column_stack([tastes.items, tastes.appeal])
        assert self.model.users is not None  # noqa: S101 - `free` has them
        with torch.no_grad():
            self.model.users.embedding.copy_(torch.from_numpy(users))
            self.model.items.embedding.copy_(torch.from_numpy(items))
        self.model.requires_grad_(False)

    @cached_property
    def of_users(self) -> Rows:
        """For each user its items."""
        scores = self.model.user_item.all_pairs(self.model.all_users(), self.model.items.all())
        return Rows(
            (scores.double() / TEMPERATURE).exp(),
            torch.from_numpy(self.world.liked(np.arange(self.world.n_users))),
            observed_matrix(self.model.graph),
            torch.from_numpy(self.world.omega_items),
        )

    @cached_property
    def of_items(self) -> Rows:
        """For each item its users."""
        users = self.of_users
        return Rows(users.terms.T, users.liked.T, users.observed.T, torch.from_numpy(self.world.omega_users))

    def sides(
        self, batch: SampledBatch | InBatch, debiased: bool = True
    ) -> tuple[Float[Tensor, " b"], NegativeTerm, NegativeTerm]:
        """The positives' scores and both negative scores, with each row's true ω⁺ (or 0) and Q = SIZE."""
        if isinstance(batch, InBatch):
            scored = steps.score_in_batch(self.model, batch)
        else:
            scored = steps.score_sampled(self.model, batch)
        omega_items = self.of_users.omega[batch.users].float() if debiased else 0.0
        omega_users = self.of_items.omega[batch.items].float() if debiased else 0.0
        items = self.model.contrast.term(scored.items._replace(size=SIZE), scored.positive, omega_items)
        users = self.model.contrast.term(scored.users._replace(size=SIZE), scored.positive, omega_users)
        return scored.positive, items, users

    def ideal_loss(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " b"], positive: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """Eq. 13 with its logarithm, as the negatives become infinitely many, term by term and in float64."""
        term = (positive.double() / TEMPERATURE).exp()
        negatives = SIZE * (self.of_users.ideal[users] + self.of_items.ideal[items])
        return ((term + negatives) / term).log()


SCORES_PART = "Theorem 1, the negative score over the ideal one"
ITEMS, USERS = 0, 1
NAMES = ("items", "users")


class Ratios(NamedTuple):
    """Negative scores over ideal ones, one for each row that has positives: the mean over its targets."""

    measured: Floats
    expected: Floats
    """What they become with all negatives and all positives of this world."""
    clipped: float


def _ratios(
    rows: Rows, which: Int64[Tensor, " b"], each: Float[Tensor, " b"], clipped: float, debiased: bool = True
) -> Ratios:
    counts = torch.bincount(which, minlength=len(rows.omega))
    sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, which, each.double())
    expected = (rows.debiased if debiased else rows.biased) / rows.ideal
    return Ratios((sums / counts)[counts > 0].numpy(), expected[counts > 0].numpy(), clipped)


Sides = tuple[Ratios, Ratios]
"""Of negative items, and of negative users."""


def check_scores(seed: int = 0, n: int = 300, worlds: int = 4) -> Iterator[Finding]:
    """The means over rows, of `worlds` exposures of n users to n items with the same likes."""
    constant = [_drawn(n, seed, k, exposure=0.0) for k in range(worlds)]
    found = [_uniform(known, seed, k) for k, known in enumerate(constant)]
    for side in ITEMS, USERS:
        yield _mean("constant exposure, uniform sampler", found, side)
    # The test has power: the plain negative score is too large, by a known amount.
    plain = [_uniform(known, seed, k, debiased=False) for k, known in enumerate(constant)]
    for side in ITEMS, USERS:
        yield _mean("the same without debiasing (ω⁺ = 0)", plain, side, unbiased=False)
    blocks = [_block(KnownWorld(known.world, sampler="block", block_users=n), seed) for known in constant]
    for side in ITEMS, USERS:
        yield _mean("constant exposure, block of everything", blocks, side)
    famous = [_uniform(_drawn(n, seed, k, exposure=1.0), seed, k) for k in range(worlds)]
    yield _mean("exposure by popularity: the gap that remains", famous, ITEMS, unbiased=False)
    # Popularity decides between items. Among an item's users exposure is constant, which is enough.
    yield _mean("exposure by popularity", famous, USERS)


def _drawn(n: int, seed: int, number: int, exposure: float) -> KnownWorld:
    world = known_world(n, seed, exposure_seed=1000 * seed + number, exposure=exposure)
    return KnownWorld(world, sampler="uniform", batch_size=2048, negatives=128, neighbours=64)


def _mean(how: str, found: list[Sides], side: int, *, unbiased: bool = True) -> Finding:
    """The mean over rows, predicted to be 1; where it is not `unbiased`, predicted from the truth about each
    row, so that only negatives and neighbours are random."""
    measured, expected = (np.concatenate([pair[side][k] for pair in found]) for k in (0, 1))
    clipped = max(pair[side].clipped for pair in found)
    mean, interval = mean_interval(measured, None if unbiased else expected)
    detail = f"{len(measured)} rows of {len(found)} exposures"
    if unbiased:
        detail += f", τ = {TEMPERATURE}, true ω⁺ of each row; {clipped:.2%} of the rows clipped"
        # The theorem is about the score before the clamp: a clipped row would not be it.
        predicted, provided = 1.0, clipped == 0
    else:
        detail += "; the interval must leave out 1"
        predicted, provided = float(expected.mean()), not interval[0] <= 1 <= interval[1]
    claim = f"{how}, negative {NAMES[side]}"
    return Finding.estimated(SCORES_PART, claim, predicted, mean, interval, detail, provided=provided)


def _uniform(known: KnownWorld, seed: int, number: int, debiased: bool = True) -> Sides:
    """One epoch: every positive is a target once."""
    generator = generator_for(seed, "verify", "theorem", number)
    batches = [(batch, *known.sides(batch, debiased)[1:]) for batch in known.model.batches(generator)]
    found = []
    for side, truth in ((ITEMS, known.of_users), (USERS, known.of_items)):
        which = torch.cat([(batch.users, batch.items)[side] for batch, *_ in batches])
        scores = torch.cat([sides[side].log_score.double().exp() for _, *sides in batches])
        clipped = max(float(sides[side].clipped) for _, *sides in batches)
        found.append(_ratios(truth, which, scores / (SIZE * truth.ideal[which]), clipped, debiased))
    return found[ITEMS], found[USERS]


def _block(known: KnownWorld, seed: int) -> Sides:
    """All users and all items at once: only the exposure is random."""
    block: Block = next(known.model.batches(generator_for(seed, "verify", "block")))
    scored = steps.score_block(known.model, block, generator_for(seed, "verify", "anchors"))
    contrast = replace(
        known.model.contrast,
        omega_items=known.of_users.omega[block.users].float(),
        omega_users=known.of_items.omega.float(),
    )
    pairs = steps.block_pairs(block)
    _, *sides = contrast.block_terms(
        scored.scores,
        pairs,
        pairs,
        log_item_weights=scored.log_item_weights,
        log_user_weights=scored.log_user_weights,
    )
    found = []
    for side, truth, which in (
        (sides[ITEMS], known.of_users, block.users[block.rows]),
        (sides[USERS], known.of_items, block.positive_columns),
    ):
        # A block's Q is the number of negatives that it has, each counting once.
        size = (~truth.observed).sum(1)[which]
        ratios = side.log_score.double().exp() / (size * truth.ideal[which])
        found.append(_ratios(truth, which, ratios, float(side.clipped)))
    return found[ITEMS], found[USERS]


LOSS_PART = "Theorem 1, the loss less the ideal loss"
SIZES = (100, 200, 400)

UNIFORM, CORRECTED = "uniform sampler", "in-batch, β = 1"
ESTIMATORS = {
    UNIFORM: ("uniform", 1.0, 0.0),
    CORRECTED: ("in-batch", 1.0, 0.0),
    "in-batch, β = 0 (the paper)": ("in-batch", 0.0, 0.0),
    "uniform sampler, exposure by popularity": ("uniform", 1.0, 1.0),
}
"""Sampler, β and exposure of each curve."""
CONVERGENT = (UNIFORM, CORRECTED)


def check_loss(
    seed: int = 0,
    repetitions: int = 12,
    sizes: tuple[int, ...] = SIZES,
    targets: int = 3000,
    *,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    progress: bool = False,
) -> tuple[list[Finding], list[Curve]]:
    """For each estimator, the loss less the ideal loss over sizes of the world, and its limit."""
    table = {name: np.zeros((repetitions, len(sizes))) for name in estimators}
    for repetition in track(range(repetitions), "worlds of growing size", enabled=progress):
        for place, n in enumerate(sizes):
            # As many small worlds as have the users of the largest: no size is noisier for its smallness.
            shares = max(sizes) // n
            for share in range(shares):
                purpose = (seed, repetition, n, share)
                for name, gap in _gaps_of(purpose, targets // shares, estimators).items():
                    table[name][repetition, place] += gap / shares
    findings: list[Finding] = []
    curves: list[Curve] = []
    of_sizes = ", ".join(map(str, sizes))
    # Weights of the gaps in the intercept of their least-squares line over 1/size.
    to_limit: Floats = np.linalg.pinv(np.column_stack([np.ones(len(sizes)), 1 / np.array(sizes)]))[0]
    detail = f"{repetitions} repetitions of worlds of {of_sizes} users and items, τ = {TEMPERATURE}"
    for name, gaps in table.items():
        means, intervals = zip(*map(mean_interval, gaps.T), strict=True)
        curves.append(Curve(name, list(sizes), list(means), list(intervals)))
        if name == UNIFORM:
            claim = f"{name}: at {sizes[0]} × {sizes[0]} the logarithm makes it biased"
            biased = Finding.estimated(LOSS_PART, claim, 0.0, means[0], intervals[0], detail, not_equal=True)
            findings.append(biased)
        limit = mean_interval(gaps @ to_limit)
        claim, remains = f"{name}: in the limit", name not in CONVERGENT
        findings.append(Finding.estimated(LOSS_PART, claim, 0.0, *limit, detail, not_equal=remains))
    return findings, curves


def _gaps_of(purpose: tuple[int, int, int, int], targets: int, estimators: Sequence[str]) -> dict[str, float]:
    """One world of each exposure, and every estimator in it."""
    n = purpose[2]
    world_seed = int(np.random.SeedSequence(purpose).generate_state(1)[0])
    exposures = {ESTIMATORS[name][2] for name in estimators}
    worlds = {exposure: known_world(n, world_seed, exposure=exposure) for exposure in exposures}
    found = {}
    for name in estimators:
        sampler, beta, exposure = ESTIMATORS[name]
        # Samples in proportion to the world: negatives, neighbours and instances of a batch.
        known = KnownWorld(
            worlds[exposure],
            sampler=sampler,
            frequency_correction=beta,
            batch_size=n if sampler == "in-batch" else 1000,
            negatives=n // 10,
            neighbours=n // 20,
        )
        found[name] = _gap(known, generator_for(0, "verify", name, *purpose), targets)
    return found


def _gap(known: KnownWorld, generator: torch.Generator, targets: int) -> float:
    """The mean of the loss less the ideal loss over at least so many targets."""
    differences: list[Tensor] = []
    epochs = (known.model.batches(generator) for _ in count())
    for batch in chain.from_iterable(epochs):
        positive, items, users = known.sides(batch)
        loss = known.model.contrast.loss(positive, items, users).double()
        differences.append(loss - known.ideal_loss(batch.users, batch.items, positive))
        if sum(map(len, differences)) >= targets:
            break
    return float(torch.cat(differences).mean())

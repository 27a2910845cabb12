"""Theorem 1: the debiased negative score has the ideal one as its expectation, row by row.

What is random are the negatives, the neighbours and who was shown what. Given the likes and how many of them
were observed, a row's observed positives are a uniform draw from what it likes, so the row's error has mean
zero. Rows are independent, since pairs are exposed independently: the interval is that of a mean of
independent rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.batches import Block
from hdccf.models.hdccf import steps
from hdccf.rng import generator_for
from hdccf.verify.report import Finding
from hdccf.verify.statistics import Floats, mean_interval
from hdccf.verify.truth import SIZE, TEMPERATURE, Known, Rows, known_world

PART = "Theorem 1, the negative score over the ideal one"
ITEMS, USERS = 0, 1
NAMES = ("items", "users")


@dataclass(frozen=True)
class Ratios:
    """Negative scores over ideal ones, one for each row that has positives: the mean over its targets."""

    measured: Floats
    expected: Floats
    """What they become with all negatives and all positives of this world."""
    clipped: float

    @classmethod
    def of(
        cls,
        rows: Rows,
        which: Int64[Tensor, " b"],
        ratios: Float[Tensor, " b"],
        clipped: float,
        debiased: bool = True,
    ) -> "Ratios":
        counts = torch.bincount(which, minlength=len(rows.omega))
        sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, which, ratios.double())
        present = counts > 0
        expected = (rows.debiased if debiased else rows.biased) / rows.ideal
        return cls((sums / counts)[present].numpy(), expected[present].numpy(), clipped)


Sides = tuple[Ratios, Ratios]
"""Of negative items, and of negative users."""


def check_scores(seed: int = 0, n: int = 300, worlds: int = 4) -> Iterator[Finding]:
    """The means over rows, of `worlds` exposures of n users to n items who like the same."""
    constant = [_drawn(n, seed, k, exposure=0.0) for k in range(worlds)]
    found = [_uniform(known, seed, k) for k, known in enumerate(constant)]
    for side in ITEMS, USERS:
        yield _unbiased("constant exposure, uniform sampler", found, side)
    yield from _left_alone(constant, seed)
    blocks = [_block(Known(known.world, sampler="block", block_users=n), seed) for known in constant]
    for side in ITEMS, USERS:
        yield _unbiased("constant exposure, block of everything", blocks, side)
    famous = [_uniform(_drawn(n, seed, k, exposure=1.0), seed, k) for k in range(worlds)]
    yield _different("exposure by popularity: the gap that remains, negative items", famous, ITEMS)
    # Popularity decides between items. Among an item's users exposure is constant, which is enough.
    yield _unbiased("exposure by popularity", famous, USERS)


def _drawn(n: int, seed: int, number: int, exposure: float) -> Known:
    world = known_world(n, seed, exposure_seed=1000 * seed + number, exposure=exposure)
    return Known(world, sampler="uniform", batch_size=2048, negatives=128, neighbours=64)


def _unbiased(how: str, found: list[Sides], side: int) -> Finding:
    measured = np.concatenate([pair[side].measured for pair in found])
    clipped = max(pair[side].clipped for pair in found)
    mean, interval = mean_interval(measured)
    return Finding.estimated(
        PART,
        f"{how}, negative {NAMES[side]}",
        1.0,
        mean,
        interval,
        # The theorem is about the score before the clamp: a clipped row would not be it.
        provided=clipped == 0,
        detail=f"{len(measured)} rows of {len(found)} exposures, τ = {TEMPERATURE}, true ω⁺ of each row; "
        f"{clipped:.2%} of the rows clipped",
    )


def _different(claim: str, found: list[Sides], side: int) -> Finding:
    """A prediction other than 1, from the truth about each row: only negatives and neighbours are random."""
    measured = np.concatenate([pair[side].measured for pair in found])
    expected = np.concatenate([pair[side].expected for pair in found])
    mean, interval = mean_interval(measured, expected)
    return Finding.estimated(
        PART,
        claim,
        float(expected.mean()),
        mean,
        interval,
        provided=not interval[0] <= 1 <= interval[1],
        detail=f"{len(measured)} rows of {len(found)} exposures; the interval must leave out 1",
    )


def _left_alone(constant: list[Known], seed: int) -> Iterator[Finding]:
    """That a bias would be seen: the plain negative score, known to be too large, and by how much."""
    found = [_uniform(known, seed, k, debiased=False) for k, known in enumerate(constant)]
    for side in ITEMS, USERS:
        yield _different(f"the same without debiasing (ω⁺ = 0), negative {NAMES[side]}", found, side)


def _uniform(known: Known, seed: int, number: int, debiased: bool = True) -> Sides:
    """One epoch: every positive is a target once."""
    generator = generator_for(seed, "verify", "theorem", number)
    batches = [(batch, *known.sides(batch, debiased)[1:]) for batch in known.model.batches(generator)]
    found = []
    for side, truth in ((ITEMS, known.of_users), (USERS, known.of_items)):
        which = torch.cat([(batch.users, batch.items)[side] for batch, *_ in batches])
        scores = torch.cat([sides[side].log_score.double().exp() for _, *sides in batches])
        clipped = max(float(sides[side].clipped) for _, *sides in batches)
        found.append(Ratios.of(truth, which, scores / (SIZE * truth.ideal[which]), clipped, debiased))
    return found[ITEMS], found[USERS]


def _block(known: Known, seed: int) -> Sides:
    """All users and all items at once: what is left of chance is who was shown what."""
    block: Block = next(known.model.batches(generator_for(seed, "verify", "block")))
    scored = steps.score_block(known.model, block, generator_for(seed, "verify", "anchors"))
    contrast = replace(
        known.contrast,
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
        found.append(Ratios.of(truth, which, ratios, float(side.clipped)))
    return found[ITEMS], found[USERS]

"""Theorem 1, the loss: how far it is from the ideal one as the world, its negatives and its positives grow.

The negative score is unbiased, its logarithm is not: at finite size the loss is too small by about half the
score's relative variance, which falls as one over the size. So the loss less the ideal loss is fitted by
a + b / size, and the theorem is about a, the limit. Every repetition has worlds of its own, likes included,
so that their limits are independent.
"""

from collections.abc import Sequence

import numpy as np
import torch

from hdccf.console import track
from hdccf.data.batches import InBatch, SampledBatch
from hdccf.data.synthetic import World
from hdccf.rng import generator_for
from hdccf.verify.report import Curve, Finding
from hdccf.verify.statistics import Floats, mean_interval
from hdccf.verify.truth import TEMPERATURE, Known, known_world

PART = "Theorem 1, the loss less the ideal loss"
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


def gaps(
    seed: int,
    repetitions: int,
    sizes: tuple[int, ...],
    targets: int,
    estimators: Sequence[str],
    *,
    progress: bool = False,
) -> dict[str, Floats]:
    """For each estimator, repetitions × sizes: the mean over targets of the loss less the ideal loss."""
    table = {name: np.zeros((repetitions, len(sizes))) for name in estimators}
    for repetition in track(range(repetitions), "worlds of growing size", enabled=progress):
        for place, n in enumerate(sizes):
            # As many small worlds as have the users of the largest: no size is noisier for its smallness.
            shares = max(sizes) // n
            for share in range(shares):
                purpose = (seed, repetition, n, share)
                for name, gap in _gaps_of(purpose, targets // shares, estimators).items():
                    table[name][repetition, place] += gap / shares
    return table


def check_loss(
    seed: int = 0,
    repetitions: int = 12,
    sizes: tuple[int, ...] = SIZES,
    targets: int = 3000,
    *,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    progress: bool = False,
) -> tuple[list[Finding], list[Curve]]:
    findings, curves = [], []
    of_sizes = ", ".join(map(str, sizes))
    detail = f"{repetitions} repetitions of worlds of {of_sizes} users and items, τ = {TEMPERATURE}"
    table = gaps(seed, repetitions, sizes, targets, estimators, progress=progress)
    for name, found in table.items():
        each = [mean_interval(column) for column in found.T]
        curves.append(
            Curve(name, list(sizes), [mean for mean, _ in each], [interval for _, interval in each])
        )
        if name == UNIFORM:
            claim = f"{name}: at {sizes[0]} × {sizes[0]} the logarithm makes it biased"
            findings.append(Finding.estimated(PART, claim, 0.0, *each[0], not_equal=True, detail=detail))
        limit = mean_interval(found @ _to_limit(sizes))
        claim = f"{name}: in the limit"
        remains = name not in CONVERGENT
        findings.append(Finding.estimated(PART, claim, 0.0, *limit, not_equal=remains, detail=detail))
    return findings, curves


def _to_limit(sizes: tuple[int, ...]) -> Floats:
    """Weights of the gaps in the intercept of their least-squares line over 1/size."""
    design = np.column_stack([np.ones(len(sizes)), 1 / np.array(sizes)])
    weights: Floats = np.linalg.pinv(design)[0]
    return weights


def _gaps_of(purpose: tuple[int, int, int, int], targets: int, estimators: Sequence[str]) -> dict[str, float]:
    """One world of each exposure, and every estimator in it."""
    n = purpose[2]
    world_seed = int(np.random.SeedSequence(purpose).generate_state(1)[0])
    exposures = {ESTIMATORS[name][2] for name in estimators}
    worlds = {exposure: known_world(n, world_seed, exposure=exposure) for exposure in exposures}
    found = {}
    for name in estimators:
        sampler, beta, exposure = ESTIMATORS[name]
        known = _at_size(worlds[exposure], n, sampler, beta)
        found[name] = _gap(known, generator_for(0, "verify", name, *purpose), targets)
    return found


def _at_size(world: World, n: int, sampler: str, beta: float) -> Known:
    """Samples in proportion to the world: negatives, neighbours and instances of a batch."""
    return Known(
        world,
        sampler=sampler,
        frequency_correction=beta,
        batch_size=n if sampler == "in-batch" else 1000,
        negatives=n // 10,
        neighbours=n // 20,
    )


def _gap(known: Known, generator: torch.Generator, targets: int) -> float:
    differences: list[torch.Tensor] = []
    while sum(map(len, differences)) < targets:
        for batch in known.model.batches(generator):
            differences.append(_difference(known, batch))
            if sum(map(len, differences)) >= targets:
                break
    return float(torch.cat(differences).mean())


def _difference(known: Known, batch: SampledBatch | InBatch) -> torch.Tensor:
    positive, items, users = known.sides(batch)
    loss = known.contrast.loss(positive, items, users).double()
    return loss - known.ideal_loss(batch.users, batch.items, positive)

"""Eq. 16, the lower bound of the negative score: as printed, and with the sign corrected."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from hdccf.losses.negatives import NegativeSet, NegativeTerm
from hdccf.rng import generator_for
from hdccf.similarity import Cosine, Vectors
from hdccf.verify.gradients import contrastive_loss
from hdccf.verify.report import Finding

PART = "Eq. 16, the lower bound"
SETTINGS = ((0.5, 0.05), (0.2, 0.05), (0.1, 0.01))
"""τ and ω⁺: from where no row is clipped to where almost all are."""
POSITIVE = 0.7
ROWS, NEGATIVES, NEIGHBOURS, DIMENSIONS = 1000, 256, 4, 28


def check_bound(seed: int = 0) -> Iterator[Finding]:
    similarity = Cosine()
    cosines = _cosines(similarity, seed)
    detail = (
        f"{ROWS} unit vectors against {NEGATIVES} others in {DIMENSIONS} dimensions, positives at {POSITIVE}"
    )
    exact = partial(Finding.exact, PART)
    yield _attained(similarity)
    lowest = []
    for tau, omega in SETTINGS:
        side, idle = _clamped(cosines, tau, omega, similarity.lowest)
        lowest.append(float((side.log_score - math.log(NEGATIVES) + 1 / tau).min()))
        share = _literal_share(cosines, tau, omega)
        rows = f"e^(−1/τ), τ = {tau}, ω⁺ = {omega}: share of rows"
        literal = f"{detail}; predicted row by row from Eq. 15"
        yield exact(f"{rows} clipped", share, float(side.clipped), detail=literal)
        yield exact(f"{rows} whose negatives get no gradient", share, idle, detail=detail)
    claim = "e^(−1/τ): log of the smallest clamped score over the bound"
    yield exact(claim, 0.0, min(lowest), detail=detail)
    printed = [_clamped(cosines, tau, omega, -similarity.lowest) for tau, omega in SETTINGS]
    claim = "e^(+1/τ), as printed: share of rows clipped, and so without gradient"
    smallest = min(min(float(side.clipped), idle) for side, idle in printed)
    yield exact(claim, 1.0, smallest, detail=f"{detail}, the smallest over all τ and ω⁺ above")


def _cosines(similarity: Cosine, seed: int) -> Float[Tensor, "r c"]:
    generator = generator_for(seed, "verify", "bound")

    def vectors(n: int) -> Vectors:
        drawn = torch.randn(n, DIMENSIONS, generator=generator, dtype=torch.float64)
        return Vectors(drawn, drawn)

    return similarity.all_pairs(vectors(ROWS), vectors(NEGATIVES))


def _attained(similarity: Cosine) -> Finding:
    """No bound could be higher: with every negative opposite to its row, the score is the bound."""
    tau = 0.2
    one = torch.ones(1, 1, dtype=torch.float64)
    opposite = similarity.all_pairs(Vectors(one, one), Vectors(-one, -one)).repeat(1, NEGATIVES)
    side = contrastive_loss(tau, 0.0, similarity.lowest).term(_against(opposite), opposite[:, 0], 0.0)
    claim = "log of the score of negatives that are all at f = −1, over the bound"
    gap = float(side.log_score) - (math.log(NEGATIVES) - 1 / tau)
    return Finding.exact(PART, claim, 0.0, gap, detail=f"{NEGATIVES} negatives, τ = {tau}")


def _clamped(
    cosines: Float[Tensor, "r c"], tau: float, omega: float, lowest: float
) -> tuple[NegativeTerm, float]:
    """The debiased scores, and the share of rows through which no gradient reaches the negatives."""
    scores = cosines.clone().requires_grad_()
    side = contrastive_loss(tau, 0.0, lowest).term(
        _against(scores), scores.new_full((len(scores),), POSITIVE), omega
    )
    (gradient,) = torch.autograd.grad(side.log_score.sum(), scores)
    return NegativeTerm(side.log_score.detach(), side.clipped), float((gradient == 0).all(1).double().mean())


def _literal_share(cosines: Float[Tensor, "r c"], tau: float, omega: float) -> float:
    """Eq. 15 for each row, before the clamp, against the smallest value that e^{f/τ} can take."""
    clipped = 0
    for row in cosines.tolist():
        negatives = sum(math.exp(score / tau) for score in row)
        debiased = (negatives - len(row) * omega * math.exp(POSITIVE / tau)) / (1 - omega)
        clipped += debiased <= len(row) * math.exp(-1 / tau)
    return clipped / len(cosines)


def _against(scores: Float[Tensor, "r c"]) -> NegativeSet:
    neighbours = scores.new_full((len(scores), NEIGHBOURS), POSITIVE)
    everything = torch.ones_like(neighbours, dtype=torch.bool)
    return NegativeSet(scores, torch.zeros_like(scores), float(scores.shape[1]), neighbours, everything)

"""Eq. 4, the gradient of the loss in each score (for Eq. 1 and Eq. 14), and Eq. 16, the lower bound."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.batches import InBatch, NegativeColumns
from hdccf.data.graph import Graph, Neighbours
from hdccf.data.samplers import InBatchSampler, UniformSampler
from hdccf.data.synthetic import synthetic_world
from hdccf.losses.negatives import ContrastiveLoss, NegativeSet, NegativeTerm
from hdccf.models.hdccf import steps
from hdccf.rng import generator_for
from hdccf.similarity import Cosine, Vectors
from hdccf.verify.report import ROUNDING, Finding

_OMEGA = 0.02
_BETA = 0.7


@dataclass(frozen=True)
class Scores:
    """Scores of a batch, as leaves of the gradient."""

    positive: Tensor
    items: NegativeSet
    users: NegativeSet

    def leaves(self) -> list[Tensor]:
        sides = (self.items, self.users)
        return [self.positive, *(side.scores for side in sides), *(side.neighbours for side in sides)]


def check_gradients(seed: int = 0) -> Iterator[Finding]:
    """Gradients of both losses on batches of the real samplers."""
    world = synthetic_world(240, n_users=40, n_items=30, liked=0.4, seed=seed)
    graph = Graph.of(world.interactions)
    yield from _plain(graph, seed)
    yield from _debiased(graph, seed)


# -- Eq. 1 ---------------------------------------------------------------------------------------------------


def _plain(graph: Graph, seed: int) -> Iterator[Finding]:
    generator = generator_for(seed, "verify", "gradients")
    sampler = UniformSampler(graph, torch.ones(graph.n_pairs), batch_size=64, negatives=20, neighbours=3)
    batch = next(sampler.epoch(generator))
    tau = 0.2

    def term(negatives: Int64[Tensor, "b s"], neighbours: Int64[Tensor, "b p"]) -> NegativeSet:
        scores = _random(negatives.shape, generator)
        ones = torch.ones_like(neighbours, dtype=torch.bool)
        return NegativeSet(scores, torch.zeros_like(scores), None, _random(neighbours.shape, generator), ones)

    scores = Scores(
        _random(batch.users.shape, generator),
        term(batch.negative_items, batch.neighbour_items),
        term(batch.negative_users, batch.neighbour_users),
    )
    _, loss = _loss(contrastive_loss(tau, 0.0), scores)
    positive, items, users = torch.autograd.grad(loss.sum(), scores.leaves()[:3])
    negatives = torch.cat([scores.items.scores, scores.users.scores], 1).detach()
    gradients = torch.cat([items, users], 1)
    terms = (negatives / tau).exp()
    total = terms.sum(1, keepdim=True) + (scores.positive.detach()[:, None] / tau).exp()
    each = gradients.shape[1]
    detail = f"{len(positive)} instances of the uniform sampler with {each} negatives each, τ = {tau}"
    exact = partial(Finding.exact, "Eq. 4, gradients of Eq. 1", detail=detail)
    # Of log gradient on score, between each row's easiest and hardest negative.
    easy, hard = negatives.argmin(1, keepdim=True), negatives.argmax(1, keepdim=True)
    rise = gradients.gather(1, hard).log() - gradients.gather(1, easy).log()
    slope = _farthest(rise / (negatives.gather(1, hard) - negatives.gather(1, easy)), 1 / tau)
    claim = "log of a negative's gradient grows with f by 1/τ (∝ e^{f/τ})"
    yield exact(claim, 1 / tau, slope, tolerance=ROUNDING / tau)
    share = _farthest(gradients * tau * total / terms, 1.0)
    yield exact("τ × a negative's gradient, over P(u′,i′) of Eq. 3", 1.0, share)
    balance = _farthest(positive / gradients.sum(1), -1.0)
    yield exact("the positive's gradient, over the sum of its negatives'", -1.0, balance)


# -- Eq. 14 --------------------------------------------------------------------------------------------------


def _debiased(graph: Graph, seed: int) -> Iterator[Finding]:
    generator = generator_for(seed, "verify", "debiased gradients")
    sampler = InBatchSampler(graph, torch.ones(graph.n_pairs), batch_size=32, neighbours=3)
    batch = next(sampler.epoch(generator))
    tau = 0.5

    def term(
        negatives: NegativeColumns, target: Int64[Tensor, " b"], frequency: Int64[Tensor, " n"]
    ) -> NegativeSet:
        scores = _random((len(target), len(negatives.columns)), generator)
        log_frequency = losses.log_frequency_weights(frequency[negatives.columns].double(), _BETA)
        log_weights = steps.in_batch_log_weights(negatives, log_frequency, mask_observed=True)
        # Separate from the columns' scores, so that a neighbour has its own gradient.
        neighbours = _random(negatives.own.shape, generator)
        size = float(negatives.own.shape[1] * (len(target) - 1))
        other = negatives.columns[negatives.own] != target[:, None]
        return NegativeSet(scores, log_weights, size, neighbours, other)

    scores = Scores(
        _random(batch.users.shape, generator),
        term(batch.item_negatives, batch.items, graph.users_of.degrees),
        term(batch.user_negatives, batch.users, graph.items_of.degrees),
    )
    sides, loss = _loss(contrastive_loss(tau, _OMEGA), scores)
    gradients = torch.autograd.grad(loss.sum(), scores.leaves())
    clipped = max(float(side.clipped) for side in sides)
    rows = [gradient.reshape(len(loss), -1) for gradient in gradients]
    sizes = torch.cat(rows, 1).abs().sum(1)
    detail = (
        f"{len(loss)} instances of the in-batch sampler, P = 3, τ = {tau}, ω⁺ = {_OMEGA}, β = {_BETA}; "
        f"{clipped:.0%} of the rows clipped"
    )
    exact = partial(Finding.exact, "Eq. 4, gradients of Eq. 14", detail=detail)
    # A clipped row sums to zero trivially: then the claim has not been tested.
    total = math.nan if clipped else _farthest(torch.cat(rows, 1).sum(1) / sizes, 0.0)
    yield exact("all gradients of an unclipped row, their sum over the sum of their sizes", 0.0, total)
    expected = _literal_gradients(graph, batch, scores, tau)
    errors = [
        ((gradient - literal.reshape(gradient.shape)).abs() / sizes[:, None]).max()
        for gradient, literal in zip(rows, expected, strict=True)
    ]
    claim = "each gradient is π₀ or −π₁ of Eq. 25 × e^{f/τ} over τ × the denominator: largest error"
    yield exact(claim, 0.0, float(torch.stack(errors).max()))


def _literal_gradients(graph: Graph, batch: InBatch, scores: Scores, tau: float) -> list[Tensor]:
    """Eq. 14, 15 and 25 with loops over the multi-sets of Eq. 9: gradients in the order of `leaves`."""
    positive = torch.zeros_like(scores.positive)
    of_scores = [torch.zeros_like(scores.items.scores), torch.zeros_like(scores.users.scores)]
    of_neighbours = [torch.zeros_like(scores.items.neighbours), torch.zeros_like(scores.users.neighbours)]
    sides = (
        (batch.item_negatives, scores.items, batch.users, batch.items, graph.items_of, graph.users_of),
        (batch.user_negatives, scores.users, batch.items, batch.users, graph.users_of, graph.items_of),
    )
    for k, target_score in enumerate(scores.positive.tolist()):
        target_term = math.exp(target_score / tau)
        terms = [_literal_side(k, *side, target_term=target_term, tau=tau) for side in sides]
        negative_score = sum(sum(minus) - sum(plus) - own for minus, plus, own in terms)
        scale = 1 / (tau * (negative_score + target_term))
        for place, (minus, plus, _) in enumerate(terms):
            of_scores[place][k] = scale * torch.tensor(minus, dtype=torch.float64)
            of_neighbours[place][k] = -scale * torch.tensor(plus, dtype=torch.float64)
        positive[k] = -scale * (negative_score + sum(own for _, _, own in terms))
    return [positive, *of_scores, *of_neighbours]


def _literal_side(
    k: int,
    negatives: NegativeColumns,
    against: NegativeSet,
    anchors: Tensor,
    targets: Tensor,
    observed: Neighbours,
    occurrences: Neighbours,
    *,
    target_term: float,
    tau: float,
) -> tuple[list[float], list[float], float]:
    """π₀·e^{f/τ} of each column, π₁·e^{f/τ} of each neighbour, and of the target."""
    columns, target = negatives.columns.tolist(), int(targets[k])
    drawn = negatives.columns[negatives.own].tolist()
    multiset = [column for m, row in enumerate(drawn) if m != k for column in row]
    start, end = observed.starts[anchors[k]], observed.starts[anchors[k] + 1]
    known = set(observed.flat[start:end].tolist())
    kept = [column for column in multiset if column not in known]
    frequency = {column: int(occurrences.degrees[column]) for column in columns}
    normaliser = sum(frequency[column] ** -_BETA for column in kept)
    size = len(multiset)
    terms = [math.exp(score / tau) for score in against.scores[k].tolist()]
    minus = [
        size * kept.count(column) * frequency[column] ** -_BETA / normaliser / (1 - _OMEGA) * term
        if kept
        else 0.0
        for column, term in zip(columns, terms, strict=True)
    ]
    others = [column != target for column in drawn[k]]
    weight = size * _OMEGA / ((1 - _OMEGA) * (1 + sum(others))) if kept else 0.0
    plus = [
        weight * math.exp(score / tau) if other else 0.0
        for score, other in zip(against.neighbours[k].tolist(), others, strict=True)
    ]
    return minus, plus, weight * target_term


# -- shared --------------------------------------------------------------------------------------------------


def contrastive_loss(tau: float, omega: float, lowest: float = -1.0) -> ContrastiveLoss:
    """Eq. 14 with both sides weighted equally."""
    return ContrastiveLoss(
        temperature=tau, item_weight=1.0, user_weight=1.0, omega_items=omega, omega_users=omega, lowest=lowest
    )


def _loss(
    losses_of: ContrastiveLoss, scores: Scores
) -> tuple[tuple[NegativeTerm, NegativeTerm], Float[Tensor, " b"]]:
    items = losses_of.term(scores.items, scores.positive, losses_of.omega_items)
    users = losses_of.term(scores.users, scores.positive, losses_of.omega_users)
    return (items, users), losses_of.loss(scores.positive, items, users)


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Scores from −1 to 1."""
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).requires_grad_()


def _farthest(values: Tensor, expected: float) -> float:
    """The value that is farthest from what is expected; not a number where any is."""
    if bool(values.isnan().any()):
        return math.nan
    return float(values.flatten()[(values - expected).abs().argmax()])


# -- Eq. 16 --------------------------------------------------------------------------------------------------

BOUND_PART = "Eq. 16, the lower bound"
SETTINGS = ((0.5, 0.05), (0.2, 0.05), (0.1, 0.01))
"""τ and ω⁺: from where no row is clipped to where almost all are."""
POSITIVE = 0.7
ROWS, NEGATIVES, NEIGHBOURS, DIMENSIONS = 1000, 256, 4, 28


def check_bound(seed: int = 0) -> Iterator[Finding]:
    """The bound as printed, and with the sign corrected, on random unit vectors."""
    similarity, generator = Cosine(), generator_for(seed, "verify", "bound")
    drawn = [torch.randn(n, DIMENSIONS, generator=generator, dtype=torch.float64) for n in (ROWS, NEGATIVES)]
    cosines = similarity.all_pairs(*(Vectors(each, each) for each in drawn))
    detail = (
        f"{ROWS} unit vectors against {NEGATIVES} others in {DIMENSIONS} dimensions, positives at {POSITIVE}"
    )
    exact = partial(Finding.exact, BOUND_PART)
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


def _attained(similarity: Cosine) -> Finding:
    """No bound could be higher: with every negative opposite to its row, the score is the bound."""
    tau = 0.2
    one = torch.ones(1, 1, dtype=torch.float64)
    opposite = similarity.all_pairs(Vectors(one, one), Vectors(-one, -one)).repeat(1, NEGATIVES)
    side = contrastive_loss(tau, 0.0, similarity.lowest).term(_against(opposite), opposite[:, 0], 0.0)
    claim = "log of the score of negatives that are all at f = −1, over the bound"
    gap = float(side.log_score) - (math.log(NEGATIVES) - 1 / tau)
    return Finding.exact(BOUND_PART, claim, 0.0, gap, detail=f"{NEGATIVES} negatives, τ = {tau}")


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

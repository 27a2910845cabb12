"""Fold-in: vectors of new users or items, found with the trained loss while the other side stays fixed.

A row's loss depends on its own vector alone, so a batch of rows is as many separate problems, and each takes
its own steps of Adam: no row's result depends on the others. ALS and ENMF have a closed form.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import draw_columns
from hdccf.losses.block import log_block_scores
from hdccf.losses.pairs import PAIR_LOSSES, PairLoss
from hdccf.models.base import VectorScorer
from hdccf.similarity import SHORTEST, Cosine, Dot, Similarity, Vectors, unit

STEPS = 20
"""Steps of Adam; more of them rank no better (decision 20)."""
STEP_SIZE = 0.2
"""The first step, in typical entries of a vector; it falls to nothing along a cosine."""
COLUMNS = 4096
"""Up to this many nodes of the other side all are compared with, beyond it the positives and a draw."""
_MEAN_DECAY, _SQUARE_DECAY = 0.9, 0.999
_ROWS_AT_ONCE = 64
_ROWS_AT_ONCE_BY_PAIR = 8

Gradient = Callable[[list[Tensor]], Sequence[Tensor]]
"""Gradients at the free tensors: the vectors, and the factors where they are others."""


@dataclass(frozen=True)
class Frozen:
    """What stays: the similarity, and both sides' trained vectors."""

    similarity: Similarity
    opposite: Vectors
    """The side that new rows are compared with."""
    own: Vectors
    """The trained vectors of the rows' own side, which say how long a vector usually is."""
    opposite_is_right: bool
    """Whether the new rows are users, so that the other side is on the right of f(u, i)."""

    @classmethod
    def of(cls, scorer: VectorScorer, of_users: bool) -> "Frozen":
        sides = (scorer.items, scorer.users) if of_users else (scorer.users, scorer.items)
        return cls(scorer.similarity, *sides, opposite_is_right=of_users)

    def scores(self, rows: Vectors, columns: Vectors) -> Float[Tensor, "b c"]:
        if self.opposite_is_right:
            return self.similarity.all_pairs(rows, columns)
        return self.similarity.all_pairs(columns, rows).T


class ScoredRows(NamedTuple):
    """Rows against columns of the other side, and which of the pairs are observed."""

    scores: Float[Tensor, "b c"]
    rows: Int64[Tensor, " n"]
    places: Int64[Tensor, " n"]
    log_inclusion: Float[Tensor, " c"]
    """log of how many nodes each column stands for."""
    columns: Int64[Tensor, " c"]

    @property
    def positive(self) -> Float[Tensor, " n"]:
        return self.scores[self.rows, self.places]


@runtime_checkable
class RowLoss(Protocol):
    """The loss of each observed pair, and how much a row's squared length costs."""

    @property
    def by_pair(self) -> bool:
        """Whether every pair holds its own row of negatives, so that fewer rows fit."""
        ...

    @property
    def l2(self) -> float: ...

    def __call__(self, scored: ScoredRows) -> Float[Tensor, " n"]: ...


@dataclass(frozen=True)
class ContrastiveRows:
    """Eq. 14 for new rows: a row's negatives are the other side's nodes that it is not paired with.

    The sum over negatives of the row's own side is left out, and with it the terms in which the row is
    another row's negative: a new user changes nothing for others.
    """

    log_weights: Float[Tensor, " nodes"]
    temperature: float
    weight: float
    omega: float
    lowest: float
    size: float | None
    """Q of sampled negatives; None where the weights are the sum itself, as in blocks."""
    masked: bool
    by_pair: bool = False
    l2: float = 0.0

    def __call__(self, scored: ScoredRows) -> Float[Tensor, " n"]:
        scores, rows, places, log_inclusion, columns = scored
        log_weights = self.log_weights[columns] + log_inclusion
        masked = (rows, places) if self.masked else (rows[:0], places[:0])
        log_negatives, _ = log_block_scores(
            scores,
            masked,
            temperature=self.temperature,
            log_column_weights=log_weights,
            row_size=self.size,
        )
        positive = scored.positive
        if self.omega:
            mean = losses.log_mean_exp_by_group(positive, rows, len(scores), temperature=self.temperature)
            log_negatives, _ = losses.debias(
                log_negatives,
                mean,
                size=self._sizes(log_weights, masked, len(scores)),
                omega=self.omega,
                lowest=self.lowest,
                temperature=self.temperature,
            )
        return losses.contrastive_loss(
            positive, log_negatives[rows], None, temperature=self.temperature, item_weight=self.weight
        )

    def gradient(
        self,
        similarity: Similarity,
        opposite: Float[Tensor, "c d"],
        blank: ScoredRows,
        shares: Float[Tensor, " n"],
    ) -> "Gradient | None":
        """The gradient of Σ share · loss written out, where that is short; `blank` may have any scores."""
        if self.omega or self.l2 or not isinstance(similarity, Dot | Cosine):
            return None
        normalise = isinstance(similarity, Cosine)
        log_weights = (self.log_weights[blank.columns] + blank.log_inclusion).repeat(len(blank.scores), 1)
        if self.masked:
            log_weights[blank.rows, blank.places] = -torch.inf
        if self.size is not None:
            total = torch.logsumexp(log_weights, dim=1, keepdim=True)
            log_weights += math.log(self.size) - total.masked_fill(total.isinf(), 0.0)
        written = SoftmaxGradient(
            columns=(unit(opposite) if normalise else opposite) / self.temperature,
            log_weights=log_weights + math.log(self.weight),
            rows=blank.rows,
            places=blank.places,
            shares=shares,
            normalise=normalise,
        )
        return lambda free: [written(free[0])]

    def _sizes(
        self,
        log_weights: Float[Tensor, " c"],
        masked: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]],
        n_rows: int,
    ) -> Float[Tensor, " b"] | float:
        if self.size is not None:
            return self.size
        weights = log_weights.double().exp()
        taken = weights.new_zeros(n_rows).index_add_(0, masked[0], weights[masked[1]])
        left = (weights.sum() - taken).clamp_min(torch.finfo(torch.float32).tiny)
        return left.to(log_weights.dtype)


@dataclass(frozen=True)
class PairRows:
    """The loss of a model over pairs, against every column at once, each as much as it would be drawn."""

    loss: PairLoss
    negatives: int
    log_chances: Float[Tensor, " nodes"] | None
    """log of how many times likelier than uniformly each node is drawn; None where all are alike."""
    l2: float
    by_pair: bool = True

    @classmethod
    def named(cls, loss: str) -> "PairRows":
        """As HDCCF's ablations have it: one uniform negative a positive."""
        return cls(PAIR_LOSSES[loss], 1, None, 0.0)

    def __call__(self, scored: ScoredRows) -> Float[Tensor, " n"]:
        log_weights = scored.log_inclusion
        if self.log_chances is not None:
            log_weights = log_weights + self.log_chances[scored.columns]
        each = log_weights.repeat(len(scored.scores), 1)
        each[scored.rows, scored.places] = -torch.inf
        # As many negatives as are drawn in training, spread over all of them.
        total = torch.logsumexp(each, dim=1, keepdim=True)
        each = each - total.masked_fill(total.isinf(), 0.0) + math.log(self.negatives)
        return self.loss(scored.positive, scored.scores[scored.rows], each[scored.rows])


@dataclass(frozen=True)
class SoftmaxGradient:
    """d/dx of Σ_n share_n · log(1 + F_r e^{−s_n/τ}), F_r = Σ_c w_rc e^{s_rc/τ}, where s is x·q or the cosine.

    n runs over observed pairs (r, c): the contrastive loss of Eq. 14 without debiasing, over one side.
    """

    columns: Float[Tensor, "c d"]
    """q / τ."""
    log_weights: Float[Tensor, "b c"]
    """log w, with −inf where a pair is masked; a constant of the row as much as of the column."""
    rows: Int64[Tensor, " n"]
    places: Int64[Tensor, " n"]
    shares: Float[Tensor, " n"]
    normalise: bool
    """Whether x is compared by its direction alone; the columns are then already of unit length."""

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        if self.normalise:
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(SHORTEST)
            x = x / lengths
        scores = x @ self.columns.T
        positive = scores[self.rows, self.places]
        logits = scores.add_(self.log_weights)
        # A row without any negative has F = 0: finite here, so that −inf − −inf does not come about.
        log_sums = torch.logsumexp(logits, dim=1).clamp_min_(-1e30)
        pull = (log_sums[self.rows] - positive).sigmoid_().mul_(self.shares)
        push = torch.zeros_like(log_sums).index_add_(0, self.rows, pull)
        gradient = logits.sub_(log_sums.unsqueeze(1)).exp_().mul_(push.unsqueeze(1))
        gradient[self.rows, self.places] -= pull
        of_x = gradient @ self.columns
        if not self.normalise:
            return of_x
        along = (of_x * x).sum(1, keepdim=True)
        return torch.addcmul(of_x, x, along, value=-1).div_(lengths)


def solve(frozen: Frozen, loss: RowLoss, events: Interactions, weights: Float[Tensor, " pairs"]) -> Vectors:
    """A vector for each row of `events`; zero where it has no pair."""
    neighbours = Neighbours.of(events.by_user, events.n_items)
    embedding = torch.zeros(events.n_users, frozen.opposite.embedding.shape[1])
    shared = frozen.own.factors is frozen.own.embedding
    factors = embedding if shared else torch.zeros_like(embedding)
    active = neighbours.degrees.nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(0)
    for rows in torch.split(active, _ROWS_AT_ONCE_BY_PAIR if loss.by_pair else _ROWS_AT_ONCE):
        solved = _solve_some(frozen, loss, neighbours, rows, weights, generator)
        embedding[rows] = solved.embedding
        if not shared:
            factors[rows] = solved.factors
    return Vectors(embedding, factors)


def _solve_some(
    frozen: Frozen,
    loss: RowLoss,
    neighbours: Neighbours,
    nodes: Int64[Tensor, " b"],
    weights: Float[Tensor, " pairs"],
    generator: torch.Generator,
) -> Vectors:
    n_columns = neighbours.n_columns
    _, observed, _ = neighbours.within(nodes, None)
    columns, log_inclusion = torch.arange(n_columns), torch.zeros(n_columns)
    if n_columns > COLUMNS:
        columns, inclusion = draw_columns(observed, n_columns, COLUMNS, generator)
        log_inclusion = inclusion.log()
    rows, places, entries = neighbours.within(nodes, columns)
    opposite = Vectors(*(side[columns].detach() for side in frozen.opposite))
    counted = weights[entries]
    # A mean over each row's pairs: how many there are changes how far the penalty pulls, and nothing else.
    shares = counted / counted.new_zeros(len(nodes)).index_add_(0, rows, counted)[rows].clamp_min(1e-30)

    def total(mine: Vectors) -> Float[Tensor, ""]:
        each = loss(ScoredRows(frozen.scores(mine, opposite), rows, places, log_inclusion, columns))
        penalty = loss.l2 * mine.embedding.square().sum() if loss.l2 else 0.0
        return (each * shares).sum() + penalty

    def start(of_opposite: Float[Tensor, "c d"], of_own: Float[Tensor, "n d"]) -> Float[Tensor, "b d"]:
        """Towards the mean of what the row is paired with, as long as vectors of its side usually are."""
        mean = of_opposite.new_zeros(len(nodes), of_opposite.shape[1])
        mean.index_add_(0, rows, unit(of_opposite)[places] * shares.unsqueeze(1))
        return unit(mean) * _usual_length(of_own)

    first = start(opposite.embedding, frozen.own.embedding)
    second = first
    if frozen.own.factors is not frozen.own.embedding:
        second = start(opposite.factors, frozen.own.factors)
    written_out = None
    if first is second and isinstance(loss, ContrastiveRows):
        blank = ScoredRows(torch.zeros(len(nodes), len(columns)), rows, places, log_inclusion, columns)
        written_out = loss.gradient(frozen.similarity, opposite.embedding, blank, shares)
    return _descend(Vectors(first, second), by_autograd(total) if written_out is None else written_out)


def _usual_length(vectors: Float[Tensor, "n d"]) -> float:
    lengths: Tensor = torch.linalg.vector_norm(vectors.detach(), dim=1)
    return float(lengths.mean().clamp_min(1e-12)) if len(lengths) else 1.0


def by_autograd(total: Callable[[Vectors], Float[Tensor, ""]]) -> Gradient:
    """Recorded and differentiated: right for every loss and similarity."""

    def gradient(free: list[Tensor]) -> Sequence[Tensor]:
        with torch.enable_grad():
            followed = [x.detach().requires_grad_() for x in free]
            loss = total(Vectors(followed[0], followed[-1]))
        # Not by backward(), which would leave gradients in the similarity's own weights.
        return torch.autograd.grad(loss, followed)

    return gradient


def _descend(start: Vectors, gradient: Gradient) -> Vectors:
    """Adam, in the few lines that it is: torch's own takes longer than the gradients of one user do."""
    shared = start.factors is start.embedding
    free = [x.clone() for x in ([start.embedding] if shared else start)]
    entry = [float(torch.linalg.vector_norm(x, dim=1).max()) / math.sqrt(x.shape[1]) for x in start]
    means = [torch.zeros_like(x) for x in free]
    squares = [torch.zeros_like(x) for x in free]
    for step in range(STEPS):
        falling = 0.5 * (1 + math.cos(math.pi * step / STEPS))
        with torch.no_grad():
            for place, found in enumerate(gradient(free)):
                means[place].lerp_(found, 1 - _MEAN_DECAY)
                squares[place].lerp_(found.square(), 1 - _SQUARE_DECAY)
                spread = (squares[place] / (1 - _SQUARE_DECAY ** (step + 1))).sqrt_().add_(1e-12)
                size = STEP_SIZE * falling * entry[place] / (1 - _MEAN_DECAY ** (step + 1))
                free[place].addcdiv_(means[place], spread, value=-size)
    return Vectors(free[0], free[-1])


@torch.no_grad()
def least_squares(
    events: Interactions,
    weights: Float[Tensor, " pairs"],
    opposite: Vectors,
    *,
    l2: float = 0.0,
    ridge: float = 0.0,
) -> Vectors:
    """Each row's x of (YᵀY + λI + Σ (c − 1) y yᵀ) x = Σ c y (Hu et al. 2008), sums over its own pairs.

    An observed pair is to be 1 with weight c, any other 0 with weight 1. `ridge` scales the diagonal.
    """
    y = opposite.embedding.double()
    gram = y.T @ y + l2 * torch.eye(y.shape[1], dtype=y.dtype)
    solved = y.new_zeros(events.n_users, y.shape[1])
    for row in np.flatnonzero(events.by_user.degrees):
        own = slice(*events.by_user.starts[row : row + 2])
        theirs, confidence = y[torch.from_numpy(events.items[own].astype(np.int64))], weights[own].double()
        normal = gram + theirs.T @ (theirs * (confidence - 1).unsqueeze(1))
        normal.diagonal().mul_(1 + ridge)
        solved[row] = torch.linalg.lstsq(normal, (confidence @ theirs).unsqueeze(1)).solution[:, 0]
    vectors = solved.to(opposite.embedding.dtype)
    return Vectors(vectors, vectors)

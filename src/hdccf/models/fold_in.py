"""Fold-in: vectors of new users or items, found with the trained loss while the other side stays fixed.

A row's loss depends on its own vector alone, so a batch of rows is as many separate problems, and each takes
its own steps of Adam: no row's result depends on the others. ALS and ENMF have a closed form.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import draw_columns
from hdccf.losses.block import log_block_scores
from hdccf.losses.contrastive import PairLoss
from hdccf.losses.negatives import weight_left
from hdccf.models.base import VectorScorer
from hdccf.similarity import Vectors, unit

STEPS = 20
"""Steps of Adam; more of them rank no better (decision 20)."""
STEP_SIZE = 0.2
"""The first step, in typical entries of a vector; it falls to nothing along a cosine."""
COLUMNS = 4096
"""Up to this many nodes of the other side all are compared with, beyond it the positives and a draw."""
_MEAN_DECAY, _SQUARE_DECAY = 0.9, 0.999


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
    l2: ClassVar[float] = 0.0
    rows_at_once: ClassVar[int] = 64

    def __call__(self, scored: ScoredRows) -> Float[Tensor, " n"]:
        scores, rows, places, log_inclusion, columns = scored
        log_weights = self.log_weights[columns] + log_inclusion
        masked = (rows, places) if self.masked else (rows[:0], places[:0])
        log_negatives, _ = log_block_scores(
            scores, masked, temperature=self.temperature, log_column_weights=log_weights
        )
        left = weight_left(log_weights, masked, len(scores))
        if self.size is not None:
            log_negatives = log_negatives + (math.log(self.size) - left.log())
        positive = scored.positive
        if self.omega:
            mean = losses.log_mean_exp_by_group(positive, rows, len(scores), temperature=self.temperature)
            log_negatives, _ = losses.debias(
                log_negatives,
                mean,
                size=left if self.size is None else self.size,
                omega=self.omega,
                lowest=self.lowest,
                temperature=self.temperature,
            )
        return losses.contrastive_loss(
            positive, log_negatives[rows], None, temperature=self.temperature, item_weight=self.weight
        )


@dataclass(frozen=True)
class PairRows:
    """The loss of a model over pairs, against every column at once, each as much as it would be drawn."""

    loss: PairLoss
    negatives: int
    log_chances: Float[Tensor, " nodes"] | None
    """log of how many times likelier than uniformly each node is drawn; None where all are alike."""
    l2: float
    rows_at_once: ClassVar[int] = 8
    """Few, as every pair has its own row of negatives."""

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


RowLoss = ContrastiveRows | PairRows
"""The loss of each observed pair, and in `l2` how much a row's squared length costs."""


@torch.no_grad()
def solve(
    scorer: VectorScorer,
    loss: RowLoss,
    events: Interactions,
    weights: Float[Tensor, " pairs"],
    of_users: bool,
) -> Vectors:
    """A vector for each row of `events`, users or items; zero where it has no pair."""
    neighbours = Neighbours.of(events.by_user, events.n_items)
    own = scorer.users if of_users else scorer.items
    shared = own.factors is own.embedding
    solved = [torch.zeros(events.n_users, own.embedding.shape[1]) for _ in range(1 if shared else 2)]
    generator = torch.Generator().manual_seed(0)
    for rows in torch.split(neighbours.degrees.nonzero().squeeze(1), loss.rows_at_once):
        found = _solve_some(scorer, loss, neighbours, rows, weights, generator, of_users)
        for table, vectors in zip(solved, found, strict=True):
            table[rows] = vectors
    return Vectors(solved[0], solved[-1])


def _solve_some(
    scorer: VectorScorer,
    loss: RowLoss,
    neighbours: Neighbours,
    nodes: Int64[Tensor, " b"],
    weights: Float[Tensor, " pairs"],
    generator: torch.Generator,
    of_users: bool,
) -> list[Float[Tensor, "b d"]]:
    """The vectors of some rows, and their factors where they are others."""
    own, other = (scorer.users, scorer.items) if of_users else (scorer.items, scorer.users)
    n_columns = neighbours.n_columns
    columns, log_inclusion = torch.arange(n_columns), torch.zeros(n_columns)
    if n_columns > COLUMNS:
        _, observed, _ = neighbours.within(nodes, None)
        columns, inclusion = draw_columns(observed, n_columns, COLUMNS, generator)
        log_inclusion = inclusion.log()
    rows, places, entries = neighbours.within(nodes, columns)
    opposite = Vectors(*(side[columns].detach() for side in other))
    counted = weights[entries]
    # A mean over each row's pairs: how many there are changes how far the penalty pulls, and nothing else.
    shares = counted / counted.new_zeros(len(nodes)).index_add_(0, rows, counted)[rows].clamp_min(1e-30)

    def total(free: list[Tensor]) -> Float[Tensor, ""]:
        mine = Vectors(free[0], free[-1])
        f = scorer.similarity.all_pairs
        scores = f(mine, opposite) if of_users else f(opposite, mine).T
        each = loss(ScoredRows(scores, rows, places, log_inclusion, columns))
        penalty = loss.l2 * mine.embedding.square().sum() if loss.l2 else 0.0
        return (each * shares).sum() + penalty

    kinds = 1 if own.factors is own.embedding else 2
    free = []
    for of_opposite, of_own in list(zip(opposite, own, strict=True))[:kinds]:
        # Towards the mean of what the row is paired with, as long as vectors of its side usually are.
        mean = of_opposite.new_zeros(len(nodes), of_opposite.shape[1])
        mean.index_add_(0, rows, unit(of_opposite)[places] * shares.unsqueeze(1))
        usual = torch.linalg.vector_norm(of_own, dim=1).mean().clamp_min(1e-12) if len(of_own) else 1.0
        free.append(unit(mean) * usual)
    return _descend(free, total)


def _descend(free: list[Tensor], total: Callable[[list[Tensor]], Float[Tensor, ""]]) -> list[Tensor]:
    """Adam, in the few lines that it is: torch's own takes longer than the gradients of one user do."""
    sizes = [float(torch.linalg.vector_norm(x, dim=1).max()) / math.sqrt(x.shape[1]) for x in free]
    means, squares = ([torch.zeros_like(x) for x in free] for _ in range(2))
    for step in range(STEPS):
        rate = STEP_SIZE * 0.5 * (1 + math.cos(math.pi * step / STEPS)) / (1 - _MEAN_DECAY ** (step + 1))
        with torch.enable_grad():
            followed = [x.detach().requires_grad_() for x in free]
            loss = total(followed)
        # Not by backward(), which would leave gradients in the similarity's own weights.
        gradients = torch.autograd.grad(loss, followed)
        for x, gradient, mean, square, size in zip(free, gradients, means, squares, sizes, strict=True):
            mean.lerp_(gradient, 1 - _MEAN_DECAY)
            square.lerp_(gradient.square(), 1 - _SQUARE_DECAY)
            spread = (square / (1 - _SQUARE_DECAY ** (step + 1))).sqrt_().add_(1e-12)
            x.addcdiv_(mean, spread, value=-rate * size)
    return free


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

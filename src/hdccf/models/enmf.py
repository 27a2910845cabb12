"""ENMF: every unobserved pair is a negative and none is drawn (Chen et al., TOIS 2020)."""

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from hdccf.config import MAX_DIM, SIZES, PositiveSettings, Real, Space, recency
from hdccf.data.batches import Block
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import BlockSampler
from hdccf.data.weights import weights_of
from hdccf.models.base import ALL, Model, Objective, Scorer, VectorScorer
from hdccf.models.fold_in import least_squares
from hdccf.rng import dropout_mask
from hdccf.similarity import Dot, Vectors

_CELLS_A_PAIR = 48
"""Scoring a pair by itself costs about as much as so many cells of one product of all users and items."""


class ENMF(PositiveSettings):
    """Efficient neural matrix factorisation without sampling (Chen et al., TOIS 2020).

    `hdccf models enmf` lists every setting with its default.

    Examples
    --------
    >>> ENMF(learning_rate=0.02).learning_rate
    0.02
    """

    model: ClassVar[str] = "enmf"

    epochs: int = Field(default=500, ge=1)
    """Passes over the users at most; early stopping usually ends before."""
    learning_rate: float = Field(default=0.05, gt=0)
    """Step size; Adagrad shrinks it by itself, and small ones under-perform."""
    optimizer: Literal["adam", "adamw", "adagrad", "sgd"] = "adagrad"
    """The rule of the steps; the authors' is Adagrad."""
    evaluate_every: int = Field(default=5, ge=1)
    """Epochs between evaluations on the validation part."""

    embedding_dim: int = Field(default=64, ge=1, le=MAX_DIM)
    """Length of the vectors; more remembers more, and a step costs its square."""
    negative_weight: float = Field(default=0.1, gt=0, le=1)
    """w: how much an unobserved pair counts beside an observed one. The authors take .5 on ML-1M and .05 on
    Yelp; sparser data takes less."""
    keep_probability: float = Field(default=0.7, gt=0, le=1)
    """Dropout: the share of a user's vector that is kept in a step; 1 is no dropout."""
    block_users: int = Field(default=256, ge=1)
    """Users in a step, each with all items; fewer make more, noisier steps."""
    init_std: float = Field(default=0.01, gt=0)
    """Spread of the first vectors."""
    init_head: float = Field(default=0.01, gt=0)
    """h's first value in every dimension; with `init_std` it says from how far below 1 the scores start."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(0.01, 0.2, log=True),
            "negative_weight": Real(0.001, 1.0, log=True),
            "keep_probability": Real(0.3, 1.0),
            **recency(),
        }
    )


class ENMFModel(Model):
    """r̂ = hᵀ(p ⊙ q), towards 1 where a pair was observed and towards 0, with less weight, everywhere else."""

    settings: ENMF

    def __init__(self, settings: ENMF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings)
        self.graph = Graph.of(train)
        self._positive_weights = weights_of(settings, train)
        std, dim = settings.init_std, settings.embedding_dim
        self.users = nn.Parameter(_truncated_normal(train.n_users, dim, std, generator))
        self.items = nn.Parameter(_truncated_normal(train.n_items, dim, std, generator))
        self.head = nn.Parameter(torch.full((dim,), settings.init_head))

    @cached_property
    def sampler(self) -> BlockSampler:
        return BlockSampler(
            self.graph, self._positive_weights, self.settings.block_users, block_items=self.graph.n_items
        )

    def objectives(self, batch: Block, generator: torch.Generator) -> Iterator[Objective]:
        users = functional.embedding(batch.users, self.users, sparse=self.settings.sparse_updates)
        kept = dropout_mask(users, self.settings.keep_probability, generator)
        loss = whole_data_loss(
            users * kept,
            self.items,
            self.head,
            rows=batch.rows,
            columns=batch.positive_columns,
            weights=batch.weights,
            negative_weight=self.settings.negative_weight,
        )
        yield Objective(loss, ALL, {})

    @torch.no_grad()
    def diagnose(self, batch: Block) -> dict[str, float]:
        """The mean score of the batch's observed pairs, to be 1, and of its unobserved ones, to be 0."""
        users = self.users[batch.users] * self.head
        observed = observed_scores(users, self.items, batch.rows, batch.positive_columns)
        total = users.sum(0) @ self.items.sum(0)
        unobserved = len(users) * len(self.items) - len(observed)
        return {
            "observed-score": float(observed.mean()),
            "unobserved-score": float(total - observed.sum()) / max(unobserved, 1),
        }

    has_free_vectors = True

    def solve_vectors(self, events: Interactions, *, of_users: bool, known: Scorer | None = None) -> Vectors:
        """An observed pair has weight c and any other w: the same as c / w and 1. Dropout is a ridge."""
        s, scorer = self.settings, self.vector_scorer(known)
        weights = weights_of(s, events) if of_users else torch.ones(len(events))
        opposite = scorer.items if of_users else scorer.users
        ridge = (1 - s.keep_probability) / s.keep_probability
        return least_squares(events, weights / s.negative_weight, opposite, ridge=ridge)

    def scorer(self) -> VectorScorer:
        users, items = (self.users * self.head).detach(), self.items.detach()
        return VectorScorer(Dot(), Vectors(users, users), Vectors(items, items))


def whole_data_loss(
    users: Float[Tensor, "b d"],
    items: Float[Tensor, "n d"],
    head: Float[Tensor, " d"],
    *,
    rows: Int64[Tensor, " o"],
    columns: Int64[Tensor, " o"],
    weights: Float[Tensor, " o"],
    negative_weight: float,
) -> Float[Tensor, ""]:
    """Σ_observed c(1 − r̂)² + w Σ_unobserved r̂² over all b × n pairs, without the constant Σ_observed c.

    The sum of r̂² over all pairs is Σ_ab (QᵀQ)⊙(PᵀP)⊙(hhᵀ), d² numbers instead of b × n; what the observed
    pairs should contribute instead, Σ_observed [(c − w) r̂² − 2c r̂], is added.
    """
    everything = head @ ((items.T @ items) * (users.T @ users)) @ head
    scores = observed_scores(users * head, items, rows, columns)
    observed = ((weights - negative_weight) * scores.square() - 2 * weights * scores).sum()
    return negative_weight * everything + observed


def observed_scores(
    users: Float[Tensor, "b d"],
    items: Float[Tensor, "n d"],
    rows: Int64[Tensor, " o"],
    columns: Int64[Tensor, " o"],
) -> Float[Tensor, " o"]:
    """p·q of the given pairs: each by itself, or picked from a product of all where that is cheaper."""
    if len(users) * len(items) <= _CELLS_A_PAIR * len(rows):
        return (users @ items.T).view(-1).gather(0, rows * len(items) + columns)
    return (functional.embedding(rows, users) * functional.embedding(columns, items)).sum(1)


def _truncated_normal(n: int, dim: int, std: float, generator: torch.Generator) -> Float[Tensor, "n d"]:
    """As TensorFlow's, which the authors used: nothing further out than two deviations."""
    return nn.init.trunc_normal_(torch.empty(n, dim), std=std, a=-2 * std, b=2 * std, generator=generator)

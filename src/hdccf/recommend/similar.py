"""How alike two items are, or two users: by the model's own f where it has one, else by what it does have."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy import sparse
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.evaluation.ranking import top_k
from hdccf.models.base import Kind, Model, Scorer, VectorScorer
from hdccf.recommend.candidates import SCORES_AT_ONCE, Best
from hdccf.similarity import Cosine, Similarity, Vectors


@runtime_checkable
class Relation(Protocol):
    """Scores of some nodes with all nodes of their kind, and in words where they come from."""

    @property
    def stated(self) -> str: ...

    @property
    def n(self) -> int: ...

    def to_all(self, nodes: Int64[Tensor, " b"]) -> Float[Tensor, "b n"]: ...


def relation(model: Model, scorer: Scorer, events: Interactions, kind: Kind) -> Relation:
    """What the model has to compare nodes of one kind with, the first of these that there is.

    f(i, i′) or f(u, u′) of HDCCF, where it was trained with one; EASE's weights between items; the cosine of
    the vectors; and without any of them the data alone, the cosine of the nodes' observed pairs.
    """
    if isinstance(scorer, VectorScorer):
        vectors = scorer.items if kind == "items" else scorer.users
        own = model.relation(kind)
        if own is not None:
            what = "f(i, i′)" if kind == "items" else "f(u, u′)"
            return ByVectors(own, vectors, f"the model's own {what}")
        directions = scorer.similarity.scaled(vectors.embedding.detach())
        return ByVectors(Cosine(), Vectors(directions, directions), f"cosine of the {kind[:-1]} vectors")
    if model.item_weights is not None and kind == "items":
        return ByWeights(model.item_weights)
    return co_occurrence(events, kind)


def best_related(relation: Relation, nodes: Int64[Tensor, " n"], k: int) -> Iterator[Best]:
    """The k nodes most like each of these, without itself."""
    if k < 1:
        raise ConfigError(f"k={k} asks for nothing; ask for 1 or more")
    at_once = max(1, SCORES_AT_ONCE // relation.n)
    for block in torch.split(nodes, at_once):
        scores = relation.to_all(block).clone()
        scores[torch.arange(len(block)), block] = -torch.inf
        best, places = map(torch.from_numpy, top_k(scores.numpy(), min(k, relation.n)))
        yield Best(block, places, best)


@dataclass(frozen=True)
class ByVectors:
    similarity: Similarity
    vectors: Vectors
    stated: str

    @property
    def n(self) -> int:
        return len(self.vectors.embedding)

    @torch.no_grad()
    def to_all(self, nodes: Int64[Tensor, " b"]) -> Float[Tensor, "b n"]:
        chosen = Vectors(self.vectors.embedding[nodes], self.vectors.factors[nodes])
        return self.similarity.all_pairs(chosen, self.vectors)


@dataclass(frozen=True)
class ByWeights:
    """Row i: what having had i adds to the score of every other item."""

    weights: Float[Tensor, "n n"]
    stated: str = "EASE's weights: what having had the one adds to the other's score"

    @property
    def n(self) -> int:
        return len(self.weights)

    def to_all(self, nodes: Int64[Tensor, " b"]) -> Float[Tensor, "b n"]:
        return self.weights[nodes]


@dataclass(frozen=True)
class CoOccurrence:
    """Cosine of the rows of a matrix of unit rows."""

    rows: sparse.csr_array
    stated: str

    @property
    def n(self) -> int:
        return int(self.rows.shape[0])

    def to_all(self, nodes: Int64[Tensor, " b"]) -> Float[Tensor, "b n"]:
        return torch.from_numpy((self.rows[nodes.numpy()] @ self.rows.T).toarray())


def co_occurrence(events: Interactions, kind: Kind) -> CoOccurrence:
    observed = events.matrix if kind == "users" else events.matrix.T.tocsr()
    lengths = np.sqrt(np.diff(observed.indptr)).astype(np.float32)
    scaled = sparse.diags_array(1 / np.maximum(lengths, 1)) @ observed
    other = "users" if kind == "items" else "items"
    stated = f"shared {other} in the data (cosine), as the model itself compares no {kind}"
    return CoOccurrence(scaled.tocsr(), stated)

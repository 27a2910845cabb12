"""Similar items and similar users: by the model's own f, its vectors or weights, or by the data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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

Nodes = Int64[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class Relation:
    """Scores of some nodes with all nodes of their kind, and in words where they come from."""

    to_all: Callable[[Nodes], Float[Tensor, "b n"]]
    n: int
    stated: str

    def scaled(self, scale: Float[Tensor, " n"]) -> "Relation":
        """With the scores of each node multiplied by a factor."""
        return replace(self, to_all=lambda nodes: self.to_all(nodes) * scale)


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
            return _by_vectors(own, vectors, f"the model's own {what}")
        directions = scorer.similarity.scaled(vectors.embedding.detach())
        return _by_vectors(Cosine(), Vectors(directions, directions), f"cosine of the {kind[:-1]} vectors")
    weights = model.item_weights
    if weights is not None and kind == "items":
        stated = "EASE's weights: what having had the one adds to the other's score"
        return Relation(lambda nodes: weights[nodes], len(weights), stated)
    return co_occurrence(events, kind)


def _by_vectors(similarity: Similarity, vectors: Vectors, stated: str) -> Relation:
    @torch.no_grad()
    def to_all(nodes: Nodes) -> Float[Tensor, "b n"]:
        return similarity.all_pairs(Vectors(vectors.embedding[nodes], vectors.factors[nodes]), vectors)

    return Relation(to_all, len(vectors.embedding), stated)


def co_occurrence(events: Interactions, kind: Kind) -> Relation:
    """Cosine of the rows of observed pairs."""
    observed = events.matrix if kind == "users" else events.matrix.T.tocsr()
    lengths = np.sqrt(np.diff(observed.indptr)).astype(np.float32)
    rows = (sparse.diags_array(1 / np.maximum(lengths, 1)) @ observed).tocsr()

    def to_all(nodes: Nodes) -> Float[Tensor, "b n"]:
        return torch.from_numpy((rows[nodes.numpy()] @ rows.T).toarray())

    other = "users" if kind == "items" else "items"
    stated = f"shared {other} in the data (cosine), as the model itself compares no {kind}"
    return Relation(to_all, int(rows.shape[0]), stated)


def best_related(relation: Relation, nodes: Int64[Tensor, " n"], k: int) -> Iterator[Best]:
    """The k nodes most similar to each of these, without itself."""
    if k < 1:
        raise ConfigError(f"k={k} asks for nothing; ask for 1 or more")
    for block in torch.split(nodes, max(1, SCORES_AT_ONCE // relation.n)):
        scores = relation.to_all(block).clone()
        scores[torch.arange(len(block)), block] = -torch.inf
        best, places = map(torch.from_numpy, top_k(scores.numpy(), min(k, relation.n)))
        yield Best(block, places, best)

"""Which of a user's own items speak for a recommendation.

A surrogate splits a score into one part for each item of the history. Where the user is a weighted sum of
what they had, it is f itself; a free vector is first written as the nearest such sum. How far the surrogate
orders the candidates as f does is measured for each user and given with the answer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.models.base import Model, Scorer, VectorScorer
from hdccf.recommend.ids import Codes
from hdccf.recommend.similar import co_occurrence
from hdccf.similarity import Similarity, Vectors

CANDIDATES_COMPARED = 10_000
"""Up to this many candidates all are compared for the agreement, beyond it a draw."""


@dataclass(frozen=True)
class Explanation:
    """The parts of some scores, and how far they are to be believed."""

    parts: pl.DataFrame
    """item, score, because (an item of the history), contribution, share; titles where there are any."""
    surrogate: str
    """What the contributions add up to, in words."""
    agreement: float
    """Kendall's τ between the surrogate and f over the user's candidates: 1 is the same order. Not a number
    where fewer than two candidates differ."""


@runtime_checkable
class Surrogate(Protocol):
    """A score as a sum over the items of one history."""

    @property
    def stated(self) -> str: ...

    @property
    def own(self) -> Int64[Tensor, " n"]:
        """The items of the history that have a part, each once."""
        ...

    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]: ...


def surrogate_for(
    model: Model, scorer: Scorer, events: Interactions, row: int, data: Interactions
) -> Surrogate:
    """The best there is for the user of `row` in `events` and in `scorer`; `data` is what is known of all."""
    if model.item_weights is not None:
        return LinearWeights(model.item_weights, *model.history_weights(events, row))
    if isinstance(scorer, VectorScorer):
        parts = model.history_parts(events, row)
        return (
            SumOfVectors.nearest(scorer, events, row)
            if parts is None
            else SumOfVectors.of(scorer, row, parts)
        )
    return SharedUsers(events, row, data)


@torch.no_grad()
def agreement(surrogate: Surrogate, scorer: Scorer, row: int, seed: int = 0) -> float:
    """Kendall's τ of the surrogate with f, over the items that are not in the history."""
    from scipy.stats import kendalltau

    candidate = torch.ones(scorer.n_items, dtype=torch.bool)
    candidate[surrogate.own] = False
    items = candidate.nonzero().squeeze(1)
    if len(items) > CANDIDATES_COMPARED:
        generator = torch.Generator().manual_seed(seed)
        items = items[torch.randperm(len(items), generator=generator)[:CANDIDATES_COMPARED]]
    exact = scorer.score_block(torch.tensor([row]), items)[0]
    if len(items) < 2:
        return float("nan")
    return float(kendalltau(surrogate.parts(items).sum(0).numpy(), exact.numpy()).statistic)


def explained(
    surrogate: Surrogate, scorer: Scorer, row: int, items: Codes, top: int, data: Interactions
) -> Explanation:
    """The `top` greatest parts of each item's score, under the ids of `data`."""
    columns = torch.from_numpy(items)
    parts = surrogate.parts(columns)
    chosen = parts.topk(min(top, len(parts)), dim=0).indices.T
    which, of = chosen.flatten(), torch.arange(len(items)).repeat_interleave(chosen.shape[1])
    because, about = surrogate.own[which].numpy(), items[of.numpy()]
    frame = pl.DataFrame(
        {
            "item": data.item_ids.gather(about),
            "score": scorer.score_rows(torch.tensor([row]), columns[None])[0, of].numpy(),
            "because": data.item_ids.gather(because),
            "contribution": parts[which, of].numpy(),
            "share": shares(parts)[which, of].numpy(),
        }
    )
    if data.titles is not None:
        titles = {"title": data.titles.gather(about), "because_title": data.titles.gather(because)}
        frame = frame.with_columns(**titles)
    return Explanation(frame, surrogate.stated, agreement(surrogate, scorer, row))


def shares(parts: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Each part over the sum of those that speak for the item; what speaks against it is below zero."""
    return parts / parts.clamp_min(0).sum(0).clamp_min(torch.finfo(parts.dtype).tiny)


@dataclass(frozen=True)
class SumOfVectors:
    """f of a user vector that is a weighted sum: linear in it, once the modulation of the pair is taken."""

    similarity: Similarity
    user: Vectors
    """One row."""
    items: Vectors
    own: Int64[Tensor, " n"]
    pieces: Float[Tensor, "n d"]
    """What each own item puts into the user's vector."""
    stated: str

    @classmethod
    def of(cls, scorer: VectorScorer, row: int, parts: tuple[Tensor, Tensor]) -> "SumOfVectors":
        """A user vector that is the sum of its history's parts."""
        stated = "each item's part of the user's own vector, recent ones louder"
        user, similarity = _row(scorer.users, row), scorer.similarity
        return cls(similarity, user, scorer.items, *parts, stated + similarity.linearised)

    @classmethod
    @torch.no_grad()
    def nearest(cls, scorer: VectorScorer, events: Interactions, row: int) -> "SumOfVectors":
        """A free vector, written as the nearest non-negative sum of the vectors of the user's items."""
        from scipy.optimize import nnls

        own = torch.from_numpy(events.by_user.of(row).astype(np.int64))
        user = _row(scorer.users, row)
        theirs = scorer.similarity.scaled(scorer.items.embedding[own])
        weights = np.zeros(len(own))
        if len(own):
            target = scorer.similarity.scaled(user.embedding)[0]
            weights, _ = nnls(theirs.T.double().numpy(), target.double().numpy())
        pieces = theirs * torch.from_numpy(weights).to(theirs.dtype).unsqueeze(1)
        stated = "the user's vector as the nearest non-negative sum of the vectors of their items"
        return cls(scorer.similarity, user, scorer.items, own, pieces, stated + scorer.similarity.linearised)

    @torch.no_grad()
    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        chosen = Vectors(self.items.embedding[items], self.items.factors[items])
        right = self.similarity.scaled(chosen.embedding)
        modulation = self.similarity.modulation(self.user, chosen)
        if modulation is not None:
            right = right * modulation.square()
        return self.pieces @ right.T


@dataclass(frozen=True)
class LinearWeights:
    """EASE: a score is the sum of the weights of the items in the history."""

    weights: Float[Tensor, "items items"]
    own: Int64[Tensor, " n"]
    counts: Float[Tensor, " n"]
    """How much each item of the history counts."""
    stated: str = "EASE itself: each item's weight for the other"

    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        return self.counts.unsqueeze(1) * self.weights[self.own[:, None], items]


@dataclass(frozen=True)
class SharedUsers:
    """Of a model that can be taken apart no further: which items have the same users, from the data alone."""

    events: Interactions
    row: int
    data: Interactions
    stated: str = "the users that two items share (cosine), as the model itself cannot be taken apart"

    @property
    def own(self) -> Int64[Tensor, " n"]:
        return torch.from_numpy(self.events.by_user.of(self.row).astype(np.int64))

    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        return self._to_all[:, items]

    @cached_property
    def _to_all(self) -> Float[Tensor, "n items"]:
        return co_occurrence(self.data, "items").to_all(self.own)


def _row(vectors: Vectors, row: int) -> Vectors:
    return Vectors(vectors.embedding[[row]], vectors.factors[[row]])

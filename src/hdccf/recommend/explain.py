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

from hdccf.data.cuts import cut_histories
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.models.base import Model, VectorScorer
from hdccf.models.ease import EASEModel
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.histories import weighted_histories
from hdccf.models.scoring import Scorer
from hdccf.recommend.ids import Codes
from hdccf.recommend.similar import co_occurrence
from hdccf.similarity import Euclidean, Modulated, Popular, Similarity, Vectors, unit

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
    if isinstance(model, EASEModel):
        return LinearWeights(model, events, row)
    if isinstance(scorer, VectorScorer):
        if isinstance(model, HDCCFModel) and model.uses_history and model.attention is None:
            return SumOfVectors.of_history(model, scorer, events, row)
        return SumOfVectors.nearest(scorer, events, row)
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
    @torch.no_grad()
    def of_history(
        cls, model: HDCCFModel, scorer: VectorScorer, events: Interactions, row: int
    ) -> "SumOfVectors":
        s = model.settings
        items_of = Neighbours.of(events.by_user, events.n_items)
        history = cut_histories(
            items_of,
            torch.tensor([row]),
            items_of.degrees[[row]],
            s.history_half_life,
            s.history_length,
            s.history_floor,
        )
        table = model.items if model.past is None else model.past
        weighted = unit(table.of(history.items).embedding) * history.weights.unsqueeze(1)
        length = torch.linalg.vector_norm(weighted.sum(0)).clamp_min(1e-12)
        linear = "" if not isinstance(scorer.similarity, Euclidean) else ", with the product for the distance"
        return cls(
            scorer.similarity,
            _row(scorer.users, row),
            scorer.items,
            history.items,
            weighted / length,
            f"each item's part of the user's own vector, recent ones louder{linear}",
        )

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
        if isinstance(scorer.similarity, Popular):
            stated += ", without what all like"
        return cls(scorer.similarity, user, scorer.items, own, pieces, stated)

    @torch.no_grad()
    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        chosen = Vectors(self.items.embedding[items], self.items.factors[items])
        right = self.similarity.scaled(chosen.embedding)
        if isinstance(self.similarity, Modulated):
            right = right * self.similarity.modulation(self.user, chosen).square()
        return self.pieces @ right.T


@dataclass(frozen=True)
class LinearWeights:
    """EASE: a score is the sum of the weights of what the user had."""

    model: EASEModel
    events: Interactions
    row: int
    stated: str = "EASE itself: each item's weight for the other"

    @cached_property
    def _history(self) -> tuple[Int64[Tensor, " n"], Float[Tensor, " n"]]:
        start, end = self.events.by_user.starts[self.row : self.row + 2]
        weights = weighted_histories(self.events, self.model.settings).data[start:end]
        items = self.events.items[start:end].astype(np.int64)
        return torch.from_numpy(items), torch.from_numpy(weights.copy())

    @property
    def own(self) -> Int64[Tensor, " n"]:
        return self._history[0]

    def parts(self, items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        own, weights = self._history
        return weights.unsqueeze(1) * self.model.weights[own[:, None], items]


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

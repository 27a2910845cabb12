"""Explanations: the items of a user's history that contribute most to a recommendation.

A surrogate splits a score into one part for each item of the history. Where the user vector is a weighted
sum of the history, it is f itself; a free vector is first written as the nearest such sum. How far the
surrogate orders the candidates as f does is measured for each user and given with the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.models.base import Model, Scorer, VectorScorer
from hdccf.models.calibration import CalibratedScorer
from hdccf.recommend.frames import Codes
from hdccf.recommend.similar import co_occurrence
from hdccf.similarity import Vectors

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


@dataclass(frozen=True)
class Surrogate:
    """A score as a sum over the items of one history."""

    own: Int64[Tensor, " n"]
    """The items of the history that have a part, each once."""
    parts: Callable[[Int64[Tensor, " c"]], Float[Tensor, "n c"]]
    """The part of each own item in the scores of some items."""
    stated: str
    shift: Float[Tensor, " items"] | None = None
    """What an item's popularity adds to its score, whatever the history."""


def surrogate_for(
    model: Model, scorer: Scorer, events: Interactions, row: int, data: Interactions
) -> Surrogate:
    """The best there is for the user of `row` in `events` and in `scorer`; `data` is what is known of all."""
    if isinstance(scorer, CalibratedScorer):
        return _calibrated(surrogate_for(model, scorer.inner, events, row, data), scorer, row)
    own = torch.from_numpy(events.by_user.of(row).astype(np.int64))
    weights = model.item_weights
    if weights is not None:
        own, counts = model.history_weights(events, row)
        stated = "EASE itself: each item's weight for the other"
        return Surrogate(own, lambda items: counts.unsqueeze(1) * weights[own[:, None], items], stated)
    if isinstance(scorer, VectorScorer):
        parts = model.history_parts(events, row)
        if parts is not None:
            return _sum_of_vectors(scorer, row, *parts, "each item's part of the user vector, by recency")
        stated = "the user's vector as the nearest non-negative sum of the vectors of their items"
        return _sum_of_vectors(scorer, row, own, _nearest_sum(scorer, row, own), stated)
    to_all = co_occurrence(data, "items").to_all(own)
    stated = "the users that two items share (cosine), as the model itself cannot be taken apart"
    return Surrogate(own, lambda items: to_all[:, items], stated)


def _calibrated(inner: Surrogate, scorer: CalibratedScorer, row: int) -> Surrogate:
    """With the filter's parts, which are exact, and the popularity shift, which no item explains."""
    filtered, scale = scorer.filtered, scorer.scale
    if scale is not None:
        unscaled = inner.parts
        inner = replace(inner, parts=lambda items: unscaled(items) * scale[items])
    if filtered is None:
        return replace(inner, shift=scorer.shift)

    def parts(items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        return inner.parts(items) + filtered.contributions(row, inner.own, items)

    return Surrogate(inner.own, parts, f"{inner.stated}; and the item–item filter itself", scorer.shift)


def _sum_of_vectors(
    scorer: VectorScorer, row: int, own: Int64[Tensor, " n"], pieces: Float[Tensor, "n d"], stated: str
) -> Surrogate:
    """f of a user vector that is a sum of pieces: linear in it, once the modulation of the pair is taken."""
    similarity, vectors = scorer.similarity, scorer.items
    user = Vectors(scorer.users.embedding[[row]], scorer.users.factors[[row]])

    @torch.no_grad()
    def parts(items: Int64[Tensor, " c"]) -> Float[Tensor, "n c"]:
        chosen = Vectors(vectors.embedding[items], vectors.factors[items])
        right = similarity.scaled(chosen.embedding)
        modulation = similarity.modulation(user, chosen)
        return pieces @ (right if modulation is None else right * modulation.square()).T

    return Surrogate(own, parts, stated + similarity.linearised)


@torch.no_grad()
def _nearest_sum(scorer: VectorScorer, row: int, own: Int64[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """The terms of the non-negative sum of the history's item vectors that is nearest to a user vector."""
    from scipy.optimize import nnls

    theirs = scorer.similarity.scaled(scorer.items.embedding[own])
    if not len(own):
        return theirs
    target = scorer.similarity.scaled(scorer.users.embedding[[row]])[0]
    weights, _ = nnls(theirs.T.double().numpy(), target.double().numpy())
    return theirs * torch.from_numpy(weights).to(theirs.dtype).unsqueeze(1)


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
    if len(items) < 2:
        return float("nan")
    exact = scorer.score_block(torch.tensor([row]), items)[0]
    approximate = surrogate.parts(items).sum(0)
    if surrogate.shift is not None:
        approximate = approximate + surrogate.shift[items]
    return float(kendalltau(approximate.numpy(), exact.numpy()).statistic)


def explained(
    surrogate: Surrogate, scorer: Scorer, row: int, items: Codes, top: int, data: Interactions
) -> Explanation:
    """The `top` greatest parts of each item's score, under the ids of `data`."""
    columns = torch.from_numpy(items)
    parts = surrogate.parts(columns)
    # Of the sum of the positive parts; a negative part has a negative share.
    shares = parts / parts.clamp_min(0).sum(0).clamp_min(torch.finfo(parts.dtype).tiny)
    chosen = parts.topk(min(top, len(parts)), dim=0).indices.T
    which, of = chosen.flatten(), torch.arange(len(items)).repeat_interleave(chosen.shape[1])
    because, about = surrogate.own[which].numpy(), items[of.numpy()]
    frame = pl.DataFrame(
        {
            "item": data.item_ids.gather(about),
            "score": scorer.score_rows(torch.tensor([row]), columns[None])[0, of].numpy(),
            "because": data.item_ids.gather(because),
            "contribution": parts[which, of].numpy(),
            "share": shares[which, of].numpy(),
        }
    )
    if data.titles is not None:
        titles = {"title": data.titles.gather(about), "because_title": data.titles.gather(because)}
        frame = frame.with_columns(**titles)
    return Explanation(frame, surrogate.stated, agreement(surrogate, scorer, row))

"""The best items of each user, by the scores of all of the catalogue; `index` has the approximate way."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from hdccf.data.graph import Neighbours
from hdccf.evaluation.topk import top_k
from hdccf.models.base import Scorer, VectorScorer

SCORES_AT_ONCE = 1 << 22
"""Scores held at once: 16 MB."""


class Best(NamedTuple):
    """The best of some rows, best first; −inf fills up where a row has fewer."""

    rows: Int64[Tensor, " b"]
    items: Int64[Tensor, "b k"]
    scores: Float[Tensor, "b k"]


class Wanted(NamedTuple):
    """What may be in a list."""

    k: int
    seen: Neighbours | None
    """The history of each row, which is left out; None leaves nothing out."""
    allowed: Bool[Tensor, " items"] | None
    """None allows all."""


def exact_best(scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
    """By the scores of everything that is allowed, some rows at a time."""
    if len(rows) == 1 and wanted.allowed is None and isinstance(scorer, VectorScorer):
        yield _best_of_one(scorer, rows, wanted)
        return
    columns = None if wanted.allowed is None else wanted.allowed.nonzero().squeeze(1)
    width = scorer.n_items if columns is None else len(columns)
    for block in torch.split(rows, max(1, SCORES_AT_ONCE // max(width, 1))):
        scores = scorer.score_block(block, columns)
        if wanted.seen is not None:
            if not isinstance(scorer, VectorScorer):
                scores = scores.clone()  # it may be the scorer's own memory; a product never is
            at, places, _ = wanted.seen.within(block, columns)
            scores[at, places] = -torch.inf
        best, places = map(torch.from_numpy, top_k(scores.cpu().numpy(), min(wanted.k, width)))
        yield Best(block, places if columns is None else columns[places], best)


def _best_of_one(scorer: VectorScorer, rows: Int64[Tensor, " 1"], wanted: Wanted) -> Best:
    """One user asking for themselves is what a service sees most: a product, a slice and NumPy's selection.

    Of a small catalogue most of the time would else be calls around the product (decision 22).
    """
    user = int(rows)
    scores = scorer.score_user(user)
    if wanted.seen is not None:
        scores[had_by(wanted.seen, user)] = -np.inf
    best, places = map(torch.from_numpy, top_k(scores[None], min(wanted.k, len(scores))))
    return Best(rows, places, best)


def had_by(seen: Neighbours, user: int) -> NDArray[np.int64]:
    """The items of a user's history, ascending, without a copy."""
    starts = seen.starts.numpy()
    had: NDArray[np.int64] = seen.flat.numpy()[starts[user] : starts[user + 1]]
    return had

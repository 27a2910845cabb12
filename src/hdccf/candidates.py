"""The best items of each user: all of the catalogue scored, or an index that proposes and f that decides.

Exact is the default. For very large catalogues an approximate index of the item vectors (the extra `index`,
usearch) finds a few hundred, and the model's own f puts them in order: what is lost is what the index did
not find, and how much that is gets measured when it is built.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf.data.graph import Neighbours
from hdccf.errors import ConfigError
from hdccf.evaluation.selection import best_places
from hdccf.models.base import VectorScorer
from hdccf.scoring import Scorer
from hdccf.similarity import Dot, Euclidean, Modulated, Similarity, unit, within_ball

SCORES_AT_ONCE = 1 << 22
"""Scores held at once: 16 MB."""
_STRETCH = 256
"""Scores of a stretch, one of which is its maximum."""
_POOL = 200
_POOL_PER_K = 10
_TESTED_USERS = 200
_TESTED_K = 10


class Best(NamedTuple):
    """The best of some rows, best first; −inf fills up where a row has fewer."""

    rows: Int64[Tensor, " b"]
    items: Int64[Tensor, "b k"]
    scores: Float[Tensor, "b k"]


class Wanted(NamedTuple):
    """What may be in a list."""

    k: int
    seen: Neighbours | None
    """What each row has had, and so is left out; None leaves nothing out."""
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
        best, places = best_of_rows(scores, min(wanted.k, width))
        yield Best(block, places if columns is None else columns[places], best)


def _best_of_one(scorer: VectorScorer, rows: Int64[Tensor, " 1"], wanted: Wanted) -> Best:
    """One user asking for themselves is what a service sees most: a product, a slice and NumPy's selection.

    Of a small catalogue most of the time would else be calls around the product (decision 136).
    """
    user = int(rows)
    scores = scorer.score_user(user)
    if wanted.seen is not None:
        starts, had = wanted.seen.starts.numpy(), wanted.seen.flat.numpy()
        scores[had[starts[user] : starts[user + 1]]] = -np.inf
    places = best_places(scores, min(wanted.k, len(scores)))
    return Best(rows, torch.from_numpy(places[None]), torch.from_numpy(scores[places][None]))


def best_of_rows(scores: Float[Tensor, "b c"], k: int) -> tuple[Float[Tensor, "b k"], Int64[Tensor, "b k"]]:
    """The k largest of each row and where they are; of equal ones any.

    The k largest stand in the k stretches with the largest maxima. So one look at all scores for the maxima
    of stretches is enough, and `topk`, which is far slower, sees k stretches of a row and not all of it.
    """
    b, c = scores.shape
    stretches = c // _STRETCH
    if stretches < 40 * k:  # in short rows the bookkeeping is the longer part
        return scores.topk(k, dim=1)
    whole = stretches * _STRETCH
    parts = scores[:, :whole].view(b, stretches, _STRETCH)
    chosen = parts.amax(2).topk(k, dim=1).indices
    starts = (chosen * _STRETCH).unsqueeze(2) + torch.arange(_STRETCH, device=scores.device)
    rest = torch.arange(whole, c, device=scores.device).expand(b, -1)
    places = torch.cat([starts.flatten(1), rest], 1)
    best, among = scores.gather(1, places).topk(k, dim=1)
    return best, places.gather(1, among)


class Index:
    """Item vectors as points, near to a user's where f is large."""

    def __init__(self, scorer: VectorScorer) -> None:
        started = time.monotonic()
        points = _points(scorer.similarity, scorer.items.embedding)
        self._index = _empty_index(points.shape[1], scorer.similarity)
        self._index.add(np.arange(len(points)), points)
        self.n_items = len(points)
        self.recall = self._recall(scorer)
        self.seconds = time.monotonic() - started

    def __repr__(self) -> str:
        return (
            f"index of {self.n_items:,} items, built in {self.seconds:.1f} s: "
            f"recall@{_TESTED_K} {self.recall:.3f} against exact scoring"
        )

    def propose(self, scorer: VectorScorer, rows: Int64[Tensor, " b"], pool: int) -> Int64[Tensor, "b p"]:
        """The `pool` items nearest to each row; −1 where it found fewer."""
        pool = min(pool, self.n_items)
        if not len(rows):
            return torch.full((0, pool), -1)
        points = _points(scorer.similarity, scorer.users.embedding[rows])
        # The search looks at this many places, and finds no more than it looks at.
        self._index.expansion_search = max(128, 2 * pool)
        found = self._index.search(points, pool)
        keys = np.asarray(found.keys).reshape(len(rows), -1).astype(np.int64)
        counts = np.asarray(getattr(found, "counts", [keys.shape[1]])).reshape(-1, 1)
        keys[np.arange(keys.shape[1]) >= counts] = -1
        return torch.from_numpy(keys)

    def best(self, scorer: VectorScorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
        """Proposed, re-scored by f, cleared of what is unwanted; rows left with too few are done exactly."""
        few = wanted.allowed is not None and int(wanted.allowed.sum()) < self.n_items // 2
        if few or not len(rows):
            # Most of what the index finds would be thrown away, and few are left to be scored.
            yield from exact_best(scorer, rows, wanted)
            return
        usual = max(_POOL, _POOL_PER_K * wanted.k)
        for block in torch.split(rows, max(1, SCORES_AT_ONCE // (4 * usual))):
            had = 0 if wanted.seen is None else int(wanted.seen.degrees[block].max())
            proposed = self.propose(scorer, block, usual + had)
            scores = scorer.score_rows(block, proposed.clamp_min(0))
            scores = scores.masked_fill(self._unwanted(block, proposed, wanted), -torch.inf)
            best, places = scores.topk(min(wanted.k, scores.shape[1]), dim=1)
            items = proposed.gather(1, places)
            short = best[:, -1].isneginf().nonzero().squeeze(1)
            done = 0
            for rows_again, exact_items, exact in exact_best(scorer, block[short], wanted):
                again = short[done : done + len(rows_again)]
                items[again, : exact.shape[1]], best[again, : exact.shape[1]] = exact_items, exact
                done += len(rows_again)
            yield Best(block, items, best)

    def _unwanted(
        self, rows: Int64[Tensor, " b"], proposed: Int64[Tensor, "b p"], wanted: Wanted
    ) -> Bool[Tensor, "b p"]:
        unwanted = proposed < 0
        items = proposed.clamp_min(0)
        if wanted.allowed is not None:
            unwanted |= ~wanted.allowed[items]
        if wanted.seen is not None:
            nodes = rows.repeat_interleave(items.shape[1])
            unwanted |= wanted.seen.contains(nodes, items.flatten()).view_as(items)
        return unwanted

    def _recall(self, scorer: VectorScorer) -> float:
        """Of some users' exact best, the share that the index proposes for a list of that length."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(scorer.n_users, generator=generator)[:_TESTED_USERS]
        found, total = 0, 0
        for block, items, _ in exact_best(scorer, rows, Wanted(_TESTED_K, None, None)):
            proposed = self.propose(scorer, block, max(_POOL, _POOL_PER_K * _TESTED_K))
            found += int((items.unsqueeze(2) == proposed.unsqueeze(1)).any(2).sum())
            total += items.numel()
        return found / max(total, 1)


def _points(
    similarity: Similarity, vectors: Float[Tensor, "n d"]
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Points of users and of items that the index's measure orders as f does (without its modulation)."""
    x = vectors.detach()
    if isinstance(similarity, Euclidean):
        return _as_points(within_ball(x))
    is_product = isinstance(similarity, Dot) or (
        isinstance(similarity, Modulated) and not similarity.normalise
    )
    return _as_points(x if is_product else unit(x))


def _as_points(x: Float[Tensor, "n d"]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    points: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.ascontiguousarray(
        x.numpy(), dtype=np.float32
    )
    return points


def _empty_index(dim: int, similarity: Similarity) -> Any:
    try:
        from usearch.index import Index as Graph
    except ImportError as cause:
        raise ConfigError(
            "an index of candidates needs usearch; install it with: pip install 'hdccf[index]'"
        ) from cause
    # Products as they are: turned into distances, an item without a direction of its own is near to everybody
    # and leads every search astray (decision 112).
    measure = "l2sq" if isinstance(similarity, Euclidean) else "ip"
    return Graph(ndim=dim, metric=measure, dtype="f32", connectivity=32, expansion_add=128)

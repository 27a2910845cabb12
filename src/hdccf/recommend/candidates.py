"""Candidates: the exact top-k of a catalogue, and an approximate index for very large ones.

The index proposes, and the model's f re-scores. It is faiss's product quantisation (`IndexPQFastScan`, the
extra `index`): four bits for one or two numbers make an item so short that a million are scanned in about a
millisecond (decision 22). What is lost is what the index does not propose. How many proposals it takes to
lose little, and which items are too short to be among the best, is learnt from some users when it is built;
how much it loses is then measured on others.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from hdccf.data.graph import Neighbours
from hdccf.errors import ConfigError
from hdccf.evaluation.ranking import top_k
from hdccf.models.base import Scorer, VectorScorer
from hdccf.models.calibration import CalibratedScorer

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
    diversity: float = 0.0
    """0 orders by score alone, 1 by variety alone; see `diversified`."""


def exact_best(scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
    """By the scores of everything that is allowed, some rows at a time."""
    columns = None if wanted.allowed is None else wanted.allowed.nonzero().squeeze(1)
    width = scorer.n_items if columns is None else len(columns)
    for block in torch.split(rows, max(1, SCORES_AT_ONCE // max(width, 1))):
        scores = scorer.score_block(block, columns)
        if wanted.seen is not None:
            if not isinstance(scorer, VectorScorer | CalibratedScorer):
                scores = scores.clone()  # it may be the scorer's own memory; a product or a sum never is
            at, places, _ = wanted.seen.within(block, columns)
            scores[at, places] = -torch.inf
        best, places = map(torch.from_numpy, top_k(scores.cpu().numpy(), min(wanted.k, width)))
        yield Best(block, places if columns is None else columns[places], best)


_POOL = 100
"""Candidates that a list is chosen from where it is to be diverse, at least four for each place."""
_LISTS_AT_ONCE = 256


def pool_size(k: int) -> int:
    """How many of the best a diverse list of k is chosen from."""
    return max(_POOL, 4 * k)


def diversified(
    best: Best, k: int, diversity: float, similarity: Callable[[Int64[Tensor, "b p"]], Float[Tensor, "b p p"]]
) -> Best:
    """Chooses k of the best by maximal marginal relevance (Carbonell and Goldstein, 1998).

    One after the other the item with the greatest (1 − d)·relevance − d·(greatest similarity to an item that
    is already in the list), d the diversity. Relevance is the score, 0 for the last of the candidates and 1
    for the best.
    """
    parts = []
    for rows, items, scores in zip(*(torch.split(each, _LISTS_AT_ONCE) for each in best), strict=True):
        taken, alike, every = scores.isneginf(), similarity(items), torch.arange(len(rows))
        least = scores.masked_fill(taken, torch.inf).amin(1, keepdim=True)
        span = scores.amax(1, keepdim=True) - least
        relevance = ((scores - least) / span.clamp_min(torch.finfo(scores.dtype).tiny)).clamp_min(0)
        nearest, order = torch.zeros_like(scores), []
        for place in range(min(k, items.shape[1])):
            gain = (1 - diversity) * relevance - diversity * nearest
            order.append(gain.masked_fill(taken, -torch.inf).argmax(1))
            taken = taken.index_put((every, order[-1]), torch.tensor(True))
            near = alike[every, order[-1]]
            nearest = torch.maximum(nearest, near) if place else near
        chosen = torch.stack(order, 1)
        # Where no candidate is left the first one comes again: it is filled up, as elsewhere.
        left = torch.arange(chosen.shape[1]) < (~scores.isneginf()).sum(1, keepdim=True)
        parts.append((rows, items.gather(1, chosen), scores.gather(1, chosen).masked_fill(~left, -torch.inf)))
    return Best(*(torch.cat(each) for each in zip(*parts, strict=True))) if parts else best


_K = 10
"""The length of the lists from which it learns how many proposals they take."""
_LEARNT_FROM, _TESTED_ON = 1000, 100
_FOUND = 0.9925
"""The share of the exact best that should be proposed: .99 and what a thousand users may be wrong by."""
_TOO_SHORT = 0.001
"""The share of the exact best that may be lost as items too short to be proposed."""
_FEWEST, _MOST = 200, 4000
"""Proposals for a list of ten: fewer save nothing, more take longer than what they find is worth."""
_FEW = 200_000
"""Up to so many items a scan is short, and each number can have four bits; of more, two share them."""
_MOST_CODES = 256
"""Sums of more codes would not fit into faiss's sixteen bits."""
_ITEMS_AT_ONCE = 96
"""Items in a block of codes; with 32, which is faiss's default, a scan takes a fifth longer."""
_SHARD = 200_000
"""Items that are worth a thread of their own."""
_CODES_LEARNT_FROM = 1 << 14


Points = NDArray[np.float32]


class Index:
    """Item vectors as short codes, and what is to be known about asking them."""

    _FILTERED = 200
    """Proposals of an item–item filter."""

    def __init__(self, scorer: Scorer, log_frequency: Float[Tensor, " items"] | None = None) -> None:
        """Of scores by vectors, calibrated or not; how much the index loses is measured on these scores.

        With `log_frequency` its proposals follow the popularity dial.
        """
        started = time.monotonic()
        generator = torch.Generator().manual_seed(0)
        users = torch.randperm(scorer.n_users, generator=generator)
        # Of few users the same have to do for both.
        learning, tested = users[:_LEARNT_FROM], users[-_TESTED_ON:]
        vectors = vectors_of(scorer)
        points = _points(vectors.similarity.item_points(vectors.items.embedding.detach()))
        if isinstance(scorer, CalibratedScorer) and scorer.scale is not None:
            points *= _points(scorer.scale[:, None])
        best = _exactly(scorer, learning)
        self.n_items = len(points)
        self._items = _long_enough(points, best)
        distances = vectors.similarity.is_distance
        if log_frequency is not None and not distances:
            # One more number an item, so that the product of a user's point with it has the popularity shift.
            points = np.hstack([points, _points(log_frequency[:, None])])
        self._width = points.shape[1]
        if not distances:
            # By their mean product with the users: a scan in this order soon has a high threshold.
            liked = (points @ self._user_points(scorer, learning).mean(0))[self._items]
            self._items = self._items[np.argsort(-liked, kind="stable")]
        self._codes = Codes(points[self._items], distances=distances)
        self.proposals = self._enough(scorer, learning, best)
        self.recall = float(self._places(scorer, tested, _exactly(scorer, tested), self.proposals)[1].mean())
        self.seconds = time.monotonic() - started

    def __repr__(self) -> str:
        return (
            f"index of {self.n_items:,} items, built in {self.seconds:.1f} s: "
            f"recall@{_K} {self.recall:.3f} against exact scoring with {self.proposals} proposals"
        )

    def best(self, scorer: Scorer, rows: Int64[Tensor, " n"], wanted: Wanted) -> Iterator[Best]:
        """Proposed, re-scored, cleared of what is unwanted; rows left with too few are done exactly."""
        few = wanted.allowed is not None and int(wanted.allowed.sum()) < self.n_items // 2
        if few or not len(rows):
            # Most of what the index finds would be thrown away, and few are left to be scored.
            yield from exact_best(scorer, rows, wanted)
            return
        usual = self.proposals * -(-wanted.k // _K)
        for block in torch.split(rows, max(1, SCORES_AT_ONCE // (4 * usual))):
            had = 0 if wanted.seen is None else int(wanted.seen.degrees[block].max())
            proposed = self.propose(scorer, block, usual + had)
            scores = scorer.score_rows(block, proposed.clamp_min(0))
            scores = scores.masked_fill(_unwanted(block, proposed, wanted), -torch.inf)
            best, places = map(torch.from_numpy, top_k(scores.numpy(), min(wanted.k, scores.shape[1])))
            items = proposed.gather(1, places)
            short = best[:, -1].isneginf().nonzero().squeeze(1)
            done = 0
            for rows_again, exact_items, exact in exact_best(scorer, block[short], wanted):
                again = short[done : done + len(rows_again)]
                items[again, : exact.shape[1]], best[again, : exact.shape[1]] = exact_items, exact
                done += len(rows_again)
            yield Best(block, items, best)

    def propose(self, scorer: Scorer, rows: Int64[Tensor, " b"], pool: int) -> Int64[Tensor, "b p"]:
        """The `pool` items that are probably the best of each row, most probable first; −1 fills up."""
        pool = min(pool, len(self._items))
        if not len(rows):
            return torch.empty((0, pool), dtype=torch.int64)
        found = self._codes.best(self._user_points(scorer, rows), pool)
        proposed = np.where(found < 0, -1, self._items[found])
        filtered = scorer.filtered if isinstance(scorer, CalibratedScorer) else None
        if filtered is None:
            return torch.from_numpy(proposed)
        # Rare co-occurrences are what the vectors do not know: the filter proposes its own best.
        more = np.full((len(rows), self._FILTERED), -1, np.int64)
        for row, (user, known) in enumerate(zip(rows.tolist(), proposed, strict=True)):
            own = filtered.candidates(user, self._FILTERED)
            own = own[~np.isin(own, known)]
            more[row, : len(own)] = own
        return torch.from_numpy(np.hstack([proposed, more]))

    def _user_points(self, scorer: Scorer, users: Int64[Tensor, " b"]) -> Points:
        vectors = vectors_of(scorer)
        points = _points(vectors.similarity.user_points(vectors.users.embedding[users].detach()))
        if points.shape[1] == self._width:
            return points
        coefficient = scorer.coefficient if isinstance(scorer, CalibratedScorer) else 0.0
        return np.hstack([points, np.full((len(points), 1), coefficient, np.float32)])

    def _enough(self, scorer: Scorer, rows: Int64[Tensor, " b"], best: NDArray[np.int64]) -> int:
        """Among how many proposals the share that should be found of the best is found."""
        places, found = self._places(scorer, rows, best, _MOST)
        places = np.sort(np.where(found, places, _MOST - 1).ravel())
        return max(_FEWEST, int(places[int(_FOUND * (len(places) - 1))]) + 1)

    def _places(
        self, scorer: Scorer, rows: Int64[Tensor, " b"], best: NDArray[np.int64], pool: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where each of the best is among the proposals of its row, and whether it is."""
        proposed = self.propose(scorer, rows, pool).numpy()
        places, found = np.zeros(best.shape, np.int64), np.zeros(best.shape, np.bool_)
        for column in range(best.shape[1]):
            same = proposed == best[:, column, None]
            places[:, column], found[:, column] = same.argmax(1), same.any(1)
        return places, found


def _exactly(scorer: Scorer, rows: Int64[Tensor, " b"]) -> NDArray[np.int64]:
    parts = [best.items for best in exact_best(scorer, rows, Wanted(_K, None, None))]
    items: NDArray[np.int64] = torch.cat(parts).numpy()
    return items


def _long_enough(points: Points, best: NDArray[np.int64]) -> NDArray[np.int64]:
    """Items from the longest on, twice as many as have all but a thousandth of the best.

    Of dot products a tenth of the items can have nearly all; of a cosine all items are equally long, so that
    all of them stay.
    """
    order = np.argsort(-np.einsum("nd,nd->n", points, points), kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return order[: 2 * (int(np.quantile(places[best], 1 - _TOO_SHORT)) + 1)]


def _unwanted(
    rows: Int64[Tensor, " b"], proposed: Int64[Tensor, "b p"], wanted: Wanted
) -> Bool[Tensor, "b p"]:
    unwanted = proposed < 0
    items = proposed.clamp_min(0)
    if wanted.allowed is not None:
        unwanted |= ~wanted.allowed[items]
    if wanted.seen is not None:
        nodes = rows.repeat_interleave(items.shape[1])
        unwanted |= wanted.seen.contains(nodes, items.flatten()).view_as(items)
    return unwanted


def vectors_of(scorer: Scorer) -> VectorScorer:
    """The scores by vectors, before their calibration."""
    inner = scorer.inner if isinstance(scorer, CalibratedScorer) else scorer
    if not isinstance(inner, VectorScorer):
        raise ConfigError("the model has no item vectors to index; leave out index_above")
    return inner


def _points(vectors: Tensor) -> Points:
    points: Points = np.ascontiguousarray(vectors.numpy(), dtype=np.float32)
    return points


class Codes:
    """Rows of points, to be asked for those with the largest products or the smallest distances."""

    def __init__(self, points: Points, *, distances: bool) -> None:
        faiss = _faiss()
        numbers = max(1 if len(points) <= _FEW else 2, math.ceil(points.shape[1] / _MOST_CODES))
        codes = math.ceil(points.shape[1] / numbers)
        self._width = codes * numbers
        points = self._padded(points)
        metric = faiss.METRIC_L2 if distances else faiss.METRIC_INNER_PRODUCT
        empty = faiss.IndexPQ(self._width, codes, 4, metric)
        empty.train(_sample(points, by_length=not distances))
        shares = min(torch.get_num_threads(), math.ceil(len(points) / _SHARD))
        scanned = []
        for part in np.array_split(points, shares):
            coded = faiss.clone_index(empty)
            coded.add(part)
            scanned.append(faiss.IndexPQFastScan(coded, _ITEMS_AT_ONCE))
        self._index = scanned[0]
        if shares > 1:
            self._index = faiss.IndexShards(self._width, True, True)  # each in a thread, numbered through
            for part in scanned:
                self._index.add_shard(part)

    def best(self, points: Points, n: int) -> NDArray[np.int64]:
        """The n best rows for each point, nearly in order; −1 fills up."""
        found: NDArray[np.int64] = self._index.search(self._padded(points), n)[1]
        return found

    def _padded(self, points: Points) -> Points:
        missing = self._width - points.shape[1]
        return np.pad(points, ((0, 0), (0, missing))) if missing else points


def _sample(points: Points, by_length: bool) -> Points:
    """What the codes are learnt from: long vectors have the largest products, so theirs should be exact."""
    rng = np.random.default_rng(0)
    if not by_length:
        return points[rng.integers(len(points), size=_CODES_LEARNT_FROM)]
    weights = np.square(np.einsum("nd,nd->n", points, points, dtype=np.float64)) + np.finfo(np.float64).tiny
    return points[rng.choice(len(points), _CODES_LEARNT_FROM, p=weights / weights.sum())]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as cause:
        raise ConfigError(
            "an index of candidates needs faiss; install it with: pip install 'hdccf[index]'"
        ) from cause
    return faiss

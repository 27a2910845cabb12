"""Sampled and full ranking of held-out items through one rank function, and the top-k of each row of scores.

A rank is two counts: how many candidates score strictly more, and how many score the same. Metrics take their
expectation over the random orders of tied candidates from these; nothing is sorted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from hdccf.config import EvaluationOptions
from hdccf.console import progress_bar
from hdccf.data.split import Split
from hdccf.data.splitmix import mix
from hdccf.errors import EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CACHE, Candidates, IndexArray, Queries, frozen_candidates
from hdccf.evaluation.metrics import Lists, Ranks, Values
from hdccf.models.base import Scorer

Scores = NDArray[np.floating[Any]]

PROTOCOLS = ("sampled", "full")
DEFAULT_MEMORY = EvaluationOptions().memory
"""MiB for a block of scores and what is computed from it."""
_FULL_BLOCK = 1 << 20
"""Scores at once in full ranking: about what the processor's caches hold; larger blocks are slower …"""
_FEWEST_ROWS = 64
"""… but a product of fewer rows is slower still."""
_COMPARED = 1 << 17
"""Scores that are compared at once, for the same reason: a user's held-out items one after another."""
_SAMPLED_BLOCK = 1 << 16
"""Scores at once in sampled ranking: each needs its own item vector beside it."""
_BYTES_A_SCORE = 64
"""The score, the comparison, and what ordering ties in the selection of the best needs at its worst."""


class Counts(NamedTuple):
    """Of each held-out item: its score, the candidates that score more, and the same (itself included)."""

    scores: Scores
    above: IndexArray
    tied: IndexArray


def rank_counts(table: Scores, columns: IndexArray, starts: IndexArray) -> Counts:
    """Counts each held-out item's rank among its row's candidates.

    The held-out items of row k are `columns[starts[k]:starts[k + 1]]`; rows with more of them come first.
    What is no candidate has the score −∞.
    """
    held_out = np.diff(starts)
    own = table[np.repeat(np.arange(len(table)), held_out), columns]
    above, reached = np.empty(len(own), np.int64), np.empty(len(own), np.int64)
    step = max(1, _COMPARED // table.shape[1])
    work = np.empty((min(step, len(table)), table.shape[1]), np.bool_)
    for begin in range(0, len(table), step):
        some, counts = table[begin : begin + step], held_out[begin : begin + step]
        for turn in range(int(counts[0])):
            rows = int(np.count_nonzero(counts > turn))
            pairs = starts[begin : begin + rows] + turn
            level, flags = own[pairs, None], work[:rows]
            for compare, counted in ((np.greater, above), (np.greater_equal, reached)):
                compare(some[:rows], level, out=flags)
                # One call a row: NumPy counts a whole row with vector instructions, but not along an axis.
                counted[pairs] = list(map(np.count_nonzero, flags))
    return Counts(own, above, reached - above)


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranks of held-out items under a protocol, and the top-k lists."""

    ranks: Ranks
    lists: Lists | None
    """The best items of each user, best first, −1 where there were no more; None if not asked for."""


class Ranker:
    """Ranks the held-out items of a part of a split; prepared once, then cheap to reuse for many scorers.

    Parameters
    ----------
    split, part
        The split, and "validation" or "test".
    negatives, weighting, seed, memory, folder
        As in `evaluate`.
    drawn
        Returns frozen negatives from another place than `folder`.
    first_user
        Where the split is a shard of users, the number of its user 0 among all: the order of tied items in
        lists depends on it.

    Examples
    --------
    >>> split = hdccf.leave_one_out(hdccf.synthetic_world(1500, n_users=100, n_items=200).interactions)
    >>> ranker, model = Ranker(split, "validation"), hdccf.fit(split, hdccf.MostPopular())
    >>> 0 < ranker.measure(model, ("ndcg@10",), ("full",))["full"]["ndcg@10"] < 1
    True
    """

    def __init__(
        self,
        split: Split,
        part: str = "validation",
        *,
        negatives: int = 99,
        weighting: str = "uniform",
        seed: int = 0,
        memory: int = DEFAULT_MEMORY,
        folder: Path | None = CACHE,
        drawn: Callable[[], Candidates] | None = None,
        first_user: int = 0,
    ) -> None:
        if memory < 1:
            raise EvaluationError(
                f"memory={memory} MiB is too little; use 1 or more, usually {DEFAULT_MEMORY}"
            )
        self.queries = Queries.of(split, part)
        self.split = split
        self.seed, self.first_user = seed, first_user
        self._memory = memory * (1 << 20)
        self._draw = drawn or partial(
            frozen_candidates, split, part, negatives=negatives, weighting=weighting, seed=seed, folder=folder
        )

    @cached_property
    def frozen(self) -> Candidates:
        """The negatives of sampled ranking, of all users; read or drawn when they are first needed."""
        return self._draw()

    @cached_property
    def negatives(self) -> NDArray[np.int32]:
        """The frozen negatives in the order of the queries."""
        return self.frozen.of(self.queries.users)

    def candidates(self, protocol: str) -> IndexArray:
        """How many items each user's held-out ones are ranked among, themselves included."""
        if protocol == "full":
            return self.split.n_items - self.queries.excluded
        drawn: IndexArray = np.count_nonzero(self.negatives >= 0, axis=1)
        return drawn + self.queries.held_out

    def chance(self, protocol: str, name: str) -> Values:
        """Each user's expected value of a metric in a random order; NaN without anything to rank against."""
        held_out, starts = self.queries.held_out, self.queries.starts
        candidates = self.candidates(protocol)
        # An order that knows nothing: every candidate has the same score.
        tied = np.repeat(candidates, held_out)
        above = np.zeros_like(tied)
        ranks = Ranks.from_counts(starts, above, above, tied, candidates - held_out)
        return metrics.per_user(ranks, name)

    def measure(
        self, scorer: Scorer, names: tuple[str, ...] = ("ndcg@10",), protocols: tuple[str, ...] = ("sampled",)
    ) -> dict[str, dict[str, float]]:
        """The mean of each named accuracy metric under each protocol, and nothing else."""
        means: dict[str, dict[str, float]] = {}
        for protocol in check_protocols(protocols):
            ranks = self.rank(scorer, protocol).ranks
            means[protocol] = {name: metrics.mean(metrics.per_user(ranks, name)) for name in names}
        return means

    @torch.inference_mode()
    def rank(self, scorer: Scorer, protocol: str, *, top: int = 0, progress: bool = False) -> Ranking:
        """Ranks every held-out item. With `top`, also lists each user's best items (full ranking only)."""
        queries = self.queries
        blocks = self._full if protocol == "full" else self._sampled
        lists = np.full((len(queries), top), -1, np.int32) if top else None
        counts: list[Counts] = []
        with progress_bar(f"{protocol} ranking", len(queries), enabled=progress) as advance:
            for start, stop, found in blocks(scorer_for(scorer, self.split), lists):
                counts.append(found)
                advance(stop - start)
        scores, above, tied = (np.concatenate(parts) for parts in zip(*counts, strict=True))
        negatives = self.candidates(protocol) - queries.held_out
        return Ranking(Ranks.from_counts(queries.starts, scores, above, tied, negatives), lists)

    def ranks_of_lists(self, lists: NDArray[np.integer[Any]]) -> Ranks:
        """The ranks of held-out items in given lists: a row for each query, best first.

        An item in no list has a rank beyond them all: metrics hold up to the lists' length, AUC does not.
        """
        queries = self.queries
        rows = np.repeat(np.arange(len(queries)), queries.held_out)
        hits = lists[rows] == queries.items[:, None]
        above = np.where(hits.any(1), hits.argmax(1), self.split.n_items)
        negatives = self.candidates("full") - queries.held_out
        return Ranks.from_counts(queries.starts, -above, above, np.ones_like(above), negatives)

    def _rows_at_once(self, columns: int, fastest: int) -> int:
        return max(1, min(fastest // columns, self._memory // (_BYTES_A_SCORE * columns)))

    def _full(self, scorer: Scorer, lists: Lists | None) -> Iterator[tuple[int, int, Counts]]:
        queries, n_items = self.queries, self.split.n_items
        rows = self._rows_at_once(n_items, max(_FULL_BLOCK, _FEWEST_ROWS * n_items))
        for start in range(0, len(queries), rows):
            stop = min(start + rows, len(queries))
            users = queries.users[start:stop]
            given = scorer.score_block(torch.from_numpy(users))
            scores = _checked(given, (stop - start, n_items), scorer)
            pairs = slice(int(queries.starts[start]), int(queries.starts[stop]))
            columns = queries.items[pairs]
            with _masked(scores, queries.excluded_cells(start, stop)):
                found = rank_counts(scores, columns, queries.starts[start : stop + 1] - pairs.start)
                if lists is not None:
                    lists[start:stop] = top_items(scores, lists.shape[1], users + self.first_user, self.seed)
            self._refuse_training_items(found, pairs.start)
            yield start, stop, found

    def _sampled(self, scorer: Scorer, _: Lists | None) -> Iterator[tuple[int, int, Counts]]:
        queries = self.queries
        start = 0
        while start < len(queries):
            # Users with the most held-out items come first, so the first row of a block is its widest.
            most = int(queries.held_out[start])
            width = most + self.negatives.shape[1]
            stop = min(start + self._rows_at_once(width, _SAMPLED_BLOCK), len(queries))
            pairs = slice(int(queries.starts[start]), int(queries.starts[stop]))
            starts = queries.starts[start : stop + 1] - pairs.start
            columns = np.arange(pairs.stop - pairs.start) - np.repeat(starts[:-1], np.diff(starts))
            rows = np.repeat(np.arange(stop - start), np.diff(starts))
            items = np.full((stop - start, width), -1, np.int64)
            items[rows, columns] = queries.items[pairs]
            items[:, most:] = self.negatives[start:stop]
            users = torch.from_numpy(queries.users[start:stop])
            given = scorer.score_rows(users, torch.from_numpy(np.maximum(items, 0)))
            scores = _checked(given, (stop - start, width), scorer)
            with _masked(scores, np.flatnonzero(items < 0)):
                found = rank_counts(scores, columns, starts)
            yield start, stop, found
            start = stop

    def _refuse_training_items(self, found: Counts, first_pair: int) -> None:
        """A held-out item that lost its score with the training items was one of them."""
        lost = np.flatnonzero(np.isneginf(found.scores))
        if not len(lost):
            return
        pair = first_pair + int(lost[0])
        user = self.queries.users[np.searchsorted(self.queries.starts, pair, side="right") - 1]
        earlier = "training" if self.queries.part == "validation" else "training or validation"
        raise EvaluationError(
            f"user {self.split.train.user_ids[int(user)]!r} has the {self.queries.part} item "
            f"{self.split.train.item_ids[int(self.queries.items[pair])]!r} in {earlier} too; "
            "a held-out pair must not be learnt from: split the data again"
        )


@contextmanager
def _masked(scores: Scores, cells: IndexArray) -> Iterator[None]:
    """Sets cells of a block to −∞, and then puts the scores back: the memory may be the scorer's own."""
    flat = scores.reshape(-1)
    saved = flat[cells]
    flat[cells] = -np.inf
    try:
        yield
    finally:
        flat[cells] = saved


def _checked(given: Tensor, shape: tuple[int, int], scorer: Scorer) -> Scores:
    """Finite scores of the right shape in a layout that can be worked on, or an error.

    From here on NumPy works on them: its comparisons and selections are faster than those of torch on as many
    threads as a small machine has, and do not wait for other threads on a busy one.
    """
    if tuple(given.shape) != shape:
        raise EvaluationError(
            f"the scorer gave {tuple(given.shape)} scores where {shape} were asked for (users, items); "
            "return one score for each user and item"
        )
    if given.dtype not in (torch.float32, torch.float64):
        given = given.float()
    scores: Scores = given.contiguous().numpy(force=True)
    # One number tells of any NaN or infinity in the block; only then is it worth looking where.
    with np.errstate(all="ignore"):
        suspect = not np.isfinite(scores.sum())
    wrong = int(np.count_nonzero(~np.isfinite(scores))) if suspect else 0
    if wrong:
        raise EvaluationError(
            f"{wrong} of {scores.size} scores of {type(scorer).__name__} are NaN or infinite, so their order "
            "means nothing; look for a diverged training or a division by zero in the model"
        )
    return scores


def check_protocols(protocols: tuple[str, ...]) -> tuple[str, ...]:
    """The protocols without repeats; refuses unknown ones."""
    unknown = [protocol for protocol in protocols if protocol not in PROTOCOLS]
    if unknown or not protocols:
        given = unknown[0] if unknown else protocols
        raise EvaluationError(f"protocol={given!r} is unknown; choose from {list(PROTOCOLS)}")
    return tuple(dict.fromkeys(protocols))


class PaddedScorer:
    """Gives an unknown user the same score for everything, and an unknown item the lowest score there is.

    So an unknown user counts with what a random order would reach, an unknown item comes after all known
    ones, and every model is evaluated on the same users.
    """

    def __init__(self, scorer: Scorer, n_users: int, n_items: int) -> None:
        self._known, self.n_users, self.n_items = scorer, n_users, n_items

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        items = torch.arange(self.n_items) if items is None else items
        known_users, known_items = users < self._known.n_users, items < self._known.n_items
        if not known_users.any() or not known_items.any():
            return torch.zeros(len(users), len(items))
        scored = self._known.score_block(users[known_users], items[known_items])
        scores = torch.full((len(users), len(items)), torch.finfo(scored.dtype).min, dtype=scored.dtype)
        scores[known_users.nonzero(), known_items.nonzero().T] = scored
        scores[~known_users] = 0
        return scores

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        known_users, known_items = users < self._known.n_users, items < self._known.n_items
        if not known_users.any():
            return torch.zeros(items.shape)
        # An unknown item is looked up as item 0, and its score then replaced.
        asked = torch.where(known_items, items, 0)[known_users]
        scored = self._known.score_rows(users[known_users], asked)
        scores = torch.zeros(items.shape, dtype=scored.dtype)
        scores[known_users] = scored.masked_fill(~known_items[known_users], torch.finfo(scored.dtype).min)
        return scores


def scorer_for(scorer: Scorer, split: Split) -> Scorer:
    """The scorer for a split: refused if trained on other data, padded if it knows fewer users or items."""
    own = getattr(scorer, "split", None)
    if isinstance(own, Split) and own is not split and own.fingerprint != split.fingerprint:
        raise EvaluationError(
            f"the model was trained on the split {own.fingerprint}, but is asked about {split.fingerprint}: "
            "its ids mean something else there; evaluate it on its own split"
        )
    if scorer.n_users > split.n_users or scorer.n_items > split.n_items:
        raise EvaluationError(
            f"the model knows {scorer.n_users} users and {scorer.n_items} items, the split only "
            f"{split.n_users} and {split.n_items}, so they were not made from the same data; use the split "
            "that the model was trained on"
        )
    if scorer.n_users == split.n_users and scorer.n_items == split.n_items:
        return scorer
    return PaddedScorer(scorer, split.n_users, split.n_items)


# -- top-k ---------------------------------------------------------------------------------------------------


def top_items(scores: Scores, k: int, users: IndexArray, seed: int) -> Lists:
    """The columns of the `k` highest scores of each row, best first; −1 where only −∞ is left.

    Tied columns are ordered by a hash of seed, user and column: random, different from user to user, and the
    same whatever the size of the blocks.
    """
    k_all = min(k, scores.shape[1])
    # One more than needed: a tie across the edge of the list is then a tie within the selection.
    values, columns = top_k(scores, min(k_all + 1, scores.shape[1]))
    ties = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -np.inf)).any(1)
    values, columns = values[:, :k_all], columns[:, :k_all]
    for row in np.flatnonzero(ties):
        own = scores[row]
        pool = np.flatnonzero((own >= values[row, -1]) & (own > -np.inf))
        order = np.lexsort((_hash(users[row : row + 1], pool, seed), -own[pool]))[:k_all]
        columns[row, : len(order)] = pool[order]
    chosen = np.full((len(scores), k), -1, np.int32)
    chosen[:, :k_all] = np.where(values == -np.inf, -1, columns)
    return chosen


def top_k(scores: Scores, k: int) -> tuple[Scores, IndexArray]:
    """The k highest values of each row, highest first, and their columns."""
    values, columns = torch.topk(torch.from_numpy(scores), k)
    return values.numpy(), columns.numpy()


def _hash(users: IndexArray, columns: IndexArray, seed: int) -> NDArray[np.uint64]:
    """A number for each user and column, by SplitMix64; unsigned numbers wrap around."""
    mixed = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = mixed + columns.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    return mix(mixed + np.uint64(seed * 0x94D049BB133111EB % 2**64))

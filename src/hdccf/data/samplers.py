"""Samplers: which pairs are positive in a step, and the negatives they are compared with.

A sampler is built once from the training graph. `epoch(generator)` yields the batches of one pass over it,
drawn from that generator alone. No batch holds anything that grows with users × items.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.batches import (
    NO_ITEM,
    Block,
    History,
    InBatch,
    NegativeColumns,
    PairBatch,
    Pool,
    SampledBatch,
    Windows,
    cut_histories,
    cut_windows,
)
from hdccf.data.graph import Along, Graph, Neighbours, expand, pairs_between
from hdccf.errors import ConfigError

T = TypeVar("T")

NEARLY_ALL = 7 / 8


@dataclass(frozen=True)
class PairSampler:
    """Every training pair once an epoch, in random order; but for users who have had every item, who have
    nothing left that could stand against theirs.

    With `by_user` users come in random order, each with all their pairs: a model whose user vector is made of
    all of a user's items then makes it once an epoch and not once a pair. A batch ends with the user who
    fills it.
    """

    graph: Graph
    weights: Along
    batch_size: int
    by_user: bool = False
    least: int = 1
    """A last batch smaller than this joins the one before it."""

    def __len__(self) -> int:
        # Which users share a batch depends on their order; about as many pairs make about as many batches.
        return len(batch_sizes(self._n_pairs, self.batch_size, self.least))

    @cached_property
    def _able(self) -> Int64[Tensor, " a"]:
        degrees = self.graph.items_of.degrees
        return ((degrees > 0) & (degrees < self.graph.n_items)).nonzero().squeeze(1)

    @cached_property
    def _n_pairs(self) -> int:
        return int(self.graph.items_of.degrees[self._able].sum())

    def _pairs_of(self, users: Int64[Tensor, " u"]) -> Int64[Tensor, " n"]:
        return expand(self.graph.items_of.starts[users], self.graph.items_of.degrees[users])[1]

    def epoch(self, generator: torch.Generator) -> Iterator[PairBatch]:
        if self._n_pairs < self.least:
            raise ConfigError(
                f"{self._n_pairs} training pairs are of users who have not had every item, and these "
                f"negatives need {self.least}; add items, or take another sampler"
            )
        for chosen in self._entries(generator):
            # Much faster than an index in brackets, which is made for any number of axes.
            users, items = self.graph.users_at(chosen), self.graph.items_of.at(chosen)
            yield PairBatch(users, items, self.weights.index_select(0, chosen))

    def _entries(self, generator: torch.Generator) -> Iterator[Int64[Tensor, " b"]]:
        """The places in `items_of.flat` of each batch's pairs."""
        if not self.by_user:
            entries = self._pairs_of(self._able)
            for places in shuffled(self._n_pairs, self.batch_size, generator, self.least):
                yield entries[places]
            return
        users = self._able[torch.randperm(len(self._able), generator=generator)]
        ends = self.graph.items_of.degrees[users].cumsum(0)
        n_batches = len(self)
        targets = (torch.arange(1, n_batches) * self._n_pairs) // n_batches
        cuts = torch.unique(torch.searchsorted(ends, targets)) + 1
        for some in torch.tensor_split(users, cuts[cuts < len(users)]):
            yield self._pairs_of(some)


@dataclass(frozen=True)
class InBatchSampler:
    """`in-batch` (Eq. 9), the paper's: negatives taken for free from the batch."""

    graph: Graph
    weights: Along
    batch_size: int
    neighbours: int

    def __len__(self) -> int:
        return len(batch_sizes(self.graph.n_pairs, self.batch_size))

    def epoch(self, generator: torch.Generator) -> Iterator[InBatch]:
        if self.graph.n_pairs < 2:
            raise ConfigError("in-batch negatives need at least two training pairs; this data has one")
        for chosen in shuffled(self.graph.n_pairs, self.batch_size, generator):
            users, items = self.graph.users_at(chosen), self.graph.items_of.at(chosen)
            item_side = self._side(users, self.graph.items_of, self.graph.users_of, generator)
            user_side = self._side(items, self.graph.users_of, self.graph.items_of, generator)
            yield InBatch(users, items, self.weights[chosen], item_side, user_side)

    def _side(
        self,
        nodes: Int64[Tensor, " b"],
        neighbours: Neighbours,
        backwards: Neighbours,
        generator: torch.Generator,
    ) -> NegativeColumns:
        drawn = neighbours.draw(nodes, self.neighbours, generator)
        columns, own, counts = torch.unique(drawn, return_inverse=True, return_counts=True)
        rows, places = pairs_between(nodes, columns, neighbours, backwards)
        return NegativeColumns(columns, counts, own, rows, places)


@dataclass(frozen=True)
class UniformSampler:
    """`uniform` (Eq. 1): S negatives a side, uniformly, never an observed training pair."""

    graph: Graph
    weights: Along
    batch_size: int
    negatives: int
    neighbours: int

    def __len__(self) -> int:
        return len(batch_sizes(self.graph.n_pairs, self.batch_size, least=1))

    def epoch(self, generator: torch.Generator) -> Iterator[SampledBatch]:
        items_of, users_of = self.graph.items_of, self.graph.users_of
        for chosen in shuffled(self.graph.n_pairs, self.batch_size, generator, least=1):
            users, items = self.graph.users_at(chosen), items_of.at(chosen)
            negative_items = items_of.draw_others(users, self.negatives, generator)
            negative_users = users_of.draw_others(items, self.negatives, generator)
            neighbours = (
                items_of.draw(users, self.neighbours, generator),
                users_of.draw(items, self.neighbours, generator),
            )
            yield SampledBatch(
                users, items, self.weights[chosen], negative_items, negative_users, *neighbours
            )


@dataclass(frozen=True)
class UserBlocks:
    """What all samplers share that take users in blocks: who is in one, once an epoch."""

    graph: Graph
    weights: Along
    block_users: int

    least: ClassVar[int] = 1
    """Training pairs that a user needs."""

    def __len__(self) -> int:
        return len(batch_sizes(len(self._able), self.block_users, least=1))

    @cached_property
    def _able(self) -> Int64[Tensor, " a"]:
        return (self.graph.items_of.degrees >= self.least).nonzero().squeeze(1)

    def blocks(self, generator: torch.Generator) -> Iterator[Int64[Tensor, " b"]]:
        if len(self._able) == 0 and self.least > 1:
            raise ConfigError(
                "user_vector='history' needs a user with two training items or more; take 'free'"
            )
        for chosen in shuffled(len(self._able), self.block_users, generator, least=1):
            yield self._able[chosen]


@dataclass(frozen=True)
class BlockSampler(UserBlocks):
    """`block` (ours): every observed pair of a block of users is a positive.

    Up to `block_items` items the whole catalogue is the columns, and sums over a row are exact. A larger
    catalogue gives the block's own positives and as many drawn items as fill `block_items` up (and all of
    it where that would be nearly all).
    """

    block_items: int

    def epoch(self, generator: torch.Generator) -> Iterator[Block]:
        for users in self.blocks(generator):
            rows, items, entries = self.graph.items_of.within(users, None)
            columns, inclusion = block_columns(items, self.graph.n_items, self.block_items, generator)
            places = places_in(items, columns, self.graph.n_items)  # all of them are there
            weights = self.weights.index_select(0, entries)
            yield Block(users, columns, inclusion, rows, places, rows, places, weights, None)


@dataclass(frozen=True)
class HistoryBlockSampler(UserBlocks):
    """Blocks for a user vector made of the user's past: a random moment in each history cuts it.

    What came before the cut, at most `length` items of it, is the input, weighted
    floor + (1 − floor)·½^(age / half_life); the `ahead` items after it are the positives, weighted
    ½^(place / ahead_half_life) and by their own weight; what the user never touched are the negatives.
    """

    block_items: int
    half_life: float
    length: int
    ahead: int
    ahead_half_life: float
    floor: float = 0.0

    least: ClassVar[int] = 2  # a history of one has no past to learn its future from

    def epoch(self, generator: torch.Generator) -> Iterator[Block]:
        items_of = self.graph.items_of
        for users in self.blocks(generator):
            degrees, starts = items_of.degrees[users], items_of.starts[users]
            uniform = torch.rand(len(users), generator=generator, dtype=torch.float64)
            cuts = 1 + (uniform * (degrees - 1)).long().clamp_(max=degrees - 2)
            history = cut_histories(items_of, users, cuts, self.half_life, self.length, self.floor)
            yield _block_of_next_items(self, users, starts + cuts, history, generator)


@dataclass(frozen=True)
class PoolSampler(UserBlocks):
    """`pool`: every training pair of `block_users` users is a positive, against `negatives` drawn items.

    In a block the positives of all are columns, of a large catalogue most of them. Here they are not, so that
    a step takes as long as its draw is large.
    """

    negatives: int

    def epoch(self, generator: torch.Generator) -> Iterator[Pool]:
        n_items = self.graph.n_items
        size = min(self.negatives, n_items)
        inclusion = torch.full((size,), n_items / size)
        for users in self.blocks(generator):
            columns = distinct_below(n_items, size, generator)
            rows, items, entries = self.graph.items_of.within(users, None)
            places = places_in(items, columns, n_items)
            hits = (places >= 0).nonzero().squeeze(1)
            observed = rows.index_select(0, hits), places.index_select(0, hits)
            weights = self.weights.index_select(0, entries)
            yield Pool(users, columns, inclusion, *observed, rows, items, weights)


@dataclass(frozen=True)
class WindowBlockSampler(UserBlocks):
    """For user vectors that are made of a history in order, at all its places at once.

    Each user of a block has one window of `length` items, which ends at a random moment. Each of its places
    is a row: the items up to it are the input, the `ahead` items after it the positives, weighted
    ½^(place / ahead_half_life) and by their own weight; what the user never touched are the negatives.
    """

    block_items: int
    length: int
    ahead: int
    ahead_half_life: float

    least: ClassVar[int] = 2  # a history of one has no past to learn its future from

    def epoch(self, generator: torch.Generator) -> Iterator[Block]:
        items_of = self.graph.items_of
        for users in self.blocks(generator):
            # A window ends after at least `length` items where there are as many, and before the last item.
            most = items_of.degrees[users] - 1
            least = most.clamp(max=self.length)
            uniform = torch.rand(len(users), generator=generator, dtype=torch.float64)
            cuts = least + (uniform * (most - least + 1)).long().clamp_(max=most - least)
            windows = cut_windows(items_of, users, cuts, self.length)
            places = (windows.flatten() != NO_ITEM).nonzero().squeeze(1)
            which = places // self.length
            row_users = users[which]
            # The first item after each place, among all pairs.
            after = items_of.starts[row_users] + cuts[which] - self.length + places % self.length + 1
            yield _block_of_next_items(self, row_users, after, Windows(windows, places), generator)


def _block_of_next_items(
    sampler: HistoryBlockSampler | WindowBlockSampler,
    users: Int64[Tensor, " r"],
    after: Int64[Tensor, " r"],
    history: History | Windows,
    generator: torch.Generator,
) -> Block:
    """Rows whose positives are the `ahead` pairs from entry `after` on, the later ones with less weight."""
    graph, items_of = sampler.graph, sampler.graph.items_of
    left = items_of.starts[users + 1] - after
    rows, entries = expand(after, left.clamp(max=sampler.ahead))
    place = (entries - after[rows]).to(sampler.weights.dtype)
    positives = items_of.at(entries)
    columns, inclusion = block_columns(positives, graph.n_items, sampler.block_items, generator)
    seen_rows, seen_columns, _ = items_of.within(users, columns)
    places = places_in(positives, columns, graph.n_items)
    weights = torch.exp2(-place / sampler.ahead_half_life) * sampler.weights[entries]
    return Block(users, columns, inclusion, seen_rows, seen_columns, rows, places, weights, history)


# -- columns of a block --------------------------------------------------------------------------------------


def block_columns(
    positives: Int64[Tensor, " n"], n_items: int, size: int, generator: torch.Generator
) -> tuple[Int64[Tensor, " c"] | None, Float[Tensor, " c"] | None]:
    """A block's columns and how many items each stands for; None twice where the columns are the catalogue.

    Where nearly all items would be columns, all are: exact sums for an eighth more products at most, and
    nothing to draw or to look up. But `size` is never exceeded more than twice.
    """
    if n_items <= size:
        return None, None
    if n_items <= 2 * size:
        certain = int(np.count_nonzero(np.bincount(positives.numpy())))
        if max(size, 2 * certain) > NEARLY_ALL * n_items:
            return None, None
    return draw_columns(positives, n_items, size, generator)


def draw_columns(
    positives: Int64[Tensor, " n"], n_items: int, size: int, generator: torch.Generator
) -> tuple[Int64[Tensor, " c"], Float[Tensor, " c"]]:
    """The positives' items, and others drawn without replacement until there are `size` (at least as many).

    A positive's item is there for certain and stands for itself; a drawn one stands for its share of the
    rest. So a weighted sum over the columns has the sum over the catalogue as its expectation.
    """
    # Marked instead of sorted: a tenth of the time, and `places_in` passes over the catalogue too. Reading
    # marks off is several times faster in NumPy than in torch.
    marks = np.zeros(n_items, dtype=np.bool_)
    marks[positives.numpy()] = True
    certain = torch.from_numpy(np.flatnonzero(marks))
    rest = n_items - len(certain)
    drawn_size = min(rest, max(size - len(certain), len(certain)))
    ranks = distinct_below(rest, drawn_size, generator)
    drawn = torch.from_numpy(np.flatnonzero(~marks)[ranks.numpy()])
    inclusion = torch.ones(len(certain) + drawn_size)
    if drawn_size:
        inclusion[len(certain) :] = rest / drawn_size
    return torch.cat([certain, drawn]), inclusion


def distinct_below(limit: int, size: int, generator: torch.Generator) -> Int64[Tensor, " size"]:
    """`size` different numbers below `limit`, every set of them as likely.

    Where few are wanted of many, drawing again what was drawn before takes a time that does not grow with
    the catalogue, as a permutation of it would.
    """
    if 4 * size > limit:
        return torch.randperm(limit, generator=generator)[:size]
    drawn = torch.zeros(0, dtype=torch.int64)
    while len(drawn) < size:
        more = torch.randint(limit, (size - len(drawn) + size // 4 + 1,), generator=generator)
        drawn = torch.unique(torch.cat([drawn, more]))
    return drawn[torch.randperm(len(drawn), generator=generator)[:size]]


def places_in(
    items: Int64[Tensor, " n"], columns: Int64[Tensor, " c"] | None, n_items: int
) -> Int64[Tensor, " n"]:
    if columns is None:
        return items
    slots = np.full(n_items, -1)
    slots[columns.numpy()] = np.arange(len(columns))
    return torch.from_numpy(slots[items.numpy()])


# -- batches -------------------------------------------------------------------------------------------------


def batch_sizes(total: int, size: int, least: int = 2) -> list[int]:
    """Full batches and the rest; a rest below `least` joins the batch before it."""
    full, rest = divmod(total, size)
    sizes = [size] * full
    if rest >= least or not sizes:
        return [*sizes, rest] if rest else sizes
    sizes[-1] += rest
    return sizes


def shuffled(
    total: int, size: int, generator: torch.Generator, least: int = 2
) -> Iterator[Int64[Tensor, " b"]]:
    """A random permutation of 0 … total − 1 in batches."""
    yield from torch.split(torch.randperm(total, generator=generator), batch_sizes(total, size, least))


def prefetch(batches: Iterator[T]) -> Iterator[T]:
    """The same batches in the same order, each drawn by a thread while its predecessor is at work.

    For steps that leave a core free, and batches that do not depend on what a step has learnt.
    """
    nothing = object()
    with ThreadPoolExecutor(1, "hdccf-prefetch") as thread:
        coming = thread.submit(next, batches, nothing)
        while (batch := coming.result()) is not nothing:
            coming = thread.submit(next, batches, nothing)
            yield batch  # type: ignore[misc]

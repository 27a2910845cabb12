"""Batches: which pairs are positive in a step and what stands against them.

A sampler is built once from the training graph; `epoch(generator)` gives the batches of one pass over it,
drawn from nothing but that generator. No batch holds anything that grows with users × items.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.columns_of_blocks import block_columns, places_in
from hdccf.data.cuts import History, Windows, cut_histories
from hdccf.data.graph import Along, Graph, Neighbours, expand, pairs_between
from hdccf.errors import ConfigError


class Pairs(NamedTuple):
    """Positive pairs and nothing else: whoever trains on them finds the negatives."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]


class Negatives(NamedTuple):
    """In-batch negatives of one side (Eq. 9): distinct columns, scored once and weighted by their count."""

    columns: Int64[Tensor, " c"]
    """The distinct items (or users) among all neighbours of the batch."""
    counts: Int64[Tensor, " c"]
    """How often each stands in the multi-set of all neighbours."""
    own: Int64[Tensor, "b p"]
    """Where each instance's own P neighbours are among the columns: they are not its negatives."""
    observed_rows: Int64[Tensor, " n"]
    """With `observed_columns`, the (instance, column) that are training pairs: false negatives, masked."""
    observed_columns: Int64[Tensor, " n"]


class InBatch(NamedTuple):
    """M pairs with P neighbours a side; every other instance's neighbours are the negatives."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    item_negatives: Negatives
    user_negatives: Negatives


class Drawn(NamedTuple):
    """M pairs with S negatives a side of their own (Eq. 1), and P neighbours a side."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    negative_items: Int64[Tensor, "b s"]
    negative_users: Int64[Tensor, "b s"]
    neighbour_items: Int64[Tensor, "b p"]
    neighbour_users: Int64[Tensor, "b p"]


class Block(NamedTuple):
    """Users × items scored once. Every positive shares its row's and its column's negatives."""

    users: Int64[Tensor, " r"]
    columns: Int64[Tensor, " c"] | None
    """The items; None is the whole catalogue."""
    inclusion: Float[Tensor, " c"] | None
    """Columns stand for this many items each, so that sums over them are unbiased; None is one each."""
    observed_rows: Int64[Tensor, " n"]
    """With `observed_columns`, every training pair inside the block: never a negative."""
    observed_columns: Int64[Tensor, " n"]
    rows: Int64[Tensor, " b"]
    """With `positive_columns` and `weights`, the positives."""
    positive_columns: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    history: History | Windows | None
    """What the rows' user vectors are made of, where they are not free."""


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

    @cached_property
    def _entries(self) -> Int64[Tensor, " able_pairs"]:
        return self._pairs_of(self._able)

    def _pairs_of(self, users: Int64[Tensor, " u"]) -> Int64[Tensor, " n"]:
        return expand(self.graph.items_of.starts[users], self.graph.items_of.degrees[users])[1]

    def epoch(self, generator: torch.Generator) -> Iterator[Pairs]:
        if self._n_pairs < self.least:
            raise ConfigError(
                f"{self._n_pairs} training pairs are of users who have not had every item, and these "
                f"negatives need {self.least}; add items, or take another sampler"
            )
        for chosen in self._users_by_turns(generator) if self.by_user else self._pairs_by_turns(generator):
            # Much faster than an index in brackets, which is made for any number of axes.
            users, items = self.graph.users_at(chosen), self.graph.items_of.at(chosen)
            yield Pairs(users, items, self.weights.index_select(0, chosen))

    def _pairs_by_turns(self, generator: torch.Generator) -> Iterator[Int64[Tensor, " b"]]:
        everybody = self._n_pairs == self.graph.n_pairs
        for places in shuffled(self._n_pairs, self.batch_size, generator, self.least):
            yield places if everybody else self._entries[places]

    def _users_by_turns(self, generator: torch.Generator) -> Iterator[Int64[Tensor, " b"]]:
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
            yield InBatch(
                users,
                items,
                self.weights[chosen],
                self._side(users, self.graph.items_of, self.graph.users_of, generator),
                self._side(items, self.graph.users_of, self.graph.items_of, generator),
            )

    def _side(
        self,
        nodes: Int64[Tensor, " b"],
        neighbours: Neighbours,
        backwards: Neighbours,
        generator: torch.Generator,
    ) -> Negatives:
        drawn = neighbours.draw(nodes, self.neighbours, generator)
        columns, own, counts = torch.unique(drawn, return_inverse=True, return_counts=True)
        rows, places = pairs_between(nodes, columns, neighbours, backwards)
        return Negatives(columns, counts, own, rows, places)


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

    def epoch(self, generator: torch.Generator) -> Iterator[Drawn]:
        items_of, users_of = self.graph.items_of, self.graph.users_of
        for chosen in shuffled(self.graph.n_pairs, self.batch_size, generator, least=1):
            users, items = self.graph.users_at(chosen), items_of.at(chosen)
            yield Drawn(
                users,
                items,
                self.weights[chosen],
                items_of.draw_others(users, self.negatives, generator),
                users_of.draw_others(items, self.negatives, generator),
                items_of.draw(users, self.neighbours, generator),
                users_of.draw(items, self.neighbours, generator),
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
            yield Block(
                users,
                columns,
                inclusion,
                rows,
                places,
                rows,
                places,
                self.weights.index_select(0, entries),
                None,
            )


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
            rows, entries = expand(starts + cuts, torch.minimum(degrees - cuts, torch.tensor(self.ahead)))
            place = entries - (starts + cuts)[rows]
            soon = torch.exp2(-place.to(self.weights.dtype) / self.ahead_half_life)
            positives = items_of.at(entries)
            columns, inclusion = block_columns(positives, self.graph.n_items, self.block_items, generator)
            observed_rows, observed_columns, _ = items_of.within(users, columns)
            yield Block(
                users,
                columns,
                inclusion,
                observed_rows,
                observed_columns,
                rows,
                places_in(positives, columns, self.graph.n_items),
                soon * self.weights[entries],
                cut_histories(items_of, users, cuts, self.half_life, self.length, self.floor),
            )


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

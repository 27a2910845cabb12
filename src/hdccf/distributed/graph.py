"""The training graph sharded over a process group: each process has the pairs of some users and some items.

Every process knows all degrees. For the rest the processes ask each other collectively: all send the same
query, the owner answers, and all receive the answer. So a batch is drawn as one process draws it, number by
number, and every process ends with the whole batch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from hdccf.data.graph import Along, Graph, Neighbours, expand
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.distributed.process_group import TorchProcessGroup
from hdccf.distributed.store import Shard, Store

_PURPOSE = "batches"


@dataclass(frozen=True)
class ShardedNeighbours(Neighbours):
    """One direction of the graph. `starts` is of all nodes, `flat` of the own, from `first` to `last` − 1."""

    first: int
    last: int
    group: TorchProcessGroup

    def at(self, entries: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return _lookup(self.flat, entries, int(self.starts[self.first]), self.group)

    def others_at(
        self, nodes: Int64[Tensor, " b"], ranks: Int64[Tensor, "b size"]
    ) -> Int64[Tensor, "b size"]:
        mine, found = self._owned(nodes), torch.zeros_like(ranks, dtype=torch.int32)
        if len(mine):
            found[mine] = self.own.others_at(nodes[mine] - self.first, ranks[mine]).int()
        return self.group.all_reduce_in_place(found, _PURPOSE).long()

    def contains(self, nodes: Int64[Tensor, " n"], columns: Int64[Tensor, " n"]) -> Bool[Tensor, " n"]:
        mine, found = self._owned(nodes), torch.zeros(len(nodes), dtype=torch.uint8)
        found[mine] = self.own.contains(nodes[mine] - self.first, columns[mine]).byte()
        return self.group.all_reduce_in_place(found, _PURPOSE).bool()

    def within(
        self, nodes: Int64[Tensor, " b"], columns: Int64[Tensor, " c"] | None
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        mine = self._owned(nodes)
        rows, places, entries = self.own.within(nodes[mine] - self.first, columns)
        answer = torch.stack([mine[rows], places, entries + int(self.starts[self.first])], 1)
        every = torch.cat(
            self.group.all_gather_ragged(answer, _PURPOSE, self._lengths(nodes) if columns is None else None)
        )
        # As one process would list them: row by row. A row is one process's, and in order already.
        every = every[every[:, 0].argsort(stable=True)]
        return every[:, 0], every[:, 1], every[:, 2]

    def _lengths(self, nodes: Int64[Tensor, " b"]) -> list[int]:
        """How many neighbours of these nodes each process has."""
        owners = torch.searchsorted(self._lasts, nodes, right=True)
        sums = torch.zeros(self.group.size, dtype=torch.int64)
        found: list[int] = sums.index_add_(0, owners, self.degrees[nodes]).tolist()
        return found

    @cached_property
    def _lasts(self) -> Int64[Tensor, " size"]:
        """Where each process's nodes end."""
        return torch.tensor(self.group.all_gather_int(self.last, _PURPOSE))

    @cached_property
    def own(self) -> Neighbours:
        """This process's nodes, numbered from 0."""
        starts = self.starts[self.first : self.last + 1]
        return Neighbours(starts - starts[0], self.flat, self.n_columns)

    def _owned(self, nodes: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
        return ((nodes >= self.first) & (nodes < self.last)).nonzero().squeeze(1)

    def to(self, device: torch.device) -> "ShardedNeighbours":
        return self  # queries across processes stay on the CPU


@dataclass(frozen=True)
class ShardedValues:
    """A number for each pair, of which each process has those of its own users' pairs."""

    own: Float[Tensor, " own"]
    first: int
    group: TorchProcessGroup

    @property
    def dtype(self) -> torch.dtype:
        return self.own.dtype

    def __getitem__(self, entries: Int64[Tensor, "*n"], /) -> Tensor:
        return _lookup(self.own, entries, self.first, self.group)

    def index_select(self, dim: int, index: Int64[Tensor, " n"]) -> Tensor:
        return self[index]


@dataclass(frozen=True)
class UnitValues:
    """A number for each pair where all are one, which needs no communication."""

    dtype: torch.dtype

    def __getitem__(self, entries: Int64[Tensor, "*n"], /) -> Tensor:
        return torch.ones(entries.shape, dtype=self.dtype)

    def index_select(self, dim: int, index: Int64[Tensor, " n"]) -> Tensor:
        return self[index]


@dataclass(frozen=True)
class ShardedGraph(Graph):
    """Both directions of the pairs of a process group."""

    items_of: ShardedNeighbours
    users_of: ShardedNeighbours

    @property
    def group(self) -> TorchProcessGroup:
        return self.items_of.group

    def to(self, device: torch.device) -> "ShardedGraph":
        return self

    def users_at(self, entries: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
        return torch.searchsorted(self.items_of.starts, entries, right=True) - 1

    def along(self, own: Float[Tensor, " own"]) -> Along:
        if not any(self.group.all_gather_int(int(bool((own != 1).any())), _PURPOSE)):
            return UnitValues(own.dtype)
        return ShardedValues(own, int(self.items_of.starts[self.items_of.first]), self.group)

    def histories(
        self, users: Int64[Tensor, " r"], weights: Along | None
    ) -> tuple[Int64[Tensor, " n"], Float[Tensor, " n"] | None]:
        """The histories of this process's users: all processes answer all queries, and each takes its own."""
        asked = self.group.all_gather_ragged(users, _PURPOSE)
        starts, degrees = self.items_of.starts, self.items_of.degrees
        _, entries = expand(starts[torch.cat(asked)], degrees[torch.cat(asked)])
        lengths = [int(degrees[each].sum()) for each in asked]
        items = torch.split(self.items_of.at(entries), lengths)[self.group.rank]
        if weights is None:
            return items, None
        return items, torch.split(weights[entries], lengths)[self.group.rank]

    def weights_at(
        self, users: Int64[Tensor, " n"], items: Int64[Tensor, " n"], weights: Along
    ) -> Float[Tensor, " n"]:
        asked = self.group.all_gather_ragged(torch.stack([users, items], 1), _PURPOSE)
        pairs = torch.cat(asked)
        mine = self.items_of._owned(pairs[:, 0])
        entries = torch.zeros(len(pairs), dtype=torch.int64)
        own = self.items_of.own.entries_of(pairs[mine, 0] - self.items_of.first, pairs[mine, 1])
        entries[mine] = own + int(self.items_of.starts[self.items_of.first])
        found = weights[self.group.all_reduce_in_place(entries, _PURPOSE)]
        return torch.split(found, [len(each) for each in asked])[self.group.rank]

    def squares(self, weights: Along | None) -> Float64[Tensor, " users"]:
        if not isinstance(weights, ShardedValues):
            return self.items_of.degrees.double()
        own = self.items_of.own
        users = torch.repeat_interleave(own.degrees) + self.items_of.first
        total = torch.zeros(self.n_users, dtype=torch.float64)
        return self.group.all_reduce_in_place(
            total.index_add_(0, users, weights.own.double().square()), _PURPOSE
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ShardedInteractions(Interactions):
    """The pairs of this process's users under global ids, and the sharded graph."""

    graph: Graph


def _lookup(own: Tensor, entries: Int64[Tensor, "*n"], first: int, group: TorchProcessGroup) -> Tensor:
    """own[entries − first] from the process that owns each entry."""
    kind = torch.int32 if own.dtype == torch.int64 else own.dtype  # a node's number has no need of more
    flat = entries.reshape(-1)
    mine = ((flat >= first) & (flat < first + len(own))).nonzero().squeeze(1)
    found = torch.zeros(len(flat), dtype=kind)
    found[mine] = own[flat[mine] - first].to(kind)
    return group.all_reduce_in_place(found, _PURPOSE).to(own.dtype).reshape(entries.shape)


class WorkerData:
    """One worker's shard of a store: its users, its items, and the sharded graph."""

    def __init__(self, store: Store, group: TorchProcessGroup) -> None:
        self.store, self.group = store, group
        self.users: Shard = store.shards("user", group.size)[group.rank]
        self.items: Shard = store.shards("item", group.size)[group.rank]
        self.split: Split = store.split_of(self.users)
        """Of this worker's users, numbered from 0."""

    def pairs(self) -> ShardedInteractions:
        """The training pairs of this worker's users under global ids, with the sharded graph."""
        own, store = self.split.train, self.store
        items_of = self._direction(store.user_degrees, own.items, store.n_items, self.users)
        users_of = self._direction(store.item_degrees, store.users_of(self.items), store.n_users, self.items)
        return ShardedInteractions(
            users=own.users + np.int32(self.users.first),
            items=own.items,
            times=own.times,
            counts=own.counts,
            user_ids=pl.int_range(store.n_users, dtype=pl.Int32, eager=True),
            item_ids=own.item_ids,
            graph=ShardedGraph(items_of, users_of),
        )

    def _direction(
        self, degrees: np.ndarray, flat: np.ndarray, n_columns: int, own: Shard
    ) -> ShardedNeighbours:
        starts = torch.from_numpy(np.concatenate(([0], np.cumsum(degrees))).astype(np.int64))
        neighbours = torch.from_numpy(flat.astype(np.int64))
        return ShardedNeighbours(starts, neighbours, n_columns, own.first, own.last, self.group)

"""A torch.distributed process group (gloo on CPUs, NCCL on GPUs), and the training graph sharded over it.

Bytes sent are counted as payload, before the backend. A step touches few rows of a large table: then the rows
are sent with their numbers, not the table, and every process adds them in the same order, so that replicas
stay equal to the last bit.

Of the graph each process has the pairs of some users and some items, and every process knows all degrees.
For the rest the processes ask each other collectively: all send the same query, the owner answers, and all
receive the answer. So a batch is drawn as one process draws it, number by number, and every process ends with
the whole batch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hdccf.data.graph import Along, Drawn, Graph, Neighbours, Nodes, PerPair, expand
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.distributed.store import Shard, Store


class _Sum(torch.autograd.Function):
    """Σ over the processes. Each one's loss takes the sum, so that gradients add up as well.

    torch.distributed.nn has the same, and warns that it is going to be removed.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: "TorchProcessGroup") -> Tensor:
        ctx.group = group
        return group.all_reduce(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(grad), None


class TorchProcessGroup:
    """The processes of the default process group, which must have been started."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sent: Counter[str] = Counter()
        """Bytes sent by this process, by purpose."""

    def rows(self, n: int) -> slice:
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def log_sum_exp(self, own: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        if self.size == 1:
            return own
        largest = self._reduced(own.detach().clone(), dist.ReduceOp.MAX, "sums")
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        terms: Tensor = _Sum.apply((own - largest).exp(), self)  # type: ignore[no-untyped-call]
        # log 0 has an infinite slope, which times the zero of an empty sum is not a number.
        present = terms > 0
        return torch.where(present, torch.where(present, terms, 1.0).log() + largest, -torch.inf)

    def all_gather(self, own: Float[Tensor, "own *rest"], n: int) -> Float[Tensor, "n *rest"]:
        """A sum of tables that are zero but for a process's own rows, which has a gradient."""
        if self.size == 1:
            return own
        rows = self.rows(n)
        before, after = (own.new_zeros(size, *own.shape[1:]) for size in (rows.start, n - rows.stop))
        whole: Tensor = _Sum.apply(torch.cat([before, own, after]), self)  # type: ignore[no-untyped-call]
        return whole

    def all_reduce(self, own: Tensor) -> Tensor:
        return own if self.size == 1 else self._reduced(own.detach().clone(), dist.ReduceOp.SUM, "sums")

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.size > 1:
            all_reduce_gradients(self, parameters)

    def all_reduce_in_place(self, own: Tensor, purpose: str) -> Tensor:
        """The sum over the processes, in the memory of `own`."""
        return own if self.size == 1 else self._reduced(own, dist.ReduceOp.SUM, purpose)

    def all_gather_ragged(
        self, own: Tensor, purpose: str, lengths: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Every process's tensor; they may differ in their first dimension.

        Pass known `lengths` to save an exchange: it costs more than its bytes.
        """
        if self.size == 1:
            return [own]
        if lengths is None:
            lengths = self.all_gather_int(len(own), purpose)
        padded = own.new_zeros(max(lengths), *own.shape[1:])
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in lengths]
        self._count(padded, purpose)
        dist.all_gather(found, padded)
        return [each[:length] for each, length in zip(found, lengths, strict=True)]

    def all_gather_int(self, number: int, purpose: str) -> list[int]:
        """A number of every process."""
        return self.all_gather_ints(torch.tensor([number]), purpose)[:, 0].tolist()

    def all_gather_ints(self, own: PerPair, purpose: str) -> Int64[Tensor, "size n"]:
        """A row of whole numbers of every process, of equal lengths."""
        table = own.new_zeros(self.size, len(own))
        table[self.rank] = own
        return self.all_reduce_in_place(table, purpose)

    def _reduced(self, own: Tensor, how: Any, purpose: str) -> Tensor:
        own = own.contiguous()
        self._count(own, purpose)
        dist.all_reduce(own, how)
        return own

    def _count(self, tensor: Tensor, purpose: str) -> None:
        self.sent[purpose] += tensor.numel() * tensor.element_size()


# -- gradients -----------------------------------------------------------------------------------------------

_NONE = -1
_LEAST_ROWS = 1024
"""A table of fewer rows is sent whole: finding touched rows would cost more than it saves."""
_WORTH_COPYING = 1 << 20
"""Numbers, four megabytes: copying so many takes about as long as an exchange takes to begin."""


def all_reduce_gradients(group: TorchProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Gives every parameter the sum of the processes' gradients; none where no process has one."""
    touched: list[Tensor | None] = []
    sent = []
    for parameter in parameters:
        gradient, rows = parameter.grad, None
        if gradient is not None and gradient.layout != torch.sparse_coo and _is_table(gradient):
            rows = gradient.ne(0).any(1).nonzero().squeeze(1)
        touched.append(rows)
        # How many rows would go out; all, where rows are not looked at.
        sent.append(_NONE if gradient is None else gradient.shape[:1].numel() if rows is None else len(rows))
    sizes = group.all_gather_ints(torch.tensor(sent), "gradients")
    whole = []
    for parameter, rows, counts in zip(parameters, touched, sizes.T.tolist(), strict=True):
        if max(counts) == _NONE:
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        if gradient.layout == torch.sparse_coo:
            gradient = _sparse_sum(group, gradient)
        elif _rows_are_less(parameter, max(counts), group.size):
            gradient = _sum_of_rows(group, gradient, rows, [max(count, 0) for count in counts])
        elif parameter.numel() > _WORTH_COPYING:
            gradient = group.all_reduce_in_place(gradient, "gradients")
        else:
            whole.append(parameter)
        parameter.grad = gradient
    # Small gradients in one exchange: copying them together costs less than several. By type, as a group may
    # have parameters of several.
    for kind in dict.fromkeys(parameter.dtype for parameter in whole):
        alike = [parameter for parameter in whole if parameter.dtype == kind]
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in alike if parameter.grad is not None])
        flat = group.all_reduce_in_place(flat, "gradients")
        parts = torch.split(flat, [parameter.numel() for parameter in alike])
        for parameter, part in zip(alike, parts, strict=True):
            parameter.grad = part.view(parameter.shape)


def _is_table(gradient: Tensor) -> bool:
    return gradient.ndim == 2 and len(gradient) >= _LEAST_ROWS


def _rows_are_less(parameter: nn.Parameter, most: int, size: int) -> bool:
    """A row is sent to all, with its number; of a whole table each process sends about twice the size."""
    if not _is_table(parameter):
        return False
    row = parameter.shape[1] * parameter.element_size()
    return most * size * (row + 8) < 2 * len(parameter) * row


def _sum_of_rows(
    group: TorchProcessGroup, gradient: Tensor, rows: Tensor | None, lengths: list[int]
) -> Tensor:
    """The rows of each process in turn; or, where processes touch the same rows, a sum over their union."""
    rows = torch.zeros(0, dtype=torch.int64, device=gradient.device) if rows is None else rows
    numbers = group.all_gather_ragged(rows, "gradients", lengths)
    union = torch.unique(torch.cat(numbers))
    total = torch.zeros_like(gradient)
    if 2 * len(union) <= group.size * max(map(len, numbers)):
        total[union] = group.all_reduce_in_place(gradient[union], "gradients")
        return total
    values = group.all_gather_ragged(gradient[rows], "gradients", lengths)
    for which, part in zip(numbers, values, strict=True):
        total.index_add_(0, which, part)
    return total


def _sparse_sum(group: TorchProcessGroup, gradient: Tensor) -> Tensor:
    own = gradient.coalesce()
    lengths = group.all_gather_int(own._nnz(), "gradients")
    numbers = torch.cat(group.all_gather_ragged(own.indices()[0], "gradients", lengths))
    values = torch.cat(group.all_gather_ragged(own.values(), "gradients", lengths))
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), values, gradient.shape, check_invariants=False
    ).coalesce()


# -- the sharded graph ---------------------------------------------------------------------------------------

_PURPOSE = "batches"


@dataclass(frozen=True)
class ShardedNeighbours(Neighbours):
    """One direction of the graph. `starts` is of all nodes, `flat` of the own, from `first` to `last` − 1."""

    first: int
    last: int
    group: TorchProcessGroup

    def at(self, entries: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return _lookup(self.flat, entries, int(self.starts[self.first]), self.group)

    def others_at(self, nodes: Nodes, ranks: Drawn) -> Drawn:
        mine, found = self._owned(nodes), torch.zeros_like(ranks, dtype=torch.int32)
        if len(mine):
            found[mine] = self.own.others_at(nodes[mine] - self.first, ranks[mine]).int()
        return self.group.all_reduce_in_place(found, _PURPOSE).long()

    def contains(self, nodes: PerPair, columns: PerPair) -> Bool[Tensor, " n"]:
        mine, found = self._owned(nodes), torch.zeros(len(nodes), dtype=torch.uint8)
        found[mine] = self.own.contains(nodes[mine] - self.first, columns[mine]).byte()
        return self.group.all_reduce_in_place(found, _PURPOSE).bool()

    def within(self, nodes: Nodes, columns: Int64[Tensor, " c"] | None) -> tuple[PerPair, PerPair, PerPair]:
        mine = self._owned(nodes)
        rows, places, entries = self.own.within(nodes[mine] - self.first, columns)
        answer = torch.stack([mine[rows], places, entries + int(self.starts[self.first])], 1)
        every = torch.cat(
            self.group.all_gather_ragged(answer, _PURPOSE, self._lengths(nodes) if columns is None else None)
        )
        # As one process would list them: row by row. A row is one process's, and in order already.
        every = every[every[:, 0].argsort(stable=True)]
        return every[:, 0], every[:, 1], every[:, 2]

    def sums(self, vectors: Float[Tensor, "columns k"]) -> Float[Tensor, "nodes k"]:
        every = vectors.new_zeros(len(self.degrees), vectors.shape[1])
        every[self.first : self.last] = self.own.sums(vectors)
        return self.group.all_reduce_in_place(every, _PURPOSE)

    def _lengths(self, nodes: Nodes) -> list[int]:
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

    def _owned(self, nodes: PerPair) -> Int64[Tensor, " m"]:
        return ((nodes >= self.first) & (nodes < self.last)).nonzero().squeeze(1)

    def to(self, device: torch.device) -> "ShardedNeighbours":
        return self  # queries across processes stay on the CPU


@dataclass(frozen=True)
class ShardedValues:
    """A number for each pair, of which each process has those of its own users' pairs."""

    own: Float[Tensor, " own"]
    first: int
    group: TorchProcessGroup
    all_one: bool
    """Then no process needs to ask another."""

    @property
    def dtype(self) -> torch.dtype:
        return self.own.dtype

    def __getitem__(self, entries: Int64[Tensor, "*n"], /) -> Tensor:
        if self.all_one:
            return torch.ones(entries.shape, dtype=self.dtype)
        return _lookup(self.own, entries, self.first, self.group)

    def index_select(self, dim: int, index: PerPair) -> Tensor:
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

    def users_at(self, entries: PerPair) -> PerPair:
        return torch.searchsorted(self.items_of.starts, entries, right=True) - 1

    def along(self, own: Float[Tensor, " own"]) -> Along:
        others = self.group.all_gather_int(int((own != 1).any()), _PURPOSE)
        first = int(self.items_of.starts[self.items_of.first])
        return ShardedValues(own, first, self.group, all_one=not any(others))

    def histories(
        self, users: Int64[Tensor, " r"], weights: Along | None
    ) -> tuple[PerPair, Float[Tensor, " n"] | None]:
        """The histories of this process's users: all processes answer all queries, and each takes its own."""
        asked = self.group.all_gather_ragged(users, _PURPOSE)
        starts, degrees = self.items_of.starts, self.items_of.degrees
        _, entries = expand(starts[torch.cat(asked)], degrees[torch.cat(asked)])
        lengths = [int(degrees[each].sum()) for each in asked]
        items = torch.split(self.items_of.at(entries), lengths)[self.group.rank]
        if weights is None:
            return items, None
        return items, torch.split(weights[entries], lengths)[self.group.rank]

    def weights_at(self, users: PerPair, items: PerPair, weights: Along) -> Float[Tensor, " n"]:
        asked = self.group.all_gather_ragged(torch.stack([users, items], 1), _PURPOSE)
        pairs = torch.cat(asked)
        mine = self.items_of._owned(pairs[:, 0])
        entries = torch.zeros(len(pairs), dtype=torch.int64)
        own = self.items_of.own.entries_of(pairs[mine, 0] - self.items_of.first, pairs[mine, 1])
        entries[mine] = own + int(self.items_of.starts[self.items_of.first])
        found = weights[self.group.all_reduce_in_place(entries, _PURPOSE)]
        return torch.split(found, [len(each) for each in asked])[self.group.rank]

    def squares(self, weights: Along | None) -> Float64[Tensor, " users"]:
        if not isinstance(weights, ShardedValues) or weights.all_one:
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
            weights=own.weights,
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

"""Training pairs as tensors: neighbours in both directions, drawn from, masked with, never densified."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from hdccf.data.adjacency import Adjacency
from hdccf.data.interactions import Interactions
from hdccf.errors import DataError
from hdccf.kernels.embedding import has_numba

Nodes = Int64[Tensor, " b"]
Drawn = Int64[Tensor, "b size"]
"""Some columns for each node."""
PerPair = Int64[Tensor, " n"]
"""A node, a column or a place of each of some pairs."""

_MANY_PAIRS = 1 << 18
_COSINES_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Neighbours:
    """One direction of the graph: the neighbours of node k are `flat[starts[k]:starts[k + 1]]`."""

    starts: Int64[Tensor, " nodes_plus_one"]
    flat: Int64[Tensor, " pairs"]
    n_columns: int

    @classmethod
    def of(cls, adjacency: Adjacency, n_columns: int) -> "Neighbours":
        return cls(
            torch.from_numpy(adjacency.starts.astype("int64")),
            torch.from_numpy(adjacency.neighbours.astype("int64")),
            n_columns,
        )

    def to(self, device: torch.device) -> "Neighbours":
        return Neighbours(self.starts.to(device), self.flat.to(device), self.n_columns)

    @cached_property
    def degrees(self) -> Int64[Tensor, " nodes"]:
        return self.starts.diff()

    def at(self, entries: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """The neighbours at some places of `flat`."""
        # Much faster than an index in brackets, which is made for any number of axes.
        return self.flat.index_select(0, entries.reshape(-1)).view(entries.shape)

    def draw(self, nodes: Nodes, size: int, generator: torch.Generator) -> Drawn:
        """`size` neighbours of each node, uniformly with replacement; every node must have one."""
        degrees = self.degrees[nodes]
        return self.at(self.starts[nodes, None] + _below(degrees, size, generator))

    def draw_others(self, nodes: Nodes, size: int, generator: torch.Generator) -> Drawn:
        """`size` columns that are *not* neighbours of each node, uniformly with replacement, none rejected.

        The j-th neighbour (ascending) has `neighbour − j` non-neighbours below it. So the r-th non-neighbour
        is r plus the number of neighbours with at most r non-neighbours below them: one binary search.
        """
        self.refuse_full(nodes)
        return self.others_at(nodes, _below(self.n_columns - self.degrees[nodes], size, generator))

    def others_at(self, nodes: Nodes, ranks: Drawn) -> Drawn:
        """The columns with these ranks, from 0, among those that are not neighbours of each node."""
        if nodes.device.type == "cpu" and self._is_compiled:
            # A loop that takes half the time of one search among all keys.
            from hdccf.kernels.embedding_numba import add_neighbours_below

            found = torch.empty_like(ranks)
            starts, keys = self.starts.numpy(), self._gap_keys.numpy()
            add_neighbours_below(nodes.numpy(), ranks.numpy(), starts, keys, self.n_columns, found.numpy())
            return found
        asked = nodes[:, None] * (self.n_columns + 1) + ranks
        return ranks + torch.searchsorted(self._gap_keys, asked, right=True) - self.starts[nodes, None]

    @cached_property
    def _is_compiled(self) -> bool:
        """Whether there are so many pairs that the compiled search, a second to load, is soon worth it."""
        return len(self.flat) >= _MANY_PAIRS and has_numba()

    def refuse_full(self, nodes: Nodes) -> None:
        """Raises where a node is paired with every column and so has no negatives."""
        full = nodes[self.degrees[nodes] == self.n_columns]
        if len(full):
            raise DataError(
                f"node {int(full[0])} is paired with all {self.n_columns} columns, so nothing is left to be "
                "its negative; leave it out, or use in-batch negatives"
            )

    def entries_of(self, nodes: PerPair, columns: PerPair) -> PerPair:
        """Where in `flat` each (node, column) is; all of them must be pairs."""
        keys, places = self._pair_keys
        return places[torch.searchsorted(keys, nodes * self.n_columns + columns)]

    def contains(self, nodes: PerPair, columns: PerPair) -> Bool[Tensor, " n"]:
        """Whether each (node, column) is a pair."""
        if len(self.flat) == 0:
            return torch.zeros(len(nodes), dtype=torch.bool, device=nodes.device)
        keys = nodes * self.n_columns + columns
        pairs, _ = self._pair_keys
        return pairs[torch.searchsorted(pairs, keys).clamp_(max=len(pairs) - 1)] == keys

    def within(self, nodes: Nodes, columns: Int64[Tensor, " c"] | None) -> tuple[PerPair, PerPair, PerPair]:
        """The pairs between a list of nodes and a list of distinct columns (all of them where None).

        Gives the position in `nodes`, the position in `columns`, and the position in `flat` of each.
        """
        rows, entries = expand(self.starts[nodes], self.degrees[nodes])
        found = self.flat.index_select(0, entries)
        if columns is None:
            return rows, found, entries
        slots = torch.full((self.n_columns,), -1, dtype=torch.int64, device=columns.device)
        slots[columns] = torch.arange(len(columns), device=columns.device)
        place = slots.index_select(0, found)
        # As numbers: a mask would be searched for its hits again for each of the three.
        hit = (place >= 0).nonzero().squeeze(1)
        return rows.index_select(0, hit), place.index_select(0, hit), entries.index_select(0, hit)

    def sums(self, vectors: Float[Tensor, "columns k"]) -> Float[Tensor, "nodes k"]:
        """The sum of the vectors of each node's neighbours."""
        # A basis from QR lies column by column, and bags read rows.
        rows = vectors.contiguous()
        return functional.embedding_bag(self.flat, rows, self.starts, mode="sum", include_last_offset=True)

    @cached_property
    def _pair_keys(self) -> tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"]]:
        """A number for each pair, ascending, and where in `flat` it is."""
        keys, places = (torch.repeat_interleave(self.degrees) * self.n_columns + self.flat).sort()
        return keys, places

    @cached_property
    def _gap_keys(self) -> Int64[Tensor, " pairs"]:
        nodes = torch.repeat_interleave(self.degrees)
        ascending = self._pair_keys[0] - nodes * self.n_columns
        place = torch.arange(len(nodes), device=nodes.device) - self.starts[nodes]
        return nodes * (self.n_columns + 1) + ascending - place


@dataclass(frozen=True)
class Graph:
    """Both directions of the training pairs. Only these mask negatives: a validation or test pair must be
    able to appear as a negative, for excluding it would leak."""

    items_of: Neighbours
    """Each user's items, in order of time."""
    users_of: Neighbours
    """Each item's users."""

    @classmethod
    def of(cls, train: Interactions) -> "Graph":
        if isinstance(train, Spread):
            return train.graph
        if len(train) == 0:
            raise DataError(
                "there are no training pairs; give interactions, or a split that leaves some for training"
            )
        return cls(Neighbours.of(train.by_user, train.n_items), Neighbours.of(train.by_item, train.n_users))

    def to(self, device: torch.device) -> "Graph":
        """The same on a device, so that what draws from it can stand beside a model there."""
        if self.items_of.flat.device == device:
            return self
        return Graph(self.items_of.to(device), self.users_of.to(device))

    @property
    def n_users(self) -> int:
        return self.users_of.n_columns

    @property
    def n_items(self) -> int:
        return self.items_of.n_columns

    @property
    def n_pairs(self) -> int:
        return int(self.items_of.starts[-1])

    def users_at(self, entries: PerPair) -> PerPair:
        """The users of the pairs at some places of `items_of.flat`."""
        return self.pair_users.index_select(0, entries)

    def along(self, own: Float[Tensor, " own"]) -> "Along":
        """A number for each pair, of which this process has computed those of its own pairs: here, all."""
        return own

    def histories(
        self, users: Int64[Tensor, " r"], weights: "Along | None"
    ) -> tuple[PerPair, Float[Tensor, " n"] | None]:
        """The items of these users, one user after another, each in order of time, and the pairs' weights."""
        _, entries = expand(self.items_of.starts[users], self.items_of.degrees[users])
        return self.items_of.at(entries), None if weights is None else weights[entries]

    def weights_at(self, users: PerPair, items: PerPair, weights: "Along") -> Float[Tensor, " n"]:
        """The weights of some pairs."""
        return weights[self.items_of.entries_of(users, items)]

    def squares(self, weights: "Along | None") -> Float64[Tensor, " users"]:
        """The sum of the squares of each user's weights; each is 1 where none are given."""
        if weights is None:
            return self.items_of.degrees.double()
        every = weights[torch.arange(self.n_pairs, device=self.items_of.starts.device)]
        zeros = torch.zeros(self.n_users, dtype=torch.float64, device=every.device)
        return zeros.index_add_(0, self.pair_users, every.double().square())

    @cached_property
    def pair_users(self) -> Int64[Tensor, " pairs"]:
        """The user of each pair, in the order of `items_of.flat`."""
        return torch.repeat_interleave(self.items_of.degrees)


@runtime_checkable
class Along(Protocol):
    """A number for each pair, in the order of `items_of.flat`: a tensor, or one spread over processes."""

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, entries: Any, /) -> Tensor: ...

    def index_select(self, dim: int, index: Tensor) -> Tensor: ...


@runtime_checkable
class Spread(Protocol):
    """Training pairs of which this process has some; their graph asks the other processes for the rest."""

    @property
    def graph(self) -> Graph: ...


def pairs_between(
    nodes: Nodes, columns: Int64[Tensor, " c"], forwards: Neighbours, backwards: Neighbours
) -> tuple[PerPair, PerPair]:
    """The positions in `nodes` and in distinct `columns` of every pair between them, in any order.

    Looked for from the side whose neighbours are fewer: the items of a batch have more users, all together,
    the larger the data is, and the users among its columns hardly more items.
    """
    # Backwards a neighbour costs half as much again.
    if 2 * int(forwards.degrees[nodes].sum()) <= 3 * int(backwards.degrees[columns].sum()):
        rows, places, _ = forwards.within(nodes, columns)
        return rows, places
    distinct, which, times = torch.unique(nodes, return_inverse=True, return_counts=True)
    places, found, _ = backwards.within(columns, distinct)
    # A node can stand in several rows; sorted by node, its rows stand together.
    starts = times.cumsum(0) - times
    pairs, entries = expand(starts[found], times[found])
    return which.argsort()[entries], places[pairs]


def nearest_nodes(neighbours: Neighbours, opposite: Neighbours, size: int) -> Int64[Tensor, "nodes size"]:
    """The `size` other nodes of the same side whose neighbours are most alike by the cosine of who has what.

    A node with fewer others that share a neighbour has itself in the places that are left.

    Parameters
    ----------
    neighbours, opposite
        Both directions of the graph, the side that is asked for first.
    size
        How many of each.
    """
    n = len(neighbours.degrees)
    rows, columns = (
        sparse.csr_array(
            (np.ones(len(each.flat), np.float32), each.flat.numpy(), each.starts.numpy()),
            shape=(len(each.degrees), each.n_columns),
        )
        for each in (neighbours, opposite)
    )
    scale = neighbours.degrees.clamp_min(1).float().rsqrt().numpy()
    rows = sparse.csr_array(sparse.diags_array(scale) @ rows)
    columns = sparse.csr_array(columns @ sparse.diags_array(scale))
    every, found = torch.arange(n), []
    for own in torch.split(every, max(1, _COSINES_AT_ONCE // n)):
        first = int(own[0])
        cosines = torch.from_numpy((rows[first : first + len(own)] @ columns).toarray())
        cosines[own - first, own] = 0.0
        values, nodes = cosines.topk(min(size, n), 1)
        found.append(torch.where(values > 0, nodes, own.unsqueeze(1)))
    return torch.cat(found)


def expand(starts: Nodes, lengths: Nodes) -> tuple[PerPair, PerPair]:
    """Concatenates the ranges starts[k] … starts[k] + lengths[k] − 1; gives k and element for each place."""
    rows = torch.repeat_interleave(lengths)
    shifts = starts - (lengths.cumsum(0) - lengths)
    return rows, shifts.index_select(0, rows).add_(torch.arange(len(rows), device=rows.device))


def _below(limits: Nodes, size: int, generator: torch.Generator) -> Drawn:
    """Uniform whole numbers from 0 to limits − 1, `size` a row."""
    uniform = torch.rand(
        (len(limits), size), generator=generator, dtype=torch.float64, device=generator.device
    )
    # Rounding could reach the limit itself for limits beyond 2^52; the clamp costs nothing.
    return (uniform * limits[:, None]).long().clamp_(max=(limits - 1)[:, None])

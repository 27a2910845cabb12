"""Layers of user and item vectors: embedding tables, weighted histories, and attention over a history.

The recency-weighted sum weighs an item of the history by its age alone. Attention (Vaswani et al., 2017, with
a learnt weight for each age; Kang and McAuley, 2018, for recommendation) weighs it by content as well.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hdccf.data.batches import NO_ITEM, History, Windows
from hdccf.data.graph import Graph
from hdccf.rng import dropout_mask
from hdccf.similarity import Vectors, unit

_GROUPS = 4
"""Histories of similar length attend together."""
_ROW_STEP = 64
_LENGTH_STEP = 8
"""Numbers of rows and padded lengths are multiples of these."""
_SCORES = 1 << 17
"""Pairs of items in a group: their attention weights stay in the cache."""


class Table(nn.Module):
    """One free vector a node, and a second one for the modulation to look at where `separate`."""

    def __init__(
        self,
        n_nodes: int,
        dim: int,
        *,
        std: float,
        generator: torch.Generator,
        sparse: bool = False,
        separate: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(std * torch.randn(n_nodes, dim, generator=generator))
        self.factors = None
        if separate:
            self.factors = nn.Parameter(std * torch.randn(n_nodes, dim, generator=generator))
        self.sparse = sparse

    def of(self, nodes: Int64[Tensor, "*n"] | None) -> Vectors:
        """The vectors of some nodes; of all of them where None."""
        embedding = self._look_up(self.embedding, nodes)
        return Vectors(embedding, embedding if self.factors is None else self._look_up(self.factors, nodes))

    def all(self) -> Vectors:
        return self.of(None)

    def sum_of(self, history: History, n_rows: int) -> Vectors:
        """For each row the normalised, weighted sum of its items' unit vectors; zero where it has none."""

        # An item stands in many histories: its vector is looked up and normalised once, and the bag adds up
        # without a vector for each place of each history.
        distinct, places = torch.unique(history.items, return_inverse=True)
        starts = torch.searchsorted(history.rows, torch.arange(n_rows, device=history.rows.device))

        def add_up(table: nn.Parameter) -> Float[Tensor, "rows d"]:
            vectors = unit(self._look_up(table, distinct))
            weights = history.weights.to(table.dtype)
            return unit(
                functional.embedding_bag(places, vectors, starts, mode="sum", per_sample_weights=weights)
            )

        embedding = add_up(self.embedding)
        return Vectors(embedding, embedding if self.factors is None else add_up(self.factors))

    def attended(
        self, windows: Windows, attention: "HistoryAttention", generator: torch.Generator | None
    ) -> Vectors:
        """For each row what attention makes of the items of its window up to its place."""
        present = windows.items != NO_ITEM
        distinct, places = torch.unique(windows.items[present], return_inverse=True)
        items = functional.embedding(places, self._look_up(self.embedding, distinct))
        encoded = attention(items, present.sum(1), generator, first=windows.first, n_items=windows.n_places)
        # The number of a place among those that hold an item; an empty history has none.
        numbers = present.flatten().cumsum(0).index_select(0, windows.places) - 1
        users = encoded.index_select(0, numbers.clamp_(min=0))
        return Vectors(users, users)

    def _look_up(self, table: nn.Parameter, nodes: Int64[Tensor, "*n"] | None) -> Tensor:
        if nodes is None:
            return table
        return functional.embedding(nodes, table, sparse=self.sparse)


class HistoryAttention(nn.Module):
    """x ← x + attention(norm x); x ← x + perceptron(norm x); `layers` times, and a unit vector at the end.

    Both steps start as nothing, so that a fresh encoder gives the latest item's own direction, and training
    adds what else the history says.
    """

    def __init__(
        self, dim: int, length: int, *, layers: int, heads: int, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.keep = 1.0 - dropout
        self.ages = nn.Parameter(0.2 * torch.randn(length, dim, generator=generator))
        self.layers = nn.ModuleList(AttentionLayer(dim, length, heads, generator) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        items: Float[Tensor, "t d"],
        lengths: Int64[Tensor, " n"],
        generator: torch.Generator | None = None,
        *,
        first: int = 0,
        n_items: int | None = None,
    ) -> Float[Tensor, "rows d"]:
        """The user after each item of some histories; a generator drops parts out, as in training.

        Parameters
        ----------
        items
            The vectors of all histories, one history after the other, oldest item first.
        lengths
            How many of them belong to each history.
        generator
            For dropout; none without it.
        first, n_items
            Where these are some of a block's histories: how many items come before them, and how many
            there are in all.

        Returns
        -------
        A row for each item, and some more at the end without a meaning.
        """
        layout = _Layout.of(lengths)
        masks = self._masks(items, generator, first, layout.n_rows, n_items)
        ages = self.ages.index_select(0, layout.ages + len(self.ages))
        # Unit vectors have entries of about 1/√d; norms and age vectors are made for entries of about 1.
        x = unit(items) * math.sqrt(items.shape[1]) + ages
        x = _dropped(functional.pad(x, (0, 0, 0, layout.n_rows - len(x))), masks[0])
        for layer, attn_dropout, forward_dropout in zip(self.layers, masks[1::2], masks[2::2], strict=True):
            assert isinstance(layer, AttentionLayer)  # noqa: S101 - nn.ModuleList has no types
            x = x + _dropped(layer.attend(x, layout), attn_dropout)
            x = x + _dropped(layer.feed_forward(x), forward_dropout)
        return unit(self.norm(x))

    def _masks(
        self,
        items: Float[Tensor, "t d"],
        generator: torch.Generator | None,
        first: int,
        n_rows: int,
        n_items: int | None,
    ) -> list[Float[Tensor, "rows d"] | None]:
        wanted = 1 + 2 * len(self.layers)
        if generator is None or self.keep == 1.0:
            return [None] * wanted
        # Drawn for all histories of the block, so that a split among processes does not matter.
        like = items.new_empty(1, 1).expand(len(items) if n_items is None else n_items, items.shape[1])
        own = slice(first, first + len(items))
        more = (0, 0, 0, n_rows - len(items))
        return [functional.pad(dropout_mask(like, self.keep, generator)[own], more) for _ in range(wanted)]


def _dropped(x: Float[Tensor, "t d"], mask: Float[Tensor, "t d"] | None) -> Float[Tensor, "t d"]:
    return x if mask is None else x * mask


class _Layout(NamedTuple):
    """Where the items of histories are: one after the other as rows, or in groups of padded histories.

    Everything but attention is computed by row. Attention takes histories of similar length together, each
    filled up at its end, where no item looks. Both sizes are rounded up, so that the same ones come again:
    the matrix products of a new size are slow.
    """

    n_rows: int
    """Items, at least one row without a meaning, and some more."""
    ages: Int64[Tensor, " t"]
    """Of each item: −1 for the latest of its history, −2 for the one before it …"""
    groups: list[tuple[int, int]]
    """Number of histories and padded length of each group."""
    rows: Int64[Tensor, " s"]
    """The row of each slot of all groups, one after the other, and of one more that is empty."""
    slots: Int64[Tensor, " rows"]
    """The slot of each row."""

    @classmethod
    def of(cls, lengths: Int64[Tensor, " n"]) -> "_Layout":
        device = lengths.device
        ends = lengths.cumsum(0)
        n_items = int(ends[-1]) if len(ends) else 0
        n_rows = _rounded(n_items + 1, _ROW_STEP)
        ages = torch.arange(n_items, device=device) - torch.repeat_interleave(ends, lengths)
        groups, rows, found = [], [], 0
        slots = torch.empty(n_rows, dtype=torch.int64, device=device)
        for group, padded in _groups(lengths):
            own = lengths[group].unsqueeze(1)
            place = torch.arange(padded, device=device)
            row = torch.where(place < own, (ends[group].unsqueeze(1) - own) + place, n_items).flatten()
            groups.append((len(group), padded))
            rows.append(row)
            slots[row] = torch.arange(found, found + len(row), device=device)
            found += len(row)
        slots[n_items:] = found
        rows.append(torch.full((1,), n_items, device=device))
        return cls(n_rows, ages, groups, torch.cat(rows), slots)


def _groups(lengths: Int64[Tensor, " n"]) -> Iterator[tuple[Int64[Tensor, " g"], int]]:
    """Histories of similar length, none of them empty, and the length that they are padded to."""
    for similar in lengths.argsort(descending=True).chunk(_GROUPS):
        padded = _rounded(int(lengths[similar[0]]), _LENGTH_STEP)
        if padded:
            some = similar[lengths[similar] > 0]
            for group in torch.split(some, max(1, _SCORES // padded**2)):
                yield group, padded


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


class _Reorder(torch.autograd.Function):
    """Rows in another order. What an empty row or slot holds has no meaning and no gradient, so that the
    gradient is a look-up as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


def _reorder(x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    reordered: Tensor = _Reorder.apply(x, index, inverse)  # type: ignore[no-untyped-call]
    return reordered


class AttentionLayer(nn.Module):
    """One layer: self-attention with a weight for each age, and a feed-forward network."""

    def __init__(self, dim: int, length: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()

        def drawn(n: int, m: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(n, m, generator=generator) / math.sqrt(m))

        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value = drawn(3 * dim, dim)
        self.output = nn.Parameter(torch.zeros(dim, dim))
        self.age_weights = nn.Parameter(torch.zeros(heads, length))
        self.inner, self.inner_bias = drawn(dim, dim), nn.Parameter(torch.zeros(dim))
        self.outer = nn.Parameter(torch.zeros(dim, dim))

    def attend(self, x: Float[Tensor, "rows d"], layout: _Layout) -> Float[Tensor, "rows d"]:
        dim = x.shape[1]
        size = dim // self.heads
        projected = functional.linear(self.first_norm(x), self.query_key_value)
        slots = _reorder(projected, layout.rows, layout.slots)
        longest = max((length for _, length in layout.groups), default=0)
        age_weights = self._age_weights(longest)
        attended, first = [], 0
        for n, length in layout.groups:
            own = slots[first : first + n * length].view(n, length, 3, self.heads, size)
            query, key, value = own.permute(2, 0, 3, 1, 4).reshape(3, n * self.heads, length, size)
            logits = torch.bmm(query, key.transpose(1, 2)).view(n, self.heads, length, length)
            logits = logits * size**-0.5 + age_weights[:, :length, :length]
            values = torch.bmm(logits.softmax(-1).view(-1, length, length), value)
            attended.append(values.view(n, self.heads, length, size).transpose(1, 2).reshape(-1, dim))
            first += n * length
        attended.append(x.new_zeros(1, dim))
        return functional.linear(_reorder(torch.cat(attended), layout.slots, layout.rows), self.output)

    def _age_weights(self, length: int) -> Float[Tensor, "heads length length"]:
        """Of each place and each other one by how much older it is; −inf for those that come later."""
        older = torch.arange(length, device=self.age_weights.device)
        older = older.unsqueeze(1) - older
        weights = self.age_weights[:, older.clamp(0, self.age_weights.shape[1] - 1)]
        return weights.masked_fill(older < 0, -torch.inf)

    def feed_forward(self, x: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
        inner = functional.gelu(functional.linear(self.second_norm(x), self.inner, self.inner_bias))
        return functional.linear(inner, self.outer)


_DEGREE_POWER = -0.25
_MORE_COLUMNS = 16
"""Beyond those wanted, so that the last of them are found as well as the first."""
_STAYS = 0.1
"""Of the random start."""
_ROUNDS = 2
"""Of multiplying; with more, a sparse graph's first directions are small closed circles of users."""


@torch.no_grad()
def start_spectral(
    graph: Graph, users: Table | None, items: list[Table], dim: int, std: float, generator: torch.Generator
) -> None:
    """Turns the first `dim` columns of random tables into the spectrum's directions, as long as they were.

    With X the matrix of who had what and D its degrees, the leading singular vectors of D_u^−¼ X D_i^−¼,
    each as long as its singular value, already rank items about as well as a fifth of a training does,
    and cost a tenth of a second: a random basis is multiplied by the sparse matrix a few times (Halko et
    al., 2011). With the exponent 0 popular items are all that the first directions say, with ½ nothing of
    popularity is left (decision 10).

    A little of what was random stays: a dimension that the spectrum does not have would begin at zero on both
    sides of every product, and never learn. Nodes without a training pair stay as they are.
    """
    of_users, of_items = spectral_vectors(graph, dim, generator)
    tables = [(table.embedding[:, :dim], of_items) for table in items]
    if users is not None:
        tables.append((users.embedding[:, :dim], of_users))
    for table, vectors in tables:
        directions = unit(functional.pad(vectors, (0, dim - vectors.shape[1])))
        known = (directions != 0).any(1, keepdim=True)
        table.copy_(torch.where(known, std * math.sqrt(dim) * directions + _STAYS * table, table))


def spectral_vectors(
    graph: Graph, dim: int, generator: torch.Generator
) -> tuple[Float[Tensor, "users k"], Float[Tensor, "items k"]]:
    """Left and right singular vectors times their singular values, k = `dim` or fewer, in both tables."""
    dtype = torch.get_default_dtype()
    of_users, of_items = (
        neighbours.degrees.clamp_min(1).to(dtype).pow(_DEGREE_POWER).unsqueeze(1)
        for neighbours in (graph.items_of, graph.users_of)
    )
    width = min(dim + _MORE_COLUMNS, graph.n_users, graph.n_items)
    basis = torch.randn(graph.n_items, width, generator=generator, dtype=dtype)
    for _ in range(_ROUNDS):
        image = of_users * graph.items_of.sums(of_items * basis)
        basis = torch.linalg.qr(of_items * graph.users_of.sums(of_users * image)).Q
    image = of_users * graph.items_of.sums(of_items * basis)
    # The image is tall and thin: the small matrix of its products has its spectrum.
    squares, turn = torch.linalg.eigh((image.T @ image).double())
    turn = turn.flip(1)[:, :dim].to(dtype)
    values = squares.flip(0)[:dim].clamp_min(0).sqrt().to(dtype)
    return image @ turn, (basis @ turn) * values

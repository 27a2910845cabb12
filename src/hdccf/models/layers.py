"""Layers of user and item vectors: embedding tables, weighted histories, and attention over a history.

The recency-weighted sum weighs an item of the history by its age alone. Attention (Vaswani et al., 2017, with
a learnt weight for each age; Kang and McAuley, 2018, for recommendation) weighs it by content as well.
"""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from hdccf.data.batches import NO_ITEM, History, Windows
from hdccf.data.graph import Graph
from hdccf.rng import dropout_mask
from hdccf.similarity import Vectors, unit

_GROUPS = 4
"""Windows of similar length are encoded together."""


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
        distinct, places = torch.unique(windows.items.clamp_min(0), return_inverse=True)
        items = functional.embedding(places, self._look_up(self.embedding, distinct))
        n_windows = len(windows.items) if windows.n_windows is None else windows.n_windows
        encoded = attention(items, present, generator, first=windows.first, n_windows=n_windows)
        users = encoded.flatten(0, 1)[windows.places]
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
        items: Float[Tensor, "n length d"],
        present: Bool[Tensor, "n length"],
        generator: torch.Generator | None = None,
        *,
        first: int = 0,
        n_windows: int | None = None,
    ) -> Float[Tensor, "n length d"]:
        """The user after each item of each window; a generator drops parts out, as in training.

        Where these are some of a block's windows, `first` and `n_windows` say which and of how many.
        """
        length, n = items.shape[1], len(items) if n_windows is None else n_windows
        masks = self._masks(items, generator, n, slice(first, first + len(items)))
        lengths = present.sum(1)
        order = lengths.argsort(descending=True)
        encoded = []
        for group in order.chunk(_GROUPS):
            # Short histories need not wait for long ones: what is before the longest of a group is empty.
            start = length - max(int(lengths[group[0]]), 1)
            dropped = [None if mask is None else mask[group, start:] for mask in masks]
            part = self._encode(items[group, start:], present[group, start:], dropped)
            encoded.append(functional.pad(part, (0, 0, start, 0)))
        return torch.cat(encoded)[order.argsort()]

    def _encode(
        self,
        items: Float[Tensor, "n m d"],
        present: Bool[Tensor, "n m"],
        masks: list[Float[Tensor, "n m d"] | None],
    ) -> Float[Tensor, "n m d"]:
        """Of windows that are cut to their last m places; a mask for each thing that may be dropped."""
        places, dim = items.shape[1:]
        # Unit vectors have entries of about 1/√d; norms and age vectors are made for entries of about 1.
        x = _dropped(unit(items) * math.sqrt(dim) + self.ages[-places:], masks[0])
        past = torch.ones(places, places, dtype=torch.bool, device=items.device).tril()
        # An empty place attends to itself, so that no softmax is over an empty row; its output is not used.
        itself = torch.eye(places, dtype=torch.bool, device=items.device)
        visible = (past & present.unsqueeze(1)) | itself
        for layer, attn_dropout, forward_dropout in zip(self.layers, masks[1::2], masks[2::2], strict=True):
            assert isinstance(layer, AttentionLayer)  # noqa: S101 - nn.ModuleList has no types
            x = x + _dropped(layer.attend(x, visible), attn_dropout)
            x = x + _dropped(layer.feed_forward(x), forward_dropout)
        return unit(self.norm(x))

    def _masks(
        self,
        items: Float[Tensor, "n length d"],
        generator: torch.Generator | None,
        n_windows: int,
        own: slice,
    ) -> list[Float[Tensor, "n length d"] | None]:
        wanted = 1 + 2 * len(self.layers)
        if generator is None or self.keep == 1.0:
            return [None] * wanted
        # Drawn for all windows of the block, so that it does not matter who looks at which of them.
        like = items.new_empty(1).expand(n_windows, *items.shape[1:])
        return [dropout_mask(like, self.keep, generator)[own] for _ in range(wanted)]


def _dropped(x: Float[Tensor, "n m d"], mask: Float[Tensor, "n m d"] | None) -> Float[Tensor, "n m d"]:
    return x if mask is None else x * mask


class AttentionLayer(nn.Module):
    """One layer: self-attention with a weight for each age, and a feed-forward network."""

    apart: Tensor

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
        places = torch.arange(length)
        apart = (places.unsqueeze(1) - places).clamp_min(0)
        self.register_buffer("apart", apart, persistent=False)

    def attend(
        self, x: Float[Tensor, "n length d"], visible: Bool[Tensor, "n length length"]
    ) -> Float[Tensor, "n length d"]:
        n, length, dim = x.shape
        projected = functional.linear(self.first_norm(x), self.query_key_value)
        query, key, value = projected.view(n, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        weights = self.age_weights[:, self.apart[:length, :length]].expand(n, -1, -1, -1)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=weights.masked_fill(~visible.unsqueeze(1), -torch.inf)
        )
        return functional.linear(attended.transpose(1, 2).reshape(n, length, dim), self.output)

    def feed_forward(self, x: Float[Tensor, "n length d"]) -> Float[Tensor, "n length d"]:
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

"""HDCCF's parameters: embedding tables, history encoder and similarities, and what is computed from them."""

import math
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.batches import Block, History, Pool, Windows, cut_histories, cut_windows, last_places
from hdccf.data.graph import Graph, Neighbours, nearest_nodes
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.losses.negatives import ContrastiveLoss
from hdccf.models.base import Model
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.layers import HistoryAttention, Table, start_spectral
from hdccf.similarity import SIMILARITIES, Modulated, Similarity, Vectors

_USERS_AT_ONCE = 128


class HDCCFNetwork(Model):
    """Vectors of users and items, the similarities between them, and the weights of negatives."""

    settings: HDCCF

    def __init__(self, settings: HDCCF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings)
        self.uses_history = settings.resolved(train).user_vector == "history"
        self.graph = Graph.of(train)
        self._make_tables(train, generator)
        self.attention = None
        if self.uses_history and settings.history_encoder == "attention":
            self.attention = HistoryAttention(
                settings.embedding_dim,
                settings.history_length,
                layers=settings.attention_layers,
                heads=settings.attention_heads,
                dropout=settings.attention_dropout,
                generator=generator,
            )
        self.user_item = _similarity(settings, generator)
        # Each relation has its own g: what matters between users is not what matters between user and item.
        self.user_user = _similarity(settings, generator) if settings.user_user_weight else None
        self.item_item = _similarity(settings, generator) if settings.item_item_weight else None
        self.contrast = ContrastiveLoss(
            temperature=settings.temperature,
            item_weight=settings.item_side,
            user_weight=settings.user_side,
            omega_items=settings.omega_items,
            omega_users=settings.omega_users,
            lowest=self.user_item.lowest,
        )

    def _make_tables(self, train: Interactions, generator: torch.Generator) -> None:
        settings = self.settings
        separate = settings.similarity == "modulated" and settings.factors == "separate"
        popular = settings.similarity == "popular"

        def table(n_nodes: int) -> Table:
            return Table(
                n_nodes,
                settings.embedding_dim + popular,
                separate=separate,
                std=settings.init_std,
                sparse=settings.sparse_updates,
                generator=generator,
            )

        self.items = table(train.n_items)
        self.users = None if self.uses_history else table(train.n_users)
        self.past = None
        if self.uses_history and settings.history_table == "own":
            self.past = table(train.n_items)
            self.past.load_state_dict(self.items.state_dict())
        if settings.start == "spectral":
            tables = [self.items] if self.past is None else [self.items, self.past]
            start_spectral(
                self.graph, self.users, tables, settings.embedding_dim, settings.init_std, generator
            )
        if popular:
            with torch.no_grad():
                self.items.embedding[:, -1] = 0  # the learned popularity starts at zero

    @property
    def history_table(self) -> Table:
        """The items' vectors in histories."""
        return self.items if self.past is None else self.past

    def user_vectors(self, users: Int64[Tensor, "*n"]) -> Vectors:
        """Free vectors; only blocks go with histories."""
        if self.users is None:
            raise ConfigError("a user's history vector is made with the block's cuts; set sampler to block")
        return self.users.of(users)

    def block_vectors(
        self, block: Block, generator: torch.Generator | None = None
    ) -> tuple[Vectors, Vectors]:
        """Of the block's rows and columns; with a generator dropout is applied."""
        items = self.items.of(block.columns)
        if block.history is None:
            return self.user_vectors(block.users), items
        return self.vectors_of(block.history, len(block.users), generator), items

    def vectors_of(
        self, history: History | Windows, n_rows: int, generator: torch.Generator | None = None
    ) -> Vectors:
        """User vectors from histories; with a generator dropout is applied."""
        if isinstance(history, History):
            return self.history_table.sum_of(history, n_rows)
        assert self.attention is not None  # noqa: S101 - its sampler is the only one that makes windows
        return self.history_table.attended(history, self.attention, generator)

    @torch.no_grad()
    def all_users(self) -> Vectors:
        """Every user's vector; with `history`, of all their training items."""
        if self.users is not None:
            return self.users.all()
        return self.history_vectors(self.graph.items_of)

    @torch.no_grad()
    def history_vectors(self, items_of: Neighbours) -> Vectors:
        """The users of some histories, each as of the end of theirs."""
        n_users = len(items_of.degrees)
        every = torch.arange(n_users, device=items_of.starts.device)
        if self.attention is None:
            return self.vectors_of(self.cut(items_of, every, items_of.degrees), n_users)
        parts = []
        # Attention compares every place with every other, so all users at once would take gigabytes.
        for users in torch.split(every, _USERS_AT_ONCE):
            cuts = items_of.degrees[users]
            windows = last_places(cut_windows(items_of, users, cuts, self.settings.history_length))
            parts.append(self.vectors_of(windows, len(users)).embedding)
        found = torch.cat(parts)
        # An empty history gives a zero vector, as with a sum.
        found = found * (items_of.degrees > 0).unsqueeze(1)
        return Vectors(found, found)

    def cut(self, items_of: Neighbours, users: Int64[Tensor, " r"], cuts: Int64[Tensor, " r"]) -> History:
        """The weighted history of each user up to a cut."""
        s = self.settings
        return cut_histories(items_of, users, cuts, s.history_half_life, s.history_length, s.history_floor)

    def log_weights(self, kind: Literal["items", "users"], drawn_by_frequency: bool) -> Float[Tensor, " n"]:
        """Weights with which negatives count ∝ frequency^(1 − β), given how they were drawn; 1 on average.

        In-batch negatives come ∝ frequency and take frequency^(−β); uniform ones and a block's take
        frequency^(1 − β).
        """
        exponent = self.settings.frequency_correction - (0.0 if drawn_by_frequency else 1.0)
        neighbours = self.graph.users_of if kind == "items" else self.graph.items_of
        log_weights = losses.log_frequency_weights(neighbours.degrees, exponent)
        return log_weights - torch.logsumexp(log_weights, 0) + math.log(len(log_weights))

    @cached_property
    def log_item_weights(self) -> Float[Tensor, " items"]:
        return self.log_weights("items", self.settings.sampler == "in-batch")

    @cached_property
    def log_user_weights(self) -> Float[Tensor, " users"]:
        return self.log_weights("users", self.settings.sampler == "in-batch")

    def block_log_weights(self, block: Block) -> tuple[Float[Tensor, " c"], Float[Tensor, " r"]]:
        """How many items a column stands for, and how many users a row, times the frequency correction."""
        columns = self.log_item_weights if block.columns is None else self.log_item_weights[block.columns]
        if block.inclusion is not None:
            columns = columns + block.inclusion.log()
        share = math.log(len(self.log_user_weights) / len(block.users))
        return columns, self.log_user_weights[block.users] + share

    @cached_property
    def nearest_users(self) -> Int64[Tensor, "users k"]:
        graph, size = self.graph, self.settings.nearest
        return nearest_nodes(graph.items_of, graph.users_of, size).to(self.items.embedding.device)

    @cached_property
    def nearest_items(self) -> Int64[Tensor, "items k"]:
        graph, size = self.graph, self.settings.nearest
        return nearest_nodes(graph.users_of, graph.items_of, size).to(self.items.embedding.device)

    def pool_log_weights(self, pool: Pool) -> Float[Tensor, " c"]:
        """How many items a drawn one stands for, times the frequency correction."""
        return self.log_item_weights.index_select(0, pool.columns) + pool.inclusion.log()


def _similarity(settings: HDCCF, generator: torch.Generator) -> Similarity:
    if settings.similarity == "modulated":
        return Modulated(settings.embedding_dim, settings.hidden, settings.normalise, generator)
    return SIMILARITIES[settings.similarity]()

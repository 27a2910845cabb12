"""HDCCF: vectors, similarity, batches and the three contrastive losses put together (Eq. 6)."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from hdccf import losses
from hdccf.data.ahead import prefetch
from hdccf.data.cuts import History, Windows, cut_histories, cut_windows, last_places
from hdccf.data.graph import Graph, Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.parts import part_of
from hdccf.data.pools import Pool, PoolSampler
from hdccf.data.sampling import (
    Block,
    BlockSampler,
    Drawn,
    HistoryBlockSampler,
    InBatch,
    InBatchSampler,
    UniformSampler,
)
from hdccf.data.weights import weights_of
from hdccf.data.window_blocks import WindowBlockSampler
from hdccf.errors import ConfigError
from hdccf.losses.diagnostics import describe_negatives
from hdccf.losses.negatives import ContrastiveLoss
from hdccf.models.attention import HistoryAttention
from hdccf.models.base import Objective, VectorScorer, weighted_mean
from hdccf.models.hdccf.losses import block_loss, instance_loss, relation_loss
from hdccf.models.hdccf.pool import pool_loss
from hdccf.models.hdccf.scores import (
    Scored,
    ScoredBlock,
    item_negatives,
    score_block,
    score_drawn,
    score_in_batch,
)
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.scoring import Scorer
from hdccf.models.spectral import start_spectral
from hdccf.models.tables import Table
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.similarity import SIMILARITIES, Modulated, Similarity, Vectors

Batch = InBatch | Drawn | Block | Pool
Sampler = (
    InBatchSampler | UniformSampler | BlockSampler | PoolSampler | HistoryBlockSampler | WindowBlockSampler
)

_EVERYTHING = "all"
_USERS_AT_ONCE = 512


class HDCCFModel(nn.Module):
    """Built from settings and training pairs; the trainer does the rest."""

    process_group: ProcessGroup = SINGLE_PROCESS

    def __init__(self, settings: HDCCF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__()
        self.settings = settings
        self.uses_history = resolve_user_vector(settings, train) == "history"
        self.graph = Graph.of(train)
        self._positive_weights = self.graph.along(weights_of(settings, train))
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
                self.items.embedding[:, -1] = 0  # nobody is, to begin with
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

    # -- what the trainer asks -------------------------------------------------------------------------------

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {_EVERYTHING: list(self.parameters())}

    @cached_property
    def sampler(self) -> Sampler:
        s, graph, weights = self.settings, self.graph, self._positive_weights
        if self.attention is not None:
            return WindowBlockSampler(
                graph,
                weights,
                s.block_users,
                s.block_items,
                s.history_length,
                s.ahead,
                s.ahead_half_life,
            )
        if self.uses_history:
            return HistoryBlockSampler(
                graph,
                weights,
                s.block_users,
                s.block_items,
                s.history_half_life,
                s.history_length,
                s.ahead,
                s.ahead_half_life,
                s.history_floor,
            )
        if s.sampler == "block":
            return BlockSampler(graph, weights, s.block_users, s.block_items)
        if s.sampler == "pool":
            return PoolSampler(graph, weights, s.block_users, s.negatives)
        if s.sampler == "in-batch":
            return InBatchSampler(graph, weights, s.batch_size, s.neighbours)
        return UniformSampler(graph, weights, s.batch_size, s.negatives, s.neighbours)

    @property
    def n_batches(self) -> int:
        return len(self.sampler)

    @property
    def numbers_a_step(self) -> int | None:
        """A pool's vectors and its users' positives; sixteen products take as long as looking one up."""
        s = self.settings
        if s.sampler != "pool":
            return None
        vectors = s.block_users + s.negatives + self.graph.n_pairs // max(self.n_batches, 1)
        return s.embedding_dim * (vectors + s.block_users * s.negatives // 16)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        batches: Iterator[Batch] = self.sampler.epoch(generator)
        # A pool's steps take one thread (`numbers_a_step`): another one can draw (decision 06).
        spare = isinstance(self.sampler, PoolSampler) and torch.get_num_threads() > 1
        return prefetch(batches) if spare else batches

    def objectives(self, batch: Batch, generator: torch.Generator) -> Iterator[Objective]:
        s = self.settings
        if isinstance(batch, Pool):
            yield self._pool_objective(batch)
            return
        scored: Scored | ScoredBlock
        if isinstance(batch, Block):
            scored = score_block(self, batch, generator)
            loss, clips = block_loss(self, scored, batch, generator)
            weights, relation_weights = (scored.weights, batch.weights), scored.anchor_weights
        else:
            part, n = part_of(batch, self.process_group.rows(len(batch.users))), len(batch.users)
            scored = score_in_batch(self, part, n) if isinstance(part, InBatch) else score_drawn(self, part)
            loss, clips = instance_loss(self, scored, n, generator)
            weights = relation_weights = (part.weights, batch.weights)
        parts = {"user-item": weighted_mean(loss, *weights)}
        for name, weight, relation in (
            ("user-user", s.user_user_weight, scored.user_user),
            ("item-item", s.item_item_weight, scored.item_item),
        ):
            if relation is not None:
                parts[name] = weight * weighted_mean(
                    relation_loss(relation, s.temperature), *relation_weights
                )
        total = torch.stack(list(parts.values())).sum()
        shown = {name: part.detach() for name, part in parts.items()} if len(parts) > 1 else {}
        yield Objective(total, _EVERYTHING, {**shown, **clips})

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> dict[str, float]:
        """On the item side, whose negatives a user would be shown."""
        negatives = item_negatives(self, batch)
        return describe_negatives(negatives, self.settings.temperature)

    def scorer(self) -> Scorer:
        return VectorScorer(self.user_item, self.all_users(), self.items.all())

    @torch.no_grad()
    def all_users(self) -> Vectors:
        """Every user's vector; with `history`, of all their training items."""
        if self.users is not None:
            return self.users.all()
        return self.history_vectors(self.graph.items_of)

    @torch.no_grad()
    def history_vectors(self, items_of: Neighbours) -> Vectors:
        """The users of some histories, each as of the end of theirs."""
        s, n_users = self.settings, len(items_of.degrees)
        every = torch.arange(n_users, device=items_of.starts.device)
        if self.attention is None:
            history = cut_histories(
                items_of, every, items_of.degrees, s.history_half_life, s.history_length, s.history_floor
            )
            return self.vectors_of(history, n_users)
        parts = []
        # Attention looks from every place at every place, so all users at once would be many gigabytes.
        for users in torch.split(every, _USERS_AT_ONCE):
            windows = last_places(cut_windows(items_of, users, items_of.degrees[users], s.history_length))
            parts.append(self.vectors_of(windows, len(users)).embedding)
        found = torch.cat(parts)
        # Who has had nothing is no direction at all, as with a sum.
        found = found * (items_of.degrees > 0).unsqueeze(1)
        return Vectors(found, found)

    def vectors_of(
        self, history: History | Windows, n_rows: int, generator: torch.Generator | None = None
    ) -> Vectors:
        """User vectors from what is in histories; a generator is for what training drops out."""
        table = self.items if self.past is None else self.past
        if isinstance(history, History):
            return table.sum_of(history, n_rows)
        assert self.attention is not None  # noqa: S101 - its sampler is the only one that makes windows
        return table.attended(history, self.attention, generator)

    def user_vectors(self, users: Int64[Tensor, "*n"]) -> Vectors:
        """Free vectors; only blocks go with histories."""
        if self.users is None:
            raise ConfigError("a user's history vector is made with the block's cuts; set sampler to block")
        return self.users.of(users)

    # -- the negatives' weights ------------------------------------------------------------------------------

    def log_weights(self, kind: Literal["items", "users"], drawn_by_frequency: bool) -> Float[Tensor, " n"]:
        """What makes negatives count ∝ frequency^(1 − β), given how they were drawn; on average 1.

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

    def _pool_objective(self, pool: Pool) -> Objective:
        part = part_of(pool, self.process_group.rows(len(pool.users)))
        loss, clipped = pool_loss(self, part, len(pool.items))
        total = weighted_mean(loss, part.weights, pool.weights)
        return Objective(total, _EVERYTHING, {"clipped-items": clipped})


def resolve_user_vector(settings: HDCCF, train: Interactions) -> Literal["free", "history"]:
    """What `user_vector="auto"` means for this data: a history needs times, blocks and a second item."""
    if settings.user_vector != "auto":
        if settings.user_vector == "history" and train.times is None:
            raise ConfigError(
                "user_vector='history' needs times; give a time column, or take user_vector='free'"
            )
        return settings.user_vector
    possible = (
        train.times is not None
        and settings.sampler == "block"
        and settings.similarity != "popular"
        and bool((train.by_user.degrees >= 2).any())
    )
    return "history" if possible else "free"


def remarks(settings: HDCCF, train: Interactions) -> list[str]:
    """Which user vectors, negatives and similarity these settings come to, and why."""
    vector = resolve_user_vector(settings, train)
    because = "the data has times"
    if vector == "free":
        because = "the data has no times" if train.times is None else "histories go with blocks"
    chosen = f" ({because})" if settings.user_vector == "auto" else ""
    return [
        f"user vectors: {vector}{chosen}; negatives: {settings.sampler}; "
        f"similarity: {settings.similarity}, temperature {settings.temperature}"
    ]


def _similarity(settings: HDCCF, generator: torch.Generator) -> Similarity:
    if settings.similarity == "modulated":
        return Modulated(settings.embedding_dim, settings.hidden, settings.normalise, generator)
    return SIMILARITIES[settings.similarity]()

"""HDCCF as a model: its sampler, its objectives, and its answers for new users and items."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hdccf.data.batches import Block, InBatch, Pool, SampledBatch
from hdccf.data.graph import Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import (
    BlockSampler,
    HistoryBlockSampler,
    InBatchSampler,
    PoolSampler,
    UniformSampler,
    WindowBlockSampler,
    prefetch,
)
from hdccf.data.weights import weights_of
from hdccf.losses.contrastive import PAIR_LOSSES
from hdccf.losses.diagnostics import NegativeShares, bpr_shares, describe_negatives, softmax_shares
from hdccf.losses.negatives import NegativeSet
from hdccf.models.base import ALL, Items, Kind, Objective, Scorer, Users, VectorScorer
from hdccf.models.fold_in import ContrastiveRows, PairRows, RowLoss, solve
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.network import HDCCFNetwork
from hdccf.models.hdccf.settings import HDCCF
from hdccf.similarity import Similarity, Vectors, unit

Batch = InBatch | SampledBatch | Block | Pool
Sampler = (
    InBatchSampler | UniformSampler | BlockSampler | PoolSampler | HistoryBlockSampler | WindowBlockSampler
)


class HDCCFModel(HDCCFNetwork):
    """Built from settings and training pairs; the trainer does the rest."""

    def __init__(self, settings: HDCCF, train: Interactions, generator: torch.Generator) -> None:
        super().__init__(settings, train, generator)
        self.users_are_histories, self.has_free_vectors = self.uses_history, not self.uses_history
        self._positive_weights = self.graph.along(weights_of(settings, train))

    @cached_property
    def sampler(self) -> Sampler:
        s, given = self.settings, (self.graph, self._positive_weights)
        if self.attention is not None:
            return WindowBlockSampler(
                *given, s.block_users, s.block_items, s.history_length, s.ahead, s.ahead_half_life
            )
        if self.uses_history:
            return HistoryBlockSampler(
                *given,
                s.block_users,
                s.block_items,
                s.history_half_life,
                s.history_length,
                s.ahead,
                s.ahead_half_life,
                s.history_floor,
            )
        if s.sampler == "block":
            return BlockSampler(*given, s.block_users, s.block_items)
        if s.sampler == "pool":
            return PoolSampler(*given, s.block_users, s.negatives)
        if s.sampler == "in-batch":
            return InBatchSampler(*given, s.batch_size, s.neighbours)
        return UniformSampler(*given, s.batch_size, s.negatives, s.neighbours)

    @property
    def lookups_per_step(self) -> int | None:  # type: ignore[override]
        """A pool's vectors and its users' positives, or a block's scores; by them threads are chosen.

        Sixteen products take as long as looking one number up, or eight with a softmax and its gradients.
        """
        s = self.settings
        if s.sampler == "block" and self.attention is None and s.similarity != "modulated":
            # All of the items, or some and the positives: about as many again.
            columns = min(2 * s.block_items, self.graph.n_items)
            return s.embedding_dim * min(s.block_users, self.graph.n_users) * columns // 8
        if s.sampler != "pool":
            return None
        vectors = s.block_users + s.negatives + self.graph.n_pairs // max(self.n_batches, 1)
        return s.embedding_dim * (vectors + s.block_users * s.negatives // 16)

    def batches(self, generator: torch.Generator) -> Iterator[Any]:
        batches: Iterator[Batch] = self.sampler.epoch(generator)
        # A pool's steps take one thread (`lookups_per_step`), so another one can draw the next batch.
        spare = self.settings.sampler == "pool" and torch.get_num_threads() > 1
        return prefetch(batches) if spare else batches

    def objectives(self, batch: Batch, generator: torch.Generator) -> Iterator[Objective]:
        if isinstance(batch, Block):
            loss, terms = steps.block_step(self, batch, generator)
        elif isinstance(batch, Pool):
            loss, terms = steps.pool_step(self, batch)
        else:
            loss, terms = steps.instance_step(self, batch, generator)
        yield Objective(loss, ALL, terms)

    @torch.no_grad()
    def diagnose(self, batch: Batch) -> dict[str, float]:
        """On the item side, whose negatives a user would be shown."""
        return describe_negatives(self.item_negatives(batch), self.settings.temperature)

    def item_negatives(self, batch: Batch) -> NegativeSet:
        return steps.item_negatives(self, batch)

    def negative_shares(
        self, scores: Float[Tensor, " items"], observed: Bool[Tensor, " items"]
    ) -> NegativeShares | None:
        s = self.settings
        plain = s.frequency_correction == 1
        log_weights = None if plain else self.log_weights("items", drawn_by_frequency=False)
        if s.loss == "bpr":
            return bpr_shares(scores, observed, log_weights) if s.sampler == "block" else None
        if s.loss != "contrastive":
            return None
        if not s.mask_observed:
            # What a user has is among the negatives, and takes its share.
            observed = torch.zeros_like(observed)
        popular = "" if plain else f" and frequency^{1 - s.frequency_correction:.3g}"
        stated = f"the contrastive loss: softmax of f/τ, τ = {s.temperature:g}{popular}"
        return softmax_shares(scores, observed, s.temperature, stated, log_weights)

    def modulation(self, users: Users, items: Items) -> Float[Tensor, "b d"] | None:
        return self.scorer().modulation(users, items)

    def scorer(self) -> VectorScorer:
        return VectorScorer(self.user_item, self.all_users(), self.items.all())

    def users_from(self, events: Interactions) -> Scorer:
        if not self.uses_history:
            return super().users_from(events)
        users = self.history_vectors(Neighbours.of(events.by_user, events.n_items))
        return VectorScorer(self.user_item, users, self.items.all())

    def solve_vectors(self, events: Interactions, *, of_users: bool, known: Scorer | None = None) -> Vectors:
        s = self.settings
        weights = weights_of(s, events) if of_users else torch.ones(len(events))
        loss: RowLoss
        if s.loss == "contrastive":
            sizes = {"in-batch": float(s.neighbours * (s.batch_size - 1)), "uniform": float(s.negatives)}
            loss = ContrastiveRows(
                log_weights=self.log_weights("items" if of_users else "users", drawn_by_frequency=False),
                temperature=s.temperature,
                weight=s.item_side or 1.0,
                omega=s.omega_items if of_users else s.omega_users,
                lowest=self.user_item.lowest,
                size=sizes.get(s.sampler),
                masked=s.mask_observed,
            )
        else:
            loss = PairRows(PAIR_LOSSES[s.loss], 1, None, 0.0)
        return solve(self.vector_scorer(known), loss, events, weights, of_users)

    @property
    def item_tables(self) -> tuple[str, ...]:
        tables = {"items": self.items, "past": self.past}
        every = [
            f"{name}.{each}"
            for name, table in tables.items()
            if table
            for each, _ in table.named_parameters()
        ]
        return tuple(sorted(every, key="items.embedding".__ne__))

    def relation(self, kind: Kind) -> Similarity | None:
        return self.item_item if kind == "items" else self.user_user

    @torch.no_grad()
    def history_parts(self, events: Interactions, row: int) -> tuple[Tensor, Tensor] | None:
        if not self.uses_history or self.attention is not None:
            return None
        items_of = Neighbours.of(events.by_user, events.n_items)
        history = self.cut(items_of, torch.tensor([row]), items_of.degrees[[row]])
        weighted = unit(self.history_table.of(history.items).embedding) * history.weights.unsqueeze(1)
        length = torch.linalg.vector_norm(weighted.sum(0)).clamp_min(1e-12)
        return history.items, weighted / length

    def export_tables(self, scorer: Scorer) -> dict[str, dict[str, Tensor]]:
        tables = super().export_tables(scorer)
        if self.past is not None:
            tables["items"]["history_vector"] = self.past.all().embedding.detach()
        return tables

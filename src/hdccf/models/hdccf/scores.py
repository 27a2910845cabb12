"""Scoring each kind of batch with HDCCF's vectors: which pairs are compared, and what weighs them."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf.data.parts import part_of
from hdccf.data.pools import Pool
from hdccf.data.sampling import Block, Drawn, InBatch, Negatives
from hdccf.losses.negatives import NegativeSet, in_batch_log_weights
from hdccf.parallel import ProcessGroup
from hdccf.similarity import Similarity, Vectors

if TYPE_CHECKING:
    from hdccf.models.hdccf.model import HDCCFModel


class Scored(NamedTuple):
    """A batch of instances: the positives, both sides of Eq. 14, and the relations of Eq. 17 where wanted."""

    positive: Float[Tensor, " b"]
    items: NegativeSet
    users: NegativeSet
    user_user: NegativeSet | None
    item_item: NegativeSet | None


class ScoredBlock(NamedTuple):
    """A block: all its pairs, what weighs its columns and rows, and the relations of some anchors.

    In a process group the scores and the relations are those of the member's own rows and anchors.
    """

    scores: Float[Tensor, "r c"]
    log_item_weights: Float[Tensor, " c"]
    log_user_weights: Float[Tensor, " rows"]
    """Of all rows of the block."""
    weights: Float[Tensor, " b"]
    """Of the positives in the own rows."""
    user_user: NegativeSet | None
    item_item: NegativeSet | None
    anchor_weights: tuple[Float[Tensor, " a"], Float[Tensor, " anchors"]]
    """Of the own anchors, and of all."""


def score_in_batch(model: "HDCCFModel", batch: InBatch, n_instances: int | None = None) -> Scored:
    """Every instance against the distinct neighbours of all (Eq. 9).

    Where `batch` is a part of one, `n_instances` says how many the whole has.
    """
    users, items = model.user_vectors(batch.users), model.items.of(batch.items)
    column_users = model.user_vectors(batch.user_negatives.columns)
    column_items = model.items.of(batch.item_negatives.columns)
    masked = model.settings.mask_observed
    item_weights = in_batch_log_weights(
        batch.item_negatives, model.log_item_weights[batch.item_negatives.columns], mask_observed=masked
    )
    user_weights = in_batch_log_weights(
        batch.user_negatives, model.log_user_weights[batch.user_negatives.columns], mask_observed=masked
    )
    # Q is counted before masking (erratum 3).
    size = float(model.settings.neighbours * ((n_instances or len(batch.users)) - 1))

    def against(
        scores: Float[Tensor, "b c"],
        log_weights: Float[Tensor, "b c"],
        side: Negatives,
        target: Int64[Tensor, " b"],
    ) -> NegativeSet:
        return NegativeSet(
            scores, log_weights, size, scores.gather(1, side.own), side.columns[side.own] != target[:, None]
        )

    def relation(
        similarity: Similarity | None, left: Vectors, right: Vectors, *rest: Tensor | Negatives
    ) -> NegativeSet | None:
        return None if similarity is None else against(similarity.all_pairs(left, right), *rest)  # type: ignore[arg-type]

    on_items = (item_weights, batch.item_negatives, batch.items)
    on_users = (user_weights, batch.user_negatives, batch.users)
    return Scored(
        model.user_item.matching(users, items),
        against(model.user_item.all_pairs(users, column_items), *on_items),
        against(model.user_item.all_pairs(column_users, items).T, *on_users),
        relation(model.user_user, users, column_users, *on_users),
        relation(model.item_item, items, column_items, *on_items),
    )


def score_drawn(model: "HDCCFModel", batch: Drawn) -> Scored:
    """Every instance against S negatives a side of its own (Eq. 1)."""
    users, items = model.user_vectors(batch.users), model.items.of(batch.items)
    negative_items, negative_users = (
        model.items.of(batch.negative_items),
        model.user_vectors(batch.negative_users),
    )
    near_items, near_users = model.items.of(batch.neighbour_items), model.user_vectors(batch.neighbour_users)
    each_user, each_item = _against_each(users), _against_each(items)
    size = float(batch.negative_items.shape[1])
    f = model.user_item.matching
    item_weights = model.log_item_weights[batch.negative_items]
    user_weights = model.log_user_weights[batch.negative_users]
    other_items = batch.neighbour_items != batch.items[:, None]
    other_users = batch.neighbour_users != batch.users[:, None]

    user_user = item_item = None
    if model.user_user is not None:
        g = model.user_user.matching
        user_user = NegativeSet(
            g(each_user, negative_users), user_weights, size, g(each_user, near_users), other_users
        )
    if model.item_item is not None:
        g = model.item_item.matching
        item_item = NegativeSet(
            g(each_item, negative_items), item_weights, size, g(each_item, near_items), other_items
        )
    return Scored(
        f(users, items),
        NegativeSet(f(each_user, negative_items), item_weights, size, f(each_user, near_items), other_items),
        NegativeSet(f(negative_users, each_item), user_weights, size, f(near_users, each_item), other_users),
        user_user,
        item_item,
    )


def score_block(model: "HDCCFModel", block: Block, generator: torch.Generator) -> ScoredBlock:
    """All users of a block with all its items, once."""
    process_group, n_rows = model.process_group, len(block.users)
    part = part_of(block, process_group.rows(n_rows))
    users, items = block_vectors(model, part, generator)
    log_items, log_users = block_log_weights(model, block)
    user_user = item_item = None
    anchor_weights = (block.weights[:0], block.weights[:0])
    if model.user_user is not None or model.item_item is not None:
        shuffled = torch.randperm(len(block.rows), generator=generator, device=generator.device)
        anchors = shuffled[: model.settings.batch_size]
        rows, columns = block.rows[anchors], block.positive_columns[anchors]
        anchor_weights = (block.weights[anchors[process_group.rows(len(anchors))]], block.weights[anchors])
        observed = torch.zeros(len(log_users), len(log_items), dtype=torch.bool, device=rows.device)
        observed[block.observed_rows, block.observed_columns] = True
        if model.user_user is not None:
            related = observed.T[columns]  # the block's users who have the anchor's item
            every = gathered(users, n_rows, process_group)
            user_user = _block_relation(model, model.user_user, every, log_users, related, rows, generator)
        if model.item_item is not None:
            related = observed[rows]  # the block's items that the anchor's user has
            item_item = _block_relation(model, model.item_item, items, log_items, related, columns, generator)
    scores = model.user_item.all_pairs(users, items)
    return ScoredBlock(scores, log_items, log_users, part.weights, user_user, item_item, anchor_weights)


def gathered(vectors: Vectors, n: int, process_group: ProcessGroup) -> Vectors:
    """All n rows of which each of a process group has some."""
    embedding = process_group.all_gather(vectors.embedding, n)
    same = vectors.factors is vectors.embedding
    return Vectors(embedding, embedding if same else process_group.all_gather(vectors.factors, n))


def _block_relation(
    model: "HDCCFModel",
    similarity: Similarity,
    vectors: Vectors,
    log_weights: Float[Tensor, " n"],
    related: Bool[Tensor, "a n"],
    anchors: Int64[Tensor, " a"],
    generator: torch.Generator,
) -> NegativeSet:
    """Anchors against the block's rows (or columns): P neighbours from the related, the rest negatives.

    Neighbours are drawn for all anchors; a process of a group scores its own.
    """
    # An anchor is related to itself, so there is always something to draw; drawn itself, it does not count.
    drawn = torch.multinomial(
        related.float(), model.settings.neighbours, replacement=True, generator=generator
    )
    own = model.process_group.rows(len(anchors))
    drawn, related, anchors = drawn[own], related[own], anchors[own]
    scores = similarity.all_pairs(Vectors(vectors.embedding[anchors], vectors.factors[anchors]), vectors)
    masked = log_weights.expand(scores.shape).masked_fill(related, -torch.inf)
    return NegativeSet(scores, masked, None, scores.gather(1, drawn), drawn != anchors[:, None])


def block_vectors(
    model: "HDCCFModel", block: Block, generator: torch.Generator | None = None
) -> tuple[Vectors, Vectors]:
    """Of the block's rows and columns; a generator is for what training drops out."""
    if block.history is None:
        return model.user_vectors(block.users), model.items.of(block.columns)
    users = model.vectors_of(block.history, len(block.users), generator)
    return users, model.items.of(block.columns)


def block_log_weights(model: "HDCCFModel", block: Block) -> tuple[Float[Tensor, " c"], Float[Tensor, " r"]]:
    """How many items a column stands for, and how many users a row, times the frequency's correction."""
    columns = model.log_item_weights if block.columns is None else model.log_item_weights[block.columns]
    if block.inclusion is not None:
        columns = columns + block.inclusion.log()
    share = math.log(model.graph.n_users / len(block.users))
    return columns, model.log_user_weights[block.users] + share


def pool_log_weights(model: "HDCCFModel", pool: Pool) -> Float[Tensor, " c"]:
    """How many items a drawn one stands for, times the frequency's correction."""
    return model.log_item_weights.index_select(0, pool.columns) + pool.inclusion.log()


def item_negatives(model: "HDCCFModel", batch: InBatch | Drawn | Block | Pool) -> NegativeSet:
    """The item side of any batch, for diagnosis: a block's or a pool's rows become instances."""
    if isinstance(batch, InBatch):
        return score_in_batch(model, batch).items
    if isinstance(batch, Drawn):
        return score_drawn(model, batch).items
    if isinstance(batch, Pool):
        users, items = model.user_vectors(batch.users), model.items.of(batch.columns)
        log_items = pool_log_weights(model, batch)
    else:
        users, items = block_vectors(model, batch)
        log_items, _ = block_log_weights(model, batch)
    scores = model.user_item.all_pairs(users, items)
    log_weights = log_items.repeat(len(scores), 1)
    log_weights[batch.observed_rows, batch.observed_columns] = -torch.inf
    none = scores.new_zeros(len(scores), 0)
    return NegativeSet(scores, log_weights, None, none, none.bool())


def _against_each(vectors: Vectors) -> Vectors:
    """Each row opposite a list of its own: [b, d] becomes [b, 1, d]."""
    return Vectors(vectors.embedding.unsqueeze(1), vectors.factors.unsqueeze(1))

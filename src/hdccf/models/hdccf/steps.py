"""HDCCF's training steps: each kind of batch is scored, its negatives weighted, and its losses taken (Eq. 6).

A step reads the network's parameters and its batch, and draws from the generator it is given.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.batches import Block, InBatch, NegativeColumns, Pool, SampledBatch, part_of
from hdccf.losses.block import can_fuse_pool, fused_pool_loss
from hdccf.losses.contrastive import PAIR_LOSSES
from hdccf.losses.negatives import BlockPairs, NegativeSet, NegativeTerm, weighted_mean, without_neighbours
from hdccf.models.base import Kind
from hdccf.models.hdccf.network import HDCCFNetwork
from hdccf.parallel import ProcessGroup
from hdccf.similarity import Cosine, Similarity, Vectors

_NEAREST_TEMPERATURE = 0.1
"""As published; with the user–item loss's .07 the gain on ml-100k was half as large (results/notes.md)."""

Terms = dict[str, Float[Tensor, ""]]
Loss = tuple[Float[Tensor, ""], Terms]
"""The loss of a step, and its terms to log, detached."""


class Scored(NamedTuple):
    """A batch of instances: the positives, both sides of Eq. 14, and the relations of Eq. 17 where wanted."""

    positive: Float[Tensor, " b"]
    items: NegativeSet
    users: NegativeSet
    user_user: NegativeSet | None
    item_item: NegativeSet | None


class ScoredBlock(NamedTuple):
    """A block: all its pairs, the weights of its columns and rows, and the relations of some anchors.

    In a process group the scores and the relations are those of this process's rows and anchors.
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


def instance_step(net: HDCCFNetwork, batch: InBatch | SampledBatch, generator: torch.Generator) -> Loss:
    """Positives with negatives of their own: in-batch (Eq. 9) or drawn (Eq. 1)."""
    n = len(batch.users)
    part = part_of(batch, net.process_group.rows(n))
    scored = score_in_batch(net, part, n) if isinstance(part, InBatch) else score_sampled(net, part)
    loss, clips = _instance_loss(net, scored, n, generator)
    weights = (part.weights, batch.weights)
    parts = {"user-item": weighted_mean(loss, *weights)}
    return _total(net, parts, scored.user_user, scored.item_item, weights, clips)


def block_step(net: HDCCFNetwork, block: Block, generator: torch.Generator) -> Loss:
    """Every observed pair of users × items against the unobserved ones of its row and its column."""
    scored = score_block(net, block, generator)
    loss, clips = _block_loss(net, scored, block, generator)
    parts = {"user-item": weighted_mean(loss, scored.weights, block.weights)}
    return _total(net, parts, scored.user_user, scored.item_item, scored.anchor_weights, clips)


def pool_step(net: HDCCFNetwork, pool: Pool) -> Loss:
    """The users' positives against items drawn for all of them."""
    part = part_of(pool, net.process_group.rows(len(pool.users)))
    loss, clipped = pool_loss(net, part, len(pool.items))
    return weighted_mean(loss, part.weights, pool.weights), {"clipped-items": clipped}


def _total(
    net: HDCCFNetwork,
    parts: Terms,
    user_user: NegativeSet | None,
    item_item: NegativeSet | None,
    weights: tuple[Tensor, Tensor],
    clips: Terms,
) -> Loss:
    """Eq. 6: the user–item loss and the weighted relations; the terms are logged where there are several."""
    s = net.settings
    temperature = _NEAREST_TEMPERATURE if s.nearest else s.temperature
    relations = ("user-user", s.user_user_weight, user_user), ("item-item", s.item_item_weight, item_item)
    for name, weight, relation in relations:
        if relation is not None:
            parts[name] = weight * weighted_mean(relation_loss(relation, temperature), *weights)
    total = torch.stack(list(parts.values())).sum()
    shown = {name: part.detach() for name, part in parts.items()} if len(parts) > 1 else {}
    return total, {**shown, **clips}


def _instance_loss(
    net: HDCCFNetwork, scored: Scored, n: int, generator: torch.Generator
) -> tuple[Float[Tensor, " b"], Terms]:
    s = net.settings
    if s.loss != "contrastive":
        return _one_negative_loss(net, scored, n, generator), {}
    items = net.contrast.term(scored.items, scored.positive, s.omega_items, n)
    users = net.contrast.term(scored.users, scored.positive, s.omega_users, n)
    return net.contrast.loss(scored.positive, items, users), _clips(items, users)


def _one_negative_loss(
    net: HDCCFNetwork, scored: Scored, n: int, generator: torch.Generator
) -> Float[Tensor, " b"]:
    """A loss of one of the row's negatives, as BPR's; 0 where all of them are masked."""
    # Drawn for the whole batch, so that the draw does not depend on the number of processes.
    weights, own = net.process_group.all_gather(scored.items.weights(), n), net.process_group.rows(n)
    empty = weights.sum(1) == 0
    # multinomial refuses a row of zeros: something is drawn there, and its loss is left out.
    chosen = torch.multinomial(weights + empty.unsqueeze(1), 1, generator=generator)[own]
    negative = scored.items.scores.gather(1, chosen)
    return PAIR_LOSSES[net.settings.loss](scored.positive, negative, None).masked_fill(empty[own], 0.0)


def _block_loss(
    net: HDCCFNetwork, scored: ScoredBlock, block: Block, generator: torch.Generator
) -> tuple[Float[Tensor, " b"], Terms]:
    if net.settings.loss == "bpr":
        return _block_bpr_loss(net, scored, block, generator), {}
    masked = net.settings.mask_observed
    whole, group = block_pairs(block, masked), net.process_group
    weights = {"log_item_weights": scored.log_item_weights, "log_user_weights": scored.log_user_weights}
    if not net.contrast.debiases and group.size == 1:
        loss = net.contrast.fused_block(scored.scores, whole, **weights)
        nothing = loss.new_zeros(())
        return loss, {"clipped-items": nothing, "clipped-users": nothing}
    own = block_pairs(part_of(block, group.rows(len(block.users))), masked)
    positive, items, users = net.contrast.block_terms(
        scored.scores, own, whole, **weights, process_group=group
    )
    return net.contrast.loss(positive, items, users), _clips(items, users)


def block_pairs(block: Block, mask_observed: bool = True) -> BlockPairs:
    if not mask_observed:
        return BlockPairs((block.rows, block.positive_columns), (block.rows[:0], block.rows[:0]))
    observed = block.observed_rows, block.observed_columns
    same = block.rows is block.observed_rows and block.positive_columns is block.observed_columns
    return BlockPairs(observed if same else (block.rows, block.positive_columns), observed)


def _block_bpr_loss(
    net: HDCCFNetwork, scored: ScoredBlock, block: Block, generator: torch.Generator
) -> Float[Tensor, " b"]:
    """BPR against one column of the row each, drawn by the items' weights; 0 where that pair is observed."""
    scores, own = scored.scores, net.process_group.rows(len(block.users))
    # Drawn for the whole block, so that the draw does not depend on the number of processes.
    weights = scored.log_item_weights.softmax(0)
    every = torch.multinomial(weights, len(block.rows), replacement=True, generator=generator)
    drawn = every[(block.rows >= own.start) & (block.rows < own.stop)]
    part = part_of(block, own)
    observed = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    observed[part.observed] = True
    loss = losses.bpr_loss(scores[part.positives], scores[part.rows, drawn])
    return loss.masked_fill(observed[part.rows, drawn], 0.0)


def pool_loss(
    net: HDCCFNetwork, pool: Pool, n_positives: int
) -> tuple[Float[Tensor, " b"], Float[Tensor, ""]]:
    """Of each positive, and the clip rate; in a process group `n_positives` are those of all processes."""
    log_weights, contrast = net.pool_log_weights(pool), net.contrast
    if fuses_pool(net):
        loss = fused_pool(net, pool, log_weights)
        return loss, loss.new_zeros(())
    users, columns = net.user_vectors(pool.users), net.items.of(pool.columns)
    each_user = Vectors(users.embedding[pool.rows], users.factors[pool.rows])
    positive = net.user_item.matching(each_user, net.items.of(pool.items))
    scores = net.user_item.all_pairs(users, columns)
    items = contrast.pool_term(scores, positive, pool.rows, pool.observed, log_weights, n_positives)
    return contrast.loss(positive, items, None), items.clipped.detach()


def fuses_pool(net: HDCCFNetwork) -> bool:
    """Whether the pool's loss is a plain one of cosines that the compiled form takes."""
    plain = isinstance(net.user_item, Cosine) and not net.contrast.debiases
    return plain and can_fuse_pool(net.items.embedding, net.contrast.temperature)


def fused_pool(net: HDCCFNetwork, pool: Pool, log_weights: Float[Tensor, " c"]) -> Float[Tensor, " b"]:
    assert net.users is not None  # noqa: S101 - a pool goes with free vectors only
    weights = net.contrast.item_weight * log_weights.exp()
    index = (pool.users, pool.columns, pool.rows, pool.items)
    tables = net.users.embedding, net.items.embedding
    tau, sparse = net.contrast.temperature, net.settings.sparse_updates
    return fused_pool_loss(*tables, index, pool.observed, weights, tau, sparse=sparse)


def relation_loss(relation: NegativeSet, temperature: float) -> Float[Tensor, " b"]:
    """Eq. 17, the mean over the P neighbours, so that λ means the same for any P."""
    negatives = losses.log_negative_score(
        relation.scores, relation.log_weights, temperature=temperature, size=relation.size
    )
    each = losses.neighbour_contrastive_loss(
        relation.neighbours, negatives, temperature=temperature, valid=relation.valid
    )
    return each.sum(1) / relation.valid.sum(1).clamp_min(1)


def _clips(items: NegativeTerm, users: NegativeTerm) -> Terms:
    return {"clipped-items": items.clipped.detach(), "clipped-users": users.clipped.detach()}


def score_in_batch(net: HDCCFNetwork, batch: InBatch, n_instances: int | None = None) -> Scored:
    """Every instance against the distinct neighbours of all (Eq. 9).

    Where `batch` is a part of one, `n_instances` is the size of the whole.
    """
    users, items = net.user_vectors(batch.users), net.items.of(batch.items)
    column_users = net.user_vectors(batch.user_negatives.columns)
    column_items = net.items.of(batch.item_negatives.columns)
    # Q is counted before masking (erratum 3).
    size = float(net.settings.neighbours * ((n_instances or len(batch.users)) - 1))

    def weights(negatives: NegativeColumns, log_frequency: Float[Tensor, " n"]) -> Float[Tensor, "b c"]:
        masked = net.settings.mask_observed
        return in_batch_log_weights(negatives, log_frequency[negatives.columns], mask_observed=masked)

    def side(
        scores: Float[Tensor, "b c"],
        log_weights: Float[Tensor, "b c"],
        negatives: NegativeColumns,
        target: Int64[Tensor, " b"],
    ) -> NegativeSet:
        valid = negatives.columns[negatives.own] != target[:, None]
        return NegativeSet(scores, log_weights, size, scores.gather(1, negatives.own), valid)

    on_items = (weights(batch.item_negatives, net.log_item_weights), batch.item_negatives, batch.items)
    on_users = (weights(batch.user_negatives, net.log_user_weights), batch.user_negatives, batch.users)
    f, uu, ii = net.user_item, net.user_user, net.item_item
    return Scored(
        f.matching(users, items),
        side(f.all_pairs(users, column_items), *on_items),
        side(f.all_pairs(column_users, items).T, *on_users),
        None if uu is None else side(uu.all_pairs(users, column_users), *on_users),
        None if ii is None else side(ii.all_pairs(items, column_items), *on_items),
    )


def in_batch_log_weights(
    negatives: NegativeColumns, log_frequency: Float[Tensor, " c"], *, mask_observed: bool
) -> Float[Tensor, "b c"]:
    """log of count × frequency^(−β) for each instance, without its own neighbours and observed pairs."""
    counts, own = negatives.counts.to(log_frequency.dtype), negatives.own
    # All rows are alike but for their own neighbours, so that b × c logarithms would be c, again and again.
    log_weights = (counts.log() + log_frequency).repeat(len(own), 1)
    # A neighbour that was drawn twice is taken off twice.
    times = (own.unsqueeze(2) == own.unsqueeze(1)).sum(2)
    log_weights.scatter_(1, own, (counts[own] - times).log() + log_frequency[own])
    if mask_observed:
        log_weights[negatives.observed_rows, negatives.observed_columns] = -torch.inf
    return log_weights


def score_sampled(net: HDCCFNetwork, batch: SampledBatch) -> Scored:
    """Every instance against S negatives a side of its own (Eq. 1)."""
    users, items = net.user_vectors(batch.users), net.items.of(batch.items)
    each_user, each_item = _to_column(users), _to_column(items)
    size = float(batch.negative_items.shape[1])

    def side(
        f: Callable[[Vectors], Float[Tensor, "b c"]],
        negatives: Vectors,
        neighbours: Vectors,
        log_weights: Float[Tensor, "b c"],
        valid: Bool[Tensor, "b p"],
    ) -> NegativeSet:
        return NegativeSet(f(negatives), log_weights, size, f(neighbours), valid)

    on_items = (
        net.items.of(batch.negative_items),
        net.items.of(batch.neighbour_items),
        net.log_item_weights[batch.negative_items],
        batch.neighbour_items != batch.items[:, None],
    )
    on_users = (
        net.user_vectors(batch.negative_users),
        net.user_vectors(batch.neighbour_users),
        net.log_user_weights[batch.negative_users],
        batch.neighbour_users != batch.users[:, None],
    )
    f, uu, ii = net.user_item.matching, net.user_user, net.item_item
    return Scored(
        f(users, items),
        side(partial(f, each_user), *on_items),
        side(lambda others: f(others, each_item), *on_users),
        None if uu is None else side(partial(uu.matching, each_user), *on_users),
        None if ii is None else side(partial(ii.matching, each_item), *on_items),
    )


def score_block(net: HDCCFNetwork, block: Block, generator: torch.Generator) -> ScoredBlock:
    """All users of a block with all its items, once."""
    group, n_rows = net.process_group, len(block.users)
    part = block if group.size == 1 else part_of(block, group.rows(n_rows))
    users, items = net.block_vectors(part, generator)
    log_items, log_users = net.block_log_weights(block)
    user_user = item_item = None
    anchor_weights = (block.weights[:0], block.weights[:0])
    if net.settings.nearest:
        user_user, item_item, anchor_weights = _nearest_relations(net, block, users, items, generator)
    elif net.user_user is not None or net.item_item is not None:
        shuffled = torch.randperm(len(block.rows), generator=generator, device=generator.device)
        anchors = shuffled[: net.settings.batch_size]
        rows, columns = block.rows[anchors], block.positive_columns[anchors]
        anchor_weights = (block.weights[anchors[group.rows(len(anchors))]], block.weights[anchors])
        observed = torch.zeros(len(log_users), len(log_items), dtype=torch.bool, device=rows.device)
        observed[block.observed] = True
        if net.user_user is not None:
            related = observed.T[columns]  # the block's users who have the anchor's item
            every = _all_gather(users, n_rows, group)
            user_user = _block_relation(net, net.user_user, every, log_users, related, rows, generator)
        if net.item_item is not None:
            related = observed[rows]  # the block's items that the anchor's user has
            item_item = _block_relation(net, net.item_item, items, log_items, related, columns, generator)
    scores = net.user_item.all_pairs(users, items)
    return ScoredBlock(scores, log_items, log_users, part.weights, user_user, item_item, anchor_weights)


def _all_gather(vectors: Vectors, n: int, process_group: ProcessGroup) -> Vectors:
    embedding = process_group.all_gather(vectors.embedding, n)
    same = vectors.factors is vectors.embedding
    return Vectors(embedding, embedding if same else process_group.all_gather(vectors.factors, n))


def _block_relation(
    net: HDCCFNetwork,
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
    drawn = torch.multinomial(related.float(), net.settings.neighbours, replacement=True, generator=generator)
    own = net.process_group.rows(len(anchors))
    drawn, related, anchors = drawn[own], related[own], anchors[own]
    scores = similarity.all_pairs(Vectors(vectors.embedding[anchors], vectors.factors[anchors]), vectors)
    weights = log_weights.expand(scores.shape)
    if net.settings.mask_observed:
        weights = weights.masked_fill(related, -torch.inf)
    return NegativeSet(scores, weights, None, scores.gather(1, drawn), drawn != anchors[:, None])


def _nearest_relations(
    net: HDCCFNetwork,
    block: Block,
    users: Vectors,
    items: Vectors,
    generator: torch.Generator,
) -> tuple[NegativeSet | None, NegativeSet | None, tuple[Tensor, Tensor]]:
    """Some users and items of the block, each with one of its nearest neighbours, and their weights, all 1.

    The neighbour p of v is contrasted with all users and items of the block, nothing weighted or masked:
    −log e^{f(p,v)/τ} / Σ_n e^{f(p,n)/τ} (Sun et al., 2024). Where p is in the block, e^{f(p,p)/τ} is in the
    sum, which takes force from the negatives; without it the gain is smaller (results/notes.md).
    """
    columns = block.columns
    if columns is None:
        columns = torch.arange(net.graph.n_items, device=block.users.device)
    n = min(len(block.users), len(columns))

    def relation(
        kind: Kind,
        similarity: Similarity,
        own: Vectors,
        nodes: Int64[Tensor, " n"],
        table: Int64[Tensor, "m k"],
    ) -> NegativeSet:
        anchors = torch.randperm(len(nodes), generator=generator, device=generator.device)[:n]
        chosen = nodes[anchors]
        places = torch.randint(table.shape[1], (n,), generator=generator, device=generator.device)
        drawn = table[chosen, places]
        near = net.user_vectors(drawn) if kind == "users" else net.items.of(drawn)
        f = net.user_item
        across = f.all_pairs(near, items) if kind == "users" else f.all_pairs(users, near).T
        alike = similarity.all_pairs(near, own)
        positive = alike.gather(1, anchors[:, None])
        scores = torch.cat([alike, across], 1)
        # The anchor is in the sum as what is wanted.
        weights = torch.zeros_like(scores).scatter_(1, anchors[:, None], -torch.inf)
        return NegativeSet(scores, weights, None, positive, (drawn != chosen)[:, None])

    user_user = item_item = None
    if net.user_user is not None:
        user_user = relation("users", net.user_user, users, block.users, net.nearest_users)
    if net.item_item is not None:
        item_item = relation("items", net.item_item, items, columns, net.nearest_items)
    ones = torch.ones(n, dtype=block.weights.dtype, device=block.weights.device)
    return user_user, item_item, (ones, ones)


def item_negatives(net: HDCCFNetwork, batch: InBatch | SampledBatch | Block | Pool) -> NegativeSet:
    """The item side of any batch, for diagnostics: a block's or a pool's rows become instances."""
    if isinstance(batch, InBatch):
        return score_in_batch(net, batch).items
    if isinstance(batch, SampledBatch):
        return score_sampled(net, batch).items
    if isinstance(batch, Pool):
        users, items = net.user_vectors(batch.users), net.items.of(batch.columns)
        log_items = net.pool_log_weights(batch)
    else:
        users, items = net.block_vectors(batch)
        log_items, _ = net.block_log_weights(batch)
    scores = net.user_item.all_pairs(users, items)
    log_weights = log_items.repeat(len(scores), 1)
    if net.settings.mask_observed:
        log_weights[batch.observed] = -torch.inf
    return without_neighbours(scores, log_weights)


def _to_column(vectors: Vectors) -> Vectors:
    """Each row opposite a list of its own: [b, d] becomes [b, 1, d]."""
    return Vectors(vectors.embedding.unsqueeze(1), vectors.factors.unsqueeze(1))

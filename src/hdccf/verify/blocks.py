"""A block with β = 0 has the in-batch negatives in expectation: scores, gradients and losses agree."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.batches import Block, InBatch
from hdccf.losses.negatives import ContrastiveLoss, NegativeSet, NegativeTerm
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.rng import generator_for
from hdccf.verify.report import Finding, mean_interval
from hdccf.verify.theorem import KnownWorld, known_world

PART = "In-batch negatives, and a block with β = 0"
SIDES = (
    "negative items",
    "negative users",
    "negatives of the user–user loss",
    "negatives of the item–item loss",
)
BATCH, NEIGHBOURS = 300, 16
OMEGA, Q = 0.02, 32.0
TOLERANCE = 0.01
"""Of the losses, which agree as batches grow: the logarithm of a mean is biased."""


class Targets(NamedTuple):
    """Some training pairs, for each side the weighted sum Σ e^{f/τ} over their negatives, and the loss."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    sums: Float[Tensor, "sides b"]
    loss: Float[Tensor, " b"]
    """Eq. 14 with Q = 32 negatives a side, whatever the number that was drawn."""


def check_blocks(seed: int = 0, n: int = 150, epochs: int = 30) -> Iterator[Finding]:
    """Epochs of in-batch negatives in a world of n users and n items, beside one block of all of it."""
    world = known_world(n, seed, exposure=1.0)
    pairs = len(world.interactions)
    common = {"frequency_correction": 0.0, "omega_items": OMEGA, "omega_users": OMEGA}
    common |= {"user_user_weight": 0.1, "item_item_weight": 0.1, "neighbours": NEIGHBOURS}
    block = KnownWorld(world, sampler="block", block_users=n, batch_size=pairs, **common).model
    drawn = KnownWorld(world, sampler="in-batch", batch_size=BATCH, **common).model
    whole = of_block(block, generator_for(seed, "verify", "blocks"))
    # An item of k users comes P(M − 1)·k/(|D| − 1) times in a batch (Proposition 1), and counts k·|I|/|D|
    # in a block. Rows of a block also stand for users without pairs, who are never drawn.
    factor = NEIGHBOURS * (BATCH - 1) / (pairs - 1) * pairs / n
    rows = int((torch.bincount(whole.users) > 0).sum()) / n
    factors = factor * torch.tensor([1.0, rows, rows, 1.0], dtype=torch.float64)
    expected = torch.zeros(len(SIDES), n, n, dtype=torch.float64)
    expected[:, whole.users, whole.items] = factors[:, None] * whole.sums.detach()
    of_pair = torch.zeros(n, n, dtype=torch.float64)
    of_pair[whole.users, whole.items] = whole.loss.detach()
    slopes = [factor * _gradient(block, whole.sums[0]), _gradient(block, whole.loss)]
    ratios: list[list[float]] = []
    for epoch in range(epochs):
        generator = generator_for(seed, "verify", "in-batch", epoch)
        found = [of_batch(drawn, each) for each in drawn.batches(generator) if len(each.users) == BATCH]
        users, items, sums, loss = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
        means = (sums.detach() / expected[:, users, items]).mean(1).tolist()
        own = [_gradient(drawn, sums[0]), _gradient(drawn, loss)]
        along = [float((a * b).sum() / (b * b).sum()) for a, b in zip(own, slopes, strict=True)]
        ratios.append([*means, *along, float(loss.detach().mean() / of_pair[users, items].mean())])
    *of_sums, slope, loss_slope, loss_ratio = np.array(ratios).T
    detail = (
        f"{epochs} epochs of {pairs} pairs, M = {BATCH}, P = {NEIGHBOURS}, τ = {block.settings.temperature}"
    )
    for side, values in zip(SIDES, of_sums, strict=True):
        claim = f"{side}: the sum over a batch's over a block's"
        yield Finding.estimated(PART, claim, 1.0, *mean_interval(values), detail)
    claim = "negative items: the gradient of the sum, along the block's"
    yield Finding.estimated(PART, claim, 1.0, *mean_interval(slope), detail)
    region = (1 - TOLERANCE, 1 + TOLERANCE)
    detail += f", ω⁺ = {OMEGA}, Q = {Q:g}; accepted within {TOLERANCE:.0%}"
    yield Finding.accepted(
        PART, "the debiased loss over a block's", 1.0, float(loss_ratio.mean()), region, detail
    )
    claim = "its gradient, along the block's"
    yield Finding.accepted(PART, claim, 1.0, float(loss_slope.mean()), region, detail)


def of_block(model: HDCCFModel, generator: torch.Generator) -> Targets:
    """All pairs of the world in one block."""
    model.items.embedding.requires_grad_(True)
    block: Block = next(iter(model.batches(generator)))
    order = torch.randperm(len(block.rows), generator=generator.clone_state())  # that of the anchors
    scored = steps.score_block(model, block, generator)
    assert scored.user_user is not None  # noqa: S101 - both relations have a weight
    assert scored.item_item is not None  # noqa: S101
    pairs = steps.block_pairs(block)
    log_items, log_users = scored.log_item_weights, scored.log_user_weights

    def terms_of(contrast: ContrastiveLoss) -> tuple[Tensor, NegativeTerm, NegativeTerm]:
        return contrast.block_terms(
            scored.scores, pairs, pairs, log_item_weights=log_items, log_user_weights=log_users
        )

    plain = terms_of(replace(model.contrast, omega_items=0.0, omega_users=0.0))
    sums = [term.log_score.double().exp() for term in plain[1:]]
    back = order.argsort()
    sums += [_sum(relation, model)[back] for relation in (scored.user_user, scored.item_item)]
    positive, *terms = terms_of(model.contrast)
    shown = torch.zeros(scored.scores.shape).index_put((block.rows, block.positive_columns), torch.ones(()))
    left = [
        ((1 - shown) * log_items.exp()).sum(1)[block.rows],
        ((1 - shown) * log_users.exp()[:, None]).sum(0)[block.positive_columns],
    ]
    sized = [
        term._replace(log_score=term.log_score + (Q / size).log())
        for term, size in zip(terms, left, strict=True)
    ]
    return Targets(
        block.users[block.rows],
        block.positive_columns,
        torch.stack(sums),
        model.contrast.loss(positive, *sized).double(),
    )


def of_batch(model: HDCCFModel, batch: InBatch) -> Targets:
    """The instances of a batch."""
    model.items.embedding.requires_grad_(True)
    scored = steps.score_in_batch(model, batch)
    assert scored.user_user is not None  # noqa: S101 - both relations have a weight
    assert scored.item_item is not None  # noqa: S101
    sets = scored.items, scored.users, scored.user_user, scored.item_item
    terms: list[NegativeTerm] = [
        model.contrast.term(each._replace(size=Q), scored.positive, OMEGA) for each in sets[:2]
    ]
    sums = torch.stack([_sum(each, model) for each in sets])
    return Targets(batch.users, batch.items, sums, model.contrast.loss(scored.positive, *terms).double())


def _sum(negatives: NegativeSet, model: HDCCFModel) -> Float[Tensor, " b"]:
    exponents = negatives.log_weights.double() + negatives.scores.double() / model.settings.temperature
    return exponents.exp().sum(1)


def _gradient(model: HDCCFModel, values: Float[Tensor, " b"]) -> Float[Tensor, "items d"]:
    (found,) = torch.autograd.grad(values.mean(), model.items.embedding, retain_graph=True)
    return found.double()

"""What each kind of scored batch costs: the contrastive losses, and the one-negative ones they replace."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from hdccf import losses
from hdccf.data.parts import part_of
from hdccf.data.sampling import Block
from hdccf.losses.negatives import NegativeSet, NegativeTerm
from hdccf.models.hdccf.scores import Scored, ScoredBlock

if TYPE_CHECKING:
    from hdccf.models.hdccf.model import HDCCFModel

Terms = dict[str, Float[Tensor, ""]]


def block_loss(
    model: "HDCCFModel", scored: ScoredBlock, block: Block, generator: torch.Generator
) -> tuple[Float[Tensor, " b"], Terms]:
    if model.settings.loss == "bpr":
        return _block_bpr(model, scored.scores, block, generator), {}
    weights = {"log_item_weights": scored.log_item_weights, "log_user_weights": scored.log_user_weights}
    if model.contrast.is_plain and model.process_group.size == 1:
        loss = model.contrast.plain_block(scored.scores, block, **weights)
        nothing = loss.new_zeros(())
        return loss, {"clipped-items": nothing, "clipped-users": nothing}
    positive, items, users = model.contrast.block(
        scored.scores, block, **weights, process_group=model.process_group
    )
    return model.contrast.loss(positive, items, users), _clips(items, users)


def _block_bpr(
    model: "HDCCFModel", scores: Float[Tensor, "r c"], block: Block, generator: torch.Generator
) -> Float[Tensor, " b"]:
    """BPR against one column of the row each, uniformly; 0 where that is an observed pair."""
    own, n_columns, device = model.process_group.rows(len(block.users)), scores.shape[1], scores.device
    # Drawn for the whole block, whoever scores it: then the numbers are the same for any process group.
    every = torch.randint(n_columns, (len(block.rows),), generator=generator, device=device)
    drawn = every[(block.rows >= own.start) & (block.rows < own.stop)]
    part = part_of(block, own)
    observed = torch.zeros(scores.shape, dtype=torch.bool, device=device)
    observed[part.observed_rows, part.observed_columns] = True
    positive = scores[part.rows, part.positive_columns]
    loss = losses.bpr_loss(positive, scores[part.rows, drawn])
    return loss.masked_fill(observed[part.rows, drawn], 0.0)


def instance_loss(
    model: "HDCCFModel", scored: Scored, n: int, generator: torch.Generator
) -> tuple[Float[Tensor, " b"], Terms]:
    s = model.settings
    if s.loss != "contrastive":
        return _one_negative_loss(model, scored, n, generator), {}
    items = model.contrast.term(scored.items, scored.positive, s.omega_items, n)
    users = model.contrast.term(scored.users, scored.positive, s.omega_users, n)
    return model.contrast.loss(scored.positive, items, users), _clips(items, users)


def _one_negative_loss(
    model: "HDCCFModel", scored: Scored, n: int, generator: torch.Generator
) -> Float[Tensor, " b"]:
    """BPR or point-wise against one of the row's negatives; 0 where all of them are masked."""
    # Drawn for the whole batch: what a row draws does not depend on who else is in the process group.
    weights, own = model.process_group.all_gather(scored.items.weights(), n), model.process_group.rows(n)
    empty = weights.sum(1) == 0
    # multinomial refuses a row of zeros: something is drawn there, and its loss is left out.
    chosen = torch.multinomial(weights + empty.unsqueeze(1), 1, generator=generator)[own]
    empty = empty[own]
    negative = scored.items.scores.gather(1, chosen).squeeze(1)
    if model.settings.loss == "bpr":
        loss = losses.bpr_loss(scored.positive, negative)
    else:
        one = torch.ones_like(negative)
        loss = losses.binary_cross_entropy(scored.positive, one)
        loss = loss + losses.binary_cross_entropy(negative, 1 - one)
    return loss.masked_fill(empty, 0.0)


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

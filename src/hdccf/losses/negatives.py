"""From scores to the paper's loss of each positive, for each kind of batch: masks, counts, weights, clamp.

`losses` has the formulas on given scores and weights; here the batches' structure becomes those weights. The
negatives of one side are always: weights (multi-set counts × frequency^(…) × not observed), a size Q, and,
with ω⁺ > 0, the positives whose mean is taken off.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.data.parts import part_of
from hdccf.data.pools import Pool
from hdccf.data.sampling import Block, Negatives
from hdccf.losses import block as block_losses
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup

Omega = Float[Tensor, " _n"] | float
"""A probability for all, or one for each instance; in a block one for each row (of its items) or column."""


class NegativeSet(NamedTuple):
    """One side of a batch, scored: each row with negatives of its own and P neighbours of its own."""

    scores: Float[Tensor, "b c"]
    log_weights: Float[Tensor, "b c"]
    """log of count × frequency^(…), −inf where masked."""
    size: float | None
    """Q, what the weights are normalised to; None takes them as they are."""
    neighbours: Float[Tensor, "b p"]
    valid: Bool[Tensor, "b p"]
    """False where a neighbour is the target itself, which is counted once."""

    def weights(self) -> Float[Tensor, "b c"]:
        return self.log_weights.exp()


class NegativeTerm(NamedTuple):
    """The negatives of one side of every positive: log F̃, and what to report of it."""

    log_score: Float[Tensor, " b"]
    clipped: Float[Tensor, ""]
    """Share of positives whose negatives are held at the lower bound, and so get no gradient; in a process group, this
    member's share of that."""


@dataclass(frozen=True)
class ContrastiveLoss:
    """What the contrastive loss of a positive is made of; see the settings of the same names."""

    temperature: float
    item_weight: float
    user_weight: float
    omega_items: Omega
    omega_users: Omega
    lowest: float

    def loss(
        self, positive: Float[Tensor, " b"], items: NegativeTerm | None, users: NegativeTerm | None
    ) -> Float[Tensor, " b"]:
        """Eq. 14 (with ω = 0 and no mask Eq. 1)."""
        return losses.contrastive_loss(
            positive,
            None if items is None else items.log_score,
            None if users is None else users.log_score,
            temperature=self.temperature,
            item_weight=self.item_weight,
            user_weight=self.user_weight,
        )

    def term(
        self, against: NegativeSet, target: Float[Tensor, " b"], omega: Omega, n_positives: int | None = None
    ) -> NegativeTerm:
        """F̃ over a side's negatives, debiased with its neighbours and the target (Eq. 15).

        Where these are a process's part of a batch, `n_positives` says how many the batch has.
        """
        biased = losses.log_negative_score(
            against.scores, against.log_weights, temperature=self.temperature, size=against.size
        )
        if _is_zero(omega):
            return NegativeTerm(biased, biased.new_zeros(()))
        positives = torch.cat([against.neighbours, target[:, None]], 1)
        valid = torch.cat([against.valid, torch.ones_like(against.valid[:, :1])], 1)
        log_valid = torch.zeros_like(positives).masked_fill_(~valid, -torch.inf)
        mean = losses.log_mean_exp(positives, log_valid, temperature=self.temperature)
        size = against.weights().sum(1) if against.size is None else against.size
        score, clipped = self._debiased(biased, mean, size, omega)
        return NegativeTerm(score, clipped.to(score.dtype).sum() / (n_positives or max(len(score), 1)))

    @property
    def is_plain(self) -> bool:
        """Nothing is taken off for false negatives: both ω are 0."""
        return _is_zero(self.omega_items) and _is_zero(self.omega_users)

    def plain_block(
        self,
        scores: Float[Tensor, "r c"],
        block: Block,
        *,
        log_item_weights: Float[Tensor, " c"],
        log_user_weights: Float[Tensor, " r"],
    ) -> Float[Tensor, " b"]:
        """`loss` of what `block` gives where both ω are 0, in one function with its gradient written out."""
        observed = (block.observed_rows, block.observed_columns)
        same = block.rows is block.observed_rows and block.positive_columns is block.observed_columns
        return block_losses.block_contrastive_loss(
            scores,
            observed,
            observed if same else (block.rows, block.positive_columns),
            temperature=self.temperature,
            log_column_weights=log_item_weights,
            log_row_weights=log_user_weights,
            item_weight=self.item_weight,
            user_weight=self.user_weight,
            bound=abs(self.lowest),
        )

    def block(
        self,
        scores: Float[Tensor, "r c"],
        block: Block,
        *,
        log_item_weights: Float[Tensor, " c"],
        log_user_weights: Float[Tensor, " rows"],
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> tuple[Float[Tensor, " b"], NegativeTerm, NegativeTerm]:
        """The positives' scores, and for each of them its row's and its column's negatives.

        Weights are such that a plain weighted sum estimates the sum over the catalogue (or over all users),
        so Q is the sum of the weights that are left, and sums are not normalised again.

        In a process group `scores` and what is given back are those of the member's own rows; the block and its
        weights are whole. A column's sums are the process group's.
        """
        own = process_group.rows(len(block.users))
        part = part_of(block, own)
        masked = (part.observed_rows, part.observed_columns)
        over_items, over_users = block_losses.log_block_scores(
            scores,
            masked,
            temperature=self.temperature,
            log_column_weights=log_item_weights,
            log_row_weights=log_user_weights[own],
        )
        positive = scores[part.rows, part.positive_columns]
        by_row, by_column = (
            _Members(part.rows, part.rows),
            _Members(part.positive_columns, block.positive_columns),
        )
        items = self._block_side(
            over_items, positive, by_row, masked, log_item_weights, self.omega_items, SINGLE_PROCESS
        )
        transposed = (block.observed_columns, block.observed_rows)
        users = self._block_side(
            process_group.log_sum_exp(over_users),
            positive,
            by_column,
            transposed,
            log_user_weights,
            self.omega_users,
            process_group,
        )
        n = max(len(block.rows), 1)
        return positive, _share_of(items, n), _share_of(users, n)

    def pool(
        self,
        scores: Float[Tensor, "r c"],
        positive: Float[Tensor, " b"],
        pool: Pool,
        log_item_weights: Float[Tensor, " c"],
        n_positives: int,
    ) -> NegativeTerm:
        """For each positive its row's negatives, debiased with all positives of the row.

        In a process group these are the member's own rows, and `n_positives` those of all members.
        """
        masked = (pool.observed_rows, pool.observed_columns)
        log_sums, _ = block_losses.log_block_scores(
            scores, masked, temperature=self.temperature, log_column_weights=log_item_weights
        )
        members = _Members(pool.rows, pool.rows)
        side = self._block_side(
            log_sums, positive, members, masked, log_item_weights, self.omega_items, SINGLE_PROCESS
        )
        return _share_of(side, max(n_positives, 1))

    def _block_side(
        self,
        log_sums: Float[Tensor, " n"],
        positive: Float[Tensor, " b"],
        members: "_Members",
        masked: tuple[Int64[Tensor, " m"], Int64[Tensor, " m"]],
        log_weights: Float[Tensor, " c"],
        omega: Omega,
        process_group: ProcessGroup,
    ) -> NegativeTerm:
        """With how many of the own positives are clipped, in the place of their share."""
        rows = members.own
        if _is_zero(omega):
            return NegativeTerm(log_sums[rows], log_sums.new_zeros(()))
        # In float64, as it is a difference: in a nearly full row float32 would leave mostly rounding.
        weights = log_weights.double().exp()
        taken = weights.new_zeros(len(log_sums)).index_add_(0, masked[0], weights[masked[1]])
        size = (weights.sum() - taken).clamp_min(torch.finfo(log_sums.dtype).tiny).to(log_sums.dtype)
        mean = self._mean_by_group(positive, members, len(log_sums), process_group)
        score, clipped = self._debiased(log_sums, mean, size, omega)
        return NegativeTerm(score[rows], clipped[rows].to(score.dtype).sum())

    def _mean_by_group(
        self, positive: Float[Tensor, " b"], members: "_Members", n_groups: int, process_group: ProcessGroup
    ) -> Float[Tensor, " n"]:
        mean = losses.log_mean_exp_by_group(positive, members.own, n_groups, temperature=self.temperature)
        if process_group.size == 1:
            return mean
        counts = (torch.bincount(which, minlength=n_groups).to(mean.dtype) for which in members)
        of_own, of_all = (count.clamp_min(1).log() for count in counts)
        return process_group.log_sum_exp(mean + of_own) - of_all

    def _debiased(
        self,
        biased: Float[Tensor, " n"],
        mean: Float[Tensor, " n"],
        size: Float[Tensor, " n"] | float,
        omega: Omega,
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
        return losses.debias(
            biased, mean, size=size, omega=omega, lowest=self.lowest, temperature=self.temperature
        )


def _share_of(side: NegativeTerm, n: int) -> NegativeTerm:
    return side._replace(clipped=side.clipped / n)


class _Members(NamedTuple):
    """The row (or column) of each positive: of the own part, and of the whole block."""

    own: Int64[Tensor, " b"]
    every: Int64[Tensor, " all"]


def _is_zero(omega: Omega) -> bool:
    return not isinstance(omega, Tensor) and omega == 0


def in_batch_log_weights(
    negatives: Negatives, log_frequency: Float[Tensor, " c"], *, mask_observed: bool
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

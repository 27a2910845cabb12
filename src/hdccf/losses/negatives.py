"""The contrastive loss from scored negatives: weights, sizes, masks, debiasing and the lower bound.

`losses.contrastive` has the formulas on scores and weights. Here they are combined for the three shapes in
which negatives come: a set of its own for each positive, a block of users × items, and a pool.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf import losses
from hdccf.losses import block
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup

Omega = Float[Tensor, " _n"] | float
"""A probability for all, or one for each positive; in a block one for each row (of its items) or column."""

Places = tuple[Int64[Tensor, " _n"], Int64[Tensor, " _n"]]
"""Row and column numbers of pairs in a block."""


class NegativeSet(NamedTuple):
    """Scored negatives of one side: each row has negatives of its own and P neighbours of its own."""

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


def without_neighbours(scores: Float[Tensor, "b c"], log_weights: Float[Tensor, "b c"]) -> NegativeSet:
    """A set for diagnostics, which look at negatives only."""
    none = scores.new_zeros(len(scores), 0)
    return NegativeSet(scores, log_weights, None, none, none.bool())


class NegativeTerm(NamedTuple):
    """One side's term in the denominator of Eq. 14: log F̃ of every positive, and its clip rate."""

    log_score: Float[Tensor, " b"]
    clipped: Float[Tensor, ""]
    """Share of positives whose negatives are held at the lower bound, and so get no gradient; in a process
    group, the part of it that this process has."""


class BlockPairs(NamedTuple):
    """The positives of a block and all its observed pairs, which are masked."""

    positives: Places
    observed: Places


@dataclass(frozen=True)
class ContrastiveLoss:
    """The contrastive loss of a positive; the fields are the settings of the same names."""

    temperature: float
    item_weight: float
    user_weight: float
    omega_items: Omega
    omega_users: Omega
    lowest: float

    @property
    def debiases(self) -> bool:
        """Whether false negatives are corrected for: one ω is above 0."""
        return not (_is_zero(self.omega_items) and _is_zero(self.omega_users))

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
        self,
        negatives: NegativeSet,
        target: Float[Tensor, " b"],
        omega: Omega,
        n_positives: int | None = None,
    ) -> NegativeTerm:
        """F̃ over a side's negatives, debiased with its neighbours and the target (Eq. 15).

        Where these are one process's part of a batch, `n_positives` is the number in the batch.
        """
        biased = losses.log_negative_score(
            negatives.scores, negatives.log_weights, temperature=self.temperature, size=negatives.size
        )
        if _is_zero(omega):
            return NegativeTerm(biased, biased.new_zeros(()))
        positives = torch.cat([negatives.neighbours, target[:, None]], 1)
        valid = torch.cat([negatives.valid, torch.ones_like(negatives.valid[:, :1])], 1)
        log_valid = torch.zeros_like(positives).masked_fill_(~valid, -torch.inf)
        mean = losses.log_mean_exp(positives, log_valid, temperature=self.temperature)
        size = negatives.weights().sum(1) if negatives.size is None else negatives.size
        score, clipped = self._debiased(biased, mean, size, omega)
        return NegativeTerm(score, clipped.to(score.dtype).sum() / (n_positives or max(len(score), 1)))

    def fused_block(
        self,
        scores: Float[Tensor, "r c"],
        pairs: BlockPairs,
        *,
        log_item_weights: Float[Tensor, " c"],
        log_user_weights: Float[Tensor, " r"],
    ) -> Float[Tensor, " b"]:
        """`loss` of the terms of `block_terms` where both ω are 0, in one function with its gradient."""
        return block.block_contrastive_loss(
            scores,
            pairs.observed,
            pairs.positives,
            temperature=self.temperature,
            log_column_weights=log_item_weights,
            log_row_weights=log_user_weights,
            item_weight=self.item_weight,
            user_weight=self.user_weight,
            bound=abs(self.lowest),
        )

    def block_terms(
        self,
        scores: Float[Tensor, "r c"],
        own: BlockPairs,
        whole: BlockPairs,
        *,
        log_item_weights: Float[Tensor, " c"],
        log_user_weights: Float[Tensor, " rows"],
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> tuple[Float[Tensor, " b"], NegativeTerm, NegativeTerm]:
        """The positives' scores, and for each of them its row's and its column's negatives.

        Weights are such that a plain weighted sum estimates the sum over the catalogue (or over all users),
        so Q is the sum of the weights that are left, and sums are not normalised again.

        In a process group `scores`, `own` and the result are those of this process's rows; `whole` and the
        weights are those of the block. A column's sums are taken over all processes.
        """
        over_items, over_users = block.log_block_scores(
            scores,
            own.observed,
            temperature=self.temperature,
            log_column_weights=log_item_weights,
            log_row_weights=log_user_weights[process_group.rows(len(log_user_weights))],
        )
        rows, columns = own.positives
        positive = scores[rows, columns]
        n = max(len(whole.positives[0]), 1)
        items = self._side(over_items, positive, rows, own.observed, log_item_weights, self.omega_items)
        users = self._side(
            process_group.log_sum_exp(over_users),
            positive,
            columns,
            (whole.observed[1], whole.observed[0]),
            log_user_weights,
            self.omega_users,
            process_group,
            whole.positives[1],
        )
        return positive, _share_of(items, n), _share_of(users, n)

    def pool_term(
        self,
        scores: Float[Tensor, "r c"],
        positive: Float[Tensor, " b"],
        rows: Int64[Tensor, " b"],
        observed: Places,
        log_item_weights: Float[Tensor, " c"],
        n_positives: int,
    ) -> NegativeTerm:
        """For each positive its row's negatives, debiased with all positives of the row.

        In a process group these are this process's rows, and `n_positives` those of all processes.
        """
        log_sums, _ = block.log_block_scores(
            scores, observed, temperature=self.temperature, log_column_weights=log_item_weights
        )
        term = self._side(log_sums, positive, rows, observed, log_item_weights, self.omega_items)
        return _share_of(term, max(n_positives, 1))

    def _side(
        self,
        log_sums: Float[Tensor, " n"],
        positive: Float[Tensor, " b"],
        groups: Int64[Tensor, " b"],
        masked: Places,
        log_weights: Float[Tensor, " c"],
        omega: Omega,
        process_group: ProcessGroup = SINGLE_PROCESS,
        all_groups: Int64[Tensor, " all"] | None = None,
    ) -> NegativeTerm:
        """The term of each positive from the sum of its group, a row or a column of the block.

        `clipped` is a count here, not yet a share. `all_groups` are the groups of all processes' positives.
        """
        if _is_zero(omega):
            return NegativeTerm(log_sums[groups], log_sums.new_zeros(()))
        size = weight_left(log_weights, masked, len(log_sums)).to(log_sums.dtype)
        mean = losses.log_mean_exp_by_group(positive, groups, len(log_sums), temperature=self.temperature)
        if process_group.size > 1 and all_groups is not None:
            counts = (torch.bincount(which, minlength=len(mean)) for which in (groups, all_groups))
            of_own, of_all = (count.to(mean.dtype).clamp_min(1).log() for count in counts)
            mean = process_group.log_sum_exp(mean + of_own) - of_all
        score, clipped = self._debiased(log_sums, mean, size, omega)
        return NegativeTerm(score[groups], clipped[groups].to(score.dtype).sum())

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


def weight_left(log_weights: Float[Tensor, " c"], masked: Places, n_rows: int) -> Float[Tensor, " n"]:
    """The sum of the column weights of each row, without its masked pairs."""
    # In float64, as it is a difference: in a nearly full row float32 would leave mostly rounding.
    weights = log_weights.double().exp()
    taken = weights.new_zeros(n_rows).index_add_(0, masked[0], weights[masked[1]])
    return (weights.sum() - taken).clamp_min(torch.finfo(log_weights.dtype).tiny).to(log_weights.dtype)


def _share_of(term: NegativeTerm, n: int) -> NegativeTerm:
    return term._replace(clipped=term.clipped / n)


def _is_zero(omega: Omega) -> bool:
    return not isinstance(omega, Tensor) and omega == 0


def weighted_mean(
    values: Float[Tensor, " b"], weights: Float[Tensor, " b"], whole: Float[Tensor, " all"] | None = None
) -> Float[Tensor, ""]:
    """0 where nothing has any weight, as when all positives of a batch are too old to count.

    With the weights of the whole batch, of which the values are a part: what the part adds to the mean.
    """
    total = (weights if whole is None else whole).sum()
    return (values * weights).sum() / total.clamp_min(torch.finfo(weights.dtype).tiny)

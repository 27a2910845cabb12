"""Losses of a positive and its own negatives, for models over pairs."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hdccf import losses

LogWeights = Float[Tensor, "b s"] | None
"""log of how much each negative counts: 0 is once, −inf leaves it out; None counts all once."""

PairLoss = Callable[[Float[Tensor, " b"], Float[Tensor, "b s"], LogWeights], Float[Tensor, " b"]]


def pairwise_loss(
    positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
) -> Float[Tensor, " b"]:
    """BPR, the mean over the negatives: −log σ(s⁺ − s⁻)."""
    each = losses.bpr_loss(positive.unsqueeze(1), negative)
    if log_weights is None:
        return each.mean(1)
    weights = log_weights.exp()
    return (each * weights).sum(1) / weights.sum(1).clamp_min(torch.finfo(weights.dtype).tiny)


def softmax_loss(temperature: float) -> PairLoss:
    """−log of the positive's share among itself and its negatives, at a temperature."""

    def loss(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        negatives = losses.log_negative_score(negative, log_weights, temperature=temperature)
        return losses.contrastive_loss(positive, negatives, None, temperature=temperature)

    return loss


def cross_entropy_loss(
    positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
) -> Float[Tensor, " b"]:
    """Point-wise: the positive is a one, each negative a zero: −log σ(s⁺) − Σ log σ(−s⁻)."""
    return functional.softplus(-positive) + _sum_of(functional.softplus(negative), log_weights)


def squared_loss(
    positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
) -> Float[Tensor, " b"]:
    """Point-wise: squared distance of the positive from one, and of each negative from zero."""
    ones = losses.squared_error(positive, torch.ones_like(positive))
    return ones + _sum_of(losses.squared_error(negative, torch.zeros_like(negative)), log_weights)


def sigmoid_of(loss: PairLoss) -> PairLoss:
    """The same loss of σ(score)."""

    def of_sigmoid(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        return loss(positive.sigmoid(), negative.sigmoid(), log_weights)

    return of_sigmoid


def _sum_of(each: Float[Tensor, "b s"], log_weights: LogWeights) -> Float[Tensor, " b"]:
    return (each if log_weights is None else each * log_weights.exp()).sum(1)


PAIR_LOSSES: dict[str, PairLoss] = {"bpr": pairwise_loss, "pointwise": cross_entropy_loss}
"""Losses of one negative, by the name that HDCCF's `loss` setting has for its ablations."""

"""The paper's losses, and those of its ablations: small pure functions, in log space, unreduced.

Names. A *negative score* F is a sum of e^{f/τ} over negatives. The paper calls F^u the sum over negative
items in Eq. 2 and the sum over negative users in Eq. 15; here they are named after what they sum over,
`item_negatives` and `user_negatives`. Everything that could overflow at a small temperature is carried as
its logarithm; −inf is the logarithm of an empty sum, and no gradient flows through it.

What is summed, weighted and masked is up to the caller: these functions take scores and weights, and know
neither users nor items.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hdccf.errors import ConfigError

Weights = Float[Tensor, "r c"] | Float[Tensor, " c"]
"""Logarithms of weights: a negative's count in the multi-set, its frequency correction, −inf to mask it."""

SMALL_SHARE = 1e-6
"""Where a similarity has no lower bound, a debiased negative score is at least this share of the biased."""


class _LogSumExp(torch.autograd.Function):
    """log Σ_c e^{s_rc/τ + w_rc}, exponentiated once; empty sums are −inf and pass no gradient.

    torch.logsumexp would keep s/τ + w, and exponentiate again in the backward pass, and its gradient of a
    row of −inf is not a number.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, log_weights: Tensor | None, temperature: float) -> Tensor:
        logits = (
            scores / temperature
            if log_weights is None
            else torch.add(log_weights, scores, alpha=1 / temperature)
        )
        largest = logits.amax(dim=1, keepdim=True)
        largest.masked_fill_(largest.isinf(), 0.0)
        terms = logits.sub_(largest).exp_()
        sums = terms.sum(dim=1)
        ctx.save_for_backward(terms, sums)
        ctx.temperature = temperature
        return sums.log() + largest.squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        terms, sums = ctx.saved_tensors
        scale = torch.where(sums > 0, grad / (sums * ctx.temperature), 0.0)
        return terms * scale.unsqueeze(1), None, None


def log_negative_score(
    scores: Float[Tensor, "r c"],
    log_weights: Weights | None = None,
    *,
    temperature: float,
    size: Float[Tensor, " r"] | float | None = None,
) -> Float[Tensor, " r"]:
    """log( Q·Σ_c w_c e^{s_c/τ} / Σ_c w_c ) of each row; without a size Q, log Σ_c w_c e^{s_c/τ}.

    (Eq. 2, Eq. 15, Eq. 17.)

    With w the multiplicities of unobserved negatives, zero for observed ones, and Q = |N⁻| before masking
    this is the first sum of Eq. 15 but for 1/ω⁻ (π₀ of Eq. 25), and that of Eq. 17 (π^{u-u} of Eq. 27).
    Without a size it is Eq. 2. Weights are constants: no gradient flows into them. A row that is all masked
    has F = 0, log F = −inf.
    """
    total: Tensor = _LogSumExp.apply(scores, log_weights, temperature)  # type: ignore[no-untyped-call]
    if size is None:
        return total
    if log_weights is None:
        return total + (log_of(size) - math.log(scores.shape[1]))
    normaliser = torch.logsumexp(log_weights.detach(), dim=-1)
    # −inf − (−inf) is not a number: an empty row stays an empty sum.
    return total + log_of(size) - normaliser.masked_fill(normaliser.isinf(), 0.0)


def log_mean_exp(
    scores: Float[Tensor, "r c"],
    log_weights: Weights | None = None,
    *,
    temperature: float,
) -> Float[Tensor, " r"]:
    """log of the (weighted) mean of e^{s/τ} of each row: the second sum of Eq. 15, over N⁺ ∪ {target}."""
    return log_negative_score(scores, log_weights, temperature=temperature, size=1.0)


def log_mean_exp_by_group(
    scores: Float[Tensor, " n"],
    groups: Int[Tensor, " n"],
    n_groups: int,
    *,
    temperature: float,
) -> Float[Tensor, " g"]:
    """log of the mean of e^{s/τ} over each group; −inf for a group without members."""
    logits = scores / temperature
    largest = logits.detach().new_full((n_groups,), -math.inf)
    largest = largest.scatter_reduce(0, groups.long(), logits.detach(), "amax")
    largest = largest.masked_fill(largest.isinf(), 0.0)
    sums = torch.zeros_like(largest).index_add(0, groups, (logits - largest[groups]).exp())
    counts = torch.bincount(groups, minlength=n_groups)
    # log 0 has an infinite slope, which times the zero of an empty sum is not a number.
    means = torch.where(counts > 0, sums / counts.clamp_min(1), 1.0)
    return torch.where(counts > 0, means.log() + largest, -math.inf)


def debias(
    log_negatives: Float[Tensor, " r"],
    log_positives: Float[Tensor, " r"],
    *,
    size: Float[Tensor, " r"] | float,
    omega: Float[Tensor, " r"] | float,
    lowest: float,
    temperature: float,
) -> tuple[Float[Tensor, " r"], Bool[Tensor, " r"]]:
    """log F̃ and which rows were clipped, F̃ = max{ (F − Q·ω⁺·mean⁺)/(1 − ω⁺), Q·e^{f_min/τ} }

    (Eq. 15, 16, 25).

    `log_negatives` is log F (`log_negative_score` with the same size Q), `log_positives` the logarithm of
    the mean of e^{f/τ} over N⁺ ∪ {target}, `omega` the probability ω⁺ that an unobserved pair is a false
    negative, and `lowest` the smallest value f_min of the similarity. (Eq. 16 prints e^{+1/τ}, the largest
    value, at which every row would be clipped.) A similarity without a bound is held at SMALL_SHARE · F.

    A clipped row passes no gradient. An empty row stays empty (−inf) and is not clipped. ω⁺ = 0 gives F.
    """
    omega = torch.as_tensor(omega, dtype=log_negatives.dtype, device=log_negatives.device)
    present = ~log_negatives.isinf()
    log_biased = torch.where(present, log_negatives, 0.0)
    log_share = log_positives + (log_of(size) + omega.log()) - log_biased  # of F, what is to be taken away
    with torch.no_grad():
        floor = log_of(size) + lowest / temperature
        if math.isinf(lowest):
            floor = log_biased + math.log(SMALL_SHARE)
        clipped = present & (omega > 0) & ~(_log_left(log_share, omega) + log_biased > floor)
    # What is clipped must not reach the logarithm at all: its slope is infinite where nothing is left.
    log_share = torch.where(present & ~clipped, log_share, -math.inf)
    debiased = torch.where(clipped, floor, _log_left(log_share, omega) + log_biased)
    return torch.where(present, debiased, -math.inf), clipped


def _log_left(log_share: Tensor, omega: Tensor) -> Tensor:
    """log( (1 − share)/(1 − ω) ), not a number for a share above 1."""
    return (-torch.expm1(log_share)).log() - torch.log1p(-omega)


def contrastive_loss(
    positive: Float[Tensor, " b"],
    log_item_negatives: Float[Tensor, " b"] | None,
    log_user_negatives: Float[Tensor, " b"] | None,
    *,
    temperature: float,
    item_weight: float = 1.0,
    user_weight: float = 1.0,
) -> Float[Tensor, " b"]:
    """−log e^{s/τ} / ( e^{s/τ} + w_i·F_items + w_u·F_users )  (Eq. 1, Eq. 14).

    With debiased negative scores it is Eq. 14, with plain ones Eq. 1. None and −inf add nothing.
    """
    # Relative to the positive: its gradient is then a sum over negatives, without the cancellation of 1 − P.
    logits = positive / temperature
    terms = [torch.zeros_like(logits)]
    for side, weight in ((log_item_negatives, item_weight), (log_user_negatives, user_weight)):
        if side is not None and weight > 0:
            terms.append(side + math.log(weight) - logits)
    return torch.logsumexp(torch.stack(terms), dim=0)


def neighbour_contrastive_loss(
    positive: Float[Tensor, "b p"],
    log_negatives: Float[Tensor, " b"],
    *,
    temperature: float,
    valid: Bool[Tensor, "b p"] | None = None,
) -> Float[Tensor, "b p"]:
    """−log e^{s/τ} / ( e^{s/τ} + F ) for each of P neighbours  (Eq. 5, Eq. 17).

    0 where not valid, as for u⁺ = u.
    """
    loss = torch.logaddexp(log_negatives.unsqueeze(1) - positive / temperature, torch.zeros_like(positive))
    return loss if valid is None else torch.where(valid, loss, 0.0)


def log_frequency_weights(
    frequencies: Int[Tensor, " c"] | Float[Tensor, " c"], beta: float
) -> Float[Tensor, " c"]:
    """−β·log frequency: 0 is the paper, 1 undoes the frequency of in-batch negatives (Eq. 10, Eq. 11).

    What never occurs counts as having occurred once, as frequency 0 would have no finite weight.
    """
    kind = frequencies.dtype if frequencies.is_floating_point() else torch.get_default_dtype()
    return -beta * frequencies.to(kind).clamp_min(1.0).log()


def effective_sample_size(
    scores: Float[Tensor, "r c"], log_weights: Weights | None = None, *, temperature: float
) -> Float[Tensor, " r"]:
    """(Σ w e^{s/τ})² / Σ (w e^{s/τ})²: how many negatives share a row's gradient; 0 where all are masked."""
    scores = scores.detach()
    total = log_negative_score(scores, log_weights, temperature=temperature)
    twice = None if log_weights is None else 2 * log_weights
    squares = log_negative_score(scores, twice, temperature=temperature / 2)
    return torch.where(total.isinf(), 0.0, (2 * total - squares).exp())


def bpr_loss(positive: Float[Tensor, "*#n"], negative: Float[Tensor, "*#n"]) -> Float[Tensor, "*#n"]:
    """−log σ(s⁺ − s⁻), Bayesian personalised ranking."""
    return -functional.logsigmoid(positive - negative)


def squared_error(score: Float[Tensor, "*n"], label: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """(s − y)²."""
    return (score - label).square()


def log_of(size: Tensor | float) -> Tensor | float:
    return size.log() if isinstance(size, Tensor) else math.log(size)


LogWeights = Float[Tensor, "b s"] | None
"""log of how much each negative counts: 0 is once, −inf leaves it out; None counts all once."""

PairLoss = Callable[[Float[Tensor, " b"], Float[Tensor, "b s"], LogWeights], Float[Tensor, " b"]]


def pairwise_loss(
    positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
) -> Float[Tensor, " b"]:
    """BPR, the mean over the negatives: −log σ(s⁺ − s⁻)."""
    each = bpr_loss(positive.unsqueeze(1), negative)
    if log_weights is None:
        return each.mean(1)
    weights = log_weights.exp()
    return (each * weights).sum(1) / weights.sum(1).clamp_min(torch.finfo(weights.dtype).tiny)


def softmax_loss(temperature: float) -> PairLoss:
    """−log of the positive's share among itself and its negatives, at a temperature."""

    def loss(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        negatives = log_negative_score(negative, log_weights, temperature=temperature)
        return contrastive_loss(positive, negatives, None, temperature=temperature)

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
    ones = squared_error(positive, torch.ones_like(positive))
    return ones + _sum_of(squared_error(negative, torch.zeros_like(negative)), log_weights)


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

_BUILT_IN = frozenset(PAIR_LOSSES)


def register_loss(name: str) -> Callable[[PairLoss], PairLoss]:
    """Adds a loss for HDCCF's setting `loss`; it is trained with the samplers `in-batch` and `uniform`.

    Parameters
    ----------
    name
        The value of the setting. The decorated function takes the scores of B positives, of S negatives of
        each (B × S) and the logarithms of the negatives' weights, or None. It returns a loss for each
        positive.

    Examples
    --------
    >>> @hdccf.register_loss("hinge")
    ... def hinge(positive, negative, log_weights):
    ...     return (1 - positive.unsqueeze(1) + negative).clamp_min(0).mean(1)
    >>> hdccf.HDCCF(loss="hinge", sampler="uniform").loss
    'hinge'
    """
    if name in _BUILT_IN or name == "contrastive":
        raise ConfigError(f"loss={name!r} is a loss of hdccf; register yours under another name")

    def register(loss: PairLoss) -> PairLoss:
        PAIR_LOSSES[name] = loss
        return loss

    return register

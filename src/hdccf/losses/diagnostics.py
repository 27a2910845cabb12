"""Diagnostics of negatives (masked share, effective number, hardness, gradients) and of the modulation."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hdccf.losses.contrastive import effective_sample_size
from hdccf.losses.negatives import NegativeSet

QUANTILES = (0.5, 0.9, 0.99)


def describe_negatives(negatives: NegativeSet, temperature: float) -> dict[str, float]:
    """Of one batch's negatives: the share masked as observed, their effective number, quantiles of hardness.

    A negative's hardness is its score, which by Eq. 4 decides its gradient. The effective number is that of
    equally hard negatives with the same spread of gradients: far below the real one, a few hard ones take
    all.
    """
    kept = ~negatives.log_weights.isneginf()
    effective = effective_sample_size(negatives.scores, negatives.log_weights, temperature=temperature)
    report = {
        "masked": 1 - float(kept.double().mean()),
        "effective-negatives": float(effective.mean()),
    }
    hardness = negatives.scores[kept]
    if len(hardness):
        for quantile in QUANTILES:
            place = min(len(hardness), 1 + int(quantile * len(hardness)))
            report[f"hardness-{round(100 * quantile)}"] = float(hardness.kthvalue(place).values)
    return report


def false_negative_rates(
    negatives: NegativeSet, liked: Bool[Tensor, "b c"], temperature: float
) -> dict[str, float]:
    """Where the truth is known: the share of negatives that are liked, plain and by their gradients."""
    kept = ~negatives.log_weights.isneginf()
    shares = torch.softmax(negatives.scores / temperature + negatives.log_weights, dim=1)
    shares = _rows_with_negatives(shares, kept)
    wrong = liked & kept
    return {
        "false-negatives": float(wrong.sum() / kept.sum().clamp_min(1)),
        "false-negatives-weighted": float((shares * wrong).sum() / shares.sum().clamp_min(1e-30)),
    }


def _rows_with_negatives(shares: Float[Tensor, "b c"], kept: Bool[Tensor, "b c"]) -> Float[Tensor, "b c"]:
    """A row without negatives has a softmax of nothing; it has no shares."""
    return torch.where(kept.any(1, keepdim=True), shares, 0.0)


def modulation_spread(modulation: Float[Tensor, "n d"]) -> dict[str, float]:
    """Of the modulation m of some pairs (Eq. 8): its mean, and its deviation over pairs, both averaged over
    dimensions.

    Without a spread m is the same for all pairs: a fixed weight of each dimension, which the vectors could
    have learnt.

    Examples
    --------
    >>> modulation_spread(torch.tensor([[0.5, 1.0], [0.75, 1.0]]))  # the second dimension does not vary
    {'modulation': 0.8125, 'modulation-spread': 0.0625}
    """
    m = modulation.double()
    spread = m.std(0, correction=0).mean()
    return {"modulation": float(m.mean()), "modulation-spread": float(spread)}


class NegativeShares(NamedTuple):
    """The share of a user's gradient that each negative gets; the shares sum to 1."""

    shares: Float[Tensor, " items"]
    """0 for observed items, unless training takes them as negatives too."""
    effective: float
    """The number of equally hard negatives that would share the gradient as unevenly."""
    stated: str
    """How they were computed, in words."""


def softmax_shares(
    scores: Float[Tensor, " items"],
    observed: Bool[Tensor, " items"],
    temperature: float,
    stated: str,
    log_weights: Float[Tensor, " items"] | None = None,
) -> NegativeShares:
    """∝ weight·e^{f/τ}, for contrastive losses and sampled softmax (Eq. 4)."""
    kept = torch.zeros_like(scores) if log_weights is None else log_weights
    kept = kept.masked_fill(observed, -torch.inf)
    shares = torch.softmax(scores / temperature + kept, 0)
    effective = effective_sample_size(scores[None], kept[None], temperature=temperature)
    return NegativeShares(shares, float(effective), stated)


def bpr_shares(
    scores: Float[Tensor, " items"],
    observed: Bool[Tensor, " items"],
    log_weights: Float[Tensor, " items"] | None = None,
) -> NegativeShares | None:
    """∝ weight·σ(f⁻ − f⁺), averaged over the user's positives; None where there are none.

    The weights are those by which negatives are drawn, uniformly where none are given.
    """
    if not bool(observed.any()):
        return None
    stated = "BPR: σ(f⁻ − f⁺), averaged over the user's positives"
    each = torch.zeros_like(scores)
    for positive in scores[observed]:
        each += torch.sigmoid(scores - positive)
    if log_weights is not None:
        each *= log_weights.exp()
        stated += ", by how often an item is drawn"
    shares = each.masked_fill(observed, 0.0)
    shares = shares / shares.sum()
    return NegativeShares(shares, float(1 / shares.square().sum()), stated)

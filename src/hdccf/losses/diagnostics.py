"""What the negatives did: how many were masked, how many really share the gradient, how hard they were."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hdccf.losses.contrastive import effective_sample_size
from hdccf.losses.negatives import NegativeSet

QUANTILES = (0.5, 0.9, 0.99)


def describe_negatives(against: NegativeSet, temperature: float) -> dict[str, float]:
    """Of one batch's negatives: the share masked as observed, their effective number, quantiles of hardness.

    A negative's hardness is its score, which by Eq. 4 decides its gradient. The effective number is that of
    equally hard negatives with the same spread of gradients: far below the real one, a few hard ones take
    all.
    """
    kept = ~against.log_weights.isneginf()
    effective = effective_sample_size(against.scores, against.log_weights, temperature=temperature)
    report = {
        "masked": 1 - float(kept.double().mean()),
        "effective-negatives": float(effective.mean()),
    }
    hardness = against.scores[kept]
    if len(hardness):
        for quantile in QUANTILES:
            place = min(len(hardness), 1 + int(quantile * len(hardness)))
            report[f"hardness-{round(100 * quantile)}"] = float(hardness.kthvalue(place).values)
    return report


def false_negative_rates(
    against: NegativeSet, liked: Bool[Tensor, "b c"], temperature: float
) -> dict[str, float]:
    """Where the truth is known: the share of negatives that are liked, plain and by their gradients."""
    kept = ~against.log_weights.isneginf()
    shares = torch.softmax(against.scores / temperature + against.log_weights, dim=1)
    shares = _rows_with_negatives(shares, kept)
    wrong = liked & kept
    return {
        "false-negatives": float(wrong.sum() / kept.sum().clamp_min(1)),
        "false-negatives-weighted": float((shares * wrong).sum() / shares.sum().clamp_min(1e-30)),
    }


def _rows_with_negatives(shares: Float[Tensor, "b c"], kept: Bool[Tensor, "b c"]) -> Float[Tensor, "b c"]:
    """A row without negatives has a softmax of nothing; it has no shares."""
    return torch.where(kept.any(1, keepdim=True), shares, 0.0)

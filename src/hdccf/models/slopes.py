"""The gradient of a softmax over products, written out, for when there is one row and every call counts.

A row's step is a few products of a vector with the catalogue. Recorded and differentiated by torch most of
its time goes into the recording; written out a new user is solved for several times sooner (decision 20).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

_SHORTEST = 1e-12


@dataclass(frozen=True)
class SoftmaxGradient:
    """d/dx of Σ_n share_n · log(1 + F_r e^{−s_n/τ}), F_r = Σ_c w_rc e^{s_rc/τ}, where s is x·q or the cosine.

    n runs over observed pairs (r, c): the contrastive loss of Eq. 14 without debiasing, over one side.
    """

    columns: Float[Tensor, "c d"]
    """q / τ."""
    log_weights: Float[Tensor, "b c"]
    """log w, with −inf where a pair is masked; a constant of the row as much as of the column."""
    rows: Int64[Tensor, " n"]
    places: Int64[Tensor, " n"]
    shares: Float[Tensor, " n"]
    normalise: bool
    """Whether x is compared by its direction alone; the columns are then already of unit length."""

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        if self.normalise:
            lengths = torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(_SHORTEST)
            x = x / lengths
        scores = x @ self.columns.T
        positive = scores[self.rows, self.places]
        logits = scores.add_(self.log_weights)
        # A row without any negative has F = 0: finite here, so that −inf − −inf does not come about.
        log_sums = torch.logsumexp(logits, dim=1).clamp_min_(-1e30)
        pulls = (log_sums[self.rows] - positive).sigmoid_().mul_(self.shares)
        pushed = torch.zeros_like(log_sums).index_add_(0, self.rows, pulls)
        slopes = logits.sub_(log_sums.unsqueeze(1)).exp_().mul_(pushed.unsqueeze(1))
        slopes[self.rows, self.places] -= pulls
        towards = slopes @ self.columns
        if not self.normalise:
            return towards
        along = (towards * x).sum(1, keepdim=True)
        return torch.addcmul(towards, x, along, value=-1).div_(lengths)

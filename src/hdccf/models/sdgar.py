"""SD-GAR (Jin et al., 2020): a discriminator that weighs its negatives by importance, and its generator.

The discriminator is what recommends. Its loss wants the hardest negatives, P*_T ∝ e^{softplus(s)/T}; few are
drawn, by the generator's Q, and weights correct from the one to the other.
"""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from hdccf.config import SIZES, Choice, Real, Space, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.losses.pairs import LogWeights, PairLoss
from hdccf.models.biased_factors import biased_factors
from hdccf.models.pairs import PairModel
from hdccf.models.settings import PairSettings, SDGARGeneratorSettings
from hdccf.models.sources import over_pairs


class SDGAR(PairSettings, SDGARGeneratorSettings):
    """SD-GAR, whose negatives are drawn by a mixture that is solved every few epochs."""

    model: ClassVar[str] = "sd-gar"

    epochs: int = Field(default=75, ge=1)
    """Passes over the training data at most; early stopping usually ends before."""
    sampler: Literal["uniform", "popularity", "in-batch", "dynamic", "irgan", "sd-gar"] = "sd-gar"
    """Where the negatives come from; `sd-gar` is its own generator, another shows what that one adds."""
    embedding_dim: int = Field(default=32, ge=1)
    """Length of the discriminator's vectors."""
    init_std: float = Field(default=0.05, gt=0)
    """Spread of the first vectors."""
    batch_size: int = Field(default=512, ge=1)
    """Positive pairs in a step; fewer make more, noisier steps."""
    negatives: int = Field(default=5, ge=1)
    """Items drawn against each positive, which share one weight."""
    l2: float = Field(default=0.01, ge=0)
    """Pull of a batch's own vectors and biases towards zero; the authors take 0.01 to 0.05."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 1e-2, log=True),
            "batch_size": Choice((512, 1024, 2048)),
            "negatives": Choice((5, 10, 20)),
            "l2": Real(1e-4, 1e-1, log=True),
            "components": Choice((32, 64, 128)),
            "temperature": Real(0.2, 2.0, log=True),
            "user_entropy": Real(0.03, 1.0, log=True),
            "item_entropy": Real(0.1, 3.0, log=True),
            **recency(),
        }
    )


def build_sdgar(settings: SDGAR, train: Interactions, generator: torch.Generator) -> PairModel:
    graph = Graph.of(train)
    return over_pairs(
        biased_factors(settings, graph, generator),
        settings,
        graph,
        train,
        adversarial_loss(settings.temperature),
        generator,
        correct_chances=True,
        group="discriminator",
    )


def adversarial_loss(temperature: float) -> PairLoss:
    """½(−log σ(s⁺) + Σ_j w_j softplus(s_j)), w = softmax_j(softplus(s_j)/T − log Q(j|u)).

    The weights are part of what is minimised: gradients flow through them.
    """

    def loss(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        hardness = functional.softplus(negative)
        logits = hardness / temperature
        if log_weights is not None:
            logits = logits + log_weights
        # Without a negative that counts there is nothing to weigh, and a softmax of nothing is no number.
        none = logits.isneginf().all(1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(none, 0.0), 1).masked_fill(none, 0.0)
        return 0.5 * (functional.softplus(-positive) + (weights * hardness).sum(1))

    return loss

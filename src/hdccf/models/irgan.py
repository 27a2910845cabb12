"""IRGAN (Wang et al., 2017): a generator and a discriminator of items play against each other.

The discriminator tells a user's items from those that the generator draws; the generator learns to draw what
it takes for the user's. The generator is what recommends.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field

from hdccf.config import Choice, Real, Space, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import PairSampler
from hdccf.data.weights import weights_of
from hdccf.losses.pairs import cross_entropy_loss
from hdccf.models.base import Scorer
from hdccf.models.biased_factors import biased_factors
from hdccf.models.irgan_generator import IRGANGenerator, irgan_generator
from hdccf.models.pairs import PairModel
from hdccf.models.settings import IRGANGeneratorSettings, PairSettings


class IRGAN(PairSettings, IRGANGeneratorSettings):
    """IRGAN for items: a factorisation against a factorisation, whose generator recommends."""

    model: ClassVar[str] = "irgan"

    sampler: Literal["irgan"] = "irgan"
    """The generator is the model: there is no other."""
    embedding_dim: int = Field(default=16, ge=1)
    """Length of both players' vectors; the paper takes 5 to 16."""
    init_std: float = Field(default=0.05, gt=0)
    """Spread of the first vectors of both."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Step size of both; large enough to be warm in time, and already large for the game that follows."""
    l2: float = Field(default=0.01, ge=0)
    """Pull of the discriminator's vectors towards zero, which keeps its rewards from becoming certain."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": Choice((16, 32, 64, 128)),
            "learning_rate": Real(1e-4, 1e-2, log=True),
            "l2": Real(1e-3, 1.0, log=True),
            "temperature": Real(0.1, 1.0, log=True),
            "positive_share": Real(0.05, 0.5),
            "warm_epochs": Choice((5, 20, 50)),
            **recency(),
        }
    )


class IRGANModel(PairModel):
    """A discriminator over pairs whose negatives the generator draws, and the generator as its result."""

    source: IRGANGenerator

    def __init__(self, settings: IRGAN, train: Interactions, generator: torch.Generator) -> None:
        graph = Graph.of(train)
        discriminator = biased_factors(settings, graph, generator)
        # The game's draws may be the user's own items: a generator that is right has to be told so.
        source = irgan_generator(settings, settings, graph, generator, observed_too=True)
        super().__init__(
            settings,
            discriminator,
            source,
            cross_entropy_loss,
            PairSampler(graph, weights_of(settings, train), settings.batch_size, by_user=True),
            negatives=settings.negatives,
            l2=settings.l2,
            group="discriminator",
        )

    def scorer(self) -> Scorer:
        return self.source.net.scorer()

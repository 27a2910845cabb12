"""A world of which everything is known, a model that scores it, and what the ideal loss would be.

The scores are the real model's, with vectors set from the world's tastes. They look at who likes what and
never at who was shown what: Theorem 1 takes false negatives and observed positives for draws from one
distribution, and over exposures that is so exactly if the scores do not depend on them.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf.data.batches import InBatch, SampledBatch
from hdccf.data.synthetic import World, synthetic_world
from hdccf.losses.negatives import ContrastiveLoss, NegativeTerm
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.rng import generator_for

TEMPERATURE = 0.5
SIZE = 32.0
"""Q, the same for all sizes of samples, as the appendix has it."""


def known_world(n: int, seed: int, exposure_seed: int | None = None, exposure: float = 0.0) -> World:
    """n × n, a fifth of the pairs liked and a tenth observed, so that a ninth of the negatives are false.

    Tastes are mild: every item is liked by some and every user likes some, as the theorem needs positives.
    """
    return synthetic_world(
        n * n // 10,
        n_users=n,
        n_items=n,
        exposure=exposure,
        exposure_seed=exposure_seed,
        drift=0.0,
        liked=0.2,
        strength=1.0,
        seed=seed,
    )


@dataclass(frozen=True)
class Rows:
    """One side: for each user its items, or for each item its users."""

    terms: Float[Tensor, "n m"]
    """e^{f/τ} of all pairs."""
    liked: Bool[Tensor, "n m"]
    observed: Bool[Tensor, "n m"]
    omega: Float[Tensor, " n"]
    """The share of false negatives among what was not observed: the true ω⁺ of each row."""

    @cached_property
    def ideal(self) -> Float[Tensor, " n"]:
        """E[e^{f/τ}] over the row's true negatives."""
        return self._mean(~self.liked)

    @cached_property
    def biased(self) -> Float[Tensor, " n"]:
        """The same over all that was not observed, which is what a sampler sees."""
        return self._mean(~self.observed)

    @cached_property
    def debiased(self) -> Float[Tensor, " n"]:
        """What the debiased score becomes with all negatives and all positives: the ideal one plus what false
        negatives differ from observed positives."""
        taken = self.omega * self._mean(self.observed)
        return (self.biased - taken) / (1 - self.omega)

    def _mean(self, which: Bool[Tensor, "n m"]) -> Float[Tensor, " n"]:
        return (self.terms * which).sum(1) / which.sum(1).clamp_min(1)


class Known:
    """A world with the real model on it."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        tastes = world.tastes
        self.model = HDCCFModel(
            HDCCF.model_validate(
                {
                    "user_vector": "free",
                    "similarity": "cosine",
                    "embedding_dim": tastes.users.shape[1] + 1,
                    "temperature": TEMPERATURE,
                    "user_side": 1.0,
                    **settings,
                }
            ),
            world.interactions,
            generator_for(0, "verify", "overwritten"),
        )
        # Appeal is among the scores, so that popular items are harder: otherwise β would not matter.
        users = np.column_stack([tastes.users, np.full(world.n_users, 2.0)])
        items = np.column_stack([tastes.items, tastes.appeal])
        assert self.model.users is not None  # noqa: S101 - `free` has them
        with torch.no_grad():
            self.model.users.embedding.copy_(torch.from_numpy(users))
            self.model.items.embedding.copy_(torch.from_numpy(items))
        self.model.requires_grad_(False)

    @cached_property
    def of_users(self) -> Rows:
        scores = self.model.user_item.all_pairs(self.model.all_users(), self.model.items.all())
        everyone = np.arange(self.world.n_users)
        observed = torch.zeros(scores.shape, dtype=torch.bool)
        graph = self.model.graph
        observed[graph.pair_users, graph.items_of.flat] = True
        return Rows(
            (scores.double() / TEMPERATURE).exp(),
            torch.from_numpy(self.world.liked(everyone)),
            observed,
            torch.from_numpy(self.world.omega_items),
        )

    @cached_property
    def of_items(self) -> Rows:
        users = self.of_users
        return Rows(users.terms.T, users.liked.T, users.observed.T, torch.from_numpy(self.world.omega_users))

    @property
    def contrast(self) -> ContrastiveLoss:
        return self.model.contrast

    def sides(
        self, batch: SampledBatch | InBatch, debiased: bool = True
    ) -> tuple[Float[Tensor, " b"], NegativeTerm, NegativeTerm]:
        """The positives' scores and both negative scores, with each row's true ω⁺ (or 0) and Q = SIZE."""
        if isinstance(batch, InBatch):
            scored = steps.score_in_batch(self.model, batch)
        else:
            scored = steps.score_sampled(self.model, batch)
        omega_items = self.of_users.omega[batch.users].float() if debiased else 0.0
        omega_users = self.of_items.omega[batch.items].float() if debiased else 0.0
        items = self.contrast.term(scored.items._replace(size=SIZE), scored.positive, omega_items)
        users = self.contrast.term(scored.users._replace(size=SIZE), scored.positive, omega_users)
        return scored.positive, items, users

    def ideal_loss(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " b"], positive: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """Eq. 13 with its logarithm, as the negatives become infinitely many, term by term and in float64."""
        term = (positive.double() / TEMPERATURE).exp()
        negatives = SIZE * (self.of_users.ideal[users] + self.of_items.ideal[items])
        return ((term + negatives) / term).log()

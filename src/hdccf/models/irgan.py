"""IRGAN (Wang et al., 2017): a generator and a discriminator of items trained against each other.

The discriminator tells a user's items from those that the generator draws; the generator learns to draw what
the discriminator takes for the user's. The generator recommends. As a source of negatives it is a softmax
over all items, O(items) a user and step, so batches hold whole users and every user is scored once.
"""

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor, nn

from hdccf.config import MAX_DIM, Choice, Real, Space, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.losses.contrastive import cross_entropy_loss, pairwise_loss
from hdccf.models.base import Objective, Scorer
from hdccf.models.factorization import BiasedFactors, biased_factors
from hdccf.models.negatives import Draws, DynamicNegatives, NegativeSource, Request, cumulated, pick
from hdccf.models.pairs import PairModel
from hdccf.models.settings import IRGANGeneratorSettings, PairSettings

_GROUP = "generator"


class IRGAN(PairSettings, IRGANGeneratorSettings):
    """IRGAN for items: a factorisation against a factorisation, whose generator recommends.

    `hdccf models irgan` lists every setting with its default.

    Examples
    --------
    >>> IRGAN(embedding_dim=32).embedding_dim
    32
    """

    model: ClassVar[str] = "irgan"
    weighs_positives: ClassVar[bool] = False  # the generator, which answers, learns from rewards

    sampler: Literal["irgan"] = "irgan"
    """The generator is the model: there is no other."""
    embedding_dim: int = Field(default=16, ge=1, le=MAX_DIM)
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


class Proposals(NamedTuple):
    """Items that were drawn for users to teach the generator, and what they count."""

    rows: Int64[Tensor, " n"]
    items: Int64[Tensor, " n"]
    ratio: Float[Tensor, " n"]
    """p_G / p_n: how much too seldom, or too often, the proposal draws them."""
    share: Float[Tensor, " n"]
    """1 / (users × draws of the user): each user counts once, as each makes a step in the original."""


class IRGANGenerator(NegativeSource):
    """`irgan`: items ∝ e^{s_G/τ}, where s_G learns to be what the model takes for a positive.

    For `warm_epochs` it learns as BPR with `dynamic` negatives of its own; then by REINFORCE, rewarded by the
    model's score s of what it draws, 2(σ(s) − ½).
    """

    by_user = True

    seen: Tensor

    def __init__(
        self,
        graph: Graph,
        net: BiasedFactors,
        own: IRGANGeneratorSettings,
        *,
        candidates: int,
        observed_too: bool = False,
    ) -> None:
        super().__init__(graph)
        self.net, self.own, self.observed_too = net, own, observed_too
        self._hardest = DynamicNegatives(graph, candidates)
        degrees = graph.items_of.degrees
        self._warm_pairs = own.warm_epochs * int(degrees[degrees < graph.n_items].sum())
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @classmethod
    def of(
        cls,
        settings: PairSettings,
        own: IRGANGeneratorSettings,
        graph: Graph,
        generator: torch.Generator,
        *,
        observed_too: bool = False,
    ) -> "IRGANGenerator":
        """With vectors as long as the model's own."""
        net = biased_factors(settings, graph, generator)
        return cls(graph, net, own, candidates=settings.candidates, observed_too=observed_too)

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {_GROUP: list(self.net.parameters())}

    @torch.no_grad()
    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        users, rows = torch.unique(request.users, return_inverse=True)
        logits = self.net.score_all(users) / self.own.temperature
        if not self.observed_too:
            logits[self.graph(users).items_of.within(users, None)[:2]] = -torch.inf
        log_chances = logits.log_softmax(1)
        asked = rows.repeat_interleave(request.size)
        items = pick(cumulated(log_chances.exp()), asked, generator)
        relative = log_chances[asked, items] + math.log(log_chances.shape[1])
        shape = (len(rows), request.size)
        return Draws(items.view(shape), relative.view(shape))

    def objectives(self, request: Request, generator: torch.Generator) -> Iterator[Objective]:
        warm = int(self.seen) < self._warm_pairs
        self.seen += len(request.users)
        yield self._warm(request, generator) if warm else self._rewarded(request, generator)

    def _warm(self, request: Request, generator: torch.Generator) -> Objective:
        own = Request(request.users, request.items, 1, torch.no_grad()(self.net.score_rows), self.net.scorer)
        negatives = self._hardest.draw(own, generator).items
        scores = self.net.compare(request.users, request.items, negatives)
        loss = pairwise_loss(scores.positive, scores.negative, torch.zeros_like(scores.negative)).mean()
        return Objective(loss, _GROUP, {"generator": loss.detach()})

    def _rewarded(self, request: Request, generator: torch.Generator) -> Objective:
        users, rows = torch.unique(request.users, return_inverse=True)
        log_chances = self.net.score_all(users).log_softmax(1)
        proposals = self._propose(users, rows, log_chances.detach(), generator)
        scores = request.score(request.users, proposals.items.view(len(rows), self.own.policy_draws))
        rewards = reward(scores.detach()).flatten()
        drawn = log_chances[proposals.rows, proposals.items]
        loss = -(proposals.share * proposals.ratio * rewards * drawn).sum()
        return Objective(loss, _GROUP, {"generator": loss.detach(), "reward": rewards.mean()})

    @torch.no_grad()
    def _propose(
        self,
        users: Int64[Tensor, " u"],
        rows: Int64[Tensor, " b"],
        log_chances: Float[Tensor, "u items"],
        generator: torch.Generator,
    ) -> Proposals:
        """From p_n, a mixture: the generator's choice, or one of the user's own items."""
        items_of = self.graph(users).items_of
        asked = rows.repeat_interleave(self.own.policy_draws)
        chosen = pick(cumulated(log_chances.exp()), asked, generator)
        own = items_of.draw(users[asked], 1, generator).squeeze(1)
        take_own = torch.rand(asked.shape, generator=generator, device=asked.device) < self.own.positive_share
        items = torch.where(take_own, own, chosen)
        observed = items_of.contains(users[asked], items)
        ratio = proposal_ratio(
            log_chances[asked, items], observed, items_of.degrees[users[asked]], self.own.positive_share
        )
        counts = torch.bincount(asked, minlength=len(users))
        return Proposals(asked, items, ratio, 1 / (len(users) * counts[asked].to(ratio.dtype)))


def reward(scores: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """2(σ(s) − ½): 1 for what is certainly a positive, −1 for what is certainly drawn."""
    return 2 * (scores.sigmoid() - 0.5)


def proposal_ratio(
    log_chances: Float[Tensor, " n"],
    observed: Bool[Tensor, " n"],
    degrees: Int64[Tensor, " n"],
    positive_share: float,
) -> Float[Tensor, " n"]:
    """p_G / p_n with p_n = (1 − λ) p_G + λ·[observed]/|I_u|.

    Of an unobserved item it is 1/(1 − λ) whatever p_G is, and so even where p_G has underflowed.
    """
    chances = log_chances.exp()
    mixed = (1 - positive_share) * chances + positive_share / degrees.to(chances.dtype)
    return torch.where(observed, chances / mixed, 1 / (1 - positive_share))


class IRGANModel(PairModel):
    """A discriminator over pairs whose negatives the generator draws, and the generator as its result."""

    source: IRGANGenerator

    def __init__(self, settings: IRGAN, train: Interactions, generator: torch.Generator) -> None:
        graph = Graph.of(train)
        discriminator = biased_factors(settings, graph, generator)
        # The game's draws may be the user's own items: a generator that is right has to be told so.
        source = IRGANGenerator.of(settings, settings, graph, generator, observed_too=True)
        given = settings, graph, train, cross_entropy_loss, generator
        super().__init__(discriminator, *given, group="discriminator", source=source)

    def scorer(self) -> Scorer:
        return self.source.net.scorer()

"""Models over pairs: a net that scores, a source of negatives and a loss, put together.

BPR, PMF, SVD++, NeuMF, LightGCN and sampled softmax differ in their net and their loss only, and each takes
negatives from any source. Adding a source is a class and a line in `SOURCES`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import PairSampler
from hdccf.data.weights import weights_of
from hdccf.losses.diagnostics import NegativeShares, describe_negatives
from hdccf.losses.negatives import weighted_mean, without_neighbours
from hdccf.losses.pairs import LogWeights, PairLoss
from hdccf.models.base import Model, Objective, Scorer
from hdccf.models.fold_in import Frozen, PairRows, solve
from hdccf.models.negatives import (
    Draws,
    DynamicNegatives,
    InBatchNegatives,
    NegativeSource,
    PopularityNegatives,
    Request,
    UniformNegatives,
)
from hdccf.models.settings import IRGANGeneratorSettings, PairSettings, SDGARGeneratorSettings
from hdccf.similarity import Vectors

Squares = Callable[[], Float[Tensor, ""]]
Shares = Callable[[Float[Tensor, " items"], Bool[Tensor, " items"]], NegativeShares | None]


class PairScores(NamedTuple):
    """A batch, scored: each positive, and the negatives of its own."""

    positive: Float[Tensor, " b"]
    negative: Float[Tensor, "b s"]
    squares: Squares
    """The sum of the squares of all vectors (and biases) that the rows took: asked for only by a penalty."""


def squares_of(*looked_up: Float[Tensor, "..."]) -> Squares:
    return lambda: torch.stack([x.square().sum() for x in looked_up]).sum()


@runtime_checkable
class PairNet(Protocol):
    """What scores pairs; an `nn.Module` whose parameters the model trains."""

    def compare(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " b"], negatives: Int64[Tensor, "b s"]
    ) -> PairScores: ...

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]: ...

    @property
    def has_free_vectors(self) -> bool:
        """Whether a new user or item can be folded in by solving for its vector."""
        ...

    def scorer(self) -> Scorer:
        """All pairs, without gradients, for ranking."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


Compare = Callable[[Int64[Tensor, " b"], Int64[Tensor, " b"], Int64[Tensor, "b s"]], PairScores]


class PairModel(Model):
    """A net trained on pairs; the trainer does the rest."""

    settings: PairSettings

    def __init__(
        self,
        settings: PairSettings,
        net: PairNet,
        source: NegativeSource,
        loss: PairLoss,
        sampler: PairSampler,
        *,
        negatives: int,
        l2: float = 0.0,
        correct_chances: bool = False,
        group: str = "net",
        lookups_per_step: int | None = None,
        shares: Shares | None = None,
    ) -> None:
        super().__init__(settings)
        self.group = group
        self._lookups_per_step = lookups_per_step
        self._shares = shares
        self.net = net
        self.source = source
        self.sampler = sampler
        self.loss = loss
        self.negatives = negatives
        self.l2 = l2
        self.correct_chances = correct_chances

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {self.group: list(self.net.parameters()), **self.source.groups}

    @property
    def n_batches(self) -> int:
        return len(self.sampler)

    @property
    def lookups_per_step(self) -> int | None:
        return self._lookups_per_step

    def batches(self, generator: torch.Generator) -> Iterator[PairBatch]:
        yield from self.sampler.epoch(generator)

    def objectives(
        self, batch: PairBatch, generator: torch.Generator, parts: dict[str, Compare] | None = None
    ) -> Iterator[Objective]:
        """The net's; or those of its parts, by the group that each drives, on the same negatives."""
        request = self._request(batch)
        self.source.prepare(request, generator)
        draws = self.source.draw(request, generator)
        for group, compare in ({self.group: self.net.compare} if parts is None else parts).items():
            yield self._objective(batch, draws, compare, group)
        yield from self.source.objectives(request, generator)

    def _objective(self, batch: PairBatch, draws: Draws, compare: Compare, group: str) -> Objective:
        # Drawn for all pairs of the batch; a process of a group takes its own part.
        own = self.process_group.rows(len(batch.users))
        draws = draws.of(own)
        scores = compare(batch.users[own], batch.items[own], draws.items)
        log_weights = self._log_weights(draws, scores.negative)
        each = self.loss(scores.positive, scores.negative, log_weights)
        loss = weighted_mean(each, batch.weights[own], batch.weights)
        if not self.l2:
            return Objective(loss, group, {})
        penalty = self.l2 * scores.squares() / len(batch.users)
        return Objective(loss + penalty, group, {"fit": loss.detach(), "penalty": penalty.detach()})

    def _log_weights(self, draws: Draws, like: Float[Tensor, "b s"]) -> LogWeights:
        log_chance = draws.log_chance if self.correct_chances else None
        if draws.valid is None and log_chance is None:
            return None
        log_weights = torch.zeros_like(like) if log_chance is None else -log_chance.to(like.dtype)
        return log_weights if draws.valid is None else log_weights.masked_fill(~draws.valid, -torch.inf)

    def _request(self, batch: PairBatch) -> Request:
        return Request(batch.users, batch.items, self.negatives, self._score, self.net.scorer)

    @torch.no_grad()
    def _score(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.net.score_rows(users, items)

    @torch.no_grad()
    def diagnose(self, batch: PairBatch) -> dict[str, float]:
        # A generator of its own, as looking must not change what training draws.
        generator = torch.Generator(batch.users.device).manual_seed(0)
        draws = self.source.draw(self._request(batch), generator)
        scores = self._score(batch.users, draws.items)
        log_weights = self._log_weights(draws, scores)
        if log_weights is None:
            log_weights = torch.zeros_like(scores)
        return describe_negatives(without_neighbours(scores, log_weights), temperature=1.0)

    def negative_shares(
        self, scores: Float[Tensor, " items"], observed: Bool[Tensor, " items"]
    ) -> NegativeShares | None:
        return None if self._shares is None else self._shares(scores, observed)

    def scorer(self) -> Scorer:
        return self.net.scorer()

    @property
    def has_free_vectors(self) -> bool:
        return self.net.has_free_vectors

    def solve_vectors(self, events: Interactions, *, of_users: bool, known: Scorer | None = None) -> Vectors:
        if not self.has_free_vectors:
            return super().solve_vectors(events, of_users=of_users, known=known)
        s, graph = self.settings, self.sampler.graph
        weights = weights_of(s, events) if of_users else torch.ones(len(events))
        power = {"popularity": s.popularity_power, "in-batch": 1.0}.get(s.sampler, 0.0)
        log_chances = None
        if power and not self.correct_chances:
            degrees = (graph.users_of if of_users else graph.items_of).degrees
            log_chances = power * degrees.clamp_min(1).float().log()
        rows = PairRows(self.loss, self.negatives, log_chances, self.l2)
        return solve(Frozen.of(self._vector_scorer(known), of_users), rows, events, weights)


# -- sources by name -----------------------------------------------------------------------------------------

BuildSource = Callable[[PairSettings, Graph, torch.Generator], NegativeSource]


def _irgan(settings: PairSettings, graph: Graph, generator: torch.Generator) -> NegativeSource:
    from hdccf.models.irgan import irgan_generator

    own = settings if isinstance(settings, IRGANGeneratorSettings) else IRGANGeneratorSettings()
    return irgan_generator(settings, own, graph, generator)


def _sdgar(settings: PairSettings, graph: Graph, generator: torch.Generator) -> NegativeSource:
    from hdccf.models.sdgar import SDGARGenerator

    own = settings if isinstance(settings, SDGARGeneratorSettings) else SDGARGeneratorSettings()
    return SDGARGenerator(graph, own, generator)


SOURCES: dict[str, BuildSource] = {
    "uniform": lambda settings, graph, generator: UniformNegatives(graph),
    "popularity": lambda settings, graph, generator: PopularityNegatives(graph, settings.popularity_power),
    "in-batch": lambda settings, graph, generator: InBatchNegatives(graph),
    "dynamic": lambda settings, graph, generator: DynamicNegatives(graph, settings.candidates),
    "irgan": _irgan,
    "sd-gar": _sdgar,
}


def over_pairs(
    net: PairNet,
    settings: PairSettings,
    graph: Graph,
    train: Interactions,
    loss: PairLoss,
    generator: torch.Generator,
    *,
    by_user: bool = False,
    correct_chances: bool = False,
    group: str = "net",
    batch_only: bool = True,
    products_a_pair: int = 0,
    shares: Shares | None = None,
    kind: type[PairModel] = PairModel,
) -> PairModel:
    """The net as a model, with the negatives and the weights of positives that the settings name.

    Where not `batch_only` a step of the net works on more than the vectors of a batch. `products_a_pair` are
    the multiplications of its layers.
    """
    source = SOURCES[settings.sampler](settings, graph, generator)
    sampler = PairSampler(
        graph,
        graph.along(weights_of(settings, train)),
        settings.batch_size,
        by_user=by_user or source.by_user,
        least=source.least_batch,
    )
    return kind(
        settings,
        net,
        source,
        loss,
        sampler,
        negatives=settings.negatives,
        l2=settings.l2,
        correct_chances=correct_chances,
        group=group,
        lookups_per_step=_lookups_per_step(settings, products_a_pair) if batch_only else None,
        shares=shares,
    )


def _lookups_per_step(settings: PairSettings, products_a_pair: int) -> int | None:
    if settings.sampler in ("irgan", "sd-gar"):  # they look at every item of a user
        return None
    # Looking a number up, and moving it, takes about as long as sixteen products and their gradients.
    each = settings.embedding_dim + products_a_pair // 16
    return settings.batch_size * (1 + settings.negatives) * each

"""Models over pairs: a net that scores, a source of negatives and a loss, put together.

BPR, PMF, SVD++, NeuMF, LightGCN and sampled softmax differ in their net and their loss only, and each takes
negatives from any source. Adding a source is a class and a line in `SOURCES`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import PairSampler
from hdccf.data.weights import weights_of
from hdccf.losses.contrastive import LogWeights, PairLoss
from hdccf.losses.diagnostics import NegativeShares, describe_negatives
from hdccf.losses.negatives import weighted_mean, without_neighbours
from hdccf.models import negatives
from hdccf.models.base import Candidates, Items, Model, Objective, Scorer, Scores, Users
from hdccf.models.fold_in import PairRows, solve
from hdccf.models.negatives import Draws, NegativeSource, Request
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


Compare = Callable[[Users, Items, Candidates], PairScores]


@runtime_checkable
class PairNet(Protocol):
    """What scores pairs; an `nn.Module` whose parameters the model trains."""

    has_free_vectors: bool
    """Whether a new user or item can be folded in by solving for its vector."""
    item_tables: tuple[str, ...]
    """Weights with a row for each item, for which features can stand in; none where it cannot."""

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores: ...

    def score_rows(self, users: Users, items: Candidates) -> Scores: ...

    def scorer(self) -> Scorer:
        """All pairs, without gradients, for ranking."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


class PairModel(Model):
    """A net trained on pairs, with the negatives and the weights of positives that the settings name.

    Parameters
    ----------
    by_user
        Whether batches hold whole users.
    correct_chances
        Whether negatives are weighed by how much too often they are drawn.
    products_per_pair
        Multiplications of the net's layers; None where a step works on more than the vectors of a batch.
    shares
        A user's gradient by unobserved item, for losses that have one.
    source
        The source of negatives, where it is not the one of the settings' sampler.
    """

    settings: PairSettings

    def __init__(
        self,
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
        products_per_pair: int | None = 0,
        shares: Shares | None = None,
        source: NegativeSource | None = None,
    ) -> None:
        super().__init__(settings)
        self.net, self.loss, self.group = net, loss, group
        self.source = SOURCES[settings.sampler](settings, graph, generator) if source is None else source
        self.correct_chances, self._shares = correct_chances, shares
        self.has_free_vectors = net.has_free_vectors
        # IRGAN's and SD-GAR's generators look at every item of a user.
        if products_per_pair is not None and settings.sampler not in ("irgan", "sd-gar"):
            # Looking a number up, and moving it, takes about as long as sixteen products and their gradients.
            each = settings.embedding_dim + products_per_pair // 16
            self.lookups_per_step = settings.batch_size * (1 + settings.negatives) * each
        self.sampler = PairSampler(
            graph,
            graph.along(weights_of(settings, train)),
            settings.batch_size,
            by_user=by_user or self.source.by_user,
            least=self.source.least_batch,
        )

    @property
    def item_tables(self) -> tuple[str, ...]:
        tables = self.net.item_tables
        return tuple(f"net.{name}" for name in tables) if tables else super().item_tables

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {self.group: list(self.net.parameters()), **self.source.groups}

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
        if not self.settings.l2:
            return Objective(loss, group, {})
        penalty = self.settings.l2 * scores.squares() / len(batch.users)
        return Objective(loss + penalty, group, {"fit": loss.detach(), "penalty": penalty.detach()})

    def _log_weights(self, draws: Draws, like: Float[Tensor, "b s"]) -> LogWeights:
        log_chance = draws.log_chance if self.correct_chances else None
        if draws.valid is None and log_chance is None:
            return None
        log_weights = torch.zeros_like(like) if log_chance is None else -log_chance.to(like.dtype)
        return log_weights if draws.valid is None else log_weights.masked_fill(~draws.valid, -torch.inf)

    def _request(self, batch: PairBatch) -> Request:
        score = torch.no_grad()(self.net.score_rows)
        return Request(batch.users, batch.items, self.settings.negatives, score, self.net.scorer)

    @torch.no_grad()
    def diagnose(self, batch: PairBatch) -> dict[str, float]:
        # A generator of its own, as looking must not change what training draws.
        generator = torch.Generator(batch.users.device).manual_seed(0)
        draws = self.source.draw(self._request(batch), generator)
        scores = self.net.score_rows(batch.users, draws.items)
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
        rows = PairRows(self.loss, s.negatives, log_chances, s.l2)
        return solve(self.vector_scorer(known), rows, events, weights, of_users)


def _irgan(settings: PairSettings, graph: Graph, generator: torch.Generator) -> NegativeSource:
    from hdccf.models.irgan import IRGANGenerator

    own = settings if isinstance(settings, IRGANGeneratorSettings) else IRGANGeneratorSettings()
    return IRGANGenerator.of(settings, own, graph, generator)


def _sdgar(settings: PairSettings, graph: Graph, generator: torch.Generator) -> NegativeSource:
    from hdccf.models.sdgar import SDGARGenerator

    own = settings if isinstance(settings, SDGARGeneratorSettings) else SDGARGeneratorSettings()
    return SDGARGenerator(graph, own, generator)


SOURCES: dict[str, Callable[[PairSettings, Graph, torch.Generator], NegativeSource]] = {
    "uniform": lambda settings, graph, _: negatives.UniformNegatives(graph),
    "popularity": lambda settings, graph, _: negatives.PopularityNegatives(graph, settings.popularity_power),
    "in-batch": lambda settings, graph, _: negatives.InBatchNegatives(graph),
    "dynamic": lambda settings, graph, _: negatives.DynamicNegatives(graph, settings.candidates),
    "irgan": _irgan,
    "sd-gar": _sdgar,
}

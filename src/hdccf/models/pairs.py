"""Models over pairs: a net that scores, a source of negatives and a loss, put together.

So BPR, PMF, SVD++, NeuMF, LightGCN and sampled softmax differ in their net and their loss only, and each
takes negatives from any source.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional

from hdccf import losses
from hdccf.data.sampling import Pairs, PairSampler
from hdccf.losses.diagnostics import describe_negatives
from hdccf.losses.negatives import NegativeSet
from hdccf.models.base import Objective, weighted_mean
from hdccf.models.negatives import Draws, NegativeSource, Request
from hdccf.models.scoring import Scorer
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup

Squares = Callable[[], Float[Tensor, ""]]


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

    def scorer(self) -> Scorer:
        """All pairs, without gradients, for ranking."""
        ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


LogWeights = Float[Tensor, "b s"] | None
"""log of how much each negative counts: 0 is once, −inf leaves it out; None counts all once."""

Compare = Callable[[Int64[Tensor, " b"], Int64[Tensor, " b"], Int64[Tensor, "b s"]], PairScores]

PairLoss = Callable[[Float[Tensor, " b"], Float[Tensor, "b s"], LogWeights], Float[Tensor, " b"]]


class PairModel(nn.Module):
    """A net trained on pairs; the trainer does the rest."""

    process_group: ProcessGroup = SINGLE_PROCESS

    def __init__(
        self,
        net: PairNet,
        source: NegativeSource,
        loss: PairLoss,
        sampler: PairSampler,
        *,
        negatives: int,
        l2: float = 0.0,
        correct_chances: bool = False,
        group: str = "net",
        numbers_a_step: int | None = None,
    ) -> None:
        super().__init__()
        self.group = group
        self.numbers_a_step = numbers_a_step
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

    def batches(self, generator: torch.Generator) -> Iterator[Pairs]:
        yield from self.sampler.epoch(generator)

    def objectives(
        self, batch: Pairs, generator: torch.Generator, parts: dict[str, Compare] | None = None
    ) -> Iterator[Objective]:
        """The net's; or those of its parts, by the group that each drives, on the same negatives."""
        request = self._request(batch)
        self.source.prepare(request, generator)
        draws = self.source.draw(request, generator)
        for group, compare in ({self.group: self.net.compare} if parts is None else parts).items():
            yield self._objective(batch, draws, compare, group)
        yield from self.source.objectives(request, generator)

    def _objective(self, batch: Pairs, draws: Draws, compare: Compare, group: str) -> Objective:
        # Drawn for all pairs of the batch, whoever scores them: of these a process of a group takes its own.
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

    def _request(self, batch: Pairs) -> Request:
        return Request(batch.users, batch.items, self.negatives, self._score, self.net.scorer)

    @torch.no_grad()
    def _score(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b s"]) -> Float[Tensor, "b s"]:
        return self.net.score_rows(users, items)

    @torch.no_grad()
    def diagnose(self, batch: Pairs) -> dict[str, float]:
        # A generator of its own, as looking must not change what training draws.
        generator = torch.Generator(batch.users.device).manual_seed(0)
        draws = self.source.draw(self._request(batch), generator)
        scores = self._score(batch.users, draws.items)
        log_weights = self._log_weights(draws, scores)
        if log_weights is None:
            log_weights = torch.zeros_like(scores)
        none = scores.new_zeros(len(scores), 0)
        return describe_negatives(NegativeSet(scores, log_weights, None, none, none.bool()), temperature=1.0)

    def scorer(self) -> Scorer:
        return self.net.scorer()


# -- losses of a positive and its negatives ------------------------------------------------------------------


def pairwise_loss(
    positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
) -> Float[Tensor, " b"]:
    """BPR, the mean over the negatives: −log σ(s⁺ − s⁻)."""
    each = losses.bpr_loss(positive.unsqueeze(1), negative)
    if log_weights is None:
        return each.mean(1)
    weights = log_weights.exp()
    return (each * weights).sum(1) / weights.sum(1).clamp_min(torch.finfo(weights.dtype).tiny)


def softmax_loss(temperature: float) -> PairLoss:
    """−log of the positive's share among itself and its negatives, at a temperature."""

    def loss(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        negatives = losses.log_negative_score(negative, log_weights, temperature=temperature)
        return losses.contrastive_loss(positive, negatives, None, temperature=temperature)

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
    ones = losses.squared_error(positive, torch.ones_like(positive))
    return ones + _sum_of(losses.squared_error(negative, torch.zeros_like(negative)), log_weights)


def sigmoid_of(loss: PairLoss) -> PairLoss:
    """The same loss of σ(score)."""

    def of_sigmoid(
        positive: Float[Tensor, " b"], negative: Float[Tensor, "b s"], log_weights: LogWeights
    ) -> Float[Tensor, " b"]:
        return loss(positive.sigmoid(), negative.sigmoid(), log_weights)

    return of_sigmoid


def _sum_of(each: Float[Tensor, "b s"], log_weights: LogWeights) -> Float[Tensor, " b"]:
    return (each if log_weights is None else each * log_weights.exp()).sum(1)

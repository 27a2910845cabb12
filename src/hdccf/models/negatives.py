"""Negative samplers of models over pairs: uniform, by popularity, in-batch and dynamic.

A source draws negatives for each positive of a batch. Some need the data alone, some the model's present
scores, and some learn beside it and yield objectives of their own (IRGAN, SD-GAR).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from hdccf.data.graph import Graph
from hdccf.models.base import Candidates, Items, Objective, Scorer, Scores, Users

# Redrawing ends soon where a user has few of what is drawn; for the rest the draw is exact.
_ROUNDS = 5
# As many at once cost little more than one, and most rounds are saved.
_TRIES = 4


class Request(NamedTuple):
    """The positives of a batch, how many negatives each, and the model's present score of any pair."""

    users: Users
    items: Items
    size: int
    score: Callable[[Users, Candidates], Scores]
    """Without gradients; a source that does not look at the model never calls it."""
    scorer: Callable[[], Scorer]
    """The model's present scores of whole rows, for a source that needs every item."""


class Draws(NamedTuple):
    """Negatives of each positive."""

    items: Int64[Tensor, "b s"]
    log_chance: Float[Tensor, "b s"] | None = None
    """log of how many times likelier than uniformly each was drawn; None where all are alike."""
    valid: Bool[Tensor, "b s"] | None = None
    """False where a draw is no negative and has to be left out; None where all are."""

    def of(self, rows: slice) -> "Draws":
        return Draws(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


class NegativeSource(nn.Module, ABC):
    """Draws the negatives of a model over pairs; by default it has nothing to learn."""

    least_batch = 1
    """Fewer pairs than this in a batch leave nothing to draw."""
    by_user = False
    """Whether drawing costs by the user and not by the pair, so that a batch should hold whole users."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters that the source's own objectives drive."""
        return {}

    def prepare(self, request: Request, generator: torch.Generator) -> None:
        """What changes the source without gradients, before a batch draws; drawing changes nothing."""

    @abstractmethod
    def draw(self, request: Request, generator: torch.Generator) -> Draws: ...

    def objectives(self, request: Request, generator: torch.Generator) -> Iterator[Objective]:
        """The source's own losses, after the model's step."""
        return iter(())

    def graph(self, like: Tensor) -> Graph:
        """The training pairs on the device of the batch."""
        self._graph = self._graph.to(like.device)
        return self._graph


class UniformNegatives(NegativeSource):
    """`uniform`: any item that the user has not had, all alike."""

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        items_of = self.graph(request.users).items_of
        return Draws(items_of.draw_others(request.users, request.size, generator))


class PopularityNegatives(NegativeSource):
    """`popularity`: items that the user has not had, ∝ (their number of users)^power."""

    cumulative: Tensor
    log_chances: Tensor

    def __init__(self, graph: Graph, power: float) -> None:
        super().__init__(graph)
        # Items without users keep a chance where the power is 0, and have none otherwise, as 0^power says.
        weights = graph.users_of.degrees.double().pow(power)
        self.register_buffer("cumulative", weights.cumsum(0) / weights.sum(), persistent=False)
        relative = weights / weights.mean()
        self.register_buffer("log_chances", relative.log().float(), persistent=False)

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        users = request.users
        items = redrawn(
            lambda asked: self._any(asked.shape, generator),
            lambda asked: self._new_to(asked, generator),
            self.graph(users),
            users,
            request.size,
        )
        return Draws(items, self.log_chances[items])

    def _any(self, shape: torch.Size, generator: torch.Generator) -> Int64[Tensor, "*n"]:
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=self.cumulative.device)
        return torch.searchsorted(self.cumulative, uniform, right=True).clamp_(max=len(self.cumulative) - 1)

    def _new_to(self, users: Int64[Tensor, " n"], generator: torch.Generator) -> Int64[Tensor, " n"]:
        distinct, rows = torch.unique(users, return_inverse=True)
        chances = self.log_chances.exp().repeat(len(distinct), 1)
        return draw_unobserved(chances, distinct, rows, self.graph(users), generator)


class InBatchNegatives(NegativeSource):
    """`in-batch`: the positives of the batch's other pairs, so popular items come ∝ their frequency.

    Nothing is drawn from the catalogue, and items of the user's history are left out rather than drawn again.
    """

    least_batch = 2

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        users, items = request.users, request.items
        n, device = len(users), users.device
        # Any place but one's own: one of the n − 1 that follow, around the end.
        steps = torch.randint(1, max(n, 2), (n, request.size), generator=generator, device=device)
        drawn = items[(torch.arange(n, device=device)[:, None] + steps) % n]
        graph = self.graph(users)
        observed = graph.items_of.contains(users.repeat_interleave(request.size), drawn.flatten())
        relative = graph.users_of.degrees[drawn].float() * (graph.n_items / graph.n_pairs)
        return Draws(drawn, relative.log(), ~observed.view_as(drawn))


class DynamicNegatives(NegativeSource):
    """`dynamic` (Zhang et al. 2013): of N uniform candidates the one that the model scores highest."""

    def __init__(self, graph: Graph, candidates: int) -> None:
        super().__init__(graph)
        self.candidates = candidates

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        users, size = request.users, request.size
        items_of = self.graph(users).items_of
        candidates = items_of.draw_others(users, size * self.candidates, generator)
        scores = request.score(users, candidates).view(len(users), size, self.candidates)
        best = scores.argmax(2, keepdim=True)
        return Draws(candidates.view_as(scores).gather(2, best).squeeze(2))


def redrawn(
    draw: Callable[[Int64[Tensor, " n"]], Int64[Tensor, " n"]],
    exactly: Callable[[Int64[Tensor, " n"]], Int64[Tensor, " n"]],
    graph: Graph,
    users: Int64[Tensor, " b"],
    size: int,
) -> Int64[Tensor, "b size"]:
    """Draws `size` items for each user, again and again where one falls on a training pair.

    Both callables take users, one a draw, and give an item each: `draw` without regard to what the user has
    had, `exactly` from the rest only, for those whom `draw` keeps missing.
    """
    asked = users.repeat_interleave(size)
    items = draw(asked)
    open_ = graph.items_of.contains(asked, items).nonzero().squeeze(1)
    for _ in range(_ROUNDS):
        if len(open_) == 0:
            break
        again = asked[open_].repeat_interleave(_TRIES)
        tried = draw(again)
        new = ~graph.items_of.contains(again, tried).view(-1, _TRIES)
        first = new.byte().argmax(1, keepdim=True)
        items[open_] = tried.view(-1, _TRIES).gather(1, first).squeeze(1)
        open_ = open_[~new.any(1)]
    if len(open_):
        graph.items_of.refuse_full(asked[open_])
        items[open_] = exactly(asked[open_])
    return items.view(len(users), size)


def draw_unobserved(
    chances: Float[Tensor, "u items"],
    users: Int64[Tensor, " u"],
    rows: Int64[Tensor, " n"],
    graph: Graph,
    generator: torch.Generator,
) -> Int64[Tensor, " n"]:
    """An item for each of the rows, by chances over the catalogue without the history of the row's user."""
    had = graph.items_of.within(users, None)[:2]
    chances[had] = 0.0
    # A user with every item that has a chance is left with those that have none.
    chances[chances.sum(1) == 0] = 1.0
    chances[had] = 0.0
    return pick(cumulated(chances), rows, generator)


# Rows are cumulated end to end on one axis, row r between r and r + 1, so that one binary search of r plus a
# uniform number finds both the row and the column. Nothing is padded where rows are drawn from unequally.


def cumulated(chances: Float[Tensor, "r c"]) -> Float64[Tensor, "r c"]:
    """Ends of the columns' stretches; rows need a positive sum and not one of 1."""
    ends = chances.double().cumsum(1)
    ends /= ends[:, -1:].clone()
    return ends.add_(torch.arange(len(ends), device=ends.device).unsqueeze(1))


def pick(
    ends: Float64[Tensor, "r c"], rows: Int64[Tensor, " n"], generator: torch.Generator
) -> Int64[Tensor, " n"]:
    """A column of each of the rows, by its chances; never one without any."""
    uniform = torch.rand(rows.shape, generator=generator, dtype=torch.float64, device=rows.device)
    places = torch.searchsorted(ends.flatten(), uniform.add_(rows), right=True)
    # Rounding could carry a number just below a row's end to it.
    return places.sub_(rows * ends.shape[1]).clamp_(max=ends.shape[1] - 1)

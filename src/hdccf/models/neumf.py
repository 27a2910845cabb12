"""NeuMF: a factorisation and a perceptron over pairs, added up in one logit (He et al., 2017)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from hdccf.config import MAX_DIM, Choice, Real, Space, Whole, recency
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.kernels.embedding import can_look_up, looked_up_dots, row_dots
from hdccf.kernels.pairwise import tiled_scores
from hdccf.losses.contrastive import cross_entropy_loss
from hdccf.models.base import Candidates, Columns, Items, Model, Objective, Scorer, Scores, Users
from hdccf.models.layers import Table
from hdccf.models.pairs import Compare, PairModel, PairScores, Squares, squares_of
from hdccf.models.settings import PairSettings


class NeuMF(PairSettings):
    """Neural matrix factorisation (He et al., 2017): GMF and a perceptron, or one of them alone.

    `hdccf models neumf` lists every setting with its default.

    Examples
    --------
    >>> NeuMF(embedding_dim=32).embedding_dim
    32
    """

    model: ClassVar[str] = "neumf"

    # The perceptron scores every pair of a full ranking by itself: that costs more than an epoch.
    evaluate_every: int = Field(default=5, ge=1)
    """Epochs between evaluations on the validation part."""
    patience: int = Field(default=4, ge=1)
    """Evaluations without a new best before training stops; none counts before the best is above chance."""
    embedding_dim: int = Field(default=64, ge=1, le=MAX_DIM)
    """f, the predictive factors of each branch: GMF's vectors have f numbers, the tower's 2f, and its layers
    4f (both vectors side by side), 2f and f."""
    batch_size: int = Field(default=256, ge=1)
    """Positive pairs in a step; each comes with its negatives."""
    negatives: int = Field(default=4, ge=1)
    """Zeros drawn against each one, anew in every step."""
    branch: Literal["neumf", "gmf", "mlp"] = "neumf"
    """`neumf` adds both up; `gmf` or `mlp` trains the one alone."""
    pretrain_epochs: int = Field(default=0, ge=0)
    """Epochs at the start in which each branch learns alone, before their heads are halved and joined."""

    space: ClassVar[Space] = Space(
        {
            # The published sizes: its tower is four times as wide, and larger ones overfit.
            "embedding_dim": Choice((8, 16, 32, 64)),
            "learning_rate": Real(1e-4, 5e-3, log=True),
            "batch_size": Choice((256, 512, 1024, 2048)),
            "negatives": Whole(1, 8, log=True),
            "l2": Real(1e-8, 1e-3, log=True),
            "pretrain_epochs": Choice((0, 5, 20)),
            **recency(),
        }
    )

    @model_validator(mode="after")
    def _two_are_joined(self) -> "NeuMF":
        if self.pretrain_epochs and self.branch != "neumf":
            raise ValueError(
                f"pretrain_epochs={self.pretrain_epochs} is for joining two branches; "
                f"with branch={self.branch!r} set it to 0"
            )
        return self


Logits = tuple[Scores, Squares]
"""Those of a batch, and the sum of the squares of the vectors that they took."""


class Branch(nn.Module, ABC):
    """One of NeuMF's two: vectors of its own, and a logit of its own for each pair, h·features + bias.

    What depends on the user or on the item alone is computed once for each, not for each pair.
    """

    WIDTH: ClassVar[int]
    """Numbers in a vector, in predictive factors."""

    def __init__(
        self, settings: NeuMF, train: Interactions, *, head_inputs: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        dim, std, sparse = self.WIDTH * settings.embedding_dim, settings.init_std, settings.sparse_updates
        self.users = Table(train.n_users, dim, std=std, sparse=sparse, generator=generator)
        self.items = Table(train.n_items, dim, std=std, sparse=sparse, generator=generator)
        limit = math.sqrt(3 / head_inputs)
        self.head = nn.Parameter(_uniform(limit, settings.embedding_dim, generator=generator))
        # Of two branches there are two, where their sum would do: each needs one while it learns alone.
        self.bias = nn.Parameter(torch.zeros(()))

    def logits(self, users: Users, columns: Candidates) -> Logits:
        """Of each user with items of their own, from the tables, with gradients."""
        p, q = self.users.of(users).embedding, self.items.of(columns).embedding
        return self.rows(self.of_users(p), self.of_items(q)), squares_of(p, q)

    @abstractmethod
    def of_users(self, vectors: Tensor) -> Tensor:
        """What the logits take from the users' vectors."""

    @abstractmethod
    def of_items(self, vectors: Tensor) -> Tensor:
        """What the logits take from the items' vectors."""

    @abstractmethod
    def rows(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "b c d"]) -> Scores:
        """The logits of each user with items of their own."""

    @abstractmethod
    def block(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "c d"]) -> Scores:
        """The logits of every user with every item, in memory that does not grow with the features."""


class GMF(Branch):
    """h·(p ⊙ q) = (h ⊙ p)·q."""

    WIDTH = 1

    def logits(self, users: Users, columns: Candidates) -> Logits:
        if self.users.sparse or not can_look_up(self.items.embedding, columns):
            return super().logits(users, columns)
        dots, squares = looked_up_dots(self.users.embedding, self.items.embedding, users, columns, self.head)
        return dots + self.bias, lambda: squares

    def of_users(self, vectors: Tensor) -> Tensor:
        return vectors * self.head

    def of_items(self, vectors: Tensor) -> Tensor:
        return vectors

    def rows(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "b c d"]) -> Scores:
        return row_dots(of_users, of_items) + self.bias

    def block(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "c d"]) -> Scores:
        return torch.addmm(self.bias, of_users, of_items.T)


class MLP(Branch):
    """h·relu(W₂ relu(W₁ [p ‖ q] + b₁) + b₂), with W₁ [p ‖ q] = W_p p + W_q q."""

    WIDTH = 2

    def __init__(
        self, settings: NeuMF, train: Interactions, *, head_inputs: int, generator: torch.Generator
    ) -> None:
        super().__init__(settings, train, head_inputs=head_inputs, generator=generator)
        factors, wide = settings.embedding_dim, self.WIDTH * settings.embedding_dim
        first, second = math.sqrt(6 / (2 * wide + wide)), math.sqrt(6 / (wide + factors))
        self.user_weight = nn.Parameter(_uniform(first, wide, wide, generator=generator))
        self.item_weight = nn.Parameter(_uniform(first, wide, wide, generator=generator))
        self.first_bias = nn.Parameter(torch.zeros(wide))
        self.second_weight = nn.Parameter(_uniform(second, factors, wide, generator=generator))
        self.second_bias = nn.Parameter(torch.zeros(factors))

    def of_users(self, vectors: Tensor) -> Tensor:
        return functional.linear(vectors, self.user_weight, self.first_bias)

    def of_items(self, vectors: Tensor) -> Tensor:
        return functional.linear(vectors, self.item_weight)

    def rows(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "b c d"]) -> Scores:
        return _tower(of_users.unsqueeze(1), of_items, *self._layers())

    def block(self, of_users: Float[Tensor, "b d"], of_items: Float[Tensor, "c d"]) -> Scores:
        depth = len(self.first_bias) + len(self.second_bias)
        return tiled_scores(_tower, [of_users], [of_items], self._layers(), depth)

    def _layers(self) -> list[Tensor]:
        return [self.second_weight, self.second_bias, self.head, self.bias]


def _tower(
    of_users: Tensor, of_items: Tensor, weight: Tensor, weight_bias: Tensor, head: Tensor, bias: Tensor
) -> Tensor:
    hidden = functional.linear((of_users + of_items).relu_(), weight, weight_bias).relu_()
    return hidden @ head + bias


def _uniform(limit: float, *shape: int, generator: torch.Generator) -> Tensor:
    return limit * (2 * torch.rand(shape, generator=generator) - 1)


class Branches(nn.Module):
    """The logit of a pair: those of the branches, added up; averaged while each of them learns alone.

    h·[a ‖ b] is h_a·a + h_b·b. So the head of both is the two heads, and joining branches that were trained
    alone, h = [½h_a ‖ ½h_b], is halving both and no longer averaging: scores stay as they are.
    """

    has_free_vectors = False
    item_tables: tuple[str, ...] = ()
    share: Tensor

    def __init__(self, branches: dict[str, Branch], *, apart: bool = False) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)
        self.register_buffer("share", torch.tensor(1 / len(branches) if apart else 1.0))

    def named(self) -> dict[str, Branch]:
        return cast("dict[str, Branch]", dict(self.branches.items()))

    def compare(
        self, users: Users, items: Items, negatives: Candidates, only: str | None = None
    ) -> PairScores:
        """With all branches; or with only one of them, as if there were no other."""
        # One look-up for ones and zeros, as each costs a gradient as large as the table.
        columns = torch.cat([items.unsqueeze(1), negatives], dim=1)
        logits_of = self._all if only is None else self.named()[only].logits
        logits, squares = logits_of(users, columns)
        return PairScores(logits[:, 0], logits[:, 1:], squares)

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self._all(users, items)[0]

    def _all(self, users: Users, items: Candidates) -> Logits:
        logits, squares = zip(*(branch.logits(users, items) for branch in self.named().values()), strict=True)
        return self.share * sum(logits), lambda: torch.stack([each() for each in squares]).sum()

    @torch.no_grad()
    def join(self) -> None:
        """Makes one net of branches that were trained alone: each head times its share."""
        for branch in self.named().values():
            branch.head.mul_(self.share)
            branch.bias.mul_(self.share)
        self.share.fill_(1.0)

    def scorer(self) -> Scorer:
        return BranchesScorer(self)


class BranchesScorer:
    """Every branch's users and items, computed once; a block then costs what depends on both."""

    @torch.no_grad()
    def __init__(self, net: Branches) -> None:
        self.share = net.share.clone()
        self.sides = [
            (branch, branch.of_users(branch.users.embedding), branch.of_items(branch.items.embedding))
            for branch in net.named().values()
        ]
        self.n_users, self.n_items = len(self.sides[0][1]), len(self.sides[0][2])

    @torch.no_grad()
    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        blocks = [
            branch.block(of_users[users], of_items if items is None else of_items[items])
            for branch, of_users, of_items in self.sides
        ]
        return self.share * torch.stack(blocks).sum(0)

    @torch.no_grad()
    def score_rows(self, users: Users, items: Candidates) -> Scores:
        rows = [branch.rows(of_users[users], of_items[items]) for branch, of_users, of_items in self.sides]
        return self.share * torch.stack(rows).sum(0)


class Pretrained(PairModel):
    """For its first steps each branch learns alone, with its own head; then they are joined, once.

    The steps are counted in a buffer, so that a resumed run continues at the right one.
    """

    settings: NeuMF
    net: Branches
    steps: Tensor

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def alone(self) -> int:
        """Steps in which the branches learn alone."""
        return self.settings.pretrain_epochs * self.n_batches

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        # Joined, they start with moments of their own: those of a branch alone are of another loss.
        alone = {name: list(branch.parameters()) for name, branch in self.net.named().items()}
        return {**alone, **super().groups}

    def objectives(
        self, batch: PairBatch, generator: torch.Generator, parts: dict[str, Compare] | None = None
    ) -> Iterator[Objective]:
        if int(self.steps) >= self.alone:
            yield from super().objectives(batch, generator)
            return
        alone: dict[str, Compare] = {name: partial(self.net.compare, only=name) for name in self.net.named()}
        yield from super().objectives(batch, generator, alone)
        self.steps += 1
        if int(self.steps) == self.alone:
            self.net.join()


BRANCHES: dict[str, type[GMF] | type[MLP]] = {"gmf": GMF, "mlp": MLP}


def build_neumf(settings: NeuMF, train: Interactions, generator: torch.Generator) -> Model:
    names = list(BRANCHES) if settings.branch == "neumf" else [settings.branch]
    # A branch that learns alone has a head over its own features only.
    heads = len(names) if settings.pretrain_epochs == 0 else 1
    inputs = heads * settings.embedding_dim
    branches: dict[str, Branch] = {
        name: BRANCHES[name](settings, train, head_inputs=inputs, generator=generator) for name in names
    }
    net = Branches(branches, apart=settings.pretrain_epochs > 0)
    products = 6 * settings.embedding_dim**2 if "mlp" in branches else 0  # 2f × 2f and 2f × f
    kind = Pretrained if settings.pretrain_epochs else PairModel
    given = settings, Graph.of(train), train, cross_entropy_loss, generator
    return kind(net, *given, products_per_pair=products)

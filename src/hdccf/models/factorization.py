"""Matrix factorisations: PMF, BPR and sampled softmax, which differ in the loss of a pair.

On blocks, and with user vectors made of histories, BPR and sampled softmax are HDCCF with all of its parts
switched off but the loss. They are built as that, so that a comparison with HDCCF compares the parts alone.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from hdccf.config import (
    HISTORY,
    MIN_TEMPERATURE,
    SIZES,
    Choice,
    Dimension,
    Real,
    Space,
    Variant,
    Whole,
    recency,
)
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.kernels.embedding import can_look_up, looked_up_dots, row_dots
from hdccf.losses.contrastive import PairLoss, pairwise_loss, sigmoid_of, softmax_loss, squared_loss
from hdccf.losses.diagnostics import bpr_shares, softmax_shares
from hdccf.models.base import Candidates, Items, Model, Scorer, Scores, Users, VectorScorer
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.layers import Table, start_spectral
from hdccf.models.pairs import PairModel, PairScores, Shares, Squares, squares_of
from hdccf.models.settings import BlockSettings, PairSettings
from hdccf.similarity import SIMILARITIES, Dot, Vectors

_FREE = ("vectors", "free")
_BPR: dict[str, Dimension] = {
    # Histories are cut in blocks, which take no l2 of a batch's own vectors.
    "vectors": Variant(
        {"free": {}, "history": {"user_vector": "history", "sampler": "block", "l2": 0.0}}, time=True
    ),
    "first vectors": Variant({"spectral": {}, "random": {"start": "random"}}),
    **HISTORY,
    **recency(when=_FREE),
    "embedding_dim": SIZES,
    "learning_rate": Real(3e-4, 2e-2, log=True),
    "batch_size": Choice((512, 1024, 2048, 4096), when=_FREE),
    "l2": Real(1e-7, 1e-2, log=True, when=_FREE),
}


class PMF(PairSettings):
    """Probabilistic matrix factorisation (Salakhutdinov and Mnih, 2007), with drawn zeros.

    `hdccf models pmf` lists every setting with its default.

    Examples
    --------
    >>> PMF(negatives=8).negatives
    8
    """

    model: ClassVar[str] = "pmf"

    negatives: int = Field(default=4, ge=1)
    """Zeros drawn against each one: with ones only, every score becomes one."""
    l2: float = Field(default=1e-3, ge=0)
    """λ: the precision of the prior of the vectors, relative to the noise."""
    link: Literal["identity", "sigmoid"] = "identity"
    """g of (r − g(p·q))²."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 1e-2, log=True),
            "batch_size": Choice((512, 1024, 2048, 4096)),
            "negatives": Whole(1, 8, log=True),
            "l2": Real(1e-5, 1e-1, log=True),
            "link": Choice(("identity", "sigmoid")),
            **recency(),
        }
    )


class _OnBlocksToo(PairSettings, BlockSettings):
    """Pairs with drawn negatives, or blocks."""

    sampler: Literal["uniform", "popularity", "in-batch", "dynamic", "irgan", "sd-gar", "block"] = "uniform"  # type: ignore[assignment]
    """Where the negatives come from: `uniform`; `popularity`^power; `in-batch`, the other pairs' items;
    `dynamic`, the best scored of some candidates; the generators of `irgan` and `sd-gar`, which learn;
    `block`, which scores users × items once and takes every observed pair in it as a positive."""
    user_vector: Literal["free", "history"] = "free"
    """`free` learns a vector a user; `history` makes it from the user's recent items (blocks only)."""

    @model_validator(mode="after")
    def _histories_are_cut_in_blocks(self) -> "_OnBlocksToo":
        if self.user_vector == "history" and self.sampler != "block":
            raise ValueError(f"user_vector='history' cuts blocks; set sampler to block, not {self.sampler!r}")
        if self.sampler == "block" and self.l2:
            raise ValueError("l2 pulls at a batch's own vectors, and a block has all items; use weight_decay")
        return self


class BPR(_OnBlocksToo):
    """Bayesian personalised ranking (Rendle et al., 2009): the positive above one unobserved item.

    `hdccf models bpr` lists every setting with its default.

    Examples
    --------
    >>> BPR(sampler="dynamic", negatives=4).sampler
    'dynamic'
    """

    model: ClassVar[str] = "bpr"

    init_std: float = Field(default=0.1, gt=0)
    """Spread of the first vectors: with small ones the first epochs only learn popularity."""
    start: Literal["random", "spectral"] = "spectral"
    """The first vectors: from the spectrum of the training pairs, which takes a tenth of a second and saves
    most epochs, or `random`, as published."""

    space: ClassVar[Space] = Space(_BPR)


class SSM(_OnBlocksToo):
    """Sampled softmax (Wu et al., 2022): the positive's share among itself and uniform negatives.

    `hdccf models ssm` lists every setting with its default.

    Examples
    --------
    >>> SSM(temperature=0.2).temperature
    0.2
    """

    model: ClassVar[str] = "ssm"

    learning_rate: float = Field(default=4e-3, gt=0)
    """Step size; too large and the loss jumps, too small and early stopping comes before the best."""
    sampler: Literal["uniform", "popularity", "in-batch", "dynamic", "irgan", "sd-gar", "block"] = "block"
    """Where the negatives come from: `block`, all items of a block, for all positives of its users at once;
    `uniform`, some for each positive (as published), at many times the cost; or another source."""
    start: Literal["random", "spectral"] = "spectral"
    """The first vectors: from the spectrum of the training pairs, which takes a tenth of a second and saves
    most epochs, or `random`, as published."""
    init_std: float = Field(default=0.25, gt=0)
    """Spread of the first vectors; with a cosine it sets how fast their directions turn."""
    negatives: int = Field(default=256, ge=1)
    """Items drawn against each positive, but on blocks: hundreds make hard ones likely to be among them."""
    temperature: float = Field(default=0.15, ge=MIN_TEMPERATURE)
    """τ: smaller looks at the hardest negatives only. Denser data takes a larger one."""
    similarity: Literal["cosine", "popular", "dot"] = "cosine"
    """Of the two vectors; `popular` (blocks only) adds a learned popularity of the item to the cosine."""
    correct_chances: bool = False
    """Weigh negatives by how much too often they are drawn (log Q correction); off is as published."""

    @property
    def softmax_temperature(self) -> float | None:
        return self.temperature

    @model_validator(mode="after")
    def _popularity_is_learnt_on_blocks(self) -> "SSM":
        if self.similarity == "popular" and (self.sampler, self.user_vector) != ("block", "free"):
            raise ValueError(
                "similarity='popular' is trained on blocks with free vectors; set sampler to block and "
                "user_vector to free"
            )
        return self

    space: ClassVar[Space] = Space(
        {
            "vectors": Variant({"free": {}, "history": {"user_vector": "history"}}, time=True),
            "first vectors": Variant({"spectral": {}, "random": {"start": "random", "init_std": 0.1}}),
            **HISTORY,
            **recency(when=_FREE),
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 2e-2, log=True),
            "block_users": Choice((16, 32, 64, 128, 256)),
            "weight_decay": Real(1e-8, 1e-3, log=True),
            "temperature": Real(0.05, 0.5, log=True),
        }
    )


class Factors(nn.Module):
    """A vector a user and a vector an item; a pair's score is their dot product or cosine."""

    has_free_vectors = True
    item_tables: tuple[str, ...] = ("items.embedding",)

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        *,
        similarity: str = "dot",
        std: float = 0.01,
        sparse: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.users = Table(n_users, dim, std=std, sparse=sparse, generator=generator)
        self.items = Table(n_items, dim, std=std, sparse=sparse, generator=generator)
        self.similarity = SIMILARITIES[similarity]()

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
        # One look-up for the positive and its negatives, as each costs a gradient as large as the table.
        columns = torch.cat([items.unsqueeze(1), negatives], dim=1)
        if self._is_dense(columns):
            scores, squares = self._product(users, columns)
        elif self._is_compiled(columns):
            scores, total = looked_up_dots(self.users.embedding, self.items.embedding, users, columns)
            squares = lambda: total  # noqa: E731
        else:
            p, q = self.users.of(users.unsqueeze(1)), self.items.of(columns)
            scores, squares = self.similarity.matching(p, q), squares_of(p.embedding, q.embedding)
        return PairScores(scores[:, 0], scores[:, 1:], squares)

    def _is_dense(self, columns: Candidates) -> bool:
        """Whether scores of the whole catalogue are no more numbers than the vectors of the columns."""
        n_items, dim = self.items.embedding.shape
        return not self.items.sparse and n_items <= dim * columns.shape[1]

    def _is_compiled(self, columns: Candidates) -> bool:
        plain = not self.items.sparse and isinstance(self.similarity, Dot)
        return plain and can_look_up(self.items.embedding, columns)

    def _product(self, users: Users, columns: Candidates) -> tuple[Scores, Squares]:
        """The same from one product with all items, many times faster than a vector for each column."""
        p, every = self.users.of(users), self.items.all()

        def squares() -> Tensor:
            lengths = every.embedding.square().sum(1)
            return p.embedding.square().sum() + lengths[columns].sum()

        return self.similarity.all_pairs(p, every).gather(1, columns), squares

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.similarity.matching(self.users.of(users.unsqueeze(1)), self.items.of(items))

    def scorer(self) -> Scorer:
        return VectorScorer(self.similarity, self.users.all(), self.items.all())


class BiasedFactors(nn.Module):
    """s = p·q + b_i.

    What the penalty sees is ½(‖p‖² + ‖q‖² + b²) of a positive and the mean of ½(‖q‖² + b²) over its
    negatives, as both papers' authors have it: so λ means the same for any number of negatives.
    """

    has_free_vectors = False
    item_tables: tuple[str, ...] = ()

    def __init__(
        self,
        n_users: int,
        n_items: int,
        dim: int,
        *,
        std: float,
        sparse: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.factors = Factors(n_users, n_items, dim, std=std, sparse=sparse, generator=generator)
        self.bias = nn.Parameter(torch.zeros(n_items))

    def compare(self, users: Users, items: Items, negatives: Candidates) -> PairScores:
        columns = torch.cat([items.unsqueeze(1), negatives], 1)
        p, q = self.factors.users.of(users).embedding, self.factors.items.of(columns).embedding
        bias = self.bias[columns]
        scores = row_dots(p, q) + bias
        shares = torch.full(
            (columns.shape[1],), (0.5 / negatives.shape[1]) ** 0.5, dtype=p.dtype, device=p.device
        )
        shares[0] = 0.5**0.5
        squares = squares_of(0.5**0.5 * p, shares.unsqueeze(1) * q, shares * bias)
        return PairScores(scores[:, 0], scores[:, 1:], squares)

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        return self.factors.score_rows(users, items) + self.bias[items]

    def score_all(self, users: Users) -> Scores:
        """Every item for each user, with gradients."""
        p, q = self.factors.users.of(users), self.factors.items.all()
        return torch.addmm(self.bias, p.embedding, q.embedding.T)

    @torch.no_grad()
    def scorer(self) -> Scorer:
        p, q = self.factors.users.all().embedding, self.factors.items.all().embedding
        users = torch.cat([p, p.new_ones(len(p), 1)], 1)
        items = torch.cat([q, self.bias.unsqueeze(1)], 1)
        return VectorScorer(self.factors.similarity, Vectors(users, users), Vectors(items, items))


def biased_factors(settings: PairSettings, graph: Graph, generator: torch.Generator) -> BiasedFactors:
    """A player of the size that the settings say."""
    return BiasedFactors(
        graph.n_users,
        graph.n_items,
        settings.embedding_dim,
        std=settings.init_std,
        sparse=settings.sparse_updates,
        generator=generator,
    )


def build_pmf(settings: PMF, train: Interactions, generator: torch.Generator) -> Model:
    loss = squared_loss if settings.link == "identity" else sigmoid_of(squared_loss)
    return _over_pairs(settings, train, loss, "dot", generator)


def build_bpr(settings: BPR, train: Interactions, generator: torch.Generator) -> Model:
    if settings.sampler == "block":
        return over_blocks(settings, train, generator, loss="bpr", similarity="dot")
    shares = bpr_shares if settings.sampler == "uniform" else None
    return _over_pairs(settings, train, pairwise_loss, "dot", generator, shares=shares)


def build_ssm(settings: SSM, train: Interactions, generator: torch.Generator) -> Model:
    if settings.sampler == "block":
        own = {"temperature": settings.temperature, "similarity": settings.similarity}
        return over_blocks(settings, train, generator, loss="contrastive", **own)
    stated = f"sampled softmax: softmax of f/τ, τ = {settings.temperature:g}"
    shares = partial(softmax_shares, temperature=settings.temperature, stated=stated)
    return _over_pairs(
        settings,
        train,
        softmax_loss(settings.temperature),
        settings.similarity,
        generator,
        correct_chances=settings.correct_chances,
        shares=shares if settings.sampler == "uniform" else None,
    )


def _over_pairs(
    settings: PairSettings,
    train: Interactions,
    loss: PairLoss,
    similarity: str,
    generator: torch.Generator,
    correct_chances: bool = False,
    shares: Shares | None = None,
) -> PairModel:
    graph = Graph.of(train)
    net = Factors(
        train.n_users,
        train.n_items,
        settings.embedding_dim,
        similarity=similarity,
        std=settings.init_std,
        sparse=settings.sparse_updates,
        generator=generator,
    )
    if isinstance(settings, BlockSettings) and settings.start == "spectral":
        start_spectral(graph, net.users, [net.items], settings.embedding_dim, settings.init_std, generator)
    return PairModel(
        net, settings, graph, train, loss, generator, correct_chances=correct_chances, shares=shares
    )


def over_blocks(
    settings: BlockSettings, train: Interactions, generator: torch.Generator, **own: Any
) -> HDCCFModel:
    """HDCCF's network and sampler with the settings that it shares, and without its own parts."""
    shared = {
        name: getattr(settings, name) for name in type(settings).model_fields if name in HDCCF.model_fields
    }
    plain = {"user_side": 0.0, "frequency_correction": 1.0}
    return HDCCFModel(HDCCF(**{**shared, **plain, **own}), train, generator)

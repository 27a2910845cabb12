"""Matrix factorisations: PMF, BPR and sampled softmax, which differ in the loss of a pair.

On blocks, and with user vectors made of histories, BPR and sampled softmax are HDCCF with all of its parts
switched off but the loss. They are built as that, so that a comparison with HDCCF compares the parts alone.
"""

from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from hdccf.config import HISTORY, SIZES, Choice, Dimension, Real, Space, Variant, Whole, recency
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.losses.diagnostics import bpr_shares, softmax_shares
from hdccf.losses.pairs import PairLoss, pairwise_loss, sigmoid_of, softmax_loss, squared_loss
from hdccf.models.base import Model
from hdccf.models.factors import Factors
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.pairs import PairModel, Shares
from hdccf.models.settings import BlockSettings, PairSettings
from hdccf.models.spectral import start_spectral

_FREE = ("vectors", "free")
_ON_BLOCKS_TOO: dict[str, Dimension] = {
    # Histories are cut in blocks, which take no l2 of a batch's own vectors.
    "vectors": Variant(
        {"free": {}, "history": {"user_vector": "history", "sampler": "block", "l2": 0.0}}, time=True
    ),
    **HISTORY,
    **recency(when=_FREE),
    "embedding_dim": SIZES,
    "learning_rate": Real(3e-4, 2e-2, log=True),
    "batch_size": Choice((512, 1024, 2048, 4096), when=_FREE),
    "l2": Real(1e-7, 1e-2, log=True, when=_FREE),
}


class PMF(PairSettings):
    """Probabilistic matrix factorisation (Salakhutdinov and Mnih, 2007), with drawn zeros."""

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
    """Bayesian personalised ranking (Rendle et al., 2009): the positive above one unobserved item."""

    model: ClassVar[str] = "bpr"

    init_std: float = Field(default=0.1, gt=0)
    """Spread of the first vectors: with small ones the first epochs only learn popularity."""

    space: ClassVar[Space] = Space(_ON_BLOCKS_TOO)


class SSM(_OnBlocksToo):
    """Sampled softmax (Wu et al., 2022): the positive's share among itself and uniform negatives."""

    model: ClassVar[str] = "ssm"

    init_std: float = Field(default=0.1, gt=0)
    """Spread of the first vectors; with a cosine it sets how fast their directions turn."""
    negatives: int = Field(default=256, ge=1)
    """Items drawn against each positive: hundreds make the hard ones likely to be among them."""
    temperature: float = Field(default=0.15, gt=0)
    """τ: smaller looks at the hardest negatives only. Denser data takes a larger one."""
    similarity: Literal["cosine", "popular", "dot"] = "cosine"
    """Of the two vectors; `popular` (blocks only) adds a learned popularity of the item to the cosine."""
    correct_chances: bool = False
    """Weigh negatives by how much too often they are drawn (log Q correction); off is as published."""

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
            **_ON_BLOCKS_TOO,
            "temperature": Real(0.05, 0.5, log=True),
            "negatives": Choice((64, 256, 1024), when=_FREE),
        }
    )


def build_pmf(settings: PMF, train: Interactions, generator: torch.Generator) -> Model:
    loss = squared_loss if settings.link == "identity" else sigmoid_of(squared_loss)
    return _over_pairs(settings, train, loss, "dot", generator)


def build_bpr(settings: BPR, train: Interactions, generator: torch.Generator) -> Model:
    if settings.sampler == "block":
        return _over_blocks(settings, train, generator, loss="bpr", similarity="dot")
    shares = bpr_shares if settings.sampler == "uniform" else None
    return _over_pairs(settings, train, pairwise_loss, "dot", generator, shares=shares)


def build_ssm(settings: SSM, train: Interactions, generator: torch.Generator) -> Model:
    if settings.sampler == "block":
        own = {"temperature": settings.temperature, "similarity": settings.similarity}
        return _over_blocks(settings, train, generator, loss="contrastive", **own)
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


def _over_blocks(
    settings: _OnBlocksToo, train: Interactions, generator: torch.Generator, **own: Any
) -> HDCCFModel:
    shared = {
        name: getattr(settings, name) for name in type(settings).model_fields if name in HDCCF.model_fields
    }
    plain = {"user_side": 0.0, "frequency_correction": 1.0}
    return HDCCFModel(HDCCF(**{**shared, **plain, **own}), train, generator)

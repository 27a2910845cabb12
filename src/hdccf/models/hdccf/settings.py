"""HDCCF's settings, and the presets: ours, the paper's, and the paper's ablations. Knows no torch."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt, field_validator, model_validator

from hdccf.errors import ConfigError
from hdccf.models import load_plugins
from hdccf.models.settings import BlockSettings

if TYPE_CHECKING:
    from hdccf.data.interactions import Interactions
from hdccf.config import (
    HISTORY,
    MAX_DIM,
    MIN_TEMPERATURE,
    SIZES,
    Calibrated,
    Choice,
    Dimension,
    Real,
    Space,
    Variant,
    Whole,
    recency,
)

# Every place of a window is a row of its own, so the few next items do for positives, few users make a large
# block, and an epoch is long. One vector an item does: attention tells by itself what leads to what.
_ATTENTION: dict[str, Any] = {
    "history_encoder": "attention",
    "history_length": 200,
    "history_table": "shared",
    "ahead": 3,
    "epochs": 60,
    "evaluate_every": 1,
    "patience": 5,
    "average_epochs": 2.0,
}

# From the spectrum vectors begin near where they end (decision 10), and should turn slowly.
_SPECTRAL: dict[str, Any] = {"start": "spectral", "init_std": 0.25}
_ATTENTION_START: dict[str, Any] = {
    "embedding_dim": 64,
    "block_users": 16,
    "user_side": 0.0,
    "learning_rate": 2e-3,
    **_SPECTRAL,
}

# Without times negative users cost full ranking on ML-1M (decision 08), so they are left out.
_TIME_BLIND: dict[str, Any] = {
    "user_vector": "free",
    "start": "random",
    "learning_rate": 4e-3,
    "embedding_dim": 64,
    "temperature": 0.12,
    "user_side": 0.0,
}
_TIME_BLIND_FAST: dict[str, Any] = {**_TIME_BLIND, **_SPECTRAL, "temperature": 0.1, "evaluate_every": 2}


class HDCCF(BlockSettings):
    """Hardness-aware debiased contrastive collaborative filtering (Yang et al., IJCAI 2022).

    Parameters
    ----------
    user_vector, history_encoder, embedding_dim, start
        How users are represented: free vectors, or made of their history by a sum or by attention.
    similarity, factors, hidden
        f(u, i); `modulated` is Eq. 7–8.
    sampler, negatives, block_users, block_items, batch_size, neighbours
        How batches and their negatives are drawn.
    temperature, item_side, user_side, omega_items, omega_users, frequency_correction
        τ, the weights of both sides, the false-negative rates ω⁺, and β.
    user_user_weight, item_item_weight, nearest
        λ_u and λ_i of the auxiliary losses, and which neighbours they take.

    `hdccf models hdccf` lists every setting with its default.

    Examples
    --------
    >>> HDCCF(temperature=0.15, sampler="block").temperature
    0.15
    """

    # Blocks make steps so cheap that an epoch is short, hence more of them between evaluations.
    epochs: int = Field(default=120, ge=1)
    """Passes over the users (`block`) or the pairs at most; early stopping usually ends before."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size; too large and the loss jumps, too small and early stopping comes before the best."""
    evaluate_every: int = Field(default=5, ge=1)
    """Epochs between evaluations on the validation part."""

    # -- vectors
    embedding_dim: int = Field(default=128, ge=1, le=MAX_DIM)
    """Length of the vectors; more remembers more, and costs in proportion (modulated: its square)."""
    user_vector: Literal["auto", "free", "history"] = "auto"
    """`free` learns a vector a user (the paper); `history` makes it from the user's recent items, so that new
    users need no training; `auto` takes `history` where the data has times."""
    start: Literal["random", "spectral"] = "spectral"
    """The first vectors: from the spectrum of the training pairs, which takes a tenth of a second and saves
    most epochs, or `random` (the paper)."""
    init_std: float = Field(default=0.1, gt=0)
    """Spread of the first vectors; with a cosine it sets how fast their directions turn."""

    # -- similarity
    similarity: Literal["cosine", "popular", "dot", "euclidean", "modulated"] = "cosine"
    """f(u, i). `popular` is the cosine and a learned popularity of the item, for many items that few
    have; `modulated` is Eq. 7–8, and costs embedding_dim times as much as the others."""
    normalise: bool = True
    """`modulated`: unit-length p and q, so that |f| ≤ 1, which the lower bound of Eq. 16 assumes."""
    hidden: tuple[PositiveInt, ...] = ()
    """`modulated`: sizes of g's hidden layers; none is a linear g."""
    factors: Literal["shared", "separate"] = "shared"
    """`modulated`: whether e (Eq. 8) is the embedding itself or a second table."""

    # -- negatives
    sampler: Literal["block", "pool", "in-batch", "uniform"] = "block"
    """`block` scores users × items once and takes every observed pair in it as a positive; `pool` takes those
    of a block's users against items drawn for all of them, the fastest with many items; `in-batch` is Eq. 9;
    `uniform` is Eq. 1."""
    batch_size: int = Field(default=512, ge=1)
    """`in-batch`, `uniform`: pairs in a step."""
    neighbours: int = Field(default=2, ge=1)
    """P, positive items a user and positive users an item (Eq. 5 and 9)."""
    negatives: int = Field(default=256, ge=1)
    """`uniform`: S, negatives a side; `pool`: items that are drawn for a block's users."""
    mask_observed: bool = True
    """Leave training pairs out of the negatives: false for certain (Eq. 25)."""
    frequency_correction: float = Field(default=1.0, ge=0, le=1)
    """β: negatives count ∝ frequency^(1 − β). 0 is as in-batch draws (the paper), 1 uniform (the theorem)."""

    # -- loss
    loss: str = "contrastive"
    """What is made of the scores: `contrastive`; or, for ablations, `bpr`, `pointwise` or a registered loss,
    which take one negative a positive."""
    temperature: float = Field(default=0.1, ge=MIN_TEMPERATURE)
    """τ: smaller looks at the hardest negatives only. Denser data takes a larger one."""
    item_side: float = Field(default=1.0, ge=0)
    """Weight of the negative items in Eq. 1."""
    user_side: float = Field(default=0.05, ge=0)
    """Weight of the negative users in Eq. 1."""
    omega_items: float = Field(default=0.0, ge=0, lt=1)
    """ω_i⁺: probability that an unobserved item of a user is a false negative (Eq. 12)."""
    omega_users: float = Field(default=0.0, ge=0, lt=1)
    """ω_u⁺: the same for an unobserved user of an item."""
    user_user_weight: float = Field(default=0.0, ge=0)
    """λ_u of the user–user loss (Eq. 6)."""
    item_item_weight: float = Field(default=0.0, ge=0)
    """λ_i of the item–item loss (Eq. 6)."""
    nearest: int = Field(default=0, ge=0)
    """`block`: the user–user and item–item losses draw a neighbour from so many nearest, by the cosine of who
    has what, and contrast it with users and items; 0 draws from all that have one in common (the paper)."""

    # -- after training
    calibrate: Calibrated = "full"
    """What is chosen on validation after training: `popularity`, the dial; `full`, the dial and the weight of
    an item–item filter; `off`, nothing (the paper)."""

    space: ClassVar[Space] = Space(
        {
            "vectors": Variant(
                {
                    "attention": {"user_vector": "history", **_ATTENTION},
                    "history": {"user_vector": "history"},
                    "free": {"user_vector": "free"},
                },
                time=True,
            ),
            "first vectors": Variant({"spectral": {"start": "spectral"}, "random": {"start": "random"}}),
            "attention_dropout": Real(0.0, 0.5, time=True, when=("vectors", "attention")),
            **HISTORY,
            **recency(when=("vectors", "free")),
            "embedding_dim": SIZES,
            "init_std": Real(0.05, 1.0, log=True),
            "learning_rate": Real(5e-4, 2e-2, log=True),
            "block_users": Choice((16, 32, 64, 128, 256)),
            "weight_decay": Real(1e-8, 1e-3, log=True),
            "temperature": Real(0.05, 0.5, log=True),
            "user_side": Real(0.0, 0.5),
            "frequency_correction": Real(0.5, 1.0),
            # Most ω clip most rows at a small τ, and what is clipped learns nothing (decision 03): so none
            # is one choice of two, and what it could be goes by orders of magnitude.
            "debiasing": Variant({"off": {"omega_items": 0.0}, "on": {}}),
            "omega_items": Real(1e-5, 1e-2, log=True, when=("debiasing", "on")),
        },
        blind={"user_vector": "free"},
        blind_start=_TIME_BLIND_FAST,
        aware_start=_ATTENTION_START,
    )

    model: ClassVar[str] = "hdccf"

    def resolved(self, train: "Interactions") -> "HDCCF":
        """`user_vector="auto"` becomes `history` where the data has times, blocks and a second item."""
        if self.user_vector == "auto":
            possible = (
                train.times is not None
                and self.sampler == "block"
                and self.similarity != "popular"
                and not (self.nearest and self.user_user_weight)
                and bool((train.by_user.degrees >= 2).any())
            )
            if self.history_encoder == "attention" and not possible:
                raise ConfigError(
                    "history_encoder='attention' needs times, sampler='block' and users with two items; "
                    "give a time column, or take history_encoder='sum'"
                )
            return self.model_copy(update={"user_vector": "history" if possible else "free"})
        if self.user_vector == "history" and train.times is None:
            raise ConfigError(
                "user_vector='history' needs times; give a time column, or take user_vector='free'"
            )
        return self

    def choices(self, train: "Interactions") -> str:
        vector = self.resolved(train).user_vector
        reason = "the data has times"
        if vector == "free":
            reason = "the data has no times" if train.times is None else "histories go with blocks"
            if self.nearest and self.user_user_weight:
                reason = "nearest users have vectors of their own"
        chosen = f" ({reason})" if self.user_vector == "auto" else ""
        return (
            f"user vectors: {vector}{chosen}; negatives: {self.sampler}; "
            f"similarity: {self.similarity}, temperature {self.temperature}"
        )

    @property
    def false_negative_rate(self) -> float:
        return self.omega_items

    @property
    def softmax_temperature(self) -> float | None:
        return self.temperature if self.loss == "contrastive" else None

    @property
    def _has_more_than_items(self) -> bool:
        others = (self.user_side, self.user_user_weight, self.item_item_weight)
        return self.loss != "contrastive" or any(others)

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, name: str) -> str:
        if name != "contrastive":
            from hdccf.losses.contrastive import PAIR_LOSSES  # with torch, which settings do without

            if name not in PAIR_LOSSES:
                load_plugins()
            if name not in PAIR_LOSSES:
                raise ValueError(
                    f"should be one of {['contrastive', *PAIR_LOSSES]} or a loss that was "
                    "added with hdccf.register_loss"
                )
        return name

    @model_validator(mode="after")
    def _possible_together(self) -> "HDCCF":
        if self.sampler == "in-batch" and self.batch_size < 2:
            raise ValueError(
                "batch_size=1 leaves in-batch negatives none; take 2 or more, or another sampler"
            )
        if self.loss not in ("contrastive", "bpr") and self.sampler == "block":
            raise ValueError(
                f"loss={self.loss!r} takes one negative a positive; set sampler to in-batch or uniform"
            )
        if not self.mask_observed and self.sampler not in ("in-batch", "block"):
            raise ValueError(
                "mask_observed=false is the biased loss of in-batch and block; "
                f"sampler={self.sampler!r} always masks"
            )
        if not self.mask_observed and self.sampler == "block" and self.loss == "bpr":
            raise ValueError("loss='bpr' leaves out observed pairs in a block; set mask_observed to true")
        if self.sampler == "pool" and self._has_more_than_items:
            raise ValueError(
                "sampler='pool' contrasts with items alone; set loss to contrastive and user_side, "
                "user_user_weight and item_item_weight to 0"
            )
        if self.user_vector == "history" and self.sampler != "block":
            raise ValueError(f"user_vector='history' cuts blocks; set sampler to block, not {self.sampler!r}")
        if self.similarity == "popular" and (
            self.user_vector == "history" or self.user_user_weight or self.item_item_weight
        ):
            raise ValueError(
                "similarity='popular' is between free users and items; set user_vector to free, and "
                "user_user_weight and item_item_weight to 0"
            )
        if self.nearest:
            if self.sampler != "block":
                raise ValueError(f"nearest goes with blocks; set sampler to block, not {self.sampler!r}")
            if self.user_vector == "history" and self.user_user_weight:
                raise ValueError(
                    "nearest users have no free vectors to look up; set user_user_weight to 0, "
                    "or user_vector to free"
                )
        if self.history_encoder == "attention":
            if self.user_vector == "free":
                raise ValueError(
                    "history_encoder='attention' encodes histories; set user_vector to history or auto"
                )
            if self.embedding_dim % self.attention_heads:
                raise ValueError(
                    f"attention_heads={self.attention_heads} cannot share {self.embedding_dim} dimensions; "
                    "give one that divides it"
                )
            if self.similarity == "modulated" and self.factors == "separate":
                raise ValueError("history_encoder='attention' makes one vector a user; set factors to shared")
        if self.item_side == 0 and self.user_side == 0:
            raise ValueError("item_side=0 and user_side=0 leave nothing to contrast with; give one a weight")
        return self


_IN_BATCH: dict[str, Any] = {
    "user_vector": "free",
    "start": "random",
    "embedding_dim": 64,
    "epochs": 50,
    "learning_rate": 1e-3,
    "evaluate_every": 1,
    "similarity": "modulated",
    "factors": "separate",
    "sampler": "in-batch",
    "frequency_correction": 0.0,
    "user_side": 1.0,
    "temperature": 0.5,
    "omega_items": 0.05,
    "omega_users": 0.05,
    "user_user_weight": 0.1,
    "item_item_weight": 0.1,
    "calibrate": "off",
}

# The same parts at a hundredth of the cost: a block weighs its negatives by the frequencies with which
# in-batch draws them (Propositions 1 and 2). Of many items it draws some, and the auxiliary losses have fewer
# anchors.
_PAPER: dict[str, Any] = {
    **_IN_BATCH,
    **_SPECTRAL,
    "sampler": "block",
    "block_items": 1024,
    "batch_size": 128,
}

ABLATIONS: dict[str, dict[str, Any]] = {
    "wo-i": {"item_item_weight": 0.0},
    "wo-u": {"user_user_weight": 0.0},
    "wo-ui": {"item_item_weight": 0.0, "user_user_weight": 0.0},
    "bpr-plus": {"loss": "bpr", "item_item_weight": 0.0, "user_user_weight": 0.0},
    "biased": {"mask_observed": False, "omega_items": 0.0, "omega_users": 0.0},
    "unmodulated": {"similarity": "cosine"},
}
"""The paper's variants: what each changes of the paper's model."""

PRESETS: dict[str, dict[str, Any]] = {
    "hdccf": {},
    "attention": {"user_vector": "history", **_ATTENTION, **_ATTENTION_START},
    "time-blind": _TIME_BLIND,
    "spectral": _TIME_BLIND_FAST,
    "recency": {
        **_TIME_BLIND,
        "temperature": 0.18,
        "user_side": 0.05,
        "recency_half_life": 5.0,
        "recency_floor": 0.02,
    },
    "paper": _PAPER,
    "paper-in-batch": _IN_BATCH,
    **{name: {**_PAPER, **changes} for name, changes in ABLATIONS.items()},
}
"""Changes to the defaults. `paper-in-batch` is all as printed but the sign in Eq. 16; `paper` has the same
parts over blocks, from a spectral start, and those after it take one part out of it."""

HDCCF.presets = PRESETS

# Every part of the paper is on, and its parameters are searched. From random vectors, as in the paper: from
# the spectrum validation often takes one of the first epochs, and the loss is hardly measured.
_PRINTED: dict[str, Any] = {
    **_PAPER,
    "start": "random",
    "init_std": 0.1,
    "epochs": 80,
    "evaluate_every": 2,
    "learning_rate": 0.01,
    "temperature": 0.2,
    "omega_items": 0.005,
    "omega_users": 0.005,
}
_PAPER_DIMENSIONS: dict[str, Dimension] = {
    "embedding_dim": SIZES,
    "learning_rate": Real(2e-3, 3e-2, log=True),
    "block_users": Choice((32, 64, 128, 256)),
    "weight_decay": Real(1e-8, 1e-3, log=True),
    "temperature": Real(0.1, 1.0, log=True),
    "omega_items": Real(1e-4, 0.2, log=True),
    "omega_users": Real(1e-4, 0.2, log=True),
    "user_user_weight": Real(0.01, 1.0, log=True),
    "item_item_weight": Real(0.01, 1.0, log=True),
    "neighbours": Whole(1, 6),
}
HDCCF.spaces = {
    "printed": Space(_PAPER_DIMENSIONS, blind=_PRINTED),
    "corrected": Space(
        {**_PAPER_DIMENSIONS, "frequency_correction": Real(0.0, 1.0)},
        blind={**_PRINTED, "frequency_correction": 1.0},
    ),
}

_ROWS = 1024
"""Places of histories in a step of the attention encoder; more make fewer steps, fewer make noisy ones."""
_MANY_USERS = 10_000
"""With as many, vectors that see a user once an epoch get many steps an epoch, and smaller ones do."""
_SHORT_HISTORIES = 20
"""Where users have fewer items on average, attention takes a larger dropout (decision 19)."""
_USERS_SEEN = 40_000
"""Users between two evaluations of such vectors: few users take many epochs."""
_KINDS = ("user_vector", "history_encoder", "similarity")
"""What tells candidates apart; one that differs from what is asked for is left out."""


UNVALIDATED_EPOCHS = 20
"""Of the automatic configuration where no validation part can say when to stop."""


def automatic_candidates(train: "Interactions", *, validated: bool = True, **fixed: Any) -> dict[str, HDCCF]:
    """The configurations that are worth comparing on some training data, by name, the preferred one first.

    Parameters
    ----------
    train
        Without times, or without users who have two items, there are no histories to learn from.
    validated
        Whether there is a validation part to compare them on; without one the first is taken, and trained
        for `UNVALIDATED_EPOCHS` unless `fixed` has another number.
    fixed
        Settings that all candidates have; a candidate that cannot have them is left out.
    """
    degrees = train.by_user.degrees
    # Lists are drawn from all items; the paper's protocol is for its own studies.
    fixed = {"validation_metric": "full:ndcg@10", **fixed}
    common: dict[str, Any] = {"block_items": 2048, "patience": 3}
    many = train.n_users >= _MANY_USERS
    once: dict[str, Any] = {
        **common,
        "epochs": 200,
        "patience": 5,
        "block_users": 256 if many else 128,
        "learning_rate": 3e-4 if many else 1e-3,
        "evaluate_every": max(2, min(10, _USERS_SEEN // max(train.n_users, 1))),
    }
    # A block has all items, but few of the users: vectors of their own take larger steps.
    free = {**once, "user_vector": "free", "user_side": 0.0, "init_std": 0.25, "learning_rate": 4e-3}
    flat = {**free, "temperature": 0.15}
    tried: dict[str, dict[str, Any]] = {
        "free": free,
        "free (τ 0.07)": {**free, "temperature": 0.07},
        "free (τ 0.15)": flat,
        "free (popularity)": {**free, "similarity": "popular"},
    }
    if train.times is not None and bool((degrees >= 2).any()):
        attention = {
            **PRESETS["attention"],
            **common,
            "embedding_dim": 128,
            "temperature": 0.08,
            "learning_rate": 3e-3,
            "block_users": max(8, min(256, int(_ROWS / max(degrees.mean(), 1)))),
            "history_length": max(10, min(200, int(np.quantile(degrees, 0.99)))),
            "attention_dropout": 0.5 if degrees.mean() < _SHORT_HISTORIES else 0.2,
        }
        history = {**once, "user_vector": "history"}
        tried = {"attention": attention, "history": history, "free": free, "free (τ 0.15)": flat}
    found = dict[str, HDCCF]()
    for name, values in tried.items():
        own = HDCCF(**values)
        if any(fixed.get(kind, "auto") not in {"auto", getattr(own, kind)} for kind in _KINDS):
            continue
        try:
            settings = own.changed(**{key: value for key, value in fixed.items() if value != "auto"})
        except ConfigError:
            continue
        if settings not in found.values():
            found[name] = settings
    found = found or {"hdccf": HDCCF(**fixed)}
    if validated:
        return found
    name, first = next(iter(found.items()))
    return {name: first.changed(epochs=fixed.get("epochs", UNVALIDATED_EPOCHS))}

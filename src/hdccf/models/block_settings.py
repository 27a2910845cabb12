"""Settings of blocks, and of user vectors made of histories, which are trained in blocks. Knows no torch."""

from typing import Literal

from pydantic import Field

from hdccf.config import PositiveSettings


class BlockSettings(PositiveSettings):
    """What models have in common that can be trained on blocks of users × items."""

    block_users: int = Field(default=128, ge=1)
    """`block`: users in a block; fewer make more, noisier steps."""
    block_items: int = Field(default=8192, ge=1)
    """`block`: up to this many items all are scored, beyond it the positives and a draw of the rest."""
    start: Literal["random", "spectral"] = "random"
    """The first vectors: `random`, or from the spectrum of the training pairs, which takes a tenth of a
    second and saves most epochs; with smaller steps, or a larger `init_std`, which makes them turn slower."""
    history_encoder: Literal["sum", "attention"] = "sum"
    """`history`: how a history becomes a vector: the recency-weighted `sum` of its items, or `attention` over
    the last `history_length` of them in order, which learns what to look at and costs more."""
    attention_layers: int = Field(default=2, ge=1)
    """`attention`: rounds of looking back."""
    attention_heads: int = Field(default=2, ge=1)
    """`attention`: how many things a round can look for; must divide `embedding_dim`."""
    attention_dropout: float = Field(default=0.2, ge=0, lt=1)
    """`attention`: share of every vector inside that is dropped in a step; more for smaller data."""
    history_half_life: float = Field(default=3.0, gt=0)
    """`history`: after this many later items an item speaks half as loud for its user."""
    history_floor: float = Field(default=0.03, ge=0, le=1)
    """`history`: what even the oldest item still says of its user's taste."""
    history_length: int = Field(default=200, ge=1)
    """`history`: items further back than this are not looked at."""
    history_table: Literal["own", "shared"] = "own"
    """`history`: whether items have a second vector for their part in a history, or the same as when they are
    recommended. Of their own they can say that one item leads to another and not back."""
    ahead: int = Field(default=5, ge=1)
    """`history`: how many items after a random moment are the positives of that moment."""
    ahead_half_life: float = Field(default=2.0, gt=0)
    """`history`: each this many places later a positive counts half."""

"""SASRec (Kang and McAuley, 2018) with a softmax over the items, as today's strongest versions train it.

It is HDCCF's network with attention over histories and all of HDCCF's own parts switched off, so that a
comparison compares the parts alone: the next item against all others, by the product of the user's normalised
vector and the item's.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator

from hdccf.config import MAX_DIM, SIZES, Choice, Real, Space
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.models.factorization import over_blocks
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.settings import BlockSettings


class SASRec(BlockSettings):
    """Self-attention over the history, trained to tell each next item from all others.

    The published model has one negative a positive; a softmax is worth a quarter of its accuracy (Petrov and
    Macdonald, 2023; Klenitskiy and Vasilev, 2023). It needs times, by which histories are in order.

    `hdccf models sasrec` lists every setting with its default.

    Examples
    --------
    >>> SASRec(history_length=50).attention_layers
    2
    """

    model: ClassVar[str] = "sasrec"

    embedding_dim: int = Field(default=64, ge=1, le=MAX_DIM)
    """Length of the vectors; more remembers more, and costs in proportion."""
    init_std: float = Field(default=0.02, gt=0)
    """Spread of the first vectors: small ones start with all scores alike."""
    history_encoder: Literal["attention"] = "attention"
    """It has no other."""
    history_table: Literal["own", "shared"] = "shared"
    """Whether items have a second vector for their part in a history, or, as published, the same as when they
    are recommended."""
    attention_heads: int = Field(default=1, ge=1)
    """How many things a layer can look for; must divide `embedding_dim`."""
    ahead: int = Field(default=1, ge=1)
    """How many items after a place are its positives; as published the next one."""
    epochs: int = Field(default=200, ge=1)
    """Passes over the users at most; early stopping usually ends before."""

    space: ClassVar[Space] = Space(
        {
            "embedding_dim": SIZES,
            "learning_rate": Real(3e-4, 1e-2, log=True, time=True),
            "attention_dropout": Real(0.0, 0.5),
            "attention_heads": Choice((1, 2, 4)),
            "block_users": Choice((16, 32, 64, 128)),
            "history_length": Choice((50, 100, 200)),
        }
    )

    @model_validator(mode="after")
    def _heads_share_the_dimensions(self) -> "SASRec":
        if self.embedding_dim % self.attention_heads:
            raise ValueError(
                f"attention_heads={self.attention_heads} cannot share {self.embedding_dim} dimensions; "
                "give one that divides it"
            )
        return self

    @property
    def softmax_temperature(self) -> float:
        """That of the product of a vector of length √d and the item's."""
        return 1 / math.sqrt(self.embedding_dim)


def build_sasrec(settings: SASRec, train: Interactions, generator: torch.Generator) -> HDCCFModel:
    if train.times is None:
        raise ConfigError(
            "sasrec reads histories in their order, and the data has no times; give a time column, or take a "
            "model without histories, such as ssm"
        )
    own = {"user_vector": "history", "similarity": "dot", "temperature": settings.softmax_temperature}
    return over_blocks(settings, train, generator, loss="contrastive", **own)

"""Settings of models that are trained on pairs with drawn negatives. Knows no torch."""

from typing import Literal

from pydantic import Field, model_validator

from hdccf.config import PositiveSettings


class PairSettings(PositiveSettings):
    """What every model over pairs has in common."""

    embedding_dim: int = Field(default=64, ge=1)
    """Length of the vectors; more remembers more, and costs in proportion."""
    init_std: float = Field(default=0.01, gt=0)
    """Spread of the first vectors: small ones start with all scores alike."""
    batch_size: int = Field(default=2048, ge=1)
    """Positive pairs in a step; fewer make more, noisier steps."""
    negatives: int = Field(default=1, ge=1)
    """Items drawn against each positive."""
    sampler: Literal["uniform", "popularity", "in-batch", "dynamic", "irgan", "sd-gar"] = "uniform"
    """Where the negatives come from: `uniform`; `popularity`^power; `in-batch`, the other pairs' items;
    `dynamic`, the best scored of some candidates; the generators of `irgan` and `sd-gar`, which learn."""
    popularity_power: float = Field(default=0.75, ge=0)
    """`popularity`: 0 is uniform, 1 draws items as often as they occur."""
    candidates: int = Field(default=5, ge=1)
    """`dynamic`: how many are drawn for each negative; more are harder, and more often false."""
    l2: float = Field(default=0.0, ge=0)
    """Pull of a batch's own vectors towards zero: λ times their squared length, a positive."""

    @model_validator(mode="after")
    def _batches_have_others(self) -> "PairSettings":
        if self.sampler == "in-batch" and self.batch_size < 2:
            raise ValueError(
                "batch_size=1 leaves in-batch negatives none; take 2 or more, or another sampler"
            )
        return self

"""Settings that several models share: blocks and histories, pairs with negatives, generators (no torch)."""

from typing import Literal

from pydantic import Field, model_validator

from hdccf.config import MAX_DIM, MIN_TEMPERATURE, Calibrated, PositiveSettings, RecencySettings, Settings


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
    calibrate: Calibrated = "popularity"
    """What is chosen on validation after training: `popularity`, the dial; `full`, the dial and the weight of
    an item–item filter; `off`, nothing (the paper)."""

    @property
    def calibration(self) -> Calibrated:
        return self.calibrate


class PairSettings(PositiveSettings):
    """What every model over pairs has in common."""

    embedding_dim: int = Field(default=64, ge=1, le=MAX_DIM)
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


class IRGANGeneratorSettings(Settings):
    """IRGAN's generator: a factorisation whose softmax over all items is what is drawn from."""

    temperature: float = Field(default=0.2, ge=MIN_TEMPERATURE)
    """Of the softmax that negatives are drawn from; smaller draws the generator's favourites only."""
    positive_share: float = Field(default=0.2, ge=0, lt=1)
    """Of the draws that teach the generator: how many are the user's own items and not its own choice."""
    policy_draws: int = Field(default=2, ge=1)
    """Draws that teach the generator, for each of a user's items; more make its steps less noisy."""
    warm_epochs: int = Field(default=30, ge=0)
    """First epochs in which the generator learns as BPR with `dynamic` negatives, before it is rewarded."""


class SDGARGeneratorSettings(Settings):
    """SD-GAR's generator: a mixture that is drawn from in constant time and solved in closed form."""

    components: int = Field(default=64, ge=1)
    """K, the mixture's number of components; more tell users apart better."""
    temperature: float = Field(default=0.5, ge=MIN_TEMPERATURE)
    """T of exp(softplus(s)/T), what the draws go for; smaller looks at the hardest negatives only."""
    user_entropy: float = Field(default=0.1, gt=0)
    """λ_x: how even users' shares of components stay; large makes all users alike."""
    item_entropy: float = Field(default=1.0, gt=0)
    """λ_y: how even components' shares of items stay; large draws uniformly."""
    update_every: int = Field(default=5, ge=1)
    """Epochs from one solution of the mixture to the next."""
    update_draws: int = Field(default=64, ge=1)
    """Draws for each of a solution's means; more are less noisy, and cost in proportion."""


class WeightedHistories(RecencySettings):
    """For models whose scores are computed from a history, which may fade with time.

    The weights are learnt without time. With a half-life recent items count more when predicting; without
    one it is the published model.
    """

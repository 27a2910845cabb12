"""Settings: frozen, validated, read from TOML and the command line. Each default lives in its class, once."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hdccf.errors import ConfigError
from hdccf.search import Space


class Settings(BaseModel):
    """The base of all settings: unknown names and impossible values are a `ConfigError` of one line."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )
    space: ClassVar[Space] = Space()
    """What `hdccf tune` may change; settings without a space are not tuned."""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_one_line(type(self), error)) from error

    @property
    def false_negative_rate(self) -> float | None:
        """ω, by which training corrects the negatives; none where a model knows no such correction."""
        return None

    def changed(self, **values: Any) -> Self:
        """A copy with some settings replaced, validated anew."""
        return type(self)(**{**self.model_dump(), **values})


class TrainingSettings(Settings):
    """What every model that is trained by gradients has in common."""

    epochs: int = Field(default=100, ge=1)
    """Passes over the training data at most; early stopping usually ends before."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Step size; too large and the loss jumps, too small and early stopping comes before the best."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Whether steps stay as large, or shrink along a `cosine` to nothing at the end of the last of `epochs`:
    set those to what it should take, and a patience that lets it get there."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Pull of all parameters towards zero; helps where items are rare."""
    optimizer: Literal["adam", "adamw", "adagrad", "sgd"] = "adam"
    """The rule of the steps."""
    sparse_updates: bool = False
    """Update only the embedding rows that a step touched: faster where batches are far smaller."""
    patience: int = Field(default=10, ge=1)
    """Evaluations without a new best before training stops."""
    evaluate_every: int = Field(default=1, ge=1)
    """Epochs between evaluations on the validation part."""
    validation_metric: str = "sampled:ndcg@10"
    """What early stopping and the choice of the best epoch go by: protocol:metric@k."""

    @model_validator(mode="after")
    def _decay_reaches_every_row(self) -> Self:
        if self.sparse_updates and self.weight_decay:
            raise ValueError(
                f"weight_decay={self.weight_decay} pulls at every row, and sparse_updates leaves most alone; "
                "turn one of them off"
            )
        return self


class PositiveSettings(TrainingSettings):
    """How much each positive pair counts, for models that can weigh them."""

    recency_half_life: float | None = Field(default=None, gt=0)
    """Age at which a positive counts half (plus the floor); none weighs all alike."""
    recency_floor: float = Field(default=0.0, ge=0, le=1)
    """What the oldest positive still counts."""
    recency_unit: Literal["interactions", "days"] = "interactions"
    """Whether age is counted in the user's later interactions or in days before their last."""
    count_power: float = Field(default=0.0, ge=0)
    """A pair that occurred n times counts n to this power."""


class Cluster(Settings):
    """The workers that train together, on Ray."""

    workers: int = Field(ge=1)
    """Share the work among N workers on Ray; needs hdccf[ray]. The result is that of one process, but for
    rounding."""
    address: str | None = None
    """The Ray cluster: auto for the one that runs here, ray://HOST:10001, or HOST:6379. Without it one is
    started on this machine."""
    storage: str | None = None
    """Where workers find the pairs and leave checkpoints: a folder or an address (s3://…) that all machines
    reach. Without it the run's folder."""
    timeout: float = Field(default=300.0, ge=1)
    """A worker that does not answer the others for so long is taken to hang, and all are started again from
    the last checkpoint."""
    retries: int = Field(default=3, ge=0)
    """How often failed workers are started again."""


class FitOptions(Settings):
    """How to train, as opposed to what: of these only the threads and the device can change the result."""

    device: str = "cpu"
    """cpu, or cuda where there is one."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads; all if not given. Bits repeat for the same number."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """Save at least this often."""
    checkpoint_epochs: int = Field(default=10, ge=1)
    """And after this many epochs."""
    tensorboard: bool = False
    """Also write curves for TensorBoard."""
    profile: bool = False
    """Say at the end where the time went, by stage, and keep it as profile.json."""
    cluster: Cluster | None = None
    """The workers that train together; none is this process alone."""


class EvaluationOptions(Settings):
    """What `evaluate` ranks and measures."""

    protocols: tuple[str, ...] = ("sampled", "full")
    """'sampled' ranks each held-out item against drawn negatives, as the paper does; 'full' against all
    items, as a user would meet them. Sampled figures look much better: read both."""
    ks: tuple[int, ...] = (10, 50)
    """Lengths of the top-k lists that are measured, such as 10,50."""
    part: str = "test"
    """Which held-out part. Tune on validation, report test."""
    negatives: int = 99
    """How many negatives sampled ranking draws for each user."""
    weighting: str = "uniform"
    """How negatives are drawn: all items alike, or popular ones more often, which is harder."""
    seed: int = 0
    """Draws the negatives. Keep it: every model is to see the same ones."""
    memory: int = 256
    """MiB for scores at a time; less is slower on very large catalogues only."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings of a TOML file as a flat table."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise ConfigError(f"{path} does not exist; give the path of a TOML file with settings") from cause
    except OSError as cause:
        raise ConfigError(
            f"{path} cannot be read ({cause.strerror}); give a TOML file with settings"
        ) from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} is not valid TOML: {cause}") from cause


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`["temperature=0.15", "sampler=block"]` as a table; values are TOML, and bare words are strings."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{assignment!r} sets nothing; write name=value, as in temperature=0.15")
        try:
            values[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[name.strip()] = text.strip()
    return values


def build_settings(kind: type[Settings], *layers: Mapping[str, Any]) -> Settings:
    """Defaults, then each layer over the ones before it: preset, file, command line."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    return kind(**merged)


def _one_line(kind: type[Settings], error: ValidationError) -> str:
    """Pydantic's first complaint as: what was given, what is allowed, what to do."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = sorted(kind.model_fields)
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{kind.__name__} has no setting {name!r}; {hint}choose one of {known}"
    message = first["msg"].removeprefix("Value error, ")
    if not name:
        return message
    # Pydantic says "Input should be …"; its subject is named instead.
    return f"{name}={first['input']!r} is not possible: it {message.removeprefix('Input ')}"

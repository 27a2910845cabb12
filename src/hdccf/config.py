"""Settings: validated Pydantic classes, TOML files, command-line assignments, and search spaces for tuning.

A study is time-blind or time-aware. Dimensions marked `time` belong to time-aware studies only; `Space.blind`
keeps time out of a time-blind one.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hdccf.errors import ConfigError, without_secrets

Values = dict[str, Any]

MAX_DIM = 16_384
"""The longest vectors that settings may ask for."""
MIN_TEMPERATURE = 1e-4
"""The smallest τ: below it every exponential of a score over- or underflows."""


@dataclass(frozen=True, kw_only=True)
class _Dimension:
    time: bool = False
    """Only in time-aware studies."""
    when: tuple[str, str] | None = None
    """Only where that variant was chosen. Where it is no part of the study, its first option counts."""


@dataclass(frozen=True)
class Real(_Dimension):
    """A number between two."""

    low: float
    high: float
    log: bool = False
    """Whether the order of magnitude is what matters, as with learning rates."""


@dataclass(frozen=True)
class Whole(_Dimension):
    """A whole number between two, both included."""

    low: int
    high: int
    log: bool = False


@dataclass(frozen=True)
class Choice(_Dimension):
    """One of some values."""

    options: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class Variant(_Dimension):
    """One of some named sets of settings that go together; its own name is no setting."""

    options: Mapping[str, Mapping[str, Any]]

    @property
    def first(self) -> str:
        return next(iter(self.options))


Dimension = Real | Whole | Choice | Variant

VALIDATION_METRIC = "sampled:ndcg@10"
"""What epochs and calibrations are chosen by, where nothing else is set: the paper's."""

Calibrated = Literal["off", "popularity", "full"]
"""What is added to trained scores: nothing, the popularity dial, or the dial and an item–item filter."""


@dataclass(frozen=True)
class Space:
    """The dimensions by the names of their settings, variants before what depends on them."""

    dimensions: Mapping[str, Dimension] = field(default_factory=dict)
    blind: Mapping[str, Any] = field(default_factory=dict)
    """What a time-blind study sets, over the defaults."""
    aware: Mapping[str, Any] = field(default_factory=dict)
    """What a time-aware study sets, over the defaults."""
    blind_start: Mapping[str, Any] = field(default_factory=dict)
    """Where the first trial of a time-blind study differs from the defaults."""
    aware_start: Mapping[str, Any] = field(default_factory=dict)
    """Where the first trial of a time-aware study differs from the defaults."""

    def __bool__(self) -> bool:
        return bool(self.dimensions)

    @property
    def knows_time(self) -> bool:
        """Whether a time-aware study differs from a time-blind one."""
        return bool(self.aware) or any(dimension.time for dimension in self.dimensions.values())

    def part(self, time_aware: bool) -> dict[str, Dimension]:
        """The dimensions of a study."""
        return {name: each for name, each in self.dimensions.items() if time_aware or not each.time}

    def draw(
        self,
        suggest: Callable[[str, Dimension], Any],
        *,
        time_aware: bool,
        fixed: Mapping[str, Any] | None = None,
    ) -> Values:
        """Settings with a value from `suggest` for each dimension that applies; `fixed` ones are not asked.

        Gives what the study decides, and nothing of the defaults.
        """
        fixed = fixed or {}
        dimensions = self.part(time_aware)
        settings: Values = dict(self.aware if time_aware else self.blind)
        chosen: dict[str, str] = {}
        for name, dimension in dimensions.items():
            if name in fixed or not self._applies(dimension, chosen):
                continue
            value = suggest(name, dimension)
            if isinstance(dimension, Variant):
                chosen[name] = value
                settings.update(dimension.options[value])
            else:
                settings[name] = value
        return {**settings, **fixed}

    def _applies(self, dimension: Dimension, chosen: Mapping[str, str]) -> bool:
        if dimension.when is None:
            return True
        name, wanted = dimension.when
        variant = self.dimensions[name]
        assert isinstance(variant, Variant)  # noqa: S101 - a space is code, and its test says so
        return chosen.get(name, variant.first) == wanted


def recency(when: tuple[str, str] | None = None) -> dict[str, Dimension]:
    """How fast what is old fades; a floor of 1 fades nothing, so that a model may also do without."""
    return {
        "recency_half_life": Real(1.0, 100.0, log=True, time=True, when=when),
        "recency_floor": Real(0.005, 1.0, log=True, time=True, when=when),
    }


SIZES = Choice((32, 64, 128))
"""Lengths of vectors, the same for every model: a comparison is not one of sizes."""

HISTORIES = ("vectors", "history")
"""When a user's vector is made of the recent history."""

HISTORY: dict[str, Dimension] = {
    "history_half_life": Real(1.0, 20.0, log=True, time=True, when=HISTORIES),
    "history_floor": Real(0.003, 0.3, log=True, time=True, when=HISTORIES),
    "ahead": Whole(1, 20, log=True, time=True, when=HISTORIES),
    "ahead_half_life": Real(0.5, 10.0, log=True, time=True, when=HISTORIES),
}
"""The dimensions of a history vector, for every model that can have one."""


class Options(BaseModel):
    """The base of all options and settings: unknown names and impossible values are a `ConfigError`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(_one_line(type(self), error)) from error

    def changed(self, **values: Any) -> Self:
        """A copy with some values replaced, validated anew."""
        return type(self)(**{**self.model_dump(), **values})


class Settings(Options):
    """The base of models' settings: a field for each, validated and frozen.

    Examples
    --------
    >>> class ItemKNN(hdccf.Settings):
    ...     model: ClassVar[str] = "item-knn"
    ...     shrink: float = 10.0
    >>> ItemKNN(shrink=20).changed(shrink=5).shrink
    5.0
    """

    space: ClassVar[Space] = Space()
    """What `hdccf tune` may change; settings without a space are not tuned."""
    spaces: ClassVar[Mapping[str, Space]] = {}
    """Further search spaces, by name."""

    @classmethod
    def space_named(cls, name: str) -> Space:
        """The space of that name; the usual one without a name."""
        if name and name not in cls.spaces:
            known = f"choose one of {list(cls.spaces)}" if cls.spaces else "it has only its usual one"
            raise ConfigError(f"space={name!r} is unknown for {cls.__name__}; {known}")
        return cls.spaces[name] if name else cls.space

    model: ClassVar[str] = ""
    """The name of the model in the registry."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named changes to the defaults."""
    weighs_positives: ClassVar[bool] = False
    """Whether the weights of pairs (`Interactions.weights`) are weights in the loss."""

    def __init__(self, /, **values: Any) -> None:
        super().__init__(**values)  # so that type[Settings] takes the values of any model

    def resolved(self, train: Any) -> Self:
        """With every automatic choice made for this training data."""
        return self

    def choices(self, train: Any) -> str | None:
        """What the settings mean for this training data, in words; None where there is nothing to say."""
        return None

    @property
    def false_negative_rate(self) -> float:
        """The assumed probability that an unobserved item is a false negative."""
        return 0.0

    @property
    def softmax_temperature(self) -> float | None:
        """τ where the loss is a softmax of f/τ over items; None for other losses."""
        return None

    @property
    def calibration(self) -> Calibrated:
        """What is chosen on validation after training."""
        return "popularity"


class TrainingSettings(Settings):
    """What every model that is trained by gradients has in common: epochs, steps, early stopping.

    Examples
    --------
    >>> TrainingSettings(epochs=20, learning_rate=0.01).patience
    10
    """

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
    average_epochs: float = Field(default=0.0, ge=0)
    """What is evaluated and kept is an exponential moving average of the weights over about so many of the
    last epochs, which takes out the noise of single steps; 0 keeps the last weights."""
    sparse_updates: bool = False
    """Update only the embedding rows that a step touched: faster where batches are far smaller."""
    patience: int = Field(default=10, ge=1)
    """Evaluations without a new best before training stops; none counts before the best is above chance."""
    evaluate_every: int = Field(default=1, ge=1)
    """Epochs between evaluations on the validation part."""
    validation_metric: str = VALIDATION_METRIC
    """What early stopping, the best epoch and the calibration go by, protocol:metric@k: `sampled`, `popular`
    (candidates drawn by popularity) or `full`."""

    @model_validator(mode="after")
    def _decay_reaches_every_row(self) -> Self:
        if self.sparse_updates and self.weight_decay:
            raise ValueError(
                f"weight_decay={self.weight_decay} pulls at every row, and sparse_updates leaves most alone; "
                "turn one of them off"
            )
        return self


class RecencySettings(Settings):
    """How the weight of a pair fades with its age."""

    recency_half_life: float | None = Field(default=None, gt=0)
    """Age at which a pair counts half (plus the floor); none weighs all alike."""
    recency_floor: float = Field(default=0.0, ge=0, le=1)
    """What the oldest pair still counts."""
    recency_unit: Literal["interactions", "days"] = "interactions"
    """Whether age is counted in the user's later interactions or in days before their last."""


class PositiveSettings(RecencySettings, TrainingSettings):
    """How much each positive pair counts, for models that can weigh them."""

    weighs_positives: ClassVar[bool] = True

    count_power: float = Field(default=0.0, ge=0)
    """A pair that occurred n times counts n to this power."""


class Cluster(Options):
    """The workers that train together, on Ray."""

    workers: int = Field(ge=1)
    """Share the work among N workers on Ray; needs pip install 'hdccf[ray]'. The result is that of one
    process, but for rounding."""
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


class FitOptions(Options):
    """How to train, as opposed to what; only the first three can change the result.

    Parameters
    ----------
    device, threads, matmul_precision
        Where and how it computes; bits repeat for the same device and number of threads.
    checkpoint_minutes, checkpoint_epochs
        How often the training state is saved.
    tensorboard, profile
        Whether to write curves for TensorBoard, and seconds by stage.
    mlflow
        The address of an MLflow tracking server or database to log to.
    calibrate
        Whether to choose the popularity dial and the item–item filter on validation after training.
    refit
        Whether to train once more on all events, for as many epochs as validation selected.
    minutes
        A limit of the automatic choice among candidates.
    cluster
        The workers that train together on Ray; none is this process alone.

    Examples
    --------
    >>> FitOptions(threads=1, checkpoint_minutes=1.0).threads
    1
    """

    device: str = "cpu"
    """cpu, or cuda where there is one."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """Processor threads; if not given all that the process may use, or one for small data, where more are
    slower. Bits repeat for the same number."""
    matmul_precision: Literal["highest", "high", "medium"] = "medium"
    """Of the matrix products of training steps, as torch.set_float32_matmul_precision takes it: medium may
    round factors to bfloat16 where the processor is faster with them; highest never does."""
    checkpoint_minutes: float = Field(default=5.0, ge=0)
    """Save at least this often."""
    checkpoint_epochs: int = Field(default=10, ge=1)
    """And after this many epochs."""
    tensorboard: bool = False
    """Also write curves for TensorBoard; needs pip install 'hdccf[tensorboard]'."""
    mlflow: str | None = None
    """Also log settings and curves to this MLflow tracking server or database, such as sqlite:///mlflow.db;
    needs pip install 'hdccf[mlflow]'."""
    profile: bool = False
    """Say at the end where the time went, by stage, and keep it as profile.json."""
    cluster: Cluster | None = None
    """The workers that train together; none is this process alone."""
    calibrate: bool = True
    """Choose the popularity dial and the weight of an item–item filter on validation after training."""
    refit: bool | None = None
    """Once validation has chosen epoch, settings and calibration, train once more on all events for as many
    epochs, and answer with those weights. The default for your own events, not for named data sets."""
    minutes: float | None = Field(default=None, gt=0)
    """Where settings are chosen automatically: compare candidates for so many minutes at most. The choice
    then depends on the speed of the machine as well as on the seed."""

    @model_validator(mode="after")
    def _keeps_no_secrets(self) -> Self:
        if self.mlflow is not None and without_secrets(self.mlflow) != self.mlflow:
            raise ValueError(
                "mlflow has a password in it, which the run would keep; set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD instead"
            )
        return self


MAX_DIAL = 3.0
"""The popularity dial goes from −3 to 3; what is useful lies between −1 and 1."""
TOP_K = 10
"""How long a list is, where nothing else is asked for."""
EXPLAINED = 3
"""How many of the best items are explained."""
REASONS = 5
"""How many items of the history are named as reasons."""


class EvaluationOptions(Options):
    """What `evaluate` ranks and measures."""

    protocols: tuple[str, ...] = ("sampled", "full")
    """'sampled' ranks each held-out item against drawn negatives, as the paper does; 'full' against all
    items, as a user would meet them. Sampled figures look much better: read both."""
    ks: tuple[int, ...] = (10, 50)
    """Lengths of the top-k lists that are measured, such as 10,50."""
    metrics: tuple[str, ...] = ()
    """Measure only these, such as ndcg@10,recall@20,coverage@10; nothing is kept in the run."""
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


def _one_line(kind: type[Options], error: ValidationError) -> str:
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

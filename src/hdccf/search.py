"""Search spaces: what tuning may change of a model's settings. Each stands beside the settings it is of.

A study is time-blind or time-aware. Dimensions marked `time` belong to time-aware studies only, and what
keeps time out of a time-blind one is said in `Space.blind`, so that no default lets it in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]


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
"""What a history vector has to decide, for every model that can have one."""

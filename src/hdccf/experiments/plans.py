"""The rows that each study of `hdccf reproduce` trains, in the paper's order, and their settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hdccf.config import read_toml
from hdccf.errors import ConfigError
from hdccf.experiments.tasks import Task, part_name
from hdccf.experiments.tuning import read_origin
from hdccf.models import TUNED, entry_named
from hdccf.models.hdccf.settings import PRESETS

OURS = "hdccf"
PAPERS = ("pmf", "bpr", "svdpp", "neumf", "enmf", "irgan", "sd-gar")
"""The paper's competitors, in its order."""
FURTHER = ("ssm", "lightgcn", "ease", "als")
"""Those that were stronger since."""
SEEDLESS = ("ease",)
"""Solved without chance: every seed gives the same."""
TITLES = {
    "pmf": "PMF",
    "bpr": "BPR",
    "svdpp": "SVD++",
    "neumf": "NeuMF",
    "enmf": "ENMF",
    "irgan": "IRGAN",
    "sd-gar": "SD-GAR",
    "ssm": "SSM",
    "lightgcn": "LightGCN",
    "ease": "EASE",
    "als": "ALS",
    "hdccf": "HDCCF",
}
BUDGETS = ("quick", "full")
_QUICK_SEEDS = 2
_QUICK = {"epochs": 20, "embedding_dim": 32}
"""`quick`: at most so much of each."""


@dataclass(frozen=True)
class Row:
    """One line of a table, one bar or one point of a figure."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = OURS
    seeds: int = 1
    origin: str = ""
    """Where its settings come from, in words."""
    curve: str = ""
    """`sweeps`: which setting is varied …"""
    x: float | None = None
    """… and its value here."""
    given: bool = False
    densities: bool = False


@dataclass(frozen=True)
class Plan:
    """What a study needs to know to list its rows."""

    dataset: str
    task: Task
    results: Path
    seeds: int | None = None
    """As asked for; None takes the task's."""
    budget: str = "full"
    has_times: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings over all others, where a model has them."""
    only: tuple[str, ...] = ()
    """Labels of rows; all where none is named."""

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise ConfigError(f"budget={self.budget!r} is unknown; choose one of {list(BUDGETS)}")
        if self.seeds is not None and self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} run nothing; give 1 or more")

    def seeds_of(self, model: str) -> int:
        if model in SEEDLESS:
            return 1
        if self.seeds is not None:
            return self.seeds
        own = self.task.seeds if model == OURS else self.task.other_seeds or self.task.seeds
        return min(own, _QUICK_SEEDS) if self.budget == "quick" else own

    def row(self, row: Row) -> Row:
        """With its seeds, and its settings as budget, task and overrides want them."""
        kind = entry_named(row.model).settings
        fields = kind.model_fields
        settings = dict(row.settings)
        if "validation_metric" in fields:
            settings["validation_metric"] = self.task.validation_metric
        if self.budget == "quick":
            for name, most in _QUICK.items():
                if name in fields:
                    settings[name] = min(settings.get(name, fields[name].default), most)
        settings |= {name: value for name, value in self.overrides.items() if name in fields}
        return replace(row, settings=settings, seeds=self.seeds_of(row.model))

    def rows(self, rows: list[Row]) -> list[Row]:
        return [self.row(each) for each in rows]

    def chosen(self, rows: list[Row]) -> list[Row]:
        """Those that are asked for, in the study's order."""
        labels = [row.label for row in rows]
        unknown = [label for label in self.only if label not in labels]
        if unknown:
            raise ConfigError(f"only={unknown[0]!r} is no row of this study; choose some of {labels}")
        return [row for row in rows if row.label in self.only] if self.only else rows

    def tuned(self, model: str, time_aware: bool) -> tuple[dict[str, Any], str]:
        """A model's settings, and in words where they come from: a study here, the package, the defaults."""
        part = part_name(self.dataset, time_aware)
        for file in (self.results / "tuned" / part / f"{model}.toml", TUNED / part / f"{model}.toml"):
            if file.exists():
                return read_toml(file), _said(read_origin(file))
        kind = entry_named(model).settings
        own = kind.space.aware if time_aware else kind.space.blind
        preset = PRESETS["time-blind"] if model == OURS and not time_aware else {}
        return {**preset, **own, **self.task.fixed_for(kind)}, "not tuned: defaults"


def _said(origin: dict[str, Any]) -> str:
    if not origin:
        return "tuned"
    budget = origin["budget"]
    return (
        f"tuned: {origin['trials']} of {budget['trials']} trials, {origin['minutes']:.1f} of "
        f"{budget['minutes']:g} minutes"
    )


# -- the studies ---------------------------------------------------------------------------------------------


def table(plan: Plan, time_aware: bool = False) -> list[Row]:
    """Every model, HDCCF last. Time-aware, each uses time as far as it can; some cannot at all."""
    rows = []
    for model in (*PAPERS, *FURTHER, OURS):
        knows = entry_named(model).settings.space.knows_time
        settings, origin = plan.tuned(model, time_aware and knows)
        if time_aware and not knows:
            origin += " (knows no time)"
        given = time_aware and model == OURS
        rows.append(Row(model, settings, model, origin=origin, given=given))
    return plan.rows(rows)


_ABLATIONS = ("wo-i", "wo-u", "wo-ui", "bpr-plus", "biased", "unmodulated", "paper")


def ablation(plan: Plan) -> list[Row]:
    """The paper's variants, the paper's model, and ours without and with time; with time also the parts of
    the history vector. Vectors and their start are not HDCCF's own, so BPR and SSM have rows with them."""
    ours, origin = plan.tuned(OURS, False)
    rows = [*(Row(name, PRESETS[name]) for name in _ABLATIONS), Row("ours", ours, origin=origin)]
    if ours.get("start") == "spectral":
        rows += [Row("ours, random start", {**ours, "start": "random"}), *_losses(ours, "same start")]
    if plan.has_times:
        ours, origin = plan.tuned(OURS, True)
        rows.append(Row("ours, time-aware", ours, origin=origin))
        if ours.get("start") == "spectral":
            rows.append(Row("time-aware, random start", {**ours, "start": "random"}))
        if ours.get("user_vector") == "history":
            rows += [Row("history as a sum", {"user_vector": "history"}), *_losses(ours, "same vectors")]
    return plan.rows(rows)


def _losses(ours: Mapping[str, Any], words: str) -> list[Row]:
    return [
        Row(f"{TITLES[model]}, {words}", _same_vectors(ours, model), model=model) for model in ("bpr", "ssm")
    ]


def _same_vectors(ours: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Our settings as far as a model has them, on blocks, which have no l2 of their own."""
    fields = entry_named(model).settings.model_fields
    return {name: value for name, value in ours.items() if name in fields} | {"sampler": "block", "l2": 0.0}


def scores(plan: Plan) -> list[Row]:
    """The paper's model, and the same with a modulation of ones."""
    rows = [Row("modulated", PRESETS["paper"]), Row("unmodulated", PRESETS["unmodulated"])]
    return plan.rows([replace(row, densities=True) for row in rows])


_SWEEPS: dict[str, dict[str, tuple[float, ...]]] = {
    "omega": dict.fromkeys(("omega_items", "omega_users"), (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)),
    "neighbours": {"neighbours": (1, 2, 3, 4, 5, 6)},
    "beta": {"frequency_correction": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)},
    "temperature": {"temperature": (0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)},
    "recency": dict.fromkeys(
        ("recency_half_life", "history_half_life"), (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    ),
}
"""Study → the settings that it varies, one at a time, and their grids."""


def sweep(plan: Plan, study: str) -> list[Row]:
    """One setting over its grid, all others as the study's base has them."""
    if study == "recency" and not plan.has_times:
        raise ConfigError(f"recency needs times, and {plan.dataset} has none; choose another study")
    rows = [
        Row(f"{name}={x:g}", {**_base(plan, name), name: x}, curve=name, x=float(x))
        for name, grid in _SWEEPS[study].items()
        for x in _thinned(plan, grid)
    ]
    return plan.rows(rows)


def _base(plan: Plan, name: str) -> Mapping[str, Any]:
    if name in ("frequency_correction", "temperature"):
        return plan.tuned(OURS, False)[0]
    if name == "history_half_life":
        # The sum's: attention learns by itself how fast what is old fades.
        return {"user_vector": "history"}
    return PRESETS["recency" if name == "recency_half_life" else "paper"]


def _thinned(plan: Plan, grid: tuple[float, ...]) -> tuple[float, ...]:
    """`quick`: every other value, and the last."""
    return tuple(dict.fromkeys((*grid[::2], grid[-1]))) if plan.budget == "quick" else grid


STUDIES: dict[str, Callable[[Plan], list[Row]]] = {
    "table": table,
    "ablation": ablation,
    "scores": scores,
    **{name: partial(sweep, study=name) for name in _SWEEPS},
}

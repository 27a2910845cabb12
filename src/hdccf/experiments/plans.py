"""What `hdccf reproduce` trains: the evaluation task of each data set, and the rows of each study."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hdccf.config import Settings, read_toml
from hdccf.data import datasets
from hdccf.data.interactions import k_core
from hdccf.data.split import PARTS, Split, leave_one_out
from hdccf.errors import ConfigError
from hdccf.experiments.tuning import read_origin
from hdccf.models import TUNED, entry_named
from hdccf.models.hdccf.settings import ABLATIONS, PRESETS

OURS = "hdccf"
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
    "sasrec": "SASRec, softmax",
    "ease": "EASE",
    "als": "ALS",
    "chebycf": "ChebyCF",
    "hdccf-printed": "HDCCF (as printed)",
    "hdccf-corrected": "HDCCF (frequency-corrected)",
    "hdccf": "HDCCF (ours)",
    "bpr-calibrated": "BPR, calibrated",
    "ssm-calibrated": "SSM, calibrated",
    "hdccf-calibrated": "HDCCF, calibrated",
}
"""The rows of a table, in its order: the paper's competitors, stronger ones since, and HDCCF's forms."""
CALIBRATED = {f"{model}-calibrated": model for model in ("bpr", "ssm", OURS)}
"""Rows with a popularity dial and an item–item filter, both weighed by validation → the same without them."""
SPACES = {"hdccf-printed": "printed", "hdccf-corrected": "corrected", "hdccf": ""}
"""The search space that each form of HDCCF was tuned in."""
FORMS = (
    "HDCCF (as printed) has every part of the paper: modulated similarity with separate factors, negative "
    "items and users by frequency (β = 0), debiasing with ω, both auxiliary losses; over blocks, from "
    "random vectors. "
    "HDCCF (frequency-corrected) is the same with β free. HDCCF (ours) may drop parts and have others: any "
    "similarity of free vectors or, time-aware, of histories, with their own start. Calibrated rows have the "
    "settings of the plain ones, and a popularity dial and an item–item filter that validation weighs."
)
"""Which parts each form has."""
SEEDLESS = ("chebycf", "ease")
"""Solved in closed form: every seed gives the same."""
SEQUENTIAL = ("sasrec",)
"""Models that need times: time-blind tables are without them."""
_DEVELOPED = (
    "Each row's budget of tuning is above. HDCCF's defaults, presets and search space were developed on "
    "ML-100K and ML-1M, so that it has had more exploration here than the other rows."
)
EXPLORED = {
    "ml-100k": _DEVELOPED,
    "ml-1m": _DEVELOPED,
    "gowalla-m1": "HDCCF has had more exploration here: its settings are the third of four that were tested.",
}
"""Data sets on which one row was explored more than the others, in words."""
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "gowalla-m1": {
        "ChebyCF (Kim et al. 2025)": (0.1941, 0.1616),
        "NESCL (Sun et al. 2024)": (0.1917, 0.1617),
        "BSPM-EM (Choi et al. 2023)": (0.1920, 0.1597),
        "LightGCN with Adap-τ (Chen et al. 2023)": (0.1901, 0.1590),
        "MF with BSL (Wu et al. 2024)": (0.1882, 0.1584),
        "SimpleX (Mao et al. 2021)": (0.1872, 0.1557),
        "UltraGCN (Mao et al. 2021)": (0.1862, 0.1580),
        "LightGCN (BARS)": (0.1820, 0.1547),
        "EASE (BARS)": (0.1765, 0.1467),
        "BPR (BARS)": (0.1627, 0.1378),
        "ENMF (BARS)": (0.1523, 0.1315),
        "NeuMF (BARS)": (0.1399, 0.1212),
    }
}
"""Figures of others on a public split, in the order of the task's metrics, best first."""
CORE = 5
"""Users and items with fewer interactions are left out, as in the paper."""

# -- tasks ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """How models are evaluated on a data set; the defaults are the paper's."""

    protocols: tuple[str, ...] = ("sampled", "popular", "full")
    """`popular` is sampled with candidates drawn by popularity."""
    metrics: tuple[str, ...] = ("hr@10", "ndcg@10", "ndcg@50")
    validation_metric: str = "sampled:ndcg@10"
    """What tuning and the choice of the epoch go by."""
    retrain: bool = False
    """Whether the epoch is chosen on the validation part, and the model then trained anew on both."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that published figures share, so that tuning leaves them alone."""
    seeds: int = 5
    other_seeds: int | None = None
    """Seeds of the competitors, where they have fewer than HDCCF."""

    def fixed_for(self, kind: type[Settings]) -> dict[str, Any]:
        """What is fixed of a model's settings."""
        return {name: value for name, value in self.fixed.items() if name in kind.model_fields}


PAPER = Task()

TASKS: dict[str, Task] = {
    "ml-1m": replace(PAPER, seeds=3),
    # The public leaderboard ranks all items, at dimension 64, with all training data.
    "gowalla-m1": Task(
        protocols=("full",),
        metrics=("recall@20", "ndcg@20"),
        validation_metric="full:ndcg@20",
        retrain=True,
        fixed={"embedding_dim": 64},
        seeds=3,
        other_seeds=1,
    ),
}
"""The tasks that differ from the paper's."""


OWN_EVENTS = replace(PAPER, metrics=("hr@10", "ndcg@10"), validation_metric="full:ndcg@10", seeds=3)
"""The task of a user's own events, which are ranked as users will meet them."""


def task_of(dataset: str) -> Task:
    """The task of a data set."""
    return TASKS.get(dataset, PAPER)


def part_name(dataset: str, time_aware: bool) -> str:
    """The name of a data set's time-blind or time-aware part, in file names and as a preset."""
    return f"{dataset}-time" if time_aware else dataset


def open_split(dataset: str, *, folder: Path | None = None, progress: bool = False) -> Split:
    """The split as it was published; otherwise the 5-core with each user's last items held out."""
    if datasets.find(dataset).parts is not None:
        return datasets.load_split(dataset, source_folder=folder, progress=progress)
    data = datasets.load(dataset, source_folder=folder, progress=progress)
    return leave_one_out(k_core(data, users=CORE, items=CORE))


def all_training(split: Split) -> Split:
    """The same split with the validation part as training data: the last training before a test."""
    nothing = split.validation.subset(np.zeros(0, np.int64))
    return replace(split, train=split.joined("train", "validation"), validation=nothing)


def without_times(split: Split) -> Split:
    """The same split of data whose histories have an order, but no times."""
    train, validation, test = (replace(split.part(name), times=None) for name in PARTS)
    return replace(split, train=train, validation=validation, test=test)


# -- rows ----------------------------------------------------------------------------------------------------


def model_of(row: str) -> str:
    """The model of a table's row."""
    return OURS if row in SPACES else CALIBRATED.get(row, row)


BUDGETS = ("quick", "full")
_QUICK_SEEDS = 2
_QUICK = {"epochs": 20, "embedding_dim": 32}
"""The largest values of the `quick` budget."""


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
    """Sweeps: the setting that is varied …"""
    x: float | None = None
    """… and its value here."""
    given: bool = False
    """Also tested with the validation items known, as SASRec's published figures are."""
    densities: bool = False
    """Also how its scores are distributed."""
    diagnostics: bool = False
    """Also how its modulation varies, and how much of its gradient false negatives get."""
    calibrated: bool = False
    """With a popularity dial and an item–item filter, weighed by validation."""
    time_blind: bool = False
    """Whether data that has times is trained and calibrated on without them: the filter would use them."""


@dataclass(frozen=True)
class Plan:
    """What a study needs to know to list its rows."""

    dataset: str
    task: Task
    results: Path
    seeds: int | None = None
    """Seeds of each row; None takes the task's."""
    budget: str = "full"
    has_times: bool = True
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings over all others, where a model has them."""
    only: tuple[str, ...] = ()
    """Labels of rows; all where none is named."""
    time_aware: bool | None = None
    """Which part of a table; both where None."""
    given: str = ""
    """The options that the data was given by; a data set's name if empty."""

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise ConfigError(f"budget={self.budget!r} is unknown; choose one of {list(BUDGETS)}")

    def seeds_of(self, model: str) -> int:
        """How many seeds a model is trained with."""
        if model in SEEDLESS:
            return 1
        if self.seeds is not None:
            return self.seeds
        own = self.task.seeds if model == OURS else self.task.other_seeds or self.task.seeds
        return min(own, _QUICK_SEEDS) if self.budget == "quick" else own

    def rows(self, rows: list[Row]) -> list[Row]:
        """The rows with their seeds, and with settings by the budget, the task and the overrides."""
        return [replace(row, settings=self._settings(row), seeds=self.seeds_of(row.model)) for row in rows]

    def _settings(self, row: Row) -> dict[str, Any]:
        fields = entry_named(row.model).settings.model_fields
        settings = dict(row.settings)
        if "validation_metric" in fields:
            settings["validation_metric"] = self.task.validation_metric
        if self.budget == "quick":
            for name, most in _QUICK.items():
                if name in fields:
                    settings[name] = min(settings.get(name, fields[name].default), most)
        return settings | {name: value for name, value in self.overrides.items() if name in fields}

    def tuned(self, row: str, time_aware: bool) -> tuple[dict[str, Any], str]:
        """A row's settings, and in words where they come from: a study here, the package, the defaults."""
        part = part_name(self.dataset, time_aware)
        for folder in (self.results / "tuned", TUNED):
            file = folder / part / f"{row}.toml"
            if not file.exists():
                continue
            origin = read_origin(file)
            words = "given, not tuned here"
            if origin:
                words = f"tuned: {origin['trials']} of {origin['budget']['trials']} trials, "
                words += f"{origin['minutes']:.1f} of {origin['budget']['minutes']:g} minutes"
            return read_toml(file), words
        kind = entry_named(model_of(row)).settings
        space = kind.space_named(SPACES.get(row, ""))
        own = space.aware if time_aware else space.blind
        preset = PRESETS["time-blind"] if row == OURS and not time_aware else {}
        return {**preset, **own, **self.task.fixed_for(kind)}, "not tuned: defaults"


def table(plan: Plan, time_aware: bool = False) -> list[Row]:
    """Every model, HDCCF last, and then what calibration adds. Time-aware, each uses time as far as it can;
    some cannot at all."""
    rows = []
    for label in TITLES:
        model, calibrated = model_of(label), label in CALIBRATED
        if model in SEQUENTIAL and not time_aware:
            continue
        knows = entry_named(model).settings.space_named(SPACES.get(label, "")).knows_time
        settings, origin = plan.tuned(CALIBRATED.get(label, label), time_aware and knows)
        if calibrated:
            settings["calibrate"] = "full"
        if time_aware and not knows:
            origin += " (knows no time)"
        printed = label in ("hdccf-printed", "hdccf-corrected")
        given = time_aware and model in (OURS, *SEQUENTIAL) and not printed
        blind = calibrated and plan.has_times and not time_aware
        rows.append(
            Row(label, settings, model, origin=origin, given=given, calibrated=calibrated, time_blind=blind)
        )
    return plan.rows(rows)


def ablation(plan: Plan) -> list[Row]:
    """The paper's variants, the paper's model, and ours without and with time; with time also the parts of
    the history vector. Vectors and their start are not HDCCF's own, so BPR and SSM have rows with them."""
    ours, origin = plan.tuned(OURS, False)
    paper, printed = plan.tuned("hdccf-printed", False)
    rows = [Row(name, {**paper, **changes}) for name, changes in ABLATIONS.items()]
    rows += [Row("paper", paper, origin=printed), Row("ours", ours, origin=origin), *_neighbours(ours)]
    if ours.get("start") == "spectral":
        rows += [Row("ours, random start", {**ours, "start": "random"}), *_losses(ours, "same start")]
    if plan.has_times:
        ours, origin = plan.tuned(OURS, True)
        rows.append(Row("ours, time-aware", ours, origin=origin))
        if ours.get("start") == "spectral":
            rows.append(Row("time-aware, random start", {**ours, "start": "random"}))
        if ours.get("user_vector") == "history":
            rows += [Row("history as a sum", {"user_vector": "history"}), *_losses(ours, "same vectors")]
    return [replace(row, diagnostics=True) for row in plan.rows(rows)]


def _neighbours(ours: Mapping[str, Any]) -> list[Row]:
    """Ours with the user–user and item–item losses, which it is without: the paper's, and of the nearest."""
    if ours.get("similarity") == "popular" or ours.get("sampler", "block") != "block":
        return []
    with_losses = {**ours, "user_user_weight": 0.15, "item_item_weight": 0.15}
    return [
        Row("ours, any neighbours", with_losses),
        Row("ours, nearest neighbours", {**with_losses, "nearest": 5}),
    ]


def _losses(ours: Mapping[str, Any], words: str) -> list[Row]:
    """BPR and SSM with our settings as far as they have them, on blocks, which have no l2 of their own."""
    rows = []
    for model in ("bpr", "ssm"):
        fields = entry_named(model).settings.model_fields
        shared = {name: value for name, value in ours.items() if name in fields}
        rows.append(Row(f"{TITLES[model]}, {words}", {**shared, "sampler": "block", "l2": 0.0}, model))
    return rows


def scores(plan: Plan) -> list[Row]:
    """The paper's model, and the same with a modulation of ones."""
    paper, origin = plan.tuned("hdccf-printed", False)
    variants = {"modulated": paper, "unmodulated": {**paper, **ABLATIONS["unmodulated"]}}
    return plan.rows([Row(label, each, densities=True, origin=origin) for label, each in variants.items()])


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
    """One setting over its grid (`quick`: every other value, and the last), all others as in a base."""
    if study == "recency" and not plan.has_times:
        raise ConfigError(f"recency needs times, and {plan.dataset} has none; choose another study")
    bases = {
        "frequency_correction": plan.tuned(OURS, False)[0],
        "temperature": plan.tuned(OURS, False)[0],
        # The sum's: attention learns by itself how fast what is old fades.
        "history_half_life": {"user_vector": "history"},
        "recency_half_life": PRESETS["recency"],
    }
    rows = []
    for name, grid in _SWEEPS[study].items():
        values = dict.fromkeys((*grid[::2], grid[-1])) if plan.budget == "quick" else grid
        base = bases.get(name) or plan.tuned("hdccf-printed", False)[0]
        rows += [Row(f"{name}={x:g}", {**base, name: x}, curve=name, x=float(x)) for x in values]
    return plan.rows(rows)


STUDIES: dict[str, Callable[[Plan], list[Row]]] = {
    "table": table,
    "ablation": ablation,
    "scores": scores,
    **{name: partial(sweep, study=name) for name in _SWEEPS},
}

"""Figures of studies (ablations, score densities, sweeps) and of tuning, as PNG and SVG."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hdccf.data.split import Split
from hdccf.evaluation.ranking import Ranker
from hdccf.experiments.studies import StudyFile, import_optuna
from hdccf.experiments.tables import Measure, Results, clip_rates, title_of
from hdccf.models.base import Scorer
from hdccf.plots import COLOURS, OURS, REFERENCE, Bar, draw_panels, drawn

SYMBOLS = {
    "omega_items": "ω$_i^+$",
    "omega_users": "ω$_u^+$",
    "neighbours": "P",
    "frequency_correction": "β",
    "temperature": "τ",
    "recency_half_life": "half-life of a positive's weight (interactions)",
    "history_half_life": "half-life in the history (interactions)",
}
_CLIPS = {"omega_items": "clipped-items", "omega_users": "clipped-users"}
_LOGARITHMIC = ("temperature", "recency_half_life", "history_half_life")


def panels_of(measures: list[Measure]) -> list[Measure]:
    """HR@10 and NDCG@10, as in the paper; then full ranking's NDCG@10 where it is measured."""
    first = measures[0][0]
    shown = [measure for measure in measures if measure[0] == first][:2]
    return shown + [measure for measure in measures if measure[0] != first and measure[1] == shown[-1][1]]


def _files(stem: Path) -> tuple[Path, Path]:
    return stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")


def draw_bars(results: Results, stem: Path) -> None:
    """A bar a row with its deviation, a panel a metric, the rows of all panels in the same order."""
    cells, measures = results.cells, panels_of(results.measures)
    panels = {
        title_of(measure): {
            label: Bar(row[measure].mean, row[measure].std or 0.0)
            for label, row in cells.items()
            if measure in row
        }
        for measure in measures
    }
    colours = {label: OURS if label.startswith("ours") else REFERENCE for label in cells}
    height = 0.9 + 0.24 * len(cells)
    with drawn(*_files(stem), width=1.2 + 2.3 * len(measures), height=height) as figure:
        axes = figure.subplots(1, len(measures), squeeze=False)[0]
        draw_panels(axes, panels, colours, across=len(measures))
        figure.suptitle(results.title)


BINS = 50
TAIL = 0.01
"""Of each side, left out of the overlap's width: its ends would else be two outliers."""
_USERS_AT_ONCE = 1024


@torch.inference_mode()
def densities_of(scorer: Scorer, split: Split) -> dict[str, Any]:
    """Densities of the scores of test items, and of the negatives of sampled ranking."""
    ranker = Ranker(split, "test")
    queries = ranker.queries

    def scores(users: NDArray[np.int64], items: NDArray[Any]) -> NDArray[Any]:
        """Of a row of items for each user; −1 fills rows up."""
        found = []
        for begin in range(0, len(users), _USERS_AT_ONCE):
            some = slice(begin, begin + _USERS_AT_ONCE)
            asked = torch.from_numpy(np.maximum(items[some], 0).astype(np.int64))
            scored = scorer.score_rows(torch.from_numpy(users[some]), asked).numpy()
            found.append(scored[items[some] >= 0])
        return np.concatenate(found)

    positive = scores(np.repeat(queries.users, queries.held_out), queries.items[:, None])
    return described(positive, scores(queries.users, ranker.negatives))


def described(positive: NDArray[Any], negative: NDArray[Any]) -> dict[str, Any]:
    """Densities over 0–100 in bins, the interval where both sides lie, and the area that they share."""
    lowest, highest = min(positive.min(), negative.min()), max(positive.max(), negative.max())
    span = max(float(highest - lowest), np.finfo(np.float32).tiny)
    sides = {
        name: 100.0 * (values.astype(np.float64) - lowest) / span
        for name, values in (("positive", positive), ("negative", negative))
    }
    edges = np.linspace(0.0, 100.0, BINS + 1)
    found = {name: np.histogram(values, edges, density=True)[0] for name, values in sides.items()}
    low = float(np.quantile(sides["positive"], TAIL))
    high = float(np.quantile(sides["negative"], 1 - TAIL))
    shared = float(np.minimum(found["positive"], found["negative"]).sum() * 100.0 / BINS)
    return {
        "bins": {name: [round(float(value), 6) for value in values] for name, values in found.items()},
        "interval": [round(low, 3), round(max(low, high), 3)],
        "width": round(max(0.0, high - low), 3),
        "shared_area": round(shared, 4),
    }


def draw_densities(results: Results, stem: Path) -> None:
    """The first seed of each model side by side; where both sides lie is shaded, its width printed."""
    rows = results.rows
    with drawn(*_files(stem), width=4.2 * len(rows)) as figure:
        centres = (np.arange(BINS) + 0.5) * 100 / BINS
        for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
            shown = results.outcome.records[row.label][0]["densities"]
            for side, colour in (("positive", COLOURS[2]), ("negative", COLOURS[0])):
                axes.plot(centres, shown["bins"][side], color=colour, label=side)
                axes.fill_between(centres, shown["bins"][side], color=colour, alpha=0.15)
            axes.axvspan(*shown["interval"], color=COLOURS[1], alpha=0.15, lw=0)
            axes.set_title(f"{row.label}: overlap {shown['width']:.1f} wide, area {shown['shared_area']:.3f}")
            axes.set_xlabel("relevance score, scaled to 0–100")
            axes.set_ylabel("density")
            axes.legend()
        figure.suptitle(results.title)


def draw_sweeps(results: Results, stem: Path) -> None:
    """A line of panels for each setting: metric over value with a band, the best dotted, clips beside it."""
    cells, measures = results.cells, panels_of(results.measures)
    curves = list(dict.fromkeys(row.curve for row in results.rows))
    width, height = 3.4 * len(measures), 2.7 * len(curves)
    with drawn(*_files(stem), width=width, height=height) as figure:
        grid = figure.subplots(len(curves), len(measures), squeeze=False)
        for line, curve in zip(grid, curves, strict=True):
            points = [row for row in results.rows if row.curve == curve]
            for axes, measure in zip(line, measures, strict=True):
                x = np.array([point.x for point in points], np.float64)
                means = np.array([cells[point.label][measure].mean for point in points])
                spread = np.array([cells[point.label][measure].std or 0.0 for point in points])
                axes.plot(x, means, "o-", color=COLOURS[0])
                axes.fill_between(x, means - spread, means + spread, color=COLOURS[0], alpha=0.2, lw=0)
                axes.axvline(float(x[means.argmax()]), linestyle=":", color="black")
                axes.set_xlabel(SYMBOLS[curve])
                axes.set_title(title_of(measure))
                if curve in _LOGARITHMIC:
                    # Ticks at the values themselves: powers of ten would say nothing between them.
                    axes.set_xscale("log")
                    axes.set_xticks([p.x for p in points if p.x], [f"{p.x:g}" for p in points if p.x])
                    axes.set_xticks([], minor=True)
                if curve in _CLIPS:
                    # Where rows are clipped the loss passes no gradient: a fall may be that and not ω itself.
                    beside = axes.twinx()
                    beside.spines["right"].set_visible(True)
                    rates = clip_rates(points, results.outcome.records, _CLIPS[curve])
                    beside.plot(x, rates, "s--", color=COLOURS[1])
                    beside.set_ylabel("clip rate", color=COLOURS[1])
                    beside.set_ylim(-0.03, 1.03)
        figure.suptitle(results.title)


_FEWEST = 4
"""Completed trials below which importances are noise."""


def draw_history(study: StudyFile, stem: Path) -> None:
    """Each completed trial, and the best up to it; pruned ones as marks at what they reached."""
    trials = study.trials
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    pruned = [t for t in trials if t.state.name == "PRUNED" and t.intermediate_values]
    with drawn(*_files(stem)) as figure:
        axes = figure.subplots()
        numbers = [trial.number for trial in done]
        values = [trial.value or 0.0 for trial in done]
        axes.plot(numbers, values, "o", color=COLOURS[0], label="trial")
        axes.step(numbers, np.maximum.accumulate(values), where="post", color=COLOURS[1], label="best so far")
        if pruned:
            reached = [max(trial.intermediate_values.values()) for trial in pruned]
            axes.plot([trial.number for trial in pruned], reached, "x", color="0.6", label="pruned")
        axes.set_xlabel("trial")
        axes.set_ylabel(f"validation {study.question.metric}")
        axes.set_title(f"{study.question.model} on {study.question.dataset}")
        axes.legend()


def draw_importance(study: StudyFile, stem: Path) -> bool:
    """The importance of each setting (PED-ANOVA). False with too few trials."""
    found = importances(study)
    if not found:
        return False
    names = list(reversed(found))
    with drawn(*_files(stem), height=0.8 + 0.25 * len(names)) as figure:
        axes = figure.subplots()
        axes.barh(range(len(names)), [found[name] for name in names], color=COLOURS[0])
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("share of importance")
        axes.set_title(f"{study.question.model} on {study.question.dataset}")
    return True


def importances(study: StudyFile) -> dict[str, float]:
    """The most important first; nothing where there are too few trials, or none differs from another."""
    done = study.completed
    if len(done) < _FEWEST or done[0].value == done[-1].value:
        return {}
    found: dict[str, float] = import_optuna().importance.get_param_importances(study.study)
    return {name: value for name, value in found.items() if np.isfinite(value)}

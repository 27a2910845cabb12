"""A study in two figures: how the best value rose, and which settings mattered."""

from pathlib import Path

import numpy as np

from hdccf.experiments.drawing import COLOURS, drawn
from hdccf.experiments.studies import StudyFile, import_optuna

_FEWEST = 4
"""Completed trials below which importances are noise."""


def draw_history(study: StudyFile, stem: Path) -> None:
    """Each completed trial, and the best up to it; pruned ones as marks at what they reached."""
    trials = study.study.get_trials(deepcopy=False)
    done = [trial for trial in trials if trial.state.name == "COMPLETE"]
    pruned = [t for t in trials if t.state.name == "PRUNED" and t.intermediate_values]
    with drawn(stem) as figure:
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
        axes.legend(frameon=False)


def draw_importance(study: StudyFile, stem: Path) -> bool:
    """How much of what was good is explained by each setting (PED-ANOVA). False with too few trials."""
    found = importances(study)
    if not found:
        return False
    names = list(reversed(found))
    with drawn(stem, height=0.8 + 0.25 * len(names)) as figure:
        axes = figure.subplots()
        axes.barh(range(len(names)), [found[name] for name in names], color=COLOURS[0])
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("share of importance")
        axes.set_title(f"{study.question.model} on {study.question.dataset}")
        axes.spines[["top", "right"]].set_visible(False)
    return True


def importances(study: StudyFile) -> dict[str, float]:
    """The most important first; nothing where there are too few trials, or none differs from another."""
    done = study.completed
    if len(done) < _FEWEST or done[0].value == done[-1].value:
        return {}
    found: dict[str, float] = import_optuna().importance.get_param_importances(study.study)
    return {name: value for name, value in found.items() if np.isfinite(value)}

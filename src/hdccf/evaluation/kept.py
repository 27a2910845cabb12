"""Evaluations of run directories: kept beside the run, and used again while nothing changes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hdccf.console import note
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation.evaluating import DEFAULTS, Rank, evaluate
from hdccf.evaluation.report import Evaluation
from hdccf.models.base import Scorer

FOLDER = "evaluation"


class Run(Scorer, Protocol):
    """What `load_run` gives: a model that scores, and where it came from."""

    @property
    def split(self) -> Split: ...

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def name(self) -> str: ...

    @property
    def seed(self) -> int: ...


def evaluate_run(
    run: Run,
    *,
    part: str = DEFAULTS.part,
    protocols: Sequence[str] = DEFAULTS.protocols,
    ks: Sequence[int] = DEFAULTS.ks,
    negatives: int = DEFAULTS.negatives,
    seed: int = DEFAULTS.seed,
    weighting: str = DEFAULTS.weighting,
    memory: int = DEFAULTS.memory,
    progress: bool = False,
    again: bool = True,
    rank: Rank | None = None,
) -> Evaluation:
    """Evaluates a run on its own split and keeps the result in the run's folder, per-user values included.

    With `again=False` a kept result is taken if it answers the same question about the same weights.
    """
    folder = Path(run.path) / FOLDER / part
    digest = _digest(Path(run.path))
    asked = {
        "part": part,
        "protocols": list(protocols),
        "ks": sorted(set(ks)),
        "negatives": negatives,
        "weighting": weighting,
        "seed": seed,
        "split": run.split.fingerprint,
        "weights": digest,
    }
    if not again and digest is not None and folder.exists():
        kept = Evaluation.load(folder)
        if all(kept.settings.get(setting) == value for setting, value in asked.items()):
            return kept
    found = evaluate(
        run,
        run.split,
        part,
        protocols,
        ks,
        negatives,
        seed,
        weighting=weighting,
        memory=memory,
        progress=progress,
        rank=rank,
    )
    found.settings["weights"] = digest
    try:
        found.save(folder, overwrite=True)
    except OSError as cause:
        note(f"the evaluation could not be kept in {folder} ({cause.strerror})")
    return found


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but the seed are one system; others are told apart by name and settings."""
    _refuse_other_splits(runs)
    systems: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        settings = json.dumps(_settings(run), sort_keys=True, default=str)
        systems.setdefault((run.name, settings), []).append(run)
    for members in systems.values():
        seeds = [run.seed for run in members]
        if len(set(seeds)) < len(seeds):
            raise EvaluationError(
                f"{' and '.join(str(run.path) for run in members)} are the same model with the same "
                "settings and "
                "seed, so one result would count twice; give each seed once"
            )
    members_of = list(systems.values())
    return dict(zip(_labels([members[0] for members in members_of]), members_of, strict=True))


def _refuse_other_splits(runs: Sequence[Run]) -> None:
    for run in runs[1:]:
        if run.split.fingerprint != runs[0].split.fingerprint:
            raise EvaluationError(
                f"{runs[0].path} was trained on the split {runs[0].split.fingerprint}, {run.path} on "
                f"{run.split.fingerprint}: their numbers answer different questions; compare runs of "
                "the same split"
            )


def _labels(runs: Sequence[Run]) -> list[str]:
    """The model's name, and where several systems have the same one the settings that tell them apart."""
    labels = []
    for run in runs:
        namesakes = [_flat(_settings(other)) for other in runs if other.name == run.name]
        own = _flat(_settings(run))
        telling = [key for key in own if any(other.get(key) != own[key] for other in namesakes)]
        if len(namesakes) == 1:
            labels.append(run.name)
        elif len(telling) <= 3:
            labels.append(f"{run.name} ({', '.join(f'{key}={own[key]}' for key in telling)})")
        else:
            labels.append(f"{run.name} ({Path(run.path).name})")
    if len(set(labels)) < len(labels):
        labels = [str(run.path) for run in runs]
    return labels


def _settings(run: Run) -> dict[str, Any]:
    """What was trained, as opposed to where, on how many threads and with which seed."""
    settings: dict[str, Any] = run.config.get("settings", {})
    return settings


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _digest(path: Path) -> str | None:
    """Of the weights that answer; None where there is no file to tell whether they have changed."""
    weights = path / "best.safetensors"
    return hashlib.sha256(weights.read_bytes()).hexdigest()[:16] if weights.exists() else None

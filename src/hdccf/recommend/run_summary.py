"""What a run's folder says of itself: settings beside their defaults, curves, result, kept evaluations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hdccf.config import Settings
from hdccf.data.describe import describe
from hdccf.data.split import PARTS, Split
from hdccf.errors import HdccfError
from hdccf.evaluation.compare import FOLDER
from hdccf.evaluation.evaluation import Evaluation
from hdccf.recommend.run_folder import RunFolder

MOST_RUNS = 50
"""Beside a run, the latest so many: a page with more of them says nothing."""


def settings_table(settings: Settings) -> list[dict[str, Any]]:
    """Every setting with its value, its default, whether they differ, and what it does."""
    values = settings.model_dump(mode="json")
    rows = []
    for name, field in type(settings).model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        rows.append(
            {
                "name": name,
                "value": values[name],
                "default": default,
                "changed": getattr(settings, name) != default,
                "meaning": " ".join((field.description or "").split()),
            }
        )
    return rows


def curves(records: list[dict[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """metrics.jsonl turned around: kind → name → a value for each evaluated epoch, or None."""
    flat = [_flat(record) for record in records]
    names = dict.fromkeys(name for record in flat for name in record)
    found: dict[str, dict[str, list[float | None]]] = {}
    for kind, name in names:
        found.setdefault(kind, {})[name] = [record.get((kind, name)) for record in flat]
    return found


def _flat(record: dict[str, Any]) -> dict[tuple[str, str], float]:
    flat = {("training", "loss"): record["loss"]}
    for name, value in record.get("terms", {}).items():
        flat["clipped" if name.startswith("clipped") else "training", name] = value
    for kind in ("validation", "diagnostics"):
        for name, value in record.get(kind, {}).items():
            flat[kind, name] = value
    return flat


def result_of(run: RunFolder) -> dict[str, Any] | None:
    """Best epoch and value, and how long it took; None while it is training."""
    try:
        found = json.loads(run.result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def evaluation_of(run: RunFolder, part: str = "test") -> Evaluation | None:
    """What `hdccf evaluate` kept last; None where it was never called."""
    folder = run.path / FOLDER / part
    if not folder.exists():
        return None
    try:
        return Evaluation.load(folder)
    except HdccfError:
        return None


def facts_of(run: RunFolder) -> dict[str, Any]:
    """Everything about a run that does not need its data or weights, fit for JSON."""
    records = run.metrics()
    kept = evaluation_of(run)
    return {
        "name": run.path.name,
        "model": run.model,
        "seed": run.seed,
        "source": run.config.get("data", {}),
        "split": run.config.get("split", {}),
        "epochs": [record["epoch"] for record in records],
        "seconds": [record["seconds"] for record in records],
        "curves": curves(records),
        "result": result_of(run),
        "test": None if kept is None else kept.values,
    }


def data_facts(split: Split) -> dict[str, Any]:
    """The training part in figures, and the size of all parts."""
    figures = describe(split.train, rows=0)
    return {
        **{name: value for name, value in figures.items() if name not in {"rows", "fingerprint"}},
        "parts": {name: len(split.part(name)) for name in PARTS},
    }


def runs_beside(path: Path) -> Iterator[RunFolder]:
    """The run itself, then the others in the same folder, the latest first; what is no run is passed over."""
    yield RunFolder.open(path)
    found = (folder for folder in path.parent.iterdir() if folder != path)
    others = [folder for folder in found if (folder / "run.json").is_file()]
    others.sort(key=lambda folder: (folder / "run.json").stat().st_mtime, reverse=True)
    for folder in others[: MOST_RUNS - 1]:
        try:
            yield RunFolder.open(folder)
        except HdccfError:
            continue

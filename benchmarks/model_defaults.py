"""Every model with its default settings on six data sets, beside the most popular items.

    python benchmarks/model_defaults.py [--dataset ml-100k …] [--model bpr …] [--minutes 1]

Data sets are split, and the validation metric is chosen, as `hdccf train` does. A row is trained until early
stopping ends it or it has taken the minutes of the processor, and tested once at its best epoch. When it had
95 % of its best value on validation for the first time is kept as well.

Each row is a line of results/model_defaults.jsonl, and one that is there is not run again: the same split,
settings, seed and minutes. results/model_defaults.md is written from the lines.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from defaults import METRIC, NAMES, split_of, test
from defaults_report import RESULTS, Line, key_of, read_lines, tables_of
from hdccf.config import Settings, TrainingSettings
from hdccf.console import note
from hdccf.data.datasets import DATASETS
from hdccf.data.split import Split
from hdccf.errors import HdccfError
from hdccf.evaluation.evaluation import markdown_table
from hdccf.experiments.reproduce import commit_of
from hdccf.models import MODELS, entry_named
from hdccf.models.hdccf.settings import PRESETS
from hdccf.training.fit import StopTraining, fit

HERE = Path(__file__).parent
POPULAR = "most-popular"
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name in MODELS if name not in ("random", "hdccf")
} | {
    name: ("hdccf", PRESETS[name])
    for name in ("hdccf", "attention", "time-blind", "spectral", "recency", "paper")
}
"""Row → model and preset."""
ENOUGH = 0.95
"""Of a row's own best value on validation."""
HEAD = """# Every model's defaults

`python benchmarks/model_defaults.py`; each row is a line of `model_defaults.jsonl`. Test part, seed 0, one
thread. NDCG@10 among 99 uniform candidates / among all items, and in brackets how many times the most
popular items' that is. Seconds are of the processor: until 95 % of the row's own best value on validation /
in all, calibration included. A row ends at its first evaluation after {minutes:g} minute(s) of the processor
(marked *), so that on large data it has not seen its best. Rows that are missing were not run yet: the
command runs them.
"""


def settings_of(row: str, dataset: str) -> Settings:
    model, preset = ROWS[row]
    settings = entry_named(model).settings(**preset)
    own_events = dataset not in DATASETS
    if own_events and isinstance(settings, TrainingSettings):
        settings = settings.changed(validation_metric=METRIC)
    return settings


def run(dataset: str, split: Split, row: str, settings: Settings, seed: int, minutes: float) -> Line:
    """Trains and tests a row; its line of the journal."""
    curve: list[tuple[float, float]] = []
    start, limited = time.process_time(), False

    def look(record: dict[str, Any]) -> None:
        nonlocal limited
        seconds = time.process_time() - start
        curve.extend((seconds, value) for value in record["validation"].values())
        limited = seconds > 60 * minutes
        if limited:
            raise StopTraining

    model = fit(split, settings, seed=seed, on_evaluation=look)
    seconds = time.process_time() - start
    best = max((value for _, value in curve), default=0.0)
    return {
        "dataset": dataset,
        "split": split.fingerprint,
        "row": row,
        "settings": {**settings.model_dump(mode="json"), "minutes": minutes},
        "seed": seed,
        "values": test(model, split),
        "validation": round(best, 5),
        "processor": round(seconds, 1),
        "enough": round(next((s for s, value in curve if value >= ENOUGH * best), seconds), 1),
        "limited": limited,
        "commit": commit_of(HERE.parent / "src"),
    }


def report(lines: list[Line], seed: int, minutes: float) -> str:
    parts = [HEAD.format(minutes=minutes)]
    tables = tables_of(lines, seed, list(ROWS))
    for dataset in (name for name in NAMES if POPULAR in tables.get(name, {})):
        rows, base = tables[dataset], tables[dataset][POPULAR]["values"]
        cells = []
        for row, line in rows.items():
            values = [line["values"][kind] for kind in ("uniform", "full")]
            times = [value / base[kind] for value, kind in zip(values, ("uniform", "full"), strict=True)]
            seconds = f"{line['enough']:.0f} / {line['processor']:.0f}" + "*" * line["limited"]
            cells.append([row, *(f"{v:.4f} ({t:.1f})" for v, t in zip(values, times, strict=True)), seconds])
        head = ["", "NDCG@10, 99 uniform", "NDCG@10, all items", "seconds"]
        parts.append(f"## {dataset}\n\n{markdown_table(head, cells)}")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", nargs="+", default=list(NAMES))
    parser.add_argument("--model", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--minutes", type=float, default=1.0, help="of the processor, for a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the journal and the table")
    options = parser.parse_args()
    file = options.out / "model_defaults.jsonl"
    for dataset in options.dataset:
        split = split_of(dataset)
        for row in options.model:
            settings = settings_of(row, dataset)
            key = {**settings.model_dump(mode="json"), "minutes": options.minutes}
            wanted = {"split": split.fingerprint, "row": row, "settings": key, "seed": options.seed}
            if key_of(wanted) in map(key_of, read_lines(file)):
                continue
            try:
                line = run(dataset, split, row, settings, options.seed, options.minutes)
            except HdccfError as cause:
                note(f"{dataset}: {row} is left out ({cause})")
                continue
            note(f"{dataset}: {row} {line['values']}, {line['enough']:.0f} / {line['processor']:.0f} s")
            with file.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line) + "\n")
    text = report(read_lines(file), options.seed, options.minutes)
    (options.out / "model_defaults.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

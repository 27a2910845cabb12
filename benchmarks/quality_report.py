"""The table, the ratios and the figure of `time_to_quality`, from the lines that it keeps."""

import json
from pathlib import Path
from typing import Any

from curves import processor_to, seconds_to
from hdccf.plots import COLOURS, drawn

RESULTS = Path(__file__).parent.parent / "results"
LINES = RESULTS / "time_to_quality.jsonl"
SHARES = (0.95, 0.99)
OURS = "hdccf"
HEAD = """# Seconds to the same quality

`python benchmarks/time_to_quality.py`; each system is a line of `time_to_quality.jsonl`, with its curve,
threads and the load of the machine. Seconds of training by the clock (in brackets: of the processor, all
threads) until validation NDCG@10 (99 negatives) is a share of what tuned BPR and tuned ALS reach
(`benchmarks/quality_targets.json`). "> N" had not reached it after N seconds, when its time was over or it
had stopped getting better. The last columns: the best value, the seconds until then, all seconds, threads,
and the load when it began. Where loads differ, only processor seconds can be compared.
"""


def lines() -> list[dict[str, Any]]:
    if not LINES.exists():
        return []
    return [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]


def latest(dataset: str) -> dict[str, dict[str, Any]]:
    """The last run of each system."""
    return {line["system"]: line for line in lines() if line["dataset"] == dataset}


def levels_of(targets: dict[str, Any]) -> dict[str, float]:
    return {
        f"{share:.0%} {name.upper()}": share * targets[name]["value"]
        for name in ("bpr", "als")
        if name in targets
        for share in SHARES
    }


def ratios_of(dataset: str, targets: dict[str, Any]) -> dict[str, float]:
    """How many times our processor seconds each system took, or at least took where it never got there."""
    runs, ratios = latest(dataset), {}
    for label, level in levels_of(targets).items():
        ours = processor_to(runs[OURS]["curve"], level) if OURS in runs else None
        for name, line in runs.items():
            if ours and name != OURS and len(line["curve"][-1]) > 3:
                taken = processor_to(line["curve"], level)
                more = "" if taken is not None else " at least"
                ratio = (line["curve"][-1][3] if taken is None else taken) / ours
                ratios[f"{dataset} {label}: {name}{more}"] = round(ratio, 3)
    return ratios


def table(systems: list[str], targets: dict[str, Any]) -> str:
    text = [HEAD]
    for dataset in dict.fromkeys(line["dataset"] for line in lines()):
        levels = levels_of(targets.get(dataset, {}))
        heads = [f"{label} = {level:.4f}" for label, level in levels.items()]
        text += [f"## {dataset}", "", f"| | {' | '.join(heads)} | best | after s | all s | threads | load |"]
        text += ["|" + "---|" * (len(heads) + 6)]
        runs = latest(dataset)
        for name in (name for name in systems if name in runs):
            curve = runs[name]["curve"]
            cells = [_cell(curve, level) for level in levels.values()]
            best = max(curve, key=lambda point: point[2])
            last = f"{runs[name]['threads']} | {runs[name]['load']}"
            rest = f"{best[2]:.4f} | {best[1]:.1f} | {_all(curve)} | {last}"
            text.append(f"| {name} | {' | '.join(cells)} | {rest} |")
        text.append("")
    return "\n".join([*text, "![Validation NDCG@10 against seconds of training](time_to_quality.png)", ""])


def _cell(curve: list[list[float]], level: float) -> str:
    seconds, processor = seconds_to(curve, level), processor_to(curve, level)
    if seconds is None:
        return f"> {_all(curve)}"
    return f"{seconds:.2f}" if processor is None else f"{seconds:.2f} ({processor:.2f})"


def _all(curve: list[list[float]]) -> str:
    """All seconds, and those of the processor where they were taken."""
    _, seconds, _, *processor = curve[-1]
    return f"{seconds:.0f}" + "".join(f" ({each:.0f})" for each in processor)


def draw(systems: list[str], targets: dict[str, Any]) -> None:
    """A curve a system, a panel a data set; ours are thick."""
    datasets = list(dict.fromkeys(line["dataset"] for line in lines()))
    looks = {name: _look(place, name) for place, name in enumerate(systems)}
    with drawn(RESULTS / "time_to_quality.png", width=3.4 * len(datasets) + 1.5, height=3.4) as figure:
        axes = figure.subplots(1, len(datasets), squeeze=False)[0]
        for axis, dataset in zip(axes, datasets, strict=True):
            runs = latest(dataset)
            for name in (name for name in systems if name in runs):
                _, seconds, values, *_ = zip(*runs[name]["curve"], strict=True)
                axis.plot(seconds, values, **looks[name])
            for level in levels_of(targets.get(dataset, {})).values():
                axis.axhline(level, color="0.8", linewidth=0.8, zorder=0)
            axis.set(xscale="log", title=dataset)
        axes[0].set_ylabel("validation NDCG@10, 99 negatives")
        figure.supxlabel("seconds of training; grey lines: 95 and 99 % of tuned BPR and ALS")
        shown = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
        figure.legend(shown.values(), shown.keys(), loc="outside right upper")


def _look(place: int, name: str) -> dict[str, Any]:
    if name.startswith(OURS):
        style = "-" if name == OURS else "--"
        return {"label": name, "color": COLOURS[0], "linestyle": style, "linewidth": 2.2, "zorder": 3}
    return {"label": name, "color": COLOURS[place - 1], "linewidth": 1.0, "marker": "."}

"""What HDCCF learns: MovieLens over seeds, its parts switched on and off, worlds whose truth is known.

    python benchmarks/learning.py [STUDY …] [--seeds N]

Every finished run is a line of results/learning.jsonl, and a line that is there is not run again, so the
command goes on where it was stopped. results/learning.md and .png are written from the lines, the figure also
from results/table; --report does only that. Settings are fixed here; the epoch is the one that validation
chose. ML-1M's test figures were seen while its settings were explored, and `time-blind` was changed after one
(decision 08).
"""

import argparse
import csv
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

import hdccf
from hdccf.console import note
from hdccf.data.synthetic import World, synthetic_world
from hdccf.experiments.plans import TITLES
from hdccf.models import entry_named
from hdccf.models.hdccf.settings import PRESETS
from hdccf.plots import OURS, PALER, REFERENCE, Bar, draw_panels, drawn, ordered

RESULTS = Path(__file__).parent.parent / "results"
LINES = RESULTS / "learning.jsonl"
METRIC = ("sampled", "ndcg@10")
MOVIELENS = ("hr@10", "ndcg@10", "ndcg@50")


@dataclass(frozen=True)
class Row:
    """One line of a table: a name, the data, and what differs from the defaults."""

    name: str
    dataset: str
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: int = 5
    model: str = "hdccf"


FREE, RECENCY = PRESETS["time-blind"], PRESETS["recency"]
ATTENTION, SPECTRAL = PRESETS["attention"], PRESETS["spectral"]
# The preset before it looked 200 items back (decision 09); as it is now it has its row in
# `hdccf reproduce table`, time-aware.
SHORT = {**ATTENTION, "history_length": 50, "ahead": 1, "block_users": 64, "evaluate_every": 2}
# Both sides, as in Eq. 14, and a size at which the modulation is affordable on two cores.
BOTH = {**FREE, "embedding_dim": 32, "temperature": 0.2, "user_side": 0.3, "epochs": 100, "patience": 6}
MODULATED = {"similarity": "modulated"}
WARM = {"temperature": 0.5}
WORLDS = {"constant": 0.0, "half": 0.5, "popular": 1.0}

STUDIES: dict[str, list[Row]] = {
    "ml-100k": [
        Row("most popular", "ml-100k", seeds=1, model="most-popular"),
        Row("history (default)", "ml-100k"),
        Row("attention to 50 items", "ml-100k", SHORT),
        Row("the same, random start", "ml-100k", {**SHORT, "start": "random", "init_std": 0.1}),
        Row("time-blind", "ml-100k", FREE),
        Row("spectral", "ml-100k", SPECTRAL),
        Row("recency", "ml-100k", RECENCY),
    ],
    "ml-1m": [
        Row("most popular", "ml-1m", seeds=1, model="most-popular"),
        Row("time-blind", "ml-1m", FREE, seeds=1),
        Row("recency", "ml-1m", RECENCY, seeds=1),
        Row("history (default)", "ml-1m", seeds=1),
        Row("spectral", "ml-1m", SPECTRAL, seeds=1),
        Row("attention to 50 items", "ml-1m", SHORT, seeds=1),
    ],
    "parts": [
        Row("cosine, τ .2", "ml-100k", BOTH),
        Row("modulated, τ .2", "ml-100k", {**BOTH, **MODULATED}),
        Row("cosine, τ .2, ω .002", "ml-100k", {**BOTH, "omega_items": 0.002, "omega_users": 0.002}),
        Row("cosine, τ .5", "ml-100k", {**BOTH, **WARM}),
        Row("cosine, τ .5, ω .02", "ml-100k", {**BOTH, **WARM, "omega_items": 0.02, "omega_users": 0.02}),
    ],
    "worlds": [
        Row(f"exposure {name}: {label}", f"synthetic:{exposure}", {**BOTH, **WARM, **settings}, seeds=2)
        for name, exposure in WORLDS.items()
        for label, settings in (
            ("cosine", {}),
            ("cosine, the true mean ω", {"omega_items": -1.0}),
            ("modulated", MODULATED),
        )
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], help="which; all if none is named")
    parser.add_argument("--seeds", type=int, default=None, help="at most this many seeds a row")
    parser.add_argument("--report", action="store_true", help="run nothing: the tables and the figure only")
    arguments = parser.parse_args()
    done = {(line["study"], line["row"], line["seed"]) for line in _lines()}
    for study in () if arguments.report else arguments.studies or STUDIES:
        for row in STUDIES[study]:
            for seed in range(min(row.seeds, arguments.seeds or row.seeds)):
                if (study, row.name, seed) not in done:
                    note(f"{study}: {row.name}, seed {seed}")
                    record = {"study": study, "row": row.name, "seed": seed, **_run(row, seed)}
                    with LINES.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
    (RESULTS / "learning.md").write_text(_tables(), encoding="utf-8")
    _draw()


def _run(row: Row, seed: int) -> dict[str, Any]:
    kind, _, exposure = row.dataset.partition(":")
    world = synthetic_world(exposure=float(exposure), seed=seed) if exposure else None
    data = world.interactions if world else hdccf.load(kind)
    split = hdccf.leave_one_out(hdccf.k_core(data, users=5, items=5))
    settings = dict(row.settings)
    if settings.get("omega_items") == -1.0 and world is not None:
        # The share of false negatives that the world really has, on average.
        settings["omega_items"] = float(world.omega_items.mean())
        settings["omega_users"] = float(world.omega_users.mean())
    model = hdccf.fit(split, entry_named(row.model).settings(**settings), seed=seed)
    found = hdccf.evaluate(model, split)
    values = {
        f"{protocol} {name}": found.values[protocol][name] for protocol in found.values for name in MOVIELENS
    }
    if world is not None:
        values |= _on_the_truth(world, split, model)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {"values": values, "settings": settings, "commit": commit.stdout.strip(), "seconds": model.seconds}


def _on_the_truth(world: World, split: hdccf.Split, model: hdccf.Recommender) -> dict[str, float]:
    """How well scores of unobserved items tell what a user truly likes: AUC and precision@10 over users."""
    world_users, world_items = world.codes_of(split.train)
    seen = (split.train.matrix + split.validation.matrix + split.test.matrix).tocsr()
    areas, hits = [], []
    for users in torch.split(torch.arange(split.n_users), 256):
        scores = model.score_block(users).numpy()
        liked = world.liked(world_users[users.numpy()], world_items)
        for row, user in enumerate(users.tolist()):
            open_ = np.ones(split.n_items, np.bool_)
            open_[seen.indices[seen.indptr[user] : seen.indptr[user + 1]]] = False
            order = np.argsort(-scores[row, open_], kind="stable")
            truth = liked[row, open_][order]
            if 0 < truth.sum() < len(truth):
                # Liked items before each disliked one, over all such pairs.
                areas.append(np.cumsum(truth)[~truth].mean() / truth.sum())
                hits.append(truth[:10].mean())
    return {"true auc": float(np.mean(areas)), "true precision@10": float(np.mean(hits))}


def _lines() -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
        if LINES.exists()
        else []
    )


def _tables() -> str:
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in _lines():
        groups[line["study"]][line["row"]].append(line)
    text = ["# What HDCCF learns", ""]
    text += [
        "`python benchmarks/learning.py`; each run, with settings and commit, is a line of `learning.jsonl`."
    ]
    text += [
        "Mean ± deviation over seeds, on the test part, at the epoch that validation chose. ML-1M's test"
    ]
    text += [
        "was seen while settings were explored; `time-blind` was changed after it (decision 08). The rows",
        "`history (default)` are from random vectors, the default until decision 10 made it the spectral "
        "start.",
        "",
    ]
    for study, rows in groups.items():
        names = list(next(iter(rows.values()))[0]["values"])
        text += [f"## {study}", "", "| | seeds | " + " | ".join(names) + " | seconds |"]
        text += ["|" + "---|" * (len(names) + 3)]
        for row, lines in rows.items():
            cells = [_cell([line["values"][name] for line in lines]) for name in names]
            seconds = mean(line["seconds"] for line in lines)
            text.append(f"| {row} | {len(lines)} | " + " | ".join(cells) + f" | {seconds:.0f} |")
        text.append("")
    return "\n".join(text)


COMPETITORS = 3
"""Of each table, the best over both data sets."""
TIMED = ("history (default)", "attention to 50 items", "the same, random start", "recency")
SHOWN = {
    "history (default)": "HDCCF: history, random start",
    "the same, random start": "HDCCF: attention to 50, random start",
    "most popular": "most popular",
}


def _draw() -> None:
    """NDCG@10 of HDCCF's presets and of the best tuned competitors, with and without times, over seeds."""
    panels: dict[str, dict[str, Bar]] = {}
    colours: dict[str, str] = {}
    for study in ("ml-100k", "ml-1m"):
        panels[study] = {}
        for row in STUDIES[study]:
            values = [
                line["values"]["sampled ndcg@10"]
                for line in _lines()
                if (line["study"], line["row"]) == (study, row.name)
            ]
            if values:
                name = SHOWN.get(row.name, f"HDCCF: {row.name}")
                panels[study][name] = Bar(mean(values), stdev(values) if len(values) > 1 else 0.0)
                shade = OURS if row.model == "hdccf" else REFERENCE
                colours[name] = shade if row.name in TIMED else PALER[shade]
    for suffix, ending, ours, theirs in (
        ("-time", ", times", OURS, REFERENCE),
        ("", "", PALER[OURS], PALER[REFERENCE]),
    ):
        tables = {study: _table_of(f"{study}{suffix}") for study in panels}
        competitors = {
            study: {name: bar for name, bar in table.items() if not name.startswith("hdccf")}
            for study, table in tables.items()
        }
        for name in ["hdccf", "hdccf-calibrated", *ordered(competitors)[:COMPETITORS]]:
            label = f"{TITLES[name].removesuffix(' (ours)')}, tuned{ending}"
            colours[label] = ours if name.startswith("hdccf") else theirs
            for study, table in tables.items():
                if name in table:
                    panels[study][label] = table[name]
    height = 1.2 + 0.19 * len(ordered(panels))
    with drawn(RESULTS / "learning.png", width=8.0, height=height) as figure:
        axes = figure.subplots(1, 2)
        draw_panels(axes, panels, colours, across=2, last=("most popular",))
        figure.supxlabel("test NDCG@10, 99 uniform negatives (tuned: results/table; others: learning.md)")
        kinds = {
            "HDCCF, uses times": OURS,
            "HDCCF, does not": PALER[OURS],
            "competitor, uses times": REFERENCE,
            "competitor, does not": PALER[REFERENCE],
        }
        handles = [axes[0].barh(0, 0, color=colour) for colour in kinds.values()]
        figure.legend(handles, kinds, loc="outside upper center", ncols=4)


def _table_of(name: str) -> dict[str, Bar]:
    """NDCG@10 of each model of a table of results."""
    with (RESULTS / "table" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["protocol"], row["metric"]) == METRIC]
    spreads = [0.0 if row["std"] == "nan" else float(row["std"]) for row in rows]
    return {row["model"]: Bar(float(row["mean"]), spread) for row, spread in zip(rows, spreads, strict=True)}


def _cell(values: list[float]) -> str:
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread}"


if __name__ == "__main__":
    main()

"""Seconds of training until attention over the history is as good as earlier code and as RecTools' SASRec.

    python benchmarks/attention_time.py [--dataset ml-1m] [--before 394c5b1] [--minutes 8]

Three systems in one run, one after the other, one thread each: the attention of the automatic choice as the
commit `--before` had it (in a worktree of its own), RecTools' SASRec with a softmax as benchmarks/defaults.py
takes it, for so many minutes of the processor, and the attention of this code. After each epoch they are
ranked by full NDCG@10 of the next item on validation, uncalibrated. The other two are trained to their best,
ours until it is as good as both. Seconds are of the processor; ours, earlier and now, have the evaluations
in them, SASRec has its own training only.

The curves go to results/attention_time.json, what follows from them to results/attention_time.md.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from curves import Validator
from defaults import SASREC, dot
from defaults_report import RESULTS
from hdccf.console import note
from hdccf.evaluation.evaluation import markdown_table
from hdccf.experiments.plans import open_split
from hdccf.experiments.reproduce import commit_of
from peers.asked import SASRec

METRIC = "full:ndcg@10"
PATIENCE = 3
SHARES = (0.9, 0.95, 1.0)
Point = tuple[int, float, float]
"""Epoch, seconds of the processor, value."""

TRAIN = """
import json, sys, time
from hdccf.config import FitOptions
from hdccf.experiments.plans import open_split
from hdccf.models.hdccf.settings import automatic_candidates
from hdccf.training.fit import StopTraining, fit
dataset, enough, patience, metric = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
split = open_split(dataset)
settings = automatic_candidates(split.train)["attention"].changed(patience=patience, calibrate="off")
begun = time.process_time()
def watch(record):
    value = record["validation"][metric]
    print(json.dumps([record["epoch"], round(time.process_time() - begun, 1), round(value, 5)]), flush=True)
    if value >= enough:
        raise StopTraining
fit(split, settings, seed=0, options=FitOptions(threads=1, calibrate=False), on_evaluation=watch)
"""
"""Run by the code of each of both commits."""


def train_attention(source: Path, dataset: str, enough: float = math.inf) -> list[Point]:
    """The automatic attention of the code in a folder, until it is good enough or no longer gets better."""
    command = [sys.executable, "-c", TRAIN, dataset, str(enough), str(PATIENCE), METRIC]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    points: list[Point] = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.startswith("["):
                points.append(tuple(json.loads(line)))
                note(f"{source.parent.name}: epoch, seconds, value: {line.strip()}")
    if process.returncode:
        raise SystemExit(f"the training with the code in {source} failed")
    return points


def train_sasrec(dataset: str, minutes: float) -> list[Point]:
    """RecTools' SASRec, for so many minutes."""
    split = open_split(dataset)
    measure, seconds, points = Validator(split, METRIC), 0.0, list[Point]()
    with (
        tempfile.TemporaryDirectory() as folder,
        SASRec(split.train, Path(folder), dict(SASREC), 0) as peer,
    ):
        while seconds < 60 * minutes:
            _, processor, p, q = peer.train()
            seconds += processor
            points.append((len(points) + 1, round(seconds, 1), round(measure(dot(p, q)), 5)))
            note(f"SASRec: epoch, seconds, value: {points[-1]}")
    return points


def seconds_to(points: list[Point], value: float) -> float:
    """Until a value is reached; not a number where it never is."""
    return next((seconds for _, seconds, reached in points if reached >= value), math.nan)


def report(facts: dict[str, object], curves: dict[str, list[Point]]) -> str:
    """The page: for shares of what each of the other two reaches, their seconds and ours."""
    rows = []
    *others, now = curves
    for other in others:
        best = max(value for _, _, value in curves[other])
        for share in SHARES:
            theirs, ours = (seconds_to(curves[name], share * best) for name in (other, now))
            rows.append(
                [other, f"{share:.0%} of {best:.4f}", f"{theirs:.0f}", f"{ours:.0f}", f"{theirs / ours:.1f}"]
            )
    table = markdown_table(["against", "validation NDCG@10", "seconds", "ours, seconds", "ratio"], rows)
    said = "; ".join(f"{name} {value}" for name, value in facts.items())
    return (
        "# Seconds to the same quality: attention over the history\n\n`python benchmarks/attention_time.py`; "
        "processor seconds of one thread until full NDCG@10 of the next item on validation is a share of "
        "what the other reaches. Curves are in `attention_time.json`.\n\n"
        f"{table}\n\n{said}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="ml-1m")
    parser.add_argument("--before", default="394c5b1", help="a commit to compare with")
    parser.add_argument("--minutes", type=float, default=8.0, help="of RecTools' SASRec")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of both files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"commit {options.before}"
        git = ["git", "-C", str(here), "worktree"]
        subprocess.run([*git, "add", "--detach", str(place), options.before], check=True)
        try:
            before = train_attention(place / "src", options.dataset)
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)
    sasrec = train_sasrec(options.dataset, options.minutes)
    enough = max(value for _, _, value in before + sasrec)
    now = train_attention(here / "src", options.dataset, enough)
    curves = {f"commit {options.before}": before, "RecTools SASRec": sasrec, "this code": now}
    facts: dict[str, object] = {
        "data": options.dataset,
        "seed": 0,
        "commit": commit_of(here / "src"),
        "machine": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
    }
    (options.out / "attention_time.json").write_text(json.dumps({**facts, "curves": curves}) + "\n")
    (options.out / "attention_time.md").write_text(report(facts, curves), encoding="utf-8")


if __name__ == "__main__":
    main()

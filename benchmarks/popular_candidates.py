"""The popularity dial beside tuned competitors where candidates are drawn by popularity, without times.

    python benchmarks/popular_candidates.py [--dataset ml-100k ml-1m] [--trials 20] [--minutes 2]

Leave-one-out, 99 candidates drawn by popularity. Every competitor is tuned for this metric on validation
(`hdccf tune`'s search space, the same trials and processor minutes for each); those that draw negatives are
tuned a second time with a sampler by popularity. The dial is then chosen on validation for every row. HDCCF
is the preset `spectral`, not tuned: its dial is what is in question. Each row is tested once.

Each row is a line of results/popular_candidates.jsonl, and one that is there is not run again; studies are
kept in --studies, so that an interrupted call goes on. results/popular_candidates.md is made of the lines.
"""

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import hdccf
from defaults import split_of
from defaults_report import RESULTS, Line, read_lines
from hdccf.config import TrainingSettings, build_settings
from hdccf.console import note
from hdccf.data.split import PARTS, Split
from hdccf.evaluation.evaluation import markdown_table
from hdccf.experiments.reproduce import commit_of
from hdccf.experiments.studies import Budget, Question
from hdccf.experiments.tuning import tune
from hdccf.models import entry_named
from hdccf.models.hdccf.settings import PRESETS
from hdccf.training.calibrate import Calibrator

METRIC = "popular:ndcg@10"
NAMES = ("ml-100k", "ml-1m")
BY_POPULARITY: dict[str, Any] = {"sampler": "popularity"}
SPECTRAL = {**PRESETS["spectral"], "calibrate": "popularity"}
ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "HDCCF": ("hdccf", SPECTRAL, False),
    "HDCCF, dial and filter": ("hdccf", PRESETS["spectral"], False),
    "HDCCF, trained with β = 0": ("hdccf", {**SPECTRAL, "frequency_correction": 0.0}, False),
    "HDCCF, tuned with β = 0": ("hdccf", {"calibrate": "popularity", "frequency_correction": 0.0}, True),
    "EASE": ("ease", {}, True),
    "ALS": ("als", {}, True),
    **{
        f"{name}{words}": (name.lower().replace("++", "pp"), fixed, True)
        for name in ("BPR", "PMF", "SVD++", "NeuMF")
        for words, fixed in (("", {}), (", negatives by popularity", BY_POPULARITY))
    },
    "ENMF": ("enmf", {}, True),
    "LightGCN": ("lightgcn", {}, True),
    "IRGAN": ("irgan", {}, True),
    "SD-GAR": ("sd-gar", {}, True),
    "SSM": ("ssm", {}, True),
}
"""Row → model, what is fixed, and whether it is tuned."""
OWN_LOSS = ("hdccf", "ssm")
"""Models with HDCCF's loss: no competitors in the ratio."""
HEAD = """# The popularity dial where candidates are drawn by popularity

`python benchmarks/popular_candidates.py`; each row is a line of `popular_candidates.jsonl`, with its
settings and the commit. Leave-one-out, 99 candidates drawn by popularity, without times, seed 0; test part,
looked at once a row.

- Competitors are tuned for this metric on validation, each with the trials or processor minutes that stand
  under the table, whichever end first; models that draw negatives are tuned again with negatives drawn by
  popularity.
- "dialled": scores shifted by γ·log frequency, γ chosen on validation by the same metric. All rows get it.
- HDCCF is the preset `spectral`, one training with β = 1, not tuned. SSM has the same loss without negative
  users; on blocks its vectors are those of HDCCF, so it is no competitor in the ratio.
- Rows that are missing were not run. Slow models had few trials: more of them may change the order.
- The aim was a lead of 15 %, and it is not there: on ml-100k's *validation* part the best of HDCCF's 20 tuned
  trials has .2796, the best of 13 more random settings (β from 0 to 1, both sides, 64 to 256 dimensions,
  both starts, dialled) .2789, and BPR with negatives by popularity .2699.
"""


def run(dataset: str, split: Split, row: str, budget: Budget, studies: Path) -> Line:
    """Tunes, trains and tests a row; its line of the journal."""
    model, fixed, tuned = ROWS[row]
    kind, begun = entry_named(model).settings, time.process_time()
    values, told = dict(fixed), dict[str, Any]()
    if tuned:
        question = Question(model, dataset, split.fingerprint, METRIC, fixed=fixed)
        name = f"{dataset}-{model}{'-popularity' if fixed else ''}"
        studies.mkdir(parents=True, exist_ok=True)
        study, out = str(studies / f"{name}.journal"), studies / f"{name}.toml"
        found = tune(split, question, budget, study=study, out=out, threads=torch.get_num_threads())
        values |= found.settings
        told = {"trials": found.trials, "minutes": round(found.minutes, 2), "validation": found.value}
    own = {"validation_metric": METRIC} if issubclass(kind, TrainingSettings) else {}
    settings = build_settings(kind, values, own)
    fitted = hdccf.fit(split, settings, options=hdccf.FitOptions(calibrate=False))
    plain = fitted.model.scorer()
    calibration = Calibrator(split, METRIC)(fitted.model)
    dialled = calibration.apply(plain, split.train)
    return {
        "dataset": dataset,
        "row": row,
        "settings": values,
        "plain": measured(plain, split),
        "dialled": measured(dialled, split),
        "popularity": calibration.popularity,
        **told,
        "budget": {"trials": budget.trials, "minutes": budget.minutes},
        "processor": round(time.process_time() - begun, 1),
        "commit": commit_of(Path(__file__).parent.parent / "src"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def without_times(split: Split) -> Split:
    """The same parts; nothing that is learnt or calibrated knows the order of a history."""
    train, validation, test = (replace(split.part(part), times=None) for part in PARTS)
    return replace(split, train=train, validation=validation, test=test)


def measured(scorer: Any, split: Split) -> float:
    found = hdccf.evaluate(scorer, split, protocols=("sampled",), ks=(10,), weighting="popularity")
    return round(found.values["sampled"]["ndcg@10"], 5)


def report(lines: list[Line]) -> str:
    """The page: a table for each data set, and the ratio to the best competitor."""
    parts = [HEAD]
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        found = {line["row"]: line for line in lines if line["dataset"] == dataset}
        table = [
            [
                row,
                f"{line['plain']:.4f}",
                f"{line['dialled']:.4f}",
                f"{line['popularity']:+.2f}",
                str(line.get("trials", "")),
            ]
            for row, line in sorted(found.items(), key=lambda each: -each[1]["dialled"])
        ]
        columns = ["", "NDCG@10, by popularity", "dialled", "γ", "trials"]
        parts.append(f"\n## {dataset}\n\n{markdown_table(columns, table)}\n")
        others = {row: line for row, line in found.items() if ROWS[row][0] not in OWN_LOSS}
        if "HDCCF" in found and others:
            ours = found["HDCCF"]["dialled"]
            best = max(others, key=lambda row: others[row]["plain"])
            shifted = max(others, key=lambda row: max(others[row]["dialled"], others[row]["plain"]))
            figures = others[shifted]
            budget = next(line["budget"] for line in others.values())
            shares = [ours / others[best]["plain"], ours / max(figures["plain"], figures["dialled"])]
            parts.append(
                f"\n{budget['trials']} trials or {budget['minutes']:g} processor minutes a study. HDCCF "
                f"with its dial is {shares[0] - 1:+.1%} from the best competitor ({best}), "
                f"and {shares[1] - 1:+.1%} from the best that has our dial as well ({shifted}).\n"
            )
    return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=2.0, help="of the processor, for each row's tuning")
    parser.add_argument("--studies", type=Path, default=Path("runs/popular_candidates"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the journal and the table")
    options = parser.parse_args()
    file, budget = options.out / "popular_candidates.jsonl", Budget(options.trials, options.minutes)
    for dataset in options.dataset:
        split = without_times(split_of(dataset))
        for row in options.rows:
            done = {(line["dataset"], line["row"]) for line in read_lines(file)}
            if (dataset, row) in done:
                continue
            note(f"{dataset}: {row}")
            line = run(dataset, split, row, budget, options.studies)
            note(f"{dataset}: {row} {line['plain']}, dialled {line['dialled']}, {line['processor']:.0f} s")
            with file.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line, ensure_ascii=False) + "\n")
    lines = read_lines(file)
    (options.out / "popular_candidates.md").write_text(report(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

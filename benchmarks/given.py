"""The default where each user's validation item is part of the history, as sequential models are published.

    python benchmarks/given.py [--dataset beauty ml-1m] [--seeds 3]

Leave-one-out, all items ranked but those the user had. `hdccf.fit(split)` chooses on validation as ever and
is not trained again; only the histories that it answers for are longer by the validation item. Each training
is a line of results/given.jsonl, and one that is there is not run again; results/given.md is made of these.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import hdccf
from defaults import split_of
from defaults_report import RESULTS, Line, read_lines
from hdccf.console import note
from hdccf.evaluation.evaluation import markdown_table
from hdccf.experiments.reproduce import commit_of
from hdccf.models.hdccf.settings import automatic_candidates

METRICS = ("hr@10", "ndcg@10")
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "beauty": {
        "BSARec": (0.1008, 0.0611),
        "eSASRec": (0.0928, 0.0523),
        "SASRec, sampled softmax": (0.0921, 0.0531),
        "SASRec, as in S3-Rec's paper": (0.0605, 0.0318),
    },
    "ml-1m": {
        "HSTU-large with a mixture of logits": (0.346, 0.201),
        "HSTU, full softmax": (0.342, 0.194),
        "SASRec+, 3,000 negatives": (0.316, 0.186),
        "eSASRec": (0.313, 0.177),
        "BERT4Rec": (0.284, 0.154),
        "SASRec, one negative": (0.250, 0.134),
    },
}
"""By others, in this protocol; HSTU's lose the order of same-second events."""
HEAD = """# With the validation item given

`python benchmarks/given.py`; each training is a line of `given.jsonl`, with its settings and the commit.
Leave-one-out; trained and chosen without the validation items, which are the end of the histories when the
test items are ranked among all others. Most published figures of sequential models are made so; those below
are their authors', on the same file (Beauty: that of S3-Rec) or ratings, most of them tuned. Not comparable
with the other tables.
"""


def run(dataset: str, split: hdccf.Split, seed: int) -> Line:
    """Trains the default, and tests it without and with the validation items."""
    begun = time.process_time()
    candidates = automatic_candidates(split.train)
    model = hdccf.fit(split, candidates, seed=seed)
    seconds = round(time.process_time() - begun, 1)
    chosen = next(name for name, settings in candidates.items() if settings == model.settings)
    found = {history: measured(model.scorer(history), split) for history in ("train", "validation")}
    return {
        "dataset": dataset,
        "seed": seed,
        "chosen": chosen,
        "settings": model.settings.model_dump(mode="json"),
        "calibration": model.calibration.describe(),
        "without": found["train"],
        "given": found["validation"],
        "processor": seconds,
        "split": split.fingerprint,
        "commit": commit_of(Path(__file__).parent.parent / "src"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def measured(scorer: Any, split: hdccf.Split) -> dict[str, float]:
    values = hdccf.evaluate(scorer, split, protocols=("full",), metrics=METRICS).values["full"]
    return {name: round(values[name], 5) for name in METRICS}


def report(lines: list[Line]) -> str:
    """The page: for each data set ours, without and with the validation items, and what others published."""
    parts = [HEAD]
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        own = [line for line in lines if line["dataset"] == dataset]
        rows = [
            [f"**the default**{words}", *(shown([line[key][name] for line in own]) for name in METRICS)]
            for words, key in ((", given", "given"), (", not given", "without"))
        ]
        others = PUBLISHED.get(dataset, {})
        rows += [[f"*published:* {name}", *(f"{v:.4f}" for v in values)] for name, values in others.items()]
        seeds = ", ".join(f"{line['seed']} ({line['chosen']})" for line in own)
        commits = ", ".join(dict.fromkeys(line["commit"] for line in own))
        table = markdown_table(["", *(name.upper() for name in METRICS)], rows)
        seconds = f"{mean(line['processor'] for line in own):.0f} processor seconds a training"
        parts.append(f"\n## {dataset}\n\n{table}\n\nSeeds {seeds}; {seconds}; commit {commits}.\n")
    return "".join(parts)


def shown(values: list[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the journal and the table")
    options = parser.parse_args()
    file = options.out / "given.jsonl"
    for dataset in options.dataset:
        split = split_of(dataset)
        for seed in range(options.seeds):
            if (dataset, seed) in {(line["dataset"], line["seed"]) for line in read_lines(file)}:
                continue
            line = run(dataset, split, seed)
            note(f"{dataset}, seed {seed}: {line['without']}, given {line['given']}, {line['processor']} s")
            with file.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line, ensure_ascii=False) + "\n")
    (options.out / "given.md").write_text(report(read_lines(file)), encoding="utf-8")


if __name__ == "__main__":
    main()

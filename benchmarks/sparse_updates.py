"""What updating only the touched rows costs in quality: SparseAdam against dense Adam, seed by seed.

    python benchmarks/sparse_updates.py [--dataset ml-100k] [--seeds 3]

BPR on pairs with its own settings, dimension 64, and HDCCF on blocks of a part of the catalogue; validation
chooses the epoch, and the test part is looked at once a training. Prints a table for results/benchmarks.md.
"""

import argparse
from statistics import mean
from typing import Any

import hdccf
from hdccf.experiments.plans import open_split
from hdccf.models.factorization import BPR
from hdccf.models.hdccf.settings import HDCCF, PRESETS

SCHEDULE: dict[str, Any] = {"evaluate_every": 5, "patience": 3, "epochs": 100}
MODELS: dict[str, Any] = {
    "BPR": BPR(learning_rate=3e-3, l2=7e-3, **SCHEDULE),
    "HDCCF, blocks of 512 items": HDCCF(**{**PRESETS["time-blind"], **SCHEDULE, "block_items": 512}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    split = open_split(options.dataset)
    print("| | Adam | validation NDCG@10 | test NDCG@10 | mean of both |\n|---|---|---|---|---|")
    for name, settings in MODELS.items():
        for label, sparse in (("dense", False), ("touched rows", True)):
            parts: dict[str, list[float]] = {"validation": [], "test": []}
            for seed in range(options.seeds):
                fitted = hdccf.fit(split, settings.changed(sparse_updates=sparse), seed=seed)
                for part, values in parts.items():
                    values.append(hdccf.evaluate(fitted, split, part).values["sampled"]["ndcg@10"])
            cells = [" ".join(f"{value:.4f}" for value in values) for values in parts.values()]
            means = " ".join(f"{mean(values):.4f}" for values in parts.values())
            print(f"| {name} | {label} | {' | '.join(cells)} | {means} |", flush=True)


if __name__ == "__main__":
    main()

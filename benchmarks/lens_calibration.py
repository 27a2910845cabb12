"""How often an unobserved item is liked, beside how likely the lens says it is, where the truth is known.

    python benchmarks/lens_calibration.py --figure docs/images/lens-calibration.png

Three worlds: Theorem 1's (what is seen is a random part of what is liked), tastes that drift with the last
items held out, and exposure by popularity, where the lens' assumption does not hold. About a minute each.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import hdccf
from hdccf.data.split import Split
from hdccf.data.synthetic import World
from hdccf.lens import look, units_of
from hdccf.recommend import Recommender

EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FEWEST = 100
BLIND = {"user_vector": "free", "embedding_dim": 64, "temperature": 0.12, "user_side": 0.0}

Bucket = tuple[float, float, int]
"""Mean probability, true rate, pairs."""


def worlds(size: int) -> dict[str, tuple[World, Split, hdccf.HDCCF]]:
    still = hdccf.synthetic_world(size, drift=0.0)
    drifting = hdccf.synthetic_world(size, drift=1.0)
    famous = hdccf.synthetic_world(size, drift=0.0, exposure=1.0)
    last = hdccf.leave_one_out(drifting.interactions)
    blind = hdccf.HDCCF.model_validate(BLIND)
    return {
        "Theorem 1's world, random split": (still, hdccf.random_split(still.interactions, seed=0), blind),
        "drifting tastes, leave one out": (drifting, last, hdccf.HDCCF()),
        "exposure by popularity, random split": (
            famous,
            hdccf.random_split(famous.interactions, seed=0),
            blind,
        ),
    }


def unobserved(world: World, model: Recommender) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of every pair that is not in training: the score in the user's units, and whether it is liked."""
    train = model.split.train
    left = np.ones((train.n_users, train.n_items), np.bool_)
    left[train.users, train.items] = False
    scores = model.score_block(torch.arange(train.n_users)).double().numpy()
    units = np.stack([units_of(row[some]).of(row) for row, some in zip(scores, left, strict=True)])
    return units[left], world.liked(*world.codes_of(train))[left]


def buckets(predicted: NDArray[np.float64], liked: NDArray[np.bool_]) -> list[Bucket]:
    which = np.digitize(predicted, EDGES)
    return [
        (float(predicted[which == k].mean()), float(liked[which == k].mean()), int((which == k).sum()))
        for k in np.unique(which)
        if (which == k).sum() >= FEWEST
    ]


def draw(found: dict[str, list[Bucket]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0.005, 0.7], [0.005, 0.7], color="grey", linewidth=1, label="calibrated")
    for (name, points), marker in zip(found.items(), "os^", strict=True):
        axes.plot([p for p, _, _ in points], [t for _, t, _ in points], marker=marker, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="probability of being a false negative, ω·p⁺/p",
        ylabel="share that is liked",
    )
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=30_000, help="interactions of each world")
    parser.add_argument("--figure", type=Path, help="where to draw it")
    asked = parser.parse_args()
    found = {}
    for name, (world, split, settings) in worlds(asked.size).items():
        model = hdccf.fit(split, settings, seed=0)
        lens = look(model, split)
        units, liked = unobserved(world, model)
        omega = float(liked.mean())
        found[name] = buckets(lens.probability(units, omega), liked)
        bounds = f"bounds {lens.least:.4f} to {lens.most:.4f}, between them {lens.between:.4f}"
        print(f"\n{name}: ω = {omega:.4f}; {bounds}")
        print("| said | true | pairs |\n|---:|---:|---:|")
        for said, true, pairs in found[name]:
            print(f"| {said:.3f} | {true:.3f} | {pairs:,} |")
    if asked.figure is not None:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()

"""How often an unobserved item is liked, beside how likely the lens says it is, where the truth is known.

    python benchmarks/lens_calibration.py --figure docs/images/lens-calibration.png

Three worlds: Theorem 1's (what is seen is a random part of what is liked), tastes that drift with the last
items held out, and exposure by popularity, where the lens' assumption does not hold. About a minute each.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import hdccf
from hdccf.data.split import Split
from hdccf.data.synthetic import World
from hdccf.plots import drawn
from hdccf.recommend.lens import compared, estimate, units_of
from hdccf.recommend.recommender import Recommender

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


def truth(world: World, model: Recommender) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """users × items: what is not in training, and what is liked."""
    train = model.split.train
    left = np.ones((train.n_users, train.n_items), np.bool_)
    left[train.users, train.items] = False
    return left, world.liked(*world.codes_of(train))


def in_units(model: Recommender, left: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.stack([units_of(row[some]).of(row) for row, some in zip(raw(model, left), left, strict=True)])


def raw(model: Recommender, left: NDArray[np.bool_]) -> NDArray[np.float64]:
    return model.score_block(torch.arange(len(left))).double().numpy()


def rank_odds(model: Recommender, left: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The logarithm of the odds that a score beats another one of the user's unobserved."""
    scores = raw(model, left)
    places = [np.searchsorted(np.sort(row[some]), row) for row, some in zip(scores, left, strict=True)]
    shares = (np.stack(places) + 0.5) / (left.sum(1, keepdims=True) + 1.0)
    odds: NDArray[np.float64] = np.log(shares / (1 - shares))
    return odds


def log_loss(values: NDArray[np.float64], model: Recommender, left: NDArray[np.bool_], liked: Any) -> float:
    """Of the likes of all unobserved pairs, with the true ω and densities of these values."""
    held_out = [values[part.users, part.items] for part in (model.split.validation, model.split.test)]
    some = np.random.default_rng(0).choice(values[left], 20_000, replace=False)
    lens = compared(np.concatenate(held_out), some, 0.0)
    said = np.clip(lens.probability(values[left], float(liked[left].mean())), 1e-6, 1 - 1e-6)
    return float(-np.where(liked[left], np.log(said), np.log1p(-said)).mean())


def buckets(predicted: NDArray[np.float64], liked: NDArray[np.bool_]) -> list[Bucket]:
    which = np.digitize(predicted, EDGES)
    return [
        (float(predicted[which == k].mean()), float(liked[which == k].mean()), int((which == k).sum()))
        for k in np.unique(which)
        if (which == k).sum() >= FEWEST
    ]


def draw(found: dict[str, list[Bucket]], path: Path) -> None:
    with drawn(path, width=5.2, height=4.0) as figure:
        axes = figure.add_subplot()
        axes.plot([0.005, 0.7], [0.005, 0.7], color="0.6", linewidth=1, label="calibrated")
        for (name, points), marker in zip(found.items(), "os^", strict=True):
            axes.plot([p for p, _, _ in points], [t for _, t, _ in points], marker=marker, label=name)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="probability of being a false negative, ω·p⁺/p",
            ylabel="share that is liked",
        )
        axes.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=30_000, help="interactions of each world")
    parser.add_argument("--figure", type=Path, help="where to draw it")
    asked = parser.parse_args()
    found = {}
    for name, (world, split, settings) in worlds(asked.size).items():
        model = hdccf.fit(split, settings, seed=0)
        lens = estimate(model, split)
        left, liked = truth(world, model)
        omega = float(liked[left].mean())
        found[name] = buckets(lens.probability(in_units(model, left)[left], omega), liked[left])
        bounds = f"bounds {lens.omega_min:.4f} to {lens.omega_max:.4f}, between them {lens.omega_mid:.4f}"
        print(f"\n{name}: ω = {omega:.4f}; {bounds}")
        print("| said | true | pairs |\n|---:|---:|---:|")
        for said, true, pairs in found[name]:
            print(f"| {said:.3f} | {true:.3f} | {pairs:,} |")
        for values in (raw, in_units, rank_odds):
            loss = log_loss(values(model, left), model, left, liked)
            print(f"log-loss by {values.__name__}: {loss:.4f}")
    if asked.figure is not None:
        draw(found, asked.figure)


if __name__ == "__main__":
    main()

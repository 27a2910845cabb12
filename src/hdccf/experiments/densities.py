"""How the scores of positive and of negative items lie, scaled to 0–100 as in the paper's figure."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hdccf.data.split import Split
from hdccf.evaluation.ranking import Ranker
from hdccf.models.base import Scorer

BINS = 50
TAIL = 0.01
"""Of each side, left out of the overlap's width: its ends would else be two outliers."""

_USERS_AT_ONCE = 1024


@torch.inference_mode()
def densities_of(scorer: Scorer, split: Split) -> dict[str, Any]:
    """Of the test items, and of the items of sampled ranking that their users never touched."""
    ranker = Ranker(split, "test")
    questions = ranker.questions
    positive, negative = [], []
    rows = np.repeat(np.arange(len(questions)), questions.held_out)
    for begin in range(0, len(rows), _USERS_AT_ONCE):
        some = slice(begin, begin + _USERS_AT_ONCE)
        users = torch.from_numpy(questions.users[rows[some]])
        items = torch.from_numpy(questions.items[some])
        positive.append(scorer.score_rows(users, items.unsqueeze(1)).numpy().ravel())
    for begin in range(0, len(questions), _USERS_AT_ONCE):
        some = slice(begin, begin + _USERS_AT_ONCE)
        drawn = ranker.negatives[some].astype(np.int64)
        users = torch.from_numpy(questions.users[some])
        found = scorer.score_rows(users, torch.from_numpy(np.maximum(drawn, 0))).numpy()
        negative.append(found[drawn >= 0])
    return described(np.concatenate(positive), np.concatenate(negative))


def described(positive: NDArray[Any], negative: NDArray[Any]) -> dict[str, Any]:
    """Densities over 0–100 in bins, the interval where both sides lie, and the area that they share."""
    lowest, highest = min(positive.min(), negative.min()), max(positive.max(), negative.max())
    span = max(float(highest - lowest), np.finfo(np.float32).tiny)
    sides = {
        name: 100.0 * (values.astype(np.float64) - lowest) / span
        for name, values in (("positive", positive), ("negative", negative))
    }
    edges = np.linspace(0.0, 100.0, BINS + 1)
    found = {name: np.histogram(values, edges, density=True)[0] for name, values in sides.items()}
    low = float(np.quantile(sides["positive"], TAIL))
    high = float(np.quantile(sides["negative"], 1 - TAIL))
    shared = float(np.minimum(found["positive"], found["negative"]).sum() * 100.0 / BINS)
    return {
        "bins": {name: [round(float(value), 6) for value in values] for name, values in found.items()},
        "interval": [round(low, 3), round(max(low, high), 3)],
        "width": round(max(0.0, high - low), 3),
        "shared_area": round(shared, 4),
    }

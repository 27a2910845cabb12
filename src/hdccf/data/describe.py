"""What is in some interactions, in figures: how many, how dense, when, and how unevenly spread."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdccf.data.interactions import Interactions

QUANTILES = {"least": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9, "most": 1.0}


def describe(data: Interactions, *, rows: int = 5) -> dict[str, Any]:
    """Plain figures, fit for a table or for JSON; `rows` says how many pairs are shown as examples."""
    times = data.time_range
    return {
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "density": data.density,
        "first": None if times is None else f"{times[0].astype('datetime64[s]')}Z",
        "last": None if times is None else f"{times[1].astype('datetime64[s]')}Z",
        "repeated_pairs": int(np.count_nonzero(data.counts > 1)),
        "events": int(data.counts.sum()),
        "interactions_per_user": _spread(data.by_user.degrees),
        "interactions_per_item": _spread(data.by_item.degrees),
        "rows": _first_rows(data, rows),
        "fingerprint": data.fingerprint,
    }


def _spread(degrees: NDArray[np.int64]) -> dict[str, float]:
    if not len(degrees):
        return {}
    # "lower" gives counts that occur, not averages of two of them.
    found = np.quantile(degrees, list(QUANTILES.values()), method="lower")
    spread: dict[str, float] = {name: int(value) for name, value in zip(QUANTILES, found, strict=True)}
    return {**spread, "mean": round(float(degrees.mean()), 2)}


def _first_rows(data: Interactions, rows: int) -> list[dict[str, Any]]:
    head = data.subset(np.arange(min(rows, len(data))))
    examples = head.frame().with_row_index("row")
    shown = []
    for example in examples.iter_rows(named=True):
        item = int(head.items[example["row"]])
        line = {"user": example["user"], "item": example["item"]}
        if head.titles is not None:
            line["title"] = head.titles[item]
        if head.times is not None:
            line["time"] = f"{example['time'].isoformat(timespec='seconds')}Z"
        shown.append({**line, "count": example["count"]})
    return shown

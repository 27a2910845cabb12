"""The popularity dial's curve: accuracy, coverage and popularity of a run against γ."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdccf.config import EvaluationOptions
from hdccf.console import track
from hdccf.evaluation.evaluation import evaluate, markdown_table, rich_table
from hdccf.recommend.recommender import Recommender

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
_TITLES = {
    "popularity": "γ",
    "uniform": "NDCG, uniform negatives",
    "popular": "NDCG, popular negatives",
    "full": "NDCG, all items",
    "coverage": "coverage",
    "mean_popularity": "mean popularity",
}


@dataclass(frozen=True)
class Dial:
    """One row for each γ; print it, or read `rows`."""

    rows: list[dict[str, float]]
    k: int
    chosen: float
    """The γ of the run."""

    def to_json(self) -> str:
        return json.dumps({"k": self.k, "chosen": self.chosen, "rows": self.rows}, indent=2)

    def to_markdown(self) -> str:
        return f"{markdown_table(*self._table())}\n\n{self._legend()}\n"

    def __str__(self) -> str:
        return self.to_markdown()

    def __rich__(self) -> "RenderableType":
        from rich.console import Group

        return Group(rich_table(*self._table()), self._legend())

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = [title if name == "popularity" else f"{title} @{self.k}" for name, title in _TITLES.items()]
        rows = []
        for row in self.rows:
            dial = f"{row['popularity']:+.2f}" + (" *" if row["popularity"] == self.chosen else "")
            numbers = [f"{row[name]:.4f}" for name in ("uniform", "popular", "full", "coverage")]
            rows.append([dial, *numbers, f"{row['mean_popularity']:,.1f}"])
        return head, rows

    def _legend(self) -> str:
        return "* chosen on validation; below it more popular items, above it fewer (docs/theory.md)"

    def plot(self, path: Path) -> None:
        """Accuracy under each protocol, as a share of its best, and coverage, against γ."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        dial = [row["popularity"] for row in self.rows]
        for name in ("uniform", "popular", "full"):
            values = [row[name] for row in self.rows]
            axes.plot(dial, [value / max(values, default=1) for value in values], "o-", label=_TITLES[name])
        axes.plot(dial, [row["coverage"] for row in self.rows], "s--", color="grey", label="coverage")
        axes.axvline(self.chosen, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlabel="popularity dial γ", ylabel="share of the best; coverage", ylim=(0, 1.05))
        axes.legend()
        figure.savefig(path, format="png", dpi=150)


def popularity_curve(run: Recommender, options: EvaluationOptions, *, progress: bool = False) -> Dial:
    """Evaluates a run at settings of its popularity dial, under uniform, popularity-drawn and all candidates.

    Parameters
    ----------
    run
        A trained model.
    options
        Part, negatives, seed, memory and the length of the lists, the first of `ks`.
    progress
        Whether to show progress.

    Returns
    -------
    A row for each γ from −1 to 1 and for the run's own.

    Examples
    --------
    >>> print(popularity_curve(model, EvaluationOptions()))  # doctest: +SKIP
    """
    k, chosen = options.ks[0], run.calibration.popularity
    common: dict[str, Any] = {
        "part": options.part,
        "ks": (k,),
        "negatives": options.negatives,
        "seed": options.seed,
        "memory": options.memory,
        "similarity_users": 0,
    }
    rows = []
    settings = sorted({*SETTINGS, chosen})
    for dial in track(settings, "popularity dial", len(settings)) if progress else settings:
        scorer = run.scorer("train", dial)
        both = evaluate(scorer, run.split, **common).values
        popular = evaluate(
            scorer, run.split, protocols=("sampled",), weighting="popularity", **common
        ).values["sampled"]
        full = both["full"]
        rows.append(
            {
                "popularity": dial,
                "uniform": both["sampled"][f"ndcg@{k}"],
                "popular": popular[f"ndcg@{k}"],
                "full": full[f"ndcg@{k}"],
                "coverage": full[f"coverage@{k}"],
                "mean_popularity": full[f"popularity@{k}"],
            }
        )
    return Dial(rows, k, chosen)

"""Curves of a run against one number: the popularity dial γ, and the diversity of lists."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hdccf.config import EvaluationOptions
from hdccf.console import track
from hdccf.evaluation import metrics
from hdccf.evaluation.evaluation import evaluate, markdown_table, rich_table
from hdccf.evaluation.metrics import ListMetrics
from hdccf.evaluation.ranking import Ranker
from hdccf.plots import COLOURS, drawn
from hdccf.recommend.candidates import Best, diversified, pool_size
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
class Curve:
    """One row for each setting; print it, or read `rows`."""

    rows: list[dict[str, float]]
    k: int
    chosen: float
    """The setting of the run."""

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
        raise NotImplementedError

    def _legend(self) -> str:
        raise NotImplementedError

    def plot(self, path: Path) -> None:
        """The curve as a PNG file."""
        raise NotImplementedError


class Dial(Curve):
    """Accuracy, coverage and popularity against γ."""

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
        with drawn(path, width=7.0, height=3.6) as figure:
            axes = figure.subplots()
            dial = [row["popularity"] for row in self.rows]
            for name, colour in zip(("uniform", "popular", "full"), COLOURS, strict=False):
                values = [row[name] for row in self.rows]
                best = max(values, default=0.0) or 1.0
                label = f"{_TITLES[name]}\n(best: {best:.3f})"
                axes.plot(dial, [value / best for value in values], "o-", color=colour, label=label)
            coverage = [row["coverage"] for row in self.rows]
            axes.plot(dial, coverage, "s--", color="0.5", label="coverage")
            axes.axvline(self.chosen, color="0.4", linewidth=0.8, linestyle=":", label="chosen on validation")
            axes.set(
                xlabel="popularity dial γ: more popular items ← 0 → fewer popular items",
                ylabel=f"@{self.k}: share of the best; coverage",
                ylim=(0, 1.05),
            )
            figure.legend(loc="outside right upper", labelspacing=0.9)


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


DIVERSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SIMILARITY_USERS = 500


class Diversity(Curve):
    """Accuracy against the similarity of the items of a list."""

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = ("ndcg", "recall", "similarity", "coverage")
        head = ["diversity", *(f"{name} @{self.k}" for name in names)]
        return head, [
            [f"{row['diversity']:.1f}", *(f"{row[name]:.4f}" for name in names)] for row in self.rows
        ]

    def _legend(self) -> str:
        return "full ranking; similarity is the mean cosine of two items of a list, by their training users"

    def plot(self, path: Path) -> None:
        """NDCG against the similarity, a point for each diversity."""
        with drawn(path, height=3.6) as figure:
            axes = figure.subplots()
            axes.plot([row["similarity"] for row in self.rows], [row["ndcg"] for row in self.rows], "o-")
            for row in self.rows:
                axes.annotate(f"{row['diversity']:.1f}", (row["similarity"], row["ndcg"]), fontsize=8)
            axes.set(xlabel=f"similarity within a list @{self.k}", ylabel=f"NDCG@{self.k}, all items")


def diversity_curve(run: Recommender, options: EvaluationOptions, *, progress: bool = False) -> Diversity:
    """Re-ranks a run's lists by maximal marginal relevance; measures accuracy and similarity within lists.

    Parameters
    ----------
    run
        A trained model.
    options
        Part, seed, memory and the length of the lists, the first of `ks`.
    progress
        Whether to show progress.

    Returns
    -------
    A row for each diversity from 0 to 1, under full ranking.

    Examples
    --------
    >>> print(diversity_curve(model, EvaluationOptions()))  # doctest: +SKIP
    """
    k, scorer = options.ks[0], run.scorer("train")
    ranker = Ranker(run.split, options.part, seed=options.seed, memory=options.memory)
    users = torch.from_numpy(ranker.queries.users)
    listed = ranker.rank(scorer, "full", top=min(pool_size(k), run.n_items), progress=progress).lists
    pool = torch.from_numpy(np.asarray(listed, np.int64))
    blocks = zip(torch.split(users, 1024), torch.split(pool.clamp_min(0), 1024), strict=True)
    parts = [scorer.score_rows(some, theirs) for some, theirs in blocks]
    best = Best(users, pool.clamp_min(0), torch.cat(parts).masked_fill(pool < 0, -torch.inf))
    measured, rows = ListMetrics(run.split.train), []
    for diversity in track(DIVERSITIES, "diversity", len(DIVERSITIES)) if progress else DIVERSITIES:
        found = diversified(best, k, diversity, run.between_items)
        lists = found.items.masked_fill(found.scores.isneginf(), -1).numpy()
        ranks = ranker.ranks_of_lists(lists)
        alike = measured.similarity(
            lists[np.random.default_rng(0).permutation(len(lists))[:_SIMILARITY_USERS]]
        )
        rows.append(
            {
                "diversity": diversity,
                "ndcg": metrics.mean(metrics.per_user(ranks, f"ndcg@{k}")),
                "recall": metrics.mean(metrics.per_user(ranks, f"recall@{k}")),
                "similarity": metrics.mean(alike),
                "coverage": metrics.coverage(measured.shown(lists)),
            }
        )
    return Diversity(rows, k, 0.0)

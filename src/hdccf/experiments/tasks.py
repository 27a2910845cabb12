"""The evaluation task of each data set: split, metrics, seeds, and the names of result files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hdccf.config import Settings
from hdccf.data import datasets
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, k_core, leave_one_out

CORE = 5
"""Users and items with fewer interactions are left out, as in the paper."""


@dataclass(frozen=True)
class Task:
    """The questions that a data set is there to answer."""

    protocols: tuple[str, ...] = ("sampled", "full")
    metrics: tuple[str, ...] = ("hr@10", "ndcg@10", "ndcg@50")
    validation_metric: str = "sampled:ndcg@10"
    """What tuning and the choice of the epoch go by."""
    retrain: bool = False
    """Whether the epoch is chosen on the validation part, and the model then trained anew on both."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that published figures share, so that tuning leaves them alone."""
    seeds: int = 5
    other_seeds: int | None = None
    """Seeds of the competitors, where they have fewer than HDCCF."""

    def fixed_for(self, kind: type[Settings]) -> dict[str, Any]:
        """What is fixed of a model's settings."""
        return {name: value for name, value in self.fixed.items() if name in kind.model_fields}

    @property
    def ks(self) -> tuple[int, ...]:
        return tuple(sorted({int(metric.partition("@")[2]) for metric in self.metrics}))


PAPER = Task()

TASKS: dict[str, Task] = {
    "ml-1m": replace(PAPER, seeds=3),
    # The public leaderboard ranks all items, at dimension 64, with all training data.
    "gowalla-m1": Task(
        protocols=("full",),
        metrics=("recall@20", "ndcg@20"),
        validation_metric="full:ndcg@20",
        retrain=True,
        fixed={"embedding_dim": 64},
        seeds=3,
        other_seeds=1,
    ),
}
"""Where it is not the paper's."""


def task_of(dataset: str) -> Task:
    return TASKS.get(dataset, PAPER)


def open_split(dataset: str, *, folder: Path | None = None, progress: bool = False) -> Split:
    """The split as it was published; otherwise the 5-core with each user's last items held out."""
    if datasets.find(dataset).parts is not None:
        return datasets.load_split(dataset, source_folder=folder, progress=progress)
    data = datasets.load(dataset, source_folder=folder, progress=progress)
    return leave_one_out(k_core(data, users=CORE, items=CORE))


def all_training(split: Split) -> Split:
    """The same split with the validation part as training data: the last training before a test."""
    return replace(
        split, train=with_validation(split), validation=split.validation.subset(np.zeros(0, np.int64))
    )


def with_validation(split: Split) -> Interactions:
    """Training and validation pairs together, under the same ids."""
    first, second = split.train, split.validation
    timed = first.times is not None and second.times is not None
    return Interactions.from_codes(
        np.concatenate((first.users, second.users)),
        np.concatenate((first.items, second.items)),
        user_ids=first.user_ids,
        item_ids=first.item_ids,
        times=np.concatenate((first.times, second.times)) if timed else None,  # type: ignore[arg-type]
        counts=np.concatenate((first.counts, second.counts)),
        titles=first.titles,
    )


TIME = "-time"


def part_name(dataset: str, time_aware: bool) -> str:
    """The name of a data set's time-blind or time-aware part, in file names and as a preset."""
    return f"{dataset}{TIME}" if time_aware else dataset

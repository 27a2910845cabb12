"""`evaluate`: everything about one scorer on one part of a split, in one call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.prepare import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import lists as list_metrics
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CACHE
from hdccf.evaluation.groups import Group, item_groups, user_groups
from hdccf.evaluation.lists import ListMetrics
from hdccf.evaluation.metrics import Places, Values
from hdccf.evaluation.questions import IndexArray, Questions
from hdccf.evaluation.ranking import DEFAULT_MEMORY, PROTOCOLS, Ranker, check_protocols
from hdccf.evaluation.report import Evaluation
from hdccf.scoring import Scorer

DEFAULT_KS = (10, 50)
DEFAULT_NEGATIVES = 99
DEFAULT_SIMILARITY_USERS = 500


def evaluate(
    scorer: Scorer,
    split: Split,
    part: str = "test",
    protocols: Sequence[str] = PROTOCOLS,
    ks: Sequence[int] = DEFAULT_KS,
    negatives: int = DEFAULT_NEGATIVES,
    seed: int = 0,
    *,
    weighting: str = "uniform",
    beyond_accuracy: bool = True,
    similarity_users: int | None = DEFAULT_SIMILARITY_USERS,
    item_vectors: NDArray[np.floating[Any]] | None = None,
    memory: int = DEFAULT_MEMORY,
    folder: str | Path | None = CACHE,
    progress: bool = False,
) -> Evaluation:
    """Ranks the held-out items of `part` ("test" or "validation") and measures the result.

    - `protocols`: "sampled" (against `negatives` items the user never touched), "full" (against all but
      what the user already took), or both.
    - `ks`: the lengths of the lists.
    - `seed`: draws the sampled negatives and orders tied items in lists. Keep it for all that you compare.
    - `weighting`: "uniform" negatives, or "popularity" for drawing them by their training interactions.
    - `beyond_accuracy`: also coverage, Gini, popularity, novelty and similarity of the lists of full ranking.
    - `similarity_users`: on how many users' lists the similarity is measured (drawn by the seed); None: all.
    - `item_vectors`: what makes two items alike; without them, the users who have both in training.
    - `memory`: MiB for a block of scores and what is computed from it.
    - `folder`: where sampled negatives are frozen; the user's cache by default, None for nowhere.
    """
    chosen = check_protocols(tuple(protocols))
    ranker = Ranker(
        split,
        part,
        negatives=negatives,
        weighting=weighting,
        seed=seed,
        memory=memory,
        folder=folder if folder is None else Path(folder) if folder is not CACHE else CACHE,
    )
    sizes = _check_ks(ks)
    for protocol in chosen:
        _refuse_long_lists(ranker, protocol, sizes)
    lists = ListMetrics(split.train, item_vectors)
    bench = _Workbench(ranker.questions, sizes, lists)
    for protocol in chosen:
        top = sizes[-1] if beyond_accuracy and protocol == "full" else 0
        ranking = ranker.rank(scorer, protocol, top=top, progress=progress)
        bench.add_accuracy(protocol, ranking.places)
        if ranking.lists is not None:
            bench.add_lists(protocol, ranking.lists, similarity_users, seed)
    settings = {
        "part": part,
        "protocols": list(chosen),
        "ks": list(sizes),
        "negatives": negatives,
        "weighting": weighting,
        "seed": seed,
        "beyond_accuracy": beyond_accuracy,
        "similarity_users": similarity_users,
        "split": split.fingerprint,
    }
    facts = _facts(scorer, ranker, chosen, sizes)
    return Evaluation(bench.values, bench.frame(), bench.group_values, facts, settings)


@dataclass(eq=False)
class _Workbench:
    """Collects per-user values and cuts them into groups."""

    questions: Questions
    ks: tuple[int, ...]
    lists: ListMetrics

    def __post_init__(self) -> None:
        self.values: dict[str, dict[str, float]] = {}
        self.columns: dict[str, Values] = {}
        self.group_values: dict[str, dict[str, dict[str, Any]]] = {
            "users": {group.name: _described(group) for group in self.user_groups},
            "items": {group.name: _described(group) for group in self.item_groups},
        }

    @cached_property
    def activity(self) -> IndexArray:
        return self.questions.split.train.by_user.degrees[self.questions.users]

    @cached_property
    def user_groups(self) -> list[Group]:
        return user_groups(self.activity)

    @cached_property
    def item_groups(self) -> list[Group]:
        return item_groups(self.lists.counts)

    def add_accuracy(self, protocol: str, places: Places) -> None:
        self.values[protocol] = {}
        asked = self.questions.items
        for name in metrics.names_at(self.ks):
            of_user = metrics.per_user(places, name)
            self.values[protocol][name] = metrics.mean(of_user)
            self.columns[f"{protocol}/{name}"] = of_user
            # An item group is asked about its own held-out items, each ranked as if it were the user's only
            # one.
            of_pair = of_user if places.alone is places else metrics.per_user(places.alone, name)
            self._note_groups("users", protocol, name, of_user, [group.members for group in self.user_groups])
            self._note_groups(
                "items", protocol, name, of_pair, [group.members[asked] for group in self.item_groups]
            )

    def add_lists(
        self, protocol: str, lists: list_metrics.Lists, similarity_users: int | None, seed: int
    ) -> None:
        sample = _sample(len(lists), similarity_users, seed)
        for k in self.ks:
            listed = lists[:, :k]
            found: dict[str, Values] = {
                "popularity": self.lists.popularity(listed),
                "novelty": self.lists.novelty(listed),
            }
            if len(sample):
                found["similarity"] = np.full(len(lists), np.nan)
                found["similarity"][sample] = self.lists.similarity(listed[sample])
            self.values[protocol][f"coverage@{k}"] = self.lists.coverage(listed)
            self.values[protocol][f"gini@{k}"] = self.lists.gini(listed)
            for metric, of_user in found.items():
                if np.isnan(of_user).all():
                    continue  # lists of one item have no pairs
                name = f"{metric}@{k}"
                self.values[protocol][name] = metrics.mean(of_user)
                self.columns[f"{protocol}/{name}"] = of_user
                self._note_groups(
                    "users", protocol, name, of_user, [group.members for group in self.user_groups]
                )
            for group in self.user_groups:
                noted = self._noted("users", group, protocol)
                noted[f"coverage@{k}"] = self.lists.coverage(listed[group.members])
                noted[f"gini@{k}"] = self.lists.gini(listed[group.members])
            for group in self.item_groups:
                self._note_items(protocol, group, listed, sample, k)

    def _note_items(
        self, protocol: str, group: Group, listed: list_metrics.Lists, sample: IndexArray, k: int
    ) -> None:
        """An item group is shown the parts of the lists that it takes."""
        noted = self._noted("items", group, protocol)
        noted[f"coverage@{k}"] = self.lists.coverage(listed, group.members)
        noted[f"gini@{k}"] = self.lists.gini(listed, group.members)
        real = listed >= 0
        noted[f"exposure@{k}"] = float(np.count_nonzero(real & group.members[listed]) / max(real.sum(), 1))
        found = {
            "popularity": self.lists.popularity(listed, group.members),
            "novelty": self.lists.novelty(listed, group.members),
        }
        if len(sample):
            found["similarity"] = self.lists.similarity(listed[sample], group.members)
        for metric, of_user in found.items():
            if not np.isnan(of_user).all():
                noted[f"{metric}@{k}"] = metrics.mean(of_user)

    def _note_groups(
        self, kind: str, protocol: str, name: str, values: Values, members: list[NDArray[np.bool_]]
    ) -> None:
        groups = self.user_groups if kind == "users" else self.item_groups
        for group, mask in zip(groups, members, strict=True):
            inside = values[mask]
            if len(inside) and not np.isnan(inside).all():
                self._noted(kind, group, protocol)[name] = metrics.mean(inside)

    def _noted(self, kind: str, group: Group, protocol: str) -> dict[str, float]:
        values: dict[str, dict[str, float]] = self.group_values[kind][group.name]["values"]
        return values.setdefault(protocol, {})

    def frame(self) -> pl.DataFrame:
        """A row for each user, ascending by contiguous id; null where a user has no value."""
        order = np.argsort(self.questions.users, kind="stable")
        users = self.questions.users[order]
        columns: dict[str, Any] = {
            "user": self.questions.split.train.user_ids.gather(users),
            "activity": self.activity[order],
            "held_out": self.questions.held_out[order],
        }
        columns |= {name: pl.Series(values[order], nan_to_null=True) for name, values in self.columns.items()}
        return pl.DataFrame(columns)


def _described(group: Group) -> dict[str, Any]:
    return {
        "size": int(np.count_nonzero(group.members)),
        "training_interactions": [group.least, group.most],
        "values": {},
    }


def _sample(n: int, size: int | None, seed: int) -> IndexArray:
    """Which lists the similarity is measured on; the same for every model."""
    if size is None or size >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, size, replace=False))


def _check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks or any(k < 1 for k in ks):
        raise EvaluationError(
            f"ks={list(ks)} is impossible; give one or more list lengths of at least 1, such as 10"
        )
    return tuple(sorted(set(ks)))


def _refuse_long_lists(ranker: Ranker, protocol: str, ks: tuple[int, ...]) -> None:
    most = int(ranker.candidates(protocol).max())
    if ks[-1] > most:
        raise EvaluationError(
            f"K={ks[-1]} is larger than the candidates of {protocol} ranking, where no user has more "
            f"than {most}: "
            f"every metric at K would be trivial; use K of at most {most}"
        )


def _facts(scorer: Scorer, ranker: Ranker, protocols: tuple[str, ...], ks: tuple[int, ...]) -> dict[str, int]:
    """What a reader of the numbers should know, counted."""
    questions, split = ranker.questions, ranker.split
    popularity = np.bincount(split.train.items, minlength=split.n_items)
    facts = {
        "users": len(questions),
        "held_out": len(questions.items),
        "users_without_held_out": split.n_users - len(questions),
        "users_without_training": int(np.count_nonzero(split.train.by_user.degrees[questions.users] == 0)),
        "held_out_without_training": int(np.count_nonzero(popularity[questions.items] == 0)),
        "users_unknown_to_model": int(np.count_nonzero(questions.users >= scorer.n_users)),
        "held_out_unknown_to_model": int(np.count_nonzero(questions.items >= scorer.n_items)),
    }
    for protocol in protocols:
        candidates = ranker.candidates(protocol)
        facts[f"{protocol}_users_without_negatives"] = int(np.count_nonzero(candidates == questions.held_out))
        facts[f"{protocol}_users_with_fewer_candidates_than_k"] = int(np.count_nonzero(candidates < ks[-1]))
    if "sampled" in protocols:
        facts["sampled_users_with_fewer_negatives"] = int(np.count_nonzero(ranker.negatives[:, -1] < 0))
    return facts

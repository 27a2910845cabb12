"""`evaluate`: everything about one scorer on one part of a split, in one call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.config import EvaluationOptions
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import lists as list_metrics
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CACHE
from hdccf.evaluation.groups import Groups, item_groups, user_groups
from hdccf.evaluation.lists import ListMetrics
from hdccf.evaluation.metrics import Places, Values
from hdccf.evaluation.questions import IndexArray, Questions
from hdccf.evaluation.ranking import Ranker, Ranking, check_protocols
from hdccf.evaluation.report import Evaluation
from hdccf.models.base import Scorer

Rank = Callable[[Ranker, str, int], Ranking]
"""What answers a ranker's questions under a protocol, and lists so many of each user's best."""

DEFAULTS = EvaluationOptions()
DEFAULT_SIMILARITY_USERS = 500


def evaluate(
    scorer: Scorer,
    split: Split,
    part: str = DEFAULTS.part,
    protocols: Sequence[str] = DEFAULTS.protocols,
    ks: Sequence[int] = DEFAULTS.ks,
    negatives: int = DEFAULTS.negatives,
    seed: int = DEFAULTS.seed,
    *,
    weighting: str = DEFAULTS.weighting,
    beyond_accuracy: bool = True,
    similarity_users: int | None = DEFAULT_SIMILARITY_USERS,
    item_vectors: NDArray[np.floating[Any]] | None = None,
    memory: int = DEFAULTS.memory,
    folder: str | Path | None = CACHE,
    progress: bool = False,
    rank: Rank | None = None,
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
    - `rank`: who ranks, where it is not this process with the scorer.
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
        ranking = (
            ranker.rank(scorer, protocol, top=top, progress=progress)
            if rank is None
            else rank(ranker, protocol, top)
        )
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
        train = self.questions.split.train
        self.activity = train.by_user.degrees[self.questions.users]
        self.groups = {"users": user_groups(self.activity), "items": item_groups(self.lists.counts)}
        self.asked_group = self.groups["items"].which[self.questions.items]
        self.values: dict[str, dict[str, float]] = {}
        self.columns: dict[str, Values] = {}
        self.group_values = {kind: _described(groups) for kind, groups in self.groups.items()}

    def add_accuracy(self, protocol: str, places: Places) -> None:
        self.values[protocol] = {}
        for name in metrics.names_at(self.ks):
            of_user = metrics.per_user(places, name)
            self._note(protocol, name, of_user)
            # An item group is asked about its own held-out items, each ranked as if it were the only one.
            of_pair = of_user if places.alone is places else metrics.per_user(places.alone, name)
            self._note_groups("items", protocol, name, self.groups["items"].means(of_pair, self.asked_group))

    def add_lists(
        self, protocol: str, lists: list_metrics.Lists, similarity_users: int | None, seed: int
    ) -> None:
        sample = _sample(len(lists), similarity_users, seed)
        for k in self.ks:
            listed = np.ascontiguousarray(lists[:, :k])
            self._note_exposure(protocol, listed, k)
            shares = list_metrics.Shares(listed, self.groups["items"].which, len(self.groups["items"]))
            for metric, of_item in (("popularity", self.lists.counts), ("novelty", self.lists.bits)):
                self._note(protocol, f"{metric}@{k}", list_metrics.list_means(of_item, listed))
                self._note_parts(protocol, f"{metric}@{k}", shares.means(of_item))
            if k > 1 and len(sample):
                self._note_similarity(protocol, listed, sample, k)

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

    def _note(self, protocol: str, name: str, of_user: Values) -> None:
        self.values[protocol][name] = metrics.mean(of_user)
        self.columns[f"{protocol}/{name}"] = of_user
        self._note_groups("users", protocol, name, self.groups["users"].means(of_user))

    def _note_exposure(self, protocol: str, listed: list_metrics.Lists, k: int) -> None:
        """Coverage and Gini: of all, of each user group's lists, and of each item group's items."""
        users, items = self.groups["users"], self.groups["items"]
        shown = self.lists.shown(listed)
        of_users = [self.lists.shown(listed[users.which == number]) for number in range(len(users))]
        of_items = [shown[items.which == number] for number in range(len(items))]
        for metric, figure in (("coverage", list_metrics.coverage), ("gini", list_metrics.gini)):
            name = f"{metric}@{k}"
            self.values[protocol][name] = figure(shown)
            self._note_groups(
                "users", protocol, name, dict(zip(users.names, map(figure, of_users), strict=True))
            )
            self._note_groups(
                "items", protocol, name, dict(zip(items.names, map(figure, of_items), strict=True))
            )
        shares = [float(part.sum() / max(shown.sum(), 1)) for part in of_items]
        self._note_groups("items", protocol, f"exposure@{k}", dict(zip(items.names, shares, strict=True)))

    def _note_similarity(self, protocol: str, listed: list_metrics.Lists, sample: IndexArray, k: int) -> None:
        """Of some users' lists, and of the parts of them that each item group takes."""
        of_user = np.full(len(listed), np.nan)
        of_user[sample] = self.lists.similarity(listed[sample])
        if np.isnan(of_user).all():
            return
        self._note(protocol, f"similarity@{k}", of_user)
        which = self.groups["items"].which[listed[sample]]
        parts = [np.where(which == number, listed[sample], -1) for number in range(len(self.groups["items"]))]
        by_group = np.stack([self.lists.similarity(part) for part in parts], axis=1)
        self._note_parts(protocol, f"similarity@{k}", by_group)

    def _note_parts(self, protocol: str, name: str, by_group: Values) -> None:
        """From a row for each list and a column for each item group."""
        which = np.broadcast_to(np.arange(by_group.shape[1]), by_group.shape).ravel()
        self._note_groups("items", protocol, name, self.groups["items"].means(by_group.ravel(), which))

    def _note_groups(self, kind: str, protocol: str, name: str, means: dict[str, float]) -> None:
        for group, mean in means.items():
            self.group_values[kind][group]["values"].setdefault(protocol, {})[name] = mean


def _described(groups: Groups) -> dict[str, dict[str, Any]]:
    described = zip(groups.names, groups.ranges, groups.sizes, strict=True)
    return {
        name: {"size": int(size), "training_interactions": [*limits], "values": {}}
        for name, limits, size in described
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
    popularity = split.train.by_item.degrees
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

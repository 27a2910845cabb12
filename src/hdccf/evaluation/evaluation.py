"""`evaluate` and its result, `Evaluation`: metrics of one scorer on one part of a split."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.config import EvaluationOptions
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CACHE, IndexArray, Questions
from hdccf.evaluation.metrics import Groups, ListMetrics, Places, Values, item_groups, user_groups
from hdccf.evaluation.ranking import Ranker, Ranking, check_protocols
from hdccf.files import atomic_directory, write_json
from hdccf.models.base import Scorer

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "hdccf-evaluation"
FORMAT_VERSION = 1

_WORDS = {
    "users_without_held_out": "users have no held-out item and are not asked about",
    "users_without_training": "of the users asked about have no training interaction",
    "held_out_without_training": "held-out items have no training interaction",
    "users_unknown_to_model": "users are unknown to the model: a random order is expected of it",
    "held_out_unknown_to_model": "held-out items are unknown to the model: ranked after all known ones",
    "sampled_users_with_fewer_negatives": "users have fewer untouched items than negatives were "
    "asked for: all are used",
    "sampled_users_without_negatives": "users have no untouched item: left out of sampled ranking",
    "full_users_without_negatives": "users have no other candidate: left out of full ranking",
    "sampled_users_with_fewer_candidates_than_k": "users have fewer candidates than the largest K in "
    "sampled ranking",
    "full_users_with_fewer_candidates_than_k": "users have fewer candidates than the largest K in "
    "full ranking",
}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What `evaluate` found. `print` it, or take the numbers: `values["full"]["ndcg@10"]`."""

    values: dict[str, dict[str, float]]
    """Protocol → metric → mean over users."""
    per_user: pl.DataFrame
    """A row for each user: own id, training interactions, held-out items, and "protocol/metric" columns."""
    groups: dict[str, dict[str, dict[str, Any]]]
    """"users" or "items" → group → its size, its range of training interactions, and its values."""
    facts: dict[str, int]
    """Counts that a reader of the numbers should know."""
    settings: dict[str, Any]
    """What was asked for, and the fingerprint of the split."""

    def to_json(self) -> str:
        """`{"sampled": {"ndcg@10": …}, "full": {…}}`."""
        return json.dumps(self.values, indent=2, allow_nan=False)

    def remarks(self) -> list[str]:
        """A sentence for each fact that is not zero."""
        return [f"{self.facts[fact]:,} {words}" for fact, words in _WORDS.items() if self.facts.get(fact)]

    def to_markdown(self) -> str:
        """The overall table, the tables by group, and the remarks."""
        tables = [self.overall_table(), *(self.group_table(kind) for kind in ("users", "items"))]
        parts = [self._title(), *(_markdown(head, rows) for head, rows in tables)]
        if self.remarks():
            parts.append("\n".join(f"- {remark}" for remark in self.remarks()))
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        first = {protocol: next(iter(values.items())) for protocol, values in self.values.items()}
        shown = ", ".join(f"{protocol} {name} {value:.4f}" for protocol, (name, value) in first.items())
        return f"Evaluation({self.facts['users']:,} users, {shown}, …)"

    def __str__(self) -> str:
        return self.to_markdown()

    def __rich__(self) -> "RenderableType":
        from rich.console import Group

        tables = [_rich_table(*self.overall_table())]
        tables += [_rich_table(*self.group_table(kind)) for kind in ("users", "items")]
        return Group(self._title(), *tables, *self.remarks())

    def _title(self) -> str:
        return (
            f"{self.settings['part']}: {self.facts['users']:,} users, {self.facts['held_out']:,} "
            "held-out items, "
            f"{self.settings['negatives']} {self.settings['weighting']} negatives where sampled"
        )

    def overall_table(self) -> tuple[list[str], list[list[str]]]:
        """Metrics down, protocol and K across."""
        ks = self.settings["ks"]
        head = ["metric", *(f"{protocol} @{k}" for protocol in self.values for k in ks)]
        names = dict.fromkeys(name.partition("@")[0] for values in self.values.values() for name in values)
        rows = []
        for metric in names:
            cells = []
            for values in self.values.values():
                for k in ks:
                    # AUC has no K: it is said once.
                    value = values.get(f"{metric}@{k}", values.get(metric) if k == ks[0] else None)
                    cells.append(_number(value))
            rows.append([metric, *cells])
        return head, rows

    def group_table(self, kind: str) -> tuple[list[str], list[list[str]]]:
        """HR, NDCG and, for full ranking, coverage of each group at the smallest K."""
        k = self.settings["ks"][0]
        wanted = [
            (protocol, f"{metric}@{k}")
            for protocol in self.values
            for metric in ("hr", "ndcg", "coverage")
            if f"{metric}@{k}" in self.values[protocol]
        ]
        head = [kind, "training pairs", "number", *(f"{protocol} {name}" for protocol, name in wanted)]
        rows = []
        for name, group in self.groups[kind].items():
            least, most = group["training_interactions"]
            cells = [_number(group["values"].get(protocol, {}).get(metric)) for protocol, metric in wanted]
            rows.append([name, f"{least}–{most}", f"{group['size']:,}", *cells])
        return head, rows

    # -- on disk ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one folder: `evaluation.json` and `per_user.parquet`, all or nothing."""
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            self.per_user.write_parquet(folder / "per_user.parquet")
            meta = {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "values": self.values,
                "groups": self.groups,
                "facts": self.facts,
                "settings": self.settings,
            }
            write_json(folder / "evaluation.json", meta)

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Opens a folder that `save` wrote."""
        folder = Path(path)
        try:
            meta = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            per_user = pl.read_parquet(folder / "per_user.parquet")
        except FileNotFoundError as cause:
            raise EvaluationError(f"{folder} holds no evaluation; give a folder that save() wrote") from cause
        except (OSError, ValueError, pl.exceptions.PolarsError) as cause:
            raise EvaluationError(f"{folder} is damaged; evaluate again") from cause
        if not isinstance(meta, dict) or (meta.get("format"), meta.get("version")) != (
            FORMAT,
            FORMAT_VERSION,
        ):
            raise EvaluationError(f"{folder} holds an evaluation of another format; evaluate again")
        return cls(meta["values"], per_user, meta["groups"], meta["facts"], meta["settings"])


def _number(value: float | None) -> str:
    """Four decimals for shares; fewer for counts such as the mean popularity."""
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rich_table(head: list[str], rows: list[list[str]]) -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
    for number, name in enumerate(head):
        # One word a line: the columns stay as narrow as their numbers.
        table.add_column(name.replace(" ", "\n"), justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


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

    def add_lists(self, protocol: str, lists: metrics.Lists, similarity_users: int | None, seed: int) -> None:
        sample = _sample(len(lists), similarity_users, seed)
        for k in self.ks:
            listed = np.ascontiguousarray(lists[:, :k])
            self._note_exposure(protocol, listed, k)
            shares = metrics.Shares(listed, self.groups["items"].which, len(self.groups["items"]))
            for metric, of_item in (("popularity", self.lists.counts), ("novelty", self.lists.bits)):
                self._note(protocol, f"{metric}@{k}", metrics.list_means(of_item, listed))
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

    def _note_exposure(self, protocol: str, listed: metrics.Lists, k: int) -> None:
        """Coverage and Gini: of all, of each user group's lists, and of each item group's items."""
        users, items = self.groups["users"], self.groups["items"]
        shown = self.lists.shown(listed)
        of_users = [self.lists.shown(listed[users.which == number]) for number in range(len(users))]
        of_items = [shown[items.which == number] for number in range(len(items))]
        for metric, figure in (("coverage", metrics.coverage), ("gini", metrics.gini)):
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

    def _note_similarity(self, protocol: str, listed: metrics.Lists, sample: IndexArray, k: int) -> None:
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

"""`evaluate` and its result, `Evaluation`: metrics of one scorer on one part of a split."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.config import EvaluationOptions
from hdccf.console import html_table, note
from hdccf.data.parquet import read_parquet
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CACHE, CANDIDATE_FORMAT, IndexArray, Queries
from hdccf.evaluation.metrics import ListMetrics, Lists, Ranks, Values, item_groups, user_groups
from hdccf.evaluation.ranking import Ranker, Ranking, check_protocols
from hdccf.files import atomic_directory, write_json
from hdccf.models.base import Scorer

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = "hdccf-evaluation"
FORMAT_VERSION = 1
DEFAULTS = EvaluationOptions()
DEFAULT_SIMILARITY_USERS = 500

Rank = Callable[[Ranker, str, int], Ranking]
"""Ranks a ranker's queries under a protocol and lists the top k items of each user; workers provide one."""

_REMARKS = {
    "users_without_held_out": "users have no held-out item and are not asked about",
    "users_without_training": "of the users asked about have no training interaction",
    "held_out_without_training": "held-out items have no training interaction",
    "users_unknown_to_model": "users are unknown to the model: a random order is expected of it",
    "held_out_unknown_to_model": "held-out items are unknown to the model: ranked after all known ones",
    "sampled_users_with_fewer_negatives": (
        "users have fewer untouched items than negatives were asked for: all are used"
    ),
    "sampled_users_without_negatives": "users have no untouched item: left out of sampled ranking",
    "full_users_without_negatives": "users have no other candidate: left out of full ranking",
    **{
        f"{protocol}_users_with_fewer_candidates_than_k": (
            f"users have fewer candidates than the largest K in {protocol} ranking"
        )
        for protocol in ("sampled", "full")
    },
}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The result of `evaluate`; print it, or read the numbers.

    Parameters
    ----------
    values
        Protocol → metric → mean over users.
    per_user
        A row for each user: own id, training interactions, held-out items, and "protocol/metric" columns.
    groups
        "users" or "items" → group → its size, its range of training interactions, and its values.
    facts
        Counts that a reader of the numbers should know.
    settings
        The settings of the evaluation, and the fingerprint of the split.

    Examples
    --------
    >>> import hdccf
    >>> split = hdccf.leave_one_out(hdccf.synthetic_world(1500, n_users=100, n_items=200).interactions)
    >>> found = hdccf.evaluate(hdccf.fit(split, hdccf.MostPopular()), split, ks=(10,))
    >>> sorted(found.values)
    ['full', 'sampled']
    >>> 0 < found.values["full"]["ndcg@10"] < 1
    True
    """

    values: dict[str, dict[str, float]]
    per_user: pl.DataFrame
    groups: dict[str, dict[str, dict[str, Any]]]
    facts: dict[str, int]
    settings: dict[str, Any]

    def to_json(self) -> str:
        """`{"sampled": {"ndcg@10": …}, "full": {…}}`."""
        return json.dumps(self.values, indent=2, allow_nan=False)

    def remarks(self) -> list[str]:
        """A sentence for each fact that is not zero."""
        return [f"{self.facts[fact]:,} {words}" for fact, words in _REMARKS.items() if self.facts.get(fact)]

    def to_markdown(self) -> str:
        """The overall table, the tables by group, and the remarks."""
        parts = [self._title(), *(markdown_table(head, rows) for head, rows in self._tables())]
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

        return Group(self._title(), *(rich_table(*table) for table in self._tables()), *self.remarks())

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self.overall_table())

    def _title(self) -> str:
        return (
            f"{self.settings['part']}: {self.facts['users']:,} users, {self.facts['held_out']:,} held-out "
            f"items, {self.settings['negatives']} {self.settings['weighting']} negatives where sampled"
        )

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        return [self.overall_table(), self.group_table("users"), self.group_table("items")]

    def overall_table(self) -> tuple[list[str], list[list[str]]]:
        """Metrics down, protocol and K across."""
        ks = self.settings["ks"]
        head = ["metric", *(f"{protocol} @{k}" for protocol in self.values for k in ks)]
        names = dict.fromkeys(name.partition("@")[0] for values in self.values.values() for name in values)
        rows = []
        for metric in names:
            # AUC has no K: it is shown once.
            cells = [
                _number(values.get(f"{metric}@{k}", values.get(metric) if k == ks[0] else None))
                for values in self.values.values()
                for k in ks
            ]
            rows.append([metric, *cells])
        return head, rows

    def group_table(self, kind: str) -> tuple[list[str], list[list[str]]]:
        """HR, NDCG and, for full ranking, coverage of each group at the smallest K; or what was measured."""
        k = self.settings["ks"][0]
        usual = {f"{metric}@{k}" for metric in ("hr", "ndcg", "coverage")}
        measured = [(protocol, metric) for protocol, values in self.values.items() for metric in values]
        wanted = [(protocol, metric) for protocol, metric in measured if metric in usual] or measured
        head = [kind, "training pairs", "number", *(f"{protocol} {name}" for protocol, name in wanted)]
        rows = []
        for name, group in self.groups[kind].items():
            least, most = group["training_interactions"]
            cells = [_number(group["values"].get(protocol, {}).get(metric)) for protocol, metric in wanted]
            rows.append([name, f"{least}–{most}", f"{group['size']:,}", *cells])
        return head, rows

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one folder: `evaluation.json` and `per_user.parquet`, all or nothing."""
        meta = {"format": FORMAT, "version": FORMAT_VERSION, "values": self.values, "groups": self.groups}
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            self.per_user.write_parquet(folder / "per_user.parquet")
            write_json(folder / "evaluation.json", {**meta, "facts": self.facts, "settings": self.settings})

    @classmethod
    def load(cls, path: str | Path) -> "Evaluation":
        """Opens a folder that `save` wrote."""
        folder = Path(path)
        try:
            meta = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            per_user = read_parquet(folder / "per_user.parquet")
        except FileNotFoundError as cause:
            raise EvaluationError(f"{folder} holds no evaluation; give a folder that save() wrote") from cause
        except (OSError, ValueError, pl.exceptions.PolarsError) as cause:
            raise EvaluationError(f"{folder} is damaged; evaluate again") from cause
        written_as = (meta.get("format"), meta.get("version")) if isinstance(meta, dict) else None
        if written_as != (FORMAT, FORMAT_VERSION):
            raise EvaluationError(f"{folder} holds an evaluation of another format; evaluate again")
        return cls(meta["values"], per_user, meta["groups"], meta["facts"], meta["settings"])


def _number(value: float | None) -> str:
    """Four decimals for shares; fewer for counts such as the mean popularity."""
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.1f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are right-aligned but for the first."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> "RenderableType":
    """A Rich table whose headings have one word a line, so that columns stay as narrow as their numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=0, pad_edge=False)
    for number, name in enumerate(head):
        justify, overflow = ("right", "ellipsis") if number else ("left", "fold")
        table.add_column(name.replace(" ", "\n"), justify=justify, overflow=overflow)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def evaluate(
    scorer: Scorer,
    split: Split,
    part: str = DEFAULTS.part,
    protocols: Sequence[str] = DEFAULTS.protocols,
    ks: Sequence[int] = DEFAULTS.ks,
    negatives: int = DEFAULTS.negatives,
    seed: int = DEFAULTS.seed,
    *,
    metrics: Sequence[str] = DEFAULTS.metrics,
    weighting: str = DEFAULTS.weighting,
    beyond_accuracy: bool = True,
    similarity_users: int | None = DEFAULT_SIMILARITY_USERS,
    item_vectors: NDArray[np.floating[Any]] | None = None,
    memory: int = DEFAULTS.memory,
    folder: str | Path | None = CACHE,
    progress: bool = False,
    rank: Rank | None = None,
) -> Evaluation:
    """Ranks the held-out items of a split and measures accuracy and beyond-accuracy metrics.

    Parameters
    ----------
    scorer
        A model, or anything with `n_users`, `n_items`, `score_block` and `score_rows`.
    split
        The split that the model was trained on.
    part
        "test" or "validation".
    protocols
        "sampled" (against drawn negatives), "full" (against all items but the user's history), or both.
    ks
        Lengths of the top-k lists. Of the default ones those are left out that no user has candidates for.
    negatives
        Drawn negatives of each user in sampled ranking.
    seed
        Draws the negatives and orders tied items. Use the same for all systems that are compared.
    metrics
        Only these, such as ["ndcg@10", "recall@20", "coverage@10", "auc"], instead of all at each of `ks`.
        Own ones are added with `register_metric`.
    weighting
        "uniform" negatives, or "popularity" to draw them by their training interactions.
    beyond_accuracy
        Whether to measure coverage, Gini, popularity, novelty and similarity of the lists of full ranking.
    similarity_users
        Number of users (drawn by the seed) on whose lists the similarity is measured; None for all.
    item_vectors
        Rows whose cosine is the similarity of items; without them, the users who have an item in training.
    memory
        MiB for a block of scores and what is computed from it.
    folder
        Where sampled negatives are cached; the user's cache by default, None for no cache.
    progress
        Whether to show progress on standard error.
    rank
        Replaces ranking in this process, such as by workers.

    Returns
    -------
    Evaluation
        Means, per-user values, and values by group of users and items.

    Examples
    --------
    >>> import hdccf
    >>> split = hdccf.leave_one_out(hdccf.synthetic_world(1500, n_users=100, n_items=200).interactions)
    >>> model = hdccf.fit(split, hdccf.MostPopular())
    >>> found = hdccf.evaluate(model, split, part="validation", protocols=("full",), ks=(5, 10))
    >>> found.values["full"]["hr@5"] <= found.values["full"]["hr@10"]
    True
    >>> hdccf.evaluate(model, split, metrics=["recall@20"]).values["full"].keys()
    dict_keys(['recall@20'])
    """
    named = _Named.of(metrics)
    ks, beyond_accuracy = named.ks or ks, bool(named.lists) if metrics else beyond_accuracy
    if not ks or any(k < 1 for k in ks):
        raise EvaluationError(
            f"ks={list(ks)} is impossible; give one or more list lengths of at least 1, such as 10"
        )
    chosen, sizes = check_protocols(tuple(protocols)), tuple(sorted(set(ks)))
    if named.lists and "full" not in chosen:
        raise EvaluationError(
            f"{named.lists[0]} is measured in full ranking and protocols={list(chosen)}; add 'full'"
        )
    if named.lists and not named.accuracy:
        chosen = ("full",)  # the other protocol would have no value
    sampling: dict[str, Any] = {"negatives": negatives, "weighting": weighting, "seed": seed}
    where = folder if folder is None or folder is CACHE else Path(folder)
    ranker = Ranker(split, part, **sampling, memory=memory, folder=where)
    if sizes == DEFAULTS.ks:
        sizes = _possible(sizes, min(int(ranker.candidates(protocol).max()) for protocol in chosen))
    facts = _facts(scorer, ranker, chosen, sizes[-1])
    results = _Results(ranker.queries, sizes, ListMetrics(split.train, item_vectors), named)
    for protocol in chosen:
        top = sizes[-1] if beyond_accuracy and protocol == "full" else 0
        if rank is None:
            ranking = ranker.rank(scorer, protocol, top=top, progress=progress)
        else:
            ranking = rank(ranker, protocol, top)
        results.add_accuracy(protocol, ranking.ranks)
        if ranking.lists is not None:
            results.add_lists(protocol, ranking.lists, _sample(len(ranking.lists), similarity_users, seed))
    settings = {
        "part": part,
        "protocols": list(chosen),
        "ks": list(sizes),
        "metrics": list(metrics),
        **sampling,
        "beyond_accuracy": beyond_accuracy,
        "similarity_users": similarity_users,
        "split": split.fingerprint,
        "candidates": CANDIDATE_FORMAT,
    }
    return Evaluation(results.values, results.frame(), results.group_values, facts, settings)


@dataclass(frozen=True)
class _Named:
    """The metrics that were asked for by name; none is all of them."""

    accuracy: tuple[str, ...]
    lists: tuple[str, ...]
    ks: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> "_Named":
        if isinstance(names, str):
            raise EvaluationError(f"metrics={names!r} is one name; give a list of them, as in [{names!r}]")
        parsed = {name: metrics.parse(name, lists=True) for name in names}
        lists = tuple(name for name, (metric, _) in parsed.items() if metric in metrics.LIST_METRICS)
        accuracy = tuple(name for name in parsed if name not in lists)
        return cls(accuracy, lists, tuple(k for _, k in parsed.values() if k))

    def __bool__(self) -> bool:
        return bool(self.accuracy or self.lists)

    def __contains__(self, name: object) -> bool:
        return not self or name in self.accuracy or name in self.lists


class _Results:
    """Per-user values, their means, and their means by group."""

    def __init__(self, queries: Queries, ks: tuple[int, ...], lists: ListMetrics, named: _Named) -> None:
        self.queries, self.ks, self.lists, self.named = queries, ks, lists, named
        self.activity = queries.split.train.by_user.degrees[queries.users]
        self.users, self.items = user_groups(self.activity), item_groups(lists.counts)
        self.values: dict[str, dict[str, float]] = {}
        self.columns: dict[str, Values] = {}
        self.group_values = {"users": self.users.described(), "items": self.items.described()}

    def add_accuracy(self, protocol: str, ranks: Ranks) -> None:
        """Accuracy metrics; an item group's on its own held-out items, each ranked as the only one."""
        self.values[protocol] = {}
        asked = self.items.which[self.queries.items]
        for name in self.named.accuracy if self.named else metrics.names_at(self.ks):
            self._add(protocol, name, metrics.per_user(ranks, name))
            of_items = self.items.means(metrics.per_user(ranks.alone, name), asked)
            self._add_groups("items", protocol, name, of_items)

    def add_lists(self, protocol: str, lists: Lists, sample: IndexArray) -> None:
        """Beyond-accuracy metrics at each K; the similarity on a sample of the lists."""
        everyone = np.arange(len(lists))
        list_metrics: dict[str, tuple[Callable[[Lists], Values], IndexArray]] = {
            "popularity": (partial(metrics.list_means, self.lists.counts), everyone),
            "novelty": (partial(metrics.list_means, self.lists.bits), everyone),
            "similarity": (self.lists.similarity, sample),
        }
        for k in self.ks:
            listed = np.ascontiguousarray(lists[:, :k])
            self._add_exposure(protocol, listed, k)
            which = self.items.which[listed]
            # An item group's: of the part of each list that belongs to it.
            parts = [np.where(which == number, listed, -1) for number in range(len(self.items))]
            for metric, (measure, rows) in list_metrics.items():
                if f"{metric}@{k}" not in self.named:
                    continue
                of_user = np.full(len(lists), np.nan)
                of_user[rows] = measure(listed[rows])
                if metric == "similarity" and np.isnan(of_user).all():
                    continue
                self._add(protocol, f"{metric}@{k}", of_user)
                by_group = np.concatenate([measure(part[rows]) for part in parts])
                groups = np.repeat(np.arange(len(parts)), len(rows))
                self._add_groups("items", protocol, f"{metric}@{k}", self.items.means(by_group, groups))

    def frame(self) -> pl.DataFrame:
        """A row for each user, ascending by contiguous id; null where a user has no value."""
        order = np.argsort(self.queries.users, kind="stable")
        columns: dict[str, Any] = {
            "user": self.queries.split.train.user_ids.gather(self.queries.users[order]),
            "activity": self.activity[order],
            "held_out": self.queries.held_out[order],
        }
        columns |= {name: pl.Series(values[order], nan_to_null=True) for name, values in self.columns.items()}
        return pl.DataFrame(columns)

    def _add(self, protocol: str, name: str, of_user: Values) -> None:
        self.values[protocol][name] = metrics.mean(of_user)
        self.columns[f"{protocol}/{name}"] = of_user
        self._add_groups("users", protocol, name, self.users.means(of_user))

    def _add_exposure(self, protocol: str, listed: Lists, k: int) -> None:
        """Coverage and Gini: of all, of each user group's lists, and of each item group's items."""
        shown = self.lists.shown(listed)
        of_users = [self.lists.shown(listed[self.users.which == number]) for number in range(len(self.users))]
        of_items = [shown[self.items.which == number] for number in range(len(self.items))]
        for metric in (metrics.coverage, metrics.gini):
            name = f"{metric.__name__}@{k}"
            if name not in self.named:
                continue
            self.values[protocol][name] = metric(shown)
            self._add_groups("users", protocol, name, self.users.named(map(metric, of_users)))
            self._add_groups("items", protocol, name, self.items.named(map(metric, of_items)))
        shares = self.items.named(float(part.sum() / max(shown.sum(), 1)) for part in of_items)
        self._add_groups("items", protocol, f"exposure@{k}", shares)

    def _add_groups(self, kind: str, protocol: str, name: str, means: dict[str, float]) -> None:
        for group, mean in means.items():
            self.group_values[kind][group]["values"].setdefault(protocol, {})[name] = mean


def _sample(n: int, size: int | None, seed: int) -> IndexArray:
    """Which lists the similarity is measured on; the same for every model."""
    if size is None or size >= n:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, size, replace=False))


def _possible(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Those that are not larger than any user's candidates; all where that leaves none."""
    found = tuple(k for k in sizes if k <= most)
    if not found or found == sizes:
        return sizes
    note(f"no user has more than {most} candidates, so K={sizes[-1]} is left out")
    return found


def _facts(scorer: Scorer, ranker: Ranker, protocols: tuple[str, ...], k: int) -> dict[str, int]:
    """Counts that a reader of the numbers should know; refuses lists longer than any user's candidates."""
    queries, split = ranker.queries, ranker.split
    conditions = {
        "users_without_training": split.train.by_user.degrees[queries.users] == 0,
        "held_out_without_training": split.train.by_item.degrees[queries.items] == 0,
        "users_unknown_to_model": queries.users >= scorer.n_users,
        "held_out_unknown_to_model": queries.items >= scorer.n_items,
    }
    for protocol in protocols:
        candidates = ranker.candidates(protocol)
        most = int(candidates.max())
        if (candidates == queries.held_out).all():
            raise EvaluationError(metrics.NO_NEGATIVES)
        if k > most:
            raise EvaluationError(
                f"K={k} is larger than the candidates of {protocol} ranking, where no user has more than "
                f"{most}: every metric at K would be trivial; use K of at most {most}"
            )
        conditions[f"{protocol}_users_without_negatives"] = candidates == queries.held_out
        conditions[f"{protocol}_users_with_fewer_candidates_than_k"] = candidates < k
    if "sampled" in protocols:
        conditions["sampled_users_with_fewer_negatives"] = ranker.negatives[:, -1] < 0
    return {
        "users": len(queries),
        "held_out": len(queries.items),
        "users_without_held_out": split.n_users - len(queries),
        **{name: int(np.count_nonzero(condition)) for name, condition in conditions.items()},
    }

"""Ranking metrics: accuracy, beyond-accuracy metrics of top-k lists, and groups of users and items.

Each accuracy metric is its expectation over the random orders of tied candidates, in closed form. The
notation of the formulas below, for one held-out item of a user who has R of them:

    G   candidates that score strictly more          T   candidates that score the same, itself included
    A   held-out items among the G                   m   held-out items among the T

The T tied candidates take the ranks G + 1 … G + T, and every order of them is equally likely. So each of them
has each of these ranks with probability 1/T, and a sum over the ranks up to K is a difference of two sums
from a table. Only what depends on the *first* hit (HR, MRR) looks at several held-out items at once.

    coverage@K          share of the items that are in at least one list of K
    gini@K              inequality of how often items are listed: 0 all equally, towards 1 a few take all
    popularity@K        training interactions of a listed item, averaged over a list and then over users
    novelty@K           −log₂(share of users who have a listed item in training), averaged likewise, in bits
    similarity@K        cosine of two items of a list, averaged over its pairs and then over users

Items are represented by the users who have them in training, or by given vectors. An item without training
interactions counts as having one, or its novelty would be infinite.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hdccf.data.interactions import Interactions
from hdccf.errors import EvaluationError
from hdccf.models import load_plugins

IndexArray = NDArray[np.int64]
Values = NDArray[np.float64]

AT_K = ("hr", "ndcg", "recall", "precision", "mrr", "map")
LIST_METRICS = ("coverage", "gini", "popularity", "novelty", "similarity")
"""Of the top-k lists of full ranking, beyond accuracy."""
NO_NEGATIVES = "no user has a candidate beside the held-out items; use data with more items"
_NAME = "[a-z][a-z0-9_-]*"


@dataclass(frozen=True, eq=False)
class Ranks:
    """G, T, A and m of each held-out item, user after user. Build it with `from_counts`."""

    starts: IndexArray
    """The held-out items of user k are those from `starts[k]` to `starts[k + 1]`."""
    above: IndexArray
    tied: IndexArray
    relevant_above: IndexArray
    relevant_tied: IndexArray
    negatives: IndexArray
    """For each user how many candidates are not held-out items."""

    @classmethod
    def from_counts(
        cls,
        starts: IndexArray,
        scores: NDArray[Any],
        above: IndexArray,
        tied: IndexArray,
        negatives: IndexArray,
    ) -> "Ranks":
        """From each held-out item's score, G and T; A and m follow from the user's other held-out items."""
        return cls(starts, above, tied, *_counts_among_held_out(starts, scores), negatives)

    @cached_property
    def relevant(self) -> IndexArray:
        """R of each user."""
        return np.diff(self.starts)

    @cached_property
    def first(self) -> IndexArray:
        """Of each user a held-out item that no other one is above."""
        leaders = np.where(self.relevant_above == 0, np.arange(len(self.above)), -1)
        return np.maximum.reduceat(leaders, self.starts[:-1])

    @cached_property
    def alone(self) -> "Ranks":
        """Each held-out item as if it were its user's only one: the others leave the candidates."""
        count = len(self.above)
        return Ranks(
            starts=np.arange(count + 1),
            above=self.above - self.relevant_above,
            tied=self.tied - self.relevant_tied + 1,
            relevant_above=np.zeros(count, np.int64),
            relevant_tied=np.ones(count, np.int64),
            negatives=np.repeat(self.negatives, self.relevant),
        )

    def sums(self, values: Values) -> Values:
        """Adds what belongs to each held-out item up to what belongs to each user."""
        return np.add.reduceat(values, self.starts[:-1])


def per_user(ranks: Ranks, name: str) -> Values:
    """The metric of each user; NaN for those who have nothing to rank against."""
    metric, k = parse(name)
    values = auc(ranks) if metric == "auc" else np.asarray(_FORMULAS[metric](ranks, k))
    if values.shape != ranks.negatives.shape:
        raise EvaluationError(
            f"metric {metric!r} returned values of shape {values.shape}; return one for each of the "
            f"{len(ranks.negatives)} users"
        )
    return np.where(ranks.negatives > 0, values, np.nan)


def mean(values: Values) -> float:
    """Over the users who have a value."""
    known = values[~np.isnan(values)]
    if not len(known):
        raise EvaluationError(NO_NEGATIVES)
    return float(known.mean())


def hr(ranks: Ranks, k: int) -> Values:
    """P(a held-out item is among the first K).

    Of the leading tied ones: 1 − Π_{t < s} (T − m − t)/(T − t), where s = min(K − G, T).
    """
    return _first_hit(ranks, k)[0]


def mrr(ranks: Ranks, k: int) -> Values:
    """E[1/rank of the first held-out item, if it is K or better].

    Of the leading tied ones: Σ_{p ≤ s} (S_{p−1} − S_p)/(G + p), where S_p = Π_{t < p} (T − m − t)/(T − t)
    is the probability that none of the first p of them is held out.
    """
    return _first_hit(ranks, k)[1]


def ndcg(ranks: Ranks, k: int) -> Values:
    """Σ_j E[1/log₂(1 + rank_j), rank_j ≤ K] / Σ_{r ≤ min(R, K)} 1/log₂(1 + r), the sum of the best order."""
    discounts = _cumulated("discount", k)
    return ranks.sums(_mean_over_ranks(ranks, discounts)) / discounts[np.minimum(ranks.relevant, k)]


def recall(ranks: Ranks, k: int) -> Values:
    """E[held-out items among the first K] / R."""
    return ranks.sums(_mean_over_ranks(ranks, _cumulated("one", k))) / ranks.relevant


def precision(ranks: Ranks, k: int) -> Values:
    """E[held-out items among the first K] / K."""
    return ranks.sums(_mean_over_ranks(ranks, _cumulated("one", k))) / k


def average_precision(ranks: Ranks, k: int) -> Values:
    """E[Σ_{j: rank_j ≤ K} (held-out items down to rank_j)/rank_j] / R.

    If a held-out item has the rank r, then A others are above its ties, and each of the r − G − 1 tied
    candidates before it is held out with probability ρ = (m − 1)/(T − 1). So the sum over the ranks r from
    G + 1 to e = min(G + T, K) is Σ (A + 1 + ρ(r − G − 1))/r = (A + 1 − ρ(G + 1))·(H_e − H_G) + ρ·(e − G).
    """
    harmonic, one = _cumulated("harmonic", k), _cumulated("one", k)
    begin, end = _edges(ranks, k)
    rho = (ranks.relevant_tied - 1) / np.maximum(ranks.tied - 1, 1)
    sums = (ranks.relevant_above + 1 - rho * (ranks.above + 1)) * (harmonic[end] - harmonic[begin])
    sums += rho * (one[end] - one[begin])
    return ranks.sums(sums / ranks.tied) / ranks.relevant


def auc(ranks: Ranks) -> Values:
    """P(a held-out item is above a negative), ties counting one half."""
    negatives = np.repeat(ranks.negatives, ranks.relevant)
    above = ranks.above - ranks.relevant_above
    tied = ranks.tied - ranks.relevant_tied
    return ranks.sums((negatives - above - tied / 2) / np.maximum(negatives, 1)) / ranks.relevant


Formula = Callable[[Ranks, int], Values]
"""The values of all users at a K."""

_FORMULAS: dict[str, Formula] = dict(
    zip(AT_K, (hr, ndcg, recall, precision, mrr, average_precision), strict=True)
)


def register_metric(name: str) -> Callable[[Formula], Formula]:
    """Adds an accuracy metric, which `name@K` measures where metrics are named.

    These are `evaluate(metrics=…)`, `hdccf evaluate --metrics` and the setting `validation_metric`.

    Parameters
    ----------
    name
        In lower case. The decorated function takes the `Ranks` of all users and K, and returns a value for
        each user; higher is better. `ranks.above` counts the candidates that score more than each held-out
        item, and `ranks.sums` adds what belongs to the held-out items of a user.

    Examples
    --------
    >>> @hdccf.register_metric("first")
    ... def first(ranks, k):
    ...     return ranks.sums(ranks.above == 0) / ranks.relevant
    """
    if not re.fullmatch(_NAME, name) or name in (*AT_K, *LIST_METRICS, "auc"):
        raise EvaluationError(f"metric={name!r} is taken or no name; choose another one in lower case")

    def register(formula: Formula) -> Formula:
        _FORMULAS[name] = formula
        return formula

    return register


def names_at(ks: Sequence[int]) -> tuple[str, ...]:
    """The names of all accuracy metrics at each K."""
    return (*(f"{metric}@{k}" for k in ks for metric in AT_K), "auc")


def parse(name: str, *, lists: bool = False) -> tuple[str, int]:
    """ "ndcg@10" → ("ndcg", 10); AUC looks at all ranks and has no K. `lists` allows metrics of lists."""
    if name == "auc":
        return "auc", 0
    others = LIST_METRICS if lists else ()
    match = re.fullmatch(rf"({_NAME})@([1-9][0-9]*)", name)
    if match is not None and match[1] not in (*_FORMULAS, *others):
        load_plugins()
    if match is None or match[1] not in (*_FORMULAS, *others):
        raise EvaluationError(
            f"metric={name!r} is unknown; choose 'auc' or one of {[*_FORMULAS, *others]} followed by @K, "
            "such as 'ndcg@10'"
        )
    return match[1], int(match[2])


def _edges(ranks: Ranks, k: int) -> tuple[IndexArray, IndexArray]:
    """The ranks of the ties are those after `begin` up to `end`, as far as they are K or better."""
    return np.minimum(ranks.above, k), np.minimum(ranks.above + ranks.tied, k)


def _mean_over_ranks(ranks: Ranks, cumulated: Values) -> Values:
    """E[f(rank), rank ≤ K] of each held-out item, from the sums f(1) + … + f(r)."""
    begin, end = _edges(ranks, len(cumulated) - 1)
    gained: Values = (cumulated[end] - cumulated[begin]) / ranks.tied
    return gained


@lru_cache(maxsize=64)
def _cumulated(kind: str, k: int) -> Values:
    """f(1) + … + f(r) for r from 0 to K."""
    ranks = np.arange(1, k + 1, dtype=np.float64)
    terms = {"one": np.ones(k), "harmonic": 1 / ranks, "discount": 1 / np.log2(ranks + 1)}[kind]
    sums = np.concatenate(([0.0], np.cumsum(terms)))
    sums.flags.writeable = False
    return sums


def _first_hit(ranks: Ranks, k: int) -> tuple[Values, Values]:
    """HR and MRR at K."""
    above, tied = ranks.above[ranks.first], ranks.tied[ranks.first]
    relevant = ranks.relevant_tied[ranks.first]
    begin, end = np.minimum(above, k), np.minimum(above + tied, k)
    harmonic = _cumulated("harmonic", k)
    found = (end - begin) / tied
    reciprocal = (harmonic[end] - harmonic[begin]) / tied
    several = np.flatnonzero((relevant > 1) & (above < k))
    if len(several):
        above, tied, relevant = above[several], tied[several], relevant[several]
        none_yet = np.ones(len(several))
        gained = np.zeros(len(several))
        for position in range(1, int((end - begin)[several].max()) + 1):
            inside = (above + position <= k) & (position <= tied)
            remaining = np.maximum(tied - position + 1, 1)
            still = none_yet * np.maximum(tied - relevant - position + 1, 0) / remaining
            gained += np.where(inside, (none_yet - still) / (above + position), 0)
            none_yet = np.where(inside, still, none_yet)
        found[several], reciprocal[several] = 1 - none_yet, gained
    return found, reciprocal


def _counts_among_held_out(starts: IndexArray, scores: NDArray[Any]) -> tuple[IndexArray, IndexArray]:
    """For each held-out item how many of its user's score more, and how many the same, itself included."""
    user = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((-scores, user))
    new_run = np.ones(len(order), np.bool_)
    new_run[1:] = (user[order[1:]] != user[order[:-1]]) | (scores[order[1:]] != scores[order[:-1]])
    run_starts = np.flatnonzero(new_run)
    run_of = np.cumsum(new_run) - 1
    above, tied = np.empty_like(order), np.empty_like(order)
    above[order] = run_starts[run_of] - starts[user[order]]
    tied[order] = np.diff(np.append(run_starts, len(order)))[run_of]
    return above, tied


# -- beyond accuracy -----------------------------------------------------------------------------------------

Lists = NDArray[np.int32]
"""A row of recommended items for each user, best first; −1 for no item."""


@dataclass(frozen=True, eq=False)
class ListMetrics:
    """Metrics of top-k lists, from the items' training interactions and vectors."""

    train: Interactions
    vectors: NDArray[np.floating] | None = None
    """A row for each item; without them, the users who have an item in training."""

    def __post_init__(self) -> None:
        if self.vectors is not None and (self.vectors.ndim != 2 or len(self.vectors) != self.train.n_items):
            raise EvaluationError(
                f"item_vectors has the shape {self.vectors.shape}; give one row for each of "
                f"{self.train.n_items} items"
            )

    @property
    def counts(self) -> IndexArray:
        """Training interactions of each item."""
        return self.train.by_item.degrees

    @cached_property
    def bits(self) -> Values:
        """The self-information of each item."""
        return -np.log2(np.maximum(self.counts, 1) / max(self.train.n_users, 1))

    @cached_property
    def directions(self) -> sparse.csr_array:
        """Items × features, each row of length one or empty."""
        if self.vectors is None:
            rows = self.train.matrix.T.tocsr().astype(np.float64)
        else:
            rows = sparse.csr_array(self.vectors.astype(np.float64))
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
        directions = sparse.csr_array(sparse.diags_array(_ratio(1.0, lengths, 0.0)) @ rows)
        directions.eliminate_zeros()  # so that a row has entries exactly if it has a length
        return directions

    def shown(self, lists: Lists) -> IndexArray:
        """How often each item is listed."""
        # Moved up by one, "no item" is counted as number 0 and dropped.
        return np.bincount(lists.ravel() + 1, minlength=self.train.n_items + 1)[1:]

    def similarity(self, lists: Lists) -> Values:
        """(‖Σ_i x_i‖² − Σ_i ‖x_i‖²)/(n(n − 1)) of the directions x_i: the mean over pairs without pairs.

        NaN for a list of fewer than two items.
        """
        real = lists >= 0
        sizes = real.sum(1)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        listed = sparse.csr_array(
            (np.ones(starts[-1]), lists[real], starts), shape=(len(lists), self.train.n_items)
        )
        sums = listed @ self.directions
        squared = np.asarray(sums.multiply(sums).sum(1)).ravel()
        own = listed @ (np.diff(self.directions.indptr) > 0).astype(np.float64)
        return _ratio(squared - own, sizes * (sizes - 1.0))


def coverage(shown: IndexArray) -> float:
    """The share of items that are shown at all."""
    return float(np.count_nonzero(shown) / max(len(shown), 1))


def gini(shown: IndexArray) -> float:
    """Σ_k (2k − n − 1)·x_k / (n·Σ x), x ascending; 0 where nothing is shown."""
    ascending = np.sort(shown)
    n, total = len(ascending), ascending.sum()
    if not total:
        return 0.0
    return float((2 * np.arange(1, n + 1) - n - 1) @ ascending / (n * total))


def list_means(of_item: NDArray[np.number], lists: Lists) -> Values:
    """The mean of an item's figure over each list; NaN for an empty one."""
    real = lists >= 0
    return _ratio(np.where(real, of_item[lists], 0).sum(1), real.sum(1))


def _ratio(above: float | NDArray[Any], below: NDArray[Any], otherwise: float = np.nan) -> Values:
    """above / below where below is positive."""
    found: Values = np.divide(above, below, out=np.full(len(below), otherwise), where=below > 0)
    return found


# -- groups --------------------------------------------------------------------------------------------------


class Groups:
    """Users or items in three groups by their training interactions; empty groups are left out."""

    def __init__(self, interactions: IndexArray, limits: list[np.int64], names: tuple[str, ...]) -> None:
        """Below the first limit, from there to below the second, and the rest."""
        thirds = np.searchsorted(np.array(limits), interactions, side="right")
        present, self.which = np.unique(thirds, return_inverse=True)
        """The group number of each user or item."""
        self.names = tuple(names[third] for third in present)
        inside = [interactions[thirds == third] for third in present]
        self.sizes = [len(some) for some in inside]
        self.ranges = [(int(some.min()), int(some.max())) for some in inside]
        """The least and the most training interactions of each group."""

    def __len__(self) -> int:
        return len(self.names)

    def means(self, values: Values, which: IndexArray | None = None) -> dict[str, float]:
        """The mean of each group's values, NaN and groups without a value left out.

        `which` gives the group of each value where there is not one value for each user or item.
        """
        known = ~np.isnan(values)
        values, which = values[known], (self.which if which is None else which)[known]
        counts = np.bincount(which, minlength=len(self))
        sums = np.bincount(which, weights=values, minlength=len(self))
        return {name: float(sums[k] / counts[k]) for k, name in enumerate(self.names) if counts[k]}

    def named(self, values: Iterable[float]) -> dict[str, float]:
        """A value for each group, by name."""
        return dict(zip(self.names, values, strict=True))

    def described(self) -> dict[str, dict[str, Any]]:
        """Size and range of each group, and no values yet."""
        return {
            name: {"size": size, "training_interactions": [*limits], "values": {}}
            for name, limits, size in zip(self.names, self.ranges, self.sizes, strict=True)
        }


def user_groups(activity: IndexArray) -> Groups:
    """Thirds of the users by their training interactions; users with equally many stay together."""
    ascending = np.sort(activity)
    limits = [ascending[len(ascending) * third // 3] for third in (1, 2)]
    return Groups(activity, limits, ("light", "medium", "heavy"))


def item_groups(popularity: IndexArray) -> Groups:
    """Tail, middle and head, each with about a third of the training interactions: the head is few items."""
    ascending = np.sort(popularity)
    cumulated = np.cumsum(ascending)
    ends = np.searchsorted(cumulated, [cumulated[-1] / 3, 2 * cumulated[-1] / 3], side="right")
    limits = [ascending[min(end, len(ascending) - 1)] for end in ends]
    return Groups(popularity, limits, ("tail", "middle", "head"))

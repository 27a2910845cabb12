"""Calibration of trained scores: a popularity dial and an item–item filter, weighed by validation.

    score(u, i) = f(u, i) + w · s · g(u, i) − γ · t · log freq(i)

γ is the popularity dial. At the optimum of a softmax loss f/τ = log p(i|u) − (1 − β)·log freq(i) + const, so
with t = τ popularity can be moved after training: γ < 0 is more of what sells, γ = 1 pure personal lift.
g is an item–item filter with root mean square 1: rare co-occurrences that a vector of a hundred numbers
cannot hold. s is the deviation of the model's own scores, and t = s where the loss is no softmax.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from hdccf.config import Settings
from hdccf.data.interactions import Interactions
from hdccf.models.base import Candidates, Columns, Scorer, Scores, Users

NEIGHBOURS = 400
"""Entries of a row of the filter; the largest stay."""
_WINDOW, _WINDOW_HALF_LIFE = 5, 2.0
"""With times, items co-occur within so many places of a history; each so many places further counts half."""
_HISTORY_HALF_LIFE, _HISTORY_LENGTH = 3.0, 32
"""With times, how fast the items of a history fade; beyond the length less than a thousandth is left."""
_ROW_POWER, _COLUMN_POWER = -0.8, -0.2
"""Of the items' degrees: together −1, as in a cosine, most of it on the side of the history."""
_ENTRIES_AT_ONCE = 1 << 24
_SCORES_AT_ONCE = 1 << 22
_USERS_MEASURED, _ITEMS_MEASURED = 256, 4096


@dataclass(frozen=True, eq=False)
class ItemFilter:
    """Sparse weights from the items of a history to other items that occur with them."""

    weights: sparse.csr_array
    """Row j: what item j of a history adds to the score of every item."""
    recent: bool
    """Whether items co-occur within windows of the history, whose last items count most; otherwise within
    the whole of it."""

    @classmethod
    def of(cls, train: Interactions) -> "ItemFilter":
        """Co-occurrence in the training histories, divided by powers of the degrees of user and item."""
        recent = train.times is not None
        degrees = np.maximum(train.by_item.degrees, 1).astype(np.float32)
        rows, columns = degrees**_ROW_POWER, degrees**_COLUMN_POWER
        parts = []
        for first, counts in _within_windows(train) if recent else _within_histories(train):
            scaled = sparse.diags_array(rows[first : first + counts.shape[0]]) @ counts
            scaled = sparse.csr_array(scaled @ sparse.diags_array(columns))
            parts.append(_largest(scaled, NEIGHBOURS, first))
        return cls(sparse.csr_array(sparse.vstack(parts)), recent)

    def histories(self, events: Interactions) -> sparse.csr_array:
        """Users × items: how much each item of a history counts."""
        starts = events.by_user.starts
        shape = (events.n_users, events.n_items)
        if not self.recent:
            return sparse.csr_array((np.ones(len(events), np.float32), events.items, starts), shape=shape)
        age = starts[1:][events.users] - 1 - np.arange(len(events))
        kept = age < _HISTORY_LENGTH
        weights = np.exp2(-age[kept] / _HISTORY_HALF_LIFE).astype(np.float32)
        return sparse.csr_array((weights, (events.users[kept], events.items[kept])), shape=shape)


def _within_windows(train: Interactions) -> Iterator[tuple[int, sparse.csr_array]]:
    """Pairs of items within a window of a history, both ways, nearer ones counting more."""
    shape = (train.n_items, train.n_items)
    of_user = np.maximum(train.by_user.degrees, 1).astype(np.float32) ** -0.5
    total = sparse.csr_array(shape, dtype=np.float32)
    for apart in range(1, min(_WINDOW, len(train) - 1) + 1):
        same = train.users[apart:] == train.users[:-apart]
        before, after = train.items[:-apart][same], train.items[apart:][same]
        weights = of_user[train.users[apart:][same]] * np.float32(0.5 ** ((apart - 1) / _WINDOW_HALF_LIFE))
        total = total + sparse.csr_array((weights, (before, after)), shape=shape)
    yield 0, sparse.csr_array(total + total.T)


def _within_histories(train: Interactions) -> Iterator[tuple[int, sparse.csr_array]]:
    """Xᵀ D_u⁻¹ X, some rows at a time."""
    of_user = np.maximum(train.by_user.degrees, 1).astype(np.float32)
    columns = sparse.csr_array(train.matrix.T)
    weighted = sparse.csr_array(sparse.diags_array(1 / of_user) @ train.matrix)
    step = max(1, _ENTRIES_AT_ONCE // train.n_items)
    for first in range(0, train.n_items, step):
        yield first, sparse.csr_array(columns[first : first + step] @ weighted)


def _largest(matrix: sparse.csr_array, n: int, first: int) -> sparse.csr_array:
    """With the n largest entries of each row, none of them the item itself; row 0 is item `first`."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    values = np.where(rows + first == matrix.indices, 0, matrix.data)
    order = np.lexsort((-values, rows))
    place = np.arange(len(order)) - matrix.indptr[rows[order]]
    kept = order[(place < n) & (values[order] > 0)]
    return sparse.csr_array((values[kept], (rows[kept], matrix.indices[kept])), shape=matrix.shape)


@dataclass(frozen=True, eq=False)
class Calibration:
    """The weights of the dial and the filter, and what they weigh."""

    log_frequency: Float[Tensor, " items"]
    """Of the training users of an item."""
    popularity_unit: float
    """t: the softmax's temperature, or the deviation of the scores."""
    deviation: float
    """s: the standard deviation of a user's scores."""
    popularity: float = 0.0
    """γ; positive is less popular."""
    filter_weight: float = 0.0
    """w; 0 leaves the filter out."""
    item_filter: ItemFilter | None = None
    item_scale: Float[Tensor, " items"] | None = None
    """What the model's own scores are multiplied by: below 1 for an item whose vector is a mean of others."""
    facts: dict[str, Any] = field(default_factory=dict)
    """How they were chosen."""

    @classmethod
    def neutral(cls, settings: Settings, scorer: Scorer, train: Interactions) -> "Calibration":
        """One that leaves the scores as they are, with the units of the dial."""
        deviation = score_deviation(scorer)
        unit = settings.softmax_temperature or deviation
        counts = torch.from_numpy(np.maximum(train.by_item.degrees, 1).astype(np.float32))
        return cls(counts.log(), unit, deviation)

    def on(self, settings: Settings, scorer: Scorer, events: Interactions) -> "Calibration":
        """The same γ and w for a model that was trained on other events, whose filter is made of these."""
        item_filter = ItemFilter.of(events) if self.item_filter is not None else None
        return replace(
            Calibration.neutral(settings, scorer, events),
            popularity=self.popularity,
            filter_weight=self.filter_weight,
            item_filter=item_filter,
            facts=self.facts,
        )

    def with_popularity(self, popularity: float | None) -> "Calibration":
        """With another γ; the same where None."""
        return self if popularity is None else replace(self, popularity=popularity)

    def with_estimates(
        self,
        items: Int64[Tensor, " m"],
        log_frequency: Float[Tensor, " m"],
        scale: Float[Tensor, " m"] | None,
        neighbours: Int64[Tensor, "m k"],
        n_items: int,
    ) -> "Calibration":
        """For a catalogue of `n_items`, with the estimates of some of its items.

        In the filter they are the mean of their neighbours.
        """
        grown = n_items - len(self.log_frequency)
        shift, scales = torch.nn.functional.pad(self.log_frequency, (0, grown)), torch.ones(n_items)
        if self.item_scale is not None:
            scales[: len(self.item_scale)] = self.item_scale
        shift[items] = log_frequency
        if scale is not None:
            scales[items] = scale
        item_filter = self.item_filter
        if item_filter is not None:
            known = np.setdiff1d(np.arange(n_items), items.numpy())
            count = neighbours.shape[1]
            rows = np.concatenate([known, items.numpy().repeat(count)])
            columns = np.concatenate([known, neighbours.numpy().ravel()])
            values = np.concatenate([np.ones(len(known)), np.full(neighbours.numel(), 1 / max(count, 1))])
            shape = (n_items, n_items - grown)
            mean = sparse.csr_array((values.astype(np.float32), (rows, columns)), shape=shape)
            item_filter = replace(item_filter, weights=sparse.csr_array(mean @ item_filter.weights @ mean.T))
        scaled = None if scale is None and self.item_scale is None else scales
        return replace(self, log_frequency=shift, item_filter=item_filter, item_scale=scaled)

    def apply(self, scorer: Scorer, events: Interactions) -> Scorer:
        """The calibrated scores of users whose histories are the rows of `events`."""
        weighted = self.item_filter is not None and self.filter_weight
        if not weighted and not self.popularity and self.item_scale is None:
            return scorer
        filtered = None
        if self.item_filter is not None and self.filter_weight:
            filtered = FilterScores(self.item_filter, events, self.filter_weight * self.deviation)
        coefficient = -self.popularity * self.popularity_unit
        return CalibratedScorer(scorer, self.log_frequency, coefficient, filtered, self.item_scale)

    def describe(self) -> str:
        """One line, such as "popularity −0.50, item–item filter 0.20, chosen on validation"."""
        parts = [f"popularity {self.popularity:+.2f}".replace("-", "−").replace("+0.00", "0")]
        if self.item_filter is not None:
            parts.append(f"item–item filter {self.filter_weight:.2f}")
        change = ""
        if "before" in self.facts:
            change = f" ({self.facts['metric']} {self.facts['before']:.4f} → {self.facts['after']:.4f})"
        return f"{', '.join(parts)}, chosen on validation{change}"

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and facts, for a file or another process."""
        tensors = {"log_frequency": self.log_frequency}
        facts = {
            "popularity_unit": self.popularity_unit,
            "deviation": self.deviation,
            "popularity": self.popularity,
            "filter_weight": self.filter_weight,
            "recent": None,
            "facts": self.facts,
        }
        if self.item_filter is not None:
            weights = self.item_filter.weights
            facts["recent"] = self.item_filter.recent
            for name in ("data", "indices", "indptr"):
                tensors[f"filter.{name}"] = torch.from_numpy(getattr(weights, name))
        return tensors, facts

    @classmethod
    def from_parts(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> "Calibration":
        """The reverse of `to_parts`."""
        values = dict(facts)
        recent, item_filter = values.pop("recent"), None
        log_frequency = tensors["log_frequency"]
        if recent is not None:
            arrays = tuple(tensors[f"filter.{name}"].numpy() for name in ("data", "indices", "indptr"))
            n_items = len(log_frequency)
            item_filter = ItemFilter(sparse.csr_array(arrays, shape=(n_items, n_items)), recent)
        return cls(log_frequency, item_filter=item_filter, **values)


@torch.no_grad()
def score_deviation(scorer: Scorer) -> float:
    """The standard deviation of a user's scores over items, averaged over a sample of users."""
    generator = torch.Generator().manual_seed(0)
    users = torch.randperm(scorer.n_users, generator=generator)[:_USERS_MEASURED]
    items = torch.randperm(scorer.n_items, generator=generator)[:_ITEMS_MEASURED]
    return float(scorer.score_block(users, items).double().std(1, correction=0).mean())


class FilterScores:
    """w·s·g of users by their histories; g has root mean square 1 over the items."""

    def __init__(self, item_filter: ItemFilter, events: Interactions, scale: float) -> None:
        self.weights, self.histories = item_filter.weights, item_filter.histories(events)
        self.scale = scale * math.sqrt(events.n_items)

    def dense(self, users: Users) -> NDArray[np.float32]:
        """All items of some users."""
        scores: NDArray[np.float32] = (self.histories[users.numpy()] @ self.weights).toarray()
        return scores * self._factors(scores)

    def contributions(
        self, user: int, own: Int64[Tensor, " n"], items: Int64[Tensor, " c"]
    ) -> Float[Tensor, "n c"]:
        """What each own item adds to the scores of some items of one user."""
        history = self.histories[[user]]
        counts = history.toarray()[0, own.numpy()]
        weights = self.weights[own.numpy()][:, items.numpy()].toarray()
        factor = self._factors((history @ self.weights).toarray())
        return torch.from_numpy(counts[:, None] * weights * factor)

    def candidates(self, user: int, n: int) -> NDArray[np.int64]:
        """The n items with the largest filter scores of a user; fewer where fewer are above zero."""
        row = sparse.csr_array(self.histories[[user]] @ self.weights)
        best = np.argsort(-row.data, kind="stable")[:n]
        return row.indices[best].astype(np.int64)

    def _factors(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """0 for a user whose history leads nowhere."""
        lengths = np.linalg.norm(scores, axis=1, keepdims=True)
        factors: NDArray[np.float32] = np.divide(
            self.scale, lengths, out=np.zeros_like(lengths), where=lengths > 0
        )
        return factors


class CalibratedScorer:
    """A scorer with a shift of each item by its log frequency, and the scores of a filter."""

    def __init__(
        self,
        inner: Scorer,
        log_frequency: Float[Tensor, " items"],
        coefficient: float,
        filtered: FilterScores | None = None,
        scale: Float[Tensor, " items"] | None = None,
    ) -> None:
        self.inner, self.coefficient, self.filtered, self.scale = inner, coefficient, filtered, scale
        self.shift = coefficient * log_frequency
        self.n_users, self.n_items = inner.n_users, inner.n_items

    def score_block(self, users: Users, items: Columns | None = None) -> Scores:
        shift = self.shift if items is None else self.shift[items]
        scores = self.inner.score_block(users, items)
        if self.scale is not None:
            scores = scores * (self.scale if items is None else self.scale[items])
        scores = scores + shift
        if self.filtered is None:
            return scores
        parts = [torch.from_numpy(self.filtered.dense(some)) for some in self._split(users)]
        added = torch.cat([part if items is None else part[:, items] for part in parts])
        return scores + added

    def score_rows(self, users: Users, items: Candidates) -> Scores:
        scores = self.inner.score_rows(users, items)
        if self.scale is not None:
            scores = scores * self.scale[items]
        scores = scores + self.shift[items]
        if self.filtered is None:
            return scores
        parts = [
            torch.from_numpy(self.filtered.dense(some)).gather(1, theirs)
            for some, theirs in zip(self._split(users), self._split(items), strict=True)
        ]
        return scores + torch.cat(parts)

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, max(1, _SCORES_AT_ONCE // self.n_items))

"""What accuracy misses: how much of the catalogue is shown, how evenly, how popular, how alike.

    coverage@K          share of the items that are in at least one list of K
    gini@K              inequality of how often items are listed: 0 all equally, towards 1 a few take all
    popularity@K        training interactions of a listed item, averaged over a list and then over users
    novelty@K           −log₂(share of users who have a listed item in training), averaged likewise, in bits
    similarity@K        cosine of two items of a list, averaged over its pairs and then over users

Two items are alike as far as the same users have them in training, or by vectors that are given. An item that
nobody has in training counts as one that a single user has, or its novelty would be infinite.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hdccf.data.interactions import Interactions
from hdccf.errors import EvaluationError
from hdccf.evaluation.metrics import Values

Lists = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class ListMetrics:
    """Figures of lists of recommended items; −1 in a list stands for no item."""

    train: Interactions
    vectors: NDArray[np.floating] | None = None
    """An item's row each; without them, the users who have an item in training."""

    def __post_init__(self) -> None:
        if self.vectors is not None and (self.vectors.ndim != 2 or len(self.vectors) != self.train.n_items):
            raise EvaluationError(
                f"item_vectors has the shape {self.vectors.shape}; give one row for each of "
                f"{self.train.n_items} items"
            )

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training interactions of each item."""
        return self.train.by_item.degrees

    @cached_property
    def bits(self) -> Values:
        """The self-information of each item."""
        return -np.log2(np.maximum(self.counts, 1) / max(self.train.n_users, 1))

    @cached_property
    def directions(self) -> sparse.csr_array:
        """Items × features, each row of length one or nothing."""
        if self.vectors is None:
            rows = self.train.matrix.T.tocsr().astype(np.float64)
        else:
            rows = sparse.csr_array(self.vectors.astype(np.float64))
        lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
        scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        directions = sparse.csr_array(sparse.diags_array(scale) @ rows)
        directions.eliminate_zeros()  # so that a row has entries exactly if it has a length
        return directions

    def shown(self, lists: Lists) -> NDArray[np.int64]:
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
        members = sparse.csr_array(
            (np.ones(starts[-1]), lists[real], starts), shape=(len(lists), self.train.n_items)
        )
        sums = members @ self.directions
        squared = np.asarray(sums.multiply(sums).sum(1)).ravel()
        own = members @ (np.diff(self.directions.indptr) > 0).astype(np.float64)
        pairs = sizes * (sizes - 1.0)
        means: Values = np.divide(squared - own, pairs, out=np.full(len(lists), np.nan), where=pairs > 0)
        return means


def coverage(shown: NDArray[np.int64]) -> float:
    """The share of items that are shown at all."""
    return float(np.count_nonzero(shown) / max(len(shown), 1))


def gini(shown: NDArray[np.int64]) -> float:
    """Σ_k (2k − n − 1)·x_k / (n·Σ x), x ascending; 0 where nothing is shown."""
    ascending = np.sort(shown)
    n, total = len(ascending), ascending.sum()
    if not total:
        return 0.0
    return float((2 * np.arange(1, n + 1) - n - 1) @ ascending / (n * total))


def list_means(of_item: NDArray[np.number], lists: Lists) -> Values:
    """The mean of an item's figure over each list; NaN for an empty one."""
    values = of_item[lists]
    if lists.size and lists.min() >= 0:
        return np.asarray(values.mean(1), np.float64)
    real = lists >= 0
    sizes = real.sum(1)
    sums = np.where(real, values, 0).sum(1)
    means: Values = np.divide(sums, sizes, out=np.full(len(lists), np.nan), where=sizes > 0)
    return means


class Shares:
    """What each group of items takes of each list."""

    def __init__(self, lists: Lists, which: NDArray[np.int64], n_groups: int) -> None:
        self.shape = (len(lists), n_groups)
        self._items = lists.ravel()
        rows = np.repeat(np.arange(len(lists)), lists.shape[1])
        if self._items.size and self._items.min() < 0:
            real = self._items >= 0
            self._items, rows = self._items[real], rows[real]
        self._cells = rows * n_groups + which[self._items]
        self._sizes = np.bincount(self._cells, minlength=len(lists) * n_groups)

    def means(self, of_item: NDArray[np.number]) -> Values:
        """The mean of an item's figure: a row for each list, a column for each group, NaN for no items."""
        sums = np.bincount(self._cells, weights=of_item[self._items], minlength=len(self._sizes))
        means: Values = np.divide(sums, self._sizes, out=np.full(len(sums), np.nan), where=self._sizes > 0)
        return means.reshape(self.shape)

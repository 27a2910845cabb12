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
Mask = NDArray[np.bool_]


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

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training interactions of each item."""
        return np.bincount(self.train.items, minlength=self.train.n_items)

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

    def coverage(self, lists: Lists, items: Mask | None = None) -> float:
        """Of all items, or of those in the mask."""
        shown = self._shown(lists, items)
        return float(np.count_nonzero(shown) / len(shown)) if len(shown) else 0.0

    def gini(self, lists: Lists, items: Mask | None = None) -> float:
        """Σ_k (2k − n − 1)·x_k / (n·Σ x), x ascending; 0 where nothing is shown."""
        shown = np.sort(self._shown(lists, items))
        n, total = len(shown), shown.sum()
        if not total:
            return 0.0
        return float((2 * np.arange(1, n + 1) - n - 1) @ shown / (n * total))

    def popularity(self, lists: Lists, items: Mask | None = None) -> Values:
        return self._list_means(self.counts, lists, items)

    def novelty(self, lists: Lists, items: Mask | None = None) -> Values:
        return self._list_means(self.bits, lists, items)

    def similarity(self, lists: Lists, items: Mask | None = None) -> Values:
        """(‖Σ_i x_i‖² − Σ_i ‖x_i‖²)/(n(n − 1)) of the directions x_i: the mean over pairs without pairs.

        NaN for a list of fewer than two items.
        """
        real = lists >= 0 if items is None else (lists >= 0) & items[lists]
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

    def _shown(self, lists: Lists, items: Mask | None) -> NDArray[np.int64]:
        """How often each item is listed."""
        flat = lists.ravel()
        # Moved up by one, "no item" is counted as number 0 and dropped.
        shown = np.bincount(flat + 1, minlength=self.train.n_items + 1)[1:]
        return shown if items is None else shown[items]

    def _list_means(self, of_item: NDArray[np.number], lists: Lists, items: Mask | None) -> Values:
        values = of_item[lists]
        if items is None and lists.size and lists.min() >= 0:
            return np.asarray(values.mean(1), np.float64)
        real = lists >= 0 if items is None else (lists >= 0) & items[lists]
        sizes = real.sum(1)
        sums = np.where(real, values, 0).sum(1)
        means: Values = np.divide(sums, sizes, out=np.full(len(lists), np.nan), where=sizes > 0)
        return means

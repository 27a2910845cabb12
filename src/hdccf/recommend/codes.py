"""Vectors as short codes that are all scanned: what an index proposes from (faiss, the extra `index`).

Trained vectors fill all of their directions, so lists and graphs, which look at some of the items, miss too
many (decision 22). Four bits for two numbers make an item so short that a million are looked at in less than
a millisecond: the sixteen products of a pair with a user's fit into a register.

The nearest code is not the best one. A user whose product with an item is large lies in its direction, so an
error along the item changes that product most, and errors across it hardly: codes are chosen by a sum of
squares in which the former counts more, as in Guo et al., Accelerating large-scale inference with anisotropic
vector quantization (ICML 2020). Half as many proposals then have the best (decision 22).
"""

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hdccf.errors import ConfigError
from hdccf.kernels.sparse_gradients import has_numba
from hdccf.kernels.threads import share

_FEW = 200_000
"""Up to so many items a scan is short, and each number can have four bits; of more, two share them."""
_MOST_CODES = 256
"""Sums of more codes would not fit into faiss's sixteen bits."""
_ITEMS_AT_ONCE = 96
"""Items in a block of codes; with 32, which is faiss's default, a scan takes a fifth longer."""
_SHARE = 200_000
"""Items that are worth a thread of their own."""
_LEARNT_FROM = 1 << 14
_ALONG, _ROUNDS = 5.0, 3
"""How much more of an error counts along an item than across it, and how often each code is looked at again:
twice or half as much finds nearly as much."""

Points = NDArray[np.float32]


class Codes:
    """Rows of points, to be asked for those with the largest products or the smallest distances."""

    def __init__(self, points: Points, *, distances: bool) -> None:
        faiss = _faiss()
        numbers = max(1 if len(points) <= _FEW else 2, math.ceil(points.shape[1] / _MOST_CODES))
        codes = math.ceil(points.shape[1] / numbers)
        self._width = codes * numbers
        points = self._padded(points)
        metric = faiss.METRIC_L2 if distances else faiss.METRIC_INNER_PRODUCT
        empty = faiss.IndexPQ(self._width, codes, 4, metric)
        empty.train(_sample(points, by_length=not distances))
        shares = min(torch.get_num_threads(), math.ceil(len(points) / _SHARE))
        scanned = []
        for part in np.array_split(points, shares):
            coded = faiss.clone_index(empty)
            if distances or not has_numba():
                coded.add(part)
            else:
                coded.add_sa_codes(_packed(_for_products(part, _centres(empty, numbers))))
            scanned.append(faiss.IndexPQFastScan(coded, _ITEMS_AT_ONCE))
        self._index = scanned[0]
        if shares > 1:
            self._index = faiss.IndexShards(self._width, True, True)  # each in a thread, numbered through
            for part in scanned:
                self._index.add_shard(part)

    def best(self, points: Points, n: int) -> NDArray[np.int64]:
        """The n best rows for each point, nearly in order; −1 fills up."""
        found: NDArray[np.int64] = self._index.search(self._padded(points), n)[1]
        return found

    def _padded(self, points: Points) -> Points:
        missing = self._width - points.shape[1]
        return np.pad(points, ((0, 0), (0, missing))) if missing else points


def _centres(index: Any, numbers: int) -> Points:
    """The sixteen points that stand for all, of each part of the numbers."""
    flat: Points = _faiss().vector_to_array(index.pq.centroids)
    return flat.reshape(-1, 16, numbers)


def _for_products(points: Points, centres: Points) -> NDArray[np.uint8]:
    """A code for each part of each point."""
    encode = import_module("hdccf.kernels.codes_numba").encode  # numba takes half a second
    codes = np.empty((len(points), len(centres)), np.uint8)
    threads = torch.get_num_threads()

    def work(some: Sequence[int]) -> None:
        for thread in some:
            bounds = len(points) * thread // threads, len(points) * (thread + 1) // threads
            encode(points, centres, _ALONG, _ROUNDS, codes, *bounds)

    share(work, range(threads), threads)
    return codes


def _packed(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two codes a byte, the first in its lower half, as faiss keeps them."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return np.ascontiguousarray(even[:, ::2] | even[:, 1::2] << 4)


def _sample(points: Points, by_length: bool) -> Points:
    """What the codes are learnt from: long vectors have the largest products, so theirs should be exact."""
    rng = np.random.default_rng(0)
    if not by_length:
        return points[rng.integers(len(points), size=_LEARNT_FROM)]
    weights = np.square(np.einsum("nd,nd->n", points, points, dtype=np.float64)) + np.finfo(np.float64).tiny
    return points[rng.choice(len(points), _LEARNT_FROM, p=weights / weights.sum())]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as cause:
        raise ConfigError(
            "an index of candidates needs faiss; install it with: pip install 'hdccf[index]'"
        ) from cause
    return faiss

"""Exact top-k of each row of scores, with ties in a random but reproducible order.

NumPy throughout: it selects and sorts with vector instructions, on one thread about as fast as `torch.topk`
on two, and does not wait for a second thread on a busy machine.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdccf.data.splitmix import mix

Scores = NDArray[np.floating[Any]]
IndexArray = NDArray[np.int64]

_HASH_BITS = 40
"""Leaves 23 bits for the number of a row in the same 64-bit number."""
_NEVER = 1 << _HASH_BITS


def top_items(scores: Scores, k: int, users: IndexArray, seed: int) -> NDArray[np.int32]:
    """The columns of the `k` highest scores of each row, best first; −1 where only −∞ is left.

    Tied columns are ordered by a hash of seed, user and column: random, different from user to user, and the
    same whatever the size of the blocks.
    """
    k_all = min(k, scores.shape[1])
    # One more than needed: a tie across the edge of the list is then a tie within the selection.
    values, columns = top_k(scores, min(k_all + 1, scores.shape[1]))
    tied = np.flatnonzero(((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -np.inf)).any(1))
    values, columns = values[:, :k_all], columns[:, :k_all]
    if len(tied):
        values[tied], columns[tied] = _shuffled_ties(
            scores[tied], values[tied], columns[tied], users[tied], seed
        )
    chosen = np.full((len(scores), k), -1, np.int32)
    chosen[:, :k_all] = np.where(values == -np.inf, -1, columns)
    return chosen


def top_k(scores: Scores, k: int) -> tuple[Scores, IndexArray]:
    """The k highest values of each row, highest first, and their columns.

    They are in the k groups with the highest maxima. Column c belongs to group c mod m, so that taking the
    maxima runs along memory; the last columns, too few for another layer, are always looked at.
    """
    n = scores.shape[1]
    if k == 0:
        return scores[:, :0], np.zeros((len(scores), 0), np.int64)
    layers = 1
    while (2 * layers) ** 2 * k <= n:
        layers *= 2
    if layers < 4:
        return _sorted_best(scores, np.broadcast_to(np.arange(n), scores.shape), k)
    groups = n // layers
    maxima = scores[:, : groups * layers].reshape(len(scores), layers, groups).max(1)
    columns = np.empty((len(scores), k * layers + n - groups * layers), np.int64)
    layered = columns[:, : k * layers].reshape(len(scores), layers, k)
    np.add(_best(maxima, k)[:, None, :], (np.arange(layers) * groups)[:, None], out=layered)
    columns[:, k * layers :] = np.arange(groups * layers, n)
    return _sorted_best(_along_rows(scores, columns), columns, k)


def _best(values: Scores, k: int) -> IndexArray:
    """Where the k highest values of each row are, in any order."""
    n = values.shape[1]
    return np.argpartition(values, n - k, axis=1)[:, n - k :]


def _sorted_best(values: Scores, columns: IndexArray, k: int) -> tuple[Scores, IndexArray]:
    best = _best(values, k)
    order = np.argsort(-_along_rows(values, best), axis=1)
    best = _along_rows(best, order)
    return _along_rows(values, best), _along_rows(columns, best)


def _along_rows(table: NDArray[Any], places: IndexArray) -> NDArray[Any]:
    """`np.take_along_axis` along rows, faster."""
    starts = np.arange(len(table))[:, None] * table.shape[1]
    taken: NDArray[Any] = np.take(table, places + starts)
    return taken


def _shuffled_ties(
    scores: Scores, values: Scores, columns: IndexArray, users: IndexArray, seed: int
) -> tuple[Scores, IndexArray]:
    """Orders ties by hash: those inside the list, and at its edge those that could be in it as well."""
    k = values.shape[1]
    edge = values[:, -1:]
    edge_hashes, edge_columns = _lowest_hashes(scores, edge, users, seed, k)
    pool_columns = np.concatenate((columns, edge_columns), 1)
    pool_hashes = np.concatenate((_hash(users[:, None], columns, seed), edge_hashes), 1)
    # The list's own entries at the edge are in the second half again, if their hash lets them; so they leave
    # the first half, and where the second half is not full its fillers leave as well.
    strays = np.concatenate((values == edge, edge_hashes == _NEVER), 1)
    pool_values = np.concatenate((values, np.broadcast_to(edge, values.shape)), 1)
    pool_values[strays] = -np.inf
    order = np.lexsort((pool_hashes, -pool_values), axis=1)[:, :k]
    return _along_rows(pool_values, order), _along_rows(pool_columns, order)


def _lowest_hashes(
    scores: Scores, edge: Scores, users: IndexArray, seed: int, k: int
) -> tuple[IndexArray, IndexArray]:
    """The k lowest hashes of the columns that score exactly `edge`, and the columns; `_NEVER` fills up."""
    rows, tied = np.divmod(np.flatnonzero(scores == edge), scores.shape[1])
    hashes = _hash(users[rows], tied, seed)
    # Row and hash in one number, which NumPy sorts much faster than two.
    order = np.argsort((rows << _HASH_BITS) | hashes)
    rows, tied, hashes = rows[order], tied[order], hashes[order]
    turn = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = turn < k
    lowest, where = np.full((len(scores), k), _NEVER), np.zeros((len(scores), k), np.int64)
    lowest[rows[kept], turn[kept]] = hashes[kept]
    where[rows[kept], turn[kept]] = tied[kept]
    return lowest, where


def _hash(users: IndexArray, columns: IndexArray, seed: int) -> IndexArray:
    """A number for each user and column, by SplitMix64; unsigned numbers wrap around."""
    mixed = users.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = mixed + columns.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = mixed + np.uint64(seed * 0x94D049BB133111EB % 2**64)
    return (mix(mixed) >> np.uint64(64 - _HASH_BITS)).astype(np.int64)

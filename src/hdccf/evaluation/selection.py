"""The best K of each row, exactly, and in a random but reproducible order where scores tie."""

import numpy as np
import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

_HASH_BITS = 40
"""Leaves 23 bits for the number of a row in the same 64-bit number."""
_NEVER = 1 << _HASH_BITS


def top_items(
    scores: Float[Tensor, "b c"], k: int, users: Int64[Tensor, " b"], seed: int
) -> Int32[Tensor, "b {k}"]:
    """The columns of the `k` highest scores of each row, best first; −1 where only −∞ is left.

    Tied columns are ordered by a hash of seed, user and column: random, different from user to user, and
    the same whatever the size of the blocks.
    """
    k_all = min(k, scores.shape[1])
    # One more than needed: a tie across the edge of the list is then a tie within the selection.
    values, columns = _top(scores, min(k_all + 1, scores.shape[1]))
    tied = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(1).nonzero()[:, 0]
    values, columns = values[:, :k_all], columns[:, :k_all]
    if len(tied):
        values[tied], columns[tied] = _shuffled_ties(
            scores[tied], values[tied], columns[tied], users[tied], seed
        )
    chosen = torch.full((len(scores), k), -1, dtype=torch.int32)
    chosen[:, :k_all] = columns.masked_fill(values == -torch.inf, -1)
    return chosen


def _top(scores: Float[Tensor, "b c"], k: int) -> tuple[Float[Tensor, "b {k}"], Int64[Tensor, "b {k}"]]:
    """What `torch.topk` gives, faster: the best k are in the k groups with the best maxima.

    Column c belongs to group c mod m, so that taking the maxima runs along memory; the last columns, too few
    for another layer, are always looked at. NumPy selects with vector instructions, on one thread faster than
    `torch.topk` on two.
    """
    n = scores.shape[1]
    layers = 1
    while (2 * layers) ** 2 * k <= n:
        layers *= 2
    if layers < 4:
        return _sorted_best(scores, torch.arange(n).expand(len(scores), -1), k)
    groups = n // layers
    maxima = scores.as_strided((len(scores), layers, groups), (n, groups, 1)).amax(1)
    best = _best(maxima, k)
    columns = (best[:, None, :] + (torch.arange(layers) * groups)[:, None]).flatten(1)
    rest = torch.arange(groups * layers, n).expand(len(scores), -1)
    columns = torch.cat((columns, rest), 1)
    return _sorted_best(scores.gather(1, columns), columns, k)


def _best(values: Float[Tensor, "b c"], k: int) -> Int64[Tensor, "b {k}"]:
    """Where the k highest values of each row are, in any order."""
    n = values.shape[1]
    return torch.from_numpy(np.argpartition(values.numpy(), n - k, axis=1)[:, n - k :])


def _sorted_best(
    values: Float[Tensor, "b c"], columns: Int64[Tensor, "b c"], k: int
) -> tuple[Float[Tensor, "b {k}"], Int64[Tensor, "b {k}"]]:
    """The k highest values of each row, highest first, and their columns."""
    best = _best(values, k)
    best_values = values.gather(1, best)
    order = torch.from_numpy(np.argsort(-best_values.numpy(), axis=1))
    return best_values.gather(1, order), columns.gather(1, best.gather(1, order))


def _shuffled_ties(
    scores: Float[Tensor, "f c"],
    values: Float[Tensor, "f k"],
    columns: Int64[Tensor, "f k"],
    users: Int64[Tensor, " f"],
    seed: int,
) -> tuple[Float[Tensor, "f k"], Int64[Tensor, "f k"]]:
    """Orders ties by hash: those inside the list, and at its edge those that could be in it as well."""
    k = values.shape[1]
    edge = values[:, -1:]
    edge_hashes, edge_columns = _lowest_hashes(scores, edge, users, seed, k)
    pool_columns = torch.cat((columns, edge_columns), 1)
    pool_hashes = torch.cat((_hash(users[:, None], columns, seed), edge_hashes), 1)
    # The list's own entries at the edge are in the second half again, if their hash lets them; so they leave
    # the first half, and where the second half is not full its fillers leave as well.
    strays = torch.cat((values == edge, edge_hashes == _NEVER), 1)
    pool_values = torch.cat((values, edge.expand(-1, k)), 1).masked_fill(strays, -torch.inf)
    by_hash = pool_hashes.argsort(1)
    by_value = pool_values.gather(1, by_hash).argsort(dim=1, descending=True, stable=True)
    order = by_hash.gather(1, by_value)[:, :k]
    return pool_values.gather(1, order), pool_columns.gather(1, order)


def _lowest_hashes(
    scores: Float[Tensor, "f c"], edge: Float[Tensor, "f 1"], users: Int64[Tensor, " f"], seed: int, k: int
) -> tuple[Int64[Tensor, "f {k}"], Int64[Tensor, "f {k}"]]:
    """The k lowest hashes of the columns that score exactly `edge`, and the columns; `_NEVER` fills up."""
    cells = np.flatnonzero(scores.numpy() == edge.numpy())
    rows, tied = torch.from_numpy(cells // scores.shape[1]), torch.from_numpy(cells % scores.shape[1])
    hashes = _hash(users[rows], tied, seed)
    # Row and hash in one number, which NumPy sorts much faster than two.
    order = torch.from_numpy(np.argsort(((rows << _HASH_BITS) | hashes).numpy()))
    rows, tied, hashes = rows[order], tied[order], hashes[order]
    turn = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
    kept = turn < k
    lowest = torch.full((len(scores), k), _NEVER), torch.zeros(len(scores), k, dtype=torch.int64)
    for table, found in zip(lowest, (hashes, tied), strict=True):
        table[rows[kept], turn[kept]] = found[kept]
    return lowest


def _hash(users: Tensor, columns: Tensor, seed: int) -> Tensor:
    """A number for each user and column, mixed as in SplitMix64; overflow wraps around."""
    salt = seed * 0x9E3779B97F4A7C15 & 0x3FFFFFFFFFFFFFFF
    mixed = users * -7046029254386353131 + columns * -4658895280553007687 + salt
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed ^ (mixed >> 31)) & ((1 << _HASH_BITS) - 1)

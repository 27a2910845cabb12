"""The literal versions: lists that are sorted, orders that are all tried, and small worlds to try them on."""

from collections.abc import Sequence
from itertools import groupby, permutations, product
from math import log2

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from hdccf.data.interactions import Interactions
from hdccf.data.split import Split


def metrics_of_order(relevant: Sequence[bool], k: int) -> dict[str, float]:
    """Every accuracy metric of one order of the candidates, best first, as the textbooks have it."""
    hits = [bool(value) for value in relevant[:k]]
    total = sum(relevant)
    ranks = [rank for rank, hit in enumerate(hits, 1) if hit]
    positions = [place for place, value in enumerate(relevant) if value]
    negatives = [place for place, value in enumerate(relevant) if not value]
    return {
        f"hr@{k}": float(any(hits)),
        f"recall@{k}": sum(hits) / total,
        f"precision@{k}": sum(hits) / k,
        f"mrr@{k}": 1 / ranks[0] if ranks else 0.0,
        f"map@{k}": sum(sum(hits[:rank]) / rank for rank in ranks) / total,
        f"ndcg@{k}": sum(1 / log2(rank + 1) for rank in ranks)
        / sum(1 / log2(rank + 1) for rank in range(1, min(total, k) + 1)),
        "auc": sum(p < n for p in positions for n in negatives) / (len(positions) * len(negatives)),
    }


def expected_metrics(scores: Sequence[float], relevant: Sequence[bool], k: int) -> dict[str, float]:
    """The mean over all orders that agree with the scores: every permutation of every tie is tried."""
    ranked = sorted(zip(scores, relevant, strict=True), key=lambda pair: -pair[0])
    ties = [[flag for _, flag in tied] for _, tied in groupby(ranked, key=lambda pair: pair[0])]
    sums: dict[str, float] = {}
    count = 0
    for order in product(*(list(permutations(tied)) for tied in ties)):
        count += 1
        for name, value in metrics_of_order([flag for tied in order for flag in tied], k).items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: value / count for name, value in sums.items()}


class Table:
    """A scorer that looks scores up."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.n_users, self.n_items = scores.shape

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        return self.scores[users] if items is None else self.scores[users][:, items]

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        return self.scores[users].gather(1, items)


class Dot:
    """A scorer that multiplies vectors."""

    def __init__(self, users: Tensor, items: Tensor) -> None:
        self.users, self.items = users, items
        self.n_users, self.n_items = len(users), len(items)

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        return self.users[users] @ (self.items if items is None else self.items[items]).T

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        return torch.einsum("bd,bcd->bc", self.users[users], self.items[items])


def popular(split: Split) -> Table:
    counts = torch.from_numpy(np.bincount(split.train.items, minlength=split.n_items)).float()
    return Table(counts.expand(split.n_users, -1))


def world(
    n_users: int,
    n_items: int,
    seed: int,
    *,
    held_out: tuple[int, int] = (1, 1),
    train: tuple[int, int] = (3, 9),
) -> Split:
    """Users with a random history; `held_out` and `train` give the least and the most pairs of a user."""
    rng = np.random.default_rng(seed)
    parts: list[list[tuple[int, int]]] = [[], [], []]
    for user in range(n_users):
        in_train, out = (int(rng.integers(low, high + 1)) for low, high in (train, held_out))
        items = rng.permutation(n_items)[: in_train + 2 * out]
        for part, some in zip(parts, np.split(items, [in_train, in_train + out]), strict=True):
            part += [(user, int(item)) for item in some]
    return split_of(parts, n_users, n_items)


def split_of(parts: Sequence[Sequence[tuple[int, int]]], n_users: int, n_items: int) -> Split:
    """A split from pairs (user, item) of the three parts, over the ids 0 … n − 1, occurring or not."""
    made = []
    for part in parts:
        pairs: NDArray[np.int32] = np.array(part, np.int32).reshape(-1, 2)
        user_ids = pl.Series(np.arange(n_users))
        item_ids = pl.Series([f"i{item}" for item in range(n_items)])
        made.append(Interactions.from_codes(*pairs.T, user_ids=user_ids, item_ids=item_ids))
    return Split(made[0], made[1], made[2], "predefined", {})

"""Pools: some users' positives against items that are drawn once for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.columns_of_blocks import distinct_below, places_in
from hdccf.data.sampling import UserBlocks


class Pool(NamedTuple):
    """Users × drawn items, and the users' positives apart from them."""

    users: Int64[Tensor, " r"]
    columns: Int64[Tensor, " c"]
    """The drawn items, all different."""
    inclusion: Float[Tensor, " c"]
    """How many items each of them stands for."""
    observed_rows: Int64[Tensor, " n"]
    """With `observed_columns`, the training pairs among users × drawn items: never a negative."""
    observed_columns: Int64[Tensor, " n"]
    rows: Int64[Tensor, " b"]
    """With `items` and `weights`, the positives, in order of their rows."""
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]


@dataclass(frozen=True)
class PoolSampler(UserBlocks):
    """`pool`: every training pair of `block_users` users is a positive, against `negatives` drawn items.

    In a block the positives of all are columns, of a large catalogue most of them. Here they are not, so that
    a step takes as long as its draw is large.
    """

    negatives: int

    def epoch(self, generator: torch.Generator) -> Iterator[Pool]:
        n_items = self.graph.n_items
        size = min(self.negatives, n_items)
        inclusion = torch.full((size,), n_items / size)
        for users in self.blocks(generator):
            columns = distinct_below(n_items, size, generator)
            rows, items, entries = self.graph.items_of.within(users, None)
            places = places_in(items, columns, n_items)
            hits = (places >= 0).nonzero().squeeze(1)
            yield Pool(
                users,
                columns,
                inclusion,
                rows.index_select(0, hits),
                places.index_select(0, hits),
                rows,
                items,
                self.weights.index_select(0, entries),
            )

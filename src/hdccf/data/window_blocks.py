"""Blocks whose rows are many moments of each user: every place of a window of the history is one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int64
from torch import Tensor

from hdccf.data.columns_of_blocks import block_columns, places_in
from hdccf.data.cuts import NO_ITEM, Windows, cut_windows
from hdccf.data.graph import expand
from hdccf.data.sampling import Block, UserBlocks


@dataclass(frozen=True)
class WindowBlockSampler(UserBlocks):
    """For user vectors that are made of a history in order, at all its places at once.

    Each user of a block has one window of `length` items, which ends at a random moment. Each of its places
    is a row: the items up to it are the input, the `ahead` items after it the positives, weighted
    ½^(place / ahead_half_life) and by their own weight; what the user never touched are the negatives.
    """

    block_items: int
    length: int
    ahead: int
    ahead_half_life: float

    least: ClassVar[int] = 2  # a history of one has no past to learn its future from

    def epoch(self, generator: torch.Generator) -> Iterator[Block]:
        for users in self.blocks(generator):
            yield self._block(users, generator)

    def _block(self, users: Int64[Tensor, " n"], generator: torch.Generator) -> Block:
        items_of = self.graph.items_of
        cuts = self._cuts(users, generator)
        windows = cut_windows(items_of, users, cuts, self.length)
        places = (windows.flatten() != NO_ITEM).nonzero().squeeze(1)
        which = places // self.length
        row_users = users[which]
        # The first item after each place, among all pairs.
        after = items_of.starts[row_users] + cuts[which] - self.length + places % self.length + 1
        left = items_of.starts[row_users + 1] - after
        rows, entries = expand(after, left.clamp(max=self.ahead))
        soon = torch.exp2(-(entries - after[rows]).to(self.weights.dtype) / self.ahead_half_life)
        positives = items_of.at(entries)
        columns, inclusion = block_columns(positives, self.graph.n_items, self.block_items, generator)
        observed_rows, observed_columns, _ = items_of.within(row_users, columns)
        return Block(
            row_users,
            columns,
            inclusion,
            observed_rows,
            observed_columns,
            rows,
            places_in(positives, columns, self.graph.n_items),
            soon * self.weights[entries],
            Windows(windows, places),
        )

    def _cuts(self, users: Int64[Tensor, " n"], generator: torch.Generator) -> Int64[Tensor, " n"]:
        """How many items lie before the end of each window: at least a whole window where there is one, and
        at least one item after it."""
        most = self.graph.items_of.degrees[users] - 1
        least = most.clamp(max=self.length)
        uniform = torch.rand(len(users), generator=generator, dtype=torch.float64)
        return least + (uniform * (most - least + 1)).long().clamp_(max=most - least)

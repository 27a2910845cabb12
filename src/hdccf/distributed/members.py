"""What one worker has of the data, read from the store: its users, its items, and the graph of all."""

import numpy as np
import polars as pl
import torch

from hdccf.data.split import Split
from hdccf.distributed.group import Group
from hdccf.distributed.spread import SpreadGraph, SpreadNeighbours, SpreadPairs
from hdccf.distributed.store import Store, Stretch


class Member:
    """A worker's part of a store."""

    def __init__(self, store: Store, group: Group) -> None:
        self.store, self.group = store, group
        self.users: Stretch = store.stretches("user", group.size)[group.rank]
        self.items: Stretch = store.stretches("item", group.size)[group.rank]
        self.split: Split = store.split_of(self.users)
        """Of the own users, who are numbered from 0."""

    def pairs(self) -> SpreadPairs:
        """The own users' training pairs under the numbers of all, with the graph of all."""
        own, store = self.split.train, self.store
        items_of = self._direction(store.user_degrees, own.items, store.n_items, self.users)
        users_of = self._direction(store.item_degrees, store.users_of(self.items), store.n_users, self.items)
        return SpreadPairs(
            users=own.users + np.int32(self.users.first),
            items=own.items,
            times=own.times,
            counts=own.counts,
            user_ids=pl.int_range(store.n_users, dtype=pl.Int32, eager=True),
            item_ids=own.item_ids,
            graph=SpreadGraph(items_of, users_of),
        )

    def _direction(
        self, degrees: np.ndarray, flat: np.ndarray, n_columns: int, own: Stretch
    ) -> SpreadNeighbours:
        starts = torch.from_numpy(np.concatenate(([0], np.cumsum(degrees))).astype(np.int64))
        neighbours = torch.from_numpy(flat.astype(np.int64))
        return SpreadNeighbours(starts, neighbours, n_columns, own.first, own.last, self.group)

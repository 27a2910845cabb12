"""A split as Parquet files that are read by shard: training pairs by user and by item, and held-out pairs.

meta.json             format, sizes, and the split's method and fingerprint
users.parquet         each user's own id and number of training pairs
items.parquet         each item's own id, number of training pairs, and title
by_user.parquet       training pairs in the order of `Interactions`: user, time
by_item.parquet       the same pairs by item, user
validation.parquet    what is held out, by user
test.parquet
candidates.parquet    the frozen negatives of sampled ranking, by user

Row groups have the least and the greatest user (or item) in the file's footer: Arrow reads the groups that
overlap a shard, and nothing else. The folder may be on any file system of Arrow.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.errors import RunError
from hdccf.evaluation.candidates import Candidates, frozen_candidates

FORMAT = "hdccf-store"
FORMAT_VERSION = 1
ROWS_IN_A_GROUP = 1 << 16
"""Half a megabyte of pairs: a shard reads at most two more than it needs."""
_GROUPS_OF_NODES = 1 << 20
_HELD_OUT = ("validation", "test")


def file_system_of(path: str) -> tuple[fs.FileSystem, str]:
    """The file system and path of a local path or an address such as s3://bucket/folder."""
    if "://" not in path:
        return fs.LocalFileSystem(), path
    system, folder = fs.FileSystem.from_uri(path)
    return system, folder


def write_store(split: Split, path: str, *, weighting: str | None = "uniform") -> None:
    """Writes a split; meta.json, last, says that it is complete.

    `weighting` is how the candidates of its validation are drawn; None writes none.
    """
    system, folder = file_system_of(path)
    system.create_dir(folder, recursive=True)

    def write(name: str, columns: dict[str, Any], rows: int = ROWS_IN_A_GROUP) -> None:
        table = pa.table(columns)
        pq.write_table(table, f"{folder}/{name}.parquet", row_group_size=rows, filesystem=system)

    train = split.train
    ids = {"id": train.user_ids.to_arrow(), "degree": train.by_user.degrees}
    write("users", ids, _GROUPS_OF_NODES)
    named = {"id": train.item_ids.to_arrow(), "degree": train.by_item.degrees}
    write("items", named if train.titles is None else {**named, "title": train.titles.to_arrow()})
    write("by_user", _columns(train))
    items = np.repeat(np.arange(train.n_items, dtype=np.int32), train.by_item.degrees)
    write("by_item", {"item": items, "user": train.by_item.neighbours})
    for name in _HELD_OUT:
        write(name, _columns(split.part(name)))
    if weighting is not None and len(split.validation):
        frozen = frozen_candidates(split, "validation", weighting=weighting)
        each = pa.FixedSizeListArray.from_arrays(frozen.negatives.ravel(), frozen.negatives.shape[1])
        write("candidates", {"user": frozen.users.astype(np.int32), "negatives": each})
    meta = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "users": split.n_users,
        "items": split.n_items,
        "pairs": len(train),
        **{name: len(split.part(name)) for name in _HELD_OUT},
        "times": train.times is not None,
        "method": split.method,
        "fingerprint": split.fingerprint,
    }
    with system.open_output_stream(f"{folder}/meta.json") as file:
        file.write(json.dumps(meta).encode())


def _columns(part: Interactions) -> dict[str, Any]:
    columns = {"user": part.users, "item": part.items, "count": part.counts}
    more = {"time": part.times, "weight": part.weights}
    return columns | {name: column for name, column in more.items() if column is not None}


@dataclass(frozen=True)
class Shard:
    """Consecutive users (or items), from `first` to `last` − 1."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


class Store:
    """A folder that `write_store` wrote."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._system, self._folder = file_system_of(path)
        try:
            with self._system.open_input_stream(f"{self._folder}/meta.json") as file:
                self.meta: dict[str, Any] = json.loads(file.read())
        except (OSError, ValueError) as cause:
            raise RunError(f"{path} holds no store of training pairs ({cause}); train again") from cause
        if self.meta.get("version") != FORMAT_VERSION:
            raise RunError(f"{path} is a store of another version of hdccf; train again")

    @property
    def n_users(self) -> int:
        return int(self.meta["users"])

    @property
    def n_items(self) -> int:
        return int(self.meta["items"])

    @cached_property
    def user_degrees(self) -> NDArray[np.int64]:
        """Training pairs of each user."""
        return np.array(self._column("users", "degree"), np.int64)

    @cached_property
    def item_degrees(self) -> NDArray[np.int64]:
        """Training pairs of each item."""
        return np.array(self._column("items", "degree"), np.int64)

    def shards(self, kind: str, parts: int) -> list[Shard]:
        """All users (or items) in consecutive shards with about as many training pairs each."""
        degrees = self.user_degrees if kind == "user" else self.item_degrees
        # A node costs something even where it has no pairs.
        ends = np.cumsum(degrees + 1)
        targets = ends[-1] * np.arange(1, parts) // parts
        cuts = [0, *np.searchsorted(ends, targets, side="right").tolist(), len(degrees)]
        return [Shard(first, last) for first, last in pairwise(cuts)]

    def users_of(self, items: Shard) -> NDArray[np.int32]:
        """The users of each item of a shard, one item after another."""
        return np.array(self._read("by_item", "item", items)["user"].to_numpy(), np.int32)

    def split_of(self, users: Shard, *, own_ids: bool = False) -> Split:
        """The split of some users, who are numbered from 0; items are all, under their numbers or own ids."""
        titles = None
        if own_ids:
            user_ids = pl.Series("user", self._column("users", "id").slice(users.first, len(users)))
            items = pq.read_table(self._file("items"), filesystem=self._system)
            item_ids = pl.Series("item", items["id"])
            if "title" in items.column_names:
                titles = pl.Series("title", items["title"])
        else:
            user_ids = pl.int_range(users.first, users.last, dtype=pl.Int32, eager=True)
            item_ids = pl.int_range(self.n_items, dtype=pl.Int32, eager=True)
        parts = []
        for name in ("by_user", *_HELD_OUT):
            rows = self._read(name, "user", users)
            columns = {column: np.array(rows[column].to_numpy()) for column in rows.column_names}
            part = Interactions(
                users=columns["user"] - np.int32(users.first),
                items=columns["item"],
                times=columns.get("time"),
                counts=columns["count"],
                user_ids=user_ids,
                item_ids=item_ids,
                titles=titles,
                weights=columns.get("weight"),
            )
            parts.append(part)
        train, validation, test = parts
        return Split(train, validation, test, self.meta["method"], {})

    def candidates_of(self, users: Shard) -> Candidates:
        """The frozen negatives of those of some users who have validation pairs, numbered from 0."""
        rows = self._read("candidates", "user", users)
        table = rows["negatives"].combine_chunks()
        negatives = table.flatten().to_numpy().reshape(len(rows), table.type.list_size)
        return Candidates(rows["user"].to_numpy().astype(np.int64) - users.first, negatives)

    def _column(self, name: str, column: str) -> pa.ChunkedArray:
        return pq.read_table(self._file(name), columns=[column], filesystem=self._system)[column]

    def _read(self, name: str, by: str, wanted: Shard) -> pa.Table:
        """The rows of a shard, in order."""
        overlap = [(by, ">=", wanted.first), (by, "<", wanted.last)]
        return pq.read_table(self._file(name), filters=overlap, filesystem=self._system)

    def _file(self, name: str) -> str:
        return f"{self._folder}/{name}.parquet"

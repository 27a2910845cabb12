"""`Interactions`: user-item pairs under contiguous ids, with times and counts, as CSR by user and by item.

Rows are pairs (user, item) without repeats, sorted by user and within a user by time (by arrival where there
are no times, and on ties). So a history is a slice, its last element the latest, and CSR by user is the
rows themselves; CSR by item is one counting sort away.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from hdccf.console import html_table
from hdccf.data.adjacency import (
    Adjacency,
    IntArray,
    TimeArray,
    places_among,
    row_starts,
    sort_histories,
    transpose,
)
from hdccf.data.parquet import read_parquet
from hdccf.errors import ConfigError, DataError, one_line
from hdccf.files import atomic_directory, read_described, write_json

FORMAT = "hdccf-interactions"
FORMAT_VERSION = 1
REPEATS = ("first", "last", "all")
"""Which event a pair that repeats keeps the time of; with "all" every one of them counts."""
QUANTILES = {"least": 0.0, "10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9, "most": 1.0}


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """Who interacted with what, when and how often. Immutable.

    Build it with `hdccf.read`, `hdccf.load` or `Interactions.from_codes`.

    Examples
    --------
    >>> import polars as pl
    >>> log = pl.DataFrame({"user": ["ann", "bob", "ann"], "item": ["tea", "tea", "jam"]})
    >>> data = hdccf.read(log, user="user", item="item")
    >>> data
    Interactions(2 users × 2 items, 3 pairs, 75.000 % dense)
    >>> data.by_user.of(0)
    array([0, 1], dtype=int32)
    """

    users: IntArray
    """The user of each pair, ascending, from 0 to n_users − 1."""
    items: IntArray
    """The item of each pair, from 0 to n_items − 1; within a user in order of time."""
    times: TimeArray | None
    """Microseconds since 1970 (UTC) of the pair's first interaction; None where the source has none."""
    counts: IntArray
    """How often the pair occurred in the source."""
    user_ids: pl.Series
    """The user's own id of each contiguous user: strings or integers."""
    item_ids: pl.Series
    """The item's own id of each contiguous item: strings or integers."""
    titles: pl.Series | None = None
    """A readable title for each item, where the source has them."""
    weights: NDArray[np.float32] | None = None
    """How much each pair counts as a positive; None where all count alike."""

    def __post_init__(self) -> None:
        for array in (self.users, self.items, self.times, self.counts, self.weights):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def from_codes(
        cls,
        users: NDArray[np.integer[Any]],
        items: NDArray[np.integer[Any]],
        *,
        user_ids: pl.Series,
        item_ids: pl.Series,
        times: TimeArray | None = None,
        counts: NDArray[np.integer[Any]] | None = None,
        titles: pl.Series | None = None,
        weights: NDArray[np.floating[Any]] | None = None,
        repeats: str = "first",
    ) -> "Interactions":
        """Sorts pairs in any order and merges repeats, whose counts add up.

        Parameters
        ----------
        users, items
            The contiguous user and item of each row, from 0.
        user_ids, item_ids
            The id in the source of each contiguous user and item.
        times
            Microseconds since 1970 (UTC) of each row.
        counts
            How often each row occurred; once where nothing is given.
        titles
            A readable title of each item.
        weights
            How much each row counts as a positive.
        repeats
            Which event a pair that repeats keeps the time of: "first", "last", or "all". A pair has the
            largest weight of its events; with "all" it has their sum, or their number without weights, and
            the time of the last.
        """
        if repeats not in REPEATS:
            raise ConfigError(f"repeats={repeats!r} is unknown; choose one of {list(REPEATS)}")
        lengths = {"items": items, "times": times, "counts": counts, "weights": weights}
        for name, column in lengths.items():
            if column is not None and len(column) != len(users):
                raise DataError(
                    f"{len(column)} {name} were given for {len(users)} users; give one for each row"
                )
        _check_codes(users, len(user_ids), "user")
        _check_codes(items, len(item_ids), "item")
        if titles is not None and len(titles) != len(item_ids):
            raise DataError(f"{len(titles)} titles were given for {len(item_ids)} items; give one for each")
        own: dict[str, Any] = {
            "user_ids": user_ids.rename("user"),
            "item_ids": item_ids.rename("item"),
            "titles": titles,
        }
        if weights is not None or repeats != "first":
            return cls(**_merged(users, items, times, counts, weights, repeats), **own)
        rows = sort_histories(
            users.astype(np.int32, copy=False),
            items.astype(np.int32, copy=False),
            times,
            None if counts is None else counts.astype(np.int32, copy=False),
            len(user_ids),
            len(item_ids),
        )
        return cls(*rows, **own)

    # -- what is in it ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.users)

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def density(self) -> float:
        cells = self.n_users * self.n_items
        return len(self) / cells if cells else 0.0

    @cached_property
    def by_user(self) -> Adjacency:
        """Each user's items in order of time."""
        return Adjacency(row_starts(self.users, self.n_users), self.items, slice(None))

    @cached_property
    def by_item(self) -> Adjacency:
        """Each item's users, ascending."""
        return transpose(self.by_user.starts, self.items, self.n_items)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """Users × items, ones where a pair was observed, item indices ascending within each row."""
        starts, users, _ = self.by_item
        # Turning by-item into by-user is a counting sort, and leaves each row's items ascending.
        columns = sparse.csc_array(
            (np.ones(len(users), np.float32), users, starts), shape=(self.n_users, self.n_items)
        )
        return columns.tocsr()

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same pairs, times, counts, weights and ids, on any machine; else different."""
        digest = hashlib.sha256()
        weighted = () if self.weights is None else (self.weights,)
        for array in (self.users, self.items, self.times, self.counts, *weighted):
            digest.update(b"none" if array is None else array.astype(array.dtype.newbyteorder("<")).tobytes())
        for ids in (self.user_ids, self.item_ids):
            texts = ids.cast(pl.String)
            digest.update(str(ids.dtype.is_integer()).encode())
            # The lengths keep ["ab", "c"] and ["a", "bc"] apart.
            digest.update(texts.str.len_bytes().to_numpy().astype("<u4").tobytes())
            digest.update("".join(texts).encode())
        return digest.hexdigest()[:16]

    @property
    def time_range(self) -> tuple[np.datetime64, np.datetime64] | None:
        if self.times is None or not len(self):
            return None
        first, last = int(self.times.min()), int(self.times.max())
        return np.datetime64(first, "us"), np.datetime64(last, "us")

    def __repr__(self) -> str:
        parts = [
            f"{self.n_users:,} users × {self.n_items:,} items",
            f"{len(self):,} pairs",
            f"{100 * self.density:.3f} % dense",
        ]
        return f"Interactions({', '.join([*parts, *self._dates()])})"

    def _repr_html_(self) -> str:
        head = ["users", "items", "pairs", "density", *["times"] * (self.times is not None)]
        cells = [f"{self.n_users:,}", f"{self.n_items:,}", f"{len(self):,}", f"{100 * self.density:.3f} %"]
        return html_table("Interactions", head, [[*cells, *self._dates()]])

    def _dates(self) -> list[str]:
        """From the first day to the last; nothing without times."""
        if self.time_range is None:
            return []
        return [" to ".join(str(moment.astype("datetime64[D]")) for moment in self.time_range)]

    # -- slices ----------------------------------------------------------------------------------------------

    def subset(self, rows: NDArray[np.bool_] | NDArray[np.integer[Any]]) -> "Interactions":
        """Some of the pairs under the same ids: `rows` is a mask, or row numbers in ascending order."""
        if rows.dtype != np.bool_ and len(rows) > 1 and not np.all(rows[1:] > rows[:-1]):
            raise DataError("row numbers must ascend without repeats, so that histories stay in order")
        return replace(
            self,
            users=self.users[rows],
            items=self.items[rows],
            times=None if self.times is None else self.times[rows],
            counts=self.counts[rows],
            weights=None if self.weights is None else self.weights[rows],
        )

    def compact(self) -> "Interactions":
        """Drops users and items that have no pair, and closes the gaps in the contiguous ids."""
        used_users, used_items = self.by_user.degrees > 0, np.bincount(self.items, minlength=self.n_items) > 0
        if used_users.all() and used_items.all():
            return self
        new_user, new_item = (
            np.cumsum(used, dtype=np.int32) - np.int32(1) for used in (used_users, used_items)
        )
        return replace(
            self,
            users=new_user[self.users],
            items=new_item[self.items],
            user_ids=self.user_ids.filter(pl.Series(used_users)),
            item_ids=self.item_ids.filter(pl.Series(used_items)),
            titles=None if self.titles is None else self.titles.filter(pl.Series(used_items)),
        )

    def frame(self) -> pl.DataFrame:
        """The pairs under the user's own ids, with times, counts and weights, as a Polars data frame."""
        columns = {"user": self.user_ids.gather(self.users), "item": self.item_ids.gather(self.items)}
        if self.times is not None:
            columns["time"] = pl.Series(self.times).cast(pl.Datetime("us"))
        columns["count"] = pl.Series(self.counts)
        if self.weights is not None:
            columns["weight"] = pl.Series(self.weights)
        return pl.DataFrame(columns)

    # -- on disk ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one folder: three Parquet files and `meta.json`, all or nothing."""
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            pairs = pl.DataFrame({"user": self.users, "item": self.items, "count": self.counts})
            if self.times is not None:
                pairs = pairs.with_columns(time=pl.Series(self.times).cast(pl.Datetime("us")))
            if self.weights is not None:
                pairs = pairs.with_columns(weight=self.weights)
            pairs.write_parquet(folder / "pairs.parquet")
            pl.DataFrame({"id": self.user_ids}).write_parquet(folder / "users.parquet")
            items = pl.DataFrame({"id": self.item_ids})
            if self.titles is not None:
                items = items.with_columns(title=self.titles)
            items.write_parquet(folder / "items.parquet")
            meta = {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "fingerprint": self.fingerprint,
                "pairs": len(self),
            }
            write_json(folder / "meta.json", meta)

    @classmethod
    def load(cls, path: str | Path) -> "Interactions":
        """Opens a folder that `save` wrote, and checks that it still holds what was written."""
        folder = Path(path)
        meta = read_described(
            folder / "meta.json",
            "saved interactions",
            kind=FORMAT,
            version=FORMAT_VERSION,
            writer="save()",
            remedy="save the interactions again",
            error=DataError,
        )
        try:
            pairs, users, items = (
                _complete(folder / f"{name}.parquet") for name in ("pairs", "users", "items")
            )
            times = pairs["time"].cast(pl.Int64) if "time" in pairs.columns else None
            loaded = cls(
                users=pairs["user"].to_numpy(writable=True),
                items=pairs["item"].to_numpy(writable=True),
                times=None if times is None else times.to_numpy(writable=True),
                counts=pairs["count"].to_numpy(writable=True),
                user_ids=users["id"].rename("user"),
                item_ids=items["id"].rename("item"),
                titles=items["title"].cast(pl.String) if "title" in items.columns else None,
                weights=pairs["weight"].to_numpy(writable=True) if "weight" in pairs.columns else None,
            )
            _ = loaded.fingerprint
        # The last two come from missing values and columns of other types.
        except (OSError, pl.exceptions.PolarsError, TypeError, ValueError) as cause:
            raise DataError(
                f"{folder} is damaged ({one_line(cause)}); save the interactions again"
            ) from cause
        if loaded.fingerprint != meta.get("fingerprint"):
            raise DataError(
                f"{folder} is damaged: its fingerprint is {loaded.fingerprint}, not "
                f"{meta.get('fingerprint')} as saved; save the interactions again"
            )
        return loaded


def k_core(data: Interactions, users: int = 5, items: int = 5) -> Interactions:
    """The largest part in which every user has at least `users` items and every item at least `items` users.

    Dropping a weak user may weaken an item and the other way round, so it is repeated until nothing changes.

    Parameters
    ----------
    data
        The interactions to filter.
    users
        How many items a user must have; 0 for no limit.
    items
        How many users an item must have; 0 for no limit.

    Returns
    -------
    Interactions
        The core, its contiguous ids without gaps.

    Examples
    --------
    >>> hdccf.k_core(hdccf.load("ml-100k"), users=10, items=10)
    """
    for name, least in (("users", users), ("items", items)):
        if least < 0:
            raise ConfigError(f"{name}={least} is impossible in a k-core; give 0 (no limit) or more")
    rows, of_user, of_item, weak = np.arange(len(data)), data.users, data.items, True
    while weak:
        strong = (np.bincount(of_user) >= users)[of_user] & (np.bincount(of_item) >= items)[of_item]
        weak = not strong.all()
        if weak:
            rows, of_user, of_item = rows[strong], of_user[strong], of_item[strong]
    if not len(rows):
        raise DataError(
            f"nothing is left of {len(data):,} pairs in the core of {users} items a user and {items} users "
            "an item; ask for a smaller core"
        )
    return data.subset(rows).compact()


def describe(data: Interactions, *, rows: int = 5) -> dict[str, Any]:
    """Plain figures, fit for a table or for JSON; `rows` says how many pairs are shown as examples."""
    times, head = data.time_range, data.subset(np.arange(min(rows, len(data))))
    shown = head.frame()
    if head.titles is not None:
        shown.insert_column(2, head.titles.gather(head.items).alias("title"))
    if head.times is not None:
        shown = shown.with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return {
        "users": data.n_users,
        "items": data.n_items,
        "interactions": len(data),
        "density": data.density,
        "first": None if times is None else f"{times[0].astype('datetime64[s]')}Z",
        "last": None if times is None else f"{times[1].astype('datetime64[s]')}Z",
        "repeated_pairs": int(np.count_nonzero(data.counts > 1)),
        "events": int(data.counts.sum()),
        "interactions_per_user": _spread(data.by_user.degrees),
        "interactions_per_item": _spread(data.by_item.degrees),
        "rows": shown.to_dicts(),
        "fingerprint": data.fingerprint,
    }


def _spread(degrees: NDArray[np.int64]) -> dict[str, float]:
    if not len(degrees):
        return {}
    # "lower" gives counts that occur, not averages of two of them.
    found = np.quantile(degrees, list(QUANTILES.values()), method="lower")
    spread: dict[str, float] = {name: int(value) for name, value in zip(QUANTILES, found, strict=True)}
    return {**spread, "mean": round(float(degrees.mean()), 2)}


def align(parts: list[Interactions]) -> list[Interactions]:
    """The same pairs under ids that all parts share."""
    user_ids, user_codes = _one_vocabulary([part.user_ids for part in parts])
    item_ids, item_codes = _one_vocabulary([part.item_ids for part in parts])
    titled = [
        pl.DataFrame({"item": item_ids.gather(codes), "title": part.titles}).drop_nulls()
        for part, codes in zip(parts, item_codes, strict=True)
        if part.titles is not None
    ]
    titles = None
    if titled:
        # Each item's title from the first part that has one; an item without is called by its id.
        first = pl.concat(titled).unique("item", keep="first", maintain_order=True)
        named = pl.DataFrame({"item": item_ids}).join(first, on="item", how="left", maintain_order="left")
        titles = named.select(pl.coalesce("title", pl.col("item").cast(pl.String)).alias("title"))["title"]
    return [
        Interactions.from_codes(
            users[part.users],
            items[part.items],
            user_ids=user_ids,
            item_ids=item_ids,
            times=part.times,
            counts=part.counts,
            titles=titles,
            weights=part.weights,
        )
        for part, users, items in zip(parts, user_codes, item_codes, strict=True)
    ]


def _merged(
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    times: TimeArray | None,
    counts: NDArray[np.integer[Any]] | None,
    weights: NDArray[np.floating[Any]] | None,
    repeats: str,
) -> dict[str, Any]:
    """The arrays of `Interactions` with each pair once, by user, time and arrival."""
    frame = pl.DataFrame({"users": users, "items": items, "row": np.arange(len(users))}).with_columns(
        times=pl.lit(0, pl.Int64) if times is None else pl.Series(times),
        counts=pl.lit(1) if counts is None else pl.Series(counts),
        weights=pl.lit(1.0) if weights is None else pl.Series(weights),
    )
    at, weight = pl.col("times", "row"), pl.col("weights")
    frame = (
        frame.sort("times", maintain_order=True)
        .group_by("users", "items")
        .agg(
            at.first() if repeats == "first" else at.last(),
            pl.col("counts").sum(),
            weight.sum() if repeats == "all" else weight.max(),
        )
        .sort("users", "times", "row")
    )
    kinds = {
        "users": np.int32,
        "items": np.int32,
        "times": np.int64,
        "counts": np.int32,
        "weights": np.float32,
    }
    merged: dict[str, Any] = {name: frame[name].to_numpy().astype(kind) for name, kind in kinds.items()}
    weighted = weights is not None or repeats == "all"
    return merged | ({} if times is not None else {"times": None}) | ({} if weighted else {"weights": None})


def _complete(file: Path) -> pl.DataFrame:
    """A saved table in which only titles may be missing."""
    table = read_parquet(file)
    if any(table[name].null_count() for name in table.columns if name != "title"):
        raise ValueError(f"a value is missing in {file.name}")
    return table


def _one_vocabulary(parts: list[pl.Series]) -> tuple[pl.Series, list[IntArray]]:
    """All ids, in order of first appearance, and the new code of each part's ids."""
    if len({str(ids.dtype) for ids in parts}) > 1:
        parts = [ids.cast(pl.String) for ids in parts]
    everything = pl.concat([ids.rename("id") for ids in parts]).unique(maintain_order=True)
    return everything, [places_among(ids, everything).to_numpy() for ids in parts]


def _check_codes(codes: NDArray[np.integer[Any]], size: int, kind: str) -> None:
    if len(codes) and (codes.min() < 0 or codes.max() >= size):
        raise DataError(
            f"{kind} codes run from {codes.min()} to {codes.max()}; with {size} ids: 0 to {size - 1}"
        )

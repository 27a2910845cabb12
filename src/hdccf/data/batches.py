"""Batch types, and the part of each that one process of a group computes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.graph import Neighbours, expand

Tuple = TypeVar("Tuple", bound="tuple[Any, ...]")

NO_ITEM = -1
"""Fills a window that is longer than the history."""

Places = tuple[Int64[Tensor, " _n"], Int64[Tensor, " _n"]]
"""Row and column numbers of some pairs."""


def _rows_of(
    batch: Tuple, rows: slice, by_row: Sequence[str] = (), entries: Mapping[str, Sequence[str]] | None = None
) -> Tuple:
    """Some rows of a batch, numbered from 0.

    `by_row` names the fields with one element a row; `entries` those with a row number for each of their
    elements, and the fields that belong to them.
    """
    changed = {name: getattr(batch, name)[rows] for name in by_row}
    for numbers, values in (entries or {}).items():
        own: Tensor = getattr(batch, numbers)
        inside = (own >= rows.start) & (own < rows.stop)
        changed[numbers] = own[inside] - rows.start
        changed.update({name: getattr(batch, name)[inside] for name in values})
    replaced: Tuple = batch._replace(**changed)  # type: ignore[attr-defined]  # named tuples have it
    return replaced


class History(NamedTuple):
    """What each row's user vector is made of: the item, its row and its weight, rows ascending."""

    rows: Int64[Tensor, " h"]
    items: Int64[Tensor, " h"]
    weights: Float[Tensor, " h"]

    def part(self, rows: slice) -> "History":
        return _rows_of(self, rows, entries={"rows": ("items", "weights")})


class Windows(NamedTuple):
    """Stretches of histories in order, the latest item last, and at which places of them the rows stand.

    A row is the user after the item at its place; what comes later in the window is not yet known there.
    """

    items: Int64[Tensor, "n length"]
    """`NO_ITEM` where the history began later."""
    places: Int64[Tensor, " r"]
    """Of each row: window · length + place in it."""
    first: int = 0
    """Where these are some of a block's windows: how many rows the windows before them have …"""
    n_places: int | None = None
    """… and how many rows the block has; none, where they are all."""

    def part(self, rows: slice) -> "Windows":
        """The windows of these rows; a window whose rows are split between two processes is in both parts."""
        length, places = self.items.shape[1], self.places[rows]
        # A process without rows gets one window all the same, so that no tensor is empty.
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
        first, last = first // length, last // length + 1
        before = int(torch.searchsorted(self.places, first * length))
        return Windows(self.items[first:last], places - first * length, before, len(self.places))


class PairBatch(NamedTuple):
    """Positive pairs; the model's negative sampler adds the negatives."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]


class NegativeColumns(NamedTuple):
    """In-batch negatives of one side (Eq. 9): distinct columns, scored once and weighted by their count."""

    columns: Int64[Tensor, " c"]
    """The distinct items (or users) among all neighbours of the batch."""
    counts: Int64[Tensor, " c"]
    """How often each stands in the multi-set of all neighbours."""
    own: Int64[Tensor, "b p"]
    """Where each instance's own P neighbours are among the columns: they are not its negatives."""
    observed_rows: Int64[Tensor, " n"]
    """With `observed_columns`, the (instance, column) that are training pairs: false negatives, masked."""
    observed_columns: Int64[Tensor, " n"]

    def part(self, rows: slice) -> "NegativeColumns":
        return _rows_of(self, rows, ("own",), {"observed_rows": ("observed_columns",)})


class InBatch(NamedTuple):
    """M pairs with P neighbours a side; every other instance's neighbours are the negatives."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    item_negatives: NegativeColumns
    user_negatives: NegativeColumns

    def part(self, rows: slice) -> "InBatch":
        sides = self.item_negatives.part(rows), self.user_negatives.part(rows)
        return InBatch(self.users[rows], self.items[rows], self.weights[rows], *sides)


class SampledBatch(NamedTuple):
    """M pairs with S negatives a side of their own (Eq. 1), and P neighbours a side."""

    users: Int64[Tensor, " b"]
    items: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    negative_items: Int64[Tensor, "b s"]
    negative_users: Int64[Tensor, "b s"]
    neighbour_items: Int64[Tensor, "b p"]
    neighbour_users: Int64[Tensor, "b p"]

    def part(self, rows: slice) -> "SampledBatch":
        return SampledBatch(*(tensor[rows] for tensor in self))


class Block(NamedTuple):
    """Users × items scored once. Every positive shares its row's and its column's negatives."""

    users: Int64[Tensor, " r"]
    columns: Int64[Tensor, " c"] | None
    """The items; None is the whole catalogue."""
    inclusion: Float[Tensor, " c"] | None
    """Columns stand for this many items each, so that sums over them are unbiased; None is one each."""
    observed_rows: Int64[Tensor, " n"]
    """With `observed_columns`, every training pair inside the block: never a negative."""
    observed_columns: Int64[Tensor, " n"]
    rows: Int64[Tensor, " b"]
    """With `positive_columns` and `weights`, the positives."""
    positive_columns: Int64[Tensor, " b"]
    weights: Float[Tensor, " b"]
    history: History | Windows | None
    """What the rows' user vectors are made of, where they are not free."""

    @property
    def observed(self) -> Places:
        return self.observed_rows, self.observed_columns

    @property
    def positives(self) -> Places:
        return self.rows, self.positive_columns

    def part(self, rows: slice) -> "Block":
        entries = {"observed_rows": ("observed_columns",), "rows": ("positive_columns", "weights")}
        own = _rows_of(self, rows, ("users",), entries)
        return own._replace(history=None if self.history is None else self.history.part(rows))


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

    @property
    def observed(self) -> Places:
        return self.observed_rows, self.observed_columns

    def part(self, rows: slice) -> "Pool":
        entries = {"observed_rows": ("observed_columns",), "rows": ("items", "weights")}
        return _rows_of(self, rows, ("users",), entries)


Batch = TypeVar("Batch", bound="InBatch | SampledBatch | Block | Pool")


def part_of(batch: Batch, rows: slice) -> Batch:
    """Rows `rows.start` to `rows.stop` of a batch, numbered from 0; the columns stay."""
    return batch if rows == slice(0, len(batch.users)) else cast("Batch", batch.part(rows))


def cut_histories(
    items_of: Neighbours,
    users: Int64[Tensor, " r"],
    cuts: Int64[Tensor, " r"],
    half_life: float,
    length: int,
    floor: float = 0.0,
) -> History:
    """The last `length` of each user's first `cuts` items, weighted floor + (1 − floor)·½^(age / half_life).

    The latest has age 0.
    """
    lengths = cuts.clamp(max=length)
    ends = items_of.starts[users] + cuts
    rows, entries = expand(ends - lengths, lengths)
    age = (ends[rows] - 1 - entries).to(torch.get_default_dtype())
    return History(rows, items_of.at(entries), floor + (1 - floor) * torch.exp2(-age / half_life))


def cut_windows(
    items_of: Neighbours, users: Int64[Tensor, " n"], cuts: Int64[Tensor, " n"], length: int
) -> Int64[Tensor, "n length"]:
    """The last `length` of each user's first `cuts` items, in order, the latest in the last place."""
    starts = items_of.starts[users].unsqueeze(1)
    entries = starts + cuts.unsqueeze(1) + torch.arange(-length, 0, device=cuts.device)
    found = items_of.at(entries.clamp_min(0)) if int(items_of.starts[-1]) else entries
    return found.masked_fill(entries < starts, NO_ITEM)


def last_places(windows: Int64[Tensor, "n length"]) -> Windows:
    """A row for the end of each window: the user as of now."""
    n, length = windows.shape
    return Windows(windows, torch.arange(1, n + 1, device=windows.device) * length - 1)

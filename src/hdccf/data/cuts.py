"""What of a history a user vector is made of, up to a moment: a weighted bag of items, or a window."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from hdccf.data.graph import Neighbours, expand

NO_ITEM = -1
"""Where a window reaches further back than the history."""


class History(NamedTuple):
    """What each row's user vector is made of: the item, its row and its weight, rows ascending."""

    rows: Int64[Tensor, " h"]
    items: Int64[Tensor, " h"]
    weights: Float[Tensor, " h"]


class Windows(NamedTuple):
    """Stretches of histories in order, the latest item last, and at which places of them the rows stand.

    A row is the user after the item at its place; what comes later in the window is not yet known there.
    """

    items: Int64[Tensor, "n length"]
    """`NO_ITEM` where the history began later."""
    places: Int64[Tensor, " r"]
    """Of each row: window · length + place in it."""
    first: int = 0
    """Where these are some of a block's windows: which of them comes first …"""
    n_windows: int | None = None
    """… and how many the block has; none, where they are all."""


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

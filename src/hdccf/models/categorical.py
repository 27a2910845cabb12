"""Draws from many discrete distributions at once, each draw from the row that it names.

Rows that are drawn from once are cumulated: they lie end to end on one axis, row r between r and r + 1, so
that one binary search of r plus a uniform number finds both the row and the column. Rows that are drawn from
again and again get alias tables (Walker, 1977), from which a draw is two looks, however many columns there
are. Neither pads where rows are asked for unequal numbers of draws.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def cumulated(chances: Float[Tensor, "r c"]) -> Float64[Tensor, "r c"]:
    """Ends of the columns' stretches; rows need a positive sum and not one of 1."""
    ends = chances.double().cumsum(1)
    ends /= ends[:, -1:].clone()
    return ends.add_(torch.arange(len(ends), device=ends.device).unsqueeze(1))


def pick(
    ends: Float64[Tensor, "r c"], rows: Int64[Tensor, " n"], generator: torch.Generator
) -> Int64[Tensor, " n"]:
    """A column of each of the rows, by its chances; never one without any."""
    uniform = torch.rand(rows.shape, generator=generator, dtype=torch.float64, device=rows.device)
    places = torch.searchsorted(ends.flatten(), uniform.add_(rows), right=True)
    # Rounding could carry a number just below a row's end to it.
    return places.sub_(rows * ends.shape[1]).clamp_(max=ends.shape[1] - 1)


class AliasTables(NamedTuple):
    """Of each row's columns, all alike: the share that is the column's own, and whose the rest is."""

    own: Float[Tensor, "r c"]
    other: Int64[Tensor, "r c"]

    def pick(self, rows: Int64[Tensor, " n"], generator: torch.Generator) -> Int64[Tensor, " n"]:
        """A column of each of the rows, by its chances."""
        n_columns = self.own.shape[1]
        uniform = torch.rand(rows.shape, generator=generator, dtype=torch.float64, device=rows.device)
        uniform *= n_columns
        columns = uniform.long()
        cells = rows * n_columns + columns
        is_own = uniform - columns < self.own.view(-1)[cells]
        return torch.where(is_own, columns, self.other.view(-1)[cells])


def alias_tables(chances: Float[Tensor, "r c"]) -> AliasTables:
    """Alias tables of all rows at once, by prefix sums instead of the usual two stacks.

    Scaled to a mean of 1, light columns lack what heavy ones have too much. Both in order, the light one
    before which D is lacking takes from the first heavy one up to which more than D is given. A heavy one
    is empty once as much is lacking as is given up to it; by what that light one lacks beyond this, it takes
    from the next. (Hübschle-Schneider and Sanders, 2019.)
    """
    n_rows, n_columns = chances.shape
    scaled = chances.double().contiguous()
    scaled = scaled * (n_columns / scaled.sum(1, keepdim=True))
    # Rows follow each other with a gap, as in a row less than its number of columns is lacking.
    starts = torch.arange(n_rows, device=scaled.device, dtype=torch.float64).unsqueeze(1) * (n_columns + 1)
    lacking = (1 - scaled).clamp_min_(0).cumsum(1).add_(starts)
    given = (scaled - 1).clamp_min_(0).cumsum(1).add_(starts)
    heavy = scaled > 1
    taken = torch.where(heavy, given, torch.cat([starts, lacking[:, :-1]], 1))
    first_cell = torch.arange(n_rows, device=scaled.device).unsqueeze(1) * n_columns
    other = torch.searchsorted(given.view(-1), taken.view(-1), right=True).view_as(taken) - first_cell
    empties = torch.searchsorted(lacking.view(-1), given.view(-1)).view_as(given)
    last = empties >= first_cell + n_columns
    left = 1 + given - lacking.view(-1)[empties.clamp_(max=lacking.numel() - 1)]
    own = torch.where(heavy, torch.where(last, 1.0, left), scaled)
    # What rounding leaves over at the end of a row is the column's own.
    none = other >= n_columns
    own = torch.where(none, 1.0, own)
    other = torch.where(none, torch.arange(n_columns, device=other.device), other)
    return AliasTables(own.to(chances.dtype), other)

"""Draws from many discrete distributions at once, each draw from the row that it names.

All rows lie end to end on one axis, row r between r and r + 1, so that one binary search of r plus a uniform
number finds both the row and the column: no padding where rows are asked for unequal numbers of draws.
"""

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

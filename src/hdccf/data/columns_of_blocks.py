"""Which items a block's users are compared with, where the catalogue is too large for all of them."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

NEARLY_ALL = 7 / 8


def block_columns(
    positives: Int64[Tensor, " n"], n_items: int, size: int, generator: torch.Generator
) -> tuple[Int64[Tensor, " c"] | None, Float[Tensor, " c"] | None]:
    """A block's columns and how many items each stands for; None twice where the columns are the catalogue.

    Where nearly all items would be columns, all are: exact sums for an eighth more products at most, and
    nothing to draw or to look up. But `size` is never exceeded more than twice.
    """
    if n_items <= size:
        return None, None
    marks = _marked(positives, n_items)
    if n_items <= 2 * size and max(size, 2 * int(np.count_nonzero(marks))) > NEARLY_ALL * n_items:
        return None, None
    return _with_others(marks, size, generator)


def draw_columns(
    positives: Int64[Tensor, " n"], n_items: int, size: int, generator: torch.Generator
) -> tuple[Int64[Tensor, " c"], Float[Tensor, " c"]]:
    """The positives' items, and others drawn without replacement until there are `size` (at least as many).

    A positive's item is there for certain and stands for itself; a drawn one stands for its share of the
    rest. So a weighted sum over the columns has the sum over the catalogue as its expectation.
    """
    return _with_others(_marked(positives, n_items), size, generator)


def _marked(positives: Int64[Tensor, " n"], n_items: int) -> Bool[np.ndarray, " items"]:
    # Marked instead of sorted: a tenth of the time, and `places_in` passes over the catalogue too. Reading
    # marks off is several times faster in NumPy than in torch.
    marks = np.zeros(n_items, dtype=np.bool_)
    marks[positives.numpy()] = True
    return marks


def _with_others(
    marks: Bool[np.ndarray, " items"], size: int, generator: torch.Generator
) -> tuple[Int64[Tensor, " c"], Float[Tensor, " c"]]:
    certain = torch.from_numpy(np.flatnonzero(marks))
    rest = len(marks) - len(certain)
    drawn_size = min(rest, max(size - len(certain), len(certain)))
    ranks = distinct_below(rest, drawn_size, generator)
    if 4 * drawn_size > rest:
        drawn = torch.from_numpy(np.flatnonzero(~marks)[ranks.numpy()])
    else:
        # The r-th of the others is r and the number of certain ones with at most r others below them.
        others_below = certain - torch.arange(len(certain))
        drawn = ranks + torch.searchsorted(others_below, ranks, right=True)
    inclusion = torch.ones(len(certain) + drawn_size)
    if drawn_size:
        inclusion[len(certain) :] = rest / drawn_size
    return torch.cat([certain, drawn]), inclusion


def distinct_below(limit: int, size: int, generator: torch.Generator) -> Int64[Tensor, " size"]:
    """`size` different numbers below `limit`, every set of them as likely.

    Where few are wanted of many, drawing again what was drawn before takes a time that does not grow with
    the catalogue, as a permutation of it would.
    """
    if 4 * size > limit:
        return torch.randperm(limit, generator=generator)[:size]
    drawn = torch.zeros(0, dtype=torch.int64)
    while len(drawn) < size:
        more = torch.randint(limit, (size - len(drawn) + size // 4 + 1,), generator=generator)
        drawn = torch.unique(torch.cat([drawn, more]))
    return drawn[torch.randperm(len(drawn), generator=generator)[:size]]


def places_in(
    items: Int64[Tensor, " n"], columns: Int64[Tensor, " c"] | None, n_items: int
) -> Int64[Tensor, " n"]:
    if columns is None:
        return items
    slots = np.full(n_items, -1)
    slots[columns.numpy()] = np.arange(len(columns))
    return torch.from_numpy(slots[items.numpy()])

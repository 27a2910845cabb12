"""A batch small enough for loops, with repeats and rows with nothing left, both as lists and as tensors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import literal
from hdccf import losses


def table(scores: Tensor) -> literal.Score:
    """A matrix of scores as the function that the literal equations take."""
    rows = scores.detach().tolist()
    return lambda a, b: float(rows[a][b])


def assert_equal(measured: Tensor, expected: Tensor | Sequence[float] | Sequence[Sequence[float]]) -> None:
    """To 1e-9, in float64."""
    if not isinstance(expected, Tensor):
        expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(measured, expected, rtol=1e-9, atol=1e-9)


@dataclass
class NegativeTerm:
    """One side of an in-batch step, as losses want it: distinct columns, weighted."""

    columns: list[int]
    log_weights: Tensor
    """[M, C]: counts in N⁻ times frequency corrections, −inf where observed or absent."""
    positives: list[list[int]]
    """N⁺ of each instance, drawn with replacement."""


@dataclass
class World:
    """A small set of observed pairs with random scores, and a batch with P neighbours a side."""

    f: Tensor
    between_users: Tensor
    between_items: Tensor
    observed: set[tuple[int, int]]
    batch: list[tuple[int, int]]
    users: NegativeTerm
    items: NegativeTerm
    tau: float
    beta: float

    @property
    def size(self) -> float:
        return float(len(self.users.positives[0]) * (len(self.batch) - 1))

    def is_observed(self, u: int, i: int) -> bool:
        return (u, i) in self.observed

    def user_weight(self, u: int) -> float:
        return math.pow(sum(a == u for a, _ in self.observed), -self.beta)

    def item_weight(self, i: int) -> float:
        return math.pow(sum(b == i for _, b in self.observed), -self.beta)


def world(seed: int, neighbours: int, beta: float = 0.0, tau: float = 0.3) -> World:
    generator = torch.Generator().manual_seed(seed)
    n_users, n_items, m = 7, 9, 6

    def scores(rows: int, columns: int) -> Tensor:
        return torch.rand(rows, columns, generator=generator, dtype=torch.float64) * 2 - 1

    mask = torch.rand(n_users, n_items, generator=generator) < 0.35
    # A user who has seen everything and an item that everyone has seen have no negatives left.
    mask[0], mask[:, 0] = True, True
    pairs = [(int(u), int(i)) for u, i in mask.nonzero()]
    # The first is all masked on both sides; the second repeats, as do users and items of the rest.
    chosen = torch.randint(len(pairs), (m - 3,), generator=generator).tolist()
    batch = [(0, 0), (0, 0), (0, 3), *(pairs[k] for k in chosen)]

    def draw(candidates: list[int]) -> list[int]:
        places = torch.randint(len(candidates), (neighbours,), generator=generator).tolist()
        return [candidates[place] for place in places]

    users_of = [draw([a for a, b in pairs if b == i]) for _, i in batch]
    items_of = [draw([b for a, b in pairs if a == u]) for u, _ in batch]
    made = World(
        f=scores(n_users, n_items),
        between_users=scores(n_users, n_users),
        between_items=scores(n_items, n_items),
        observed=set(pairs),
        batch=batch,
        users=NegativeTerm([], torch.empty(0), users_of),
        items=NegativeTerm([], torch.empty(0), items_of),
        tau=tau,
        beta=beta,
    )
    users_ok = [{a for a in range(n_users) if (a, i) not in made.observed} for _, i in batch]
    items_ok = [{b for b in range(n_items) if (u, b) not in made.observed} for u, _ in batch]
    frequencies = (mask.sum(1), mask.sum(0))
    for side, allowed, frequency in zip(
        (made.users, made.items), (users_ok, items_ok), frequencies, strict=True
    ):
        side.columns = sorted({x for drawn in side.positives for x in drawn})
        others = [literal.in_batch_negatives(side.positives, k) for k in range(m)]
        counts = [[negatives.count(x) for x in side.columns] for negatives in others]
        kept = [[x in allowed[k] for x in side.columns] for k in range(m)]
        log_counts = (torch.tensor(counts, dtype=torch.float64) * torch.tensor(kept)).log()
        side.log_weights = log_counts + losses.log_frequency_weights(frequency[side.columns].double(), beta)
    return made


def block(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, the observed pairs as a mask, log weights of columns and rows; row 3, column 5 all masked."""
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.rand(12, 17, generator=generator, dtype=dtype) * 2 - 1).requires_grad_()
    mask = torch.rand(12, 17, generator=generator) < 0.3
    mask[3], mask[:, 5] = True, True
    of_columns, of_rows = (torch.randn(n, generator=generator, dtype=dtype) for n in (17, 12))
    return scores, mask, of_columns, of_rows

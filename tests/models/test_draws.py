"""Draws from many rows at once: exactly by their chances, never where there are none."""

import torch
from scipy import stats
from torch import Tensor

from hdccf.models.negatives import cumulated, pick


def some_chances() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    chances = torch.rand(40, 23, generator=generator, dtype=torch.float64)
    chances *= torch.rand(40, 23, generator=generator) < 0.2
    chances[:, 11] += 1e-9
    return chances


def test_draws_are_by_the_chances_of_the_row_that_is_asked() -> None:
    chances = some_chances()
    rows = torch.tensor([7, 31]).repeat_interleave(20_000)
    generator = torch.Generator().manual_seed(0)
    drawn = pick(cumulated(chances), rows, generator)
    for row in (7, 31):
        counts = torch.bincount(drawn[rows == row], minlength=23)
        assert counts[chances[row] == 0].sum() == 0
        likely = chances[row] > 1e-6
        expected = 20_000 * chances[row][likely] / chances[row][likely].sum()
        assert stats.chisquare(counts[likely].numpy(), expected.numpy()).pvalue > 0.001
        wrong = expected.roll(1)
        assert stats.chisquare(counts[likely].numpy(), wrong.numpy()).pvalue < 1e-6

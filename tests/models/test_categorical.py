"""Draws from many rows at once: exactly by their chances, never where there are none."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from hdccf.models.categorical import AliasTables, alias_tables, cumulated, pick


def some_chances(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    chances = torch.rand(40, 23, generator=generator, dtype=torch.float64)
    if kind == "sparse":
        chances *= torch.rand(40, 23, generator=generator) < 0.2
        chances[:, 11] += 1e-9
    if kind == "steep":
        chances = (60 * chances).exp()
    if kind == "alike":
        chances = torch.ones(40, 23, dtype=torch.float64)
    if kind == "one":
        chances = chances[:, :1]
    return chances


def implied(tables: AliasTables) -> Tensor:
    """What is drawn from the tables: all columns alike, of each its own share and the rest another's."""
    shares = tables.own.clone()
    return shares.scatter_add_(1, tables.other, 1 - tables.own) / tables.own.shape[1]


@pytest.mark.parametrize("kind", ["even", "sparse", "steep", "alike", "one"])
def test_alias_tables_have_exactly_the_chances(kind: str) -> None:
    chances = some_chances(kind)
    tables = alias_tables(chances.T.contiguous().T)  # in any layout
    assert ((tables.own >= 0) & (tables.own <= 1 + 1e-9)).all()
    torch.testing.assert_close(implied(tables), chances / chances.sum(1, keepdim=True), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", ["alias", "cumulated"])
def test_draws_are_by_the_chances_of_the_row_that_is_asked(way: str) -> None:
    chances = some_chances("sparse")
    rows = torch.tensor([7, 31]).repeat_interleave(20_000)
    generator = torch.Generator().manual_seed(0)
    if way == "alias":
        drawn = alias_tables(chances).pick(rows, generator)
    else:
        drawn = pick(cumulated(chances), rows, generator)
    for row in (7, 31):
        counts = torch.bincount(drawn[rows == row], minlength=23)
        assert counts[chances[row] == 0].sum() == 0
        likely = chances[row] > 1e-6
        expected = 20_000 * chances[row][likely] / chances[row][likely].sum()
        assert stats.chisquare(counts[likely].numpy(), expected.numpy()).pvalue > 0.001
        wrong = expected.roll(1)
        assert stats.chisquare(counts[likely].numpy(), wrong.numpy()).pvalue < 1e-6

"""The tiled, recomputed scoring of all pairs against plain autograd over the d × M × N tensor."""

import pytest
import torch
from torch import Tensor

from hdccf import pairwise


def oracle(
    left: Tensor,
    right: Tensor,
    left_part: Tensor,
    left_factors: Tensor,
    right_factors: Tensor,
    right_weight: Tensor,
    product_weight: Tensor,
) -> Tensor:
    product = torch.einsum("kl,ul,il->uik", product_weight, left_factors, right_factors)
    m = (product + left_part[:, None] + right_factors @ right_weight.T).sigmoid()
    return torch.einsum("uk,ik,uik->ui", left, right, m.square())


def inputs(m: int, n: int, d: int, inner: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(m + n)
    shapes = [(m, d), (n, d), (m, d), (m, inner), (n, inner), (d, inner), (d, inner)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 7, 4, 4), (13, 6, 3, 5), (1, 40, 8, 8), (40, 1, 8, 8)])
@pytest.mark.parametrize(("numbers", "columns"), [(1, 1), (50, 3), (200, 1000), (1 << 18, 1024)])
def test_tiles_of_every_shape_equal_the_oracle(
    shape: tuple[int, int, int, int], numbers: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairwise, "TILE_NUMBERS", numbers)
    monkeypatch.setattr(pairwise, "TILE_COLUMNS", columns)
    given = inputs(*shape)
    upstream = torch.randn(shape[:2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores, expected = pairwise.modulated_scores(*given), oracle(*given)
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-9)
    fast = torch.autograd.grad((scores * upstream).sum(), given)
    slow = torch.autograd.grad((expected * upstream).sum(), given)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gradient_is_that_of_the_value() -> None:
    assert torch.autograd.gradcheck(pairwise.modulated_scores, inputs(3, 4, 3, 3))


def test_only_the_gradients_that_are_asked_for_are_given() -> None:
    given = inputs(4, 6, 3, 3)
    given[0], given[6] = given[0].detach(), given[6].detach()
    pairwise.modulated_scores(*given).sum().backward()  # type: ignore[no-untyped-call]
    assert [x.grad is not None for x in given] == [False, True, True, True, True, True, False]


def test_single_precision_is_close_at_a_size_of_many_tiles() -> None:
    given = inputs(70, 1500, 16, 16, torch.float32)
    torch.testing.assert_close(pairwise.modulated_scores(*given), oracle(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("n_columns", "depth"), [(1, 1), (3, 1 << 20), (100_000, 64), (10, 64)])
def test_a_tile_keeps_within_its_size(n_columns: int, depth: int) -> None:
    height, width = pairwise.tile_shape(n_columns, depth)
    assert 1 <= width <= max(1, n_columns)
    assert height >= 1
    assert height * width * depth <= max(depth, pairwise.TILE_NUMBERS)

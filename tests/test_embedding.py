"""Dots of looked-up rows, compiled, against the same with a vector for each place."""

import pytest
import torch
from torch import Tensor

from hdccf.kernels import embedding
from hdccf.kernels.embedding import can_look_up, looked_up_dots
from hdccf.models.factorization import Factors


def case(dim: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(n, dim, generator=generator).requires_grad_() for n in (6, 9))
    rows = torch.tensor([5, 0, 5, 5, 2])  # one of them three times
    columns = torch.randint(9, (5, 4), generator=generator)
    columns[0] = columns[0, 0]
    return left, right, rows, columns


def literally(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, head: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    p, q = left[rows], right[columns]
    dots = torch.einsum("bd,bcd->bc", p if head is None else p * head, q)
    return dots, p.square().sum() + q.square().sum()


@pytest.mark.parametrize("dim", [1, 7, 64])
@pytest.mark.parametrize(("of_dots", "of_squares"), [(1.0, 0.0), (0.0, 1.0), (0.7, 0.3)])
def test_values_and_gradients_are_those_of_vectors_of_their_own(
    dim: int, of_dots: float, of_squares: float
) -> None:
    left, right, rows, columns = case(dim)
    doubles = [x.detach().double().requires_grad_() for x in (left, right)]
    slopes = torch.randn(columns.shape, generator=torch.Generator().manual_seed(1))
    gradients = []
    for (p, q), function in (((left, right), looked_up_dots), (doubles, literally)):
        dots, squares = function(p, q, rows, columns)
        total = of_dots * (dots * slopes.to(dots.dtype)).sum() + of_squares * squares
        gradients.append([dots, squares, *(x.to_dense() for x in torch.autograd.grad(total, (p, q)))])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_head_weighs_the_coordinates_and_has_a_gradient() -> None:
    left, right, rows, columns = case()
    head = torch.linspace(-1, 2, 7).requires_grad_()
    found = []
    for function in (looked_up_dots, literally):
        dots, squares = function(left, right, rows, columns, head)
        slopes = torch.autograd.grad(dots.square().sum() + squares, (left, right, head))
        found.append([dots, *(x.to_dense() for x in slopes)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("asked", ["dots", "squares"])
def test_one_of_the_two_alone_has_a_gradient(asked: str) -> None:
    left, right, rows, columns = case()
    found = dict(zip(("dots", "squares"), looked_up_dots(left, right, rows, columns), strict=True))
    expected = dict(zip(("dots", "squares"), literally(left, right, rows, columns), strict=True))
    mine = torch.autograd.grad(found[asked].sum(), (left, right))
    theirs = torch.autograd.grad(expected[asked].sum(), (left, right))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.to_dense(), b)


def test_only_large_lookups_in_single_precision_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    table, columns = torch.zeros(3, 64), torch.zeros(512, 2, dtype=torch.int64)
    assert can_look_up(table, columns)
    assert not can_look_up(table, columns[1:])
    assert not can_look_up(table.double(), columns)
    monkeypatch.setattr(embedding, "has_numba", lambda: False)
    assert not can_look_up(table, columns)


@pytest.mark.parametrize("l2", [0.0, 0.4])
def test_factors_give_the_same_compiled_and_not(l2: float, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Factors(5, 50, 6, std=0.5, generator=torch.Generator().manual_seed(1))
    users, items = torch.tensor([0, 4, 4]), torch.tensor([3, 8, 0])
    negatives = torch.tensor([[1, 1], [3, 2], [7, 5]])
    found = []
    for compiled in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(Factors, "_is_compiled", lambda self, columns, compiled=compiled: compiled)
            scores = net.compare(users, items, negatives)
        total = scores.positive.sum() + scores.negative.square().sum() + l2 * scores.squares()
        gradients = torch.autograd.grad(total, list(net.parameters()))
        found.append([*scores[:2], *(x.to_dense() for x in gradients)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)

"""The tower's gradient by hand, against torch's own of the written formula, for any number of threads."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hdccf.models.tower import Layers, tower_logits


@pytest.fixture(params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def case(n_rows: int) -> tuple[list[Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(4, 6), (7, 6), (5, 6), (5, 6), (5,), (3, 5), (3,), (3,), ()]
    parameters = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    users = torch.randint(4, (n_rows,), generator=generator)
    columns = torch.randint(7, (n_rows, 3), generator=generator)
    return [x.requires_grad_() for x in parameters], users, columns


def literally(parameters: list[Tensor], users: Tensor, columns: Tensor) -> Tensor:
    of_users, of_items, *layers = parameters
    net = Layers(*layers)
    rows = []
    for user, items in zip(users.tolist(), columns.tolist(), strict=True):
        for item in items:
            first = net.user_weight @ of_users[user] + net.item_weight @ of_items[item] + net.first_bias
            second = net.second_weight @ first.relu() + net.second_bias
            rows.append(net.head @ second.relu() + net.bias)
    return torch.stack(rows).view(columns.shape)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("n_rows", [1, 2, 8])
def test_logits_and_gradients_are_the_formulas(n_rows: int) -> None:
    parameters, users, columns = case(n_rows)
    slopes = torch.randn(columns.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = tower_logits(parameters[0], parameters[1], Layers(*parameters[2:]), users, columns)
    expected = literally(parameters, users, columns)
    torch.testing.assert_close(logits, expected)
    found = torch.autograd.grad((logits * slopes).sum(), parameters)
    for mine, theirs in zip(found, torch.autograd.grad((expected * slopes).sum(), parameters), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("_threads")
def test_bits_repeat() -> None:
    parameters, users, columns = case(8)
    singles = [x.detach().float().requires_grad_() for x in parameters]

    def once() -> list[Tensor]:
        logits = tower_logits(singles[0], singles[1], Layers(*singles[2:]), users, columns)
        return [logits, *torch.autograd.grad(logits.square().sum(), singles)]

    assert all(a.equal(b) for a, b in zip(once(), once(), strict=True))

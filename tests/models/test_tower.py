"""The compiled tower and its gradient against the written formula and torch's, in double precision."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from graphs import small_split
from hdccf.data.sampling import Pairs
from hdccf.kernels import sparse_gradients as row_gradients
from hdccf.models import neumf, tower
from hdccf.models.neumf import NeuMF, build_neumf
from hdccf.models.pairs import PairModel
from hdccf.models.tower import Layers, tower_logits


@pytest.fixture(params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


# Sizes that are filled up with zeros, and such that fit; more rows than are looked up, and fewer.
SIZES = [(4, 7, 6, 5, 3), (160, 500, 64, 64, 32)]


def case(n_rows: int, sizes: tuple[int, ...] = SIZES[0]) -> tuple[list[Tensor], Tensor, Tensor]:
    n_users, n_items, dim, wide, factors = sizes
    generator = torch.Generator().manual_seed(5)
    tables = [(n_users, dim), (n_items, dim)]
    shapes = [*tables, (wide, dim), (wide, dim), (wide,), (factors, wide), (factors,), (factors,), ()]
    parameters = [
        torch.randn(shape, generator=generator) / max(shape[1:], default=1) ** 0.5 for shape in shapes
    ]
    users = torch.randint(n_users, (n_rows,), generator=generator)
    columns = torch.randint(n_items, (n_rows, 3), generator=generator)
    return [x.requires_grad_() for x in parameters], users, columns


def of_tower(parameters: list[Tensor], users: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    return tower_logits(parameters[0], parameters[1], Layers(*parameters[2:]), users, columns)


def literally(parameters: list[Tensor], users: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    of_users, of_items, *layers = parameters
    net, squares = Layers(*layers), torch.zeros((), dtype=torch.float64)
    rows = []
    for user, items in zip(users.tolist(), columns.tolist(), strict=True):
        squares = squares + of_users[user].square().sum()
        for item in items:
            first = net.user_weight @ of_users[user] + net.item_weight @ of_items[item] + net.first_bias
            second = net.second_weight @ first.relu() + net.second_bias
            rows.append(net.head @ second.relu() + net.bias)
            squares = squares + of_items[item].square().sum()
    return torch.stack(rows).view(columns.shape), squares


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("n_rows", [1, 2, 8, 19])
@pytest.mark.parametrize(("of_logits", "of_squares"), [(1.0, 0.0), (0.0, 1.0), (0.7, 0.3)])
def test_logits_squares_and_gradients_are_the_formulas(
    n_rows: int,
    sizes: tuple[int, ...],
    of_logits: float,
    of_squares: float,
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_gradients, "LEAST_NUMBERS", 0 if named else 1 << 40)
    parameters, users, columns = case(n_rows, sizes)
    doubles = [x.detach().double().requires_grad_() for x in parameters]
    slopes = torch.randn(columns.shape, generator=torch.Generator().manual_seed(1))
    logits, squares = of_tower(parameters, users, columns)
    expected, expected_squares = literally(doubles, users, columns)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares.double(), expected_squares, rtol=1e-6, atol=0)
    total = of_logits * (logits * slopes).sum() + of_squares * squares
    literal = of_logits * (expected * slopes).sum() + of_squares * expected_squares
    theirs = torch.autograd.grad(literal, doubles, allow_unused=True, materialize_grads=True)
    for mine, wanted in zip(torch.autograd.grad(total, parameters), theirs, strict=True):
        torch.testing.assert_close(mine.to_dense().double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("asked", [0, 1])
def test_one_of_the_two_alone_has_a_gradient(asked: int) -> None:
    parameters, users, columns = case(8)
    doubles = [x.detach().double().requires_grad_() for x in parameters]
    found = of_tower(parameters, users, columns)[asked]
    tables = torch.autograd.grad(found.sum(), parameters[:2])
    expected = torch.autograd.grad(literally(doubles, users, columns)[asked].sum(), doubles[:2])
    for mine, wanted in zip(tables, expected, strict=True):
        torch.testing.assert_close(mine.to_dense().double(), wanted, rtol=1e-5, atol=1e-5)


def test_few_rows_of_a_large_table_are_named_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_gradients, "LEAST_NUMBERS", 40 * 64)
    for n_rows, n_users, named in ((20, 40, [True, True]), (21, 40, [False, False]), (8, 39, [False, True])):
        # Half of 40 users, and three times as many of 120 items; of 39 even few are not worth it.
        parameters, users, columns = case(n_rows, (n_users, 120, 64, 64, 32))
        logits, _ = of_tower(parameters, users, columns)
        gradients = torch.autograd.grad(logits.sum(), parameters[:2])
        assert [x.layout == torch.sparse_coo for x in gradients] == named


@pytest.mark.usefixtures("_threads")
def test_bits_repeat() -> None:
    parameters, users, columns = case(19, SIZES[1])

    def once() -> list[Tensor]:
        logits, _ = of_tower(parameters, users, columns)
        gradients = torch.autograd.grad(logits.square().sum(), parameters)
        return [logits, *(x.to_dense() for x in gradients)]

    assert all(a.equal(b) for a, b in zip(once(), once(), strict=True))


def test_what_is_not_a_number_is_not_rectified_away() -> None:
    parameters, users, columns = case(8)
    with torch.no_grad():
        parameters[0][users[3], 2] = torch.nan
    logits, _ = of_tower(parameters, users, columns)
    assert logits.isnan().any(1).tolist() == [bool(user == users[3]) for user in users]


@pytest.mark.parametrize("branch", ["neumf", "gmf", "mlp"])
def test_neumf_gives_the_same_compiled_and_not(branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_split().train
    settings = NeuMF(embedding_dim=4, batch_size=64, init_std=0.5, l2=0.3, branch=branch)  # type: ignore[arg-type]
    model = build_neumf(settings, data, torch.Generator().manual_seed(0))
    assert isinstance(model, PairModel)
    batch: Pairs = next(iter(model.batches(torch.Generator().manual_seed(1))))
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(neumf, "can_look_up", lambda table, columns, compiled=compiled: compiled)
        (objective,) = model.objectives(batch, torch.Generator().manual_seed(2))
        gradients = torch.autograd.grad(objective.loss, list(model.net.parameters()))
        found.append([objective.loss, *(x.to_dense() for x in gradients)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_users_are_cut_in_whole_groups() -> None:
    assert tower._parts(24, 8, 2) == [(0, 8), (8, 24)]
    assert tower._parts(8, 8, 3) == [(0, 8)]

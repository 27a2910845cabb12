"""User vectors by attention: those of the formulas, blind to what comes later, the same bits each time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hdccf.models.layers import HistoryAttention
from hdccf.similarity import unit
from literal_attention import users_after

DIM, LENGTH = 6, 5


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def encoder(
    *, layers: int = 2, heads: int = 3, dropout: float = 0.0, fresh: bool = False
) -> HistoryAttention:
    generator = torch.Generator().manual_seed(3)
    made = HistoryAttention(DIM, LENGTH, layers=layers, heads=heads, dropout=dropout, generator=generator)
    if not fresh:
        # What starts as nothing would hide what is wrong with it.
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return made


def windows(n: int = 4) -> Tensor:
    return torch.randn(n, LENGTH, DIM, generator=torch.Generator().manual_seed(7))


ALL = torch.ones(4, LENGTH, dtype=torch.bool)


def encoded(
    made: HistoryAttention, items: Tensor, present: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """The users after each item of padded windows; NaN where there is none."""
    found = torch.full_like(items, torch.nan)
    packed = made(items[present], present.sum(1), generator)
    found[present] = packed[: int(present.sum())]
    return found


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_it_is_what_the_formulas_say(layers: int, heads: int) -> None:
    made, items = encoder(layers=layers, heads=heads), windows()
    expected = [users_after(made, window) for window in items.tolist()]
    torch.testing.assert_close(
        encoded(made, items, ALL).detach(), torch.tensor(expected), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("missing", [1, 3, 4])
def test_a_short_history_is_what_it_would_be_without_the_places_before_it(missing: int) -> None:
    made, items = encoder(), windows(1)
    present = torch.arange(LENGTH).unsqueeze(0) >= missing
    expected = torch.tensor(users_after(made, items[0, missing:].tolist()))
    torch.testing.assert_close(
        encoded(made, items, present)[0, missing:].detach(), expected, rtol=1e-10, atol=1e-10
    )
    # Whatever stands where there is nothing, nobody sees it.
    other = items.clone()
    other[:, :missing] = 100.0
    assert encoded(made, other, present)[0, missing:].equal(encoded(made, items, present)[0, missing:])


def test_windows_of_all_lengths_are_each_as_they_would_be_alone() -> None:
    made, lengths = encoder(), [2, 5, 1, 3, 5, 0, 4, 2, 1]
    items = windows(len(lengths))
    present = torch.arange(LENGTH) >= LENGTH - torch.tensor(lengths).unsqueeze(1)
    together = encoded(made, items, present)
    for window, length in enumerate(lengths):
        alone = encoded(made, items[window : window + 1], present[window : window + 1])[0]
        there = slice(LENGTH - length, None)
        torch.testing.assert_close(together[window, there], alone[there], rtol=1e-10, atol=1e-10)


def test_no_place_knows_what_comes_after_it() -> None:
    made, items = encoder(), windows().requires_grad_()
    for place in range(LENGTH):
        (slope,) = torch.autograd.grad(encoded(made, items, ALL)[:, place].sum() + 0 * items.sum(), items)
        assert slope[:, place + 1 :].eq(0).all()
        assert slope[:, : place + 1].ne(0).any(2).all()


def test_the_order_of_what_was_before_matters() -> None:
    made, items = encoder(), windows()
    turned = items[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(encoded(made, items, ALL)[:, -1], encoded(made, turned, ALL)[:, -1])


def test_a_fresh_one_says_the_latest_item_and_its_age() -> None:
    made, items = encoder(fresh=True), windows()
    expected = unit(made.norm(unit(items) * DIM**0.5 + made.ages))
    torch.testing.assert_close(encoded(made, items, ALL), expected)


def test_dropout_is_drawn_from_the_generator_and_from_nothing_else() -> None:
    made, items = encoder(dropout=0.4), windows()

    def drawn(seed: int) -> Tensor:
        return encoded(made, items, ALL, torch.Generator().manual_seed(seed))

    torch.manual_seed(1)
    first = drawn(5)
    torch.manual_seed(2)
    assert drawn(5).equal(first)
    assert not torch.allclose(drawn(6), first)
    whole = encoded(made, items, ALL)
    assert whole.equal(encoded(made, items, ALL))
    assert not torch.allclose(whole, first)


def test_every_parameter_learns() -> None:
    made, items = encoder(), windows()
    target = torch.randn(4, LENGTH, DIM, generator=torch.Generator().manual_seed(9))
    torch.autograd.backward((encoded(made, items, ALL) * target).sum())
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.ne(0).any(), name

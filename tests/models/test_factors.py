"""Scores from one product with the whole catalogue are those of rows with vectors of their own."""

import pytest
import torch
from torch import Tensor

from hdccf.models.factorization import Factors
from hdccf.models.pairs import PairScores


def net_of(similarity: str) -> Factors:
    net = Factors(5, 9, 4, similarity=similarity, std=0.5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.items.embedding[3] = 0.0  # a vector without a direction
    return net.double()


def gradients(net: Factors, scores: PairScores, l2: float) -> list[Tensor]:
    total = (scores.positive * 0.7).sum() + (scores.negative.square() * 1.3).sum()
    penalty = l2 * scores.squares()
    return list(torch.autograd.grad(total + penalty, list(net.parameters())))


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("l2", [0.0, 0.4])
def test_a_product_with_all_items_gives_what_rows_give(
    similarity: str, l2: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = net_of(similarity)
    users, items = torch.tensor([0, 4, 4]), torch.tensor([3, 8, 0])
    negatives = torch.tensor([[1, 1], [3, 2], [7, 5]])
    found = {}
    for dense in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(Factors, "_is_dense", lambda self, columns, dense=dense: dense)
            found[dense] = net.compare(users, items, negatives)
    torch.testing.assert_close(found[True][:2], found[False][:2])
    for a, b in zip(gradients(net, found[True], l2), gradients(net, found[False], l2), strict=True):
        torch.testing.assert_close(a, b)


def test_the_product_is_taken_where_it_is_the_smaller_one() -> None:
    net = net_of("dot")
    assert not net._is_dense(torch.zeros(7, 2, dtype=torch.int64))
    assert net._is_dense(torch.zeros(7, 3, dtype=torch.int64))

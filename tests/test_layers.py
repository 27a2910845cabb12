"""Vectors: free ones are rows of a table, a history's is a sum, and only rows looked up get gradients."""

import pytest
import torch

from hdccf.data.batches import History
from hdccf.models.layers import Table


def made(*, separate: bool = False, sparse: bool = False) -> Table:
    generator = torch.Generator().manual_seed(0)
    return Table(6, 4, separate=separate, std=0.1, sparse=sparse, generator=generator).double()


def history() -> History:
    """Row 1 has nothing, neither has the last; row 2 has an item twice."""
    rows, items = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([5, 1, 3, 0, 3])
    return History(rows, items, torch.tensor([0.5, 1.0, 0.25, 0.5, 1.0]))


@pytest.mark.parametrize("separate", [False, True])
def test_free_vectors_are_rows_and_factors_their_own_where_separate(separate: bool) -> None:
    table = made(separate=separate)
    vectors = table.of(torch.tensor([4, 0, 4]))
    assert vectors.embedding.equal(table.embedding[[4, 0, 4]])
    assert (vectors.factors is vectors.embedding) != separate
    if table.factors is not None:
        assert vectors.factors.equal(table.factors[[4, 0, 4]])
    assert table.all().embedding.equal(table.embedding)
    assert table.of(torch.tensor([[1, 2], [3, 4]])).embedding.shape == (2, 2, 4)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_history_is_the_normalised_weighted_sum_of_unit_vectors(separate: bool, sparse: bool) -> None:
    table, given = made(separate=separate, sparse=sparse), history()
    vectors = table.sum_of(given, 4)
    for measured, free in ((vectors.embedding, table.embedding), (vectors.factors, table.factors)):
        source = table.embedding if free is None else free
        for row in range(4):
            total = torch.zeros(4, dtype=torch.float64)
            for r, item, weight in zip(given.rows, given.items, given.weights.double(), strict=True):
                if r == row:
                    total += weight * source[item].detach() / source[item].detach().norm()
            expected = total / total.norm() if row in (0, 2) else total
            torch.testing.assert_close(measured[row].detach(), expected, rtol=1e-12, atol=1e-12)
    assert vectors.embedding[[1, 3]].eq(0).all()


def test_nobody_with_a_history_is_all_zero() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    vectors = made().sum_of(History(nothing, nothing, torch.zeros(0)), 3)
    assert vectors.embedding.shape == (3, 4)
    assert vectors.embedding.eq(0).all()


def test_sparse_look_ups_give_gradients_that_name_their_rows_and_equal_the_whole_ones() -> None:
    gradients = []
    for sparse in (False, True):
        table = made(sparse=sparse)
        free = table.of(torch.tensor([4, 0, 4])).embedding.square().sum()
        (free + table.sum_of(history(), 4).embedding[:, 0].sum()).backward()  # type: ignore[no-untyped-call]
        assert table.embedding.grad is not None
        gradients.append(table.embedding.grad)
    assert gradients[1].layout == torch.sparse_coo
    assert set(gradients[1].coalesce().indices()[0].tolist()) == {0, 1, 3, 4, 5}
    torch.testing.assert_close(gradients[1].to_dense(), gradients[0])

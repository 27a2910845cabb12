"""The best K against a full sort, and ties in an order without bias."""

import numpy as np
import pytest

from hdccf.evaluation.ranking import top_items, top_k


@pytest.mark.parametrize(("columns", "k"), [(7, 3), (7, 7), (7, 9), (400, 5), (403, 5), (2000, 10)])
def test_without_ties_it_is_the_sorted_list(columns: int, k: int) -> None:
    scores = np.random.default_rng(columns).normal(size=(20, columns))
    chosen = top_items(scores, k, np.arange(20), 0)
    expected = np.argsort(-scores, axis=1)[:, :k]
    np.testing.assert_array_equal(chosen[:, : expected.shape[1]], expected)
    assert (chosen[:, expected.shape[1] :] == -1).all()


@pytest.mark.parametrize(("columns", "k"), [(12, 4), (403, 5), (2000, 10)])
@pytest.mark.parametrize("levels", [2, 6, 300])
def test_with_ties_the_scores_are_those_of_the_sorted_list(columns: int, k: int, levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, (30, columns)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.3] = -np.inf
    chosen = top_items(scores, k, np.arange(30), 0)
    best = -np.sort(-scores, axis=1)[:, :k]
    found = np.where(chosen < 0, -np.inf, np.take_along_axis(scores, np.maximum(chosen, 0), 1))
    np.testing.assert_array_equal(found, best)
    for row in chosen.tolist():
        real = [column for column in row if column >= 0]
        assert len(set(real)) == len(real)


def test_tied_columns_are_equally_often_at_every_place() -> None:
    """Column 0 is best; of the nine others, tied, three more are listed."""
    scores = np.zeros((6000, 10))
    scores[:, 0] = 1
    chosen = top_items(scores, 4, np.arange(6000), 0)
    assert (chosen[:, 0] == 0).all()
    for place in (1, 2, 3):
        shares = np.bincount(chosen[:, place], minlength=10)[1:] / 6000
        np.testing.assert_allclose(shares, 1 / 9, atol=4.5 * np.sqrt(1 / 9 * 8 / 9 / 6000))


def test_the_order_of_ties_depends_on_seed_and_user_only() -> None:
    scores, users = np.zeros((40, 30)), np.arange(40)
    whole = top_items(scores, 5, users, 7)
    pieces = [top_items(scores[a : a + 9], 5, users[a : a + 9], 7) for a in range(0, 40, 9)]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))
    assert not np.array_equal(whole, top_items(scores, 5, users, 8))
    assert len({tuple(row) for row in whole.tolist()}) > 30
    top_items(scores, 5, users, 2**62)  # a large seed does not overflow


@pytest.mark.parametrize("n", [1, 7, 160, 161, 1000, 4099])
@pytest.mark.parametrize("kind", ["different", "ties", "all equal", "mostly left out"])
@pytest.mark.parametrize("k", [1, 10])
def test_the_places_of_one_row_are_those_of_sorting_it(n: int, kind: str, k: int) -> None:
    rng, k = np.random.default_rng(n), min(k, n)
    scores = rng.standard_normal(n).astype(np.float32)
    if kind == "ties":
        scores = np.round(scores)
    elif kind == "all equal":
        scores[:] = 0.5
    elif kind == "mostly left out":
        scores[rng.permutation(n)[: n - n // 50]] = -np.inf
    given = scores.copy()
    places = top_k(scores[None], k)[1][0]
    assert scores[places].tolist() == np.sort(scores)[::-1][:k].tolist()
    assert len(set(places.tolist())) == k
    assert places.strides[0] > 0  # torch takes no others
    assert np.array_equal(scores, given)

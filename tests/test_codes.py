"""Codes of four bits: the best by them are nearly the best, however they are cut and shared out."""

import numpy as np
import pytest
import torch

from hdccf.recommend import candidates as index
from hdccf.recommend.candidates import Codes, Points


def points(n: int, dim: int, seed: int) -> Points:
    return np.random.default_rng(seed).standard_normal((n, dim), np.float32)


@pytest.mark.parametrize("few", [0, 3000])
@pytest.mark.parametrize("dim", [4, 7, 32, 600])
@pytest.mark.parametrize("distances", [False, True])
def test_the_best_are_among_some_more_by_their_codes(
    few: int, dim: int, distances: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_FEW", few)
    items, users = points(3000, dim, 0), points(20, dim, 1)
    scores = users.astype(np.float64) @ items.T.astype(np.float64)
    if distances:
        scores = 2 * scores - np.square(items.astype(np.float64)).sum(1)
    exact = np.argsort(-scores, 1)[:, :10]
    found = Codes(items, distances=distances).best(users, 300)
    assert found.shape == (20, 300)
    assert all(len(set(row)) == 300 for row in found.tolist())
    assert (found[:, None, :] == exact[:, :, None]).any(2).mean() > 0.9


def test_shares_of_several_threads_are_numbered_through(monkeypatch: pytest.MonkeyPatch) -> None:
    items, users = points(1000, 8, 0), points(5, 8, 1)
    whole = Codes(items, distances=False).best(users, 1000)
    monkeypatch.setattr(index, "_SHARD", 300)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared = Codes(items, distances=False).best(users, 1000)
    assert [set(row) for row in shared.tolist()] == [set(range(1000))] * 5
    # Equal codes have no order, so the fiftieth can be another.
    same = (shared[:, :50, None] == whole[:, None, :50]).any(2)
    assert same.mean() > 0.9


@pytest.mark.parametrize("n", [1, 5, 40])
def test_few_items_are_all_found(n: int) -> None:
    found = Codes(points(n, 4, 0), distances=False).best(points(3, 4, 1), n + 2)
    assert [sorted(row) for row in found.tolist()] == [[-1, -1, *range(n)]] * 3


def test_codes_suit_the_long_ones() -> None:
    items, users = points(4000, 16, 0), points(50, 16, 1)
    items[200:] *= 0.02  # never among the best, and most of all
    exact = np.argsort(-(users @ items.T), 1)[:, :10]
    found = Codes(items, distances=False).best(users, 40)
    assert (found[:, None, :] == exact[:, :, None]).any(2).mean() > 0.97

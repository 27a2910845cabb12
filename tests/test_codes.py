"""Codes of four bits: the best by them are nearly the best, however they are cut and shared out."""

import numpy as np
import pytest
import torch

from hdccf.kernels.codes_numba import encode
from hdccf.recommend import codes
from hdccf.recommend.codes import Codes, Points


def points(n: int, dim: int, seed: int) -> Points:
    return np.random.default_rng(seed).standard_normal((n, dim), np.float32)


@pytest.mark.parametrize("few", [0, 3000])
@pytest.mark.parametrize("dim", [4, 7, 32, 600])
@pytest.mark.parametrize(("distances", "compiled"), [(False, True), (False, False), (True, True)])
def test_the_best_are_among_some_more_by_their_codes(
    few: int, dim: int, distances: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "_FEW", few)
    monkeypatch.setattr(codes, "has_numba", lambda: compiled)
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
    monkeypatch.setattr(codes, "_SHARE", 300)
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
    items[200:] *= 0.02  # nobody's best, and most of all
    exact = np.argsort(-(users @ items.T), 1)[:, :10]
    found = Codes(items, distances=False).best(users, 40)
    assert (found[:, None, :] == exact[:, :, None]).any(2).mean() > 0.97


# -- codes for products --------------------------------------------------------------------------------------


def literal_codes(x: np.ndarray, centres: np.ndarray, along: float, rounds: int) -> list[int]:
    """One point, in float64, part after part; whatever is chosen, all of r is made anew."""
    parts, _, width = centres.shape
    pieces = x.reshape(parts, width)
    chosen = [int(np.square(pieces[p] - centres[p]).sum(1).argmin()) for p in range(parts)]

    def cost(some: list[int]) -> float:
        r = x - np.concatenate([centres[p, c] for p, c in enumerate(some)])
        return float(r @ r + along * (r @ x) ** 2 / (x @ x))

    for _ in range(rounds):
        for p in range(parts):
            tried = [[*chosen[:p], c, *chosen[p + 1 :]] for c in range(centres.shape[1])]
            chosen = min(tried, key=cost)
    return chosen


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_codes_are_the_literal_ones(width: int, rounds: int) -> None:
    items, centres = points(60, 5 * width, 0), points(5 * 16, width, 1).reshape(5, 16, width)
    found = np.empty((60, 5), np.uint8)
    encode(items, centres, 5.0, rounds, found, 0, 30)
    encode(items, centres, 5.0, rounds, found, 30, 60)
    literal = [literal_codes(x, centres.astype(np.float64), 5.0, rounds) for x in items.astype(np.float64)]
    # Two choices can be so close that float32 takes the other, and what follows differs.
    assert (found == np.array(literal)).all(1).mean() > 0.95


def test_a_point_that_is_nothing_has_a_code() -> None:
    found = np.full((1, 2), 99, np.uint8)
    encode(np.zeros((1, 4), np.float32), points(2 * 16, 2, 1).reshape(2, 16, 2), 5.0, 3, found, 0, 1)
    assert found.max() < 16


def test_codes_for_products_find_more_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "_FEW", 0)
    items = points(20_000, 32, 0)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    users = items[:100] + 0.1 * points(100, 32, 1)  # near some items, as those are to whom they are shown
    exact = np.argsort(-(users @ items.T), 1)[:, :10]
    missed = {}
    for compiled in (True, False):
        monkeypatch.setattr(codes, "has_numba", lambda compiled=compiled: compiled)
        found = Codes(items, distances=False).best(users, 60)
        missed[compiled] = 1 - (found[:, None, :] == exact[:, :, None]).any(2).mean()
    assert missed[True] < 0.8 * missed[False]

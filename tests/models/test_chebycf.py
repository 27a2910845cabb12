"""ChebyCF against the filter in the eigenbasis of the item graph, in float64."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs import random_interactions, small_split
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.models.chebycf import ChebyCF, ChebyCFModel, plateau
from hdccf.training.fit import fit


def solved(settings: ChebyCF, train: Interactions) -> ChebyCFModel:
    model = fit(predefined_split(train), settings).model
    assert isinstance(model, ChebyCFModel)
    return model


def literal(settings: ChebyCF, train: Interactions, signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """D^β (V h(Λ) Vᵀ + α V_k V_kᵀ) D^−β x, V and Λ the eigenvectors and eigenvalues of L."""
    observed = train.matrix.toarray().astype(np.float64)
    users, items = observed.sum(1).clip(1), observed.sum(0).clip(1)
    normalised = observed / np.sqrt(users)[:, None] / np.sqrt(items)
    eigenvalues, vectors = np.linalg.eigh(np.eye(len(items)) - normalised.T @ normalised)
    x, order = 2 * eigenvalues - 1, settings.order
    response = np.zeros(len(x))
    for k in range(order + 1):
        coefficient = 0.0
        for j in range(order + 1):
            extremum = np.cos(np.pi * (order - j) / order)
            root = np.cos(np.pi * (order + 0.5 - j) / (order + 1))
            height = 0.5 * abs(extremum) ** settings.flatness
            value = 0.5 + height if extremum < 0 else 0.5 - height
            coefficient += (1 if k == 0 else 2) / (order + 1) * value * np.cos(k * np.arccos(root))
        response += coefficient * np.cos(k * np.arccos(x.clip(-1, 1)))
    response[: settings.rank] += settings.ideal_weight
    powers = items**settings.degree_power
    result: NDArray[np.float64] = (signal / powers) @ (vectors * response) @ vectors.T * powers
    return result


@pytest.mark.parametrize(
    "settings",
    [
        ChebyCF(rank=5),
        ChebyCF(order=3, flatness=0.5, rank=3, ideal_weight=1.0, degree_power=0.0),
        ChebyCF(order=1, flatness=2.0, ideal_weight=0.0, degree_power=0.5),
    ],
)
def test_scores_are_the_filter_in_the_eigenbasis_of_the_item_graph(settings: ChebyCF) -> None:
    train = random_interactions(3, n_users=40, n_items=25)
    model = solved(settings, train)
    observed = train.matrix.toarray().astype(np.float64)
    expected = literal(settings, train, observed)
    np.testing.assert_allclose(model.score_block(torch.arange(40)).numpy(), expected, atol=2e-5)
    # Other users are filtered over the same graph.
    others = random_interactions(4, n_users=7, n_items=25)
    scores = model.users_from(others).score_block(torch.arange(7)).numpy()
    signal = others.matrix.toarray().astype(np.float64)
    np.testing.assert_allclose(scores, literal(settings, train, signal), atol=2e-5)


def test_the_filter_keeps_low_frequencies_and_leaves_out_high_ones() -> None:
    for order, flatness in ((8, 1.5), (5, 0.5), (1, 1.0)):
        response = np.polynomial.chebyshev.chebval([-1.0, 1.0], plateau(order, flatness))
        assert response[0] > 0.9 > 0.1 > response[1]


def test_an_old_item_counts_less_with_a_half_life() -> None:
    train = small_split().train
    plain, fading = solved(ChebyCF(rank=4), train), solved(ChebyCF(rank=4, recency_half_life=2.0), train)
    signal = train.matrix.toarray().astype(np.float64)
    for user in range(train.n_users):
        history = train.by_user.of(user)
        signal[user, history] = 0.5 ** (np.arange(len(history))[::-1] / 2.0)
    expected = literal(plain.settings, train, signal)
    np.testing.assert_allclose(fading.score_block(torch.arange(40)).numpy(), expected, atol=2e-5)


def test_portions_of_users_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = solved(ChebyCF(rank=4), small_split().train)
    users, items = torch.tensor([3, 1, 3, 39, 0]), torch.randint(30, (5, 4))
    whole = model.score_block(users)
    monkeypatch.setattr("hdccf.models.chebycf._SCORES_AT_ONCE", 60)
    torch.testing.assert_close(model.score_block(users, torch.tensor([7, 2])), whole[:, [7, 2]])
    torch.testing.assert_close(model.score_rows(users, items), whole.gather(1, items))

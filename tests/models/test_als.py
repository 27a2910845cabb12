"""ALS is implicit's: the same factors and user vectors, and no need of the library once they are found."""

import sys
from pathlib import Path

import implicit.utils
import numpy as np
import pytest
import torch
from implicit.cpu.als import AlternatingLeastSquares
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from graphs import random_interactions, small_split
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.errors import ConfigError, TrainingError
from hdccf.models.als import ALS, ALSModel
from hdccf.recommend.recommender import load_run
from hdccf.rng import generator_for
from hdccf.training.fit import fit


def solved(settings: ALS, train: Interactions, seed: int = 0) -> ALSModel:
    model = fit(predefined_split(train), settings, seed=seed).model
    assert isinstance(model, ALSModel)
    return model


def test_the_factors_are_those_of_the_library() -> None:
    train = random_interactions(2, n_users=30, n_items=20)
    model = solved(ALS(embedding_dim=6, l2=0.3, alpha=2.5, iterations=4), train, seed=5)
    drawn = int(torch.randint(1 << 31, (), generator=generator_for(5, "solution")))
    with threadpool_limits(1, "blas"):
        theirs = AlternatingLeastSquares(
            factors=6, regularization=0.3, alpha=2.5, iterations=4, random_state=drawn, num_threads=1
        )
        theirs.fit(sparse.csr_matrix(train.matrix), show_progress=False)
    np.testing.assert_array_equal(model.users.numpy(), theirs.user_factors)
    np.testing.assert_array_equal(model.items.numpy(), theirs.item_factors)
    expected = theirs.user_factors @ theirs.item_factors.T
    np.testing.assert_allclose(model.scorer().score_block(torch.arange(30)).numpy(), expected, atol=1e-6)


def loss(observed: NDArray[np.float64], model: ALSModel) -> float:
    """Σ c·(x − p·q)² + λ(‖P‖² + ‖Q‖²) over all pairs: c is alpha where a pair was observed, 1 elsewhere."""
    users, items = model.users.numpy().astype(np.float64), model.items.numpy().astype(np.float64)
    s = model.settings
    error = (observed - users @ items.T) ** 2 * np.where(observed > 0, s.alpha, 1.0)
    return float(error.sum() + s.l2 * ((users**2).sum() + (items**2).sum()))


def test_alpha_and_l2_are_those_of_the_weighted_loss_that_is_solved() -> None:
    """Converged, no factors of a finite step away have a lower loss; with another alpha or λ they would."""
    train = random_interactions(2, n_users=30, n_items=20)
    observed = train.matrix.toarray().astype(np.float64)
    model = solved(ALS(embedding_dim=3, l2=0.3, alpha=2.5, iterations=300), train)
    least = loss(observed, model)
    rng = np.random.default_rng(0)
    for factors in (model.users, model.items):
        whole = factors.clone()
        for step in (0.98, 1.02):
            factors.copy_(whole * step)
            assert loss(observed, model) > least
        for _ in range(20):
            factors.copy_(whole + torch.from_numpy(0.01 * rng.standard_normal(whole.shape)).float())
            assert loss(observed, model) > least
        factors.copy_(whole)


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_with_recency_users_are_solved_anew_from_what_their_history_still_says(floor: float) -> None:
    train = random_interactions(6, n_users=15, n_items=11)
    settings = ALS(embedding_dim=4, l2=0.1, alpha=3.0, recency_half_life=1.5, recency_floor=floor)
    model, plain = solved(settings, train), solved(settings.changed(recency_half_life=None), train)
    assert model.items.equal(plain.items)
    items = model.items.numpy().astype(np.float64)
    for user in range(15):
        normal, right = items.T @ items + 0.1 * np.eye(4), np.zeros(4)
        for age, item in enumerate(reversed(train.by_user.of(user))):
            confidence = 3.0 * (floor + (1 - floor) * 0.5 ** (age / 1.5))
            normal += (confidence - 1) * np.outer(items[item], items[item])
            right += confidence * items[item]
        np.testing.assert_allclose(model.users[user].numpy(), np.linalg.solve(normal, right), atol=2e-5)


def test_the_librarys_warning_about_threads_does_not_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit.utils, "_checked_blas_config", False)
    with threadpool_limits(2, "blas"):
        fit(small_split(), ALS(embedding_dim=2))  # a warning would be an error here


def test_without_the_library_solving_says_what_to_install_and_answering_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = fit(small_split(), ALS(embedding_dim=4), out=tmp_path / "run")
    for name in [name for name in sys.modules if name.split(".")[0] == "implicit"]:
        monkeypatch.setitem(sys.modules, name, None)
    loaded = load_run(tmp_path / "run")
    assert loaded.score_block(torch.arange(40)).equal(trained.score_block(torch.arange(40)))
    with pytest.raises(
        ConfigError, match=r"^ALS needs implicit; install it with: pip install 'hdccf\[als\]'$"
    ):
        fit(small_split(), ALS(embedding_dim=4))


def test_what_the_library_cannot_solve_is_refused_in_one_line() -> None:
    with pytest.raises(TrainingError, match=r"^implicit found no solution with l2=0.01, .*raise l2$"):
        fit(small_split(), ALS(embedding_dim=4, alpha=1e38))


def test_the_number_of_threads_changes_nothing() -> None:
    train = small_split().train
    one = solved(ALS(embedding_dim=4), train)
    torch.set_num_threads(2)
    try:
        two = solved(ALS(embedding_dim=4), train)
    finally:
        torch.set_num_threads(1)
    assert two.users.equal(one.users)
    assert two.items.equal(one.items)

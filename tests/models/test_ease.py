"""EASE against regressions solved one by one, and that a solved model is solved once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs import interactions, random_interactions, small_split
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.errors import ConfigError, TrainingError
from hdccf.models.ease import EASE, EASEModel
from hdccf.recommend.recommender import load_run
from hdccf.training.fit import fit, resume


def solved(settings: EASE, train: Interactions) -> EASEModel:
    model = fit(predefined_split(train), settings).model
    assert isinstance(model, EASEModel)
    return model


def regressions(train: Interactions, l2: float) -> NDArray[np.float64]:
    """Each item regressed on all others with a ridge, one after another."""
    observed = train.matrix.toarray().astype(np.float64)
    weights = np.zeros((train.n_items, train.n_items))
    for item in range(train.n_items):
        others = np.delete(np.arange(train.n_items), item)
        inputs = observed[:, others]
        normal = inputs.T @ inputs + l2 * np.eye(len(others))
        weights[others, item] = np.linalg.solve(normal, inputs.T @ observed[:, item])
    return weights


@pytest.mark.parametrize("l2", [0.5, 20.0])
def test_the_weights_are_those_of_a_ridge_regression_of_each_item_on_all_others(l2: float) -> None:
    train = random_interactions(3, n_users=40, n_items=25)
    model = solved(EASE(l2=l2), train)
    np.testing.assert_allclose(model.weights.numpy(), regressions(train, l2), atol=2e-6)
    assert not model.weights.diagonal().any()
    assert model.weights.dtype == torch.float32


def test_the_weights_are_whole_where_the_triangle_is_copied_in_parts() -> None:
    train = random_interactions(4, n_users=300, n_items=1100, share=0.02)
    model = solved(EASE(l2=5.0), train)
    observed = train.matrix.toarray().astype(np.float64)
    inverse = np.linalg.inv(observed.T @ observed + 5.0 * np.eye(1100))
    expected = np.eye(1100) - inverse / np.diag(inverse)
    np.testing.assert_allclose(model.weights.numpy(), expected, atol=2e-6)


@pytest.mark.parametrize(("half_life", "floor"), [(None, 0.0), (2.0, 0.0), (2.0, 0.25)])
def test_a_score_adds_up_what_the_history_says_and_old_items_say_less(
    half_life: float | None, floor: float
) -> None:
    train = random_interactions(5, n_users=12, n_items=9)
    model = solved(EASE(l2=2.0, recency_half_life=half_life, recency_floor=floor), train)
    weights = regressions(train, 2.0)
    expected = np.zeros((12, 9))
    for user in range(12):
        history = train.by_user.of(user)
        for age, item in enumerate(reversed(history)):
            fade = 1.0 if half_life is None else floor + (1 - floor) * 0.5 ** (age / half_life)
            expected[user] += fade * weights[item]
    np.testing.assert_allclose(model.score_block(torch.arange(12)).numpy(), expected, atol=1e-5)


def test_time_changes_the_prediction_and_not_what_is_learnt() -> None:
    train = small_split().train
    plain, recent = solved(EASE(), train), solved(EASE(recency_half_life=2.0), train)
    assert recent.weights.equal(plain.weights)
    assert not recent.score_block(torch.arange(40)).equal(plain.score_block(torch.arange(40)))


def test_portions_of_users_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = solved(EASE(), small_split().train)
    users, items = torch.tensor([3, 1, 3, 39, 0]), torch.randint(30, (5, 4))
    whole = model.score_block(users)
    monkeypatch.setattr("hdccf.models.ease._SCORES_AT_ONCE", 60)
    assert model.score_block(users, torch.tensor([7, 2])).equal(whole[:, [7, 2]])
    assert model.score_rows(users, items).equal(whole.gather(1, items))
    assert model.score_rows(users[:0], items[:0]).shape == (0, 4)


def test_a_catalogue_that_memory_would_not_hold_is_refused_before_it_is_tried() -> None:
    with pytest.raises(ConfigError, match=r"^30 items are more than max_items=29: EASE would need 0.0 GB"):
        fit(small_split(), EASE(max_items=29))


def test_equations_without_a_stable_solution_are_refused() -> None:
    """Two items with the same users: without a ridge either could explain the other."""
    twins = interactions([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
    with pytest.raises(TrainingError, match=r"^l2=1e-12 is too small for this data"):
        solved(EASE(l2=1e-12), twins)


# -- what holds for every model that is solved ---------------------------------------------------------------


def test_opening_a_run_and_resuming_a_finished_one_solve_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = fit(small_split(), EASE(l2=7.0), out=tmp_path / "run")
    assert trained.seconds > 0
    before = json.loads((tmp_path / "run" / "result.json").read_text())
    monkeypatch.delattr(EASEModel, "solve")
    for again in (load_run(tmp_path / "run"), resume(tmp_path / "run")):
        assert again.score_block(torch.arange(40)).equal(trained.score_block(torch.arange(40)))
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == before


def test_a_run_that_was_cut_off_before_it_was_solved_is_solved_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(self: EASEModel, generator: torch.Generator, progress: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EASEModel, "solve", cut_off)
        with pytest.raises(KeyboardInterrupt):
            fit(small_split(), EASE(), out=tmp_path / "run")
    whole = fit(small_split(), EASE())
    assert resume(tmp_path / "run").score_block(torch.arange(40)).equal(whole.score_block(torch.arange(40)))

"""What every model in the registry must do; a new one gets these tests for free."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graphs import checkerboard, interactions, random_interactions, small_split, tastes
from hdccf.config import Settings, TrainingSettings
from hdccf.data.interactions import Interactions
from hdccf.data.split import PARTS, Split, leave_one_out, predefined_split
from hdccf.data.synthetic import synthetic_world
from hdccf.errors import ConfigError, DataError, HdccfError
from hdccf.evaluation.ranking import Ranker
from hdccf.models import MODELS
from hdccf.models.base import Model, Scorer
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.fit import fit

TRAINED = [name for name in sorted(MODELS) if issubclass(MODELS[name].settings, TrainingSettings)]
LEARNED = [name for name in sorted(MODELS) if name not in ("most-popular", "random")]
SEEDLESS = ("ease", "most-popular")
PRESETS = [(name, preset) for name in sorted(MODELS) for preset in MODELS[name].presets]

# What makes a model quick on small data; each takes those that it has.
QUICK: dict[str, Any] = {
    "epochs": 2,
    "embedding_dim": 8,
    "batch_size": 64,
    "block_users": 16,
    "negatives": 8,
    "evaluate_every": 1,
    "learning_rate": 0.02,
    "init_std": 0.1,
}
# Where a model's rule of steps needs another size: Adagrad's shrink by themselves.
OWN: dict[str, dict[str, Any]] = {"enmf": {"learning_rate": 0.05}}
LEARNING = {**QUICK, "epochs": 40, "patience": 40, "evaluate_every": 5}


def settings_of(name: str, values: dict[str, Any] = QUICK, **more: Any) -> Settings:
    kind = MODELS[name].settings
    known = {key: value for key, value in values.items() if key in kind.model_fields}
    return kind(**{**known, **OWN.get(name, {}), **more})


def without_held_out(train: Interactions) -> Split:
    return predefined_split(train)


@pytest.fixture(scope="module")
def world() -> Split:
    """A small world whose users have tastes of their own."""
    made = synthetic_world(6000, n_users=300, n_items=150, liked=0.2, strength=3.0, exposure=0.0, seed=3)
    return leave_one_out(made.interactions)


@pytest.fixture(scope="module")
def popularity(world: Split) -> float:
    return ndcg(fit(world, MODELS["most-popular"].settings()), world)


def ndcg(fitted: Recommender, split: Split) -> float:
    return Ranker(split, "test").measure(fitted, ("ndcg@10",), ("full",))["full"]["ndcg@10"]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_it_is_a_model_and_its_scorer_a_scorer_of_finite_scores(name: str) -> None:
    fitted = fit(small_split(), settings_of(name))
    assert isinstance(fitted.model, Model)
    scorer = fitted.model.scorer()
    assert isinstance(scorer, Scorer)
    assert (scorer.n_users, scorer.n_items) == (40, 30)
    users, items = torch.tensor([5, 0, 5]), torch.tensor([[1, 1], [29, 0], [3, 2]])
    block = scorer.score_block(users)
    assert block.shape == (3, 30)
    assert block.isfinite().all()
    assert not block.requires_grad
    torch.testing.assert_close(scorer.score_rows(users, items), block.gather(1, items))
    torch.testing.assert_close(scorer.score_block(users, torch.tensor([7, 3])), block[:, [7, 3]])
    assert scorer.score_block(users[:0]).shape == (0, 30)
    assert scorer.score_block(users).equal(block)  # asking twice changes nothing
    # The last row of an odd number goes through another path of the product here, one bit away.
    torch.testing.assert_close(block[0], block[2])


@pytest.mark.parametrize("name", LEARNED)
def test_it_learns_the_checkerboard(name: str) -> None:
    """Every user has all items of their parity but one: that one comes first among those they have not."""
    size = 20
    fitted = fit(without_held_out(checkerboard(size)), settings_of(name, LEARNING))
    best = fitted.recommend([f"u{user}" for user in range(size)], k=1)
    right = [item - 100 == int(user[1:]) for user, item in zip(best["user"], best["item"], strict=True)]
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("name", LEARNED)
def test_it_beats_popularity_where_tastes_differ(name: str, world: Split, popularity: float) -> None:
    fitted = fit(world, settings_of(name, {**LEARNING, "epochs": 20}))
    assert ndcg(fitted, world) > 1.15 * popularity


@pytest.mark.parametrize("name", sorted(MODELS))
def test_it_is_saved_and_loaded_with_identical_scores(name: str, tmp_path: Path) -> None:
    trained = fit(small_split(), settings_of(name), seed=7, out=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    users = torch.arange(40)
    assert loaded.score_block(users).equal(trained.score_block(users))
    assert loaded.settings == trained.settings
    assert RunFolder.open(tmp_path / "run").result.exists()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_seed_decides_everything(name: str) -> None:
    users = torch.arange(40)
    first = fit(small_split(), settings_of(name), seed=1).score_block(users)
    torch.manual_seed(5)
    assert fit(small_split(), settings_of(name), seed=1).score_block(users).equal(first)
    if name not in SEEDLESS:
        assert not fit(small_split(), settings_of(name), seed=2).score_block(users).equal(first)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("full", [False, True])
def test_a_last_batch_of_one_and_rows_without_negatives_train(name: str, full: bool) -> None:
    """One more pair, user or item than batches of two hold; and somebody who has everything."""
    train = random_interactions(1, n_users=7, n_items=9, full=full)
    rows = np.arange(len(train) - (len(train) % 2 == 0))
    odd = without_held_out(train.subset(rows))
    fitted = fit(odd, settings_of(name, {**QUICK, "batch_size": 2, "block_users": 2}))
    assert fitted.score_block(torch.arange(7)).isfinite().all()


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize(("n_users", "n_items", "pairs"), [
    (1, 1, [(0, 0)]),
    (1, 5, [(0, 1), (0, 3), (0, 2)]),
    (4, 1, [(0, 0), (1, 0), (3, 0)]),
    (3, 4, [(1, 2)]),
])  # fmt: skip
@pytest.mark.parametrize("timed", [False, True])
def test_next_to_nothing_works_or_is_refused_clearly(
    name: str, n_users: int, n_items: int, pairs: list[tuple[int, int]], timed: bool
) -> None:
    times = list(range(len(pairs))) if timed else None
    split = without_held_out(interactions(pairs, n_users=n_users, n_items=n_items, times=times))
    try:
        fitted = fit(split, settings_of(name))
    except HdccfError as error:
        refused = str(error)
    else:
        refused = ""
        assert fitted.score_block(torch.arange(n_users)).isfinite().all()
        assert len(fitted.recommend(["u0"], k=9)) <= n_items
    assert "\n" not in refused


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_training_pairs_work_or_are_refused_clearly(name: str) -> None:
    nothing = small_split().train.subset(np.zeros(0, np.int64))
    empty = Split(nothing, nothing, nothing, "predefined", {})
    if name in TRAINED:
        with pytest.raises(DataError, match=r"^there are no training pairs; "):
            fit(empty, settings_of(name))
    else:
        assert fit(empty, settings_of(name)).score_block(torch.arange(3)).isfinite().all()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_users_and_items_that_never_occurred_can_be_scored(name: str) -> None:
    data = interactions(
        [(1, 0), (1, 2), (1, 4), (3, 2), (3, 0), (3, 4), (3, 5)], n_users=6, n_items=8, times=list(range(7))
    )
    fitted = fit(without_held_out(data), settings_of(name))
    assert fitted.score_block(torch.arange(6)).isfinite().all()
    assert len(fitted.recommend(["u5"], k=8)) == 8


@pytest.mark.parametrize("name", sorted(MODELS))
def test_recommending_leaves_out_what_was_seen_and_knows_its_users(name: str) -> None:
    fitted = fit(small_split(), settings_of(name))
    split = fitted.split
    for user in (0, 17):
        found = fitted.recommend([f"u{user}"], k=1000)["item"].to_list()
        had = [item for part in PARTS for item in split.part(part).by_user.of(user)]
        seen = {int(split.train.item_ids[int(item)]) for item in had}
        assert len(found) == len(set(found)) == 30 - len(seen)
        assert not seen & set(found)
    with pytest.raises(DataError, match="user 'stranger' is not in the training data"):
        fitted.recommend(["stranger"])
    with pytest.raises(ConfigError, match="k=0 recommends nothing"):
        fitted.recommend(["u0"], k=0)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_trains(name: str, preset: str, tmp_path: Path) -> None:
    values = {**QUICK, "epochs": 1, "evaluate_every": 1}
    settings = settings_of(name, {**MODELS[name].presets[preset], **values})
    fitted = fit(small_split(), settings, out=tmp_path / "run")
    assert fitted.score_block(torch.arange(40)).isfinite().all()
    (record,) = RunFolder.open(tmp_path / "run").metrics()
    assert np.isfinite(record["loss"])


@pytest.mark.parametrize("name", TRAINED)
def test_an_epoch_has_as_many_batches_as_it_says(name: str) -> None:
    model = MODELS[name].build(settings_of(name), small_split().train, torch.Generator().manual_seed(0))
    assert len(list(model.batches(torch.Generator().manual_seed(0)))) == model.n_batches > 1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_without_training_has_no_groups_and_one_with_has(name: str) -> None:
    model = MODELS[name].build(settings_of(name), small_split().train, torch.Generator().manual_seed(0))
    assert bool(model.groups) == (name in TRAINED)
    if name in TRAINED:
        parameters = {id(p) for group in model.groups.values() for p in group}
        assert parameters == {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", [name for name in sorted(MODELS) if name != "random"])
def test_it_fits_heavy_pairs_more_closely_or_refuses_weights_in_one_line(name: str) -> None:
    plain = tastes()
    heavy = np.random.default_rng(1).random(len(plain)) < 0.3
    weighted = replace(plain, weights=np.where(heavy, 5.0, 0.05).astype(np.float32))
    settings = settings_of(name, {**LEARNING, "epochs": 10})
    if name in ("chebycf", "ease", "irgan"):
        with pytest.raises(
            ConfigError, match=f"^the data has weights, and {name} cannot weigh .* one of"
        ) as refused:
            fit(without_held_out(weighted), settings)
        assert "\n" not in str(refused.value)
        return

    def margin(data: Interactions) -> float:
        scores = fit(without_held_out(data), settings).model.scorer().score_block(torch.arange(data.n_users))
        own = scores[data.users.astype(np.int64), data.items.astype(np.int64)].numpy()
        return float((own[heavy].mean() - own[~heavy].mean()) / scores.std())

    assert margin(weighted) > margin(plain) + 0.1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_items_without_interactions_are_scored_by_features_or_left_to_filters(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pl.DataFrame({"id": range(100, 132), "parity": [n % 2 for n in range(32)]})
    fitted = fit(small_split(), settings_of(name))
    found, said = fitted.with_features(table), capsys.readouterr().err
    if "cannot represent an item by its features; those that can are" in said:
        assert found.n_items == 30
    else:
        assert found.n_items == 32
        assert bool(torch.isfinite(found.scorer().score_block(torch.arange(40))).all())
    assert set(found.recommend(["u1"], k=40, include_seen=True, where={"parity": 1})["item"]) == set(
        range(101, 100 + found.n_items, 2)
    )

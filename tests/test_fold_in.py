"""New users and items: like known ones where a user is a history, solved for where each has a vector."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graphs import interactions, small_split
from hdccf.config import Settings
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split, leave_one_out, predefined_split
from hdccf.data.synthetic import synthetic_world
from hdccf.errors import ConfigError
from hdccf.evaluation.ranking import Ranker
from hdccf.losses.contrastive import PAIR_LOSSES
from hdccf.models import MODELS
from hdccf.models.base import VectorScorer
from hdccf.models.fold_in import ContrastiveRows, PairRows, ScoredRows, solve
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.pairs import PairModel
from hdccf.recommend.recommender import Recommender
from hdccf.training.fit import fit
from small_world import assert_equal
from training import quick

LEARNING: dict[str, Any] = {
    "epochs": 12,
    "patience": 20,
    "evaluate_every": 6,
    "embedding_dim": 8,
    "batch_size": 256,
    "block_users": 16,
    "negatives": 8,
    "learning_rate": 0.02,
    "init_std": 0.1,
}
PAPER = {"temperature": 0.2, "embedding_dim": 8, "epochs": 2, "learning_rate": 0.05, "batch_size": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "blocks": ("hdccf", {"user_vector": "free", "user_side": 0.0, "start": "random"}),
    "paper": ("hdccf", {**MODELS["hdccf"].presets["paper-in-batch"], **PAPER}),
    "block bpr": ("bpr", {"sampler": "block"}),
    "bpr": ("bpr", {}),
    "ssm": ("ssm", {"sampler": "popularity", "start": "random"}),
    "pmf": ("pmf", {}),
    "lightgcn": ("lightgcn", {"layers": 1}),
    "enmf": ("enmf", {"learning_rate": 0.1}),
    "als": ("als", {}),
}
"""Every way to solve for a free vector."""


def settings_for(kind: str) -> Settings:
    name, values = KINDS[kind]
    entry = MODELS[name].settings
    known = {key: value for key, value in LEARNING.items() if key in entry.model_fields}
    return entry(**{**known, **values})


@pytest.fixture(scope="module")
def world() -> Split:
    made = synthetic_world(1500, n_users=120, n_items=60, liked=0.3, strength=3.0, exposure=0.0, seed=3)
    return leave_one_out(made.interactions)


def ndcg(scorer: Any, split: Split) -> float:
    return Ranker(split, "test").measure(scorer, ("ndcg@10",), ("full",))["full"]["ndcg@10"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_is_told_from_the_rest_as_well_as_by_a_trained_vector(kind: str, world: Split) -> None:
    """The share of (own item, other item) that a user's scores have in the right order."""
    settings = settings_for(kind)
    epochs = {"epochs": 4} if "epochs" in type(settings).model_fields and kind != "enmf" else {}
    fitted = fit(world, settings.changed(**epochs))
    own = torch.from_numpy(world.train.matrix.toarray()).bool()

    def right(scores: torch.Tensor) -> float:
        each = [(row[had][:, None] > row[~had]).double().mean() for row, had in zip(scores, own, strict=True)]
        return float(torch.stack(each).mean())

    users = torch.arange(world.n_users)
    folded = fitted.model.users_from(world.train).score_block(users)
    assert right(folded) > right(fitted.model.scorer().score_block(users)) - 0.02
    assert right(folded) > 0.6


@pytest.mark.parametrize("kind", ["blocks", "ssm"])
def test_users_left_out_of_training_are_folded_in_nearly_as_good_as_trained(kind: str, world: Split) -> None:
    settings = settings_for(kind)
    left_out = np.arange(0, world.n_users, 3)

    def rest(part: Interactions) -> Interactions:
        return part.subset(~np.isin(part.users, left_out))

    without = Split(rest(world.train), rest(world.validation), rest(world.test), "predefined", {})
    asked = Split(
        world.train,
        world.validation,
        world.test.subset(np.isin(world.test.users, left_out)),
        "predefined",
        {},
    )
    trained = fit(world, settings)
    strangers = fit(without, settings)
    theirs = world.train.subset(np.isin(world.train.users, left_out))
    folded = strangers.model.users_from(theirs)
    popular = ndcg(fit(world, MODELS["most-popular"].settings()).model.scorer(), asked)
    before, after = ndcg(trained.model.scorer(), asked), ndcg(folded, asked)
    # Forty users leave much noise; the figure for real data is in docs/answers.md.
    assert after > 0.8 * before
    assert after > popular


@pytest.mark.parametrize("name", ["history", "attention", "ease", "most-popular"])
def test_where_a_user_is_a_history_new_and_known_are_the_same(name: str) -> None:
    settings = MODELS[name].settings() if name in MODELS else quick(name, epochs=1)
    fitted = fit(small_split(), settings)
    again = fitted.model.users_from(fitted.split.train)
    users = torch.arange(40)
    assert again.score_block(users).equal(fitted.score_block(users))
    assert fitted.model.users_are_histories == (name != "most-popular")


def test_als_solves_as_its_library_does() -> None:
    settings = MODELS["als"].settings(embedding_dim=6, alpha=3.0, l2=0.5, recency_half_life=2.0)
    fitted = fit(small_split(), settings)
    known = fitted.model.scorer()
    again = fitted.model.users_from(fitted.split.train)
    assert isinstance(known, VectorScorer)
    assert isinstance(again, VectorScorer)
    # With fading histories the library solves for the users once more at the end, items frozen.
    torch.testing.assert_close(again.users.embedding, known.users.embedding, rtol=2e-2, atol=2e-3)


def test_a_squared_loss_is_at_its_least_where_it_is_solved(world: Split) -> None:
    """ENMF without dropout: its own loss, summed over all pairs, has no slope at the solution."""
    settings = MODELS["enmf"].settings(embedding_dim=4, epochs=5, keep_probability=1.0, negative_weight=0.2)
    fitted = fit(world, settings)
    scorer = fitted.model.users_from(world.train)
    assert isinstance(scorer, VectorScorer)
    p = scorer.users.embedding.double().requires_grad_()
    observed = torch.from_numpy(world.train.matrix.toarray()).bool()
    scores = p @ scorer.items.embedding.double().T
    loss = (torch.where(observed, (1 - scores) ** 2, 0.2 * scores**2)).sum()
    (slope,) = torch.autograd.grad(loss, p)
    assert float(slope.abs().max()) < 1e-4


# -- the losses, literally -----------------------------------------------------------------------------------


def small_scored(seed: int = 0) -> tuple[ScoredRows, set[tuple[int, int]]]:
    """Three rows, five columns, in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(3, 5, generator=generator, dtype=torch.float64) * 2 - 1
    pairs = [(0, 1), (0, 3), (1, 0), (2, 1), (2, 2), (2, 4)]
    rows, places = (torch.tensor(x) for x in zip(*pairs, strict=True))
    inclusion = torch.tensor([1.0, 1.0, 1.0, 2.5, 2.5], dtype=torch.float64)
    return ScoredRows(scores, rows, places, inclusion.log(), torch.arange(5)), set(pairs)


@pytest.mark.parametrize("size", [None, 7.0])
@pytest.mark.parametrize("omega", [0.0, 0.02])
def test_the_contrastive_loss_of_new_rows_is_equation_14_without_users(
    size: float | None, omega: float
) -> None:
    scored, observed = small_scored()
    tau, weight = 0.4, 0.7
    weights = torch.tensor([0.5, 2.0, 1.0, 1.5, 0.3], dtype=torch.float64)
    loss = ContrastiveRows(weights.log(), tau, weight, omega, -1.0, size, masked=True)
    expected = []
    f = scored.scores.tolist()
    stands_for = (weights * scored.log_inclusion.exp()).tolist()
    for row, place in zip(scored.rows.tolist(), scored.places.tolist(), strict=True):
        free = [c for c in range(5) if (row, c) not in observed]
        left = sum(stands_for[c] for c in free)
        q = left if size is None else size
        biased = q * sum(stands_for[c] * math.exp(f[row][c] / tau) for c in free) / left
        own = [c for c in range(5) if (row, c) in observed]
        mean = sum(math.exp(f[row][c] / tau) for c in own) / len(own)
        debiased = max((biased - q * omega * mean) / (1 - omega), q * math.exp(-1 / tau))
        positive = math.exp(f[row][place] / tau)
        expected.append(-math.log(positive / (positive + weight * debiased)))
    assert_equal(loss(scored), expected)


@pytest.mark.parametrize("name", ["bpr", "pointwise"])
def test_pairs_meet_every_unobserved_column_as_often_as_it_would_be_drawn(name: str) -> None:
    scored, observed = small_scored(1)
    chances = torch.tensor([1.0, 3.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    loss = PairRows(PAIR_LOSSES[name], 4, chances.log(), 0.0)
    f = scored.scores.tolist()
    stands_for = (chances * scored.log_inclusion.exp()).tolist()
    expected = []
    for row, place in zip(scored.rows.tolist(), scored.places.tolist(), strict=True):
        free = [c for c in range(5) if (row, c) not in observed]
        total = sum(stands_for[c] for c in free)
        each = {c: stands_for[c] / total for c in free}
        if name == "bpr":
            value = sum(share * math.log1p(math.exp(f[row][c] - f[row][place])) for c, share in each.items())
        else:
            value = math.log1p(math.exp(-f[row][place]))
            value += 4 * sum(share * math.log1p(math.exp(f[row][c])) for c, share in each.items())
        expected.append(value)
    assert_equal(loss(scored), expected)


def test_a_new_user_does_not_depend_on_who_is_solved_beside(world: Split) -> None:
    settings = settings_for("blocks")
    fitted = fit(world, settings.changed(epochs=2))
    assert isinstance(fitted.model, HDCCFModel)
    together = fitted.model.users_from(world.train).score_block(torch.tensor([7]))
    only = world.train.subset(world.train.users == 7)
    alone = fitted.model.users_from(only).score_block(torch.tensor([7]))
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)


def test_large_catalogues_are_solved_against_a_draw(world: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for("blocks")
    fitted = fit(world, settings)
    whole = fitted.model.users_from(world.train)
    monkeypatch.setattr("hdccf.models.fold_in.COLUMNS", 40)
    monkeypatch.setattr(ContrastiveRows, "rows_at_once", 1)
    drawn = fitted.model.users_from(world.train)
    assert not drawn.score_block(torch.arange(9)).equal(whole.score_block(torch.arange(9)))
    assert ndcg(drawn, world) > 0.85 * ndcg(whole, world)


def test_solving_leaves_the_model_as_it_was(world: Split) -> None:
    settings = settings_for("paper")
    fitted = fit(world, settings.changed(epochs=1))
    before = {name: x.clone() for name, x in fitted.model.state_dict().items()}
    assert isinstance(fitted.model, HDCCFModel)
    for parameter in fitted.model.parameters():
        parameter.grad = None
    fitted.model.users_from(world.train.subset(world.train.users < 5))
    assert all(x.equal(before[name]) for name, x in fitted.model.state_dict().items())
    assert all(parameter.grad is None for parameter in fitted.model.parameters())


def test_rows_without_pairs_have_no_vector(world: Split) -> None:
    settings = settings_for("bpr")
    fitted = fit(world, settings.changed(epochs=1))
    model, known = fitted.model, fitted.model.scorer()
    assert isinstance(model, PairModel)
    assert isinstance(known, VectorScorer)
    events = interactions([(0, 3), (2, 5)], n_users=4, n_items=60)
    solved = solve(known, PairRows(model.loss, 1, None, 0.0), events, torch.ones(2), of_users=True)
    assert solved.embedding[[1, 3]].eq(0).all()
    assert solved.embedding[[0, 2]].ne(0).any(1).all()


# -- new items, and known users without training -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocks", "bpr", "als", "history"])
def test_a_new_item_finds_the_users_of_an_item_that_has_the_same_ones(kind: str, world: Split) -> None:
    """Half of an item's users, given as a new item's, find the other half above chance."""
    settings = (
        quick("history", epochs=12, embedding_dim=8, block_users=16)
        if kind == "history"
        else settings_for(kind)
    )
    fitted = fit(world, settings)
    train = world.train
    items = np.argsort(-train.by_item.degrees)[:10]
    lists, others = [], []
    for item in items:
        users = train.user_ids.gather(train.by_item.of(int(item))).to_list()
        lists.append(users[::2])
        others.append(set(users[1::2]))
    found = fitted.users_for_new_items(lists, k=10)
    hits = [
        len(others[number] & set(rows["user"].to_list())) / 10
        for (number,), rows in found.group_by("list", maintain_order=True)
    ]
    chance = np.mean([len(some) for some in others]) / world.n_users
    assert np.mean(hits) > 1.3 * chance
    assert not set(lists[0]) & set(found.filter(pl.col("list") == 0)["user"])


def test_known_users_without_training_pairs_are_folded_in_from_their_events() -> None:
    data = small_split().train
    split = predefined_split(data.subset(data.users >= 3), None, data.subset(data.users < 3))
    fitted = fit(split, quick("block", epochs=5))
    cold = int(fitted.users.codes(["u1"])[0])
    had = split.test.item_ids.gather(split.test.by_user.of(cold)).to_list()
    known = fitted.recommend(["u1"], k=5)
    assert known["item"].to_list() == fitted.recommend_for_items([had], k=5)["item"].to_list()
    warm = torch.from_numpy(fitted.users.codes(["u9"]))
    assert fitted.scorer().score_block(warm).equal(fitted.score_block(warm))


@pytest.mark.parametrize("name", ["neumf", "random", "svdpp"])
def test_models_that_cannot_say_which_can(name: str) -> None:
    values = {"epochs": 1, "embedding_dim": 4}
    kind = MODELS[name].settings
    fitted: Recommender = fit(
        small_split(), kind(**{key: value for key, value in values.items() if key in kind.model_fields})
    )
    with pytest.raises(
        ConfigError, match=r"cannot take a new user's list of items; those that can are chebycf, ease, "
    ):
        fitted.recommend_for_items([[100]])
    with pytest.raises(ConfigError, match=r"cannot take a new item's .*; those that can are hdccf, "):
        fitted.users_for_new_items([["u1"]])

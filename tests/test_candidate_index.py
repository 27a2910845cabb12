"""The best of a catalogue: exactly, and through an index that proposes what f then puts in order."""

from typing import Any

import numpy as np
import pytest
import torch

from graphs import interactions, small_split
from hdccf.data.graph import Neighbours
from hdccf.data.split import predefined_split
from hdccf.errors import ConfigError
from hdccf.models import MODELS
from hdccf.models.base import VectorScorer
from hdccf.recommend import candidates as index_module
from hdccf.recommend.candidates import Best, Codes, Index, Points, Wanted, exact_best
from hdccf.recommend.recommender import Recommender
from hdccf.similarity import Cosine, Dot, Euclidean, Modulated, Popular, Similarity, Vectors, unit
from hdccf.training.fit import fit
from training import quick

N_USERS, N_ITEMS = 12, 900

SIMILARITIES: dict[str, Similarity] = {
    "cosine": Cosine(),
    "dot": Dot(),
    "euclidean": Euclidean(),
    "popular": Popular(),
    "modulated": Modulated(6, generator=torch.Generator().manual_seed(0)),
    "modulated, not normalised": Modulated(6, normalise=False, generator=torch.Generator().manual_seed(0)),
}


def scorer_of(similarity: Similarity) -> VectorScorer:
    """Vectors of all lengths, so that a dot product and a cosine differ."""
    generator = torch.Generator().manual_seed(1)
    users, items = torch.randn(N_USERS, 6, generator=generator), torch.randn(N_ITEMS, 6, generator=generator)
    lengths = 0.2 + torch.rand(N_ITEMS, 1, generator=generator)
    return VectorScorer(similarity, Vectors(users, users), Vectors(items * lengths, items))


def seen(share: float) -> Neighbours:
    rng = np.random.default_rng(0)
    pairs = [(int(u), int(i)) for u, i in np.argwhere(rng.random((N_USERS, N_ITEMS)) < share)]
    return Neighbours.of(interactions(pairs, n_users=N_USERS, n_items=N_ITEMS).by_user, N_ITEMS)


def together(found: Any) -> Best:
    return Best(*(torch.cat(parts) for parts in zip(*found, strict=True)))


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_what_the_index_proposes_and_f_orders_is_what_is_exact(name: str) -> None:
    scorer = scorer_of(SIMILARITIES[name])
    index = Index(scorer)
    rows = torch.tensor([3, 0, 3, 11])
    wanted = Wanted(10, seen(0.02), None)
    exact = together(exact_best(scorer, rows, wanted))
    found = together(index.best(scorer, rows, wanted))
    assert found.rows.equal(rows)
    same = (exact.items.unsqueeze(2) == found.items.unsqueeze(1)).any(2).double().mean()
    assert same > (0.8 if "modulated" in name else 0.9)
    assert index.recall > (0.8 if "modulated" in name else 0.95)
    torch.testing.assert_close(found.scores, scorer.score_rows(rows, found.items))


def test_the_recall_is_that_of_the_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEWEST", 10)
    monkeypatch.setattr(index_module, "_FOUND", 0.5)
    scorer = scorer_of(SIMILARITIES["modulated, not normalised"])
    index = Index(scorer)
    rows = torch.arange(N_USERS)
    exact = together(exact_best(scorer, rows, Wanted(10, None, None)))
    proposed = index.propose(scorer, rows, index.proposals)
    assert 10 <= index.proposals < 200
    share = np.mean(
        [len({*a} & {*b}) / 10 for a, b in zip(exact.items.tolist(), proposed.tolist(), strict=True)]
    )
    assert index.recall == pytest.approx(share)
    assert 0 < index.recall < 1  # the modulation is not in the index
    assert f"recall@10 {index.recall:.3f} against exact scoring with {index.proposals} pro" in repr(index)


def test_who_has_had_nearly_everything_still_gets_what_is_left() -> None:
    scorer = scorer_of(Dot())
    index = Index(scorer)
    wanted = Wanted(15, seen(0.99), None)
    assert wanted.seen is not None
    rows = torch.arange(N_USERS)
    exact, found = (together(x) for x in (exact_best(scorer, rows, wanted), index.best(scorer, rows, wanted)))
    assert found.scores.isneginf().equal(exact.scores.isneginf())
    assert found.items[~found.scores.isneginf()].equal(exact.items[~exact.scores.isneginf()])


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_only_what_is_allowed_comes_through_the_index(share: float) -> None:
    scorer = scorer_of(Cosine())
    allowed = torch.rand(N_ITEMS, generator=torch.Generator().manual_seed(2)) < share
    wanted = Wanted(20, None, allowed)
    rows = torch.arange(N_USERS)
    exact, found = (
        together(x) for x in (exact_best(scorer, rows, wanted), Index(scorer).best(scorer, rows, wanted))
    )
    assert allowed[found.items].all()
    assert (exact.items == found.items).double().mean() > 0.9


def test_a_recommender_takes_the_index_above_the_limit_only(capsys: pytest.CaptureFixture[str]) -> None:
    trained = fit(small_split(), quick("block", epochs=1))
    exact = trained.recommend(["u1", "u4"], k=5)
    assert capsys.readouterr().err == ""
    for limit, used in ((29, True), (30, False)):
        again = Recommender(trained.model, trained.settings, trained.split, seed=0, index_above=limit)
        found = again.recommend(["u1", "u4"], k=5)
        assert found.drop("score").equals(exact.drop("score"))
        assert (again.index is not None) == used
        assert ("index of 30 items, built in" in capsys.readouterr().err) == used
        new = again.recommend_for_items([[100, 101]], k=5)
        assert new.drop("score").equals(trained.recommend_for_items([[100, 101]], k=5).drop("score"))


def test_without_vectors_there_is_nothing_to_index() -> None:
    trained = fit(predefined_split(small_split().train), MODELS["ease"].settings())
    asked = Recommender(trained.model, trained.settings, trained.split, seed=0, index_above=10)
    with pytest.raises(ConfigError, match=r"^ease has no item vectors to index; leave out index_above=10$"):
        asked.recommend(["u1"])


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"needs faiss; install it with: pip install 'hdccf\[index\]'$"):
        Index(scorer_of(Dot()))


def test_nobody_is_proposed_nothing() -> None:
    scorer = scorer_of(Dot())
    index = Index(scorer)
    assert index.propose(scorer, torch.arange(0), 5).shape == (0, 5)
    assert not len(together(index.best(scorer, torch.arange(0), Wanted(3, seen(0.1), None))).rows)


@pytest.mark.parametrize("similarity", [Dot(), Cosine()])
def test_items_that_nobody_has_had_lead_no_search_astray(similarity: Similarity) -> None:
    generator = torch.Generator().manual_seed(3)
    users, items = (torch.randn(n, 32, generator=generator) for n in (50, 6000))
    items[:60] = 0.0  # as of items without training pairs: no distance to anybody is as small
    scorer = VectorScorer(similarity, Vectors(users, users), Vectors(items, items))
    assert Index(scorer).recall > 0.9


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_one_user_gets_what_they_get_among_many(name: str, indexed: bool) -> None:
    scorer, had = scorer_of(SIMILARITIES[name]), seen(0.1)
    scorer.users.embedding[3] = 0.0  # nobody's direction
    best = Index(scorer).best if indexed else exact_best
    wanted = Wanted(9, had, None)
    everybody = together(best(scorer, torch.arange(N_USERS), wanted))
    for row in (0, N_USERS - 1) if indexed else (0, 3, N_USERS - 1):
        alone = together(best(scorer, torch.tensor([row]), wanted))
        torch.testing.assert_close(alone.scores[0], everybody.scores[row])
        # Each item with its own score, and none that they have had.
        torch.testing.assert_close(scorer.score_rows(alone.rows, alone.items), alone.scores)
        assert not had.contains(torch.full((9,), row), alone.items[0]).any()


def test_items_too_short_for_anybody_are_not_looked_at() -> None:
    generator = torch.Generator().manual_seed(4)
    users, items = (torch.randn(n, 8, generator=generator) for n in (400, 5000))
    items[500:] *= 0.01
    for similarity, at_most in ((Dot(), 1000), (Cosine(), 5000)):
        scorer = VectorScorer(similarity, Vectors(users, users), Vectors(items, items))
        index = Index(scorer)
        proposed = index.propose(scorer, torch.arange(5), 5000)
        assert proposed.shape[1] <= at_most
        assert index.recall > 0.97
    assert proposed.shape[1] == 5000  # of a cosine no item is short


def test_items_are_scanned_from_the_best_liked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = scorer_of(Cosine())
    given: list[Points] = []

    class Watched(Codes):
        def __init__(self, points: Points, *, distances: bool) -> None:
            given.append(points)
            super().__init__(points, distances=distances)

    monkeypatch.setattr(index_module, "Codes", Watched)
    Index(scorer)
    users, items = (unit(x.embedding).numpy() for x in (scorer.users, scorer.items))
    liked = (items @ users.T).mean(1)
    assert (given[0] @ users.T).mean(1).tolist() == pytest.approx(sorted(liked, reverse=True), abs=1e-6)


@pytest.mark.parametrize("name", ["cosine", "dot", "popular"])
def test_products_of_points_are_the_scores(name: str) -> None:
    scorer = scorer_of(SIMILARITIES[name])
    users, items = scorer.users.embedding, scorer.items.embedding
    products = scorer.similarity.user_points(users) @ scorer.similarity.item_points(items).T
    torch.testing.assert_close(products, scorer.score_block(torch.arange(N_USERS)))

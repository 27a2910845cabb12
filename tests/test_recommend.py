"""A trained model answering: under the user's own ids, best first, without what they have seen."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from graphs import interactions, small_split
from hdccf import recommend
from hdccf.data.interactions import Interactions
from hdccf.data.prepare import leave_one_out
from hdccf.data.split import PARTS, Split
from hdccf.errors import ConfigError, DataError, RunError
from hdccf.models.reference import MostPopular
from hdccf.recommend import Recommender, load_run
from hdccf.trainer import fit
from training import quick


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    return fit(small_split(), quick(epochs=5))


def test_the_best_unseen_items_come_best_first(fitted: Recommender) -> None:
    train = fitted.split.train
    found = fitted.recommend(["u7", "u0", "u39"], k=4)
    assert found.columns == ["user", "rank", "item", "score"]
    assert found["user"].to_list() == ["u7"] * 4 + ["u0"] * 4 + ["u39"] * 4
    assert found["rank"].to_list() == [1, 2, 3, 4] * 3
    for user in (7, 0, 39):
        scores = fitted.score_block(torch.tensor([user]))[0].numpy().copy()
        for part in PARTS:
            scores[fitted.split.part(part).by_user.of(user)] = -np.inf
        best = np.argsort(-scores)[:4]
        mine = found.filter(pl.col("user") == f"u{user}")
        assert mine["item"].to_list() == [int(train.item_ids[int(item)]) for item in best]
        np.testing.assert_allclose(mine["score"], scores[best], rtol=1e-5)


def test_seen_items_appear_only_where_asked_for(fitted: Recommender) -> None:
    train = fitted.split.train
    everything = fitted.recommend(["u3"], k=30, include_seen=True)
    assert sorted(everything["item"].to_list()) == sorted(train.item_ids.to_list())
    unseen = fitted.recommend(["u3"], k=30)
    # What is held out from training is not held out from the user, who has had it.
    parts = [fitted.split.part(part).by_user.of(3) for part in PARTS]
    assert all(len(part) for part in parts)
    seen = {int(train.item_ids[int(item)]) for part in parts for item in part}
    assert set(unseen["item"].to_list()) == set(train.item_ids.to_list()) - seen
    assert unseen["rank"].to_list() == list(range(1, len(unseen) + 1))


def test_more_than_there_is_gives_all_that_there_is(fitted: Recommender) -> None:
    train = fitted.split.train
    had = sum(len(fitted.split.part(part).by_user.of(3)) for part in PARTS)
    assert len(fitted.recommend(["u3"], k=10_000)) == train.n_items - had
    assert len(fitted.recommend(["u3"], k=10_000, include_seen=True)) == train.n_items


def test_nobody_gets_nothing_and_twice_gets_it_twice(fitted: Recommender) -> None:
    nothing = fitted.recommend([], k=3)
    once = fitted.recommend(["u1"], k=3)
    assert len(nothing) == 0
    assert nothing.schema == once.schema
    twice = fitted.recommend(pl.Series(["u1", "u1"]), k=3)
    assert twice.drop("score").equals(pl.concat([once, once]).drop("score"))


def test_users_are_answered_in_parts_as_at_once(fitted: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    users = [f"u{user}" for user in range(40)]
    at_once = fitted.recommend(users, k=5)
    monkeypatch.setattr(recommend, "_ROWS_AT_ONCE", 100)
    in_parts = fitted.recommend(users, k=5)
    assert in_parts.drop("score").equals(at_once.drop("score"))
    np.testing.assert_allclose(in_parts["score"], at_once["score"], rtol=1e-5)


def test_an_unknown_user_is_named_with_examples_of_known_ones(fitted: Recommender) -> None:
    with pytest.raises(
        DataError, match=r"^user 'nobody' is not in the training data; known are for example \['u0"
    ):
        fitted.recommend(["u1", "nobody"])
    with pytest.raises(ConfigError, match=r"^users='u1' is one id; give a list of them, as in \['u1'\]$"):
        fitted.recommend("u1")
    for k in (0, -3):
        with pytest.raises(ConfigError, match=f"^k={k} recommends nothing; ask for 1 or more$"):
            fitted.recommend(["u1"], k=k)


def with_ids(user_ids: pl.Series, titles: pl.Series | None = None) -> Split:
    data = interactions([(u, i) for u in range(3) for i in range(u, u + 3)], n_items=6)
    return leave_one_out(
        Interactions(data.users, data.items, data.times, data.counts, user_ids, data.item_ids, titles)
    )


def test_integers_and_their_texts_are_the_same_user() -> None:
    integers = fit(with_ids(pl.Series([196, 22, -5])), MostPopular())
    expected = integers.recommend([22, -5], k=2)
    assert expected["user"].to_list() == [22, 22, -5, -5]
    assert integers.recommend(["22", "-5"], k=2).equals(expected)
    assert integers.recommend(np.array([22, -5]), k=2).equals(expected)
    assert integers.recommend(pl.Series([22, -5]), k=2).equals(expected)
    for wrong in ("x", None, "22.5", 23, "1e400"):
        with pytest.raises(DataError, match="is not in the training data"):
            integers.recommend([wrong])
    texts = fit(with_ids(pl.Series(["196", "022", "é"])), MostPopular())
    assert texts.recommend([196, "é"], k=1)["user"].to_list() == ["196", "é"]
    with pytest.raises(DataError, match="user 22 is not in"):
        texts.recommend([22])


def test_titles_come_along_where_there_are_any() -> None:
    titles = pl.Series([f"Film {k}" for k in range(6)])
    found = fit(with_ids(pl.Series(["a", "b", "c"]), titles), MostPopular()).recommend(["a"], k=2)
    assert found["title"].to_list() == [f"Film {item - 100}" for item in found["item"]]


def test_somebody_who_has_seen_everything_gets_nothing() -> None:
    split = leave_one_out(interactions([(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]))
    full = Split(split.train, split.validation.subset(np.zeros(0, int)), split.train, "predefined", {})
    fitted = fit(full, MostPopular())
    everything = fitted.recommend(["u0", "u1"], k=4, include_seen=True)
    assert len(everything) == 8
    seen = {user: len(full.train.by_user.of(user)) for user in (0, 1)}
    counts = fitted.recommend(["u0", "u1"], k=4)["user"].value_counts()
    assert dict(counts.iter_rows()) == {f"u{user}": 4 - n for user, n in seen.items()}


def test_a_run_answers_as_the_model_that_was_trained(tmp_path: Path) -> None:
    trained = fit(small_split(), quick("modulated", epochs=1), seed=2, out=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    users = torch.arange(40)
    assert loaded.score_block(users).equal(trained.score_block(users))
    assert loaded.recommend(["u4"]).equals(trained.recommend(["u4"]))
    assert (loaded.seed, loaded.name, loaded.path) == (2, "hdccf", tmp_path / "run")
    assert loaded.settings == trained.settings
    assert "hdccf, seed 2" in repr(loaded)


def test_a_model_that_was_not_kept_has_no_folder(fitted: Recommender) -> None:
    with pytest.raises(RunError, match="was not kept in a folder; fit it with out="):
        _ = fitted.path

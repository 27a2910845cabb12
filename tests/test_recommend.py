"""A trained model answering: under the user's own ids, best first, without what they have seen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graphs import interactions, small_split
from hdccf.data.interactions import Interactions
from hdccf.data.split import PARTS, Split, leave_one_out
from hdccf.errors import ConfigError, DataError, HdccfError, RunError
from hdccf.models.calibration import ItemFilter
from hdccf.models.reference import MostPopular
from hdccf.recommend import candidates
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.training.fit import fit
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
        scores = fitted.scorer("all").score_block(torch.tensor([user]))[0].numpy().copy()
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
    monkeypatch.setattr(candidates, "SCORES_AT_ONCE", 100)
    in_parts = fitted.recommend(users, k=5)
    assert in_parts.drop("score").equals(at_once.drop("score"))
    np.testing.assert_allclose(in_parts["score"], at_once["score"], rtol=1e-5)


def test_known_users_are_answered_by_all_of_their_events_and_evaluated_by_the_training_part(
    fitted: Recommender,
) -> None:
    """The latest items, held out from training, speak loudest when the user asks."""
    users = torch.arange(40)
    trained, answered = fitted.score_block(users), fitted.scorer().score_block(users)
    assert trained.equal(fitted.scorer("train").score_block(users))
    assert not torch.allclose(trained, answered, atol=1e-3)
    longer = Split(fitted.events, fitted.split.validation, fitted.split.test, "predefined", {})
    with_all = Recommender(fitted.model, fitted.settings, longer, seed=0)
    assert with_all.scorer().score_block(users).equal(answered)
    parts = fitted.split.joined("train", "validation")
    without_test = fitted.model.known_users(fitted.split.train, parts).score_block(users)
    assert fitted.scorer("validation").score_block(users).equal(without_test)
    assert not without_test.equal(trained)
    assert not without_test.equal(answered)
    by_training = fitted.recommend(["u3"], k=1, history="train")
    code = fitted.items.find(by_training["item"][0])
    assert code is not None
    assert by_training["score"][0] == pytest.approx(float(trained[3, code]))
    with pytest.raises(
        ConfigError, match=r"^history='later' is unknown; choose one of \['all', 'validation', 'train'\]$"
    ):
        fitted.recommend(["u3"], history="later")


def test_events_are_all_parts_in_order_of_time(fitted: Recommender) -> None:
    split, events = fitted.split, fitted.events
    for user in range(40):
        expected = [item for part in PARTS for item in split.part(part).by_user.of(user)]
        assert events.by_user.of(user).tolist() == expected
    untimed = fit(small_split(timed=False), MostPopular()).events
    assert untimed.times is None
    assert untimed.by_user.of(5)[-1] == small_split(timed=False).test.by_user.of(5)[0]


def test_items_are_allowed_and_denied(fitted: Recommender) -> None:
    everything = fitted.recommend(["u3", "u8"], k=30)
    some = [100, 103, 110, 111, 120]
    only = fitted.recommend(["u3", "u8"], k=30, allow=some)
    wanted = everything.filter(pl.col("item").is_in(some))
    assert only.select("user", "item").equals(wanted.select("user", "item"))
    assert len(wanted) > 2
    rest = fitted.recommend(["u3", "u8"], k=30, deny=[*map(str, some), "no such item"])
    wanted = everything.filter(~pl.col("item").is_in(some))
    assert rest.select("user", "item").equals(wanted.select("user", "item"))
    both = fitted.recommend(["u3"], k=30, allow=some, deny=some[1:], include_seen=True)
    assert both["item"].to_list() == [100]
    assert fitted.recommend(["u3"], allow=some, deny=some).is_empty()
    with pytest.raises(DataError, match=r"^none of the allowed items is in the catalogue"):
        fitted.recommend(["u3"], allow=["x", 5])
    with pytest.raises(ConfigError, match=r"^items='100' is one id; give a list of them"):
        fitted.recommend(["u3"], deny="100")


def test_somebody_new_is_answered_like_somebody_known_with_the_same_history(fitted: Recommender) -> None:
    events = fitted.events
    for user in (0, 11):
        had = events.item_ids.gather(events.by_user.of(user)).to_list()
        known = fitted.recommend([f"u{user}"], k=6).drop("user")
        new = fitted.recommend_for_items([had], k=6)
        assert new["list"].unique().to_list() == [0]
        assert new.drop("list", "score").equals(known.drop("score"))
        np.testing.assert_allclose(new["score"], known["score"], rtol=1e-5)
        turned = fitted.recommend_for_items([had[::-1]], k=6)
        assert not np.allclose(turned["score"], known["score"], rtol=1e-3)  # the last is the latest


def test_lists_are_answered_together_and_a_repeat_counts_once(fitted: Recommender) -> None:
    lists: list[Any] = [[100, 104], ["101"], [102, 105, 102], pl.Series([107])]
    together = fitted.recommend_for_items(lists, k=2)
    assert together["list"].to_list() == [0, 0, 1, 1, 2, 2, 3, 3]
    for number, some in enumerate(lists):
        alone = fitted.recommend_for_items([some], k=2)
        assert alone["item"].to_list() == together.filter(pl.col("list") == number)["item"].to_list()
    once = fitted.recommend_for_items([[102, 105]], k=2)
    assert once["item"].to_list() == together.filter(pl.col("list") == 2)["item"].to_list()
    assert 100 not in fitted.recommend_for_items([[100]], k=30)["item"]
    assert 100 in fitted.recommend_for_items([[100]], k=30, include_seen=True)["item"]
    assert fitted.recommend_for_items([]).is_empty()


def test_lists_that_say_nothing_are_refused(fitted: Recommender) -> None:
    with pytest.raises(DataError, match=r"^list 1 is empty, and an empty history says nothing; leave it out"):
        fitted.users_for_new_items([["u1"], []])
    with pytest.raises(DataError, match=r"^item 'x' is not in the catalogue; known are for example \[100, "):
        fitted.recommend_for_items([["x"]])
    with pytest.raises(ConfigError, match=r"^give a list of lists, one for each of the new users"):
        fitted.recommend_for_items(["100", "101"])
    with pytest.raises(DataError, match=r"^user 'x' is not in the training data"):
        fitted.users_for_new_items([["x"]])


def test_an_empty_history_gets_popular_items_and_is_marked(fitted: Recommender) -> None:
    found = fitted.recommend_for_items([[100, 104], []], k=3)
    assert found["source"].to_list() == ["model"] * 3 + ["popular"] * 3
    degrees = fitted.events.by_item.degrees
    codes = fitted.items.codes(found.filter(pl.col("list") == 1)["item"].to_list())
    assert sorted(degrees[codes], reverse=True) == sorted(degrees, reverse=True)[:3]
    assert found["score"][3] == degrees.max()
    alone = fitted.recommend_for_items([[100, 104]], k=3)
    assert found.filter(pl.col("list") == 0)["item"].to_list() == alone["item"].to_list()
    assert "source" not in alone.columns


def test_unknown_users_are_refused_left_out_or_get_popular_items(fitted: Recommender) -> None:
    users = ["u3", "nobody", "u1"]
    with pytest.raises(DataError, match=r"^user 'nobody' is not in the training data"):
        fitted.recommend(users)
    both = fitted.recommend(["u3", "u1"], k=2)
    skipped = fitted.recommend(users, k=2, unknown="skip")
    assert skipped.drop("source", "score").equals(both.drop("score"))
    popular = fitted.recommend(users, k=2, unknown="popular")
    assert popular["user"].to_list() == ["u3", "u3", "nobody", "nobody", "u1", "u1"]
    assert popular["source"].to_list() == ["model"] * 2 + ["popular"] * 2 + ["model"] * 2
    assert popular["rank"].to_list() == [1, 2] * 3
    with pytest.raises(ConfigError, match=r"^unknown='ignore' is not possible; choose one of \['error', "):
        fitted.recommend(users, unknown="ignore")
    integers = fit(with_ids(pl.Series([196, 22, -5])), MostPopular())
    assert integers.recommend([22, "7"], k=1, unknown="popular")["user"].to_list() == [22, 7]
    assert integers.recommend([22, "x"], k=1, unknown="popular")["user"].to_list() == ["22", "x"]


@pytest.mark.parametrize("kind", ["history", "attention", "block"])
def test_fresh_items_count_as_the_end_of_the_history(kind: str) -> None:
    """With history vectors as for a user with the longer history; free vectors are folded in."""
    model = fit(small_split(), quick(kind, epochs=2))
    had = model.events.item_ids.gather(model.events.by_user.of(4)).to_list()
    new = [item for item in model.split.train.item_ids if item not in had][:2]
    found = model.recommend(["u4", "u5"], k=5, fresh=[new, []])
    longer = model.recommend_for_items([[*had, *new]], k=5)
    mine = found.filter(pl.col("user") == "u4")
    assert mine["item"].to_list() == longer["item"].to_list()
    np.testing.assert_allclose(mine["score"], longer["score"], rtol=1e-5)
    assert not set(new) & set(mine["item"])
    other = model.recommend(["u5"], k=5)
    assert found.filter(pl.col("user") == "u5")["item"].to_list() == other["item"].to_list()
    # A repeat counts once, where it came first: nothing changes.
    again = model.recommend(["u4"], k=5, fresh=[had[:1]])
    assert again["item"].to_list() == model.recommend(["u4"], k=5)["item"].to_list()
    new_user = model.recommend(["nobody"], k=5, fresh=[new])
    assert new_user["item"].to_list() == model.recommend_for_items([new], k=5)["item"].to_list()
    pair = model.score(["u4"], [mine["item"][0]], fresh=[new])
    assert pair["score"][0] == pytest.approx(mine["score"][0], rel=1e-5)
    explained = model.explain("u4", [mine["item"][0]], top=30, fresh=new)
    assert set(new) <= set(explained.parts["because"])
    with pytest.raises(ConfigError, match=r"^fresh has 1 lists for 2 users; give one for each"):
        model.recommend(["u4", "u5"], fresh=[new])


def test_fresh_items_reach_the_item_filter(fitted: Recommender) -> None:
    calibration = replace(
        fitted.calibration, filter_weight=5.0, item_filter=ItemFilter.of(fitted.split.train)
    )
    model = Recommender(fitted.model, fitted.settings, fitted.split, seed=0, calibration=calibration)
    had = model.events.item_ids.gather(model.events.by_user.of(4)).to_list()
    new = [item for item in model.split.train.item_ids if item not in had][:2]
    found = model.recommend(["u4"], k=5, fresh=[new])
    expected = model.recommend_for_items([[*had, *new]], k=5)
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5)
    plain = fitted.recommend(["u4"], k=5, fresh=[new])
    assert not np.allclose(found["score"], plain["score"], rtol=1e-2)


def test_pairs_are_scored_in_their_order(fitted: Recommender) -> None:
    found = fitted.score(["u3", "u0", "u3"], [105, 100, 101])
    assert found["user"].to_list() == ["u3", "u0", "u3"]
    assert found["item"].to_list() == [105, 100, 101]
    expected = fitted.scorer().score_block(torch.arange(40))[[3, 0, 3], [5, 0, 1]]
    np.testing.assert_allclose(found["score"], expected, rtol=1e-5)
    assert fitted.score([], []).is_empty()
    with pytest.raises(ConfigError, match=r"^1 users and 2 items make no pairs; give as many of both$"):
        fitted.score(["u3"], [100, 101])


def test_everybody_is_written_to_a_file_as_they_are_answered(
    fitted: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdccf.recommend.recommender._USERS_AT_ONCE", 7)
    path = tmp_path / "recs.parquet"
    fitted.recommend_all(path, k=4, deny=[105])
    expected = fitted.recommend([f"u{user}" for user in range(40)], k=4, deny=[105])
    written = pl.read_parquet(path)
    assert written.drop("score").equals(expected.drop("score"))
    np.testing.assert_allclose(written["score"], expected["score"], rtol=1e-5)
    with pytest.raises(HdccfError, match=r"recs.parquet exists; "):
        fitted.recommend_all(path, k=1)
    assert pl.read_parquet(path).equals(written)
    fitted.recommend_all(path, k=1, overwrite=True)
    assert len(pl.read_parquet(path)) == 40
    fitted.recommend_all(tmp_path / "recs.csv", k=1)
    fitted.recommend_all(tmp_path / "recs.JSONL", k=1)
    best = pl.read_parquet(path).drop("score")
    assert pl.read_csv(tmp_path / "recs.csv").drop("score").equals(best.cast({"rank": pl.Int64}))
    assert pl.read_ndjson(tmp_path / "recs.JSONL").drop("score").equals(best.cast({"rank": pl.Int64}))
    with pytest.raises(ConfigError, match=r"is no Parquet, CSV or JSON Lines file; give a name that ends in"):
        fitted.recommend_all(tmp_path / "recs.xlsx")


def test_a_file_that_could_not_be_finished_is_not_there(
    fitted: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdccf.recommend.recommender._USERS_AT_ONCE", 7)
    asked = 0
    real = Recommender._of_users

    def fails_later(*arguments: Any) -> pl.DataFrame:
        nonlocal asked
        asked += 1
        if asked == 4:
            raise DataError("the scores went bad")
        return real(*arguments)

    monkeypatch.setattr(Recommender, "_of_users", fails_later)
    with pytest.raises(DataError, match=r"^the scores went bad$"):
        fitted.recommend_all(tmp_path / "recs.parquet", k=1)
    assert not list(tmp_path.glob("*recs*"))


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


def with_ids(user_ids: pl.Series) -> Split:
    data = interactions([(u, i) for u in range(3) for i in range(u, u + 3)], n_items=6)
    return leave_one_out(
        Interactions(data.users, data.items, data.times, data.counts, user_ids, data.item_ids)
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

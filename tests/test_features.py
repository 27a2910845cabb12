"""Item features: filters by attributes, vectors of items without interactions, and diverse lists."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graphs import small_split, tastes
from hdccf.config import EvaluationOptions
from hdccf.data.split import Split, leave_one_out
from hdccf.errors import ConfigError, DataError, SourceError
from hdccf.evaluation import evaluate
from hdccf.models import MODELS
from hdccf.models.calibration import ItemFilter
from hdccf.models.factorization import BPR
from hdccf.recommend.candidates import Best, Index, diversified
from hdccf.recommend.dial import diversity_curve
from hdccf.recommend.features import Column, read_items
from hdccf.recommend.recommender import Recommender, load_run
from hdccf.similarity import SIMILARITIES
from hdccf.training.fit import fit
from training import quick

COLD = (124, 125, 126, 127)


def items_table() -> pl.DataFrame:
    """Items 100 to 129: what the users of `tastes` choose by, and more."""
    numbers = range(30)
    return pl.DataFrame(
        {
            "item": [100 + n for n in numbers],
            "parity": ["odd" if n % 2 else "even" for n in numbers],
            "price": [float(n) for n in numbers],
            "tags": [["even" if n % 2 == 0 else "odd", f"t{n % 5}"] for n in numbers],
            "in_stock": [n % 3 == 0 for n in numbers],
        }
    )


@pytest.fixture(scope="module")
def warm() -> Split:
    """Events of the items but the last; the cold ones have none and are not in the catalogue."""
    data = tastes(each=12)
    cold = np.isin(data.item_ids.to_numpy(), COLD)
    return leave_one_out(data.subset(~cold[data.items]).compact())


@pytest.fixture(scope="module")
def fitted(warm: Split) -> Recommender:
    return fit(warm, quick("block", epochs=20, embedding_dim=8))


@pytest.fixture(scope="module")
def featured(fitted: Recommender) -> Recommender:
    return fitted.with_features(items_table())


def test_cold_items_are_recommended_to_those_who_like_such_items(
    fitted: Recommender, featured: Recommender
) -> None:
    assert fitted.n_items == 26
    assert featured.n_items == 30
    users = [f"u{user}" for user in range(40)]
    best = featured.recommend(users, k=2, allow=COLD)
    # Users like items of their own parity.
    right = [int(user[1:]) % 2 == item % 2 for user, item in best.select("user", "item").rows()]
    assert np.mean(right) > 0.9
    similar = featured.similar_items([124], k=5)
    assert sum(item % 2 == 0 for item in similar["similar"]) >= 4
    # By the mean cosine: two vectors that are means are less alike than their directions are.
    scale = featured.calibration.item_scale
    assert scale is not None
    assert float(scale[26:].max()) < 1
    among = featured.similar_items([126], k=29).filter(pl.col("similar") == 124)["score"][0]
    assert among <= float(scale[featured.items.codes([124])[0]]) + 1e-5
    # A cold item is part of a history like any other.
    new = featured.recommend_for_items([[125]], k=6)["item"].to_list()
    assert sum(item % 2 == 1 for item in new) >= 4
    assert "u3" in featured.users.ids


@pytest.mark.parametrize("settings", [quick("history"), quick("popular"), quick("modulated"), BPR(epochs=2)])
def test_scores_of_known_items_are_as_they_were(warm: Split, settings: Any) -> None:
    """Of any similarity; and a cold item's score is that of the mean of its points."""
    model = fit(warm, settings)
    found = model.with_features(items_table())
    known = torch.from_numpy(found.items.codes(model.split.train.item_ids))
    users = torch.arange(40)
    torch.testing.assert_close(found.scorer().score_block(users)[:, known], model.scorer().score_block(users))
    assert torch.isfinite(found.scorer().score_block(users)).all()


@pytest.mark.parametrize("name", ["cosine", "popular", "dot"])
def test_rows_of_points_give_products_with_them(name: str) -> None:
    similarity = SIMILARITIES[name]()
    generator = torch.Generator().manual_seed(0)
    points, users = torch.randn(5, 4, generator=generator), torch.randn(3, 4, generator=generator)
    rows, scale = similarity.item_rows(points)
    from hdccf.similarity import Vectors

    scores = similarity.all_pairs(Vectors(users, users), Vectors(rows, rows))
    scores = scores if scale is None else scores * scale
    torch.testing.assert_close(scores, similarity.user_points(users) @ points.T)


def test_frequency_and_filter_of_cold_items_are_means_of_others(warm: Split) -> None:
    model = fit(warm, quick("block", epochs=5))
    filtered = ItemFilter.of(warm.train)
    calibration = replace(model.calibration, popularity=0.5, filter_weight=0.5, item_filter=filtered)
    model = Recommender(model.model, model.settings, warm, seed=0, calibration=calibration)
    found = model.with_features(items_table()).calibration
    assert found.item_filter is not None
    assert found.item_filter.weights.shape == (30, 30)
    np.testing.assert_allclose(found.item_filter.weights[:26, :26].toarray(), filtered.weights.toarray())
    # With fewer than a hundred items the mean is over all of them.
    column = found.item_filter.weights[:26, [28]].toarray()[:, 0]
    np.testing.assert_allclose(column, filtered.weights.toarray().mean(1), rtol=1e-5)
    cold = found.log_frequency[26:]
    assert torch.all((cold > found.log_frequency[:26].min()) & (cold < found.log_frequency[:26].max()))


def test_a_run_keeps_its_items_and_evaluation_does_without(warm: Split, tmp_path: Path) -> None:
    trained = fit(warm, quick("history", epochs=2), out=tmp_path / "run")
    given = trained.with_features(items_table())
    loaded = load_run(tmp_path / "run")
    users = [f"u{user}" for user in range(5)]
    assert loaded.recommend(users, k=20).equals(given.recommend(users, k=20))
    assert loaded.recommend(users, where={"parity": "odd"})["item"].len() > 0
    assert load_run(tmp_path / "run", items=False).n_items == 26
    (tmp_path / "run" / "items.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(
        Exception, match=r"^the item features of .*run are damaged .*; give them again with: "
    ):
        load_run(tmp_path / "run")


def test_items_are_added_without_training(featured: Recommender) -> None:
    new = [{"id": 900, "parity": "even", "tags": ["even"]}, {"id": 100, "price": 77.0}]
    grown = featured.with_items(new)
    assert grown.n_items == 31
    shown = grown.recommend(["u2", "u3"], k=31, include_seen=True, allow=[900, 124, 125])
    scores = {(user, item): score for user, item, score in shown.select("user", "item", "score").rows()}
    assert scores["u2", 900] > scores["u3", 900]
    assert grown.recommend(["u2"], k=1, where={"price": 77}, include_seen=True)["item"].to_list() == [100]
    no_tags = grown.with_items([{"id": 901, "price": 1.5}])
    found = no_tags.recommend(["u2"], k=40, where={"tags": "t3"}, include_seen=True)
    assert set(found["item"]) == set(range(103, 130, 5))
    again = grown.with_items([{"id": 900, "parity": "odd", "tags": ["odd"]}])
    turned = again.recommend(["u2"], k=31, include_seen=True, allow=[900])["score"][0]
    assert turned < scores["u2", 900]
    for wrong in ({"id": "x"}, {"id": 901, "price": "cheap"}, {"id": 901, "tags": "no list"}):
        with pytest.raises(
            DataError, match=r"^the new items do not fit the items file \(.*\); give columns of"
        ):
            featured.with_items([wrong])


def test_attributes_filter_what_is_recommended(featured: Recommender) -> None:
    def found(**where: Any) -> set[int]:
        shown = featured.recommend(["u1"], k=30, include_seen=True, where=where)
        return {item - 100 for item in shown["item"]}

    assert found(parity="odd") == set(range(1, 30, 2))
    assert found(parity=["odd", "even"]) == set(range(30))
    assert found(tags="t3") == set(range(3, 30, 5))
    assert found(price=7) == {7}
    assert found(price="7") == {7}
    assert found(in_stock=True, parity="odd") == {3, 9, 15, 21, 27}
    assert found(in_stock="true", parity="odd") == {3, 9, 15, 21, 27}
    assert found(parity="neither") == set()
    with pytest.raises(
        ConfigError, match=r"^items have no attribute 'colour'; choose one of \['parity', 'price'"
    ):
        found(colour="red")
    with pytest.raises(ConfigError, match=r"^price is a number, and \['cheap'\] is none; give a number$"):
        found(price="cheap")
    plain = fit(small_split(), quick(epochs=1))
    with pytest.raises(
        ConfigError, match=r"^the run has no item attributes; give it some with: hdccf items RUN"
    ):
        plain.recommend(["u1"], where={"parity": "odd"})
    with pytest.raises(ConfigError, match=r"^the run has no item features to learn from"):
        plain.with_items([{"id": 1}])


def test_a_model_without_item_vectors_gets_filters_only(
    warm: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fit(warm, MODELS["ease"].settings()).with_features(items_table())
    assert (
        "EASE cannot represent an item by its features; those that can are hdccf" in capsys.readouterr().err
    )
    assert model.n_items == 26
    found = model.recommend(["u1"], k=30, include_seen=True, where={"parity": "odd"})
    assert {item % 2 for item in found["item"]} == {1}


def test_columns_become_numbers_by_their_kind() -> None:
    frame = pl.DataFrame(
        {
            "price": [1.0, 3.0, None],
            "kind": ["a", "b", "a"],
            "tags": [["x"], ["x", "y"], None],
            "vector": [[1.0, 0.0], [0.0, 1.0], None],
            "text": [f"word{n} common words" for n in range(3)],
        }
    )
    learnt = {name: Column.learn(frame[name]) for name in frame.columns}
    kinds = {name: column.kind for name, column in learnt.items()}
    assert kinds["price"] == "number"
    assert (kinds["kind"], kinds["tags"], kinds["vector"]) == ("category", "list", "vector")
    assert kinds["text"] == "category"  # so few different ones are no text
    np.testing.assert_allclose(learnt["price"].encode(frame).toarray()[:, 0], [-1, 1, 0])
    np.testing.assert_allclose(learnt["kind"].encode(frame).toarray(), [[1, 0], [0, 1], [1, 0]])
    np.testing.assert_allclose(learnt["tags"].encode(frame).toarray(), [[1, 0], [1, 1], [0, 0]])
    root = math.sqrt(1.5)
    assert learnt["vector"].encode(frame).toarray() == pytest.approx(
        np.array([[root, 0.0], [0.0, root], [0.0, 0.0]])
    )
    unseen = pl.DataFrame({"kind": ["c"], "tags": [["y", "z"]]})
    assert learnt["kind"].encode(unseen).toarray().tolist() == [[0, 0]]
    assert learnt["tags"].encode(unseen).toarray().tolist() == [[0, 1]]
    assert learnt["price"].encode(unseen).toarray().tolist() == [[0]]
    long = pl.Series("text", [f"word{n} of the text" for n in range(100)])
    text = Column.learn(long)
    assert text.kind == "text"
    row = Column(**text.model_dump()).encode(pl.DataFrame({"text": ["word7 of text unseen"]})).toarray()[0]
    assert row[text.terms.index("word7")] > row[text.terms.index("text")] > 0
    assert np.linalg.norm(row) == pytest.approx(1.0)
    with pytest.raises(DataError, match=r"^column 'v' has vectors with entries that are no finite numbers"):
        Column.learn(pl.Series("v", [[1.0, float("nan")]]))
    with pytest.raises(DataError, match=r"^column 'vector' has vectors of 3 numbers; give 2$"):
        learnt["vector"].encode(pl.DataFrame({"vector": [[1.0, 2.0, 3.0]]}))


def test_items_are_read_from_files(tmp_path: Path) -> None:
    frame = pl.DataFrame({"sku": ["a", "b", "a"], "price": [1, 2, 3]})
    frame.write_csv(tmp_path / "items.csv")
    frame.write_parquet(tmp_path / "items.parquet")
    frame.write_ndjson(tmp_path / "items.jsonl")
    for ending in ("csv", "parquet", "jsonl"):
        found = read_items(tmp_path / f"items.{ending}")
        assert found.rows() == [("b", 2), ("a", 3)]  # the last row of an item counts
        assert found.columns == ["id", "price"]
    assert read_items(frame, item="price")["id"].to_list() == [1, 2, 3]
    with pytest.raises(SourceError, match=r"items.txt cannot be read \(.*\); give Parquet, CSV, TSV"):
        read_items(tmp_path / "items.txt")
    with pytest.raises(
        SourceError, match=r"^the data frame: no column is plainly the item's id, of \['price'\]"
    ):
        read_items(frame.select("price"))
    with pytest.raises(DataError, match=r"^0 items of the table have interactions, of 10 that are needed; "):
        fit(small_split(), quick(epochs=1)).with_features(pl.DataFrame({"id": [1, 2], "price": [1.0, 2.0]}))


# -- diversity -----------------------------------------------------------------------------------------------


def literal_mmr(scores: list[float], alike: list[list[float]], k: int, d: float) -> list[int]:
    """Carbonell and Goldstein's definition, one candidate at a time."""
    low, high = min(scores), max(scores)
    chosen: list[int] = []
    while len(chosen) < min(k, len(scores)):
        best, most = -1, -math.inf
        for place, score in enumerate(scores):
            if place in chosen:
                continue
            near = max((alike[place][other] for other in chosen), default=0.0)
            gain = (1 - d) * (score - low) / (high - low) - d * near
            if gain > most:
                best, most = place, gain
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("d", [0.0, 0.3, 0.7, 1.0])
def test_lists_are_chosen_as_the_definition_says(d: float) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(4, 12, generator=generator).sort(1, descending=True).values
    vectors = torch.nn.functional.normalize(torch.randn(50, 3, generator=generator), dim=1)
    items = torch.stack([torch.randperm(50, generator=generator)[:12] for _ in range(4)])
    found = diversified(
        Best(torch.arange(4), items, scores), 6, d, lambda some: vectors[some] @ vectors[some].mT
    )
    for row in range(4):
        alike = (vectors[items[row]] @ vectors[items[row]].T).tolist()
        expected = literal_mmr(scores[row].tolist(), alike, 6, d)
        assert found.items[row].tolist() == items[row][expected].tolist()
        assert found.scores[row].tolist() == scores[row][expected].tolist()


def test_places_without_candidates_stay_empty() -> None:
    scores = torch.tensor([[0.9, 0.5, -torch.inf, -torch.inf]])
    best = Best(torch.tensor([0]), torch.tensor([[3, 1, 0, 0]]), scores)
    found = diversified(best, 3, 0.5, lambda some: torch.zeros(*some.shape, some.shape[1]))
    assert found.items[0, :2].tolist() == [3, 1]
    assert found.scores[0, 2].isneginf()


def test_more_diversity_gives_less_similar_lists(fitted: Recommender) -> None:
    users = [f"u{user}" for user in range(40)]
    plain = fitted.recommend(users, k=4)
    assert fitted.recommend(users, k=4, diversity=0.0).equals(plain)

    def alike(diversity: float) -> float:
        found = fitted.recommend(users, k=4, diversity=diversity)
        lists = torch.from_numpy(fitted.items.codes(found["item"])).view(40, 4)
        return float(fitted.between_items(lists).mean())

    assert alike(0.0) > alike(0.5) > alike(1.0)
    with pytest.raises(ConfigError, match=r"^diversity=1.5 is not possible; give a number from 0 to 1$"):
        fitted.recommend(users, diversity=1.5)
    ease = fit(fitted.split, MODELS["ease"].settings())
    assert len(ease.recommend(users, k=4, diversity=0.5)) == 160


def test_the_curve_begins_with_the_usual_accuracy(fitted: Recommender, tmp_path: Path) -> None:
    options = EvaluationOptions(ks=(5,))
    curve = diversity_curve(fitted, options)
    usual = evaluate(fitted, fitted.split, protocols=("full",), ks=(5,)).values["full"]
    first, last = curve.rows[0], curve.rows[-1]
    assert first["ndcg"] == pytest.approx(usual["ndcg@5"])
    assert first["similarity"] == pytest.approx(usual["similarity@5"])
    assert first["coverage"] == pytest.approx(usual["coverage@5"])
    assert last["similarity"] < first["similarity"]
    assert "| 0.5 |" in curve.to_markdown()
    curve.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_an_index_knows_the_lengths_of_cold_items(featured: Recommender) -> None:
    scorer = featured.scorer()
    index = Index(scorer, featured.calibration.log_frequency)
    assert index.recall == 1.0


def test_a_refitted_model_with_features_is_saved_whole_and_not_evaluated_by_what_it_has_seen(
    tmp_path: Path,
) -> None:
    table = pl.DataFrame({"id": range(100, 132), "parity": [n % 2 for n in range(32)]})
    plain = fit(tastes(), quick("block"))
    featured = plain.with_features(table)
    with pytest.raises(ConfigError, match="refitted on all events and then given item features"):
        evaluate(featured, featured.split, ks=(10,))
    featured.save(tmp_path / "run")
    opened = load_run(tmp_path / "run")
    assert opened.n_items == featured.n_items == 32
    assert opened.recommend(["u1"]).equals(featured.recommend(["u1"]))
    assert opened.recommend(["u1"], where={"parity": 1})["item"].to_list()
    found = evaluate(load_run(tmp_path / "run", items=False), plain.split, ks=(10,))
    assert found.values == evaluate(plain, plain.split, ks=(10,)).values

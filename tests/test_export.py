"""Vectors and vocabularies as files: what they hold gives the model's scores without the model."""

import json
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

from graphs import small_split
from hdccf.errors import ConfigError
from hdccf.models import MODELS
from hdccf.models.calibration import ItemFilter
from hdccf.recommend.recommender import Recommender
from hdccf.training.fit import fit
from training import quick


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    return fit(small_split(), quick("history", epochs=1))


def unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / lengths)


def test_parquet_gives_the_scores_again(fitted: Recommender, tmp_path: Path) -> None:
    fitted.export(tmp_path / "out")
    users, items = (pl.read_parquet(tmp_path / "out" / f"{kind}.parquet") for kind in ("users", "items"))
    assert users["id"].to_list() == fitted.split.train.user_ids.to_list()
    assert items["id"].to_list() == fitted.split.train.item_ids.to_list()
    assert items.columns == ["id", "vector", "history_vector", "point"]
    scores = unit(users["vector"].to_numpy()) @ unit(items["vector"].to_numpy()).T
    expected = fitted.scorer().score_block(torch.arange(40)).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert (meta["model"], meta["similarity"], meta["history"]) == ("hdccf", "cosine", "all")
    assert meta["contents"]["items"] == {"vector": [30, 4], "history_vector": [30, 4], "point": [30, 4]}


def test_numpy_holds_the_same_and_nothing_is_pickled(fitted: Recommender, tmp_path: Path) -> None:
    fitted.export(tmp_path / "a")
    fitted.export(tmp_path / "b", file_format="numpy")
    held = {file.stem: np.load(file, allow_pickle=False) for file in (tmp_path / "b").glob("*.npy")}
    names = ["items_history_vector", "items_id", "items_point", "items_vector"]
    assert sorted(held) == [*names, "users_id", "users_point", "users_vector"]
    assert held["users_id"].tolist() == fitted.split.train.user_ids.to_list()
    assert held["items_id"].tolist() == fitted.split.train.item_ids.to_list()
    frame = pl.read_parquet(tmp_path / "a" / "users.parquet")
    np.testing.assert_array_equal(held["users_vector"], frame["vector"].to_numpy())


def test_weights_between_items_and_separate_factors_are_exported(tmp_path: Path) -> None:
    ease = fit(small_split(), MODELS["ease"].settings())
    ease.export(tmp_path / "ease")
    weights = pl.read_parquet(tmp_path / "ease" / "items.parquet")["weights"].to_numpy()
    np.testing.assert_array_equal(weights, ease.model.state_dict()["weights"])
    assert pl.read_parquet(tmp_path / "ease" / "users.parquet").columns == ["id"]
    modulated = fit(small_split(), quick("modulated", epochs=1))
    modulated.export(tmp_path / "modulated", file_format="numpy")
    held = np.load(tmp_path / "modulated" / "users_factors.npy")
    np.testing.assert_array_equal(held, modulated.model.state_dict()["users.factors"])


def test_what_cannot_be_exported_is_said(fitted: Recommender, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^format='csv' is unknown; choose one of \['parquet', 'numpy', 'onnx'\]$"
    ):
        fitted.export(tmp_path / "out", file_format="csv")
    popular = fit(small_split(), MODELS["most-popular"].settings())
    with pytest.raises(ConfigError, match=r"^most-popular has neither vectors nor weights to export; "):
        popular.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def calibrated(kind: str, *, filtered: bool = False) -> Recommender:
    """With a popularity dial, and a filter where asked for."""
    model = fit(small_split(), quick(kind, epochs=2))
    item_filter = ItemFilter.of(model.split.train) if filtered else None
    found = replace(model.calibration, popularity=0.7, filter_weight=0.5, item_filter=item_filter)
    return Recommender(model.model, model.settings, model.split, seed=0, calibration=found)


@pytest.mark.parametrize("kind", ["history", "popular", "block"])
def test_an_onnx_graph_and_faiss_give_the_models_answers(kind: str, tmp_path: Path) -> None:
    model = calibrated(kind)
    model.export(tmp_path / "graph", file_format="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "graph" / "scores.onnx")
    users = np.array([3, 0, 39])
    (scores,) = session.run(None, {"users": users})
    expected = model.scorer().score_block(torch.from_numpy(users)).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    ids = pl.read_parquet(tmp_path / "graph" / "items.parquet")["id"]
    assert ids.to_list() == model.split.train.item_ids.to_list()
    model.export(tmp_path / "vectors")
    frames = [pl.read_parquet(tmp_path / "vectors" / f"{name}.parquet") for name in ("users", "items")]
    asked, items = (frame["point"].to_numpy() for frame in frames)
    index = faiss.IndexFlatIP(items.shape[1])
    index.add(np.ascontiguousarray(items))
    _, found = index.search(np.ascontiguousarray(asked[[3]]), 5)
    own = model.recommend(["u3"], k=5, include_seen=True)
    assert [ids[int(item)] for item in found[0]] == own["item"].to_list()


def test_a_filter_is_left_out_of_points_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = calibrated("block", filtered=True)
    model.export(tmp_path / "graph", file_format="onnx")
    assert "item–item filter of the run is no product" in capsys.readouterr().err
    assert json.loads((tmp_path / "graph" / "meta.json").read_text())["left_out"] == "item–item filter"


@pytest.mark.parametrize("name", ["modulated", "ease"])
def test_what_is_no_product_is_no_onnx_graph(name: str, tmp_path: Path) -> None:
    settings = MODELS["ease"].settings() if name == "ease" else quick(name, epochs=1)
    with pytest.raises(
        ConfigError, match=r"are no products of two vectors, .*; export --format parquet, or serve"
    ):
        fit(small_split(), settings).export(tmp_path / "out", file_format="onnx")
    assert not (tmp_path / "out").exists()

"""What is alike, and by what: the model's own f, vectors, weights, or the data."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphs import small_split
from hdccf.config import Settings
from hdccf.errors import ConfigError, DataError
from hdccf.models import MODELS
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.similar import relation
from hdccf.similarity import Cosine, Similarity, Vectors
from hdccf.training.fit import fit
from training import quick

SETTINGS: dict[str, Settings] = {
    "relations": quick("in-batch", similarity="modulated", factors="separate", epochs=1),
    "vectors": quick("history", epochs=1),
    "weights": MODELS["ease"].settings(),
    "neither": MODELS["most-popular"].settings(),
}


@pytest.fixture(scope="module")
def fitted() -> dict[str, Recommender]:
    return {name: fit(small_split(), settings) for name, settings in SETTINGS.items()}


def expected_items(name: str, recommender: Recommender) -> NDArray[np.floating[Any]]:
    """All pairs of items, the slow way."""
    model = recommender.model
    if name == "weights":
        weights: NDArray[np.float32] = model.state_dict()["weights"].numpy()
        return weights
    if name == "neither":
        observed = recommender.events.matrix.toarray()
        lengths = np.sqrt((observed**2).sum(0))
        cosines: NDArray[np.float32] = (observed.T @ observed) / np.maximum(np.outer(lengths, lengths), 1)
        return cosines
    assert isinstance(model, HDCCFModel)
    similarity: Similarity | None = model.item_item if name == "relations" else Cosine()
    assert similarity is not None
    vectors = model.items.all()
    rows = [
        similarity.matching(Vectors(vectors.embedding[[i]], vectors.factors[[i]]), vectors) for i in range(30)
    ]
    return torch.stack(rows).detach().numpy()


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("relations", "the model's own f(i, i′)"),
        ("vectors", "cosine of the item vectors"),
        ("weights", "EASE's weights: what having had the one adds to the other's score"),
        ("neither", "shared users in the data (cosine), as the model itself compares no items"),
    ],
)
def test_items_alike(fitted: dict[str, Recommender], name: str, stated: str) -> None:
    recommender = fitted[name]
    scores = expected_items(name, recommender)
    np.fill_diagonal(scores, -np.inf)
    found = recommender.similar_items([104, "120"], k=5)
    assert found.columns == ["item", "rank", "similar", "score"]
    assert found["item"].to_list() == [104] * 5 + [120] * 5
    assert found["rank"].to_list() == [1, 2, 3, 4, 5] * 2
    for item, rows in ((4, found[:5]), (20, found[5:])):
        np.testing.assert_allclose(rows["score"], np.sort(scores[item])[::-1][:5], rtol=1e-4, atol=1e-6)
        picked = rows["similar"].to_numpy() - 100
        np.testing.assert_allclose(scores[item, picked], rows["score"], rtol=1e-4, atol=1e-6)
    assert recommender.relation("items").stated == stated


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("relations", "the model's own f(u, u′)"),
        ("vectors", "cosine of the user vectors"),
        ("weights", "shared items in the data (cosine), as the model itself compares no users"),
    ],
)
def test_users_alike(fitted: dict[str, Recommender], name: str, stated: str) -> None:
    recommender = fitted[name]
    found = recommender.similar_users(["u7"], k=39)
    assert recommender.relation("users").stated == stated
    assert sorted(found["similar"].to_list()) == sorted({f"u{user}" for user in range(40)} - {"u7"})
    assert found["score"].is_sorted(descending=True)


def test_more_than_there_are_and_nothing(fitted: dict[str, Recommender]) -> None:
    recommender = fitted["vectors"]
    assert len(recommender.similar_items([100], k=1000)) == 29
    assert recommender.similar_items([], k=3).is_empty()
    with pytest.raises(ConfigError, match=r"^k=0 asks for nothing"):
        recommender.similar_items([100], k=0)
    with pytest.raises(DataError, match="item 5 is not in the catalogue"):
        recommender.similar_items([5])


@pytest.mark.parametrize("name", ["relations", "weights"])
def test_what_compares_is_made_once(fitted: dict[str, Recommender], name: str) -> None:
    items, users = (fitted[name].relation(kind) for kind in ("items", "users"))
    assert fitted[name].relation("items") is items
    assert fitted[name].relation("users") is users is not items


def test_popularity_makes_no_two_items_alike() -> None:
    recommender = fit(small_split(), quick("popular", epochs=1))
    model = recommender.model
    assert isinstance(model, HDCCFModel)
    found = []
    for popularity in (torch.zeros(30), torch.arange(30.0)):
        with torch.no_grad():
            model.items.embedding[:, -1] = popularity
        alike = relation(model, model.scorer(), recommender.events, "items")
        found.append(alike.to_all(torch.arange(30)))
    assert found[0].equal(found[1])

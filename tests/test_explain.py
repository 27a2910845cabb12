"""Reasons add up to what they say they add up to, and their agreement with f is measured."""

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from graphs import small_split
from hdccf.config import FitOptions, Settings
from hdccf.data.split import Split
from hdccf.errors import ConfigError, DataError
from hdccf.models import MODELS
from hdccf.recommend import explain
from hdccf.recommend.recommender import Recommender
from hdccf.training.fit import fit
from training import quick

EXACT: dict[str, Settings] = {
    "history": quick("history", epochs=2),
    "shared table": quick("history", epochs=1, history_table="shared"),
    "dot": quick("history", epochs=1, similarity="dot"),
    "modulated": quick("history", epochs=1, similarity="modulated", factors="separate"),
    "ease": MODELS["ease"].settings(l2=10.0, recency_half_life=2.0),
}
APPROXIMATE: dict[str, Settings] = {
    "attention": quick("attention", epochs=2),
    "free": quick("block", epochs=5),
    "free, popular": quick("popular", epochs=2),
    "free, modulated": quick("modulated", epochs=1),
    "euclidean": quick("history", epochs=1, similarity="euclidean"),
    "bpr": MODELS["bpr"].settings(epochs=1, embedding_dim=4, batch_size=64),
    "neumf": MODELS["neumf"].settings(epochs=1, embedding_dim=4),
}


def parts_of_everything(fitted: Recommender, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The surrogate's parts of all items, and f."""
    surrogate = explain.surrogate_for(fitted.model, fitted.scorer(), fitted.events, row, fitted.events)
    own = fitted.events.by_user.of(row)
    assert sorted(surrogate.own.tolist()) == sorted(own.tolist())
    f = fitted.scorer().score_block(torch.tensor([row]))[0]
    if surrogate.shift is not None:
        f = f - surrogate.shift
    return surrogate.parts(torch.arange(30)).numpy(), f.numpy()


@pytest.mark.parametrize("name", sorted(EXACT))
def test_where_a_user_is_a_sum_the_parts_add_up_to_the_score(name: str) -> None:
    fitted = fit(small_split(), EXACT[name])
    for row in (0, 13):
        parts, f = parts_of_everything(fitted, row)
        np.testing.assert_allclose(parts.sum(0), f, rtol=1e-4, atol=1e-5)
        assert fitted.explain(f"u{row}").agreement == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", sorted(APPROXIMATE))
def test_otherwise_how_far_the_order_is_the_same_is_measured(name: str) -> None:
    fitted = fit(small_split(), APPROXIMATE[name], options=FitOptions(calibrate=False))
    parts, f = parts_of_everything(fitted, 5)
    candidates = np.setdiff1d(np.arange(30), fitted.events.by_user.of(5))
    found = fitted.explain("u5", k=2)
    expected = kendalltau(parts.sum(0)[candidates], f[candidates]).statistic
    assert found.agreement == pytest.approx(expected)
    assert -1 <= found.agreement <= 1
    assert found.surrogate


def test_a_free_vector_is_the_nearest_sum_of_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit(small_split(), APPROXIMATE["free"])
    # Four dimensions and eight items: most vectors are such a sum exactly, and the order is the same.
    agreements = [fitted.explain(f"u{row}").agreement for row in range(40)]
    assert np.median(agreements) > 0.8
    monkeypatch.setattr(explain, "CANDIDATES_COMPARED", 10)
    assert np.isfinite(fitted.explain("u5").agreement)


def test_reasons_are_the_greatest_parts_with_their_shares() -> None:
    fitted = fit(small_split(), EXACT["history"])
    parts, f = parts_of_everything(fitted, 9)
    found = fitted.explain("u9", [103, "108"], top=3).parts
    assert found.columns == ["item", "score", "because", "contribution", "share"]
    assert found["item"].to_list() == [103] * 3 + [108] * 3
    for item, rows in ((3, found[:3]), (8, found[3:])):
        np.testing.assert_allclose(rows["contribution"], np.sort(parts[:, item])[::-1][:3], rtol=1e-5)
        speaking = parts[:, item].clip(min=0).sum()
        np.testing.assert_allclose(rows["share"], rows["contribution"] / speaking, rtol=1e-5)
        np.testing.assert_allclose(rows["score"], f[item], rtol=1e-5)
    everything = fitted.explain("u9", [103], top=100).parts
    assert everything.filter(everything["share"] > 0)["share"].sum() == pytest.approx(1)
    assert set(everything["because"]) == {100 + int(item) for item in fitted.events.by_user.of(9)}


def test_somebody_new_gets_reasons_too() -> None:
    for settings in (EXACT["history"], APPROXIMATE["bpr"], MODELS["most-popular"].settings()):
        fitted = fit(small_split(), settings)
        found = fitted.explain_for_items([101, 105, 107], k=2, top=3)
        assert set(found.parts["because"]) <= {101, 105, 107}
        best = fitted.recommend_for_items([[101, 105, 107]], k=2)["item"].to_list()
        assert found.parts["item"].unique(maintain_order=True).to_list() == best


def test_what_cannot_be_explained_is_said() -> None:
    fitted = fit(small_split(), EXACT["ease"])
    with pytest.raises(ConfigError, match=r"^top=0 gives no reason; ask for 1 or more$"):
        fitted.explain("u1", top=0)
    with pytest.raises(DataError, match="user 'nobody' is not in the training data"):
        fitted.explain("nobody")
    with pytest.raises(DataError, match="item 7 is not in the catalogue"):
        fitted.explain("u1", [7])
    with pytest.raises(DataError, match="list 0 is empty"):
        fitted.explain_for_items([])


@pytest.mark.parametrize("kind", ["history", "ease", "free", "neumf"])
def test_who_has_had_nothing_is_told_so(kind: str) -> None:
    split = small_split()
    train, validation, test = (x.subset(x.users != 1) for x in (split.train, split.validation, split.test))
    left = Split(train, validation, test, split.method, split.facts)
    fitted = fit(left, {**EXACT, **APPROXIMATE}[kind])
    for items in (None, [103]):
        with pytest.raises(DataError, match=r"^user 'u1' has an empty history, which explains nothing$"):
            fitted.explain("u1", items)
    assert fitted.explain("u2", k=1).parts.height

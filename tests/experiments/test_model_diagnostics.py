"""Diagnostics of a trained model against loops over float64, and as the journal keeps them."""

import math
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from graphs import small_split
from hdccf.config import FitOptions
from hdccf.data.split import Split
from hdccf.experiments import diagnostics
from hdccf.experiments.diagnostics import diagnostics_of, of_false_negatives, of_modulation
from hdccf.models import MODELS
from hdccf.models.base import Model
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.reference import MostPopular
from hdccf.similarity import Modulated
from hdccf.training.fit import fit
from literal_hdccf import perceptron
from training import quick


def trained(**values: Any) -> tuple[HDCCFModel, Split]:
    """A small model over blocks, and its data."""
    split = small_split()
    found = fit(split, quick("block", **values), options=FitOptions(calibrate=False)).model
    assert isinstance(found, HDCCFModel)
    return found, split


def test_the_spread_of_the_modulation_is_that_of_its_definition() -> None:
    model, split = trained(similarity="modulated", hidden=(3,), epochs=2)
    kind = model.user_item.double()
    assert isinstance(kind, Modulated)
    g, users, items = perceptron(kind), model.all_users().factors.tolist(), model.items.all().factors.tolist()
    every = [
        [
            1 / (1 + math.exp(-z))
            for z in g([*right, *left, *(a * b for a, b in zip(right, left, strict=True))])
        ]
        for left in users
        for right in items
    ]
    assert len(every) == split.train.n_users * split.train.n_items
    model.user_item.float()
    found = of_modulation(model, split)
    assert found["modulation"] == pytest.approx(fmean(map(fmean, every)), rel=1e-5)
    assert found["modulation-spread"] == pytest.approx(
        fmean(pstdev(dimension) for dimension in zip(*every, strict=True)), rel=1e-4
    )


def _literal_shares(model: HDCCFModel, split: Split) -> list[list[float]]:
    """Of each user the share on held-out items, if all were alike, and the share on training items."""
    s, n_items = model.settings, split.train.n_items
    frequency = [max(1.0, float(n)) for n in split.train.by_item.degrees]
    found = []
    for user in range(split.train.n_users):
        scores = model.scorer().score_block(torch.tensor([user]))[0].double().tolist()
        had = set(split.train.by_user.of(user).tolist())
        later = {int(part.by_user.of(user)[0]) for part in (split.validation, split.test)}
        slopes = []
        for item in range(n_items):
            weight = frequency[item] ** (1 - s.frequency_correction)
            if s.mask_observed and item in had:
                slopes.append(0.0)
            elif s.loss == "bpr":
                slopes.append(weight * sum(1 / (1 + math.exp(scores[p] - scores[item])) for p in had))
            else:
                slopes.append(weight * math.exp(scores[item] / s.temperature))
        total = math.fsum(slopes)
        on_later = sum(slopes[item] for item in later) / total
        found.append([on_later, 2 / (n_items - len(had)), sum(slopes[item] for item in had) / total])
    return found


@pytest.mark.parametrize("changes", [
    {},
    {"frequency_correction": 0.3, "temperature": 0.15},
    {"loss": "bpr", "frequency_correction": 0.0},
    {"mask_observed": False, "similarity": "modulated"},
])  # fmt: skip
def test_the_share_on_false_negatives_is_that_of_its_definition(changes: dict[str, Any]) -> None:
    model, split = trained(**changes)
    expected = _literal_shares(model, split)
    found = of_false_negatives(model, split)
    assert list(found.values()) == pytest.approx([fmean(column) for column in zip(*expected, strict=True)])
    assert list(found) == ["on-false-negatives", "uniform-on-false-negatives", "on-training-items"]
    assert (found["on-training-items"] > 0) == ("mask_observed" in changes)


def test_bpr_s_shares_are_what_a_step_pushes_down_in_the_mean() -> None:
    """The items that a block draws by frequency count so in its gradient."""
    model, split = trained(loss="bpr", frequency_correction=0.0, block_users=40)
    scores = torch.rand(split.train.n_items, generator=torch.Generator().manual_seed(3)) - 0.5
    observed = torch.zeros(len(scores), dtype=torch.bool)
    observed[split.train.by_user.of(0).tolist()] = True
    drawn = torch.tensor(split.train.by_item.degrees).double().clamp_min(1)
    negatives = scores.double().requires_grad_()
    positives = scores[observed].double()
    each = -torch.nn.functional.logsigmoid(positives[:, None] - negatives[None, :])
    loss = (each * (drawn / drawn.sum()) * ~observed).sum()
    (gradient,) = torch.autograd.grad(loss, negatives)
    found = model.negative_shares(scores, observed)
    assert found is not None
    torch.testing.assert_close(found.shares.double(), gradient / gradient.sum(), rtol=1e-5, atol=1e-7)
    assert found.stated.endswith("by how often an item is drawn")


def test_large_data_is_looked_at_by_a_sample_that_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = trained(similarity="modulated")
    whole = diagnostics_of(model, split)
    monkeypatch.setattr(diagnostics, "PAIRS", 200)
    monkeypatch.setattr(diagnostics, "USERS", 30)
    some = diagnostics_of(model, split, seed=1)
    assert some == diagnostics_of(model, split, seed=1) != diagnostics_of(model, split, seed=2)
    assert some == pytest.approx(whole, rel=0.3)


def test_what_a_model_does_not_have_is_left_out() -> None:
    model, split = trained()
    assert of_modulation(model, split) == {}
    other: Model = MODELS["most-popular"].build(MostPopular(), split.train, torch.Generator())
    assert diagnostics_of(other, split) == {}

"""What is reported of the negatives, against loops."""

import math

import pytest
import torch
from torch import Tensor

from graphs import random_interactions
from hdccf.losses.diagnostics import describe_negatives, false_negative_rates
from hdccf.losses.negatives import NegativeSet
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.training.false_negatives import false_negative_rate

TAU = 0.4


def against(seed: int = 0) -> NegativeSet:
    """Six rows of seven negatives; the first row is all masked, the second has one left."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, 7, generator=generator, dtype=torch.float64) * 2 - 1
    log_weights = torch.randn(6, 7, generator=generator, dtype=torch.float64)
    masked = torch.rand(6, 7, generator=generator) < 0.3
    masked[0], masked[1], masked[1, 4] = True, True, False
    none = scores.new_zeros(6, 0)
    return NegativeSet(scores, log_weights.masked_fill(masked, -math.inf), None, none, none.bool())


def terms_of(given: NegativeSet) -> list[list[float]]:
    return ((given.scores / TAU).exp() * given.log_weights.exp()).tolist()


def test_masked_share_effective_number_and_hardness_are_their_definitions() -> None:
    given = against()
    report = describe_negatives(given, TAU)
    kept = [[w > -math.inf for w in row] for row in given.log_weights.tolist()]
    n_kept = sum(map(sum, kept))
    assert report["masked"] == pytest.approx(1 - n_kept / 42, abs=1e-12)
    effective = [sum(row) ** 2 / sum(term**2 for term in row) if sum(row) else 0.0 for row in terms_of(given)]
    assert effective[:2] == [0.0, pytest.approx(1.0)]
    assert report["effective-negatives"] == pytest.approx(sum(effective) / 6, rel=1e-9)
    hardness = sorted(
        score
        for scores, mask in zip(given.scores.tolist(), kept, strict=True)
        for score, keep in zip(scores, mask, strict=True)
        if keep
    )
    for percent in (50, 90, 99):
        value = report[f"hardness-{percent}"]
        below = sum(score < value for score in hardness)
        assert below <= percent / 100 * n_kept < below + 1
    assert report["hardness-50"] < report["hardness-90"] <= report["hardness-99"] == hardness[-1]


def test_a_batch_without_any_negative_has_no_hardness() -> None:
    given = against()._replace(log_weights=torch.full((6, 7), -math.inf, dtype=torch.float64))
    report = describe_negatives(given, TAU)
    assert report == {"masked": 1.0, "effective-negatives": 0.0}


def test_false_negative_rates_are_counted_and_weighted_by_gradient() -> None:
    given = against(3)
    liked: Tensor = torch.rand(6, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    liked[0] = True  # masked: they do not count
    rates = false_negative_rates(given, liked, TAU)
    kept = ~given.log_weights.isneginf()
    assert rates["false-negatives"] == pytest.approx(float((liked & kept).sum() / kept.sum()), rel=1e-6)
    shares, rows = 0.0, 0
    for terms, wrong in zip(terms_of(given), liked.tolist(), strict=True):
        if sum(terms):
            rows += 1
            shares += sum(term for term, is_liked in zip(terms, wrong, strict=True) if is_liked) / sum(terms)
    assert rows == 5
    assert rates["false-negatives-weighted"] == pytest.approx(shares / rows, rel=1e-9)


@pytest.mark.parametrize("sampler", ["in-batch", "uniform", "block", "drawn", "history"])
def test_every_kind_of_batch_can_be_diagnosed(sampler: str) -> None:
    data = random_interactions(2, 30, 40, 0.2, full=False)
    settings = HDCCF(
        user_vector="history" if sampler == "history" else "free",
        sampler="block" if sampler in ("drawn", "history") else sampler,  # type: ignore[arg-type]
        block_items=10 if sampler == "drawn" else 1000,
        batch_size=16,
        negatives=8,
        block_users=16,
        embedding_dim=4,
    )
    model = HDCCFModel(settings, data, torch.Generator().manual_seed(0))
    batch = next(iter(model.batches(torch.Generator().manual_seed(0))))
    report = model.diagnose(batch)
    assert report.keys() == {"masked", "effective-negatives", "hardness-50", "hardness-90", "hardness-99"}
    assert 0 <= report["masked"] < 1
    assert 1 <= report["effective-negatives"] <= data.n_items
    assert -1.0001 <= report["hardness-50"] <= report["hardness-99"] <= 1.0001
    if sampler == "uniform":
        assert report["masked"] == 0
    if sampler == "block":
        users = batch.users.numpy()
        density = data.by_user.degrees[users].sum() / (len(users) * data.n_items)
        assert report["masked"] == pytest.approx(density)


def test_false_negative_rates_are_those_of_the_world() -> None:
    from hdccf.data.split import leave_one_out
    from hdccf.data.synthetic import synthetic_world

    world = synthetic_world(600, n_users=120, n_items=60, liked=0.2, seed=1)
    train = leave_one_out(world.interactions).train
    users, items = world.codes_of(train)
    settings = HDCCF(user_vector="free", embedding_dim=4, block_users=50)
    model = HDCCFModel(settings, train, torch.Generator().manual_seed(0))
    batch = next(iter(model.batches(torch.Generator().manual_seed(0))))
    found = false_negative_rate(world, train)(model, batch)
    wrong = total = 0
    for user in batch.users.tolist():
        likes = world.liked([users[user]], items)[0]
        seen = set(train.by_user.of(user).tolist())
        unseen = [item for item in range(train.n_items) if item not in seen]
        wrong += sum(bool(likes[item]) for item in unseen)
        total += len(unseen)
    assert found["false-negatives"] == pytest.approx(wrong / total)
    assert 0 < found["false-negatives-weighted"] < 1

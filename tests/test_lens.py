"""The negatives lens: its formula in loops, its probabilities against a truth, its shares as gradients."""

import math
from functools import cache

import numpy as np
import pytest
import torch

import hdccf
from graphs import small_split
from hdccf import losses
from hdccf.data.split import Split
from hdccf.data.synthetic import World, synthetic_world
from hdccf.errors import ConfigError, DataError
from hdccf.models import MODELS
from hdccf.models.factorization import BPR, SSM
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.reference import MostPopular
from hdccf.recommend.lens import (
    GRID,
    TAIL,
    Lens,
    bandwidth_of,
    compared,
    estimate,
    negatives_of,
    units_of,
)
from hdccf.recommend.recommender import Recommender
from training import quick


def _literal_probability(positive: list[float], unobserved: list[float], z: float, omega: float) -> float:
    """ω·p⁺(z) / p(z) by loops, each p a mean of Gaussians."""
    mean = sum(positive) / len(positive)
    deviation = math.sqrt(sum((one - mean) ** 2 for one in positive) / len(positive))
    width = 1.06 * deviation * math.pow(len(positive), -0.2)

    def p(points: list[float]) -> float:
        bells = [math.exp(-(((z - point) / width) ** 2) / 2) for point in points]
        return sum(bells) / len(points) / (width * math.sqrt(2 * math.pi))

    return min(1.0, max(0.0, omega * p(positive) / p(unobserved)))


@pytest.mark.parametrize("omega", [0.0, 0.03, 0.9])
def test_probability_is_omega_times_the_ratio_of_densities(omega: float) -> None:
    generator = np.random.default_rng(0)
    positive, unobserved = generator.normal(1.5, 0.8, 60), generator.normal(0.0, 1.0, 300)
    lens = compared(positive, unobserved, 0.01)
    expected = [
        _literal_probability(positive.tolist(), unobserved.tolist(), float(z), omega) for z in lens.grid
    ]
    np.testing.assert_allclose(lens.probability(lens.grid, omega), expected, rtol=1e-9)
    if omega == 0.9:
        assert max(expected) == 1.0  # the clip is at work
        assert min(expected) < 0.5


def test_beyond_the_tails_the_ratio_stays_as_it_is() -> None:
    generator = np.random.default_rng(1)
    unobserved = generator.normal(0.0, 1.0, 5000)
    lens = compared(generator.normal(1.0, 1.0, 100), unobserved, 0.01)
    assert len(lens.grid) == GRID
    assert lens.grid[[0, -1]].tolist() == np.quantile(unobserved, [TAIL, 1 - TAIL]).tolist()
    ends = lens.probability(lens.grid[[0, -1]], 0.01)
    assert lens.probability(np.array([-99.0, 99.0]), 0.01).tolist() == ends.tolist()


def test_an_omega_that_is_no_probability_is_refused() -> None:
    lens = compared(np.arange(20.0), np.arange(40.0), 0.01)
    with pytest.raises(ConfigError, match=r"omega=1\.5 is no probability"):
        lens.probability(np.zeros(1), 1.5)


def test_units_are_the_users_own() -> None:
    units = units_of(np.array([1.0, 3.0]))
    assert (units.mean, units.deviation) == (2.0, 1.0)
    assert units_of(np.ones(5)).deviation == 1.0
    assert bandwidth_of(np.ones(5)) > 0


# -- against a known truth -----------------------------------------------------------------------------------


@cache
def _theorem_world() -> tuple[World, Recommender, Lens]:
    """Constant exposure, no drift: what is held out is a random part of what is liked, as is assumed."""
    world = synthetic_world(20_000, n_users=500, n_items=500, drift=0.0, seed=0)
    split = hdccf.random_split(world.interactions, seed=0)
    settings = HDCCF(user_vector="free", embedding_dim=32, temperature=0.12, user_side=0.0, epochs=15)
    model = hdccf.fit(split, settings, seed=0)
    return world, model, estimate(model, split)


def _truth(world: World, model: Recommender) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of all unobserved pairs: the user, the score in the user's units, and whether it is liked."""
    train = model.split.train
    users, items = world.codes_of(train)
    unobserved = np.ones((train.n_users, train.n_items), np.bool_)
    unobserved[train.users, train.items] = False
    scores = model.score_block(torch.arange(train.n_users)).double().numpy()
    units = np.stack([units_of(row[left]).of(row) for row, left in zip(scores, unobserved, strict=True)])
    return np.nonzero(unobserved)[0], units[unobserved], world.liked(users, items)[unobserved]


def test_probabilities_are_calibrated_where_the_truth_is_known() -> None:
    world, model, lens = _theorem_world()
    _, units, liked = _truth(world, model)
    predicted = lens.probability(units, float(liked.mean()))
    buckets = np.digitize(predicted, [0.02, 0.05, 0.1, 0.2, 0.3])
    means = []
    for bucket in np.unique(buckets):
        inside = buckets == bucket
        if inside.sum() < 400:
            continue
        said, true = float(predicted[inside].mean()), float(liked[inside].mean())
        assert true == pytest.approx(said, rel=0.2, abs=0.005)
        means.append(true)
    # It must tell items apart, not only be right on average.
    assert len(means) >= 4
    assert means[-1] > 8 * means[0]


def test_bounds_hold_the_true_omega_between_them() -> None:
    world, model, lens = _theorem_world()
    _, _, liked = _truth(world, model)
    assert lens.omega_min < float(liked.mean()) < lens.omega_max
    assert lens.omega_min < lens.omega_mid < lens.omega_max
    # At the upper bound the hardest are false for certain, and nothing is clipped.
    assert lens.probability(lens.grid, lens.omega_max).max() == pytest.approx(1.0)


def test_held_out_items_of_a_user_are_marked() -> None:
    _, model, lens = _theorem_world()
    user = int(model.split.test.users[0])
    found = negatives_of(lens, model.model, model, model.split, user, k=10_000, omega=lens.omega_mid)
    had = model.split.train.by_user.of(user)
    assert not np.isin(found.items, had).any()
    assert len(found.items) == model.n_items - len(had)
    assert (np.diff(found.scores) <= 0).all()
    later = np.concatenate([part.by_user.of(user) for part in (model.split.validation, model.split.test)])
    assert sorted(found.items[found.held_out].tolist()) == sorted(later.tolist())
    assert found.expected == pytest.approx(found.probabilities.sum())
    assert found.shares is not None
    assert found.shares.sum() == pytest.approx(1.0, rel=1e-5)
    for curve in found.curves.values():
        assert 0.5 < np.trapezoid(curve, found.grid) < 1.05  # a density, cut off at the ends


# -- where the loss puts its weight --------------------------------------------------------------------------


def _gradient_shares(loss: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(loss, negatives)
    return gradient / gradient.sum()


def _scores() -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.rand(small_split().train.n_items, generator=torch.Generator().manual_seed(0)) * 2 - 1
    observed = torch.zeros(len(scores), dtype=torch.bool)
    observed[[0, 3]] = True
    return scores, observed


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_shares_are_those_of_the_contrastive_gradient(beta: float) -> None:
    split = small_split()
    settings = quick("block", temperature=0.3, frequency_correction=beta)
    model = MODELS["hdccf"].build(settings, split.train, torch.Generator().manual_seed(0))
    scores, observed = _scores()
    found = model.negative_shares(scores, observed)
    assert found is not None
    negatives = scores[~observed].clone().requires_grad_()
    log_weights = (1 - beta) * torch.from_numpy(split.train.by_item.degrees).float().log()[~observed]
    each = torch.logsumexp(negatives / 0.3 + log_weights, 0)
    loss = losses.contrastive_loss(scores[:1], each[None], None, temperature=0.3).sum()
    torch.testing.assert_close(found.shares[~observed], _gradient_shares(loss, negatives))
    assert found.shares[observed].tolist() == [0.0, 0.0]
    assert found.effective == pytest.approx(float(1 / found.shares.square().sum()), rel=1e-4)
    assert ("frequency^0.6" in found.stated) == (beta == 0.4)


def test_shares_of_bpr_and_of_sampled_softmax() -> None:
    train = small_split().train
    scores, observed = _scores()
    made = MODELS["bpr"].build(BPR(), train, torch.Generator().manual_seed(0))
    found = made.negative_shares(scores, observed)
    assert found is not None
    negatives = scores[~observed].clone().requires_grad_()
    loss = torch.stack(
        [losses.bpr_loss(one.expand_as(negatives), negatives).sum() for one in scores[observed]]
    )
    torch.testing.assert_close(found.shares[~observed], _gradient_shares(loss.sum(), negatives))
    softmax = SSM(temperature=0.2, sampler="uniform")
    made = MODELS["ssm"].build(softmax, train, torch.Generator().manual_seed(0))
    found = made.negative_shares(scores, observed)
    assert found is not None
    torch.testing.assert_close(found.shares[~observed], torch.softmax(scores[~observed] / 0.2, 0))


def test_models_that_weigh_no_negatives_have_no_shares() -> None:
    train = small_split().train
    made = MODELS["most-popular"].build(MostPopular(), train, torch.Generator())
    scores, observed = _scores()
    assert made.negative_shares(scores, observed) is None
    assert made.negative_shares(scores, torch.ones_like(observed)) is None
    drawn = MODELS["bpr"].build(BPR(sampler="popularity"), train, torch.Generator())
    assert drawn.negative_shares(scores, observed) is None


def test_too_little_is_held_out_to_estimate() -> None:
    full = small_split()
    few = np.arange(len(full.test)) < 3
    split = Split(full.train, full.validation.subset(few), full.test.subset(few), full.method, full.facts)
    made = MODELS["most-popular"].build(MostPopular(), split.train, torch.Generator())
    with pytest.raises(DataError, match="holds out 6 pairs, too few"):
        estimate(made.scorer(), split)

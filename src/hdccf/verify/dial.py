"""The popularity dial: scores learnt with β = 1 and moved by γ = 1 are those learnt with β = 0."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from torch import Tensor

from hdccf.config import FitOptions
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.data.synthetic import synthetic_world
from hdccf.losses.negatives import BlockPairs
from hdccf.models.base import Scorer, VectorScorer
from hdccf.models.calibration import Calibration
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.rng import generator_for
from hdccf.similarity import Dot, Vectors
from hdccf.training.fit import fit
from hdccf.verify.report import Finding, Floats, mean_interval

PART = "Popularity dial"
_SETTINGS = HDCCF(
    user_vector="free",
    similarity="popular",  # with a number of its own for each item, which the shift by log freq needs
    embedding_dim=16,
    temperature=0.3,
    user_side=0.0,
    learning_rate=0.02,
    block_users=50,
    epochs=40,
    evaluate_every=40,
)


def check_dial(seed: int, *, worlds: int = 4, n_users: int = 600, n_items: int = 300) -> Iterator[Finding]:
    """Free scores at the minimum of the block loss, and vectors that were trained."""
    yield from _free(seed)
    gained, lost = [], []
    for number in range(worlds):
        own, n_pairs = seed * worlds + number, n_users * n_items // 20
        world = synthetic_world(n_pairs, n_users=n_users, n_items=n_items, liked=0.2, exposure=1.0, seed=own)
        train = world.interactions
        one, other, again = (_fit(train, 1.0, own), _fit(train, 0.0, own), _fit(train, 0.0, own + 1))
        dialled, plain, start = (_agreement(each, other) for each in (_dialled(train, one, 1.0), one, again))
        gained.append(dialled - plain)
        lost.append(dialled - start)
    detail = f"{worlds} worlds of {n_users} × {n_items}, rank correlation of a user's items, mean over users"
    mean, interval = mean_interval(np.array(gained))
    claim = "trained: β = 0 is ordered as by β = 1 with γ = 1 more than with γ = 0"
    yield Finding.estimated(PART, claim, 0.0, mean, interval, detail, not_equal=True, provided=mean > 0)
    mean, (low, _) = mean_interval(np.array(lost))
    claim = "trained: … and no less than as by β = 0 from another seed"
    yield Finding.accepted(PART, claim, 0.0, mean, (low - mean, 1.0), detail)


def _free(seed: int, n_users: int = 30, n_items: int = 150) -> Iterator[Finding]:
    world = synthetic_world(n_users * n_items // 5, n_users=n_users, n_items=n_items, liked=0.5, seed=seed)
    train = world.interactions
    degrees = torch.from_numpy(np.maximum(train.by_item.degrees, 1))
    wanted = torch.from_numpy(world.preference(np.arange(n_users))) * degrees
    wanted = wanted / wanted.sum(1, keepdim=True)
    one, other = (_least(train, wanted, beta) for beta in (1.0, 0.0))
    detail = f"{n_users} × {n_items}, a score a pair, every pair a positive with the weight p(i|u)"
    # Not exactly: a positive counts once beside its n weighted negatives.
    claim = "free scores: slope of (f of β = 1 less f of β = 0)/τ over log freq"
    yield Finding.exact(PART, claim, 1.0, _slope(train, one, other), tolerance=5 / n_items, detail=detail)
    claim = "free scores: rank correlation of β = 1 with γ = 1 and β = 0"
    agreed = _agreement(_dialled(train, one, 1.0), other)
    yield Finding.exact(PART, claim, 1.0, agreed, tolerance=1e-3, detail=detail)


def _fit(train: Interactions, beta: float, seed: int) -> Floats:
    nothing = train.subset(np.zeros(0, np.int64))
    settings = _SETTINGS.changed(frequency_correction=beta)
    options = FitOptions(threads=1, calibrate=False)
    model = fit(predefined_split(train, nothing, nothing), settings, seed=seed, options=options)
    return model.model.scorer().score_block(torch.arange(train.n_users)).double().numpy()


def _least(train: Interactions, wanted: Float[Tensor, "u i"], beta: float) -> Floats:
    """Scores without a form that minimise the block loss of training, negatives weighed by β."""
    model = HDCCFModel(_SETTINGS.changed(frequency_correction=beta), train, generator_for(0, "dial"))
    loss, log_weights = model.contrast, model.log_item_weights.double()
    scores = torch.zeros(wanted.shape, dtype=torch.float64, requires_grad=True)
    rows, columns = torch.cartesian_prod(torch.arange(len(wanted)), torch.arange(wanted.shape[1])).T
    pairs = BlockPairs((rows, columns), (rows[:0], rows[:0]))
    users = torch.zeros(len(wanted), dtype=torch.float64)
    optimizer = torch.optim.LBFGS([scores], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def step() -> Tensor:
        scores.grad = None
        each = loss.fused_block(scores, pairs, log_item_weights=log_weights, log_user_weights=users)
        total = (each * wanted[rows, columns]).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(step)  # type: ignore[no-untyped-call]
    return scores.detach().numpy()


def _dialled(train: Interactions, scores: Floats, popularity: float) -> Floats:
    """The scores as `recommend` dials them."""
    scorer = _tabular(scores)
    neutral = Calibration.neutral(_SETTINGS, scorer, train)
    users = torch.arange(len(scores))
    return neutral.with_popularity(popularity).apply(scorer, train).score_block(users).double().numpy()


def _tabular(scores: Floats) -> Scorer:
    table, items = torch.from_numpy(scores), torch.eye(scores.shape[1], dtype=torch.float64)
    return VectorScorer(Dot(), Vectors(table, table), Vectors(items, items))


def _slope(train: Interactions, one: Floats, other: Floats) -> float:
    """Of (one − other)/τ over log freq, within users."""
    logs = np.log(np.maximum(train.by_item.degrees, 1))
    logs = logs - logs.mean()
    return float(((one - other) @ logs).mean() / (logs @ logs) / _SETTINGS.temperature)


def _agreement(one: Floats, other: Floats) -> float:
    """The mean over users of the rank correlation over items."""
    ranks = [rankdata(scores, axis=1) for scores in (one, other)]
    first, second = (rank - rank.mean(1, keepdims=True) for rank in ranks)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(1) / lengths).mean())

"""Pools: every positive against items drawn for its block, by the equations and compiled."""

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

from graphs import random_interactions, small_split
from hdccf.config import FitOptions
from hdccf.data.batches import Pool
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import PoolSampler
from hdccf.losses import block as pool_losses
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.hdccf.steps import fused_pool, fuses_pool, pool_loss
from hdccf.training.fit import fit
from training import quick


def built(data: Interactions, seed: int = 0, **values: Any) -> HDCCFModel:
    chosen: dict[str, Any] = {
        "sampler": "pool",
        "embedding_dim": 3,
        "user_vector": "free",
        "temperature": 0.3,
        "item_side": 0.7,
        "user_side": 0.0,
        "start": "random",
        "init_std": 1.0,
        "block_users": 3,
        "negatives": 5,
        "recency_half_life": 3.0,
        "recency_floor": 0.1,
    }
    return HDCCFModel(HDCCF(**{**chosen, **values}), data, torch.Generator().manual_seed(seed))


def pools(model: HDCCFModel, seed: int = 0) -> list[Pool]:
    return list(model.batches(torch.Generator().manual_seed(seed)))


def pairs_of(data: Interactions) -> set[tuple[int, int]]:
    return set(zip(data.users.tolist(), data.items.tolist(), strict=True))


# -- what is drawn -------------------------------------------------------------------------------------------


def test_an_epoch_has_every_pair_once_and_names_those_that_were_drawn() -> None:
    data = random_interactions(1, n_users=20, n_items=15)
    model, seen = built(data), []
    assert isinstance(model.sampler, PoolSampler)
    made = pools(model)
    assert len(made) == model.n_batches == math.ceil(np.count_nonzero(data.by_user.degrees) / 3)
    for pool in made:
        seen += list(zip(pool.users[pool.rows].tolist(), pool.items.tolist(), strict=True))
        assert len(set(pool.columns.tolist())) == 5
        assert (pool.inclusion == 3).all()
        inside = {(int(user), int(item)) for user in pool.users for item in pool.columns} & pairs_of(data)
        named = zip(pool.users[pool.observed_rows], pool.columns[pool.observed_columns], strict=True)
        assert sorted(inside) == sorted((int(user), int(item)) for user, item in named)
    assert sorted(seen) == sorted(pairs_of(data))


def test_every_item_is_drawn_as_often() -> None:
    model = built(random_interactions(1), negatives=3)
    drawn = torch.cat([pool.columns for seed in range(2000) for pool in pools(model, seed)])
    counts = torch.bincount(drawn, minlength=9).double()
    assert (counts / counts.mean() - 1).abs().max() < 0.1


# -- the loss ------------------------------------------------------------------------------------------------


def literal_losses(model: HDCCFModel, data: Interactions, pool: Pool) -> list[float]:
    """log(1 + w Σ_j k_j e^{(s_j − s)/τ}) in Python's numbers, j over the drawn items the user has not had."""
    s, had = model.settings, pairs_of(data)
    assert model.users is not None
    users, items = (table.embedding.detach().double() for table in (model.users, model.items))
    degrees = np.maximum(data.by_item.degrees, 1).astype(float) ** (1 - s.frequency_correction)
    found = []

    def cosine(user: int, item: int) -> float:
        p, q = users[user], items[item]
        return float(p @ q) / max(float(p.norm()), 1e-12) / max(float(q.norm()), 1e-12)

    for row, item in zip(pool.rows.tolist(), pool.items.tolist(), strict=True):
        user = int(pool.users[row])
        total = 0.0
        for other in pool.columns.tolist():
            if (user, other) not in had:
                stands_for = data.n_items / len(pool.columns) * degrees[other] / degrees.mean()
                total += stands_for * math.exp((cosine(user, other) - cosine(user, item)) / s.temperature)
        found.append(math.log(1 + s.item_side * total))
    return found


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("negatives", [2, 5, 9])
def test_both_ways_are_the_literal_loss(beta: float, negatives: int) -> None:
    data = random_interactions(3)
    model = built(data, frequency_correction=beta, negatives=negatives)
    for pool in pools(model):
        literal = literal_losses(model, data, pool)
        plain, clipped = pool_loss(model, pool, len(pool.items))
        assert plain.tolist() == pytest.approx(literal, rel=1e-4, abs=1e-6)
        assert fused_pool(model, pool, model.pool_log_weights(pool)).tolist() == pytest.approx(
            literal, rel=1e-4, abs=1e-6
        )
        assert clipped == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_the_compiled_gradient_is_autograds(sparse: bool) -> None:
    """Also of an item that is a positive and drawn, and of vectors of no length, which have no direction."""
    data = random_interactions(4, n_users=12)
    model = built(data, embedding_dim=7, sparse_updates=sparse)
    assert model.users is not None
    with torch.no_grad():
        model.items.embedding[2], model.users.embedding[3] = 0.0, 0.0
    tables = [model.users.embedding, model.items.embedding]
    for pool in pools(model):
        upstream = torch.rand(len(pool.items), generator=torch.Generator().manual_seed(1)) / len(pool.items)
        gradients = []
        for loss in (
            pool_loss(model, pool, 1)[0],
            fused_pool(model, pool, model.pool_log_weights(pool)),
        ):
            found = torch.autograd.grad(loss @ upstream, tables)
            gradients.append([each.to_dense() for each in found])
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("omega", [0.0, 0.01, 0.3, 0.9])
def test_with_all_items_drawn_it_is_the_blocks_loss(omega: float) -> None:
    data = random_interactions(5)
    model = built(data, negatives=100, omega_items=omega)
    block = built(data, sampler="block", omega_items=omega)
    shares = []
    for pool, batch in zip(pools(model), pools(block), strict=True):
        assert pool.users.equal(batch.users)
        (one,) = model.objectives(pool, torch.Generator())
        (other,) = block.objectives(batch, torch.Generator())
        assert float(one.loss.detach()) == pytest.approx(float(other.loss.detach()), rel=1e-5)
        shares.append(float(one.terms["clipped-items"]))
        assert shares[-1] == float(other.terms["clipped-items"])
    assert (max(shares) > 0) == (omega > 0.5)


@pytest.mark.parametrize("change", [{"similarity": "modulated"}, {"similarity": "dot"}])
def test_other_similarities_train_too(change: dict[str, Any]) -> None:
    model = built(random_interactions(6), **change)
    (made,) = model.objectives(pools(model)[0], torch.Generator())
    made.loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_only_large_tables_cosines_and_exponents_in_range_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = random_interactions(6)
    assert not fuses_pool(built(data))
    monkeypatch.setattr(pool_losses, "LEAST_NUMBERS", 1)
    assert fuses_pool(built(data))
    changes: list[dict[str, Any]] = [{"similarity": "dot"}, {"omega_items": 0.1}, {"temperature": 0.03}]
    assert not any(fuses_pool(built(data, **change)) for change in changes)


@pytest.mark.parametrize(("sparse", "expected"), [(True, 1), (False, 2)])
def test_a_small_pools_step_stays_on_one_thread_where_few_rows_move(
    sparse: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []
    original = steps.pool_step

    def watched(net: HDCCFModel, pool: Pool) -> Any:
        seen.append(torch.get_num_threads())
        return original(net, pool)

    monkeypatch.setattr(steps, "pool_step", watched)
    model = built(random_interactions(1))
    assert model.lookups_per_step == 3 * (3 + 5 + model.graph.n_pairs // model.n_batches + 3 * 5 // 16)
    monkeypatch.setattr("hdccf.training.loop._WORTH_SHARING", 50_000)
    settings = quick("pool", epochs=1, embedding_dim=400, sparse_updates=sparse)
    try:
        fit(small_split(), settings, options=FitOptions(threads=2))
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {expected}


@pytest.mark.parametrize(("threads", "drawn_by_another"), [(1, False), (2, True)])
def test_a_pool_is_drawn_ahead_where_a_thread_is_spare(
    threads: int, drawn_by_another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawers = set()
    original = PoolSampler.blocks

    def watched(self: PoolSampler, generator: torch.Generator) -> Any:
        drawers.add(threading.current_thread())
        yield from original(self, generator)

    monkeypatch.setattr(PoolSampler, "blocks", watched)
    before = torch.get_num_threads()
    try:
        fit(small_split(), quick("pool", epochs=1), options=FitOptions(threads=threads))
    finally:
        torch.set_num_threads(before)
    assert len(drawers) == 1
    assert (threading.current_thread() not in drawers) == drawn_by_another


def test_a_diagnosis_looks_at_the_drawn_items() -> None:
    data = random_interactions(7)
    model = built(data, negatives=100)
    pool = pools(model)[0]
    share = sum((int(u), i) in pairs_of(data) for u in pool.users for i in range(9)) / (9 * len(pool.users))
    assert model.diagnose(pool)["masked"] == pytest.approx(share)

"""ENMF's loss against the sum over each pair, its gradients, its dropout and what a step holds in memory."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphs import interactions, random_interactions
from hdccf.data.interactions import Interactions
from hdccf.data.weights import positive_weights
from hdccf.models import enmf
from hdccf.models.enmf import ENMF, ENMFModel, whole_data_loss
from hdccf.rng import dropout_mask


def built(train: Interactions, **settings: Any) -> ENMFModel:
    """In double precision, with vectors far enough from zero that every term of the loss counts."""
    chosen = {"embedding_dim": 5, "init_std": 0.7, "init_head": 0.6, "block_users": 4, **settings}
    return ENMFModel(ENMF(**chosen), train, torch.Generator().manual_seed(0)).double()


def all_pairs_loss(
    users: Tensor, items: Tensor, head: Tensor, observed: dict[tuple[int, int], float], w: float
) -> Tensor:
    """Σ c(1 − r̂)² where observed, w·r̂² everywhere else, one pair after another."""
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(users)):
        for column in range(len(items)):
            score = (head * users[row] * items[column]).sum()
            weight = observed.get((row, column))
            total = total + (w * score**2 if weight is None else weight * (1 - score) ** 2)
    return total


@pytest.mark.parametrize("path", ["product", "pairs"])
@pytest.mark.parametrize("w", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_efficient_loss_is_the_sum_over_all_pairs_and_so_are_its_gradients(
    path: str, w: float, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enmf, "_CELLS_A_PAIR", 1000 if path == "product" else 0)
    generator = torch.Generator().manual_seed(1)
    shapes = ((6, 5), (9, 5), (5,))
    drawn = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    mask = dropout_mask(drawn[0], 0.7, generator)
    rows, columns = (torch.rand(6, 9, generator=generator) < 0.3).nonzero(as_tuple=True)
    weights = torch.rand(len(rows), generator=generator, dtype=torch.float64)
    weights = weights if weighted else torch.ones_like(weights)
    fast, slow = ([tensor.clone().requires_grad_() for tensor in drawn] for _ in range(2))
    observed = {
        (int(row), int(column)): float(weight)
        for row, column, weight in zip(rows, columns, weights, strict=True)
    }
    found = whole_data_loss(
        fast[0] * mask, fast[1], fast[2], rows=rows, columns=columns, weights=weights, negative_weight=w
    )
    expected = all_pairs_loss(slow[0] * mask, slow[1], slow[2], observed, w)
    torch.testing.assert_close(found + weights.sum(), expected, rtol=0, atol=1e-9)
    found.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize("half_life", [None, 2.0])
def test_a_step_takes_its_users_with_all_items_under_one_dropout(half_life: float | None) -> None:
    train = random_interactions(2, n_users=7, n_items=9)
    model = built(train, recency_half_life=half_life, negative_weight=0.3)
    weights = positive_weights(train, half_life=half_life)
    weight_of = dict(zip(zip(train.users, train.items, strict=True), weights.tolist(), strict=True))
    seen = []
    for number, batch in enumerate(model.batches(torch.Generator().manual_seed(3))):
        seen += batch.users.tolist()
        (objective,) = model.objectives(batch, torch.Generator().manual_seed(number))
        mask = dropout_mask(model.users[batch.users], 0.7, torch.Generator().manual_seed(number))
        observed = {
            (row, int(item)): weight_of[user, item]
            for row, user in enumerate(batch.users.tolist())
            for item in train.by_user.of(user)
        }
        expected = all_pairs_loss(
            model.users[batch.users] * mask, model.items, model.head, observed, 0.3
        ) - sum(observed.values())
        torch.testing.assert_close(objective.loss, expected, rtol=0, atol=1e-6)
    assert sorted(seen) == list(range(7))


def test_the_probability_is_that_of_keeping_and_the_mean_stays() -> None:
    mask = dropout_mask(torch.zeros(400, 50), 0.7, torch.Generator().manual_seed(0))
    assert set(mask.flatten().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}
    assert float((mask > 0).float().mean()) == pytest.approx(0.7, abs=0.015)
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)
    assert dropout_mask(mask, 1.0, torch.Generator()).eq(1).all()


def test_answers_are_without_dropout_and_weighed_by_the_head() -> None:
    model = built(random_interactions(2, n_users=7, n_items=9))
    with torch.no_grad():
        model.head.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0]))
    expected = torch.einsum("ud,id,d->ui", model.users, model.items, model.head)
    torch.testing.assert_close(model.scorer().score_block(torch.arange(7)), expected.detach())


def test_users_without_training_pairs_pull_at_nothing() -> None:
    train = interactions([(1, 0), (1, 2), (3, 1)], n_users=6, n_items=4)
    batches = list(built(train).batches(torch.Generator().manual_seed(0)))
    assert sorted(torch.cat([batch.users for batch in batches]).tolist()) == [1, 3]


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of the largest tensor that any operation made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, Tensor):
                self.size = max(self.size, made.numel())
        return result


@pytest.mark.parametrize("share", [0.002, 0.3])
def test_a_step_holds_nothing_that_has_users_items_and_dimensions(share: float) -> None:
    """Nor, where pairs are rare, users × items; and nobody is padded to the one user who has everything."""
    n_users, n_items, dim = 200, 3000, 5
    train = random_interactions(0, n_users=n_users, n_items=n_items, share=share)
    model = built(train, embedding_dim=dim, block_users=n_users)
    (batch,) = model.batches(torch.Generator().manual_seed(0))
    with _Largest() as largest:  # type: ignore[no-untyped-call]
        (objective,) = model.objectives(batch, torch.Generator().manual_seed(0))
        objective.loss.backward()  # type: ignore[no-untyped-call]
    cells, pairs = n_users * n_items, len(train)
    limit = cells if share == 0.3 else max(pairs, n_items) * dim
    assert limit < cells * dim
    assert largest.size <= limit


def test_the_diagnosis_is_the_mean_score_of_observed_and_unobserved_pairs() -> None:
    train = random_interactions(2, n_users=7, n_items=9)
    model = built(train, block_users=7)
    (batch,) = model.batches(torch.Generator().manual_seed(0))
    scores = model.scorer().score_block(torch.arange(7)).numpy()
    mask = train.matrix.toarray() > 0
    found = model.diagnose(batch)
    assert found["observed-score"] == pytest.approx(scores[mask].mean())
    assert found["unobserved-score"] == pytest.approx(scores[~mask].mean())


def test_the_first_vectors_are_as_the_authors_drew_them() -> None:
    model = built(random_interactions(0, n_users=300, n_items=200), embedding_dim=64, init_std=0.01)
    for table in (model.users, model.items):
        values = table.detach().numpy()
        assert np.abs(values).max() <= 0.02
        assert np.std(values) == pytest.approx(0.0088, rel=0.03)  # that of a normal cut at two deviations
    assert built(random_interactions(0)).head.eq(torch.tensor(0.6).double()).all()

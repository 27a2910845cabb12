"""LightGCN against its equations, written out with dense float64 matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphs import interactions, random_interactions, small_split
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.models.lightgcn import LightGCN, SmoothedFactors, Smoothing, build_lightgcn
from hdccf.models.negatives import Draws, Request, UniformNegatives
from hdccf.models.pairs import PairModel
from hdccf.training.fit import fit


def graph_with_isolated_nodes() -> Interactions:
    """Users 0 and 4 and items 1 and 5 have no pairs."""
    return interactions([(1, 0), (1, 2), (2, 2), (3, 4), (3, 0), (3, 2), (2, 3)], n_users=5, n_items=6)


def dense_smoothing(train: Interactions, layers: int) -> Tensor:
    """(1 / (L + 1)) Σ_k (D^−½ A D^−½)^k as a matrix, entry by entry."""
    n_users, n_nodes = train.n_users, train.n_users + train.n_items
    adjacency = torch.zeros(n_nodes, n_nodes, dtype=torch.float64)
    for user, item in zip(train.users.tolist(), train.items.tolist(), strict=True):
        adjacency[user, n_users + item] = adjacency[n_users + item, user] = 1.0
    degrees = adjacency.sum(1)
    normalised = torch.zeros_like(adjacency)
    for a, b in adjacency.nonzero().tolist():
        normalised[a, b] = 1.0 / (degrees[a] * degrees[b]).sqrt()
    powers = [torch.linalg.matrix_power(normalised, k) for k in range(layers + 1)]
    return torch.stack(powers).sum(0) / (layers + 1)


def smoothing_of(train: Interactions, layers: int) -> Smoothing:
    """In float64; 1/√degree is worked out in it too."""
    torch.set_default_dtype(torch.float64)
    try:
        return Smoothing(Graph.of(train), layers)
    finally:
        torch.set_default_dtype(torch.float32)


def vectors_of(train: Interactions, dim: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(train.n_users + train.n_items, dim, dtype=torch.float64, generator=generator)


class Fixed(UniformNegatives):
    """Negatives as they are given."""

    def __init__(self, items: Tensor) -> None:
        super().__init__(Graph.of(graph_with_isolated_nodes()))
        self.items = items

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        return Draws(self.items, None, None)


def model_of(train: Interactions, **values: Any) -> PairModel:
    settings = LightGCN(embedding_dim=3, **values)
    model = build_lightgcn(settings, train, torch.Generator().manual_seed(2))
    assert isinstance(model, PairModel)
    return model


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("train", [graph_with_isolated_nodes(), random_interactions(3)])
def test_smoothing_is_the_mean_of_the_powers_of_the_normalised_graph(
    train: Interactions, layers: int
) -> None:
    vectors = vectors_of(train)
    smoothed = smoothing_of(train, layers)(vectors)
    torch.testing.assert_close(smoothed, dense_smoothing(train, layers) @ vectors, rtol=1e-12, atol=1e-12)


def test_nodes_without_pairs_keep_their_own_vector_and_no_other() -> None:
    train = graph_with_isolated_nodes()
    vectors = vectors_of(train)
    smoothed = smoothing_of(train, 3)(vectors)
    for node in (0, 4, 5 + 1, 5 + 5):
        torch.testing.assert_close(smoothed[node], vectors[node] / 4)


@pytest.mark.parametrize("layers", [0, 2, 3])
def test_gradients_are_those_of_finite_differences_and_of_the_dense_matrix(layers: int) -> None:
    train = graph_with_isolated_nodes()
    smoothing = smoothing_of(train, layers)
    vectors = vectors_of(train).requires_grad_()
    assert torch.autograd.gradcheck(smoothing, (vectors,))
    upstream = torch.randn(vectors.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    (found,) = torch.autograd.grad(smoothing(vectors), vectors, upstream)
    expected = dense_smoothing(train, layers).T @ upstream
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_a_steps_loss_and_gradient_are_the_published_ones(l2: float) -> None:
    """−log σ(e_u·e_i − e_u·e_j) of smoothed vectors, with λ‖·‖² of the unsmoothed three, a positive.

    The public code writes λ/2; so λ = 0.3 here is its 0.6.
    """
    train = graph_with_isolated_nodes()
    model = model_of(train, l2=l2).double()
    users, items, others = torch.tensor([1, 3, 3]), torch.tensor([2, 4, 0]), torch.tensor([[1], [3], [1]])
    model.source = Fixed(others)
    batch = PairBatch(users, items, torch.ones(3, dtype=torch.float64))
    (objective,) = model.objectives(batch, torch.Generator())
    net = model.net
    assert isinstance(net, SmoothedFactors)
    net.zero_grad()
    objective.loss.backward()  # type: ignore[no-untyped-call]

    own = net.embedding.detach().clone().requires_grad_()
    smoothed = dense_smoothing(train, 3) @ own
    total, penalty = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for u, i, (j,) in zip(users.tolist(), items.tolist(), others.tolist(), strict=True):
        a, b, c = u, train.n_users + i, train.n_users + j
        total = total - torch.log(torch.sigmoid(smoothed[a] @ smoothed[b] - smoothed[a] @ smoothed[c])) / 3
        penalty = penalty + 2 * l2 / 2 * (own[a] @ own[a] + own[b] @ own[b] + own[c] @ own[c]) / 3
    (total + penalty).backward()  # type: ignore[no-untyped-call]
    # The degrees' roots were taken in float32.
    torch.testing.assert_close(objective.loss, total + penalty, rtol=1e-6, atol=1e-6)
    assert net.embedding.grad is not None
    torch.testing.assert_close(net.embedding.grad, own.grad, rtol=1e-6, atol=1e-6)


def test_training_rows_and_ranking_score_alike() -> None:
    model = model_of(random_interactions(3))
    users, items, negatives = torch.tensor([1, 4]), torch.tensor([3, 0]), torch.tensor([[2, 8], [1, 1]])
    scores = model.net.compare(users, items, negatives)
    asked = torch.cat([items[:, None], negatives], 1)
    torch.testing.assert_close(
        torch.cat([scores.positive[:, None], scores.negative], 1), model.net.score_rows(users, asked)
    )
    torch.testing.assert_close(
        model.net.score_rows(users, asked).detach(), model.scorer().score_rows(users, asked)
    )


def test_without_layers_it_is_plain_bpr() -> None:
    model = model_of(random_interactions(3), layers=0)
    net = model.net
    assert isinstance(net, SmoothedFactors)
    p, q = net.embedding[1], net.embedding[7 + 3]
    score = net.score_rows(torch.tensor([1]), torch.tensor([[3]]))
    torch.testing.assert_close(score, (p @ q).view(1, 1))


def test_a_checkpoint_holds_the_vectors_and_nothing_of_the_graph() -> None:
    model = model_of(random_interactions(3))
    assert list(model.net.state_dict()) == ["embedding"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampler", ["popularity", "in-batch", "dynamic"])
def test_it_takes_any_source_of_negatives_and_weights_by_recency(sampler: Any) -> None:
    def scores(half_life: float | None) -> Tensor:
        settings = LightGCN(
            embedding_dim=4, epochs=2, batch_size=64, sampler=sampler, recency_half_life=half_life
        )
        return fit(small_split(), settings, seed=3).score_block(torch.arange(40))

    plain, fading = scores(None), scores(2.0)
    assert plain.isfinite().all()
    assert not np.allclose(plain.numpy(), fading.numpy())

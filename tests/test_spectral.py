"""First vectors from the spectrum, beside a literal singular value decomposition."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from graphs import checkerboard, interactions, random_interactions
from hdccf.config import Settings
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.models import entry_named, name_of
from hdccf.models.factorization import BPR, SSM
from hdccf.models.hdccf.settings import HDCCF
from hdccf.models.layers import Table, spectral_vectors, start_spectral


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def scaled(train: Interactions) -> np.ndarray:
    """D_u^−¼ X D_i^−¼, written out."""
    matrix = np.zeros((train.n_users, train.n_items))
    for user, item in zip(train.users, train.items, strict=True):
        matrix[user, item] = 1.0
    users, items = matrix.sum(1).clip(1), matrix.sum(0).clip(1)
    return np.asarray(matrix / users[:, None] ** 0.25 / items[None, :] ** 0.25)


@pytest.mark.parametrize("dim", [3, 7, 40])
def test_vectors_are_the_leading_singular_vectors_times_their_values(dim: int) -> None:
    # As many columns as the smaller side has nodes: then the random basis spans everything, and is exact.
    train = random_interactions(3)
    users, items = spectral_vectors(Graph.of(train), dim, torch.Generator().manual_seed(0))
    left, values, right = np.linalg.svd(scaled(train))
    kept = min(dim, len(values))
    assert users.shape == (train.n_users, kept)
    assert items.shape == (train.n_items, kept)
    # Signs are free, products of two of them are not.
    expected = (left[:, :kept] * values[:kept] ** 2) @ right[:kept]
    np.testing.assert_allclose(users @ items.T, expected, atol=1e-9)
    np.testing.assert_allclose(
        users @ users.T, (left[:, :kept] * values[:kept] ** 2) @ left[:, :kept].T, atol=1e-9
    )


def table(n: int, dim: int, seed: int) -> Table:
    return Table(n, dim, separate=False, std=0.1, sparse=False, generator=torch.Generator().manual_seed(seed))


def test_vectors_are_as_long_as_random_ones_and_nodes_without_pairs_stay() -> None:
    train = interactions([(0, 0), (0, 1), (1, 1), (2, 3), (2, 0)], n_users=4, n_items=5)
    users, items = table(4, 6, 0), table(5, 6, 1)
    before = users.embedding.detach().clone(), items.embedding.detach().clone()
    start_spectral(Graph.of(train), users, [items], 6, 0.5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(users.embedding[3], before[0][3])
    torch.testing.assert_close(items.embedding[[2, 4]], before[1][[2, 4]])
    lengths = (users.embedding[:3] - 0.1 * before[0][:3]).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((3,), 0.5 * math.sqrt(6)))
    # Three users have at most three directions; the other dimensions begin at a little, not at zero.
    torch.testing.assert_close(users.embedding[:3, 4:], 0.1 * before[0][:3, 4:])


def test_columns_beyond_the_dimensions_stay() -> None:
    train = interactions([(0, 0), (0, 1), (1, 1), (2, 3), (2, 0)], n_users=4, n_items=5)
    users, items = table(4, 6, 0), table(5, 6, 1)
    before = items.embedding.detach().clone()
    start_spectral(Graph.of(train), users, [items], 4, 0.5, torch.Generator().manual_seed(0))
    assert items.embedding[:, 4:].equal(before[:, 4:])
    assert not items.embedding[:, :4].equal(before[:, :4])


SETTINGS = [
    HDCCF(start="spectral", user_vector="free", embedding_dim=8, similarity="popular"),
    HDCCF(start="spectral", user_vector="free", embedding_dim=8),
    SSM(start="spectral", embedding_dim=8),
    BPR(start="spectral", embedding_dim=8),
    BPR(start="spectral", embedding_dim=8, sampler="block"),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_without_a_step_it_knows_a_checkerboard(settings: Settings) -> None:
    train, size = checkerboard(16), 16

    def first_choices(of: Settings) -> int:
        """How many users have their one item that is left, u itself, before all others left to them."""
        model = entry_named(name_of(of)).build(of, train, torch.Generator().manual_seed(0))
        scores = model.scorer().score_block(torch.arange(size))
        graph = Graph.of(train)
        scores[graph.pair_users, graph.items_of.flat] = -math.inf
        return int((scores.argmax(1) == torch.arange(size)).sum())

    assert first_choices(settings) == size
    assert first_choices(settings.changed(start="random")) < size / 2


def test_histories_begin_with_the_items_vectors() -> None:
    train = random_interactions(1)
    settings = HDCCF(start="spectral", user_vector="history", embedding_dim=4)
    model = entry_named("hdccf").build(settings, train, torch.Generator().manual_seed(0))
    state = model.state_dict()
    random = entry_named("hdccf").build(
        settings.changed(start="random"), train, torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(state["items.embedding"], state["past.embedding"])
    # Full rank, so that however the random basis was drawn, items are as similar as the literal ones are.
    _, values, right = np.linalg.svd(scaled(train))
    literal = torch.from_numpy(right[:4].T * values[:4])
    found = state["items.embedding"] - 0.1 * random.state_dict()["items.embedding"]
    expected = torch.nn.functional.normalize(literal) @ torch.nn.functional.normalize(literal).T
    torch.testing.assert_close(found @ found.T / 0.1**2 / 4, expected)

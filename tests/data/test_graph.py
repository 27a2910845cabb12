"""The training pairs as tensors: what is drawn, what is never drawn, what is found."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from graphs import random_interactions
from hdccf.data.graph import Graph, Neighbours, expand, pairs_between
from hdccf.errors import DataError


def pairs_of(graph: Graph) -> set[tuple[int, int]]:
    return set(zip(graph.pair_users.tolist(), graph.items_of.flat.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_both_directions_hold_the_pairs_and_histories_keep_their_order(seed: int) -> None:
    data = random_interactions(seed, 11, 13)
    graph = Graph.of(data)
    expected = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
    assert (graph.n_users, graph.n_items, graph.n_pairs) == (11, 13, len(data))
    assert pairs_of(graph) == expected
    from_items = torch.repeat_interleave(graph.users_of.degrees)
    assert set(zip(graph.users_of.flat.tolist(), from_items.tolist(), strict=True)) == expected
    starts = graph.items_of.starts
    for user in range(data.n_users):
        history = graph.items_of.flat[starts[user] : starts[user + 1]]
        assert history.tolist() == data.by_user.of(user).tolist()


def test_contains_is_membership_for_every_pair() -> None:
    graph = Graph.of(random_interactions(1, 11, 13))
    observed = pairs_of(graph)
    users, items = torch.cartesian_prod(torch.arange(11), torch.arange(13)).unbind(1)
    found = graph.items_of.contains(users, items)
    assert found.tolist() == [(u, i) in observed for u, i in zip(users.tolist(), items.tolist(), strict=True)]
    assert graph.users_of.contains(items, users).equal(found)
    nothing = Neighbours(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 4)
    assert not nothing.contains(torch.tensor([0, 1]), torch.tensor([3, 0])).any()


def test_within_finds_every_pair_between_lists_with_repeated_nodes() -> None:
    graph = Graph.of(random_interactions(2, 11, 13))
    observed = pairs_of(graph)
    nodes, columns = torch.tensor([3, 0, 3, 10]), torch.tensor([12, 0, 5, 7])
    rows, places, entries = graph.items_of.within(nodes, columns)
    expected = {
        (row, place)
        for row, place in itertools.product(range(4), range(4))
        if (int(nodes[row]), int(columns[place])) in observed
    }
    assert sorted(zip(rows.tolist(), places.tolist(), strict=True)) == sorted(expected)
    assert graph.items_of.flat[entries].equal(columns[places])
    assert graph.pair_users[entries].equal(nodes[rows])
    rows, places, entries = graph.items_of.within(nodes, None)
    assert len(rows) == int(graph.items_of.degrees[nodes].sum())
    assert graph.items_of.flat[entries].equal(places)


@pytest.mark.parametrize("seed", range(6))
def test_pairs_between_are_the_same_from_either_side(seed: int) -> None:
    graph = Graph.of(random_interactions(seed, 11, 13))
    nodes, columns = torch.tensor([4, 1, 4, 12, 1, 4]), torch.tensor([9, 3, 0, 10])
    rows, places, _ = graph.users_of.within(nodes, columns)
    expected = sorted(zip(rows.tolist(), places.tolist(), strict=True))
    few = Neighbours(graph.users_of.starts, graph.users_of.flat, graph.n_users)
    many = Neighbours(graph.items_of.starts, graph.items_of.flat, graph.n_items)
    for cheaper in (few, many):
        # Degrees decide the side; the other one's are made out to be endless.
        dearer = many if cheaper is few else few
        dearer.__dict__["degrees"] = dearer.starts.diff() + 1000
        cheaper.__dict__["degrees"] = cheaper.starts.diff()
        rows, places = pairs_between(nodes, columns, few, many)
        assert sorted(zip(rows.tolist(), places.tolist(), strict=True)) == expected


def test_expand_is_the_ranges_one_after_another() -> None:
    rows, elements = expand(torch.tensor([5, 9, 2]), torch.tensor([2, 0, 3]))
    assert rows.tolist() == [0, 0, 2, 2, 2]
    assert elements.tolist() == [5, 6, 2, 3, 4]


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_drawn_uniformly_with_replacement(seed: int) -> None:
    graph = Graph.of(random_interactions(seed))
    generator = torch.Generator().manual_seed(seed)
    every = torch.arange(graph.n_users)
    drawn = graph.items_of.draw(every, 4000, generator)
    worst = 1.0
    for user, row in enumerate(drawn):
        own = graph.items_of.flat[graph.items_of.starts[user] : graph.items_of.starts[user + 1]]
        counts = torch.bincount(row, minlength=graph.n_items)
        assert int(counts[own].sum()) == 4000
        worst = min(worst, float(stats.chisquare(counts[own].numpy()).pvalue) if len(own) > 1 else 1.0)
    assert worst > 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_others_are_drawn_uniformly_and_never_a_pair(seed: int) -> None:
    graph = Graph.of(random_interactions(seed, full=False))
    generator = torch.Generator().manual_seed(seed)
    for side in (graph.items_of, graph.users_of):
        nodes = torch.arange(len(side.degrees))
        drawn = side.draw_others(nodes, 4000, generator)
        assert not side.contains(nodes.repeat_interleave(4000), drawn.flatten()).any()
        for node, row in enumerate(drawn):
            counts = torch.bincount(row, minlength=side.n_columns)
            own = side.flat[side.starts[node] : side.starts[node + 1]]
            others = np.delete(counts.numpy(), own.numpy())
            assert others.sum() == 4000
            assert stats.chisquare(others).pvalue > 1e-5


def test_a_node_with_every_column_has_no_others_and_says_so() -> None:
    graph = Graph.of(random_interactions(0))
    with pytest.raises(DataError, match=r"^node 0 is paired with all 9 columns.*in-batch negatives$"):
        graph.items_of.draw_others(torch.tensor([3, 0]), 2, torch.Generator())
    # A node that is not asked for does no harm.
    assert graph.items_of.draw_others(torch.tensor([3, 4]), 2, torch.Generator()).shape == (2, 2)


def test_no_training_pairs_is_an_error_of_one_line() -> None:
    empty = random_interactions(0).subset(np.zeros(0, np.int64))
    with pytest.raises(DataError, match=r"^there are no training pairs; .*$"):
        Graph.of(empty)


def test_the_compiled_search_finds_what_the_search_among_all_keys_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = random_interactions(5, 30, 40, share=0.6, full=False)
    nodes = torch.tensor([3, 0, 29, 3, 17, 8])
    plain = Graph.of(data).items_of.draw_others(nodes, 50, torch.Generator().manual_seed(1))
    monkeypatch.setattr("hdccf.data.graph._MANY_PAIRS", 0)
    neighbours = Graph.of(data).items_of
    assert neighbours._is_compiled
    assert neighbours.draw_others(nodes, 50, torch.Generator().manual_seed(1)).equal(plain)

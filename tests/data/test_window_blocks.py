"""Blocks of windows: each place of a window is a row that knows its past and its next items."""

import pytest
import torch

from graphs import interactions, random_interactions
from hdccf.data.batches import NO_ITEM, Windows, cut_windows, last_places
from hdccf.data.graph import Graph
from hdccf.data.samplers import WindowBlockSampler


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_window_is_the_last_items_before_a_cut_in_order() -> None:
    data = interactions([(0, 3), (0, 1), (0, 4), (1, 2), (1, 0)], n_users=3, n_items=5)
    items_of = Graph.of(data).items_of
    found = cut_windows(items_of, torch.tensor([0, 1, 0, 2]), torch.tensor([3, 1, 2, 0]), 2)
    assert found.tolist() == [[1, 4], [NO_ITEM, 2], [3, 1], [NO_ITEM, NO_ITEM]]
    assert last_places(found).places.tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("block_items", [1000, 4])
def test_rows_are_moments_with_their_past_their_next_items_and_all_their_own_masked(block_items: int) -> None:
    data = random_interactions(6, 8, 9, 0.5)
    length, ahead, ahead_half_life = 4, 2, 1.5
    graph = Graph.of(data)
    weights = 1.0 + torch.arange(graph.n_pairs, dtype=torch.get_default_dtype())
    made = WindowBlockSampler(graph, weights, 3, block_items, length, ahead, ahead_half_life)
    last_seen = set()
    for seed in range(60):
        users: list[int] = []
        batches = list(made.epoch(generator(seed)))
        assert len(batches) == len(made)
        for batch in batches:
            windows = batch.history
            assert isinstance(windows, Windows)
            columns = list(range(data.n_items)) if batch.columns is None else batch.columns.tolist()
            flat = windows.items.flatten().tolist()
            users += sorted(set(batch.users.tolist()))
            for row, (user, place) in enumerate(
                zip(batch.users.tolist(), windows.places.tolist(), strict=True)
            ):
                past = data.by_user.of(user).tolist()
                begin = place // length * length
                known = [item for item in flat[begin : place + 1] if item != NO_ITEM]
                moment = past.index(flat[place]) + 1
                assert known == past[moment - len(known) : moment]
                there = batch.rows == row
                positives = [columns[c] for c in batch.positive_columns[there].tolist()]
                assert positives == past[moment : moment + ahead]
                assert positives
                first = int(data.by_user.starts[user]) + moment
                faded = [0.5 ** (k / ahead_half_life) for k in range(len(positives))]
                expected = [float(weights[first + k]) * share for k, share in enumerate(faded)]
                torch.testing.assert_close(batch.weights[there], torch.tensor(expected))
                masked = {columns[c] for c in batch.observed_columns[batch.observed_rows == row].tolist()}
                assert masked == set(past) & set(columns)
                if place % length == length - 1:
                    last_seen.add((user, moment))
        able = [user for user in range(data.n_users) if len(data.by_user.of(user)) >= 2]
        assert sorted(users) == able
    # A window may end at any moment that leaves a next item, from its own length on.
    for user in able:
        n = len(data.by_user.of(user))
        ends = set(range(min(length, n - 1), n))
        assert {moment for who, moment in last_seen if who == user} == ends

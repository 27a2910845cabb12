"""Batches of positive pairs: every pair of users that can have negatives, once; and batches drawn ahead."""

import threading
from collections.abc import Iterator

import pytest
import torch

from graphs import interactions, random_interactions
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.samplers import PairSampler, prefetch
from hdccf.errors import ConfigError


def epoch(sampler: PairSampler, seed: int = 0) -> list[PairBatch]:
    return list(sampler.epoch(torch.Generator().manual_seed(seed)))


def numbered(graph: Graph) -> torch.Tensor:
    return torch.arange(1, graph.n_pairs + 1, dtype=torch.float32)


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_an_epoch_has_every_pair_once_with_its_own_weight(by_user: bool, size: int) -> None:
    graph = Graph.of(random_interactions(0, 12, 15, full=False))
    batches = epoch(PairSampler(graph, numbered(graph), size, by_user=by_user))
    found = sorted(
        (int(weight), int(user), int(item))
        for batch in batches
        for user, item, weight in zip(batch.users, batch.items, batch.weights, strict=True)
    )
    pairs = zip(graph.pair_users.tolist(), graph.items_of.flat.tolist(), strict=True)
    assert found == [(number, user, item) for number, (user, item) in enumerate(pairs, 1)]


def test_by_user_a_user_is_in_one_batch_only_and_batches_are_about_as_large_as_asked() -> None:
    graph = Graph.of(random_interactions(1, 40, 30, full=False))
    batches = epoch(PairSampler(graph, numbered(graph), 50, by_user=True))
    assert len(batches) > 3
    seen: set[int] = set()
    for batch in batches:
        users = set(batch.users.tolist())
        assert not users & seen
        seen |= users
        assert len(batch.users) <= 50 + int(graph.items_of.degrees.max())


def test_the_order_changes_with_the_generator_and_only_with_it() -> None:
    graph = Graph.of(random_interactions(2, 20, 20, full=False))
    for by_user in (False, True):
        sampler = PairSampler(graph, numbered(graph), 16, by_user=by_user)
        first, again, other = (torch.cat([b.weights for b in epoch(sampler, seed)]) for seed in (0, 0, 1))
        assert first.equal(again)
        assert not first.equal(other)


def test_who_has_had_everything_is_left_out() -> None:
    graph = Graph.of(random_interactions(3, full=True))
    for by_user in (False, True):
        users = torch.cat([batch.users for batch in epoch(PairSampler(graph, numbered(graph), 5, by_user))])
        assert 0 not in users.tolist()
        assert len(users) == graph.n_pairs - graph.n_items


def test_a_last_batch_below_the_least_joins_the_one_before() -> None:
    graph = Graph.of(interactions([(0, 0), (0, 1), (1, 1), (1, 2), (2, 0)]))
    sizes = [len(batch.users) for batch in epoch(PairSampler(graph, numbered(graph), 2, least=2))]
    assert sizes == [2, 3]
    assert [len(batch.users) for batch in epoch(PairSampler(graph, numbered(graph), 2))] == [2, 2, 1]


def test_too_few_pairs_for_the_negatives_are_an_error_of_one_line() -> None:
    graph = Graph.of(interactions([(0, 0)], n_users=2, n_items=2))
    with pytest.raises(ConfigError, match="these negatives need 2"):
        epoch(PairSampler(graph, numbered(graph), 2, least=2))


# -- prefetch ------------------------------------------------------------------------------------------------


def test_all_come_in_order() -> None:
    assert list(prefetch(iter([3, 1, None, 2]))) == [3, 1, None, 2]
    assert list(prefetch(iter([]))) == []


def test_the_next_is_drawn_by_a_thread_while_one_is_at_work() -> None:
    drawn = threading.Event()
    drawers = []

    def batches() -> Iterator[int]:
        for number in range(3):
            drawers.append(threading.current_thread())
            if number == 1:
                drawn.set()
            yield number

    ahead = prefetch(batches())
    assert next(ahead) == 0
    assert drawn.wait(10), "the second is drawn before it is asked for"
    assert list(ahead) == [1, 2]
    assert threading.current_thread() not in drawers


def test_an_error_comes_where_its_batch_would() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    ahead = prefetch(batches())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)


def test_stopping_early_leaves_no_thread() -> None:
    ahead = prefetch(iter(range(1000)))
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hdccf-prefetch")]

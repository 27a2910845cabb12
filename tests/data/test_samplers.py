"""Batches: in-batch, uniform, block and history, against what each promises."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import literal
from graphs import interactions, random_interactions
from hdccf.data.batches import Block, History, cut_histories
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import (
    BlockSampler,
    HistoryBlockSampler,
    InBatchSampler,
    UniformSampler,
    block_columns,
    draw_columns,
)
from hdccf.errors import ConfigError, DataError

Sampler = InBatchSampler | UniformSampler | BlockSampler | HistoryBlockSampler
KINDS = ["in-batch", "uniform", "block", "drawn-block", "history", "drawn-history"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(graph: Graph) -> Tensor:
    """A weight for each pair by which it can be recognised."""
    return torch.arange(1, graph.n_pairs + 1, dtype=torch.float32)


def sampler(kind: str, data: Interactions, size: int = 4) -> Sampler:
    graph = Graph.of(data)
    weights = numbered(graph)
    columns = 3 if kind.startswith("drawn") else 1000
    if kind == "in-batch":
        return InBatchSampler(graph, weights, size, 3)
    if kind == "uniform":
        return UniformSampler(graph, weights, size, 5, 3)
    if kind.endswith("block"):
        return BlockSampler(graph, weights, size, columns)
    return HistoryBlockSampler(graph, weights, size, columns, 2.0, 4, 3, 1.5)


# -- what all of them promise -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_generator_gives_the_same_batches_and_another_gives_others(kind: str) -> None:
    made = sampler(kind, random_interactions(0, full=False))

    def epoch(seed: int) -> list[str]:
        return [repr(batch) for batch in made.epoch(generator(seed))]

    torch.manual_seed(1)
    first = epoch(5)
    torch.manual_seed(2)
    assert epoch(5) == first
    assert epoch(6) != first


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 4, 100])
def test_an_epoch_has_as_many_batches_as_it_says(kind: str, size: int) -> None:
    data = interactions(
        [(0, 0), (0, 1), (0, 2), (2, 1), (4, 3), (4, 0), (5, 2), (5, 3)], n_users=9, n_items=7
    )
    made = sampler(kind, data, size)
    assert len(list(made.epoch(generator()))) == len(made)


@pytest.mark.parametrize("kind", ["in-batch", "uniform", "block", "drawn-block"])
@pytest.mark.parametrize("size", [2, 3, 5, 100])
def test_an_epoch_has_every_pair_once_with_its_own_weight(kind: str, size: int) -> None:
    data = random_interactions(3, full=False)
    made = sampler(kind, data, size)
    seen = []
    for batch in made.epoch(generator()):
        if isinstance(batch, Block):
            items = batch.positive_columns if batch.columns is None else batch.columns[batch.positive_columns]
            users = batch.users[batch.rows]
        else:
            users, items = batch.users, batch.items
        seen += list(zip(users.tolist(), items.tolist(), batch.weights.tolist(), strict=True))
    rows = zip(data.users.tolist(), data.items.tolist(), range(1, len(data) + 1), strict=True)
    assert sorted(seen) == sorted((user, item, float(weight)) for user, item, weight in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_grows_with_users_times_items(kind: str) -> None:
    """A dense matrix of these users and items would take 90 GB; nothing here is as large as a table."""
    n, rng = 300_000, np.random.default_rng(0)
    users = np.repeat(np.arange(0, n, 100), 2)
    data = interactions(list(zip(users, rng.integers(0, n, len(users)), strict=True)), n_users=n, n_items=n)
    made = sampler(kind, data, 64)
    batch = next(iter(made.epoch(generator())))
    assert max(tensor.numel() for tensor in tensors_of(batch)) <= 64 * 1024


def tensors_of(batch: object) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    return [t for part in batch for t in tensors_of(part)] if isinstance(batch, tuple) else []


# -- in-batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", range(1, 7))
def test_in_batch_negatives_are_equation_9_as_multi_sets(neighbours: int) -> None:
    graph = Graph.of(random_interactions(1))
    observed = set(zip(graph.pair_users.tolist(), graph.items_of.flat.tolist(), strict=True))
    made = InBatchSampler(graph, numbered(graph), 6, neighbours)
    repeated = False
    for batch in made.epoch(generator()):
        for side, targets, pairs in (
            (batch.item_negatives, batch.users, observed),
            (batch.user_negatives, batch.items, {(item, user) for user, item in observed}),
        ):
            drawn = side.columns[side.own].tolist()
            assert all(
                (node, neighbour) in pairs
                for node, row in zip(targets.tolist(), drawn, strict=True)
                for neighbour in row
            )
            assert side.columns.tolist() == sorted({x for row in drawn for x in row})
            every = Counter(x for row in drawn for x in row)
            assert dict(zip(side.columns.tolist(), side.counts.tolist(), strict=True)) == every
            repeated |= max(every.values()) > 1
            for k, row in enumerate(drawn):
                assert every - Counter(row) == Counter(literal.in_batch_negatives(drawn, k))
            masked = set(zip(side.observed_rows.tolist(), side.observed_columns.tolist(), strict=True))
            assert len(masked) == len(side.observed_rows)
            assert masked == {
                (row, place)
                for row, node in enumerate(targets.tolist())
                for place, column in enumerate(side.columns.tolist())
                if (node, column) in pairs
            }
    assert repeated


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    data = random_interactions(2).subset(np.arange(16))
    sizes = [len(batch.users) for batch in sampler("in-batch", data, 5).epoch(generator())]
    assert sizes == [5, 5, 6]
    alone = [
        len(batch.users) for batch in sampler("uniform", data.subset(np.arange(4)), 3).epoch(generator())
    ]
    assert alone == [3, 1]  # with negatives of its own one is enough


def test_one_pair_has_no_in_batch_negatives_and_says_so() -> None:
    made = sampler("in-batch", interactions([(0, 0)], n_items=4))
    with pytest.raises(ConfigError, match=r"^in-batch negatives need at least two training pairs.*$"):
        next(iter(made.epoch(generator())))


# -- uniform ------------------------------------------------------------------------------------------------


def test_uniform_negatives_are_never_observed_and_neighbours_always() -> None:
    graph = Graph.of(random_interactions(4, full=False))
    made = UniformSampler(graph, numbered(graph), 5, 40, 6)
    for batch in made.epoch(generator()):
        for columns, nodes, side, expected in (
            (batch.negative_items, batch.users, graph.items_of, False),
            (batch.negative_users, batch.items, graph.users_of, False),
            (batch.neighbour_items, batch.users, graph.items_of, True),
            (batch.neighbour_users, batch.items, graph.users_of, True),
        ):
            found = side.contains(nodes.repeat_interleave(columns.shape[1]), columns.flatten())
            assert found.eq(expected).all()


def test_a_user_with_every_item_has_no_uniform_negatives_and_says_so() -> None:
    with pytest.raises(DataError, match="nothing is left to be its negative"):
        list(sampler("uniform", random_interactions(0)).epoch(generator()))


# -- blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["block", "drawn-block", "history", "drawn-history"])
@pytest.mark.parametrize("seed", range(3))
def test_a_block_knows_every_observed_pair_inside(kind: str, seed: int) -> None:
    data = random_interactions(seed)
    observed = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
    for batch in sampler(kind, data, 3).epoch(generator(seed)):
        assert isinstance(batch, Block)
        columns = range(data.n_items) if batch.columns is None else batch.columns.tolist()
        assert len(set(columns)) == len(columns)
        inside = {
            (row, place)
            for row, user in enumerate(batch.users.tolist())
            for place, item in enumerate(columns)
            if (user, item) in observed
        }
        masked = list(zip(batch.observed_rows.tolist(), batch.observed_columns.tolist(), strict=True))
        assert len(masked) == len(inside)
        assert set(masked) == inside
        positives = set(zip(batch.rows.tolist(), batch.positive_columns.tolist(), strict=True))
        assert positives <= inside
        if kind.endswith("block"):
            assert positives == inside


def test_users_without_training_pairs_are_in_no_block() -> None:
    data = interactions([(1, 0), (1, 2), (4, 1)], n_users=6, n_items=3)
    users = [user for batch in sampler("block", data, 1).epoch(generator()) for user in batch.users.tolist()]
    assert sorted(users) == [1, 4]


def test_drawn_columns_have_the_positives_for_certain_and_fill_up_to_the_size() -> None:
    columns, inclusion = draw_columns(torch.tensor([7, 2, 7]), 20, 8, generator())
    assert columns[:2].tolist() == [2, 7]
    assert len(set(columns.tolist())) == 8
    assert inclusion.tolist() == [1.0, 1.0] + [3.0] * 6
    # As many drawn as certain where the size leaves too little room, and never more than there are.
    assert len(draw_columns(torch.arange(5), 20, 2, generator())[0]) == 10
    assert len(draw_columns(torch.arange(15), 20, 2, generator())[0]) == 20
    columns, inclusion = draw_columns(torch.arange(20), 20, 2, generator())
    assert columns.tolist() == list(range(20))
    assert inclusion.tolist() == [1.0] * 20


def test_a_block_that_would_draw_nearly_all_items_takes_them_all() -> None:
    few, many = torch.tensor([0, 5, 5]), torch.arange(8)
    for positives, n_items, size in (
        (few, 16, 16),  # as many as may be columns
        (few, 17, 15),  # more than seven eighths are asked for
        (many, 18, 9),  # the positives and as many others are more than that
    ):
        assert block_columns(positives, n_items, size, generator()) == (None, None)
    for positives, n_items, size in (
        (few, 16, 14),  # seven eighths and no more
        (many, 19, 10),
        (many, 18, 8),  # all would be more than twice the size
    ):
        columns, inclusion = block_columns(positives, n_items, size, generator())
        assert columns is not None
        assert inclusion is not None
        expected = draw_columns(positives, n_items, size, generator())
        assert columns.tolist() == expected[0].tolist()
        assert inclusion.tolist() == expected[1].tolist()


def test_few_columns_of_many_are_distinct_and_equally_likely() -> None:
    made, positives = generator(), torch.tensor([0, 5, 6, 39])
    counts = torch.zeros(40)
    for _ in range(4000):
        columns, inclusion = draw_columns(positives, 40, 12, made)
        assert columns[:4].tolist() == [0, 5, 6, 39]
        assert len(columns) == len(set(columns.tolist())) == 12
        assert set(inclusion[4:].tolist()) == {36 / 8}
        counts[columns[4:]] += 1
    assert counts[positives].tolist() == [0, 0, 0, 0]
    others = counts[counts > 0]
    # A draw without replacement spreads less than a multinomial one, so this is on the safe side.
    assert len(others) == 36
    assert stats.chisquare(others.numpy()).pvalue > 1e-4


def test_sums_over_drawn_columns_are_unbiased_over_all_draws() -> None:
    """The expectation by enumeration: every set of drawn columns is equally likely, and all are met."""
    n_items, positives, size = 7, torch.tensor([1, 4]), 5
    values = np.random.default_rng(0).random(n_items)
    estimates: dict[frozenset[int], float] = {}
    met: Counter[frozenset[int]] = Counter()
    made = generator()
    for _ in range(2000):
        columns, inclusion = draw_columns(positives, n_items, size, made)
        key = frozenset(columns.tolist())
        met[key] += 1
        estimates[key] = float((inclusion.double().numpy() * values[columns.numpy()]).sum())
    every = {frozenset({1, 4, *rest}) for rest in itertools.combinations([0, 2, 3, 5, 6], 3)}
    assert set(estimates) == every
    assert max(met.values()) < 2 * min(met.values())
    assert np.mean(list(estimates.values())) == pytest.approx(values.sum(), rel=1e-6)


# -- histories ----------------------------------------------------------------------------------------------


def test_histories_are_causal_and_weighted_as_documented() -> None:
    data = random_interactions(5, 12, 30, 0.4)
    half_life, length, ahead, ahead_half_life = 2.0, 4, 3, 1.5
    graph = Graph.of(data)
    weights = numbered(graph)
    made = HistoryBlockSampler(graph, weights, 5, 1000, half_life, length, ahead, ahead_half_life)
    cuts_seen = set()
    for seed in range(25):
        users = []
        for batch in made.epoch(generator(seed)):
            users += batch.users.tolist()
            assert isinstance(batch.history, History)
            assert batch.history.rows.tolist() == sorted(batch.history.rows.tolist())
            for row, user in enumerate(batch.users.tolist()):
                past = data.by_user.of(user).tolist()
                here, there = batch.history.rows == row, batch.rows == row
                inputs, positives = batch.history.items[here].tolist(), batch.positive_columns[there].tolist()
                cut = past.index(positives[0])
                cuts_seen.add((user, cut))
                # Strictly before the cut, the last `length` of them; right after it, the next `ahead`.
                assert cut >= 1
                assert inputs == past[max(0, cut - length) : cut]
                assert positives == past[cut : cut + ahead]
                age = range(len(inputs) - 1, -1, -1)
                torch.testing.assert_close(
                    batch.history.weights[here], torch.tensor([0.5 ** (a / half_life) for a in age])
                )
                first = int(data.by_user.starts[user]) + cut
                own = [float(weights[first + place]) for place in range(len(positives))]
                expected = [w * 0.5 ** (place / ahead_half_life) for place, w in enumerate(own)]
                torch.testing.assert_close(batch.weights[there], torch.tensor(expected))
        # A history of one has no past: the last user is left out, all others are there once.
        assert sorted(users) == list(range(11))
    every = {(user, cut) for user in range(11) for cut in range(1, len(data.by_user.of(user)))}
    assert cuts_seen <= every
    assert len(cuts_seen) > 0.8 * len(every)
    # The last item is a positive as often as any other.
    assert len({(user, len(data.by_user.of(user)) - 1) for user in range(11)} & cuts_seen) >= 7


def test_a_cut_takes_the_last_items_before_it() -> None:
    graph = Graph.of(interactions([(0, 3), (0, 1), (0, 2), (1, 0)]))
    history = cut_histories(graph.items_of, torch.tensor([1, 0]), torch.tensor([0, 3]), 1.0, 2)
    assert history.rows.tolist() == [1, 1]
    assert history.items.tolist() == [1, 2]
    assert history.weights.tolist() == [0.5, 1.0]


def test_histories_of_one_item_each_are_an_error_of_one_line() -> None:
    made = sampler("history", interactions([(0, 0), (1, 1)]))
    with pytest.raises(ConfigError, match=r"^user_vector='history' needs a user with two training items.*$"):
        next(iter(made.epoch(generator())))

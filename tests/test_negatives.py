"""From batches to losses: the weights of negatives, both sides, vectors of ω, clip rates, unbiased sums."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import literal
from graphs import interactions, random_interactions
from hdccf.data.batches import Block
from hdccf.data.graph import Graph
from hdccf.data.samplers import BlockSampler, InBatchSampler, draw_columns
from hdccf.losses.negatives import ContrastiveLoss, NegativeSet
from hdccf.models.hdccf.steps import block_pairs, in_batch_log_weights
from small_world import NegativeTerm, World, assert_equal, table, world

TAU = 0.3


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def contrast(
    omega_items: Tensor | float, omega_users: Tensor | float, lowest: float = -1.0
) -> ContrastiveLoss:
    return ContrastiveLoss(TAU, 0.7, 1.3, omega_items, omega_users, lowest)


def some(n: int, low: float, high: float, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


# -- in-batch ------------------------------------------------------------------------------------------------


def sides(w: World) -> tuple[Tensor, NegativeSet, NegativeSet]:
    """The targets' scores, the items against them and the users."""
    users, items = (torch.tensor(side) for side in zip(*w.batch, strict=True))

    def against(scores: Tensor, side: NegativeTerm, targets: Tensor) -> NegativeSet:
        own = torch.tensor(side.positives)
        return NegativeSet(
            scores[:, side.columns],
            side.log_weights,
            w.size,
            scores.gather(1, own),
            own != targets.unsqueeze(1),
        )

    return w.f[users, items], against(w.f[users], w.items, items), against(w.f[:, items].T, w.users, users)


@pytest.mark.parametrize("neighbours", range(1, 7))
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_each_instance_may_have_omegas_of_its_own(neighbours: int, beta: float) -> None:
    for seed in range(3):
        w = world(seed, neighbours, beta, TAU)
        target, items, users = sides(w)
        of_items, of_users = some(len(target), 0.0, 0.1, 1), some(len(target), 0.0, 0.1, 2)
        of_items[3] = 0.0  # a vector may hold a zero: that row is as it was, and never clipped
        made = contrast(of_items, of_users)
        loss = made.loss(target, made.term(items, target, of_items), made.term(users, target, of_users))
        expected = [
            literal.debiased_contrastive(
                table(w.f),
                u,
                i,
                literal.in_batch_negatives(w.items.positives, k),
                literal.in_batch_negatives(w.users.positives, k),
                w.items.positives[k],
                w.users.positives[k],
                w.is_observed,
                float(of_items[k]),
                float(of_users[k]),
                TAU,
                w.item_weight,
                w.user_weight,
                item_weight=0.7,
                user_weight=1.3,
            )
            for k, (u, i) in enumerate(w.batch)
        ]
        assert_equal(loss, expected)
        assert loss[0] == 0.0  # nothing is left on either side


def test_a_side_that_is_left_out_or_empty_adds_nothing() -> None:
    w = world(0, 2, tau=TAU)
    target, items, users = sides(w)
    made = contrast(0.05, 0.05)
    left, right = made.term(items, target, 0.05), made.term(users, target, 0.05)
    alone = ContrastiveLoss(TAU, 0.7, 0.0, 0.05, 0.05, -1.0)
    assert_equal(made.loss(target, left, None), alone.loss(target, left, right))
    assert made.loss(target, None, None).eq(0).all()
    assert left.log_score[0].isneginf()


@pytest.mark.parametrize("neighbours", [1, 3, 6])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("masked", [True, False])
def test_in_batch_weights_are_counts_times_frequencies_without_own_and_observed(
    neighbours: int, beta: float, masked: bool
) -> None:
    graph = Graph.of(random_interactions(1))
    pairs = set(zip(graph.pair_users.tolist(), graph.items_of.flat.tolist(), strict=True))
    sampler = InBatchSampler(graph, torch.ones(graph.n_pairs), 6, neighbours)
    frequency = graph.users_of.degrees.double()
    for batch in sampler.epoch(torch.Generator().manual_seed(0)):
        side = batch.item_negatives
        log_frequency = -beta * frequency[side.columns].log()
        measured = in_batch_log_weights(side, log_frequency, mask_observed=masked).exp()
        drawn = side.columns[side.own].tolist()
        expected = [
            [
                literal.in_batch_negatives(drawn, k).count(item)
                * math.pow(float(frequency[item]), -beta)
                * (not (masked and (user, item) in pairs))
                for item in side.columns.tolist()
            ]
            for k, user in enumerate(batch.users.tolist())
        ]
        assert_equal(measured, expected)


# -- blocks --------------------------------------------------------------------------------------------------


def held(
    negatives: list[tuple[float, float]], positives: list[float], omega: float, lowest: float
) -> tuple[float, bool]:
    """Eq. 15 and 16 with weights that are taken as they are: (weight, score) of negatives, Q = Σ weights."""
    if not negatives:
        return 0.0, False
    biased = sum(weight * math.exp(score / TAU) for weight, score in negatives)
    size = sum(weight for weight, _ in negatives)
    mean = sum(math.exp(score / TAU) for score in positives) / len(positives)
    debiased = (biased - omega * size * mean) / (1 - omega)
    floor = 1e-6 * biased if math.isinf(lowest) else size * math.exp(lowest / TAU)
    return (debiased, False) if omega == 0 or debiased > floor else (floor, True)


@pytest.mark.parametrize("lowest", [-1.0, -math.inf])
@pytest.mark.parametrize("kind", ["none", "scalar", "vector"])
def test_a_block_is_equations_14_to_16_for_each_positive(kind: str, lowest: float) -> None:
    data = random_interactions(2)
    graph = Graph.of(data)
    sampler = BlockSampler(graph, torch.ones(len(data)), 4, 1000)
    clipped_some = False
    for batch in sampler.epoch(torch.Generator().manual_seed(0)):
        n_rows, n_columns = len(batch.users), graph.n_items
        scores = some(n_rows * n_columns, -1, 1).view(n_rows, n_columns)
        item_weights, user_weights = some(n_columns, 0.5, 2, 3), some(n_rows, 0.5, 2, 4)
        of_rows = {"none": 0.0, "scalar": 0.3}.get(kind, some(n_rows, 0.0, 0.2, 5))
        of_columns = {"none": 0.0, "scalar": 0.2}.get(kind, some(n_columns, 0.0, 0.2, 6))
        made = contrast(of_rows, of_columns, lowest)
        positive, items, users = made.block_terms(
            scores,
            block_pairs(batch),
            block_pairs(batch),
            log_item_weights=item_weights.log(),
            log_user_weights=user_weights.log(),
        )
        observed = set(zip(batch.observed_rows.tolist(), batch.observed_columns.tolist(), strict=True))
        s = scores.tolist()
        omegas = [
            torch.as_tensor(x).expand(n).tolist() for x, n in ((of_rows, n_rows), (of_columns, n_columns))
        ]
        expected, clips = [], []
        for r, c in zip(batch.rows.tolist(), batch.positive_columns.tolist(), strict=True):
            item_side, item_clip = held(
                [(float(item_weights[x]), s[r][x]) for x in range(n_columns) if (r, x) not in observed],
                [s[r][x] for x in range(n_columns) if (r, x) in observed],
                omegas[0][r],
                lowest,
            )
            user_side, user_clip = held(
                [(float(user_weights[x]), s[x][c]) for x in range(n_rows) if (x, c) not in observed],
                [s[x][c] for x in range(n_rows) if (x, c) in observed],
                omegas[1][c],
                lowest,
            )
            top = math.exp(s[r][c] / TAU)
            expected.append(-math.log(top / (top + 0.7 * item_side + 1.3 * user_side)))
            clips.append((item_clip, user_clip))
        assert_equal(made.loss(positive, items, users), expected)
        # The share of positives whose side is held: what trains, and the same for every kind of batch.
        shares = torch.tensor(clips).double().mean(0)
        assert_equal(torch.stack([items.clipped, users.clipped]), shares)
        clipped_some |= bool(0 < shares[0] < 1 or 0 < shares[1] < 1)
    assert clipped_some == (kind != "none")


def test_drawn_columns_leave_each_rows_negative_score_unbiased() -> None:
    """The mean over every set of columns that can be drawn is the sum over the catalogue."""
    graph = Graph.of(interactions([(0, 0), (0, 1), (1, 1)], n_items=9))
    users = torch.arange(2)
    scores = some(2 * 9, -1, 1).view(2, 9)
    log_items, log_users = some(9, -1, 1, 2), torch.zeros(2)
    made = contrast(0.0, 0.0)

    def row_sums(columns: Tensor, inclusion: Tensor) -> Tensor:
        rows, places, entries = graph.items_of.within(users, columns)
        weights = torch.ones(len(entries))
        block = Block(users, columns, inclusion, rows, places, rows, places, weights, None)
        _, items, _ = made.block_terms(
            scores[:, columns],
            block_pairs(block),
            block_pairs(block),
            log_item_weights=log_items[columns] + inclusion.log(),
            log_user_weights=log_users,
        )
        return torch.stack([items.log_score[rows == row][0].exp() for row in (0, 1)])

    everything = row_sums(torch.arange(9), torch.ones(9))
    _, positives, _ = graph.items_of.within(users, None)
    generator = torch.Generator().manual_seed(0)
    seen: dict[frozenset[int], Tensor] = {}
    for _ in range(500):
        columns, inclusion = draw_columns(positives, 9, 5, generator)
        seen[frozenset(columns.tolist())] = row_sums(columns, inclusion)
    assert len(seen) == math.comb(7, 3)
    assert_equal(torch.stack(list(seen.values())).mean(0), everything)

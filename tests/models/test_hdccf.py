"""HDCCF end to end: the loss of every kind of real batch, and its gradient, are those of the equations."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import literal
from graphs import interactions, random_interactions
from hdccf import losses
from hdccf.data.batches import Block, InBatch
from hdccf.data.graph import Graph, nearest_nodes
from hdccf.data.interactions import Interactions
from hdccf.data.weights import positive_weights
from hdccf.errors import ConfigError
from hdccf.models.base import Objective
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from literal_attention import users_after
from literal_hdccf import Literal
from literal_vectors import unit
from small_world import assert_equal


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Draws:
    """What was drawn with these two functions of torch, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Tensor] = []
        for name in ("randperm", "multinomial", "randint"):
            monkeypatch.setattr(torch, name, self._keeping(getattr(torch, name)))

    def _keeping(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def keep(*given: Any, **named: Any) -> Tensor:
            self.made.append(original(*given, **named))
            return self.made[-1]

        return keep


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> Draws:
    return Draws(monkeypatch)


def built(data: Interactions, seed: int = 0, **values: Any) -> HDCCFModel:
    chosen: dict[str, Any] = {
        "embedding_dim": 3,
        "user_vector": "free",
        "temperature": 0.3,
        "item_side": 0.7,
        "user_side": 1.3,
        "start": "random",
        "init_std": 1.0,
        "batch_size": 6,
        "recency_half_life": 3.0,
        "recency_floor": 0.1,
    }
    return HDCCFModel(HDCCF(**{**chosen, **values}), data, torch.Generator().manual_seed(seed))


def batches(model: HDCCFModel, seed: int = 0) -> list[Any]:
    """A pass over the data; positives' weights are kept in float32, whose sums are too coarse here."""
    epoch = model.batches(torch.Generator().manual_seed(seed))
    return [batch._replace(weights=batch.weights.double()) for batch in epoch]


def objective(model: HDCCFModel, batch: Any, seed: int = 5) -> Objective:
    (made,) = model.objectives(batch, torch.Generator().manual_seed(seed))
    return made


def check(
    model: HDCCFModel,
    data: Interactions,
    batch: Any,
    draws: Draws,
    *,
    gradient: bool = True,
    rel: float = 1e-6,
) -> Objective:
    """Value, parts, and the derivative in random directions of all parameters at once."""
    draws.made.clear()
    made = objective(model, batch)
    drawn = list(draws.made)

    def parts() -> dict[str, float]:
        loops = Literal(model, data)
        return loops.block(batch, list(drawn)) if isinstance(batch, Block) else loops.instances(batch)

    expected = parts()
    assert_equal(made.loss.detach(), torch.tensor(sum(expected.values())))
    if len(expected) > 1:
        for name, value in expected.items():
            assert_equal(made.terms[name], torch.tensor(value))
    parameters: list[Tensor] = list(model.parameters())
    gradients = torch.autograd.grad(made.loss, parameters, allow_unused=True, materialize_grads=True)
    generator, width = torch.Generator().manual_seed(9), 1e-5
    for _ in range(2 if gradient else 0):
        directions = [torch.randn(p.shape, generator=generator) for p in parameters]
        slope = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
        ends = []
        for sign in (1, -2):  # one step up, two down, one up again
            move(parameters, directions, sign * width)
            ends.append(sum(parts().values()))
        move(parameters, directions, width)
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * width), rel=rel, abs=1e-8)
    return made


@torch.no_grad()
def move(parameters: list[Tensor], directions: list[Tensor], width: float) -> None:
    for parameter, direction in zip(parameters, directions, strict=True):
        parameter += width * direction


# -- in-batch and uniform ------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", range(1, 7))
@pytest.mark.parametrize(("beta", "omega"), [(0.0, 0.0), (0.5, 0.02), (1.0, 0.1)])
def test_in_batch_losses_are_equations_9_14_to_17(
    neighbours: int, beta: float, omega: float, draws: Draws
) -> None:
    data = random_interactions(neighbours)
    model = built(
        data,
        sampler="in-batch",
        neighbours=neighbours,
        frequency_correction=beta,
        omega_items=omega,
        omega_users=omega / 2,
        user_user_weight=0.4,
        item_item_weight=0.6,
    )
    epoch = batches(model)
    assert len(epoch[-1].users) in range(2, 8)
    assert any((0, 0) in zip(b.users.tolist(), b.items.tolist(), strict=True) for b in epoch)  # all masked
    for batch in epoch[-3:]:
        terms = check(model, data, batch, draws).terms
        assert omega > 0 or terms["clipped-items"] == terms["clipped-users"] == 0


def test_equality_holds_where_some_rows_are_clipped_and_some_are_not(draws: Draws) -> None:
    shares = []
    for seed in range(4):
        data = random_interactions(seed)
        model = built(data, sampler="in-batch", omega_items=0.08, omega_users=0.08)
        shares += [float(check(model, data, batch, draws).terms["clipped-items"]) for batch in batches(model)]
    assert sum(0 < share < 1 for share in shares) > 5


@pytest.mark.parametrize("hidden", [(), (4,)])
@pytest.mark.parametrize("factors", ["shared", "separate"])
@pytest.mark.parametrize("sampler", ["in-batch", "uniform", "block"])
def test_modulated_losses_are_the_equations_with_a_g_for_each_relation(
    hidden: tuple[int, ...], factors: str, sampler: str, draws: Draws
) -> None:
    data = random_interactions(3, full=sampler != "uniform")
    model = built(
        data,
        sampler=sampler,
        similarity="modulated",
        hidden=hidden,
        factors=factors,
        omega_items=0.05,
        user_user_weight=0.4,
        item_item_weight=0.6,
        negatives=4,
        block_users=4,
    )
    check(model, data, batches(model)[0], draws)


@pytest.mark.parametrize("sampler", ["in-batch", "block"])
def test_without_masks_observed_pairs_are_negatives_like_any_other(sampler: str, draws: Draws) -> None:
    data = random_interactions(2)
    model = built(data, sampler=sampler, mask_observed=False, user_user_weight=0.4, item_item_weight=0.6)
    for batch in batches(model):
        check(model, data, batch, draws)
    masked = built(data, sampler=sampler, user_user_weight=0.4, item_item_weight=0.6)
    assert objective(masked, batch).loss < objective(model, batch).loss


@pytest.mark.parametrize("neighbours", [1, 2, 6])
@pytest.mark.parametrize(("beta", "omega"), [(0.0, 0.0), (0.5, 0.1), (1.0, 0.02)])
def test_uniform_losses_are_equations_1_14_to_17(
    neighbours: int, beta: float, omega: float, draws: Draws
) -> None:
    data = random_interactions(neighbours, share=0.25, full=False)
    model = built(
        data,
        sampler="uniform",
        neighbours=neighbours,
        negatives=5,
        frequency_correction=beta,
        omega_items=omega,
        omega_users=omega / 2,
        user_user_weight=0.4,
        item_item_weight=0.6,
    )
    for batch in batches(model)[-2:]:
        check(model, data, batch, draws)


def test_uniform_without_correction_is_equation_1_itself() -> None:
    data = random_interactions(1, full=False)
    model = built(data, sampler="uniform", negatives=5, recency_half_life=None)
    loops = Literal(model, data)
    assert loops.users is not None
    f = loops.score("ui", loops.users, loops.items)
    for batch in batches(model):
        each = [
            literal.contrastive(f, u, i, items, users, 0.3, 0.7, 1.3)
            for u, i, items, users in zip(
                batch.users.tolist(),
                batch.items.tolist(),
                batch.negative_items.tolist(),
                batch.negative_users.tolist(),
                strict=True,
            )
        ]
        assert_equal(objective(model, batch).loss.detach(), torch.tensor(np.mean(each)))


# -- blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1000, 3])
@pytest.mark.parametrize("similarity", ["cosine", "popular", "dot", "euclidean"])
@pytest.mark.parametrize(("beta", "omega"), [(0.0, 0.0), (0.5, 0.02), (1.0, 0.1)])
def test_block_losses_are_the_equations_for_every_positive(
    columns: int, similarity: str, beta: float, omega: float, draws: Draws
) -> None:
    data = random_interactions(4)
    model = built(
        data,
        similarity=similarity,
        block_users=3,
        block_items=columns,
        frequency_correction=beta,
        omega_items=omega,
        omega_users=omega / 2,
        user_user_weight=0.4 if similarity != "popular" else 0.0,
        item_item_weight=0.6 if similarity != "popular" else 0.0,
        neighbours=3,
    )
    if similarity == "popular":
        assert not model.items.embedding[:, -1].any()
        nn.init.normal_(model.items.embedding, generator=torch.Generator().manual_seed(8))
    epoch = batches(model)
    assert [len(batch.users) for batch in epoch] == [3, 3, 1]
    # Without a lower bound a clipped row is held at a share of itself, and by decision passes no gradient.
    differentiable = similarity not in ("dot", "popular") or omega == 0
    for batch in epoch:
        check(model, data, batch, draws, gradient=differentiable)


@pytest.mark.parametrize("columns", [1000, 3])
@pytest.mark.parametrize(("omega", "table"), [(0.0, "shared"), (0.0, "own"), (0.05, "own")])
def test_history_losses_are_the_equations_with_users_made_of_their_past(
    columns: int, omega: float, table: str, draws: Draws
) -> None:
    data = random_interactions(4)
    model = built(
        data,
        user_vector="history",
        block_users=4,
        block_items=columns,
        history_half_life=2.0,
        history_length=3,
        history_table=table,
        ahead=2,
        omega_items=omega,
        omega_users=omega,
        user_user_weight=0.4,
        item_item_weight=0.6,
    )
    assert not any(name.startswith("users") for name, _ in model.named_parameters())
    if model.past is not None:  # it starts as a copy of the items' table; here the two must be told apart
        move([model.past.embedding], [torch.randn(model.past.embedding.shape)], 0.5)
    for seed in range(3):
        for batch in batches(model, seed):
            check(model, data, batch, draws)


@pytest.mark.parametrize("columns", [1000, 3])
@pytest.mark.parametrize(("omega", "table"), [(0.0, "shared"), (0.05, "own")])
def test_attention_losses_are_the_equations_with_a_row_for_every_moment(
    columns: int, omega: float, table: str, draws: Draws
) -> None:
    data = random_interactions(4)
    model = built(
        data,
        embedding_dim=4,
        user_vector="history",
        history_encoder="attention",
        attention_dropout=0.0,
        block_users=4,
        block_items=columns,
        history_length=3,
        history_table=table,
        ahead=2,
        omega_items=omega,
        omega_users=omega,
        user_user_weight=0.4,
        item_item_weight=0.6,
    )
    # What starts as nothing, or as a copy, would hide what is wrong with it.
    fresh: list[Tensor] = [
        p for name, p in model.named_parameters() if name.startswith(("attention", "past"))
    ]
    generator = torch.Generator().manual_seed(2)
    move(fresh, [torch.randn(p.shape, generator=generator) for p in fresh], 0.4)
    for batch in batches(model, 1):
        # Through norms and a softmax the loss is more curved than elsewhere.
        check(model, data, batch, draws, rel=1e-5)


@pytest.mark.parametrize("columns", [1000, 3])
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "modulated"])
@pytest.mark.parametrize(("user_weight", "item_weight"), [(0.4, 0.6), (0.4, 0.0)])
def test_nearest_neighbours_are_contrasted_with_users_and_items(
    columns: int, similarity: str, user_weight: float, item_weight: float, draws: Draws
) -> None:
    data = random_interactions(4)
    model = built(
        data,
        similarity=similarity,
        block_users=3,
        block_items=columns,
        nearest=2,
        user_user_weight=user_weight,
        item_item_weight=item_weight,
    )
    for batch in batches(model):
        check(model, data, batch, draws)


@pytest.mark.parametrize("encoder", ["sum", "attention"])
def test_nearest_items_go_with_histories(encoder: str, draws: Draws) -> None:
    data = random_interactions(4)
    model = built(
        data,
        embedding_dim=4,
        user_vector="history",
        history_encoder=encoder,
        attention_dropout=0.0,
        block_users=4,
        history_length=3,
        nearest=2,
        item_item_weight=0.6,
    )
    for batch in batches(model):
        check(model, data, batch, draws, rel=1e-5)


@pytest.mark.parametrize("side", ["users", "items"])
def test_nearest_nodes_have_the_largest_cosines_of_who_has_what(side: str) -> None:
    data = random_interactions(4)
    graph, matrix = Graph.of(data), data.matrix.toarray()
    if side == "users":
        rows, found = matrix, nearest_nodes(graph.items_of, graph.users_of, 3)
    else:
        rows, found = matrix.T, nearest_nodes(graph.users_of, graph.items_of, 3)
    for node, near in enumerate(found.tolist()):
        assert len({x for x in near if x != node}) == sum(x != node for x in near)
        cosines = {
            x: float(rows[node] @ rows[x]) / np.sqrt(max(1, rows[node].sum()) * max(1, rows[x].sum()))
            for x in range(len(rows))
            if x != node
        }
        best = sorted(cosines.values(), reverse=True)[:3]
        assert [cosines.get(x, 0.0) for x in near] == pytest.approx(best)


def test_nearest_neighbours_need_blocks_and_free_users() -> None:
    with pytest.raises(ConfigError, match="set sampler to block"):
        HDCCF(nearest=5, sampler="uniform")
    with pytest.raises(ConfigError, match="set user_user_weight to 0"):
        HDCCF(nearest=5, user_vector="history", user_user_weight=0.1)
    model = built(random_interactions(4), nearest=5, user_vector="auto", user_user_weight=0.1)
    assert model.users is not None
    assert "nearest users" in model.settings.choices(random_interactions(4))


def test_a_block_of_everything_is_equation_1_with_all_negatives() -> None:
    data = random_interactions(5)
    model = built(data, block_users=100, recency_half_life=None)
    (batch,) = batches(model)
    loops = Literal(model, data)
    assert loops.users is not None
    f = loops.score("ui", loops.users, loops.items)
    each = [
        literal.contrastive(
            f,
            u,
            i,
            [item for item in range(data.n_items) if (u, item) not in loops.pairs],
            [user for user in range(data.n_users) if (user, i) not in loops.pairs],
            0.3,
            0.7,
            1.3,
        )
        for u, i in sorted(loops.pairs)
    ]
    assert_equal(objective(model, batch).loss.detach(), torch.tensor(np.mean(each)))


def test_anchors_of_a_block_are_at_most_a_batch(draws: Draws) -> None:
    data = random_interactions(5)
    model = built(data, block_users=100, batch_size=4, user_user_weight=1.0)
    check(model, data, batches(model)[0], draws)
    anchors, neighbours = draws.made[-2:]
    assert len(anchors) == len(data)
    assert len(neighbours) == 4


# -- ablations' losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["bpr", "pointwise"])
@pytest.mark.parametrize("sampler", ["in-batch", "uniform"])
def test_one_drawn_negative_a_positive_for_bpr_and_pointwise(loss: str, sampler: str, draws: Draws) -> None:
    data = random_interactions(3, full=sampler == "in-batch")
    model = built(data, sampler=sampler, loss=loss, recency_half_life=None, negatives=4)
    for batch in batches(model):
        draws.made.clear()
        made = objective(model, batch)
        (chosen,) = draws.made
        loops = Literal(model, data)
        assert loops.users is not None
        f = loops.score("ui", loops.users, loops.items)
        each = []
        for k, (u, i) in enumerate(zip(batch.users.tolist(), batch.items.tolist(), strict=True)):
            candidates = (
                batch.item_negatives.columns if isinstance(batch, InBatch) else batch.negative_items[k]
            )
            negative = int(candidates[chosen[k, 0]])
            if set(candidates.tolist()) <= {item for user, item in loops.pairs if user == u}:
                each.append(torch.tensor(0.0))  # nothing is left to be a negative
                continue
            assert (u, negative) not in loops.pairs
            positive, other = (torch.tensor([f(u, x)]) for x in (i, negative))
            if loss == "bpr":
                each.append(losses.bpr_loss(positive, other)[0])
            else:
                each.append(-(positive.sigmoid().log() + (1 - other.sigmoid()).log())[0])
        assert_equal(made.loss.detach(), torch.stack(each).mean())
        made.loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# -- the model around its loss -------------------------------------------------------------------------------


def test_weights_of_positives_that_vanish_leave_a_loss_of_zero() -> None:
    """With a tiny half-life old pairs weigh 2^(−1000 k), nothing in float32: no division by their sum."""
    data = random_interactions(3)
    model = built(data, sampler="in-batch", recency_half_life=1e-3, recency_floor=0.0, batch_size=2)
    assert (positive_weights(data, half_life=1e-3) == 0).sum() > 2
    assert all(objective(model, batch).loss.isfinite() for batch in batches(model))


def test_users_of_history_are_their_training_items_and_need_no_parameters() -> None:
    data = random_interactions(4)
    model = built(data, user_vector="history", history_half_life=2.0, history_length=3, history_floor=0.1)
    loops = Literal(model, data)
    scorer = model.scorer()
    measured = scorer.score_block(torch.arange(data.n_users))
    for user in range(data.n_users):
        past = data.by_user.of(user)[-3:].tolist()
        summed = torch.zeros(3)
        for age, item in enumerate(reversed(past)):
            weight = 0.1 + 0.9 * 0.5 ** (age / 2.0)
            summed += weight * torch.tensor(unit(loops.past[0][item]))
        items = torch.tensor(loops.items[0])
        expected = torch.nn.functional.cosine_similarity(summed[None], items)
        assert_equal(measured[user], expected)


def test_users_of_attention_are_as_of_the_end_of_their_history_and_nobody_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = random_interactions(4)
    model = built(data, embedding_dim=4, user_vector="history", history_encoder="attention", history_length=3)
    assert model.attention is not None
    loops = Literal(model, data)
    measured = model.all_users().embedding
    for user in range(data.n_users):
        past = [loops.past[0][item] for item in data.by_user.of(user)[-3:].tolist()]
        assert_equal(measured[user], torch.tensor(users_after(model.attention, past)[-1]))
    # Users are looked at some at a time, and an empty history has no direction.
    monkeypatch.setattr("hdccf.models.hdccf.network._USERS_AT_ONCE", 2)
    assert_equal(model.all_users().embedding, measured)
    without = data.subset(data.users != 3)
    others = model.history_vectors(Graph.of(without).items_of).embedding
    assert others[3].eq(0).all()
    assert_equal(others[4:], measured[4:])


def test_heads_that_cannot_share_the_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match="attention_heads=3 cannot share 64 dimensions"):
        HDCCF(history_encoder="attention", attention_heads=3, embedding_dim=64)
    with pytest.raises(ConfigError, match="encodes histories; set user_vector to history or auto"):
        HDCCF(history_encoder="attention", user_vector="free")
    with pytest.raises(ConfigError, match=r"history_encoder='attention' needs times, "):
        HDCCF(history_encoder="attention").resolved(random_interactions(0, timed=False))
    with pytest.raises(ConfigError, match="set factors to shared"):
        HDCCF(history_encoder="attention", similarity="modulated", factors="separate")


def test_scores_of_blocks_and_of_rows_are_the_same() -> None:
    modulated = {"similarity": "modulated", "factors": "separate"}
    choices: list[dict[str, Any]] = [{}, modulated, {"user_vector": "history"}]
    for values in choices:
        model = built(random_interactions(1), **values)
        scorer = model.scorer()
        users, items = torch.tensor([3, 0, 6]), torch.tensor([[1, 1, 8], [0, 2, 3], [4, 5, 6]])
        block = scorer.score_block(users)
        assert (scorer.n_users, scorer.n_items) == (7, 9)
        assert_equal(scorer.score_rows(users, items), block.gather(1, items))
        assert_equal(scorer.score_block(users, torch.tensor([8, 2])), block[:, [8, 2]])
        assert not block.requires_grad


def test_auto_takes_histories_where_there_are_times_and_blocks() -> None:
    timed, untimed = random_interactions(0), random_interactions(0, timed=False)
    assert HDCCF().resolved(timed).user_vector == "history"
    assert HDCCF().resolved(untimed).user_vector == "free"
    assert HDCCF(sampler="uniform").resolved(timed).user_vector == "free"
    assert HDCCF().resolved(interactions([(0, 0), (1, 1)], times=[1, 2])).user_vector == "free"
    assert HDCCF(**PRESETS["paper"]).resolved(timed).user_vector == "free"
    with pytest.raises(ConfigError, match=r"^user_vector='history' needs times; .*$"):
        HDCCF(user_vector="history").resolved(untimed)


@pytest.mark.parametrize("sampler", ["in-batch", "uniform", "block"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_negatives_count_by_frequency_to_one_minus_beta_on_average_one(sampler: str, beta: float) -> None:
    data = random_interactions(2)
    model = built(data, sampler=sampler, frequency_correction=beta)
    power = (0.0 if sampler == "in-batch" else 1.0) - beta
    frequency = torch.from_numpy(data.by_item.degrees).double().pow(power)
    assert_equal(model.log_item_weights.exp(), frequency / frequency.mean())
    frequency = torch.from_numpy(data.by_user.degrees).double().pow(power)
    assert_equal(model.log_user_weights.exp(), frequency / frequency.mean())

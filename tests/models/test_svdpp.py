"""SVD++ against loops over lists, in float64; the item that is being predicted is not in its own history."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from graphs import interactions
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.split import predefined_split
from hdccf.errors import ConfigError
from hdccf.models.negatives import Draws, Request, UniformNegatives
from hdccf.models.pairs import PairModel
from hdccf.models.svdpp import SVDpp, SVDppNet, build_svdpp
from hdccf.training.fit import fit

# In order of time within each user; user 3 has one item only, user 4 none, and nobody has item 6.
HISTORIES = [[4, 0, 2], [1, 3, 0, 5], [2, 4], [3], []]
N_ITEMS = 7
USERS = [0, 0, 0, 2, 2, 3, 1, 1, 1, 1]
ITEMS = [4, 0, 2, 2, 4, 3, 1, 3, 0, 5]
NEGATIVES = [[1, 3], [5, 6], [1, 1], [0, 3], [6, 6], [0, 4], [2, 4], [6, 2], [4, 4], [2, 6]]


class Values(NamedTuple):
    """The parameters as lists."""

    mean: float
    b_u: list[float]
    b_i: list[float]
    p: list[list[float]]
    q: list[list[float]]
    y: list[list[float]]


def train() -> Interactions:
    pairs = [(user, item) for user, items in enumerate(HISTORIES) for item in items]
    return interactions(pairs, n_users=len(HISTORIES), n_items=N_ITEMS, times=list(range(len(pairs))))


def build(**settings: Any) -> tuple[PairModel, SVDppNet]:
    """In float64, with biases that are not zero."""
    values: dict[str, Any] = {
        "embedding_dim": 3,
        "negatives": 2,
        "init_std": 0.5,
        "batch_size": 64,
        **settings,
    }
    model = build_svdpp(SVDpp(**values), train(), torch.Generator().manual_seed(0))
    assert isinstance(model, PairModel)
    assert isinstance(model.net, SVDppNet)
    model.double()
    generator = torch.Generator().manual_seed(1)
    for table in (model.net.user_biases, model.net.item_biases):
        table.embedding.data.normal_(generator=generator)
    return model, model.net


def values_of(net: SVDppNet) -> Values:
    return Values(
        net.mean,
        net.user_biases.embedding[:, 0].tolist(),
        net.item_biases.embedding[:, 0].tolist(),
        net.users.embedding.tolist(),
        net.items.embedding.tolist(),
        net.histories.vectors.embedding.tolist(),
    )


def literal_score(
    values: Values, user: int, item: int, left_out: int | None, half_life: float | None = None
) -> float:
    """μ + b_u + b_i + q_i·(p_u + (Σ_j w_j²)^{−1/2} Σ_j w_j y_j), j over the history but what is left out."""
    history = HISTORIES[user]
    vector = list(values.p[user])
    weighted = []
    for place, j in enumerate(history):
        age = len(history) - 1 - place
        weight = 1.0 if half_life is None else 0.5 ** (age / half_life)
        if j != left_out:
            weighted.append((weight, j))
    if weighted:
        norm = math.sqrt(sum(weight * weight for weight, _ in weighted))
        for k in range(len(vector)):
            vector[k] += sum(weight * values.y[j][k] for weight, j in weighted) / norm
    dot = sum(a * b for a, b in zip(values.q[item], vector, strict=True))
    return values.mean + values.b_u[user] + values.b_i[item] + dot


def literal_loss(values: Values, l2: float, half_life: float | None = None) -> float:
    """The mean over positives of their squared error, their zeros' and λ times what they looked up."""
    total = 0.0
    for user, item, others in zip(USERS, ITEMS, NEGATIVES, strict=True):
        total += (literal_score(values, user, item, item, half_life) - 1) ** 2
        total += sum(literal_score(values, user, other, None, half_life) ** 2 for other in others)
        looked_up = [values.p[user], values.q[item], values.y[item], [values.b_u[user], values.b_i[item]]]
        looked_up += [[*values.q[other], values.b_i[other]] for other in others]
        total += l2 * sum(number**2 for vector in looked_up for number in vector)
    return total / len(USERS)


class Given(UniformNegatives):
    """Negatives that were written down."""

    def __init__(self, graph: Graph, items: Tensor) -> None:
        super().__init__(graph)
        self.given = items

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        return Draws(self.given, None, None)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(USERS), torch.tensor(ITEMS), torch.tensor(NEGATIVES)


@pytest.mark.parametrize("half_life", [None, 1.0, 2.5])
def test_scores_are_those_of_the_formula(half_life: float | None) -> None:
    _, net = build(history_half_life=half_life)
    values = values_of(net)
    users, items, negatives = batch()
    scores = net.compare(users, items, negatives)
    ones = [literal_score(values, u, i, i, half_life) for u, i in zip(USERS, ITEMS, strict=True)]
    zeros = [
        [literal_score(values, u, j, None, half_life) for j in others]
        for u, others in zip(USERS, NEGATIVES, strict=True)
    ]
    torch.testing.assert_close(scores.positive, torch.tensor(ones, dtype=torch.float64))
    torch.testing.assert_close(scores.negative, torch.tensor(zeros, dtype=torch.float64))
    torch.testing.assert_close(net.score_rows(users, negatives), scores.negative)


@pytest.mark.parametrize("half_life", [None, 2.0])
def test_ranking_scores_are_those_of_whole_histories(half_life: float | None) -> None:
    _, net = build(history_half_life=half_life)
    values = values_of(net)
    every = [
        [literal_score(values, user, item, None, half_life) for item in range(N_ITEMS)] for user in range(5)
    ]
    found = net.scorer().score_block(torch.arange(5))
    torch.testing.assert_close(found, torch.tensor(every, dtype=torch.float64))


@pytest.mark.parametrize("half_life", [None, 2.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_gradient_of_the_loss_is_that_of_the_loops(half_life: float | None, sparse: bool) -> None:
    """Every parameter, by central differences of the literal loss."""
    model, net = build(history_half_life=half_life, l2=0.3, sparse_updates=sparse)
    users, items, negatives = batch()
    pairs = PairBatch(users, items, torch.ones(len(users), dtype=torch.float64))
    model.source = Given(Graph.of(train()), negatives)
    (objective,) = model.objectives(pairs, torch.Generator())
    loss = objective.loss
    assert float(loss.detach()) == pytest.approx(literal_loss(values_of(net), 0.3, half_life), rel=1e-8)
    loss.backward()  # type: ignore[no-untyped-call]
    step = 1e-6
    for parameter in net.parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.to_dense().flatten()
        numbers = parameter.data.view(-1)
        for place in range(len(numbers)):
            before = float(numbers[place])
            either = []
            for moved in (before + step, before - step):
                numbers[place] = moved
                either.append(literal_loss(values_of(net), 0.3, half_life))
            numbers[place] = before
            assert float(gradient[place]) == pytest.approx((either[0] - either[1]) / (2 * step), abs=1e-7)


def test_a_positive_does_not_see_itself_in_the_history() -> None:
    _, net = build()
    users, items, negatives = torch.tensor([1]), torch.tensor([3]), torch.tensor([[2]])
    before = net.compare(users, items, negatives)
    net.histories.vectors.embedding.data[3] += 1.0
    after = net.compare(users, items, negatives)
    torch.testing.assert_close(after.positive, before.positive)
    assert not torch.isclose(after.negative, before.negative).any()
    # Another item of the history is seen by both.
    net.histories.vectors.embedding.data[5] += 1.0
    assert not torch.isclose(net.compare(users, items, negatives).positive, after.positive).any()


def test_a_history_is_divided_by_the_root_of_its_size() -> None:
    _, net = build()
    for table in (net.users, net.user_biases, net.item_biases):
        table.embedding.data.zero_()
    net.items.embedding.data.fill_(1.0)
    net.histories.vectors.embedding.data.fill_(1.0)
    scorer = net.scorer()
    found = scorer.score_block(torch.arange(5))[:, 0] - net.mean
    # n items of y = 1 in three coordinates: 3n/√n. The mean would be 3 for everybody.
    torch.testing.assert_close(found, 3 * torch.tensor([3.0, 4, 2, 1, 0], dtype=torch.float64).sqrt())
    users, items, negatives = batch()
    ones = net.compare(users, items, negatives).positive - net.mean
    sizes = torch.tensor([len(HISTORIES[user]) - 1 for user in USERS], dtype=torch.float64)
    torch.testing.assert_close(ones, 3 * sizes.sqrt())


def test_the_only_item_of_a_user_leaves_an_empty_history_with_a_gradient() -> None:
    _, net = build(history_half_life=1.0)
    score = net.compare(torch.tensor([3]), torch.tensor([3]), torch.tensor([[0]])).positive
    values = values_of(net)
    plain = values.mean + values.b_u[3] + values.b_i[3]
    plain += sum(a * b for a, b in zip(values.p[3], values.q[3], strict=True))
    assert float(score.detach()) == pytest.approx(plain, rel=1e-8)
    score.sum().backward()  # type: ignore[no-untyped-call]
    for parameter in net.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("negatives", [1, 4])
def test_the_mean_is_that_of_the_labels_and_biases_start_at_zero(negatives: int) -> None:
    model = build_svdpp(SVDpp(negatives=negatives), train(), torch.Generator().manual_seed(0))
    assert isinstance(model, PairModel)
    assert isinstance(model.net, SVDppNet)
    assert model.net.mean == pytest.approx(1 / (1 + negatives))
    assert not model.net.user_biases.embedding.any()
    assert not model.net.item_biases.embedding.any()


def test_a_batch_has_whole_users_and_scrambled_ones_score_alike() -> None:
    """A user's history is added up once for each run of rows; rows in another order still find their own."""
    model, net = build(batch_size=3)
    for pairs in model.batches(torch.Generator().manual_seed(2)):
        for user in set(pairs.users.tolist()):
            assert sorted(pairs.items[pairs.users == user].tolist()) == sorted(HISTORIES[user])
    users, items, negatives = batch()
    order = torch.tensor([3, 9, 0, 5, 1, 8, 2, 4, 7, 6])
    scrambled = net.compare(users[order], items[order], negatives[order])
    torch.testing.assert_close(scrambled.positive, net.compare(users, items, negatives).positive[order])


def test_fading_histories_need_times_and_a_half_life_of_one_or_more() -> None:
    with pytest.raises(ConfigError, match=r"^history_half_life=0\.5 is not possible: it should be greater"):
        SVDpp(history_half_life=0.5)
    timeless = predefined_split(interactions([(0, 0), (0, 1), (1, 1)], n_items=3))
    with pytest.raises(ConfigError, match="have no times"):
        fit(timeless, SVDpp(history_half_life=2.0, epochs=1))

"""PMF, BPR and sampled softmax: losses and gradients computed by hand, and where they are HDCCF's parts."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs import checkerboard, random_interactions, small_split
from hdccf.config import Settings
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.errors import ConfigError
from hdccf.models.base import Model
from hdccf.models.factorization import BPR, PMF, SSM, build_bpr, build_pmf, build_ssm
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.negatives import Draws, Request, UniformNegatives
from hdccf.models.pairs import PairModel
from hdccf.training.fit import fit

DRAWN = torch.tensor([[3, 1], [4, 4], [0, 2]])
BATCH = PairBatch(torch.tensor([1, 2, 1]), torch.tensor([2, 0, 4]), torch.tensor([1.0, 2.0, 0.5]))


class Fixed(UniformNegatives):
    """Negatives that a test has written down."""

    def __init__(self, graph: Graph, draws: Draws) -> None:
        super().__init__(graph)
        self.draws = draws

    def draw(self, request: Request, generator: torch.Generator) -> Draws:
        return self.draws


def model_of(settings: Settings, draws: Draws | None = None) -> PairModel:
    build: Any = {PMF: build_pmf, BPR: build_bpr, SSM: build_ssm}[type(settings)]
    model = build(settings, random_interactions(0), torch.Generator().manual_seed(1)).double()
    assert isinstance(model, PairModel)
    model.source = Fixed(model.sampler.graph, draws or Draws(DRAWN, None, None))
    return model


def loss_of(model: Model, batch: Any = BATCH) -> Tensor:
    (objective,) = model.objectives(batch, torch.Generator().manual_seed(2))
    return objective.loss


def tables(model: PairModel) -> tuple[list[list[float]], list[list[float]]]:
    net: Any = model.net
    return net.users.embedding.tolist(), net.items.embedding.tolist()


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def cosine(a: list[float], b: list[float]) -> float:
    return dot(a, b) / math.sqrt(dot(a, a) * dot(b, b))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def rows(batch: PairBatch = BATCH) -> list[tuple[int, int, list[int], float]]:
    return list(
        zip(batch.users.tolist(), batch.items.tolist(), DRAWN.tolist(), batch.weights.tolist(), strict=True)
    )


@pytest.mark.parametrize("link", ["identity", "sigmoid"])
def test_pmf_is_the_squared_error_with_its_zeros_and_the_penalty_is_in_the_loss(link: str) -> None:
    settings = PMF(embedding_dim=3, init_std=0.7, l2=0.3, link=link, negatives=2)  # type: ignore[arg-type]
    model = model_of(settings)
    p, q = tables(model)
    g = sigmoid if link == "sigmoid" else float
    fit_, weight, penalty = 0.0, 0.0, 0.0
    for u, i, others, w in rows():
        error = (1 - g(dot(p[u], q[i]))) ** 2 + sum(g(dot(p[u], q[j])) ** 2 for j in others)
        fit_, weight = fit_ + w * error, weight + w
        penalty += dot(p[u], p[u]) + dot(q[i], q[i]) + sum(dot(q[j], q[j]) for j in others)
    assert loss_of(model).item() == pytest.approx(fit_ / weight + 0.3 * penalty / 3, abs=1e-12)


def test_bpr_is_minus_log_sigma_of_the_difference() -> None:
    model = model_of(BPR(embedding_dim=3, init_std=0.7, l2=0.01, negatives=2))
    p, q = tables(model)
    total, weight, penalty = 0.0, 0.0, 0.0
    for u, i, others, w in rows():
        each = [-math.log(sigmoid(dot(p[u], q[i]) - dot(p[u], q[j]))) for j in others]
        total, weight = total + w * sum(each) / 2, weight + w
        penalty += dot(p[u], p[u]) + dot(q[i], q[i]) + sum(dot(q[j], q[j]) for j in others)
    assert loss_of(model).item() == pytest.approx(total / weight + 0.01 * penalty / 3, abs=1e-12)


def test_bpr_gradients_are_those_of_the_paper() -> None:
    """∂/∂p = −σ(−x)(q_i − q_j), ∂/∂q_i = −σ(−x)·p, ∂/∂q_j = σ(−x)·p, for one triple."""
    batch = PairBatch(torch.tensor([1]), torch.tensor([2]), torch.tensor([1.0]))
    model = model_of(BPR(embedding_dim=3, init_std=0.7), Draws(torch.tensor([[3]]), None, None))
    net: Any = model.net
    p, q = net.users.embedding, net.items.embedding
    x = (p[1] @ (q[2] - q[3])).item()
    wrong = 1 - sigmoid(x)
    by_users, by_items = torch.autograd.grad(loss_of(model, batch), [p, q])
    expected_users, expected_items = torch.zeros_like(p), torch.zeros_like(q)
    expected_users[1] = -wrong * (q[2] - q[3])
    expected_items[2], expected_items[3] = -wrong * p[1], wrong * p[1]
    torch.testing.assert_close(by_users, expected_users.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(by_items, expected_items.detach(), atol=1e-12, rtol=0)


def test_pmf_gradients_are_those_of_the_squares() -> None:
    """∂/∂p = −2(1 − p·q_i)q_i + 2(p·q_j)q_j + 2λp, for one pair and one zero."""
    batch = PairBatch(torch.tensor([1]), torch.tensor([2]), torch.tensor([1.0]))
    draws = Draws(torch.tensor([[3]]), None, None)
    model = model_of(PMF(embedding_dim=3, init_std=0.7, l2=0.2, negatives=1), draws)
    net: Any = model.net
    p, q = net.users.embedding, net.items.embedding
    by_users, by_items = torch.autograd.grad(loss_of(model, batch), [p, q])
    one, zero = p[1] @ q[2], p[1] @ q[3]
    torch.testing.assert_close(by_users[1], -2 * (1 - one) * q[2] + 2 * zero * q[3] + 0.4 * p[1])
    torch.testing.assert_close(by_items[2], -2 * (1 - one) * p[1] + 0.4 * q[2])
    torch.testing.assert_close(by_items[3], 2 * zero * p[1] + 0.4 * q[3])


@pytest.mark.parametrize("corrected", [False, True])
def test_ssm_is_the_share_of_the_positive(corrected: bool) -> None:
    log_chance = torch.tensor([[0.3, -0.2], [0.0, 1.0], [0.5, 0.5]])
    settings = SSM(
        embedding_dim=3, temperature=0.2, negatives=2, correct_chances=corrected, sampler="uniform"
    )
    model = model_of(settings, Draws(DRAWN, log_chance, None))
    p, q = tables(model)
    total, weight = 0.0, 0.0
    for (u, i, others, w), chances in zip(rows(), log_chance.double().tolist(), strict=True):
        up = math.exp(cosine(p[u], q[i]) / 0.2)
        down = [
            math.exp(cosine(p[u], q[j]) / 0.2 - (chance if corrected else 0.0))
            for j, chance in zip(others, chances, strict=True)
        ]
        total, weight = total - w * math.log(up / (up + sum(down))), weight + w
    assert loss_of(model).item() == pytest.approx(total / weight, abs=1e-7)  # chances are float32


@pytest.mark.parametrize(
    "settings", [PMF(negatives=2), BPR(negatives=2), SSM(negatives=2, sampler="uniform")]
)
def test_draws_that_are_no_negatives_count_for_nothing(settings: Settings) -> None:
    valid = torch.tensor([[True, False], [True, True], [False, False]])
    first = loss_of(model_of(settings, Draws(DRAWN, None, valid)))
    other = DRAWN.clone()
    other[0, 1], other[2] = 0, 5
    if settings.l2:  # type: ignore[attr-defined]
        settings = settings.changed(l2=0.0)
        first = loss_of(model_of(settings, Draws(DRAWN, None, valid)))
    assert loss_of(model_of(settings, Draws(other, None, valid))).item() == first.item()
    assert loss_of(model_of(settings, Draws(other, None, None))).item() != first.item()


def test_with_ones_only_pmf_would_score_everything_one() -> None:
    """Why there are drawn zeros: without them the best solution says one to everything."""
    split = small_split()
    quick: dict[str, Any] = {
        "embedding_dim": 4,
        "epochs": 60,
        "learning_rate": 0.05,
        "batch_size": 64,
        "l2": 0.0,
    }
    scores = fit(split, PMF(**quick), seed=0).score_block(torch.arange(10))
    assert scores.mean() < 0.7
    assert scores.std() > 0.15


@pytest.mark.parametrize("settings", [BPR(sampler="block"), SSM(sampler="block", user_vector="history")])
def test_on_blocks_they_are_hdccf_without_its_parts(settings: Settings) -> None:
    build: Any = build_bpr if isinstance(settings, BPR) else build_ssm
    model = build(settings, checkerboard(12), torch.Generator().manual_seed(0))
    assert isinstance(model, HDCCFModel)
    used = model.settings
    assert (used.user_side, used.omega_items, used.user_user_weight, used.item_item_weight) == (0, 0, 0, 0)
    assert used.loss == ("bpr" if isinstance(settings, BPR) else "contrastive")
    assert model.uses_history == (isinstance(settings, SSM))


def test_bpr_on_a_block_compares_with_unobserved_columns_of_the_row() -> None:
    data = random_interactions(4, full=False)
    model: Any = build_bpr(BPR(sampler="block", embedding_dim=3), data, torch.Generator().manual_seed(0))
    model = model.double()
    (block,) = list(model.batches(torch.Generator().manual_seed(0)))
    scores = model.users.embedding[block.users] @ model.items.embedding.T
    uniform = torch.full((9,), 1 / 9, dtype=torch.float64)
    seeded = torch.Generator().manual_seed(7)
    drawn = torch.multinomial(uniform, len(block.rows), replacement=True, generator=seeded).tolist()
    observed = {(int(u), int(i)) for u, i in zip(data.users, data.items, strict=True)}
    total = 0.0
    for row, column, other in zip(block.rows.tolist(), block.positive_columns.tolist(), drawn, strict=True):
        if (int(block.users[row]), other) not in observed:
            total -= math.log(sigmoid((scores[row, column] - scores[row, other]).item()))
    (objective,) = model.objectives(block, torch.Generator().manual_seed(7))
    assert objective.loss.item() == pytest.approx(total / len(block.rows), abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (BPR, {"user_vector": "history"}, "set sampler to block"),
        (BPR, {"sampler": "block", "l2": 0.1}, "use weight_decay"),
        (SSM, {"sampler": "in-batch", "batch_size": 1}, "leaves in-batch negatives none"),
        (PMF, {"sampler": "block"}, "sampler='block' is not possible"),
        (BPR, {"sampler": "unifrom"}, "is not possible"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(kind: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        kind(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"sampler": "uniform"}, {"sampler": "block", "l2": 0.0, "user_vector": "history"}]
)
def test_popularity_is_learnt_on_blocks_with_free_vectors(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^similarity='popular' is trained on blocks with free vectors"):
        SSM(similarity="popular", **change)
    assert SSM(similarity="popular", sampler="block", l2=0.0).similarity == "popular"

"""SD-GAR: Q is a distribution and what is drawn, its closed form is a maximum, its weights are unbiased."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from graphs import random_interactions, small_split
from hdccf.data.graph import Graph
from hdccf.models.base import VectorScorer
from hdccf.models.factorization import BiasedFactors
from hdccf.models.negatives import Request
from hdccf.models.pairs import PairModel
from hdccf.models.sdgar import (
    SDGAR,
    SDGARGenerator,
    adversarial_loss,
    build_sdgar,
    importance,
    items_solution,
    log_importance_sum,
    users_solution,
)
from hdccf.models.settings import SDGARGeneratorSettings
from hdccf.similarity import SIMILARITIES, Vectors

N_USERS, N_ITEMS = 7, 9
TRAIN = random_interactions(1, full=False)
MASK = torch.from_numpy(TRAIN.matrix.toarray() > 0)


def a_generator(**more: Any) -> SDGARGenerator:
    own = SDGARGeneratorSettings(**{"components": 4, **more})
    return SDGARGenerator(Graph.of(TRAIN), own, torch.Generator().manual_seed(5)).double()


def a_request(users: list[int], size: int = 1, scale: float = 1.0) -> tuple[Request, Tensor]:
    """With a model whose scores are known."""
    drawn = torch.Generator().manual_seed(8)
    p, q = (scale * torch.randn(n, 3, generator=drawn, dtype=torch.float64) for n in (N_USERS, N_ITEMS))
    scores = p @ q.T
    scorer = VectorScorer(SIMILARITIES["dot"](), Vectors(p, p), Vectors(q, q))
    chosen = torch.tensor(users)
    items = torch.zeros_like(chosen)
    return Request(chosen, items, size, lambda u, i: scores[u.unsqueeze(1), i], lambda: scorer), scores


def all_chances(source: SDGARGenerator) -> Tensor:
    items = torch.arange(N_ITEMS).expand(N_USERS, -1)
    return source.log_chances(torch.arange(N_USERS), items).exp()


# -- Q -------------------------------------------------------------------------------------------------------


def test_q_is_a_distribution_over_items_at_first_and_once_solved() -> None:
    source = a_generator()
    request, _ = a_request([0])
    for _ in range(3):
        assert (source.of_users >= 0).all()
        assert (source.of_items >= 0).all()
        torch.testing.assert_close(
            all_chances(source).sum(1), torch.ones(N_USERS, dtype=torch.float64), rtol=1e-6, atol=0
        )
        torch.testing.assert_close(all_chances(source), source.of_users @ source.of_items.T)
        source.solve(request, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("solved", [False, True])
def test_draws_match_q_among_what_the_user_has_not_had(solved: bool) -> None:
    source = a_generator(item_entropy=0.2)
    request, _ = a_request([1, 4, 6], size=8000)
    if solved:
        source.solve(request, torch.Generator().manual_seed(1))
    draws = source.draw(request, torch.Generator().manual_seed(2))
    chances = all_chances(source)
    for row, user in enumerate((1, 4, 6)):
        free = ~MASK[user]
        counts = torch.bincount(draws.items[row], minlength=N_ITEMS)
        assert counts[~free].sum() == 0
        expected = 8000 * chances[user, free] / chances[user, free].sum()
        observed = counts[free].double().numpy()
        assert stats.chisquare(observed, expected.double().numpy(), sum_check=False).pvalue > 0.001
        wrong = np.roll(expected.double().numpy(), 1)
        assert stats.chisquare(observed, wrong, sum_check=False).pvalue < 1e-6
    assert draws.log_chance is not None
    torch.testing.assert_close(
        draws.log_chance.exp() / N_ITEMS, chances[request.users].gather(1, draws.items)
    )


def test_who_is_only_drawn_what_they_have_had_gets_the_rest() -> None:
    source = a_generator()
    source.of_items.fill_(1e-12)[int(MASK[1].nonzero()[0])] = 1.0
    draws = source.draw(a_request([1], size=500)[0], torch.Generator().manual_seed(0))
    assert not MASK[1][draws.items].any()
    assert set(draws.items[0].tolist()) == set((~MASK[1]).nonzero().squeeze(1).tolist())


# -- the closed form -----------------------------------------------------------------------------------------


def entropy_regularised(shares: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    return (shares * values).sum() - weight * torch.xlogy(shares, shares).sum()


@pytest.mark.parametrize("side", ["users", "items"])
def test_a_solution_is_the_maximum_of_its_objective(side: str) -> None:
    """NegativeSet gradient ascent from elsewhere, and no step away from it is better."""
    generator = torch.Generator().manual_seed(0)
    axis = 1 if side == "users" else 0
    values = torch.rand(6, 5, generator=generator, dtype=torch.float64) * 3
    solve = users_solution if side == "users" else items_solution
    solution, weight = solve(values, 0.4), 0.4 * values.amax(axis).mean()
    best = entropy_regularised(solution, values, weight)

    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure() -> Tensor:
        ascent.zero_grad()
        loss = -entropy_regularised(logits.softmax(axis), values, weight)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    ascent.step(closure)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logits.softmax(axis).detach(), solution, rtol=1e-4, atol=1e-6)
    for _ in range(200):
        other = torch.rand(6, 5, generator=generator, dtype=torch.float64)
        other = other / other.sum(axis, keepdim=True)
        for step in (1e-3, 0.1, 1.0):
            nearby = torch.lerp(solution, other, step)
            assert entropy_regularised(nearby, values, weight) < best
    wrong = torch.softmax(values / (2 * weight), axis)
    assert entropy_regularised(wrong, values, weight) < best


def literal_importance(source: SDGARGenerator, scores: Tensor) -> tuple[Tensor, Tensor]:
    """ρ and softplus(s) of every pair, with the exact sum z."""
    hardness = torch.log1p(scores.exp())
    goal = (hardness / source.own.temperature).exp()
    return goal / (all_chances(source) * goal.sum(1, keepdim=True)), hardness


def test_the_values_that_are_solved_for_are_those_of_the_formulas() -> None:
    """With very many draws: v_uk = Σ_j ρ h Y_jk and t_ik = Σ_u X_uk ρ h, what E_Q[ρ h] is linear in."""
    source = a_generator(update_draws=60_000)
    request, scores = a_request([0])
    ratio, hardness = literal_importance(source, scores)
    log_sums, values = source._values_of_components(request, torch.Generator().manual_seed(0))
    exact_sums = (hardness / source.own.temperature).exp().sum(1)
    torch.testing.assert_close(log_sums.exp(), exact_sums, rtol=0.03, atol=0)
    torch.testing.assert_close(values, (ratio * hardness) @ source.of_items, rtol=0.05, atol=0)
    values = source._values_of_items(request, exact_sums.log(), torch.Generator().manual_seed(0))
    torch.testing.assert_close(values, (ratio * hardness).T @ source.of_users, rtol=0.05, atol=0)


def test_solving_takes_draws_towards_what_the_model_finds_hard() -> None:
    source = a_generator(components=8, update_draws=4000)
    request, scores = a_request([0], scale=2.0)
    goal = (torch.nn.functional.softplus(scores) / 0.5).softmax(1)
    before = (all_chances(source) * scores).sum(1).mean()
    for seed in range(3):
        source.solve(request, torch.Generator().manual_seed(seed))
    after = (all_chances(source) * scores).sum(1).mean()
    assert after > before + 0.3 * ((goal * scores).sum(1).mean() - before)


def test_scores_that_underflow_leave_every_component_alike() -> None:
    assert users_solution(torch.zeros(2, 4), 0.1).eq(0.25).all()
    assert items_solution(torch.zeros(4, 2), 1.0).eq(0.25).all()


# -- importance weights --------------------------------------------------------------------------------------


def test_unnormalised_weights_are_unbiased_and_normalised_ones_consistent() -> None:
    """Towards E_{P*_T}[h]: ρ summed over all draws and by drawing, w nearer with more of them."""
    source = a_generator()
    _, scores = a_request([0], scale=1.5)
    ratio, hardness = literal_importance(source, scores)
    chances, t = all_chances(source), source.own.temperature
    goal = (hardness / t).softmax(1)
    exact = (goal * hardness).sum(1)

    every = importance(hardness, chances.log(), (hardness / t).exp().sum(1).log(), t)
    torch.testing.assert_close((chances * every * hardness).sum(1), exact)
    torch.testing.assert_close(every, ratio)
    wrong = importance(hardness, chances.log() / 2, (hardness / t).exp().sum(1).log(), t)
    assert ((chances * wrong * hardness).sum(1) - exact).abs().min() > 0.05

    # And by draws: the mean of z within 4 standard errors of Σ e^{h/T}.
    user, drawn = 2, torch.Generator().manual_seed(0)
    items = source.draw_any(torch.full((40_000,), user), drawn).view(2000, 20)
    log_chances = source.log_chances(torch.full((2000,), user), items)
    sums = log_importance_sum(hardness[user][items], log_chances, t).exp()
    error = sums.mean() - (hardness[user] / t).exp().sum()
    assert error.abs() < 4 * sums.std() / math.sqrt(2000)

    def self_normalised_error(size: int) -> float:
        items = source.draw_any(torch.full((200 * size,), user), drawn).view(200, size)
        log_chances = source.log_chances(torch.full((200,), user), items)
        weights = (hardness[user][items] / t - log_chances).softmax(1)
        estimates = (weights * hardness[user][items]).sum(1)
        return float((estimates - exact[user]).square().mean().sqrt())

    errors = [self_normalised_error(size) for size in (5, 50, 500)]
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.5 * errors[1]


def test_the_loss_is_the_formula_and_gradients_flow_through_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    positive = torch.randn(3, generator=generator, dtype=torch.float64)
    negative = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    log_chances = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    measured = adversarial_loss(0.5)(positive, negative, -log_chances)
    for row in range(3):
        hardness = [math.log1p(math.exp(s)) for s in negative[row].tolist()]
        terms = [math.exp(h / 0.5 - q) for h, q in zip(hardness, log_chances[row].tolist(), strict=True)]
        weighted = sum(w * h for w, h in zip(terms, hardness, strict=True)) / sum(terms)
        expected = 0.5 * (math.log1p(math.exp(-float(positive[row]))) + weighted)
        assert float(measured[row].detach()) == pytest.approx(expected, rel=1e-12)
    (through,) = torch.autograd.grad(measured.sum(), negative)
    hardness_ = torch.nn.functional.softplus(negative)
    held = (hardness_ / 0.5 - log_chances).softmax(1).detach()
    (without,) = torch.autograd.grad(0.5 * (held * hardness_).sum(), negative)
    mean = (held * hardness_).sum(1, keepdim=True)
    literally = (held * (1 + (hardness_ - mean) / 0.5) * negative.sigmoid() / 2).detach()
    torch.testing.assert_close(through, literally)
    assert (through - without).abs().max() > 0.01


def test_a_row_without_negatives_has_the_positive_only() -> None:
    negative = torch.zeros(2, 3, requires_grad=True)
    log_weights = torch.tensor([[-math.inf] * 3, [0.0, -math.inf, -math.inf]])
    loss = adversarial_loss(0.5)(torch.zeros(2), negative, log_weights)
    torch.testing.assert_close(loss.detach(), torch.tensor([0.5, 1.0]) * math.log(2))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert negative.grad is not None
    assert negative.grad.isfinite().all()


# -- the model -----------------------------------------------------------------------------------------------


def test_the_penalty_is_over_the_batch_and_negatives_count_as_one() -> None:
    net = BiasedFactors(4, 6, 3, std=1.0, generator=torch.Generator().manual_seed(0))
    net.bias.data = torch.arange(6.0)
    users, items, negatives = torch.tensor([1, 2]), torch.tensor([3, 0]), torch.tensor([[4, 5, 5], [1, 1, 2]])
    scores = net.compare(users, items, negatives)
    p, q = net.factors.users.embedding.detach(), net.factors.items.embedding.detach()
    expected = 0.5 * (p[users].square().sum() + q[items].square().sum() + items.square().sum())
    expected += 0.5 * (q[negatives].square().sum() + negatives.square().sum()) / 3
    torch.testing.assert_close(scores.squares().detach(), expected)
    torch.testing.assert_close(scores.positive.detach(), (p[users] * q[items]).sum(1) + items)
    torch.testing.assert_close(net.scorer().score_rows(users, negatives), scores.negative.detach())


def trained(epochs: int, **more: Any) -> tuple[PairModel, list[Tensor]]:
    settings = SDGAR(**{"batch_size": 32, "embedding_dim": 4, "update_every": 2, **more})
    model = build_sdgar(settings, small_split().train, torch.Generator().manual_seed(0))
    assert isinstance(model.source, SDGARGenerator)
    mixtures = [model.source.of_users.clone()]
    for epoch in range(epochs):
        for batch in model.batches(torch.Generator().manual_seed(epoch)):
            for objective in model.objectives(batch, torch.Generator().manual_seed(0)):
                assert objective.group == "discriminator"
            if not model.source.of_users.equal(mixtures[-1]):
                mixtures.append(model.source.of_users.clone())
    return model, mixtures


def test_it_is_solved_before_the_first_step_and_then_every_so_many_epochs() -> None:
    for epochs, solutions in ((1, 1), (2, 1), (3, 2), (5, 3)):
        model, mixtures = trained(epochs)
        assert int(model.state_dict()["source.solved"]) == solutions
        assert len(mixtures) == 1 + solutions


def test_looking_at_negatives_changes_nothing_and_loaded_weights_are_drawn_from() -> None:
    model, _ = trained(1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert {"source.of_users", "source.of_items", "source.seen", "source.solved"} <= before.keys()
    model.diagnose(next(iter(model.batches(torch.Generator().manual_seed(0)))))
    assert all(before[name].equal(tensor) for name, tensor in model.state_dict().items())
    # A sure mixture is loaded after another one was drawn from.
    before["source.of_items"] = torch.zeros_like(before["source.of_items"])
    before["source.of_items"][3] = 1.0
    model.load_state_dict(before)
    assert isinstance(model.source, SDGARGenerator)
    assert (model.source.draw_any(torch.arange(9), torch.Generator().manual_seed(0)) == 3).all()

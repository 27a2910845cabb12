"""IRGAN: the policy gradient is the gradient of the expected reward, and the players really meet."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from graphs import interactions, random_interactions
from hdccf.data.batches import PairBatch
from hdccf.data.graph import Graph
from hdccf.models.factorization import BiasedFactors
from hdccf.models.irgan import IRGAN, IRGANGenerator, IRGANModel, Proposals, proposal_ratio, reward
from hdccf.models.negatives import Request
from hdccf.models.settings import IRGANGeneratorSettings

PAIRS = [(0, 0), (0, 3), (1, 1), (1, 2), (1, 4), (2, 0)]
N_USERS, N_ITEMS = 3, 5


def generator_on_five_items(candidates: int = 5, observed_too: bool = False, **more: Any) -> IRGANGenerator:
    drawn = torch.Generator().manual_seed(0)
    net = BiasedFactors(N_USERS, N_ITEMS, 3, std=0.7, generator=drawn).double()
    net.bias.data = torch.randn(N_ITEMS, generator=drawn, dtype=torch.float64)
    graph = Graph.of(interactions(PAIRS, n_users=N_USERS, n_items=N_ITEMS))
    own = IRGANGeneratorSettings(**{"warm_epochs": 0, **more})
    return IRGANGenerator(graph, net, own, candidates=candidates, observed_too=observed_too)


def of_discriminator() -> Tensor:
    """Any scores of the 3 × 5 pairs."""
    return torch.randn(
        N_USERS, N_ITEMS, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    ).requires_grad_()


def request_for(scores: Tensor, net: BiasedFactors, size: int = 1) -> Request:
    users, items = torch.tensor(PAIRS).T
    return Request(users, items, size, lambda u, i: scores[u.unsqueeze(1), i], net.scorer)


def gradient(loss: Tensor, net: BiasedFactors) -> Tensor:
    found = torch.autograd.grad(loss, list(net.parameters()))
    return torch.cat([part.flatten() for part in found])


def exact_gradient(scores: Tensor, net: BiasedFactors) -> Tensor:
    """Of the mean over users of E_{p_G}[2(σ(s_D) − ½)], by the sum over all items."""
    chances = net.score_all(torch.arange(N_USERS)).softmax(1)
    rewards = 2 * (1 / (1 + (-scores.detach()).exp()) - 0.5)
    return gradient((chances * rewards).sum(1).mean(), net)


def proposal(net: BiasedFactors, share: float) -> Tensor:
    """p_n, literally."""
    chances = net.score_all(torch.arange(N_USERS)).softmax(1).detach()
    own = torch.zeros(N_USERS, N_ITEMS, dtype=torch.float64)
    for user, item in PAIRS:
        own[user, item] = 1.0
    return (1 - share) * chances + share * own / own.sum(1, keepdim=True)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_over_all_items_the_estimator_is_the_exact_gradient(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every item of every user once, weighed by its chance p_n of being drawn: what is left is no chance."""
    source, scores = generator_on_five_items(positive_share=share, policy_draws=N_ITEMS), of_discriminator()
    users, items = torch.arange(N_USERS), torch.arange(N_ITEMS)
    every_user, every_item = users.repeat_interleave(N_ITEMS), items.repeat(N_USERS)

    def all_of_them(asked: Tensor, rows: Tensor, log_chances: Tensor, generator: Any) -> Proposals:
        observed = torch.tensor(
            [(int(u), int(i)) in PAIRS for u, i in zip(every_user, every_item, strict=True)]
        )
        degrees = torch.tensor([2, 3, 1])[every_user]
        ratio = proposal_ratio(log_chances[every_user, every_item], observed, degrees, share)
        chance = proposal(source.net, share).flatten()
        return Proposals(every_user, every_item, ratio, chance / N_USERS)

    monkeypatch.setattr(source, "_propose", all_of_them)
    request = request_for(scores, source.net)._replace(users=users, items=torch.tensor([0, 1, 0]))
    (objective,) = source.objectives(request, torch.Generator())
    assert objective.group == "generator"
    exact = exact_gradient(scores, source.net)
    torch.testing.assert_close(-gradient(objective.loss, source.net), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("right", [True, False])
def test_draws_give_the_exact_gradient_on_average(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 4 standard errors in every coordinate; without the ratio p_G/p_n far outside."""
    source, scores = generator_on_five_items(policy_draws=40), of_discriminator()
    if not right:
        monkeypatch.setattr(
            "hdccf.models.irgan.proposal_ratio",
            lambda log_chances, *_: torch.ones_like(log_chances),
        )
    drawn = torch.Generator().manual_seed(4)
    found = []
    for _ in range(80):
        (objective,) = source.objectives(request_for(scores, source.net), drawn)
        found.append(-gradient(objective.loss, source.net))
    estimates = torch.stack(found)
    errors = estimates.mean(0) - exact_gradient(scores, source.net)
    standard = estimates.std(0) / math.sqrt(len(estimates))
    assert bool((errors.abs() <= 4 * standard + 1e-12).all()) == right


def test_rewards_carry_no_gradient_and_each_player_moves_alone() -> None:
    source, scores = generator_on_five_items(), of_discriminator()
    (objective,) = source.objectives(request_for(scores, source.net), torch.Generator().manual_seed(0))
    objective.loss.backward()  # type: ignore[no-untyped-call]
    assert scores.grad is None
    assert all(parameter.grad is not None for parameter in source.net.parameters())

    model = IRGANModel(IRGAN(warm_epochs=0), interactions(PAIRS), torch.Generator().manual_seed(0))
    batch = next(iter(model.batches(torch.Generator().manual_seed(0))))
    groups = model.groups
    assert list(groups) == ["discriminator", "generator"]
    for objective in model.objectives(batch, torch.Generator().manual_seed(0)):
        model.zero_grad()
        objective.loss.backward()  # type: ignore[no-untyped-call]
        moved = {name for name, group in groups.items() if any(p.grad is not None for p in group)}
        assert moved == {objective.group}


def test_the_discriminator_is_fed_by_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that is sure of item 2 gives the discriminator nothing else, were it the user's own."""
    model = IRGANModel(IRGAN(warm_epochs=0), interactions(PAIRS), torch.Generator().manual_seed(0))
    fed, compare = [], model.net.compare

    def spied(users: Tensor, items: Tensor, negatives: Tensor) -> Any:
        fed.append(negatives)
        return compare(users, items, negatives)

    monkeypatch.setattr(model.net, "compare", spied)
    for favourite in (2, 4):
        model.source.net.bias.data = 50.0 * (torch.arange(N_ITEMS) == favourite)
        for batch in model.batches(torch.Generator().manual_seed(0)):
            list(model.objectives(batch, torch.Generator().manual_seed(1)))
        assert (torch.cat(fed) == favourite).all()
        fed.clear()


def test_as_a_source_it_leaves_out_what_the_user_has_had() -> None:
    source, scores = generator_on_five_items(), of_discriminator()
    draws = source.draw(request_for(scores, source.net, 200), torch.Generator().manual_seed(0))
    for (user, _), row in zip(PAIRS, draws.items, strict=True):
        assert all((user, int(item)) not in PAIRS for item in row)
    assert draws.log_chance is not None
    # log of chance over uniform: by the softmax over what is left, at the temperature.
    logits = source.net.score_all(torch.tensor([2]))[0, 1:] / 0.2
    expected = (logits.softmax(0) * N_ITEMS).log()[draws.items[5] - 1]
    torch.testing.assert_close(draws.log_chance[5], expected)


def test_a_small_temperature_and_large_scores_stay_numbers() -> None:
    source, scores = generator_on_five_items(temperature=0.02), of_discriminator()
    source.net.float()
    source.net.bias.data = torch.tensor([900.0, -900.0, 0.0, 1.0, 2.0])
    request = request_for(scores.float(), source.net, 8)
    draws = source.draw(request, torch.Generator().manual_seed(0))
    assert draws.log_chance is not None
    assert draws.log_chance.isfinite().all()
    (objective,) = source.objectives(request, torch.Generator().manual_seed(0))
    assert objective.loss.isfinite()
    assert gradient(objective.loss, source.net).isfinite().all()
    underflowed = torch.tensor([-900.0, -900.0, 0.0])
    ratio = proposal_ratio(
        underflowed, torch.tensor([True, False, True]), torch.tensor([2, 2, 2]), positive_share=0.2
    )
    torch.testing.assert_close(ratio, torch.tensor([0.0, 1.25, 1 / 0.9]))


def test_the_reward_is_between_minus_one_and_one() -> None:
    torch.testing.assert_close(
        reward(torch.tensor([-50.0, 0.0, math.log(3), 50.0])), torch.tensor([-1.0, 0.0, 0.5, 1.0])
    )


def test_it_is_warm_for_as_many_epochs_as_it_says_and_then_rewarded() -> None:
    train = random_interactions(1, n_users=12, n_items=9)
    model = IRGANModel(IRGAN(warm_epochs=2, batch_size=8), train, torch.Generator().manual_seed(0))
    kinds = []
    for epoch in range(4):
        batches: list[PairBatch] = list(model.batches(torch.Generator().manual_seed(epoch)))
        found = {
            "reward" in list(model.objectives(batch, torch.Generator().manual_seed(0)))[1].terms
            for batch in batches
        }
        kinds.append(found)
    assert kinds == [{False}, {False}, {True}, {True}]


def test_warm_steps_are_those_of_bpr_against_the_hardest_of_the_candidates() -> None:
    source, scores = generator_on_five_items(warm_epochs=1, candidates=400), of_discriminator()
    (objective,) = source.objectives(request_for(scores, source.net), torch.Generator().manual_seed(0))
    own = source.net.score_all(torch.arange(N_USERS)).detach()
    expected = []
    for user, item in PAIRS:
        hardest = max(float(own[user, other]) for other in range(N_ITEMS) if (user, other) not in PAIRS)
        expected.append(math.log1p(math.exp(hardest - float(own[user, item]))))
    assert float(objective.loss.detach()) == pytest.approx(sum(expected) / len(expected), rel=1e-9)


def test_each_user_counts_once() -> None:
    """Item 2's user draws twice, user 1's three items six times: the shares of each add up to a third."""
    source = generator_on_five_items()
    users, rows = torch.unique(torch.tensor([user for user, _ in PAIRS]), return_inverse=True)
    log_chances = source.net.score_all(users).log_softmax(1).detach()
    proposals = source._propose(users, rows, log_chances, torch.Generator().manual_seed(0))
    assert torch.bincount(proposals.rows).tolist() == [4, 6, 2]
    shares = torch.zeros(3, dtype=torch.float64).index_add_(0, proposals.rows, proposals.share)
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3, dtype=torch.float64))

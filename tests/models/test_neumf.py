"""NeuMF against loops over lists, in float64; its branches apart, alone first, and joined."""

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from graphs import interactions, small_split
from hdccf.config import FitOptions
from hdccf.data.batches import PairBatch
from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError
from hdccf.kernels import pairwise
from hdccf.models.base import Model
from hdccf.models.neumf import GMF, MLP, Branches, NeuMF, build_neumf
from hdccf.models.pairs import PairModel
from hdccf.training.fit import fit, resume
from hdccf.training.optim import Stepper
from training import assert_same_runs, cut_off_after

QUICK: dict[str, Any] = {"embedding_dim": 4, "batch_size": 64, "learning_rate": 0.02, "init_std": 0.5}
N_USERS, N_ITEMS = 4, 6


def train() -> Interactions:
    pairs = [(0, 1), (0, 4), (1, 0), (1, 5), (2, 3), (3, 2), (3, 4), (3, 0)]
    return interactions(pairs, n_users=N_USERS, n_items=N_ITEMS, times=list(range(len(pairs))))


def build(data: Interactions | None = None, **settings: Any) -> tuple[Model, Branches]:
    """In float64, with biases that are not zero."""
    chosen = NeuMF(**{**QUICK, "embedding_dim": 2, "negatives": 2, **settings})
    model = build_neumf(chosen, train() if data is None else data, torch.Generator().manual_seed(0))
    inner = model
    assert isinstance(inner, PairModel)
    assert isinstance(inner.net, Branches)
    inner.double()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in inner.net.named_parameters():
        if "bias" in name:
            parameter.data.normal_(generator=generator)
    return model, inner.net


def gmf_of(net: Branches) -> GMF:
    return cast("GMF", net.named()["gmf"])


def mlp_of(net: Branches) -> MLP:
    return cast("MLP", net.named()["mlp"])


def literal_gmf(branch: GMF, user: int, item: int) -> float:
    """h·(p ⊙ q) + b."""
    p, q = branch.users.embedding[user].tolist(), branch.items.embedding[item].tolist()
    h = branch.head.tolist()
    dot: float = sum(h[k] * p[k] * q[k] for k in range(len(h)))
    return dot + float(branch.bias.detach())


def literal_mlp(branch: MLP, user: int, item: int) -> float:
    """h·relu(W₂ relu(W₁ [p ‖ q] + b₁) + b₂) + b: from 4f to 2f to f, as W₁ would be written."""
    together = branch.users.embedding[user].tolist() + branch.items.embedding[item].tolist()
    first = torch.cat([branch.user_weight, branch.item_weight], dim=1).tolist()
    factors = len(branch.head)
    assert (len(together), len(first)) == (4 * factors, 2 * factors)
    hidden = together
    for weights, biases in (
        (first, branch.first_bias.tolist()),
        (branch.second_weight.tolist(), branch.second_bias.tolist()),
    ):
        sums = [
            sum(w * x for w, x in zip(row, hidden, strict=True)) + bias
            for row, bias in zip(weights, biases, strict=True)
        ]
        hidden = [max(0.0, value) for value in sums]
    assert len(hidden) == factors
    dot: float = sum(h * x for h, x in zip(branch.head.tolist(), hidden, strict=True))
    return dot + float(branch.bias.detach())


def literal_scores(net: Branches) -> Tensor:
    """Every user with every item."""
    by_name = {"gmf": literal_gmf, "mlp": literal_mlp}
    rows = [
        [sum(by_name[name](branch, u, i) for name, branch in net.named().items()) for i in range(N_ITEMS)]  # type: ignore[operator]
        for u in range(N_USERS)
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("branch", ["neumf", "gmf", "mlp"])
def test_scores_are_those_of_the_formula(branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, net = build(branch=branch)
    expected = literal_scores(net)
    users, every = torch.arange(N_USERS), torch.arange(N_ITEMS).expand(N_USERS, -1)
    torch.testing.assert_close(net.score_rows(users, every), expected)
    scores = net.compare(users, every[:, 0], every[:, 1:])
    torch.testing.assert_close(scores.positive, expected[:, 0])
    torch.testing.assert_close(scores.negative, expected[:, 1:])
    scorer = net.scorer()
    torch.testing.assert_close(scorer.score_rows(users, every), expected)
    # Tiles of one pair and tiles of all give the same.
    for numbers in (1, pairwise.TILE_NUMBERS):
        monkeypatch.setattr(pairwise, "TILE_NUMBERS", numbers)
        torch.testing.assert_close(scorer.score_block(users), expected)
        some = torch.tensor([5, 2])
        torch.testing.assert_close(scorer.score_block(users[1:3], some), expected[1:3][:, some])


def test_the_loss_is_the_cross_entropy_of_ones_and_zeros() -> None:
    model, net = build(l2=0.1)
    assert isinstance(model, PairModel)
    users, items = torch.tensor([0, 3]), torch.tensor([1, 2])
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    (objective,) = model.objectives(PairBatch(users, items, weights), torch.Generator().manual_seed(3))
    request = model._request(PairBatch(users, items, weights))
    drawn = model.source.draw(request, torch.Generator().manual_seed(3)).items.tolist()
    scores = literal_scores(net).tolist()
    fit_, penalty = 0.0, 0.0
    for user, item, weight, others in zip((0, 3), (1, 2), (0.25, 0.75), drawn, strict=True):
        one = -math.log(1 / (1 + math.exp(-scores[user][item])))
        zeros = sum(-math.log(1 - 1 / (1 + math.exp(-scores[user][other]))) for other in others)
        fit_ += weight * (one + zeros)
        for branch in net.named().values():
            looked_up = [branch.users.embedding[user]]
            looked_up += [branch.items.embedding[j] for j in (item, *others)]
            penalty += 0.1 * float(sum(x.detach().square().sum() for x in looked_up)) / 2
    assert float(objective.loss.detach()) == pytest.approx(fit_ + penalty, rel=1e-10)
    assert objective.group == "net"


def test_the_branches_share_nothing() -> None:
    model, net = build()
    assert isinstance(model, PairModel)
    tables = [table.embedding for branch in net.named().values() for table in (branch.users, branch.items)]
    assert len({table.untyped_storage().data_ptr() for table in tables}) == len(tables) == 4
    assert [tuple(table.shape) for table in tables] == [(4, 2), (6, 2), (4, 4), (6, 4)]
    for alone, other in (("mlp", "gmf"), ("gmf", "mlp")):
        net.zero_grad(set_to_none=True)
        scores = net.compare(torch.tensor([0, 1]), torch.tensor([1, 5]), torch.tensor([[2], [3]]), only=alone)
        (scores.positive.sum() - scores.negative.sum()).backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is None for parameter in net.named()[other].parameters())
        assert all(parameter.grad is not None for parameter in net.named()[alone].parameters())


@pytest.mark.parametrize("branch", ["gmf", "mlp"])
def test_a_branch_alone_has_no_parameters_of_the_other(branch: str) -> None:
    model, net = build(branch=branch)
    assert list(net.named()) == [branch]
    assert model.groups.keys() == {"net"}


def test_vectors_start_small_and_layers_at_their_inputs_scale() -> None:
    data = interactions([(u, i) for u in range(200) for i in range(0, 300, 100)], n_users=200, n_items=300)
    model = build_neumf(NeuMF(embedding_dim=32), data, torch.Generator().manual_seed(0))
    assert isinstance(model, PairModel)
    net = cast("Branches", model.net)
    for branch in net.named().values():
        for table in (branch.users, branch.items):
            assert float(table.embedding.detach().std()) == pytest.approx(0.01, rel=0.05)
        # LeCun's uniform limit over the 2f features that both heads see.
        limit = math.sqrt(3 / 64)
        assert 0.8 * limit < float(branch.head.detach().abs().max()) <= limit
    # Glorot's over 4f inputs and 2f outputs.
    limit = math.sqrt(6 / (128 + 64))
    for weight in (mlp_of(net).user_weight, mlp_of(net).item_weight):
        assert 0.98 * limit < float(weight.detach().abs().max()) <= limit


# -- alone first, then joined --------------------------------------------------------------------------------


def steps(model: Model, settings: NeuMF, n: int) -> list[list[str]]:
    """Trains for n steps and tells the groups that each of them drove."""
    steppers = {name: Stepper(parameters, settings) for name, parameters in model.groups.items()}
    generator = torch.Generator().manual_seed(0)
    found: list[list[str]] = []
    while len(found) < n:
        for pairs in model.batches(generator):
            driven = []
            for objective in model.objectives(pairs, generator):
                steppers[objective.group].step(objective.loss)
                driven.append(objective.group)
            found.append(driven)
            if len(found) == n:
                break
    return found


def test_each_branch_learns_alone_until_they_are_joined_once() -> None:
    settings = NeuMF(**QUICK, pretrain_epochs=2)
    data = small_split().train
    model, net = build(data, pretrain_epochs=2)
    alone = 2 * model.n_batches
    assert steps(model, settings, alone + 3) == [["gmf", "mlp"]] * alone + [["net"]] * 3
    assert float(net.share) == 1.0
    heads = [branch.head.detach().clone() for branch in net.named().values()]
    generator = torch.Generator().manual_seed(0)
    for _ in model.objectives(next(iter(model.batches(generator))), generator):
        pass  # no step is taken, so nothing may change
    assert all(a.equal(b.head) for a, b in zip(heads, net.named().values(), strict=True))


def test_joining_gives_the_average_of_both_logits() -> None:
    data = small_split().train
    settings = NeuMF(**QUICK, pretrain_epochs=1)
    model, net = build(data, pretrain_epochs=1)
    steps(model, settings, model.n_batches - 1)
    generator = torch.Generator().manual_seed(4)
    pairs = next(iter(model.batches(generator)))
    users, items = torch.arange(40), torch.arange(30).expand(40, -1)

    def logits(only: str | None) -> Tensor:
        scores = net.compare(users, items[:, 0], items[:, 1:], only)
        return torch.cat([scores.positive.unsqueeze(1), scores.negative], dim=1).detach()

    steppers = {name: Stepper(parameters, settings) for name, parameters in model.groups.items()}
    objectives = model.objectives(pairs, generator)
    for objective in objectives:
        steppers[objective.group].step(objective.loss)
        average = (logits("gmf") + logits("mlp")) / 2
        # Whoever asks before they are joined gets what joining will give.
        torch.testing.assert_close(net.scorer().score_block(users), average)
        separate = {name: branch.head.detach().clone() for name, branch in net.named().items()}
    torch.testing.assert_close(logits(None), average)
    torch.testing.assert_close(net.scorer().score_block(users), average)
    for name, branch in net.named().items():
        torch.testing.assert_close(branch.head.detach(), separate[name] / 2)


def test_learning_alone_drives_only_its_own_group() -> None:
    model, net = build(small_split().train, pretrain_epochs=1)
    settings = NeuMF(**QUICK, pretrain_epochs=1)
    steppers = {name: Stepper(parameters, settings) for name, parameters in model.groups.items()}
    generator = torch.Generator().manual_seed(0)
    for objective in model.objectives(next(iter(model.batches(generator))), generator):
        before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        steppers[objective.group].step(objective.loss)
        changed = {name for name, p in net.named_parameters() if not p.detach().equal(before[name])}
        assert changed
        assert all(name.startswith(f"branches.{objective.group}.") for name in changed)


def test_a_branch_that_learns_alone_learns_what_it_would_learn_without_the_other() -> None:
    """GMF before the joining is `branch=gmf`, from the same start and on the same negatives."""
    data = small_split().train
    both, net = build(data, pretrain_epochs=1)
    single, of_single = build(data, branch="gmf")
    of_single.load_state_dict({**of_single.state_dict(), **_only(net, "gmf")})
    n = both.n_batches - 1
    for model in (both, single):
        steps(model, NeuMF(**QUICK), n)
    for name, value in _only(of_single, "gmf").items():
        assert value.equal(net.state_dict()[name])


def _only(net: Branches, name: str) -> dict[str, Tensor]:
    return {key: value for key, value in net.state_dict().items() if key.startswith(f"branches.{name}.")}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("epoch", "more"), [(1, 2), (2, 0), (2, 1), (3, 1)])
def test_training_goes_on_bit_for_bit_before_and_after_they_are_joined(
    epoch: int, more: int, sparse: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NeuMF(**QUICK, epochs=4, pretrain_epochs=2, sparse_updates=sparse)
    every_step = FitOptions(checkpoint_minutes=0)
    fit(small_split(), settings, out=tmp_path / "whole", options=every_step)
    n = build(small_split().train, pretrain_epochs=2)[0].n_batches
    taken = 2 * n * min(epoch, 2) + n * max(epoch - 2, 0)
    with cut_off_after(taken + more, monkeypatch):
        fit(small_split(), settings, out=tmp_path / "cut", options=every_step)
    resume(tmp_path / "cut")
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_one_branch_cannot_be_trained_before_itself() -> None:
    with pytest.raises(
        ConfigError, match=r"^pretrain_epochs=3 is for joining two branches; with branch='gmf'"
    ):
        NeuMF(branch="gmf", pretrain_epochs=3)

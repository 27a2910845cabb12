"""The rules of the steps: those of torch, and sparse ones that leave alone what was not touched."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hdccf.config import TrainingSettings
from hdccf.parallel import SingleProcess
from hdccf.training import optim
from hdccf.training.optim import OPTIMIZERS, MovingAverage, RowAdam, Stepper

TORCHS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "sgd": torch.optim.SGD,
}


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(6, 3, generator=generator)) for _ in range(2)]


def loss_of(table: Tensor, weight: Tensor, step: int, *, sparse: bool) -> Tensor:
    """Rows step and step + 1 of the table, and the whole of the weight."""
    rows = functional.embedding(torch.tensor([step % 6, (step + 1) % 6]), table, sparse=sparse)
    return (rows @ weight.T).square().sum()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_each_rule_is_torchs(name: str, decay: float) -> None:
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, weight_decay=decay)  # type: ignore[arg-type]
    mine, theirs = parameters(), parameters()
    stepper = Stepper(mine, settings)
    rule = TORCHS[name](theirs, lr=0.01, weight_decay=decay)
    for step in range(5):
        stepper.step(loss_of(mine[0], mine[1], step, sparse=False))
        rule.zero_grad()
        loss_of(theirs[0], theirs[1], step, sparse=False).backward()  # type: ignore[no-untyped-call]
        rule.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert not mine[0].equal(parameters()[0])


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_sparse_updates_leave_alone_what_was_not_touched(name: str) -> None:
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, sparse_updates=True)  # type: ignore[arg-type]
    mine = parameters()
    stepper = Stepper(mine, settings)
    for step in (0, 1):  # rows 0, 1 and then 1, 2
        before = mine[0].detach().clone()
        stepper.step(loss_of(mine[0], mine[1], step, sparse=True))
        moved = (mine[0].detach() != before).any(1)
        assert moved.nonzero().squeeze(1).tolist() == [step, step + 1]
    assert (mine[1] != parameters()[1]).all()  # the whole gradient moves all of it


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_sparse_adam_is_torchs_on_the_rows_and_adam_on_the_rest(name: str) -> None:
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, sparse_updates=True)  # type: ignore[arg-type]
    mine, theirs = parameters(), parameters()
    stepper = Stepper(mine, settings)
    rules: list[Any] = [torch.optim.SparseAdam([theirs[0]], lr=0.01)]
    rules.append(TORCHS[name]([theirs[1]], lr=0.01, weight_decay=0.0))
    for step in range(7):
        stepper.step(loss_of(mine[0], mine[1], step, sparse=True))
        loss = loss_of(theirs[0], theirs[1], step, sparse=True)
        for rule in rules:
            rule.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for rule in rules:
            rule.step()
    # To rounding: a sum of products is taken in another order.
    torch.testing.assert_close(mine[0], theirs[0], rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(mine[1], theirs[1])


@pytest.mark.parametrize("steps", [1, 30])
def test_rows_move_alike_compiled_and_as_written(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's gradient names each row once, a batch of pairs the same row many times."""
    generator = torch.Generator().manual_seed(0)
    tables = [nn.Parameter(torch.randn(40, 5, generator=torch.Generator().manual_seed(1))) for _ in range(2)]
    rules = [RowAdam([table], lr=0.02) for table in tables]
    for step in range(steps):
        n = 12
        rows = (
            torch.randint(40, (n,), generator=generator)
            if step % 2
            else torch.randperm(40, generator=generator)[:n]
        )
        wanted = torch.randn(n, 5, generator=generator)
        for written, table, rule in zip((False, True), tables, rules, strict=True):
            table.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), wanted, (40, 5), check_invariants=False)
            with monkeypatch.context() as patched:
                if written:
                    patched.setattr(optim, "is_compiled", lambda table: False)
                rule.step()
    torch.testing.assert_close(tables[0], tables[1], rtol=1e-5, atol=1e-6)


def test_where_every_row_is_touched_sparse_adam_is_adam() -> None:
    ends = []
    for sparse in (False, True):
        settings = TrainingSettings(learning_rate=0.01, sparse_updates=sparse)
        mine = parameters()
        stepper = Stepper(mine, settings)
        for _ in range(5):
            rows = functional.embedding(torch.arange(6), mine[0], sparse=sparse)
            stepper.step((rows @ mine[1].T).square().sum())
        ends.append(mine[0].detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_parameter_without_a_part_in_the_loss_stays(sparse: bool) -> None:
    mine = parameters()
    stepper = Stepper(mine, TrainingSettings(sparse_updates=sparse))
    of_first: Callable[[], Tensor] = lambda: functional.embedding(  # noqa: E731
        torch.tensor([0]), mine[0], sparse=sparse
    ).sum()
    stepper.step(of_first())
    stepper.step(of_first())
    assert mine[1].equal(parameters()[1])


def test_fused_adam_is_torchs_bit_by_bit_also_after_a_break() -> None:
    mine, theirs = parameters(), parameters()
    rule = torch.optim.Adam(theirs, lr=0.01, weight_decay=0.1, fused=True)
    settings = TrainingSettings(learning_rate=0.01, weight_decay=0.1)
    stepper = Stepper(mine, settings)
    for step in range(6):
        if step == 3:
            state = stepper.optimizers["dense"].state_dict()
            stepper = Stepper(mine, settings)
            stepper.optimizers["dense"].load_state_dict(state)
        stepper.step(loss_of(mine[0], mine[1], step, sparse=False))
        rule.zero_grad()
        loss_of(theirs[0], theirs[1], step, sparse=False).backward()  # type: ignore[no-untyped-call]
        rule.step()
    assert all(a.equal(b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_smaller_share_is_a_smaller_learning_rate(name: str, sparse: bool) -> None:
    shares = (1.0, 0.5, 0.1, 0.0, 0.7)
    mine, theirs = parameters(), parameters()
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, sparse_updates=sparse)  # type: ignore[arg-type]
    plain = TORCHS["adam" if name == "adamw" else name]  # without decay they are the same
    by_rows: Any = torch.optim.SparseAdam if sparse and name.startswith("adam") else plain
    kinds = [by_rows(theirs[:1], lr=0.01), plain(theirs[1:], lr=0.01)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(kind, lambda step: shares[step % 5]) for kind in kinds]
    stepper = Stepper(mine, settings)
    for step, share in enumerate(shares):
        stepper.set_lr_factor(share)
        stepper.step(loss_of(mine[0], mine[1], step, sparse=sparse))
        for kind in kinds:
            kind.zero_grad()
        loss_of(theirs[0], theirs[1], step, sparse=sparse).backward()  # type: ignore[no-untyped-call]
        for kind, schedule in zip(kinds, schedules, strict=True):
            kind.step()
            schedule.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# -- sparse gradients for rules over all rows ----------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_sparse_gradient_steps_like_a_dense_one(name: str, decay: float) -> None:
    """Also in the other rows, which move on by their moments; also where a row comes twice."""
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, weight_decay=decay)  # type: ignore[arg-type]
    mine, theirs = parameters(), [x.detach().double().requires_grad_() for x in parameters()]
    stepper, rule = Stepper(mine, settings), TORCHS[name](theirs, lr=0.01, weight_decay=decay)
    for step in range(12):
        rows = torch.tensor([step % 4, 4, step % 4])
        stepper.step((functional.embedding(rows, mine[0], sparse=True) @ mine[1].T).square().sum())
        rule.zero_grad()
        (theirs[0][rows] @ theirs[1].T).square().sum().backward()  # type: ignore[no-untyped-call]
        rule.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
    if name in ("adam", "adamw") and decay:
        assert not mine[0][5].equal(parameters()[0][5])  # never named, and decayed


def adam_steps(n: int, mine: list[nn.Parameter], stepper: Stepper) -> None:
    for step in range(n):
        rows = functional.embedding(torch.tensor([step % 6, 0]), mine[0], sparse=True)
        stepper.step((rows @ mine[1].T).square().sum())


def test_a_break_changes_no_bit_of_steps_by_rows() -> None:
    ends = []
    for broken in (False, True):
        settings, mine = TrainingSettings(learning_rate=0.01), parameters()
        stepper = Stepper(mine, settings)
        adam_steps(4, mine, stepper)
        if broken:
            state = stepper.optimizers["dense"].state_dict()
            stepper = Stepper(mine, settings)
            stepper.optimizers["dense"].load_state_dict(state)
        adam_steps(4, mine, stepper)
        ends.append(mine)
    assert all(a.equal(b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_process_group_reduces_dense_gradients_unless_updates_are_sparse(sparse: bool) -> None:
    seen = []

    class Two(SingleProcess):
        size = 2

        def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
            seen.append(parameters[0].grad.layout)  # type: ignore[union-attr]

    mine = parameters()
    adam_steps(1, mine, Stepper(mine, TrainingSettings(sparse_updates=sparse), process_group=Two()))
    assert seen == [torch.sparse_coo if sparse else torch.strided]


@pytest.mark.parametrize("steps", [1.0, 5.0, 1000.0])
def test_an_average_of_weights_is_as_defined(steps: float) -> None:
    weight = nn.Parameter(torch.zeros(3))
    average = MovingAverage([weight], steps)
    literal = np.zeros(3)
    every = max(1, round(steps / 256))
    for step in range(1, 41):
        with torch.no_grad():
            weight.copy_(torch.randn(3, generator=torch.Generator().manual_seed(step)))
        average.update(step)
        if step % every == 0:
            share = min(1.0, max(4 * every / step, every / steps))
            literal = (1 - share) * literal + share * weight.detach().double().numpy()
    last = weight.detach().clone()
    with average.applied():
        np.testing.assert_allclose(weight.detach().numpy(), literal, atol=1e-6)
    assert weight.equal(last)
    np.testing.assert_allclose(average.averages[0].numpy(), literal, atol=1e-6)


def test_a_training_does_without_torchs_compiler() -> None:
    """Its import takes seconds, and torch's own Adam is what asks for it."""
    program = """
import sys
import hdccf
from hdccf.models.factorization import BPR
split = hdccf.leave_one_out(hdccf.load("synthetic"))
hdccf.fit(split, BPR(epochs=1))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""`verify` says that the theory holds for the right pieces, and sees each of them when it is broken."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hdccf import cli, losses
from hdccf.data import datasets, samplers
from hdccf.data.batches import NegativeColumns
from hdccf.data.graph import Neighbours
from hdccf.data.synthetic import World, synthetic_world
from hdccf.losses.negatives import ContrastiveLoss, NegativeSet, NegativeTerm
from hdccf.models.calibration import Calibration
from hdccf.models.hdccf import steps
from hdccf.verify import Finding, Report, propositions, verify
from hdccf.verify.blocks import check_blocks
from hdccf.verify.dial import check_dial
from hdccf.verify.gradients import check_bound, check_gradients
from hdccf.verify.propositions import (
    check_appearances,
    check_each_target,
    check_enumeration,
    check_propositions,
)
from hdccf.verify.report import LEVEL, global_test, mean_interval
from hdccf.verify.theorem import CORRECTED, ESTIMATORS, UNIFORM, check_loss, check_scores

Break = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[], Iterable[Finding]]


def small_appearances() -> Iterator[Finding]:
    data = synthetic_world(1500, n_users=80, n_items=60, liked=0.5, seed=0).interactions
    return check_appearances("small", data, seed=0, batches=60, batch_size=64)


def small_loss(*estimators: str) -> list[Finding]:
    found, _ = check_loss(0, repetitions=8, sizes=(100, 200), targets=600, estimators=estimators)
    # The logarithm's bias is small for these few worlds: whether it is seen is no matter here.
    return [finding for finding in found if "logarithm" not in finding.claim]


CHECKS: dict[str, Check] = {
    "gradients": check_gradients,
    "enumeration": check_enumeration,
    "each target": lambda: [check_each_target(0, 150)],
    "appearances": small_appearances,
    "theorem": lambda: check_scores(0, n=120, worlds=2),
    "loss": lambda: small_loss(*ESTIMATORS),
    "uniform loss": lambda: small_loss(UNIFORM),
    "in-batch loss": lambda: small_loss(CORRECTED),
    "bound": check_bound,
    "blocks": lambda: check_blocks(0, n=120, epochs=12),
    "dial": lambda: check_dial(0),
}
"""As `verify` runs them, with less of everything."""


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - {"uniform loss", "in-batch loss"}))
def test_right_pieces_hold(name: str) -> None:
    found = list(CHECKS[name]())
    assert found
    assert [finding for finding in found if finding.verdict != "holds"] == []


# -- breaking each piece -------------------------------------------------------------------------------------


def positive_left_out(patch: pytest.MonkeyPatch) -> None:
    """−log e^{s/τ} / (F_items + F_users)."""

    def loss(positive: Tensor, items: Tensor, users: Tensor, *, temperature: float, **_: float) -> Tensor:
        return torch.logaddexp(items, users) - positive / temperature

    patch.setattr(losses, "contrastive_loss", loss)


def positive_held_fast(patch: pytest.MonkeyPatch) -> None:
    """No gradient through the positive where it stands in the denominator."""

    def loss(positive: Tensor, items: Tensor, users: Tensor, *, temperature: float, **_: float) -> Tensor:
        terms = torch.stack([items, users, positive.detach() / temperature])
        return torch.logsumexp(terms, 0) - positive / temperature

    patch.setattr(losses, "contrastive_loss", loss)


def temperature_doubled(patch: pytest.MonkeyPatch) -> None:
    real = losses.log_negative_score

    def score(*arguments: Any, temperature: float, **rest: Any) -> Tensor:
        return real(*arguments, temperature=2 * temperature, **rest)

    patch.setattr(losses, "log_negative_score", score)


def target_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = ContrastiveLoss.term

    def term(self: ContrastiveLoss, against: NegativeSet, target: Tensor, omega: Any) -> NegativeTerm:
        return real(self, against._replace(valid=torch.ones_like(against.valid)), target, omega)

    patch.setattr(ContrastiveLoss, "term", term)


def _weights_from(change: Callable[[NegativeColumns], NegativeColumns]) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = steps.in_batch_log_weights

        def weights(negatives: NegativeColumns, log_frequency: Tensor, *, mask_observed: bool) -> Tensor:
            return real(change(negatives), log_frequency, mask_observed=mask_observed)

        patch.setattr(steps, "in_batch_log_weights", weights)

    return broken


# Each distinct column once, however often it stands in the multi-set.
counts_left_out = _weights_from(lambda negatives: negatives._replace(counts=negatives.counts.clamp(max=1)))
# An instance's own neighbours among its negatives.
own_neighbours_kept = _weights_from(lambda negatives: negatives._replace(own=negatives.own[:, :0]))
observed_not_masked = _weights_from(
    lambda negatives: negatives._replace(
        observed_rows=negatives.observed_rows[:0], observed_columns=negatives.observed_columns[:0]
    )
)


def beta_ignored(patch: pytest.MonkeyPatch) -> None:
    real = losses.log_frequency_weights
    patch.setattr(losses, "log_frequency_weights", lambda frequencies, beta: real(frequencies, 0.0))


def _debias(**changes: Callable[[Any], Any]) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> None:
        real = losses.debias

        def debias(*arguments: Any, **settings: Any) -> tuple[Tensor, Tensor]:
            changed = {name: change(settings[name]) for name, change in changes.items()}
            return real(*arguments, **{**settings, **changed})

        patch.setattr(losses, "debias", debias)

    return broken


omega_ignored = _debias(omega=lambda omega: omega * 0.0)
omega_halved = _debias(omega=lambda omega: omega / 2)
printed_sign = _debias(lowest=lambda lowest: -lowest)
bound_too_low = _debias(lowest=lambda lowest: 3 * lowest)


def not_divided(patch: pytest.MonkeyPatch) -> None:
    """F − Q·ω⁺·mean⁺ without 1/(1 − ω⁺)."""
    real = losses.debias

    def debias(*arguments: Any, omega: Any, **settings: Any) -> tuple[Tensor, Tensor]:
        score, clipped = real(*arguments, omega=omega, **settings)
        return score + torch.log1p(-torch.as_tensor(omega)), clipped

    patch.setattr(losses, "debias", debias)


def without_replacement(patch: pytest.MonkeyPatch) -> None:
    def draw(self: Neighbours, nodes: Tensor, size: int, generator: torch.Generator) -> Tensor:
        keys = torch.rand(len(nodes), int(self.degrees.max()), generator=generator)
        keys[torch.arange(keys.shape[1]) >= self.degrees[nodes, None]] = math.inf
        order = keys.argsort(1)[:, torch.arange(size) % keys.shape[1]]
        return self.flat[self.starts[nodes, None] + order % self.degrees[nodes, None]]

    patch.setattr(Neighbours, "draw", draw)


def batches_with_repeats(patch: pytest.MonkeyPatch) -> None:
    """Pairs drawn for each batch anew, instead of a shuffled epoch."""

    def shuffled(total: int, size: int, generator: torch.Generator, least: int = 2) -> Iterator[Tensor]:
        for _ in range(total // size):
            yield torch.randint(total, (size,), generator=generator)

    patch.setattr(samplers, "shuffled", shuffled)


def _drawn_from_everything(method: str) -> Break:
    """Uniform in the catalogue."""

    def draw(self: Neighbours, nodes: Tensor, size: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.n_columns, (len(nodes), size), generator=generator)

    return lambda patch: patch.setattr(Neighbours, method, draw)


neighbours_from_anywhere = _drawn_from_everything("draw")  # not in the multi-set of observed pairs
negatives_from_everything = _drawn_from_everything("draw_others")  # which may be observed pairs


def relations_weighed_twice(patch: pytest.MonkeyPatch) -> None:
    real = steps.score_in_batch

    def score(*arguments: Any) -> steps.Scored:
        scored = real(*arguments)
        relation = scored.item_item
        assert relation is not None
        return scored._replace(item_item=relation._replace(log_weights=relation.log_weights + math.log(2)))

    patch.setattr(steps, "score_in_batch", score)


def wrong_truth(patch: pytest.MonkeyPatch) -> None:
    """The share of false negatives among all pairs instead of among those not observed."""
    patch.setattr(World, "omega_items", property(lambda world: np.full(world.n_users, 0.05)))


def dial_reversed(patch: pytest.MonkeyPatch) -> None:
    real = Calibration.with_popularity
    patch.setattr(Calibration, "with_popularity", lambda self, popularity: real(self, -popularity))


BREAKS: list[tuple[Break, str, list[str]]] = [
    (positive_left_out, "gradients", ["over P(u′,i′)"]),
    (positive_held_fast, "gradients", ["the positive's gradient", "all gradients of an unclipped row"]),
    (temperature_doubled, "gradients", ["grows with f by 1/τ"]),
    (target_counted_twice, "gradients", ["π₀ or −π₁"]),
    (counts_left_out, "gradients", ["π₀ or −π₁"]),
    (observed_not_masked, "gradients", ["π₀ or −π₁"]),
    (beta_ignored, "gradients", ["π₀ or −π₁"]),
    (not_divided, "gradients", ["π₀ or −π₁"]),
    (counts_left_out, "enumeration", ["every batch and draw"]),
    (own_neighbours_kept, "enumeration", ["averaged over all targets"]),
    (batches_with_repeats, "each target", ["real sampler"]),
    (neighbours_from_anywhere, "appearances", ["Proposition 1", "Proposition 2"]),
    (counts_left_out, "appearances", ["Proposition 1", "Proposition 2"]),
    (relations_weighed_twice, "appearances", ["Proposition 2"]),
    (without_replacement, "appearances", ["draws with replacement"]),
    (
        omega_ignored,
        "theorem",
        [
            "uniform sampler, negative items",
            "uniform sampler, negative users",
            "block of everything, negative items",
            "block of everything, negative users",
            "the gap that remains",
            "exposure by popularity, negative users",
        ],
    ),
    (omega_halved, "theorem", ["uniform sampler, negative items"]),
    (wrong_truth, "theorem", ["uniform sampler, negative items"]),
    (not_divided, "theorem", ["uniform sampler, negative users"]),
    (
        negatives_from_everything,
        "theorem",
        ["uniform sampler, negative items", "(ω⁺ = 0), negative items", "(ω⁺ = 0), negative users"],
    ),
    (printed_sign, "theorem", ["uniform sampler, negative items"]),
    (beta_ignored, "in-batch loss", ["in-batch, β = 1: in the limit"]),
    (observed_not_masked, "in-batch loss", ["in-batch, β = 1: in the limit"]),
    (omega_ignored, "uniform loss", ["uniform sampler: in the limit"]),
    (printed_sign, "bound", ["τ = 0.5, ω⁺ = 0.05: share of rows clipped", "get no gradient", "as printed"]),
    (bound_too_low, "bound", ["smallest clamped score"]),
    (temperature_doubled, "bound", ["all at f = −1"]),
    (counts_left_out, "blocks", ["negative items: the sum", "gradient of the sum", "the debiased loss"]),
    (observed_not_masked, "blocks", ["negative items: the sum", "negatives of the user–user loss"]),
    (relations_weighed_twice, "blocks", ["of the item–item loss"]),
    (dial_reversed, "dial", ["with γ = 1 and β = 0", "more than with γ = 0", "no less than"]),
    (beta_ignored, "dial", ["slope of", "with γ = 1 and β = 0"]),
]


@pytest.mark.parametrize(("broken", "check", "claims"), BREAKS)
def test_a_broken_piece_is_seen(
    broken: Break, check: str, claims: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    failed = [finding.claim for finding in CHECKS[check]() if finding.verdict == "fails"]
    assert [claim for claim in claims if not any(claim in text for text in failed)] == []


# -- the statistics ------------------------------------------------------------------------------------------


def test_the_global_test_keeps_its_level_for_correlated_cells_and_sees_a_shift() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((40, 40)) * (1 / np.arange(1, 41))
    outside = 0
    for _ in range(1000):
        measured, (low, high) = global_test(rng.exponential(size=(60, 40)) @ mixing - mixing.sum(0))
        outside += not low <= measured <= high
    # One expected at the level of 0.999; eight would have a probability of one in a hundred thousand.
    assert outside < 8
    measured, (_, high) = global_test(rng.standard_normal((60, 40)) + 0.2)
    assert measured > high


def test_the_global_test_of_what_never_varies_is_content() -> None:
    assert global_test(np.zeros((5, 3))) == (1.0, (1.0, 1.0))


def test_an_interval_of_a_mean_has_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(1000):
        _, (low, high) = mean_interval(rng.standard_normal(8))
        missed += not low <= 0 <= high
    assert missed < 8
    assert LEVEL == 0.999


def test_expectations_that_differ_do_not_widen_the_interval() -> None:
    around = np.arange(10.0)
    mean, (low, high) = mean_interval(around + 1, around)
    assert (mean, low, high) == (5.5, 5.5, 5.5)


# -- the report and the command ------------------------------------------------------------------------------


def test_ml_100k_is_checked_where_it_is_and_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propositions, "check_enumeration", lambda: iter(()))
    monkeypatch.setattr(propositions, "check_each_target", lambda *_: Finding.unchecked("", "", ""))
    monkeypatch.setattr(
        propositions, "check_appearances", lambda name, *_: [Finding.exact("", name, 0, 0, tolerance=0)]
    )
    absent = [finding for finding in check_propositions() if finding.claim == "ml-100k"]
    assert [finding.verdict for finding in absent] == ["not checked"]
    assert "hdccf data get ml-100k" in absent[0].detail
    monkeypatch.setattr(propositions, "find_stored", lambda *_: ("a folder", {}))
    monkeypatch.setattr(datasets, "load", lambda name: name)
    present = [finding for finding in check_propositions() if finding.claim == "ml-100k"]
    assert [finding.verdict for finding in present] == ["holds"]


def test_equal_seeds_give_equal_reports() -> None:
    parts = ("gradients", "bound")
    assert verify(3, parts) == verify(3, parts)
    assert verify(3, parts) != verify(4, parts)


def test_what_is_not_a_number_fails() -> None:
    assert Finding.exact("", "", 0.0, math.nan, tolerance=1.0).verdict == "fails"
    nowhere = (math.nan, math.nan)
    assert Finding.estimated("", "", 0.0, math.nan, nowhere).verdict == "fails"
    assert Finding.estimated("", "", 0.0, math.nan, nowhere, not_equal=True).verdict == "fails"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_prints_a_table_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "gradients, bound") == 0
    printed = capsys.readouterr().out
    for word in ("claim", "predicted", "measured", "interval", "verdict", "holds", "0 fail"):
        assert word in printed


def test_a_claim_that_fails_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed_sign(monkeypatch)
    assert run("--only", "bound", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    verdicts = {finding["claim"]: finding["verdict"] for finding in report["findings"]}
    assert verdicts["e^(−1/τ), τ = 0.5, ω⁺ = 0.05: share of rows clipped"] == "fails"
    assert {"predicted", "measured", "interval", "detail"} <= set(report["findings"][0])


def test_json_has_null_for_what_is_not_a_number() -> None:
    report = Report([Finding.exact("part", "claim", 1.0, math.nan, tolerance=math.inf)])
    assert json.loads(report.to_json())["findings"][0]["measured"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "gradient"], "'gradient' is no part of the theory; choose from gradients, "),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--figure", "there.png"], "there.png exists and is not overwritten"),
        (["--figure", "new.png", "--only", "bound"], "--figure draws the part convergence"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.png").touch()
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_the_curves_are_printed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from rich.console import Console

    from hdccf.verify.report import draw

    findings, curves = check_loss(0, 2, (50, 100), 200, estimators=(UNIFORM, CORRECTED))
    Console(width=150).print(Report(findings, curves))
    assert "50 × 50" in capsys.readouterr().out
    draw(curves, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert [len(curve.gaps) for curve in curves] == [2, 2]

"""One loop for every model: what it chooses, when it stops, what it shows and what it refuses."""

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from graphs import interactions, small_split
from hdccf import parallel
from hdccf.config import FitOptions, Settings
from hdccf.console import Interruptible, TrainingDisplay
from hdccf.data.split import Split, leave_one_out, predefined_split
from hdccf.errors import ConfigError, SourceError, TrainingError
from hdccf.evaluation.ranking import Ranker
from hdccf.models import MODELS, Entry
from hdccf.models.base import Model, Objective
from hdccf.models.factorization import BPR
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.pairs import PairModel
from hdccf.models.reference import Random
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder
from hdccf.rng import generator_for
from hdccf.training.fit import SplitValidator, StopTraining, fit, resume
from hdccf.training.optim import Stepper
from hdccf.training.state import TrainingState
from training import KINDS, quick

METRIC = "sampled:ndcg@10"


def weights(fitted: Recommender) -> dict[str, torch.Tensor]:
    return fitted.model.state_dict()


def equal(first: Recommender, second: Recommender) -> bool:
    theirs = weights(second)
    return all(tensor.equal(theirs[name]) for name, tensor in weights(first).items())


def without_validation() -> Split:
    split = small_split()
    return predefined_split(split.train, None, split.test)


# -- the same and not the same -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["history", "in-batch", "uniform"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(kind: str) -> None:
    first = fit(small_split(), quick(kind, epochs=2), seed=1)
    torch.manual_seed(99)
    assert equal(first, fit(small_split(), quick(kind, epochs=2), seed=1))
    assert not equal(first, fit(small_split(), quick(kind, epochs=2), seed=2))


def test_keeping_a_run_changes_nothing(tmp_path: Path) -> None:
    often = FitOptions(checkpoint_minutes=0, checkpoint_epochs=1)
    kept = fit(small_split(), quick(), out=tmp_path / "run", options=often)
    assert equal(kept, fit(small_split(), quick()))


def test_streams_of_different_purposes_are_different_and_their_own() -> None:
    def draw(*purpose: Any) -> int:
        return int(torch.randint(1 << 60, (), generator=generator_for(*purpose)))

    made = [draw(0, "epoch", 1), draw(0, "epoch", 2), draw(0, "step", 1), draw(1, "epoch", 1), draw(0)]
    made += [draw(0, "step", 1, 12), draw(0, "step", 11, 2), draw(-1), draw(1 << 70)]
    assert len(set(made)) == len(made)
    assert draw(0, "epoch", 1) == made[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_training_lowers_its_loss(kind: str, tmp_path: Path) -> None:
    fit(small_split(), quick(kind, epochs=8, patience=8), out=tmp_path / "run")
    records = RunFolder.open(tmp_path / "run").metrics()
    assert records[-1]["loss"] < records[0]["loss"]


def test_the_loss_of_an_epoch_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    settings = quick("block", epochs=1)
    fit(small_split(), settings, seed=4, out=tmp_path / "run")
    (record,) = RunFolder.open(tmp_path / "run").metrics()
    model = HDCCFModel(settings, small_split().train, generator_for(4, "initial values"))
    rule = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    seen: list[Objective] = []
    for number, batch in enumerate(model.batches(generator_for(4, "epoch", 1))):
        (objective,) = model.objectives(batch, generator_for(4, "step", 1, number))
        seen.append(objective)
        rule.zero_grad()
        objective.loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
    assert record["loss"] == pytest.approx(sum(float(o.loss.detach()) for o in seen) / len(seen), rel=1e-5)
    assert record["terms"].keys() == seen[0].terms.keys()
    for name, value in record["terms"].items():
        assert value == pytest.approx(sum(float(o.terms[name]) for o in seen) / len(seen), rel=1e-4, abs=1e-7)
    assert record["terms"]["user-user"] > 0


# -- the best epoch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["block", "cosine"])
def test_steps_stay_as_large_or_shrink_along_half_a_cosine(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    monkeypatch.setattr(Stepper, "set_lr_factor", lambda stepper, share: shares.append(share))
    fit(small_split(), quick(kind, epochs=3, patience=10))
    n = len(shares)
    assert n > 3
    literal = [(1 + math.cos(math.pi * step / n)) / 2 for step in range(n)]
    assert shares == pytest.approx(literal if kind == "cosine" else [1.0] * n)


def test_averaged_weights_are_evaluated_and_kept_and_steps_go_on_from_the_last(
    tmp_path: Path,
) -> None:
    settings = quick("averaged", epochs=3, patience=10)
    fitted = fit(small_split(), settings, out=tmp_path / "run")
    plain = fit(small_split(), settings.changed(average_epochs=0.0), out=tmp_path / "plain")
    averaged, last = (RunFolder.open(tmp_path / name) for name in ("run", "plain"))
    losses = [[record["loss"] for record in run.metrics()] for run in (averaged, last)]
    assert losses[0] == losses[1]
    assert not equal(fitted, plain)
    value = Ranker(small_split(), "validation").measure(fitted)["sampled"]["ndcg@10"]
    assert value == pytest.approx(max(record["validation"][METRIC] for record in averaged.metrics()))


def test_the_weights_that_answer_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    settings = quick(epochs=15, patience=15, learning_rate=0.2)
    fitted = fit(small_split(), settings, out=tmp_path / "run")
    values = [record["validation"][METRIC] for record in RunFolder.open(tmp_path / "run").metrics()]
    best = max(values)
    assert values[-1] < best  # it went past it
    assert Ranker(small_split(), "validation").measure(fitted)["sampled"]["ndcg@10"] == pytest.approx(best)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["best_epoch"], result["best_value"]) == (values.index(best) + 1, best)
    shorter = fit(small_split(), settings.changed(epochs=values.index(best) + 1))
    assert equal(fitted, shorter)


def test_of_equal_epochs_the_first_is_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdccf.evaluation.ranking.Ranker.measure", lambda *_: {"sampled": {"ndcg@10": 0.5}})
    fit(small_split(), quick(epochs=9, patience=2), out=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["best_epoch"] == 1
    assert [record["epoch"] for record in RunFolder.open(tmp_path / "run").metrics()] == [1, 2, 3]


def test_a_model_that_has_not_left_chance_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, settings = small_split(), quick(epochs=9, patience=2)
    chance = SplitValidator(split, settings).chance
    for value, epochs in ((chance, 9), (chance + 1e-6, 3)):
        measured = {"sampled": {"ndcg@10": value}}
        monkeypatch.setattr("hdccf.evaluation.ranking.Ranker.measure", lambda *_, given=measured: given)
        out = tmp_path / str(epochs)
        fit(split, settings, out=out)
        assert len(RunFolder.open(out).metrics()) == epochs


def test_a_random_order_is_seldom_beyond_chance() -> None:
    """Three standard errors of an upper bound of the variance; the expectation is that of many orders."""
    split = small_split()
    for metric in ("sampled:ndcg@10", "full:ndcg@10", "full:hr@5", "full:auc"):
        protocol, name = metric.split(":")
        validator = SplitValidator(split, quick(validation_metric=metric))
        ranker = validator.ranker
        assert ranker is not None
        values = np.array(
            [
                ranker.measure(fit(split, Random(), seed=seed), (name,), (protocol,))[protocol][name]
                for seed in range(60)
            ]
        )
        expected = np.nanmean(ranker.chance(protocol, name))
        assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(len(values))
        assert values.max() < validator.chance < expected + 8 * values.std()


def test_training_stops_after_so_many_evaluations_without_a_new_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is little to learn in it: no value is clearly above chance.
    monkeypatch.setattr(SplitValidator, "chance", -math.inf)
    for every, patience in ((1, 3), (2, 2)):
        settings = quick(epochs=60, patience=patience, evaluate_every=every, learning_rate=0.2)
        out = tmp_path / f"{every}"
        fit(small_split(), settings, out=out)
        records = RunFolder.open(out).metrics()
        values = [record["validation"][METRIC] for record in records]
        assert [record["epoch"] for record in records] == [every * (k + 1) for k in range(len(values))]
        assert values.index(max(values)) == len(values) - 1 - patience
        assert records[-1]["epoch"] < 60


def test_the_last_epoch_is_evaluated_whatever_the_rhythm(tmp_path: Path) -> None:
    fit(small_split(), quick(epochs=5, evaluate_every=3), out=tmp_path / "run")
    assert [record["epoch"] for record in RunFolder.open(tmp_path / "run").metrics()] == [3, 5]


def test_another_metric_can_be_the_judge(tmp_path: Path) -> None:
    fit(small_split(), quick(epochs=2, validation_metric="full:hr@5"), out=tmp_path / "run")
    (first, _) = RunFolder.open(tmp_path / "run").metrics()
    assert first["validation"].keys() == {"full:hr@5"}


def test_without_a_validation_part_the_last_epoch_counts(tmp_path: Path) -> None:
    fitted = fit(without_validation(), quick(epochs=4, patience=1), out=tmp_path / "run")
    records = RunFolder.open(tmp_path / "run").metrics()
    assert [record["validation"] for record in records] == [{}] * 4
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best_epoch"] == 4
    assert result["best_value"] is None
    assert not equal(fitted, fit(without_validation(), quick(epochs=3)))


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("ndcg@10", r"^validation_metric='ndcg@10' names no protocol; write it like sampled:ndcg@10$"),
        ("sampled:precision", r"^validation_metric='sampled:precision' is not possible: metric="),
        ("half:ndcg@10", r"^validation_metric='half:ndcg@10' is not possible: protocol='half' is unknown"),
    ],
)
def test_a_metric_that_is_none_is_refused_before_anything_is_done(
    metric: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(small_split(), quick(validation_metric=metric), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_data_and_what_is_no_device_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"^a list cannot be read; give a path, a Polars or pandas data frame"
    ):
        fit([(1, 2)], quick())
    for device in ("abacus", "cuda:77"):
        with pytest.raises(ConfigError, match=f"^device='{device}' is not available on this machine"):
            fit(small_split(), quick(), options=FitOptions(device=device))


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_steps_have_the_matmul_precision_that_was_asked_for(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, step, validate = [], Stepper.step, SplitValidator.__call__

    def watched_step(self: Stepper, loss: torch.Tensor) -> None:
        seen.append(torch.get_float32_matmul_precision())
        step(self, loss)

    def watched_validation(self: SplitValidator, model: Model) -> dict[str, float]:
        assert torch.get_float32_matmul_precision() == "highest"
        return validate(self, model)

    monkeypatch.setattr(Stepper, "step", watched_step)
    monkeypatch.setattr(SplitValidator, "__call__", watched_validation)
    fit(small_split(), quick(epochs=1), options=FitOptions(matmul_precision=precision))
    assert set(seen) == {precision}
    assert torch.get_float32_matmul_precision() == "highest"


def test_threads_are_what_was_asked_for(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        fit(small_split(), quick(epochs=1), out=tmp_path / "run", options=FitOptions(threads=2))
        assert RunFolder.open(tmp_path / "run").options.threads == 2
        assert torch.get_num_threads() == 3  # for whoever called
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("worth", "expected"), [(1 << 22, 1), (1, 2)])
def test_small_steps_stay_on_one_thread(worth: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr("hdccf.training.loop._WORTH_SHARING", worth)
    objective = PairModel._objective

    def watched(self: PairModel, *arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return objective(self, *arguments)

    monkeypatch.setattr(PairModel, "_objective", watched)
    try:
        fit(small_split(), BPR(epochs=1), options=FitOptions(threads=2))
        assert set(seen) == {expected}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("usable", "worth", "expected"),
    [(2, 1 << 22, 1), (2, 1, 2), (1, 1, 1)],
    ids=["small", "large", "limited"],
)
def test_threads_are_chosen_by_size_and_by_the_processors_that_may_be_used(
    usable: int, worth: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdccf.training.loop.processors", lambda: usable)
    monkeypatch.setattr("hdccf.training.loop._WORTH_SHARING", worth)
    before, seen = torch.get_num_threads(), set()
    try:
        torch.set_num_threads(2)
        for number, settings in enumerate((quick("block", epochs=1), BPR(epochs=1))):
            run = tmp_path / str(number)
            fit(small_split(), settings, out=run, on_evaluation=lambda _: seen.add(torch.get_num_threads()))
            assert RunFolder.open(run).options.threads == expected
        assert seen == {expected}
    finally:
        torch.set_num_threads(before)


def test_a_quota_limits_the_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(parallel, "QUOTA", tmp_path / "cpu.max")
    assert parallel.processors() == 4
    for text, expected in (("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert parallel.processors() == expected


class Fake(Settings):
    """Settings of a model with parameters and without a way to train them."""

    model: ClassVar[str] = "fake"


class FakeModel(Model):
    """Has parameters; its losses are what a test says."""

    terms: dict[str, float] = {"only": 1.0}  # noqa: RUF012
    rough = False
    """Whether the last step of an epoch has a gradient that is not a number, and a loss that is one."""

    def __init__(self, settings: Any, train: Any, generator: torch.Generator) -> None:
        super().__init__(settings)
        self.weight = nn.Parameter(torch.ones(()))

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"mine": list(self.parameters())}

    n_batches = 3

    def batches(self, generator: torch.Generator) -> Iterator[int]:
        return iter(range(3))

    def objectives(self, batch: int, generator: torch.Generator) -> Iterator[Objective]:
        good = {name: torch.tensor(1.0) for name in self.terms}
        terms = {name: torch.tensor(value) for name, value in self.terms.items()} if batch == 2 else good
        loss = self.weight * sum(float(term) for term in terms.values())
        if self.rough and batch == 2:
            loss = loss + (self.weight - self.weight.detach()).abs().sqrt()
        yield Objective(loss, "mine", {k: v for k, v in terms.items() if k != "only"})


def test_a_model_with_parameters_needs_training_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "fake", Entry(lambda: (Fake, FakeModel), "for tests"))
    with pytest.raises(ConfigError, match="Fake has no training settings, but its model has parameters"):
        fit(small_split(), Fake())


class Trainable(type(quick())):  # type: ignore[misc]
    """Settings of the fake model with which it can be trained."""

    model: ClassVar[str] = "fake"


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"user-item": 1.0, "user-user": math.nan}, "user-user"),
        ({"user-item": math.inf, "user-user": 2.0}, "user-item"),
        ({"only": math.nan}, "loss"),
    ],
)
def test_a_loss_that_is_not_a_number_stops_with_batch_term_and_advice(
    terms: dict[str, float], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(MODELS, "fake", Entry(lambda: (Trainable, FakeModel), "for tests"))
    monkeypatch.setattr(FakeModel, "terms", terms)
    settings, options = Trainable(learning_rate=0.5, temperature=0.2), FitOptions(checkpoint_minutes=0)
    with pytest.raises(TrainingError) as caught:
        fit(small_split(), settings, out=tmp_path / "run", options=options)
    message = str(caught.value)
    assert message.startswith(f"{named} of group 'mine' became ")
    assert "in epoch 1, batch 2, with learning_rate=0.5, temperature=0.2; " in message
    assert message.endswith("try a smaller learning rate or a larger temperature")
    assert "\n" not in message
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_weights_that_are_lost_in_an_epochs_last_step_stop_training_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODELS, "fake", Entry(lambda: (Trainable, FakeModel), "for tests"))
    monkeypatch.setattr(FakeModel, "rough", True)
    with pytest.raises(
        TrainingError, match=r"^weight of .* became nan in epoch 1, batch 2, .*; try a smaller"
    ):
        fit(small_split(), Trainable())


def test_one_training_pair_a_user_trains_with_free_vectors() -> None:
    data = interactions([(u, i) for u in range(6) for i in range(u, u + 3)], times=list(range(18)))
    fitted = fit(leave_one_out(data), quick(user_vector="auto", epochs=2))
    assert isinstance(fitted.model, HDCCFModel)
    assert not fitted.model.uses_history


# -- what is shown -------------------------------------------------------------------------------------------


def record(epoch: int) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "loss": 1.5,
        "terms": {"user-user": 0.25, "clipped-items": 0.125, "clipped-users": 0.5},
        "validation": {METRIC: 0.25},
        "seconds": 3.2,
    }


def test_in_a_log_the_first_and_the_last_line_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(9, 2, enabled=True) as display:
        for epoch in range(1, 6):
            display.stepped(epoch, 1)
            display.evaluated(record(epoch), best=epoch == 5)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"epoch 1/9  loss 1.5000  user-user 0.2500  clipped 50 %  {METRIC} 0.2500  3 s",
        f"epoch 5/9  loss 1.5000  user-user 0.2500  clipped 50 %  {METRIC} 0.2500  *  3 s",
    ]
    with TrainingDisplay(9, 2, enabled=False) as display:
        display.evaluated(record(1), best=True)
    assert capsys.readouterr().err == ""


def test_in_a_terminal_there_is_one_line_that_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with TrainingDisplay(9, 2, enabled=True) as display:
        for epoch in range(1, 4):
            display.stepped(epoch, 2)
            display.evaluated(record(epoch), best=epoch == 1)
    shown = capsys.readouterr().err
    assert "3/9" in shown
    assert "0.2500" in shown


def test_progress_goes_to_standard_error_only(capsys: pytest.CaptureFixture[str]) -> None:
    fit(small_split(), quick(epochs=2), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch 2/2" in shown.err


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    fit(small_split(), quick(epochs=2), out=tmp_path / "run", options=FitOptions(tensorboard=True))
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    content = events.read_bytes()
    for curve in (b"loss", b"validation/sampled:ndcg@10", b"diagnostics/masked"):
        assert curve in content


# -- Ctrl-C --------------------------------------------------------------------------------------------------


def test_the_first_ctrl_c_waits_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruptible() as interrupted:
        assert not interrupted
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_without_a_folder_is_ctrl_c() -> None:
    def press(*_: Any) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(KeyboardInterrupt):
        fit(small_split(), quick(), diagnosis=press)


def test_a_diagnosis_of_ones_own_is_logged(tmp_path: Path) -> None:
    fit(small_split(), quick(epochs=1), out=tmp_path / "run", diagnosis=lambda model, batch: {"mine": 4.5})
    (logged,) = RunFolder.open(tmp_path / "run").metrics()
    assert logged["diagnostics"]["mine"] == 4.5
    assert "masked" in logged["diagnostics"]


def test_a_standing_comes_back_from_json_as_it_was() -> None:
    for state in (TrainingState(), TrainingState(3, 2, {"loss": 0.1 + 0.2}, 0.3, 2, 1, 4.5, True)):
        assert TrainingState.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False))) == state


def test_who_watches_hears_every_evaluation_as_it_is_logged(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    fit(small_split(), quick(epochs=3), out=tmp_path / "run", on_evaluation=heard.append)
    assert heard == RunFolder.open(tmp_path / "run").metrics()
    assert [record["epoch"] for record in heard] == [1, 2, 3]


def test_who_watches_may_end_training_and_keeps_the_best_so_far(tmp_path: Path) -> None:
    def watch(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise StopTraining

    stopped = fit(small_split(), quick(epochs=9), out=tmp_path / "stopped", on_evaluation=watch)
    short = fit(small_split(), quick(epochs=2))
    users = torch.arange(40)
    assert stopped.score_block(users).equal(short.score_block(users))
    # Going on does not begin it anew.
    assert resume(tmp_path / "stopped").score_block(users).equal(short.score_block(users))


def test_other_errors_of_who_watches_are_the_callers() -> None:
    def watch(record: dict[str, Any]) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        fit(small_split(), quick(epochs=9), on_evaluation=watch)

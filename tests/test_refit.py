"""Training on all events: the refit, no split at all, and models that are saved after a fit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import hdccf
from command_line import call, error_of
from graphs import interactions, small_split, tastes
from hdccf import checkpoint
from hdccf.config import FitOptions
from hdccf.data.interactions import Interactions
from hdccf.data.split import leave_one_out, no_split
from hdccf.errors import HdccfError, RunError, TrainingError
from hdccf.models.ease import EASE
from hdccf.models.hdccf.settings import UNVALIDATED_EPOCHS
from hdccf.recommend.run_folder import RunFolder
from hdccf.serving import service
from hdccf.training.fit import fit, resume
from hdccf.training.optim import Stepper
from hdccf.training.state import FolderStore
from training import assert_same_runs, cut_off_after, quick

NEW = 160
"""The product that a fifth of the customers bought last."""


def shop() -> Interactions:
    """300 customers of three departments; 60 of them bought a new product last."""
    rng = np.random.default_rng(0)
    pairs: list[tuple[int, int]] = []
    times: list[int] = []
    for user in range(300):
        bought = list(20 * (user % 3) + rng.choice(20, 6, replace=False)) + [60] * (user % 5 == 0)
        pairs += [(user, int(item)) for item in bought]
        times += [1_000_000 * (1000 * place + user) for place in range(len(bought))]
    return interactions(pairs, times=times)


def test_what_many_bought_last_is_recommended() -> None:
    data, settings = shop(), hdccf.HDCCF(epochs=40, calibrate="off")
    held_out, refitted = fit(leave_one_out(data), settings), fit(data, settings)
    counts = [
        int((model.recommend(data.user_ids, k=10)["item"] == NEW).sum()) for model in (held_out, refitted)
    ]
    assert counts[0] < 10
    assert counts[1] > 50


def test_a_refit_is_the_same_training_on_all_events(tmp_path: Path) -> None:
    data, settings = tastes(), quick("block", epochs=8, patience=1, calibrate="full")
    model = fit(data, settings, seed=2, out=tmp_path / "run")
    assert model.result is not None
    epochs = model.result["best_epoch"]
    assert epochs > 0
    assert model.result["refit"] == {"epochs": epochs, "pairs": len(data)}
    alone = fit(no_split(data), settings.changed(epochs=epochs), seed=2)
    assert model.model.state_dict()["items.embedding"].equal(alone.model.state_dict()["items.embedding"])
    # The calibration is that of validation, with the frequencies of all events.
    before = fit(leave_one_out(data), settings, seed=2)
    assert model.calibration.popularity == before.calibration.popularity
    assert model.calibration.filter_weight == before.calibration.filter_weight
    assert model.calibration.log_frequency.exp().round().sum() == len(data)
    # What was held out is in no list, and evaluation is by the weights that have not seen it.
    assert (
        hdccf.evaluate(model, model.split, ks=(5,)).values
        == hdccf.evaluate(before, before.split, ks=(5,)).values
    )
    loaded = hdccf.load_run(tmp_path / "run")
    for one in (model, loaded):
        found = one.recommend(data.user_ids, k=5)
        assert found.equals(model.recommend(data.user_ids, k=5))
        assert not found.equals(before.recommend(data.user_ids, k=5))
        assert found.select("user", "item").join(data.frame(), on=["user", "item"]).is_empty()
        by_training = one.recommend(["u1"], k=5, history="train")
        assert by_training.equals(before.recommend(["u1"], k=5, history="train"))
    assert loaded.calibration.popularity == model.calibration.popularity


def test_held_out_parts_without_times_do_not_keep_histories_from_a_refit() -> None:
    split, settings = small_split(), quick("history")
    untimed = replace(
        split, validation=replace(split.validation, times=None), test=replace(split.test, times=None)
    )
    model = fit(untimed, settings, refit=True)
    assert model.refit is not None
    assert len(model.recommend(["u1"], k=3)) == 3


def test_a_split_is_not_refitted_unless_asked_for() -> None:
    split, settings = small_split(), quick()
    assert fit(split, settings).refit is None
    assert fit(split, settings, refit=True).refit is not None
    assert fit(split, settings, options=FitOptions(refit=True)).refit is not None
    assert fit(tastes(), settings, refit=False).refit is None
    assert fit(no_split(tastes()), settings, refit=True).refit is None


@pytest.mark.parametrize("kind", ["history", "cosine"])
def test_a_refit_that_was_cut_off_ends_as_if_it_had_not_been(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings, options = tastes(), quick(kind, calibrate="full"), FitOptions(checkpoint_epochs=1)
    whole = fit(data, settings, out=tmp_path / "whole", options=options)
    assert whole.result is not None
    first = 3 * fit(leave_one_out(data), settings).model.n_batches
    for steps in (0, 1, whole.model.n_batches * whole.result["best_epoch"] - 1):
        out = tmp_path / f"cut-{steps}"
        with cut_off_after(first + steps, monkeypatch):
            fit(data, settings, out=out, options=options)
        assert not (out / "result.json").exists()
        assert hdccf.load_run(out).refit is None
        again = resume(out)
        assert_same_runs(tmp_path / "whole" / "refit", out / "refit")
        assert again.recommend(["u1"]).equals(whole.recommend(["u1"]))
        assert json.loads((out / "result.json").read_text())["refit"] == whole.result["refit"]
        tensors = [checkpoint.load(run / "refit/calibration.safetensors")[0] for run in (out, whole.path)]
        assert all(tensors[0][name].equal(tensors[1][name]) for name in tensors[1])


def test_an_interrupted_refit_says_how_to_go_on(tmp_path: Path) -> None:
    fit(tastes(), quick("block", epochs=1), out=tmp_path / "my run")
    for run, named in (("my run/refit", "'{}/my run'"), ("my run", "'{}/my run'")):
        with pytest.raises(RunError, match=f"--resume {named.format(tmp_path)}$"):
            FolderStore(RunFolder.open(tmp_path / run)).raise_interrupted(1, 1)
    fit(small_split(), quick("block", epochs=1), out=tmp_path / "refit")
    with pytest.raises(RunError, match=f"--resume {tmp_path}/refit$"):
        FolderStore(RunFolder.open(tmp_path / "refit")).raise_interrupted(1, 1)


def test_solved_models_are_refitted_too(tmp_path: Path) -> None:
    data = tastes()
    model = fit(data, EASE(), out=tmp_path / "run")
    alone = fit(no_split(data), EASE())
    assert model.model.state_dict()["weights"].equal(alone.model.state_dict()["weights"])
    assert resume(tmp_path / "run").recommend(["u1"]).equals(model.recommend(["u1"]))


def test_a_warm_start_takes_the_refitted_weights_only_where_nothing_is_held_out(tmp_path: Path) -> None:
    data, settings = tastes(), quick("block")
    model = fit(data, settings, out=tmp_path / "run")
    gentle = settings.changed(epochs=1, learning_rate=1e-12)
    started = fit(no_split(data), gentle, init_from=tmp_path / "run")
    name = "items.embedding"
    assert np.allclose(started.model.state_dict()[name], model.model.state_dict()[name], atol=1e-6)
    both = fit(data, gentle, init_from=tmp_path / "run")
    assert np.allclose(both.model.state_dict()[name], model.model.state_dict()[name], atol=1e-6)
    # What is evaluated has not seen what is held out.
    held_out = [each._held_out.model.state_dict()[name] for each in (both, model)]
    assert np.allclose(held_out[0], held_out[1], atol=1e-6)
    assert not np.allclose(held_out[0], model.model.state_dict()[name], atol=1e-3)


def test_without_validation_the_first_candidate_is_trained_for_a_fixed_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tastes().frame().write_csv(tmp_path / "log.csv")
    given: list[str | Path] = [
        "--interactions",
        tmp_path / "log.csv",
        "--split",
        "none",
        "--set",
        "embedding_dim=4",
    ]
    assert call("train", *given, "--out", tmp_path / "run") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"attention, the first automatic configuration, is trained for {UNVALIDATED_EPOCHS} epochs" in said
    run = RunFolder.open(tmp_path / "run")
    assert run.settings.model_dump()["epochs"] == UNVALIDATED_EPOCHS
    assert len(run.split().train) == len(tastes())
    assert json.loads(run.result.read_text())["best_value"] is None
    assert call("recommend", tmp_path / "run", "u1") == 0
    assert call("report", tmp_path / "run") == 0
    assert "(none) is empty" in error_of(capsys, "evaluate", tmp_path / "run")
    assert call("train", *given, "--set", "epochs=2", "--out", tmp_path / "two") == 0
    assert json.loads((tmp_path / "two/result.json").read_text())["best_epoch"] == 2


def test_the_command_line_refits_own_events_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tastes().frame().write_csv(tmp_path / "log.csv")
    given: list[str | Path] = [
        "--interactions",
        tmp_path / "log.csv",
        "--preset",
        "hdccf",
        "--set",
        "epochs=2",
    ]
    assert call("train", *given, "--out", tmp_path / "run") == 0
    said = capsys.readouterr()
    assert f"training once more, on all {len(tastes())} pairs for" in " ".join(said.err.split())
    assert "Refitted on all 320 pairs" in said.out
    assert call("evaluate", tmp_path / "run", "--k", "5") == 0
    assert "before the refit" in capsys.readouterr().err
    assert call("train", *given, "--no-refit", "--out", tmp_path / "held-out") == 0
    assert "Refitted" not in capsys.readouterr().out
    assert not (tmp_path / "held-out" / "refit").exists()
    assert call("train", *given, "--no-calibrate", "--out", tmp_path / "plain") == 0
    assert not (tmp_path / "plain" / "calibration.safetensors").exists()


@pytest.mark.parametrize("refit", [True, False])
def test_a_model_is_saved_after_a_fit_without_a_folder(refit: bool, tmp_path: Path) -> None:
    data = tastes()
    model = fit(data, quick("block", calibrate="full"), refit=refit)
    with pytest.raises(RunError, match=r"save\(path\)"):
        _ = model.path
    model.save(tmp_path / "kept")
    assert model.path == tmp_path / "kept"
    with pytest.raises(HdccfError, match="exists"):
        model.save(tmp_path / "kept")
    model.save(tmp_path / "kept", overwrite=True)
    loaded = hdccf.load_run(tmp_path / "kept")
    assert loaded.recommend(data.user_ids).equals(model.recommend(data.user_ids))
    assert (
        hdccf.evaluate(loaded, loaded.split, ks=(5,)).values
        == hdccf.evaluate(model, model.split, ks=(5,)).values
    )
    assert (loaded.refit is None) == (not refit)
    for command in (["evaluate", "--k", "5"], ["report"], ["train", "--resume"]):
        assert call(*command, tmp_path / "kept") == 0
    assert resume(tmp_path / "kept").recommend(["u1"]).equals(model.recommend(["u1"]))


def test_a_training_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TrainingError("the loss is no number")

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "step", fail)
        with pytest.raises(TrainingError):
            fit(tastes(), quick("block"), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    fit(tastes(), quick("block"), out=tmp_path / "run")


def test_fit_takes_a_data_frame() -> None:
    frame = pl.DataFrame(tastes().frame().drop("count"))
    model = fit(frame, quick("block"))
    assert model.refit is not None
    assert len(model.events) == len(tastes())


def test_a_server_takes_the_refitted_weights_when_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings = tastes(), quick("block")
    first = 3 * fit(leave_one_out(data), settings).model.n_batches
    with cut_off_after(first + 1, monkeypatch):
        fit(data, settings, out=tmp_path / "run", options=FitOptions(checkpoint_epochs=1))
    before, seen = service.load(tmp_path / "run"), service.signature(tmp_path / "run")
    assert before.recommender.refit is None
    resume(tmp_path / "run")
    after = service.load(tmp_path / "run")
    assert after.recommender.refit is not None
    assert after.version != before.version
    assert service.signature(tmp_path / "run") != seen

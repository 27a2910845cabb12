"""Tuning: a study keeps its budget, survives any death, is worked on by several, and writes what it found."""

import io
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from graphs import small_split
from hdccf.config import Real, Space, Variant
from hdccf.data.split import Split
from hdccf.errors import ConfigError, TrainingError
from hdccf.evaluation.ranking import Ranker
from hdccf.experiments import tuning
from hdccf.experiments.figures import draw_history, draw_importance, importances
from hdccf.experiments.studies import Budget, Question, StudyFile
from hdccf.experiments.tuning import read_origin, trials_table, tune, write_best
from hdccf.models import MODELS
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.training.fit import fit
from training import CutOff

SMALL = {"epochs": 3, "evaluate_every": 1, "block_users": 16, "embedding_dim": 4}


@pytest.fixture
def split() -> Split:
    return small_split()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "s.jsonl")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "best.toml"


def settings_in(out: Path) -> dict[str, Any]:
    return tomllib.loads(out.read_text())


def question(of: Split, model: str = "ease", **changes: Any) -> Question:
    about: dict[str, Any] = {"model": model, "dataset": "small", "split": of.fingerprint}
    return Question(**{**about, "metric": "sampled:ndcg@10", **changes})


def states(study: StudyFile) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_the_best_of_n_trials_is_written_and_the_published_settings_are_the_first(
    split: Split, place: str, out: Path
) -> None:
    asked = question(split)
    found = tune(split, asked, Budget(6, 5), study=place, out=out)
    assert found.trials == 6
    assert found.minutes < 5
    with StudyFile(place, asked) as study:
        trials = study.study.get_trials()
        assert states(study) == ["COMPLETE"] * 6
        assert trials[0].params == {"l2": MODELS["ease"].settings.model_fields["l2"].default}
        values = [trial.value or 0.0 for trial in trials]
        assert found.value == max(values)
        assert values.index(found.value) == found.trial
        assert found.settings["l2"] == trials[found.trial].params["l2"]
    assert settings_in(out) == found.settings
    origin = read_origin(out)
    assert (origin["trials"], origin["budget"]) == (6, {"trials": 6, "minutes": 5})
    # What was spent stays spent in a second call.
    again = tune(split, asked, Budget(6, 5), study=place, out=out)
    assert again == found


@pytest.mark.parametrize("model", ["ease", "als"])
def test_closed_form_models_are_tuned_on_validation(split: Split, model: str, place: str, out: Path) -> None:
    found = tune(split, question(split, model), Budget(1, 5), study=place, out=out)
    fitted = fit(split, MODELS[model].settings(**found.settings))
    on = {
        part: Ranker(split, part).measure(fitted, ("ndcg@10",), ("sampled",))["sampled"]["ndcg@10"]
        for part in ("validation", "test")
    }
    assert found.value == pytest.approx(on["validation"])
    assert found.value != pytest.approx(on["test"], rel=1e-3)


def test_the_value_is_that_of_the_best_epoch(split: Split, place: str, out: Path) -> None:
    asked = question(split, "hdccf", fixed=SMALL)
    tune(split, asked, Budget(2, 5), study=place, out=out)
    with StudyFile(place, asked) as study:
        for trial in study.completed:
            assert trial.value == max(trial.intermediate_values.values())
            assert set(trial.intermediate_values) == {1, 2, 3}
            assert trial.user_attrs["epoch"] in (1, 2, 3)
    settings = HDCCF(**settings_in(out))
    assert settings.user_vector == "free"  # time-blind, whatever the default
    assert settings.epochs == 3


def test_a_study_of_ours_begins_at_its_presets(split: Split, tmp_path: Path) -> None:
    fixed = {"epochs": 1, "evaluate_every": 1, "patience": 1}
    for part, preset in ((False, "spectral"), (True, "attention")):
        place = str(tmp_path / f"{preset}.jsonl")
        asked = replace(question(split, "hdccf", fixed=fixed), time_aware=part)
        tune(split, asked, Budget(1, 5), study=place, out=tmp_path / f"{preset}.toml")
        found = HDCCF(**settings_in(tmp_path / f"{preset}.toml"))
        assert found == HDCCF(**{**PRESETS[preset], **fixed, "weight_decay": found.weight_decay})


@pytest.mark.parametrize("preset", ["hdccf", "attention", "recency"])
def test_a_study_may_begin_with_settings_from_elsewhere(
    split: Split, place: str, out: Path, preset: str
) -> None:
    fixed = {"epochs": 1, "evaluate_every": 1, "patience": 1}
    asked = replace(question(split, "hdccf", fixed=fixed), time_aware=True)
    # `auto` is no vector of its own: what a study writes says which.
    carried = {"user_vector": "history", **PRESETS[preset], "weight_decay": 1e-5, "temperature": 0.6}
    tune(split, asked, Budget(1, 5), study=place, out=out, start=carried)
    found = HDCCF(**settings_in(out))
    assert found == HDCCF(**{**carried, **fixed, "temperature": 0.5})  # the edge of its space
    # Then come the defaults; and a study that exists is not begun again.
    with StudyFile(place, asked, carried) as study:
        assert states(study) == ["COMPLETE", "WAITING"]


def test_settings_from_elsewhere_need_only_fit_together_with_what_is_fixed(
    split: Split, place: str, out: Path
) -> None:
    asked = question(split, "ssm", time_aware=True, fixed={"sampler": "block", "l2": 0.0, "epochs": 1})
    carried = {"user_vector": "history", "temperature": 0.3}  # histories are cut in blocks only
    tune(split, asked, Budget(1, 5), study=place, out=out, start=carried)
    found = settings_in(out)
    assert (found["user_vector"], found["sampler"], found["temperature"]) == ("history", "block", 0.3)


def test_what_a_study_cannot_begin_with_is_said(
    split: Split, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question(split, "bpr", fixed={"epochs": 1})
    for carried, said in (
        ({"learning_rate": 0.01, "epochs": 7}, ""),  # what is fixed was asked for
        ({"learning_rate": 0.01, "negatives": 16}, "--set negatives=16\n"),
    ):
        with StudyFile(str(tmp_path / f"{len(said)}.jsonl"), asked, carried):
            told = capsys.readouterr().err
        assert told.endswith(said)
        assert bool(told) == bool(said)


def test_a_sqlite_study_is_as_good(split: Split, tmp_path: Path, out: Path) -> None:
    for trials in (3, 4):
        place = f"sqlite:///{tmp_path}/study.db"
        assert tune(split, question(split), Budget(trials, 5), study=place, out=out).trials == trials
    with pytest.raises(ConfigError, match="give the path of a journal file, or sqlite:///"):
        StudyFile("mysql://host/db", question(split))


def test_minutes_end_it_as_well_and_cut_a_trial_short(
    split: Split, place: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = question(split, "hdccf", fixed={**SMALL, "epochs": 50})
    spent = StudyFile.spent
    with monkeypatch.context() as patched:
        # The clock stands until a trial has told of its second evaluation.
        def jumping(self: StudyFile) -> tuple[int, float]:
            trials, _ = spent(self)
            told = max((len(t.intermediate_values) for t in self.study.get_trials()), default=0)
            return trials, 7.0 if told >= 2 else 0.0

        patched.setattr(StudyFile, "spent", jumping)
        found = tune(split, asked, Budget(50, 5), study=place, out=out)
    assert found.trials == 1
    with StudyFile(place, asked) as study:
        (trial,) = study.completed
        assert trial.user_attrs["cut"]
        assert len(trial.intermediate_values) == 2
        assert trial.value == max(trial.intermediate_values.values())


def test_what_else_the_machine_does_takes_nothing_from_the_budget(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: Any) -> float:
        time.sleep(0.5)
        return 0.5

    def works(*_: Any) -> float:
        started = time.process_time()
        while time.process_time() < started + 0.5:
            pass
        return 0.5

    minutes = {}
    for measure in (waits, works):
        monkeypatch.setattr("hdccf.experiments.tuning._measure", measure)
        place = str(tmp_path / f"{measure.__name__}.jsonl")
        minutes[measure] = tune(
            split, question(split), Budget(1, 5), study=place, out=tmp_path / "b.toml", overwrite=True
        ).minutes
    assert minutes[waits] < 0.2 / 60
    assert minutes[works] >= 0.5 / 60 / torch.get_num_threads()


def test_hopeless_trials_are_pruned_and_diverging_ones_told_apart(
    split: Split, place: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def measure(question: Question, values: Any, split: Split, threads: Any, watch: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise TrainingError("loss became nan")
        level = 1.0 if calls <= 6 else 0.1
        for epoch in range(1, 61):
            watch({"epoch": epoch, "validation": {question.metric: level + epoch / 1000 + calls / 1e6}})
        return float(watch.best)

    monkeypatch.setattr(tuning, "_measure", measure)
    asked = question(split, "hdccf")
    found = tune(split, asked, Budget(8, 5), study=place, out=out)
    with StudyFile(place, asked) as study:
        assert states(study) == ["COMPLETE"] * 6 + ["PRUNED"] * 2
        hopeless, diverged = study.study.get_trials()[6:]
        # Not before a third of the 120 epochs: what learns slowly is not hopeless yet.
        assert 40 <= max(hopeless.intermediate_values) < 60
        assert "loss became nan" in diverged.user_attrs["error"]
    assert found.value == pytest.approx(1.060006)


def test_an_interrupted_trial_is_tried_again(
    split: Split, place: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, measure, calls = question(split), tuning._measure, 0

    def cut_off(*arguments: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise CutOff
        return measure(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(tuning, "_measure", cut_off)
        with pytest.raises(CutOff):
            tune(split, asked, Budget(4, 5), study=place, out=out)
    assert tune(split, asked, Budget(4, 5), study=place, out=out).trials == 4
    with StudyFile(place, asked) as study:
        assert states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
        trials = study.study.get_trials()
        assert trials[3].params == trials[2].params
        assert trials[3].user_attrs["again"] == 2


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from graphs import small_split
from hdccf.experiments import tuning
from hdccf.experiments.studies import Budget, Question
measure, calls = tuning._measure, 0
def deadly(*arguments):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(*arguments)
tuning._measure = deadly
split = small_split()
asked = Question("ease", "small", split.fingerprint, "sampled:ndcg@10")
tuning.tune(split, asked, Budget(5, 5), study={place!r}, out=Path({out!r}))
"""


def test_a_study_whose_process_was_killed_goes_on(split: Split, place: str, out: Path) -> None:
    asked = question(split)
    program = _KILLED.format(tests=str(Path(__file__).parent.parent), place=place, out=str(out))
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    with Path(place).open("ab") as journal:
        journal.write(b'{"op_code": 5, "work')  # as if it had died while it wrote
    assert tune(split, asked, Budget(5, 5), study=place, out=out).trials == 5
    with StudyFile(place, asked) as study:
        assert states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]
        trials = study.study.get_trials()
        assert trials[3].params == trials[2].params


def test_the_trial_of_a_living_process_is_left_alone_and_counts(split: Split, place: str) -> None:
    asked = question(split)
    with StudyFile(place, asked) as first, StudyFile(place, asked) as second:
        assert first.ask(Budget(2, 5)) is not None
        assert second.ask(Budget(2, 5)) is not None
        assert second.ask(Budget(2, 5)) is None
        assert states(second) == ["RUNNING", "RUNNING"]


def test_settings_that_killed_twice_are_not_tried_a_third_time(split: Split, place: str) -> None:
    asked = question(split)
    for _ in range(3):
        with StudyFile(place, asked) as study:
            trial = study.ask(Budget(9, 5))
            assert trial is not None
            study.suggest(trial)
    with StudyFile(place, asked) as study:
        study._retry_abandoned()
        params = [trial.params for trial in study.study.get_trials()]
        assert params.count(params[0]) == 2


def test_processes_share_a_study_and_its_budget(split: Split, place: str, out: Path) -> None:
    asked = question(split)
    assert tune(split, asked, Budget(5, 5), study=place, out=out, jobs=2).trials == 5
    with StudyFile(place, asked) as study:
        assert states(study) == ["COMPLETE"] * 5


def test_an_error_ends_it_and_that_of_a_worker_reaches_the_caller(
    split: Split, place: str, out: Path
) -> None:
    asked = question(split, fixed={"max_items": 3})
    with pytest.raises(ConfigError, match="more than max_items=3"):
        tune(split, asked, Budget(2, 5), study=place, out=out)
    told: SimpleQueue[str] = SimpleQueue()
    tuning._worker(split, place, asked, Budget(2, 5), 1, told)
    assert "more than max_items=3" in told.get()


def test_another_question_is_refused(split: Split, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with StudyFile(place, question(split)):
        pass
    for changes, message in (
        ({"metric": "full:ndcg@10"}, "is a study of metric='sampled:ndcg@10', not of 'full:ndcg@10'"),
        ({"time_aware": True}, "is a study of time_aware=False, not of True"),
        ({"split": "other"}, "is a study of split="),
    ):
        with pytest.raises(ConfigError, match=message):
            StudyFile(place, question(split, **changes))
    monkeypatch.setattr(MODELS["ease"].settings, "space", Space({"l2": Real(1.0, 2.0)}))
    with pytest.raises(ConfigError, match="is a study of space="):
        StudyFile(place, question(split))


def test_a_file_of_another_study_is_not_overwritten_unasked(split: Split, place: str, out: Path) -> None:
    out.write_text("l2 = 1.0\n")
    with pytest.raises(ConfigError, match=r"was not written by the study .*; give another --out"):
        tune(split, question(split), Budget(1, 5), study=place, out=out)
    assert not Path(place).exists()
    tune(split, question(split), Budget(1, 5), study=place, out=out, overwrite=True)
    assert read_origin(out)["study"] == place


@pytest.mark.parametrize(("model", "changes", "message"), [
    ("random", {}, "random has no search space"),
    ("ease", {"metric": "ndcg@10"}, "names no protocol; write it like sampled:ndcg@10"),
    ("ease", {"metric": "sampled:guess@10"}, "validation_metric='sampled:guess@10' is not possible"),
])  # fmt: skip
def test_what_cannot_be_tuned_is_refused(
    split: Split, place: str, out: Path, model: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(split, question(split, model, **changes), Budget(1, 5), study=place, out=out)


@pytest.mark.parametrize(("trials", "minutes"), [(0, 5), (3, 0), (3, float("nan"))])
def test_a_budget_of_nothing_is_refused(trials: int, minutes: float) -> None:
    with pytest.raises(ConfigError, match="tune nothing"):
        Budget(trials, minutes)


def test_what_is_shown_names_the_budget_and_the_best(
    split: Split, place: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question(split)
    tune(split, asked, Budget(3, 5), study=place, out=out, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "ease on small, time-blind: 0 of 3 trials, 0.0 of 5 minutes"
    assert sum(line.startswith("trial ") for line in lines) == 3
    assert "3 of 3 trials" in lines[-1]
    assert "best sampled:ndcg@10 0." in lines[-1]
    with StudyFile(place, asked) as study:
        from rich.console import Console

        console = Console(width=120, record=True, file=io.StringIO())
        console.print(trials_table(study, Budget(3, 5)))
        text = console.export_text()
    assert "l2=500" in text
    assert text.count("done") == 3


def test_history_and_importance_are_drawn_twice_alike(
    split: Split, place: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = Space(
        {"kind": Variant({"a": {}, "b": {}}), "l2": Real(1.0, 1000.0), "recency_floor": Real(0.0, 1.0)}
    )
    monkeypatch.setattr(MODELS["ease"].settings, "space", space)
    monkeypatch.setattr(tuning, "_measure", lambda question, values, *others: -abs(values["l2"] - 300) / 1000)
    asked = question(split)
    tune(split, asked, Budget(2, 5), study=place, out=out)
    with StudyFile(place, asked) as study:
        assert not draw_importance(study, tmp_path / "importance")  # of too few trials
        assert not (tmp_path / "importance.png").exists()
    tune(split, asked, Budget(25, 5), study=place, out=out)
    with StudyFile(place, asked) as study:
        found = importances(study)
        assert max(found, key=lambda name: found[name]) == "l2"
        for turn in ("first", "second"):
            draw_history(study, tmp_path / turn / "history")
            assert draw_importance(study, tmp_path / turn / "importance")
    for name in ("history.png", "history.svg", "importance.png", "importance.svg"):
        first, second = ((tmp_path / turn / name).read_bytes() for turn in ("first", "second"))
        assert len(first) > 1000
        assert first == second
    assert b"l2" in (tmp_path / "first" / "importance.svg").read_bytes()


def test_settings_of_every_kind_survive_toml(tmp_path: Path) -> None:
    settings = {"a": 1, "b": 1e-8, "c": True, "d": 'quote " and \\', "e": [1, 2], "f": None, "g": 0.1}
    write_best(tmp_path / "x.toml", settings, {"study": "ß"})
    kept = {name: value for name, value in settings.items() if value is not None}
    assert tomllib.loads((tmp_path / "x.toml").read_text()) == kept
    assert read_origin(tmp_path / "x.toml") == {"study": "ß"}
    assert read_origin(tmp_path / "none.toml") == {}

"""The automatic choice: candidates are compared by successive halving, and the best is trained to the end."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hdccf
from command_line import call, error_of
from graphs import interactions, small_split
from hdccf.config import FitOptions
from hdccf.errors import ConfigError
from hdccf.models.ease import EASE
from hdccf.models.hdccf.settings import HDCCF, automatic_candidates
from hdccf.recommend.run_folder import RunFolder
from hdccf.report import report
from hdccf.training.fit import fit, resume
from hdccf.training.race import Evaluated, explain_choice, race, read_race, sample_for_race
from hdccf.training.state import TrainingState
from training import assert_same_runs, cut_off_after, quick

CANDIDATES = {
    "history": quick("history", epochs=6),
    "attention": quick("attention", epochs=6),
    "free": quick("block", epochs=6, evaluate_every=2),
}


@dataclass
class Scripted:
    """A training whose validation value after an epoch is given by a function."""

    value: Callable[[int], float]
    seconds: float = 1.0
    """Of an epoch."""
    state: TrainingState = field(default_factory=TrainingState)

    def advance(self, until: int) -> None:
        for epoch in range(self.state.epoch, until + 1):
            self.state.best_value = max(self.state.best_value, self.value(epoch))
            self.state.epoch, self.state.seconds = epoch + 1, epoch * self.seconds


def run_race(values: dict[str, Callable[[int], float]], **more: Any) -> tuple[str, list[tuple[Any, ...]]]:
    lines: list[Evaluated] = []
    seconds = more.pop("seconds", {})
    chosen, _ = race(
        dict.fromkeys(values, 1),
        lambda name: Scripted(values[name], seconds.get(name, 1.0)),
        log=lines.append,
        **more,
    )
    return chosen, [(line.round, line.candidate, line.epoch, line.value) for line in lines]


def test_the_better_half_goes_on_to_twice_as_many_evaluations() -> None:
    chosen, lines = run_race(
        {"a": lambda e: 0.1, "b": lambda e: 0.3, "c": lambda e: 0.4, "d": lambda e: 0.0, "e": lambda e: 0.2}
    )
    assert lines == [
        *((1, name, 2, value) for name, value in zip("abcde", (0.1, 0.3, 0.4, 0.0, 0.2), strict=True)),
        *((2, name, 4, value) for name, value in zip("cbe", (0.4, 0.3, 0.2), strict=True)),
        *((3, name, 8, value) for name, value in zip("cb", (0.4, 0.3), strict=True)),
    ]
    assert chosen == "c"


def test_a_slow_learner_is_not_dropped_too_early() -> None:
    """By its value alone it would be: it is behind until the fourth epoch."""
    values = {"fast": lambda e: 0.5, "faster": lambda e: 0.45, "slow": lambda e: 0.3 + 0.1 * np.log2(e)}
    chosen, lines = run_race(values)
    assert [line[1] for line in lines if line[0] == 2] == ["fast", "slow"]
    assert chosen == "slow"


def test_of_equal_candidates_the_first_wins() -> None:
    assert run_race({name: lambda e: 0.5 for name in "abc"})[0] == "a"


def test_minutes_end_it_with_the_best_so_far() -> None:
    values = {"a": lambda e: 0.1, "b": lambda e: 0.3, "c": lambda e: 0.9}
    chosen, lines = run_race(values, seconds={"b": 100.0}, minutes=1.5)
    assert chosen == "b"
    assert [line[1] for line in lines] == ["a", "b"]


def test_what_is_recorded_is_not_trained_again() -> None:
    done = [Evaluated(1, name, 2, value, 0.0, 1.0) for name, value in (("a", 0.1), ("b", 0.3), ("c", 0.2))]
    chosen, lines = run_race({"a": lambda e: 9.0, "b": lambda e: 0.3, "c": lambda e: 0.4}, done=done)
    assert chosen == "c"
    assert [line[:2] for line in lines] == [(2, "b"), (2, "c")]


def test_the_choice_is_explained_in_a_line() -> None:
    lines = [
        Evaluated(1, "a", 5, 0.25, 0.0, 1.0),
        Evaluated(1, "b", 1, 0.125, 0.0, 1.0),
        Evaluated(2, "a", 10, 0.5, 0.25, 1.0),
    ]
    assert explain_choice("a", lines, "full:ndcg@10") == (
        "chose a: full:ndcg@10 0.5000 on validation after 10 epochs, "
        "0.7500 expected after twice as many (b 0.1250)"
    )


def test_a_fit_keeps_the_race_and_the_best_candidate(tmp_path: Path) -> None:
    split = small_split()
    fitted = fit(split, CANDIDATES, out=tmp_path / "run")
    lines = read_race(tmp_path / "run" / "race.jsonl")
    last = max(line.round for line in lines)
    best = max((line for line in lines if line.round == last), key=lambda line: line.projected)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config["chosen"] == best.candidate
    assert folder.settings == fitted.settings == CANDIDATES[best.candidate]
    assert not (tmp_path / "run" / "race").exists()
    # The winner has the weights that it would have had alone, and its own metrics from the first epoch on.
    alone = fit(split, CANDIDATES[best.candidate], out=tmp_path / "alone")
    for name, tensor in alone.model.state_dict().items():
        assert fitted.model.state_dict()[name].equal(tensor)
    assert folder.metrics()[0]["epoch"] == CANDIDATES[best.candidate].evaluate_every
    loaded = hdccf.load_run(tmp_path / "run")
    text = report(loaded)
    assert f"Chosen on validation: {best.candidate}." in text
    assert all(name in text for name in CANDIDATES)
    assert loaded.recommend(["u0"], k=3).equals(fitted.recommend(["u0"], k=3))
    in_memory = fit(split, CANDIDATES)
    assert in_memory.settings == fitted.settings
    for name, tensor in alone.model.state_dict().items():
        assert in_memory.model.state_dict()[name].equal(tensor)


def test_a_race_that_was_cut_off_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, options = small_split(), FitOptions(checkpoint_minutes=0)
    fit(split, CANDIDATES, out=tmp_path / "whole", options=options)
    for steps in (1, 5, 9, 14, 20, 26):
        out = tmp_path / str(steps)
        with cut_off_after(steps, monkeypatch):
            fit(split, CANDIDATES, out=out, options=options)
        resume(out)
        assert_same_runs(tmp_path / "whole", out)
        kept = [[line.round, line.candidate, line.value, line.gain] for line in read_race(out / "race.jsonl")]
        whole = [
            [line.round, line.candidate, line.value, line.gain]
            for line in read_race(tmp_path / "whole/race.jsonl")
        ]
        assert kept == whole
        assert not (out / "race").exists()


class Killed:
    """In place of `shutil`: the process ends here."""

    @staticmethod
    def rmtree(path: Path) -> None:
        raise KeyboardInterrupt


def test_a_kill_while_the_winner_moves_in_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = small_split()
    fit(split, CANDIDATES, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr("hdccf.recommend.run_folder.shutil", Killed)
        with pytest.raises(KeyboardInterrupt):
            fit(split, CANDIDATES, out=tmp_path / "cut")
    resume(tmp_path / "cut")
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_candidates_fit_the_data() -> None:
    timed = automatic_candidates(small_split().train)
    assert {one.user_vector for one in timed.values()} == {"free", "history"}
    assert any(one.history_encoder == "attention" for one in timed.values())
    pairs = [(user, (user + k) % 9) for user in range(12) for k in range(4)]
    blind = automatic_candidates(interactions(pairs))
    assert len(blind) > 1
    assert {one.user_vector for one in blind.values()} == {"free"}


def test_given_settings_narrow_the_choice() -> None:
    train = small_split().train
    assert all(one.temperature == 0.3 for one in automatic_candidates(train, temperature=0.3).values())
    assert {one.user_vector for one in automatic_candidates(train, user_vector="free").values()} == {"free"}
    fixed: dict[str, Any] = {"temperature": 0.2, "embedding_dim": 32, "learning_rate": 0.01}
    attention = automatic_candidates(train, history_encoder="attention", **fixed)
    assert [one.history_encoder for one in attention.values()] == ["attention"]  # equal ones count once
    # What no candidate can have is HDCCF as it is asked for.
    modulated = HDCCF(similarity="modulated", validation_metric="full:ndcg@10")
    assert automatic_candidates(train, similarity="modulated") == {"hdccf": modulated}


def test_large_data_is_raced_on_a_sample_of_users() -> None:
    split = small_split()
    assert sample_for_race(split) is split
    sample = sample_for_race(split, pairs=len(split.train) // 2)
    assert 0 < len(sample.train) < len(split.train)
    assert sample.n_users == split.n_users
    kept = np.unique(sample.train.users)
    assert set(np.unique(sample.validation.users)) <= set(kept)
    for user in kept:
        own = split.train.items[split.train.users == user]
        assert sample.train.items[sample.train.users == user].tolist() == own.tolist()


def test_the_winner_on_a_sample_is_trained_on_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = small_split()
    monkeypatch.setattr("hdccf.training.race.RACE_PAIRS", len(split.train) // 2)
    assert len(sample_for_race(split).train) < len(split.train)
    fitted = fit(split, CANDIDATES, out=tmp_path / "run")
    alone = fit(split, fitted.settings)
    for name, tensor in alone.model.state_dict().items():
        assert fitted.model.state_dict()[name].equal(tensor)


def test_without_a_validation_part_there_is_nothing_to_choose_by() -> None:
    split = small_split()
    nothing = split.validation.subset(np.zeros(len(split.validation), bool))
    blind = hdccf.Split(split.train, nothing, split.test, split.method, split.facts)
    assert fit(blind, CANDIDATES).settings == CANDIDATES["history"]


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({}, "there are no candidates"),
        ({"a": quick(), "b": EASE()}, "b is not trained in epochs"),
        ({"a": quick(), "b": quick(validation_metric="full:ndcg@10")}, "compared by one metric"),
    ],
)
def test_impossible_candidates_are_refused(candidates: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(small_split(), candidates)


def test_train_without_a_preset_chooses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "events.csv"
    rows = [f"u{user},i{(user * 3 + k * k) % 20},{1000 + k}" for user in range(30) for k in range(6)]
    events.write_text("user,item,time\n" + "\n".join(rows) + "\n")
    out = tmp_path / "run"
    common = (
        "train",
        "--interactions",
        events,
        "--out",
        out,
        "--set",
        "epochs=2",
        "--set",
        "evaluate_every=1",
    )
    assert call(*common, "--set", "embedding_dim=4") == 0
    told = capfd.readouterr().err
    assert "comparing attention, " in told
    assert "chose " in told
    config = json.loads((out / "run.json").read_text())
    assert config["chosen"] in config["candidates"]
    assert config["settings"]["validation_metric"] == "full:ndcg@10"
    assert call("train", "--interactions", events, "--out", tmp_path / "b", "--preset", "spectral") == 0
    assert "comparing" not in capfd.readouterr().err
    assert "minutes=-1" in error_of_train(capfd, events, "--minutes", "-1")


def error_of_train(capfd: Any, events: Path, *more: str) -> str:
    return error_of(capfd, "train", "--interactions", events, *more)

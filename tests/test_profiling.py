"""Where the time goes: added up exactly, asked for or not, and without a change to what is learnt."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from graphs import small_split
from hdccf.config import FitOptions
from hdccf.training.fit import fit, resume
from hdccf.training.loop import timed
from hdccf.training.telemetry import OTHER, STAGES, Stopwatch, table
from training import cut_off_after, quick


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's readings; each look at it takes the first."""
    readings: list[float] = []
    monkeypatch.setattr("hdccf.training.telemetry.time.perf_counter", lambda: readings.pop(0))
    return readings


def test_seconds_and_pieces_are_added_up_and_the_rest_is_other(ticks: list[float]) -> None:
    ticks += [0.0, 1.0, 3.0, 4.0, 4.5, 6.0, 7.0, 10.0]
    watch = Stopwatch()
    with watch("sampling"):  # 1 to 3
        pass
    with pytest.raises(LookupError), watch("backward"):  # 4 to 4.5, although it fails
        raise LookupError
    with watch("sampling"):  # 6 to 7
        pass
    report = watch.report()
    assert report["seconds"] == 10.0
    assert report["stages"]["sampling"] == {"seconds": 3.0, "share": 0.3, "pieces": 2}
    assert report["stages"]["backward"] == {"seconds": 0.5, "share": 0.05, "pieces": 1}
    assert report["stages"][OTHER] == {"seconds": 6.5, "share": 0.65, "pieces": None}
    lines = table(report).splitlines()
    assert [line.split()[0] for line in lines[2:5]] == [OTHER, "sampling", "backward"]
    assert lines[3].split() == ["sampling", "3.00", "30.0%", "2", "1500.00"]


def test_values_pass_through_and_only_the_wait_for_them_counts(ticks: list[float]) -> None:
    ticks += [0.0, 1.0, 2.0, 5.0, 7.0, 8.0, 8.25, 9.0]
    watch = Stopwatch()
    assert list(timed(watch, "sampling", "ab")) == ["a", "b"]
    assert watch.seconds["sampling"] == 1.0 + 2.0 + 0.25
    assert list(timed(nullcontext, "sampling", [None, 3])) == [None, 3]


def test_what_fails_within_fails_without() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise LookupError

    values = timed(nullcontext, "sampling", broken())
    assert next(values) == 1
    with pytest.raises(LookupError):
        next(values)


def test_a_profile_names_every_stage_and_changes_nothing_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = torch.arange(40)
    asked = fit(small_split(), quick(), out=tmp_path / "run", options=FitOptions(profile=True), progress=True)
    assert "where the time went" in capsys.readouterr().err
    plain = fit(small_split(), quick(), out=tmp_path / "plain")
    assert asked.score_block(users).equal(plain.score_block(users))
    assert not (tmp_path / "plain" / "profile.json").exists()
    report = json.loads((tmp_path / "run" / "profile.json").read_text(encoding="utf-8"))
    stages = report["stages"]
    assert set(stages) == {*STAGES, OTHER}
    steps = 3 * asked.model.n_batches
    # The end of an epoch is looked for too, and the end of a batch's objectives.
    assert stages["sampling"]["pieces"] == steps + 3
    assert stages["scores and loss"]["pieces"] == 2 * steps
    assert stages["backward"]["pieces"] == stages["optimizer"]["pieces"] == steps
    assert stages["evaluation"]["pieces"] == 3
    assert stages["checkpoints"]["pieces"] >= 2
    assert sum(stage["share"] for stage in stages.values()) == pytest.approx(1, abs=1e-3)


def test_a_run_that_goes_on_still_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = FitOptions(profile=True, checkpoint_epochs=1)
    with cut_off_after(6, monkeypatch):
        fit(small_split(), quick(), out=tmp_path / "run", options=options)
    assert not (tmp_path / "run" / "profile.json").exists()
    resume(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "profile.json").read_text(encoding="utf-8"))
    assert 0 < report["stages"]["backward"]["pieces"] < 3 * 4 + 1

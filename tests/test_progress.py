"""What the user sees goes to standard error: notes, and plain lines where there is no terminal."""

import time

import pytest

from hdccf import console as progress


def test_note(capsys: pytest.CaptureFixture[str]) -> None:
    progress.note("took ',' as the separator")
    captured = capsys.readouterr()
    assert captured.err == "note: took ',' as the separator\n"
    assert captured.out == ""


def test_track_yields_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track([3, 1, 2], "steps")) == [3, 1, 2]
    assert list(progress.track(iter([3, 1]), "steps", enabled=False)) == [3, 1]
    assert capsys.readouterr().out == ""


def test_lines_in_a_log_come_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.progress_bar("reading", 2_000) as advance:
        advance(500)
        clock[0] = 11.0
        advance(500)
        clock[0] = 12.0
        advance(500)
    assert capsys.readouterr().err == "reading: 1,000 of 2,000 (50 %)\n"


def test_lines_without_a_total(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.progress_bar("reading", None) as advance:
        clock[0] = 11.0
        advance(7)
    assert capsys.readouterr().err == "reading: 7\n"


def test_silent_when_disabled(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    with progress.progress_bar("reading", 10, enabled=False) as advance:
        advance(5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("unit", ["", "bytes"])
def test_a_bar_on_a_terminal(
    unit: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.progress_bar("reading", 4, unit=unit) as advance:
        advance(4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\n".join(captured.err.splitlines()[:1]) != "reading: 4 of 4 (100 %)"

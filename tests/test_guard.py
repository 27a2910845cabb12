"""`make bench` says its verdict last, whatever stops it, and runs every benchmark that has a quick mode."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def guard() -> Any:
    found = importlib.util.spec_from_file_location("guard", BENCHMARKS / "guard.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_what_has_a_quick_mode_is_run_and_the_rest_is_named(guard: Any) -> None:
    for file in BENCHMARKS.glob("*.py"):
        if file.stem != "guard":
            quick = '"--quick"' in file.read_text(encoding="utf-8")
            assert (file.stem in guard.EVERY) == quick
            assert (file.stem in guard.LEFT_OUT) == (not quick)


def test_a_limit_leaves_a_verdict() -> None:
    command = [sys.executable, str(BENCHMARKS / "guard.py"), "bench_step", "bench_data", "--minutes", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout.splitlines()[-2:] == [
        "stopped after 0 minutes; not measured: bench_step, bench_data",
        "INCOMPLETE",
    ]
    assert ended.returncode == 1


def test_one_that_fails_does_not_hide_the_others(
    guard: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(benchmark: str, _: float) -> dict[str, float]:
        if benchmark == "bench_step":
            raise RuntimeError("it ended with code 1")
        return {"csv_faster_than_pandas": 0.9}

    monkeypatch.setattr(guard, "measure", measure)
    monkeypatch.setattr(guard.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["guard.py", "bench_step", "bench_data"])
    with pytest.raises(SystemExit, match="1"):
        guard.main()
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "worse than allowed: bench_step gave no figures (it ended with code 1)",
        "worse than allowed: bench_data csv_faster_than_pandas is 0.9; at least 1",
        "FAILED",
    ]

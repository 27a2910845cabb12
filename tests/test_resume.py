"""Training that is stopped at any moment, in any way, ends bit for bit as if it had not been."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from graphs import small_split
from hdccf import checkpoint
from hdccf.config import FitOptions
from hdccf.errors import RunError, TrainingError
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.fit import SplitValidator, fit, resume
from training import KINDS, assert_same_runs, cut_off_after, quick

OFTEN = FitOptions(checkpoint_minutes=0)
SELDOM = FitOptions(checkpoint_minutes=1e9, checkpoint_epochs=2)
NEVER = FitOptions(checkpoint_minutes=1e9, checkpoint_epochs=1000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_off_ends_as_if_it_had_not_been(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, settings = small_split(), quick(kind)
    whole = fit(split, settings, seed=3, out=tmp_path / "whole", options=SELDOM)
    in_all = 3 * whole.model.n_batches
    # Between two checkpoints, and in the middle of the last epoch.
    for steps, options in ((in_all // 2, SELDOM), (in_all - 1, OFTEN)):
        out = tmp_path / f"cut-{steps}-{options.checkpoint_minutes}"
        with cut_off_after(steps, monkeypatch):
            fit(split, settings, seed=3, out=out, options=options)
        assert not (out / "result.json").exists()
        again = resume(out)
        assert_same_runs(tmp_path / "whole", out)
        for name, tensor in whole.model.state_dict().items():
            assert again.model.state_dict()[name].equal(tensor)


def test_every_step_is_as_good_a_moment_as_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, settings = small_split(), quick(epochs=2)
    whole = fit(split, settings, out=tmp_path / "whole")
    for steps in range(2 * whole.model.n_batches):
        for options in (OFTEN, NEVER):
            out = tmp_path / f"{steps}-{options.checkpoint_minutes}"
            with cut_off_after(steps, monkeypatch):
                fit(split, settings, out=out, options=options)
            resume(out)
            assert_same_runs(tmp_path / "whole", out)


def test_four_epochs_are_two_and_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, settings = small_split(), quick(epochs=4)
    whole = fit(split, settings, out=tmp_path / "whole")
    with cut_off_after(2 * whole.model.n_batches, monkeypatch):
        fit(split, settings, out=tmp_path / "halves", options=FitOptions(checkpoint_epochs=2))
    seen = [record["epoch"] for record in RunFolder.open(tmp_path / "halves").metrics()]
    assert seen == [1, 2]
    resume(tmp_path / "halves")
    assert_same_runs(tmp_path / "whole", tmp_path / "halves")


def test_many_interruptions_are_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, settings = small_split(), quick("in-batch", evaluate_every=2, epochs=4)
    whole = fit(split, settings, out=tmp_path / "whole")
    with cut_off_after(1, monkeypatch):
        fit(split, settings, out=tmp_path / "cut", options=OFTEN)
    for _ in range(4 * whole.model.n_batches - 2):  # a step each
        with cut_off_after(1, monkeypatch):
            resume(tmp_path / "cut")
    resume(tmp_path / "cut")
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_cut_in_an_evaluation_or_in_a_write_is_as_good_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the best weights were written, before the metrics; and with a line of the metrics cut in two."""
    split, settings = small_split(), quick()
    fit(split, settings, out=tmp_path / "whole")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    for number, function in enumerate(("log", "truncate_log")):
        out = tmp_path / str(number)
        with monkeypatch.context() as patched:
            patched.setattr(RunFolder, function, die)
            with pytest.raises(KeyboardInterrupt):
                fit(split, settings, out=out, options=OFTEN)
        if function == "log":
            (out / "metrics.jsonl").write_text('{"epoch": 1, "lo', encoding="utf-8")
        resume(out)
        assert_same_runs(tmp_path / "whole", out)


def test_early_stopping_counts_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, settings = small_split(), quick(epochs=40, patience=3, learning_rate=0.2)
    # There is little to learn in it: no value is clearly above chance.
    monkeypatch.setattr(SplitValidator, "chance", -math.inf)
    whole = fit(split, settings, out=tmp_path / "whole")
    epochs = len(RunFolder.open(tmp_path / "whole").metrics())
    assert 3 < epochs < 40
    with cut_off_after((epochs - 2) * whole.model.n_batches + 1, monkeypatch):
        fit(split, settings, out=tmp_path / "cut", options=OFTEN)
    resume(tmp_path / "cut")
    assert_same_runs(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    fit(small_split(), quick(), out=tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    resume(tmp_path / "run")
    after = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir() if file.is_file()}
    assert after == before


def test_a_full_disk_leaves_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, settings = small_split(), quick()
    fit(split, settings, out=tmp_path / "whole")
    save, saved = save_file, 0

    def until_full(*given: Any, **named: Any) -> None:
        nonlocal saved
        saved += 1
        if saved > 7:
            raise OSError(28, os.strerror(28))
        save(*given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", until_full)
        with pytest.raises(
            RunError, match=r"^the disk is full, .* the last good one is still .*: make room and"
        ):
            fit(split, settings, out=tmp_path / "full", options=OFTEN)
    resume(tmp_path / "full")
    assert_same_runs(tmp_path / "whole", tmp_path / "full")


# -- real processes ------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import time
import training
from graphs import small_split
from hdccf.errors import HdccfError
from hdccf.training.optim import Stepper
from hdccf.config import FitOptions
from hdccf.training.fit import fit

step = Stepper.step
def slow(self, loss):  # so that there is time to be interrupted
    time.sleep(0.05)
    step(self, loss)
Stepper.step = slow

try:
    fit(small_split(), training.quick(epochs=25, patience=25), out=sys.argv[2],
        options=FitOptions(threads=1, checkpoint_minutes=0), progress=True)
except HdccfError as error:
    sys.exit(f"error: {error}")
"""


def started(out: Path) -> subprocess.Popen[str]:
    """A process that trains, once it has saved something."""
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes would have come to, had they been left alone."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    fit(small_split(), quick(epochs=25, patience=25), out=out, options=FitOptions(threads=1))
    return out


def test_after_kill_9_at_a_random_moment_it_ends_as_if_nothing_had_happened(
    whole: Path, tmp_path: Path
) -> None:
    process = started(tmp_path / "run")
    time.sleep(random.uniform(0.0, 0.5))
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "result.json").exists()
    resume(tmp_path / "run")
    assert_same_runs(whole, tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(whole: Path, tmp_path: Path, number: int) -> None:
    process = started(tmp_path / "run")
    process.send_signal(number)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 1
    last = message.splitlines()[-1]
    assert last.startswith("error: interrupted at epoch ")
    assert last.endswith(f"and saved; go on with: hdccf train --resume {tmp_path / 'run'}")
    resume(tmp_path / "run")
    assert_same_runs(whole, tmp_path / "run")


# -- what cannot go on ---------------------------------------------------------------------------------------


def test_a_second_process_is_refused_while_the_first_one_trains(tmp_path: Path) -> None:
    process = started(tmp_path / "run")
    try:
        refused = r"^another process is writing into .*run; wait for it, or take another folder$"
        with pytest.raises(RunError, match=refused):
            resume(tmp_path / "run")
        with pytest.raises(RunError, match=refused):
            fit(small_split(), quick(), out=tmp_path / "run")
    finally:
        process.kill()
        process.communicate(timeout=60)
    # The lock of a dead process blocks nobody.
    resume(tmp_path / "run")


def test_a_run_that_diverged_says_so_again(tmp_path: Path) -> None:
    settings = quick("sgd", similarity="dot", learning_rate=1e30)
    with pytest.raises(TrainingError, match="try a smaller learning rate"):
        fit(small_split(), settings, out=tmp_path / "run", options=OFTEN)
    with pytest.raises(TrainingError, match="try a smaller learning rate"):
        resume(tmp_path / "run")


def test_a_folder_that_is_damaged_or_none_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, settings = small_split(), quick()
    with cut_off_after(9, monkeypatch):
        fit(split, settings, out=tmp_path / "run", options=OFTEN)
    with pytest.raises(
        RunError, match=r"is not empty; choose another --out, or go on with hdccf train --res"
    ):
        fit(split, settings, out=tmp_path / "run")
    latest = tmp_path / "run" / "checkpoint.safetensors"
    good, best = latest.read_bytes(), (tmp_path / "run" / "best.safetensors").read_bytes()
    latest.write_bytes(good[:-7])
    with pytest.raises(RunError, match="is damaged"):
        resume(tmp_path / "run")
    latest.write_bytes(best)  # a good file, and the wrong one
    with pytest.raises(RunError, match="has the weights of another model or other data"):
        resume(tmp_path / "run")
    latest.write_bytes(good)
    (tmp_path / "run" / "best.safetensors").unlink()
    with pytest.raises(RunError, match=r"best weights beside .* are gone; train again"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "best.safetensors").write_bytes(best)
    resume(tmp_path / "run")
    with pytest.raises(RunError, match="holds no run"):
        resume(tmp_path)

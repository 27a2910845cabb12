"""The frame of the command line: help without torch, one line for every error, the right exit code."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import command_line
import hdccf
from hdccf.cli import data as data_commands

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in a folder of its own; gives the exit code, the output and the errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HDCCF_DATA_HOME", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = command_line.call(*arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_help_comes_without_torch_and_without_the_data_room() -> None:
    program = (
        "import sys\n"
        "from hdccf.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "heavy = {'torch', 'polars', 'numpy', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hdccf data info ml-100k" in done.stdout


def test_the_installed_command_answers() -> None:
    command = Path(sys.executable).with_name("hdccf")
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"hdccf {hdccf.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_without_a_command_there_is_help(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert code == 0
    assert "Usage: hdccf" in out
    assert err == ""


MISTAKES = {
    "unknown command": (["dta"], r"No such command 'dta'. Did you mean 'data'\? .*hdccf --help explains"),
    "unknown sub-command": (["data", "got"], "No such command 'got'.*list, get, info"),
    "unknown option": (
        ["data", "list", "--nope"],
        r"No such option: --nope .*hdccf data list --help explains",
    ),
    "a setting as an option": (["train", "x.csv", "--epochs", "3"], "--epochs is a .* write --set epochs=3 "),
    "a setting with =": (["train", "--learning-rate=.1"], "write --set learning_rate=.1 "),
    "a setting at the end": (["tune", "--temperature"], "write --set temperature=VALUE"),
    "a setting where none is taken": (["recommend", "RUN", "--epochs", "3"], "No such option: --epochs"),
    "a device that is not here": (
        ["train", "nowhere.csv", "--device", "cuda:9"],
        "device='cuda:9' is not avail",
    ),
    "two sources": (["train", "x.csv", "--dataset", "ml-1m"], "x.csv is given beside --dataset or --inter"),
    "a data set that is none": (["train", "ml1m"], "'ml1m' .*did you mean ml-1m"),
    "missing argument": (["data", "get"], "Missing argument 'NAME'"),
    "extra argument": (["data", "list", "more"], "unexpected extra argument.*more"),
    "not a number": (["data", "info", "synthetic", "--core", "x"], "--core"),
    "out of range": (["data", "info", "synthetic", "--core", "-1"], "--core.*greater than or equal to 0"),
    "unknown data set": (["data", "info", "ml1m"], "'ml1m' .*did you mean ml-1m"),
    "unknown data set to get": (["data", "get", "ml-2m"], "'ml-2m' .*did you mean ml-"),
    "missing file": (["data", "info", "clicks.csv"], "clicks.csv"),
    "missing file in a folder": (["data", "info", "some/clicks"], "some/clicks"),
    "missing folder": (["data", "get", "ml-1m", "--from", "nowhere"], "nowhere is not a folder"),
    "option for files only": (["data", "info", "ml-1m", "--user", "u"], "--user is for files"),
    "option for data sets only": (["data", "info", "x.csv", "--from", "."], "--from is for named data sets"),
    "database without a query": (["data", "info", "sqlite:///x.db"], "--query"),
    "query and text options": (
        ["data", "info", "sqlite:///x.db", "--query", "SELECT 1", "--separator", ";"],
        "--separator is for files",
    ),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, mistake: str) -> None:
    arguments, match = MISTAKES[mistake]
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert pytest.RaisesExc(Exception, match=match).matches(Exception(err))


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_as_well(run: Run, place: str) -> None:
    arguments = ["data", "info", "ml1m"]
    code, _, err = run(*(["--debug", *arguments] if place == "before" else [*arguments, "--debug"]))
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert "ConfigError" in err
    assert err.splitlines()[-1].startswith("error: 'ml1m'")


@pytest.mark.parametrize(
    ("raised", "code", "match"),
    [
        (
            ZeroDivisionError("division by zero"),
            1,
            r"ZeroDivisionError: division by zero .*bug in hdccf.*--debug",
        ),
        (OSError(28, "No space left on device", "/x"), 2, "No space left on device: /x"),
        (MemoryError(), 2, "not enough memory"),
        (pl.exceptions.PanicException("out-of-range\ndate"), 2, r"Polars cannot .*\(out-of-range date\)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_unforeseen_error_is_one_line_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, match: str
) -> None:
    def fail(_: object) -> None:
        raise raised

    monkeypatch.setattr(data_commands, "_print_json", fail)
    ended, _, err = run("data", "list", "--json")
    assert ended == code
    assert err.count("\n") == 1
    assert pytest.RaisesExc(Exception, match=match).matches(Exception(err))


def test_a_panic_of_polars_fills_no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import polars as pl\n"
        "from hdccf.cli import data, main\n"
        "late = pl.Series([2**31 - 1], dtype=pl.Int32).cast(pl.Date)\n"
        "data._print_json = lambda _: late.cast(pl.Datetime('us'))\n"
        "main(['data', 'list', '--json'])\n"
    )
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "panicked" in done.stderr
    assert "backtrace:" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: Polars cannot work with this data (out-of-range date)"
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{Path(sys.executable).with_name('hdccf')} data list --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[", "")


@pytest.mark.parametrize(
    ("command", "extra"),
    [("serve", "serve"), ("tune", "tune"), ("train", "ray"), ("train", "mlflow"), ("recommend", "index")],
)
def test_extras_are_named_in_full(run: Run, command: str, extra: str) -> None:
    _, out, _ = run(command, "--help")
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())
    assert f"pip install 'hdccf[{extra}]'" in text
    assert text.count("hdccf[") == text.count("pip install 'hdccf[")

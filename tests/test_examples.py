"""The examples run, in the order of the tour, on less data."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import hdccf
from hdccf.recommend.recommender import Recommender
from hdccf.serving.settings import ServeSettings

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the first two examples."""
    folder = tmp_path_factory.mktemp("examples")
    events = folder / "events.csv"
    assert "events.csv: " in run(sys.executable, EXAMPLES / "make_events.py", events, "--events", "6000")
    said = run(sys.executable, EXAMPLES / "train_and_ask.py", events, folder / "films", "--epochs", "2")
    assert "Split(leave-one-out" in said
    assert "ndcg@10" in said.lower()
    assert "because" in said
    return folder / "films"


@pytest.fixture(scope="module")
def address(films: Path) -> Iterator[str]:
    command = [sys.executable, "-c", "from hdccf.cli import main; main()", "serve", str(films), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        for line in process.stderr:
            if found := re.search(r"http://[0-9.]+:\d+", line):
                break
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.communicate()


def test_a_client_in_python_gets_answers_reasons_and_problems(address: str) -> None:
    said = run(sys.executable, EXAMPLES / "ask.py", address)
    assert re.search(r"for u\d+:\n  -?0\.\d+ .+\(.+, \d{4}\)\n", said)
    assert " because of " in said
    assert "a new user, who watched " in said
    assert "Unknown id: user 'nobody' is not in the training data; known are for example" in said


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_every_kind_of_answer(address: str, films: Path) -> None:
    import hdccf

    train = hdccf.load_run(films).split.train
    said = run("sh", EXAMPLES / "ask.sh", address, train.user_ids[0], train.item_ids[0])
    answers = [line for line in said.splitlines() if line.startswith("{")]
    assert len(answers) == said.count("== /") == 9
    assert [answer for answer in answers if "urn:hdccf:problem" in answer] == answers[-1:]


def test_the_settings_are_the_defaults() -> None:
    text = (EXAMPLES / "serve.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    values["cors_origins"] = tuple(values["cors_origins"])
    assert ServeSettings(**values) == ServeSettings()
    commented = set(re.findall(r"^# (\w+) =", text, re.MULTILINE))
    assert values.keys() | commented == ServeSettings.model_fields.keys()


def test_the_tour_names_what_there_is() -> None:
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    named = set(re.findall(r"examples/[\w.]+", tour))
    assert {f"examples/{file.name}" for file in EXAMPLES.iterdir() if file.is_file()} == named


def test_exported_vectors_are_searched_without_hdccf(films: Path, tmp_path: Path) -> None:
    model = hdccf.load_run(films)
    calibration = replace(model.calibration, filter_weight=0.0)  # the one part that is no product
    model = Recommender(model.model, model.settings, model.split, seed=0, calibration=calibration)
    model.export(tmp_path / "vectors", file_format="numpy")
    user = model.split.train.user_ids[7]
    said = run(sys.executable, EXAMPLES / "search_vectors.py", tmp_path / "vectors", user, "--k", "3")
    best = model.recommend([user], k=3, include_seen=True)["item"].to_list()
    assert re.findall(r"(\S+) -?\d+\.\d{3}", said) == best

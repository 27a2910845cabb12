"""`hdccf evaluate` and `hdccf compare` on real runs, from the arguments to what is printed and kept."""

import json
import resource
from pathlib import Path

import polars as pl
import pytest
import torch

import hdccf
from command_line import call, error_of
from graphs import small_split
from hdccf.errors import RunError
from hdccf.evaluation import Evaluation
from hdccf.files import locked
from hdccf.recommend.run_folder import RunFolder


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, str]:
    split = small_split()
    made = {
        "popular": tmp_path / "popular",
        "random": tmp_path / "random",
        "random again": tmp_path / "random-2",
    }
    hdccf.fit(split, hdccf.MostPopular(), out=made["popular"])
    hdccf.fit(split, hdccf.Random(), out=made["random"], seed=1)
    hdccf.fit(split, hdccf.Random(), out=made["random again"], seed=2)
    hdccf.fit(small_split(seed=1), hdccf.MostPopular(), out=tmp_path / "other")
    return {**{name: str(path) for name, path in made.items()}, "other": str(tmp_path / "other")}


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no word of a table is broken."""
    monkeypatch.setenv("COLUMNS", "160")


def test_json_is_protocols_and_metrics(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("evaluate", runs["popular"], "--k", "3,10", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [*found] == ["sampled", "full"]
    for values in found.values():
        assert {"hr@3", "ndcg@3", "recall@10", "precision@10", "mrr@10", "map@10", "auc"} <= values.keys()
        assert all(isinstance(value, float) for value in values.values())
    run = hdccf.load_run(runs["popular"])
    assert found == hdccf.evaluate(run, run.split, ks=(3, 10)).values


@pytest.mark.parametrize("protocol", ["sampled", "full"])
def test_one_protocol_alone(runs: dict[str, str], capsys: pytest.CaptureFixture[str], protocol: str) -> None:
    assert call("evaluate", runs["popular"], "--protocol", protocol, "--k", "5", "--json") == 0
    assert [*json.loads(capsys.readouterr().out)] == [protocol]


def test_per_user_results_are_kept_as_parquet(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("test", "validation"):
        assert call("evaluate", runs["popular"], "--k", "5", "--part", part) == 0
        frame = pl.read_parquet(Path(runs["popular"]) / "evaluation" / part / "per_user.parquet")
        assert len(frame) == 40
        assert {"user", "sampled/ndcg@5", "full/ndcg@5"} <= {*frame.columns}
    assert "hr@5" in capsys.readouterr().out


def test_markdown(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("evaluate", runs["popular"], "--k", "5", "--markdown") == 0
    assert "| metric | sampled @5 | full @5 |" in capsys.readouterr().out


def test_runs_that_differ_in_their_seed_are_one_system(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [runs["random"], runs["popular"], runs["random again"]]
    assert call("compare", *arguments, "--k", "3", "--metrics", "hr@3,auc", "--json") == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [*found["full"]] == ["hr@3", "auc"]
    systems = found["full"]["hr@3"]["systems"]
    assert {name: entry["seeds"] for name, entry in systems.items()} == {"random": 2, "most-popular": 1}
    assert systems["random"]["deviation"] is not None


def test_tables_of_a_comparison(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", runs["random"], runs["popular"], "--k", "3") == 0
    assert "95 % interval" in capsys.readouterr().out
    assert call("compare", runs["random"], runs["popular"], "--k", "3", "--markdown") == 0
    assert "| sampled hr@3 |" in capsys.readouterr().out


def test_a_kept_evaluation_is_used_until_something_changes(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = (runs["random"], runs["popular"], "--k", "3", "--json")
    assert call("compare", *both) == 0
    first = capsys.readouterr().out
    asked: list[object] = []
    real = hdccf.evaluate

    def watched(*arguments: object, **options: object) -> Evaluation:
        asked.append(arguments[0])
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("hdccf.evaluation.compare.evaluate", watched)
    assert call("compare", *both) == 0
    assert capsys.readouterr().out == first
    assert not asked
    assert call("compare", *both, "--seed", "1") == 0
    assert len(asked) == 2
    run = RunFolder.open(runs["random"])
    run.save_tensors(run.best, {"salt": torch.tensor(7)}, {"epoch": 0})
    assert call("compare", *both, "--seed", "1") == 0
    assert len(asked) == 3
    monkeypatch.setattr("hdccf.evaluation.compare.CANDIDATE_FORMAT", "another rule for negatives")
    assert call("compare", *both, "--seed", "1") == 0
    assert len(asked) == 5


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_run_that_another_process_writes_is_refused_before_it_is_ranked(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("hdccf.evaluation.compare.evaluate", lambda *_, **__: pytest.fail("ranked"))
    with locked(Path(runs["popular"]), RunError):
        assert "another process is writing into" in error_of(capsys, command, runs["popular"])


def test_a_report_of_kept_figures_is_not_written_beside_another_process(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["popular"]
    assert call("report", run) == 0
    with locked(Path(run), RunError):
        assert "another process is writing into" in error_of(capsys, "report", run, "--overwrite")
        assert call("report", run, "--out", f"{run}.html") == 0


def test_what_is_refused(runs: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    popular, other = runs["popular"], runs["other"]
    assert "compare runs of the same split" in error_of(capsys, "compare", popular, other)
    assert "count twice" in error_of(capsys, "compare", popular, popular)
    assert "give two run directories" in error_of(capsys, "compare", popular)
    assert "larger than the candidates" in error_of(capsys, "evaluate", popular, "--k", "31")
    assert "such as --k 10,50" in error_of(capsys, "evaluate", popular, "--k", "ten")
    assert "['sampled', 'full', 'both']" in error_of(capsys, "evaluate", popular, "--protocol", "all")
    assert "['validation', 'test']" in error_of(capsys, "evaluate", popular, "--part", "train")
    assert "choose one" in error_of(capsys, "evaluate", popular, "--json", "--markdown")
    assert "holds no run" in error_of(capsys, "evaluate", str(tmp_path))


@pytest.mark.parametrize("room", [0, 100, 1000])
@pytest.mark.parametrize("command", ["evaluate --k 3", "recommend --all --out lists.parquet"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    runs: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    room: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command.split()
    before = files_in(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # no file may have more bytes
    try:
        line = error_of(capsys, name, runs["popular"], *options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert line.endswith("make room, or write elsewhere, and call again")
    assert files_in(tmp_path) == before


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())

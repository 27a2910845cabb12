"""The benchmark of the defaults: its choice on validation, its journal, its tables and ratios."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import hdccf

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ROW = "most popular"


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("defaults")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("defaults_report")


@pytest.fixture
def split() -> hdccf.Split:
    return hdccf.leave_one_out(hdccf.synthetic_world(1500, n_users=100, n_items=200).interactions)


def line(row: str, full: float, **other: Any) -> dict[str, Any]:
    values = {"uniform": full, "popular": full / 2, "full": full, "coverage": 0.5}
    found = {"dataset": "tea", "split": "s1", "row": row, "settings": None, "seed": 0, "values": values}
    return {**found, "seconds": 2.0, "processor": 1.0, "commit": "c", "machine": "m", **other}


def test_the_best_on_validation_is_taken(defaults: Any, split: hdccf.Split) -> None:
    tried = [{"model": ROW.replace(" ", "-")}, {"model": "ease", "l2": 20.0}, {"model": "ease", "l2": 1e6}]
    judge = defaults.Validator(split, defaults.METRIC)
    values = [judge(defaults.fit_model(split, settings, 0)[0]) for settings in tried]
    scorer, told = defaults.fit_best(split, tried, 0)
    assert told == {"chosen": tried[values.index(max(values))], "validation": round(max(values), 5)}
    assert judge(scorer) == max(values)


def test_a_row_with_a_line_is_not_run_again(defaults: Any, split: hdccf.Split, tmp_path: Path) -> None:
    file, rows = tmp_path / "lines.jsonl", {ROW: defaults.ROWS[ROW].settings}

    def run(rows: dict[str, Any], seed: int = 0, again: bool = False) -> int:
        defaults.run_missing(file, "tea", split, rows, seed, again)
        return len(defaults.read_lines(file))

    assert [run(rows), run(rows), run(rows, again=True), run(rows, seed=1)] == [1, 1, 2, 3]
    other = {ROW: {"model": "random"}}
    assert [run(other), run(other)] == [4, 4]
    first = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert first["split"] == split.fingerprint
    assert set(first["values"]) == {"uniform", "popular", "full", "coverage"}


def test_a_row_that_is_refused_leaves_no_line(
    defaults: Any, split: hdccf.Split, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines.jsonl"
    rows = {"BPR": {"model": "ease", "max_items": 1}, ROW: defaults.ROWS[ROW].settings}
    defaults.run_missing(file, "tea", split, rows, 0)
    assert [found["row"] for found in defaults.read_lines(file)] == [ROW]
    assert "BPR is left out" in capsys.readouterr().err


def test_the_default_names_the_candidate_that_won(
    defaults: Any, split: hdccf.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick: dict[str, Any] = {"embedding_dim": 4, "epochs": 4, "user_vector": "free"}
    candidates = {name: hdccf.HDCCF(temperature=tau, **quick) for name, tau in (("a", 0.1), ("b", 0.5))}
    monkeypatch.setattr(defaults, "automatic_candidates", lambda train, **_: candidates)
    model, told = defaults.fit_default(split, None, 0)
    assert candidates[told["chosen"]] == model.settings
    assert told["alone"] > 0


def test_tables_have_the_last_lines_of_the_last_split(report: Any) -> None:
    lines = [
        line("old", 0.9, split="s0"),
        line("EASE", 0.2),
        line("default", 0.1),
        line("default", 0.3),
        line("default", 0.8, seed=1),
    ]
    tables = report.tables_of(lines, 0, ["default", "EASE", "old"])
    assert {name: row["values"]["full"] for name, row in tables["tea"].items()} == {
        "default": 0.3,
        "EASE": 0.2,
    }
    assert list(tables["tea"]) == ["default", "EASE"]


def test_the_best_is_bold_and_the_choice_is_named(report: Any) -> None:
    rows = {
        "EASE": line("EASE", 0.2, chosen={"model": "ease", "l2": 50.0}),
        "SASRec": line("SASRec", 0.1, epoch=3, epochs=5),
    }
    assert report.table(rows).splitlines()[2:] == [
        "| EASE | **0.2000** | **0.1000** | **0.2000** | 0.5000 | 2.0 (1.0) | l2 50 |",
        "| SASRec | 0.1000 | 0.0500 | 0.1000 | 0.5000 | 2.0 (1.0) | epoch 3 of 5 |",
    ]


def test_ratios_are_to_the_best_of_each_kind_and_averaged(report: Any, tmp_path: Path) -> None:
    lines = [
        line("default", 0.3, seconds=4.0, alone=2.0, chosen="b"),
        line("preset a", 0.1),
        line("preset b", 0.4),
        line("EASE", 0.2),
        line("default", 0.2, dataset="jam"),
        line("EASE", 0.4, dataset="jam"),
    ]
    tables = report.tables_of(lines, 0, ["default", "preset a", "preset b", "EASE"])
    assert report.ratios_of(tables, ["EASE"]) == {
        "best reference": {"tea": 1.5, "jam": 0.5, "mean": 1.0},
        "best preset": {"tea": 0.75, "mean": 0.75},
        "seconds": {"tea": 2.0, "mean": 2.0},
    }
    text = report.report(tables, ["EASE"])
    assert "| full NDCG@10, default / best reference | 1.500 | 0.500 | 1.000 |" in text
    assert "Split s1; seed 0; commit c; m." in text
    report.draw(tables, ["EASE"], tmp_path / "defaults.png")
    assert (tmp_path / "defaults.png").stat().st_size > 0

"""The journal: what is there is found whatever a model gained since, and a kill costs one line."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from records import evaluated, record_of, run_of

from hdccf.experiments import reproduce
from hdccf.experiments.plans import Row, Task
from hdccf.experiments.reproduce import Journal, Run, commit_of


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal" / "small.jsonl", tmp_path / "per-user")


def test_a_run_that_is_there_is_found_and_only_that_one(journal: Journal) -> None:
    row = Row("x", {"temperature": 0.2})
    run, found = run_of(row), evaluated(0.3, 0)
    assert journal.find(run) is None
    journal.append(record_of(run, found.values), found)
    assert journal.find(run) == journal.records()[0]
    for other in (
        run_of(row, seed=1),
        run_of(Row("x", {"temperature": 0.3})),
        run_of(Row("x", model="ease")),
        replace(run, task=Task(metrics=("hr@10",))),
        run_of(row, retrain=True),
        run_of(replace(row, given=True)),
        run_of(replace(row, densities=True)),
    ):
        assert journal.find(other) is None
    kept = journal.evaluation(journal.records()[0])
    assert kept is not None
    assert kept.per_user.equals(found.per_user)


def test_one_that_was_asked_more_answers_one_that_is_asked_less(journal: Journal) -> None:
    run, found = run_of(Row("x", given=True)), evaluated(0.3, 0)
    journal.append(record_of(run, found.values, given=found.values), found)
    assert journal.find(run_of(Row("x"))) is not None


def test_a_line_from_before_there_were_diagnostics_is_not_run_again(journal: Journal) -> None:
    run, found = run_of(Row("x")), evaluated(0.3, 0)
    journal.append(record_of(run, found.values), found)
    assert journal.find(run_of(Row("x", diagnostics=True))) is not None


def test_settings_that_came_or_went_since_do_not_matter_where_they_were_not_used(journal: Journal) -> None:
    run, found = run_of(Row("x", {"temperature": 0.2})), evaluated(0.3, 0)
    older = record_of(run, found.values)
    del older["settings"]["user_side"]  # not known then, and at its default now
    older["settings"]["gone"] = 7  # known then, not changed, and gone now
    journal.append(older, found)
    assert journal.find(run) is not None
    assert journal.find(run_of(Row("x", {"temperature": 0.2, "user_side": 0.5}))) is None
    changed = {**older, "changed": [*older["changed"], "gone"]}
    assert not run.is_answered_by(changed)


def test_half_a_line_is_passed_over_and_cut_off(journal: Journal) -> None:
    first, second, found = run_of(Row("x")), run_of(Row("x"), seed=1), evaluated(0.3, 0)
    journal.append(record_of(first, found.values), found)
    with journal.path.open("a", encoding="utf-8") as file:
        file.write('{"model": "hdc')
    assert len(journal.records()) == 1
    journal.append(record_of(second, found.values), found)
    assert [record["seed"] for record in journal.records()] == [0, 1]


@pytest.mark.skipif(shutil.which("git") is None, reason="asks git")
def test_a_commit_is_dirty_where_the_code_is_and_not_where_results_are(tmp_path: Path) -> None:
    def git(*asked: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *who, *asked], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "src"
    package.mkdir()
    (package / "code.py").write_text("1", encoding="utf-8")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "results.md").write_text("2", encoding="utf-8")
    clean = commit_of(package)
    assert len(clean) == 10
    (package / "code.py").write_text("3", encoding="utf-8")
    assert commit_of(package) == f"{clean}-dirty"
    (package / "code.py").write_text("1", encoding="utf-8")
    (package / "more.py").write_text("4", encoding="utf-8")
    assert commit_of(package) == f"{clean}-dirty"


def test_runs_under_an_older_rule_for_negatives_are_not_reused(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled, found = run_of(Row("x")), evaluated(0.3, 0)
    full = Run("small", "fingerprint", Task(("full",), validation_metric="full:ndcg@10"), Row("x"), 0)
    for run in (sampled, full):
        journal.append(record_of(run, found.values), found)
    monkeypatch.setattr(reproduce, "CANDIDATE_FORMAT", "another rule")
    assert journal.find(sampled) is None
    assert journal.find(full) is not None  # which uses no sampled negatives

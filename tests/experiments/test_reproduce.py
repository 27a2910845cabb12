"""`hdccf reproduce` from small files in the published formats to tables, resumed after any death."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import call
from hdccf.config import FitOptions
from hdccf.data.split import Split, leave_one_out
from hdccf.data.synthetic import synthetic_world
from hdccf.errors import ConfigError
from hdccf.evaluation.ranking import Ranker
from hdccf.experiments import reproduce as reproducing
from hdccf.experiments.diagnostics import diagnostics_of
from hdccf.experiments.plans import (
    PAPER,
    SEQUENTIAL,
    TITLES,
    Plan,
    Row,
    Task,
    all_training,
    table,
    task_of,
    without_times,
)
from hdccf.experiments.reproduce import Reproduction
from hdccf.models.hdccf.settings import HDCCF
from hdccf.training.fit import fit
from training import cut_off_after

SMALL: dict[str, Any] = {
    "epochs": 2,
    "evaluate_every": 1,
    "embedding_dim": 4,
    "block_users": 32,
    "batch_size": 256,
    "learning_rate": 0.02,
}


@pytest.fixture(scope="module")
def split() -> Split:
    world = synthetic_world(1200, n_users=80, n_items=90, liked=0.3, seed=1)
    return leave_one_out(world.interactions)


def runner(split: Split, tmp_path: Path, task: Task = PAPER) -> Reproduction:
    return Reproduction(Plan("small", task, tmp_path), split)


ROWS = [Row("ours", SMALL, seeds=2), Row("ease", model="ease")]


def test_each_run_is_a_line_that_says_what_was_measured(split: Split, tmp_path: Path) -> None:
    made = runner(split, tmp_path)
    outcome = made.train(ROWS)
    assert [(r["model"], r["seed"]) for r in made.journal.records()] == [
        ("hdccf", 0),
        ("hdccf", 1),
        ("ease", 0),
    ]
    record = outcome.records["ours"][1]
    fitted = fit(split, HDCCF(**SMALL), seed=1, options=FitOptions(calibrate=False))
    expected = Ranker(split, "test").measure(fitted, PAPER.metrics, ("sampled", "full"))
    by_popularity = Ranker(split, "test", weighting="popularity")
    expected["popular"] = by_popularity.measure(fitted, PAPER.metrics, ("sampled",))["sampled"]
    assert set(record["values"]) == set(expected)
    for protocol, values in expected.items():
        assert record["values"][protocol] == pytest.approx(values)
    assert record["best_epoch"] in (1, 2)
    assert "clipped-items" in record["terms"]
    kept = made.journal.evaluation(record)
    assert kept is not None
    for protocol in PAPER.protocols:
        assert kept.per_user[f"{protocol}/ndcg@10"].mean() == pytest.approx(
            record["values"][protocol]["ndcg@10"], abs=1e-6
        )
    assert not list((tmp_path / ".runs").iterdir())


def test_what_is_in_the_journal_is_not_run_again(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = runner(split, tmp_path).train(ROWS)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(reproducing, "fit", refuse)
    assert runner(split, tmp_path).train(ROWS) == before


def test_a_killed_run_goes_on_and_ends_the_same(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row("ours", {**SMALL, "epochs": 12}, seeds=1)]
    whole = runner(split, tmp_path / "whole").train(rows)
    cut = runner(split, tmp_path / "cut")
    with cut_off_after(33, monkeypatch):
        cut.train(rows)
    assert cut.journal.records() == []
    (folder,) = (path for path in (tmp_path / "cut" / ".runs").iterdir() if path.is_dir())
    assert (folder / "checkpoint.safetensors").exists()
    assert cut.train(rows).records["ours"][0]["values"] == whole.records["ours"][0]["values"]


def test_what_a_kill_left_half_made_is_begun_anew(split: Split, tmp_path: Path) -> None:
    made = runner(split, tmp_path)
    rows = [Row("ease", model="ease")]
    folder = tmp_path / ".runs" / made.run_of(rows[0], 0).key
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{")
    assert len(made.train(rows).records["ease"]) == 1


def test_changed_code_writes_no_results_beside_itself(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducing, "commit_of", lambda _: "abc-dirty")
    monkeypatch.setattr(reproducing, "root_of", lambda _: tmp_path / "code")
    beside = Plan("small", PAPER, tmp_path / "code" / "results", only=("ease",))
    with pytest.raises(ConfigError, match=r"has changed since its commit, .* or --allow-dirty"):
        Reproduction(beside, split).run("table")
    assert not beside.results.exists()
    for made in (
        Reproduction(beside, split, allow_dirty=True),
        Reproduction(replace(beside, results=tmp_path / "elsewhere"), split),
    ):
        made.run("table")
        assert [record["commit"] for record in made.journal.records()] == ["abc-dirty"]


def test_an_impossible_row_is_told_and_the_others_go_on(split: Split, tmp_path: Path) -> None:
    rows = [Row("ease", {"max_items": 3}, "ease"), Row("pop", model="most-popular")]
    outcome = runner(split, tmp_path).train(rows)
    assert "more than max_items=3" in outcome.failures["ease"]
    assert (len(outcome.records["ease"]), len(outcome.records["pop"])) == (0, 1)


def test_progress_says_how_much_is_left(
    split: Split, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row("pop", model="most-popular", seeds=2)]
    replace(runner(split, tmp_path), progress=True).train(rows)
    lines = [line for line in capsys.readouterr().err.splitlines() if "run " in line]
    assert lines[0].endswith("run 1 of 2: pop, seed 0; time left: unknown before the first has ended")
    assert "run 2 of 2: pop, seed 1; about " in lines[1]
    replace(runner(split, tmp_path), progress=True).train(rows)
    assert "2 of 2 runs are in" in capsys.readouterr().err


def test_a_model_without_runs_takes_the_mean_of_the_others(split: Split, tmp_path: Path) -> None:
    made = runner(split, tmp_path)
    took = {"most-popular": 10.0, "ease": 50.0}
    records = [
        {"dataset": made.plan.dataset, "model": model, "wall_seconds": seconds, "seconds": 0.0}
        for model, seconds in took.items()
    ]
    pending = [made.run_of(Row("chance", model="random"), 0), made.run_of(Row("ease", model="ease"), 0)]
    assert reproducing._time_left(records, pending) == "about 80 s left"


def test_the_time_left_counts_later_parts_and_no_row_that_failed(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted: list[list[str]] = []

    def count(records: object, pending: list[reproducing.Run]) -> str:
        counted.append([run.row.label for run in pending])
        return "?"

    monkeypatch.setattr(reproducing, "_time_left", count)
    rows = [
        Row("pop", model="most-popular"),
        Row("no", {"max_items": 3}, "ease", seeds=2),
        Row("ease", model="ease"),
    ]
    later = [[Row("pop", model="most-popular"), Row("chance", model="random", seeds=2)]]
    replace(runner(split, tmp_path), progress=True).train(rows, later)
    assert counted == [
        ["pop", "no", "no", "ease", "chance", "chance"],
        ["no", "no", "ease", "chance", "chance"],
        ["ease", "chance", "chance"],
    ]
    assert "; ?, with 2 runs of later parts" in capsys.readouterr().err


# -- trained on both parts -----------------------------------------------------------------------------------


def test_validation_pairs_become_training_pairs(split: Split) -> None:
    both = all_training(split)
    assert len(both.train) == len(split.train) + len(split.validation)
    assert len(both.validation) == 0
    assert (both.train.matrix != split.train.matrix + split.validation.matrix).nnz == 0
    assert both.test is split.test
    # In order of time: the validation item is the last of a history.
    user = int(split.validation.users[0])
    assert both.train.by_user.of(user)[-1] == split.validation.by_user.of(user)[0]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_epoch_is_chosen_on_validation_and_training_begins_anew_on_both(
    split: Split, tmp_path: Path, schedule: str
) -> None:
    task = Task(("full",), ("recall@20", "ndcg@20"), "full:ndcg@20", retrain=True)
    settings = {**SMALL, "epochs": 6, "validation_metric": "full:ndcg@20", "user_vector": "free"}
    settings |= {"schedule": schedule, "learning_rate": 1.0, "start": "random"}
    rows = [Row("ours", settings, seeds=1), Row("ease", model="ease")]
    outcome = runner(split, tmp_path, task).train(rows)
    chosen = outcome.records["ours"][0]["best_epoch"]
    assert chosen < 6
    if schedule == "cosine":  # over fewer epochs it would be another training than the one that was validated
        chosen = 6
    both = all_training(split)
    alone = fit(both, HDCCF(**{**settings, "epochs": chosen}), seed=0)
    found = Ranker(both, "test").measure(alone, task.metrics, task.protocols)
    assert outcome.records["ours"][0]["values"]["full"] == pytest.approx(found["full"])
    assert "best_epoch" not in outcome.records["ease"][0]


def test_with_the_validation_item_given_the_same_weights_see_one_item_more(
    split: Split, tmp_path: Path
) -> None:
    settings = {**SMALL, "user_vector": "history", "history_half_life": 1.0}
    fitted = fit(split, HDCCF(**settings))
    given = reproducing._with_histories(fitted, split.joined("train", "validation")).scorer()
    users = torch.arange(split.n_users)
    assert not given.score_block(users).allclose(fitted.score_block(users))
    outcome = runner(split, tmp_path).train([Row("ours", settings, given=True)])
    expected = Ranker(split, "test").measure(given, PAPER.metrics, ("full",))
    assert outcome.records["ours"][0]["given"]["full"] == pytest.approx(expected["full"])


def test_a_calibrated_row_is_calibrated_on_validation_and_its_filter_sees_all_training_pairs(
    split: Split, tmp_path: Path
) -> None:
    task = Task(protocols=("full",), metrics=("ndcg@10",), validation_metric="full:ndcg@10", retrain=True)
    settings = {**SMALL, "validation_metric": task.validation_metric, "calibrate": "full"}
    rows = [Row("plain", settings), Row("calibrated", settings, calibrated=True)]
    reproduction = Reproduction(Plan("small", task, tmp_path), split)
    records = reproduction.train(rows).records
    (plain,), (found,) = records["plain"], records["calibrated"]
    assert plain["key"] != found["key"]
    first = fit(split, HDCCF(**settings))
    assert first.calibration is not None
    assert found["calibration"] == first.calibration.describe()
    assert first.calibration.filter_weight  # else the row would be the plain one
    both = all_training(split)
    options = FitOptions(calibrate=False)
    again = fit(both, HDCCF(**{**settings, "epochs": found["best_epoch"]}), options=options)
    calibration = first.calibration.on(again.settings, again.model.scorer(), both.train)
    scorer = calibration.apply(again.model.scorer(), both.train)
    expected = Ranker(both, "test").measure(scorer, task.metrics, task.protocols)
    assert found["values"]["full"] == pytest.approx(expected["full"])
    assert Reproduction(Plan("small", task, tmp_path), split).train(rows).records == records


def test_a_time_blind_calibrated_row_uses_no_times(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL)
    (calibrated,) = (row for row in table(plan) if row.label == "hdccf-calibrated")
    assert calibrated.time_blind
    assert not any(row.time_blind for row in (*table(plan, True), *table(replace(plan, has_times=False))))
    (found,) = Reproduction(plan, split).train([calibrated]).records["hdccf-calibrated"]
    blind = without_times(split)
    fitted = fit(blind, HDCCF(**calibrated.settings))
    assert fitted.calibration is not None
    assert found["calibration"] == fitted.calibration.describe()
    scorer = fitted.calibration.apply(fitted.model.scorer(), blind.train)
    expected = Ranker(split, "test").measure(scorer, PAPER.metrics, ("full",))
    assert found["values"]["full"] == pytest.approx(expected["full"])
    # With times it is another run.
    aware = Reproduction(plan, split).train([replace(calibrated, time_blind=False)])
    assert aware.records["hdccf-calibrated"][0]["key"] != found["key"]


def test_scores_are_described_on_request(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL)
    (stem,) = Reproduction(plan, split).run("scores")
    for kind in ("csv", "md", "tex", "png", "svg"):
        assert stem.with_name(f"small.{kind}").stat().st_size > 0
    assert "overlap width" in stem.with_name("small.md").read_text()


def test_an_ablation_s_lines_have_diagnostics_of_the_trained_model(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL, only=("bpr-plus", "unmodulated", "paper"))
    made = Reproduction(plan, split)
    (stem,) = made.run("ablation")
    lines = made.journal.records()
    assert ["modulation-spread" in line["diagnostics"] for line in lines] == [True, False, True]
    fitted = fit(split, HDCCF(**lines[2]["settings"]), options=FitOptions(calibrate=False))
    assert lines[2]["diagnostics"] == pytest.approx(diagnostics_of(fitted.model, split))
    assert "## Diagnostics" in stem.with_name("small.md").read_text()


def test_one_part_of_a_table_can_be_asked_for(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL, only=("ease",))
    for time_aware, stem in ((False, "small"), (True, "small-time")):
        (found,) = Reproduction(replace(plan, time_aware=time_aware), split).run("table")
        assert found.name == stem
    blind = replace(plan, time_aware=True, has_times=False)
    with pytest.raises(ConfigError, match="small has no times; leave out --time-aware"):
        Reproduction(blind, split).run("table")


def test_figures_without_matplotlib_are_refused_before_anything_is_trained(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"hdccf\[plots\]"):
        runner(split, tmp_path).run("ablation")
    assert not list(tmp_path.iterdir())


def test_some_rows_of_a_study_can_be_asked_for(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL, only=("hdccf", "ease"))
    for stem in Reproduction(plan, split).run("table"):
        lines = stem.with_name(f"{stem.name}.csv").read_text().splitlines()[1:]
        assert list(dict.fromkeys(line.split(",")[0] for line in lines)) == ["ease", "hdccf"]
        assert "--only ease --only hdccf" in stem.with_name(f"{stem.name}.md").read_text()
    with pytest.raises(ConfigError, match="only='esae' is no row of this study; choose some of"):
        Reproduction(replace(plan, only=("esae",)), split).run("table")


def test_fewer_seeds_of_one_row_do_not_take_seeds_from_the_others(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=2, overrides=SMALL, only=("bpr",), time_aware=False)
    Reproduction(plan, split).run("table")
    (stem,) = Reproduction(replace(plan, seeds=1, only=("pmf",)), split).run("table")
    lines = stem.with_name("small.csv").read_text().splitlines()
    assert {(line.split(",")[0], line.split(",")[-1]) for line in lines[1:]} == {("pmf", "1"), ("bpr", "2")}


def rows_of(stem: Path) -> list[str]:
    lines = stem.with_name(f"{stem.name}.csv").read_text().splitlines()[1:]
    return list(dict.fromkeys(line.split(",")[0] for line in lines))


def test_a_table_keeps_the_rows_that_were_not_asked_for(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, overrides=SMALL, has_times=False, only=("ease",))
    (stem,) = Reproduction(plan, split).run("table")
    assert rows_of(stem) == ["ease"]
    (stem,) = Reproduction(replace(plan, only=("als",)), split).run("table")
    assert rows_of(stem) == ["ease", "als"]
    # Where the journal does not have them, nothing is run and nothing is replaced.
    made = Reproduction(replace(plan, only=("hdccf",)), split)
    made.journal.path.unlink()
    with pytest.raises(
        ConfigError, match="has rows that the journal has no runs of: ease, als; run them too"
    ):
        made.run("table")
    assert rows_of(stem) == ["ease", "als"]
    assert made.journal.records() == []


def test_fresh_runs_again_and_the_newer_result_counts(split: Split, tmp_path: Path) -> None:
    plan = Plan("small", PAPER, tmp_path, seeds=1, has_times=False, only=("ease",))
    for fresh, lines in ((False, 1), (False, 1), (True, 2)):
        Reproduction(plan, split, fresh=fresh).run("table")
        assert len(Reproduction(plan, split).journal.records()) == lines


# -- from files ----------------------------------------------------------------------------------------------


def events(seed: int = 0) -> list[tuple[int, int, int]]:
    """User, item and second: 60 users with a dozen of 70 items each."""
    rng = np.random.default_rng(seed)
    made = []
    for user in range(60):
        weights = np.where(np.arange(70) % 3 == user % 3, 6.0, 1.0)
        chosen = rng.choice(70, 12, replace=False, p=weights / weights.sum())
        made += [(user, int(item), 1_300_000_000 + 1000 * place + user) for place, item in enumerate(chosen)]
    return made


def yelp(folder: Path) -> None:
    lines = [f"{user}\t{item}\t4.0\t{second}\n" for user, item, second in events()]
    (folder / "yelp.rating").write_text("".join(lines))


def gowalla(folder: Path) -> None:
    lines = []
    for user, item, second in events():
        moment = str(np.datetime64(second, "s")) + "Z"
        lines.append(f"{user}\t{moment}\t30.2\t-97.7\t{item}\n")
    (folder / "loc-gowalla_totalCheckins.txt").write_text("".join(lines))


def gowalla_m1(folder: Path) -> None:
    histories: dict[int, list[int]] = {}
    for user, item, _ in events():
        histories.setdefault(user, []).append(item)
    train = [f"{user} {' '.join(map(str, items[:9]))}\n" for user, items in histories.items()]
    test = [f"{user} {' '.join(map(str, items[9:]))}\n" for user, items in histories.items()]
    (folder / "train.txt").write_text("".join(train))
    (folder / "test.txt").write_text("".join(test))


def reproduce(folder: Path, *arguments: str) -> int:
    small = [f"--set={name}={value}" for name, value in {**SMALL, "epochs": 1, "negatives": 4}.items()]
    return call("reproduce", *arguments, "--from", folder, "--out", folder / "results", *small)


@pytest.mark.parametrize(("dataset", "write", "study", "rows"), [
    ("yelp-he", yelp, "ablation", 11),
    ("gowalla", gowalla, "neighbours", 4),
])  # fmt: skip
def test_supplied_files_give_tables_and_figures(
    dataset: str, write: Any, study: str, rows: int, tmp_path: Path
) -> None:
    write(tmp_path)
    assert reproduce(tmp_path, study, "--dataset", dataset, "--seeds", "1", "--budget", "quick") == 0
    for kind in ("csv", "md", "tex", "png", "svg"):
        assert (tmp_path / "results" / study / f"{dataset}.{kind}").stat().st_size > 0
    lines = (tmp_path / "results" / "journal" / f"{dataset}.jsonl").read_text().splitlines()
    assert len(lines) == rows
    assert {json.loads(line)["dataset"] for line in lines} == {dataset}


def test_the_table_of_yelp_has_both_parts_and_every_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yelp(tmp_path)
    assert reproduce(tmp_path, "table", "--dataset", "yelp-he", "--seeds", "1") == 0
    out, err = capsys.readouterr()
    assert "yelp-he-time.csv" in out
    assert "note: bpr: not tuned: defaults" in err
    folder = tmp_path / "results" / "table"
    for part in ("yelp-he", "yelp-he-time"):
        rows = list(csv.DictReader((folder / f"{part}.csv").read_text().splitlines()))
        assert list(rows[0]) == ["model", "protocol", "metric", "mean", "std", "seeds"]
        models = list(dict.fromkeys(row["model"] for row in rows))
        assert models == [model for model in TITLES if part == "yelp-he-time" or model not in SEQUENTIAL]
        assert models[-4:] == ["hdccf", "bpr-calibrated", "ssm-calibrated", "hdccf-calibrated"]
        assert {row["protocol"] for row in rows} == {"sampled", "popular", "full"}
        assert {row["metric"] for row in rows} == {"hr@10", "ndcg@10", "ndcg@50"}
        assert (folder / f"{part}.md").exists()
        assert (folder / f"{part}.tex").exists()
    assert "validation item given" in (folder / "yelp-he-time.md").read_text()
    given = list(csv.DictReader((folder / "yelp-he-time-given.csv").read_text().splitlines()))
    assert {row["model"] for row in given} == {"sasrec", "hdccf", "hdccf-calibrated"}


def test_gowalla_m1_is_trained_on_both_parts_and_has_no_time(tmp_path: Path) -> None:
    gowalla_m1(tmp_path)
    assert reproduce(tmp_path, "table", "--dataset", "gowalla-m1", "--seeds", "1") == 0
    folder = tmp_path / "results" / "table"
    assert not (folder / "gowalla-m1-time.csv").exists()
    rows = list(csv.DictReader((folder / "gowalla-m1.csv").read_text().splitlines()))
    assert {(row["protocol"], row["metric"]) for row in rows} == {("full", "recall@20"), ("full", "ndcg@20")}
    lines = (tmp_path / "results" / "journal" / "gowalla-m1.jsonl").read_text().splitlines()
    assert all(json.loads(line)["retrain"] for line in lines)
    assert task_of("gowalla-m1").fixed == {"embedding_dim": 64}


def test_an_unknown_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(tmp_path, "tables", "--dataset", "yelp-he") == 2
    err = capsys.readouterr().err
    assert err.startswith("error: study='tables' is unknown; choose one of ['table', ")
    assert err.count("\n") == 1


def test_tune_from_files_to_settings_that_the_table_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    yelp(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("tune", "--model=ease", "--dataset=yelp-he", "--trials=3", "--minutes=5", "--from=.") == 0
    out = capsys.readouterr().out
    assert out.startswith("results/tuned/yelp-he/ease.toml: sampled:ndcg@10 0.")
    assert "after 3 of 3 trials and 0." in out
    assert (tmp_path / "results/studies/yelp-he/ease.jsonl").exists()
    assert (tmp_path / "results/studies/yelp-he/ease-history.svg").exists()
    plan = Plan("yelp-he", PAPER, tmp_path / "results")
    settings, origin = plan.tuned("ease", False)
    assert settings["l2"] > 0
    assert origin.startswith("tuned: 3 of 3 trials, ")

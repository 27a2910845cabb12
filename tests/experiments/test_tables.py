"""Tables and figures of records: marks, margins, p-values, every file, and the same bits twice."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from records import METRICS, PROTOCOLS, evaluated, journal_of

from hdccf.errors import EvaluationError
from hdccf.evaluation.compare import compare, on_common_seeds, read_per_user
from hdccf.evaluation.evaluation import Evaluation
from hdccf.experiments.figures import BINS, described, draw_bars, draw_densities, draw_sweeps, panels_of
from hdccf.experiments.plans import PUBLISHED, Row, task_of
from hdccf.experiments.reproduce import Journal
from hdccf.experiments.tables import (
    Cell,
    Outcome,
    Record,
    Results,
    cells_of,
    comparison_csv,
    comparison_latex,
    comparison_markdown,
    latex,
    provenance,
    title_of,
    write_study,
    write_table,
)

ROWS = [
    Row("bpr", model="bpr", seeds=2, origin="tuned"),
    Row("ease", model="ease", seeds=1),
    Row("hdccf", seeds=2),
]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl", tmp_path / "per-user")


def results(journal: Journal, levels: dict[str, float]) -> Results:
    outcome = journal_of(journal, ROWS, levels)
    return Results.of("small", ROWS, outcome, "hdccf reproduce table").compared(journal.evaluation)


def test_best_is_bold_second_underlined_and_our_margin_is_over_the_best_other(journal: Journal) -> None:
    found = results(journal, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    lines = comparison_markdown(found).splitlines()
    assert lines[2] == "|  | BPR | EASE | HDCCF (ours) | Imp. | p |"
    first = [cell.strip() for cell in lines[4].strip("|").split("|")]
    cells = found.cells
    question = ("sampled", "hr@10")
    assert first[0] == "sampled HR@10"
    assert first[2] == f"<u>{cells['ease'][question].mean:.4f}</u>"
    assert first[3].startswith(f"**{cells['hdccf'][question].mean:.4f}** ± ")
    margin = cells["hdccf"][question].mean / cells["ease"][question].mean - 1
    assert first[4] == f"{100 * margin:+.2f} %"
    assert margin > 0.05


def test_a_p_that_is_as_good_as_nothing_is_not_shown_as_nothing(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Results, "margin", lambda *_: (0.1, 0.0))
    found = results(journal, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    assert comparison_markdown(found).splitlines()[4].endswith("| < 1e-99 |")


def test_where_we_are_behind_the_margin_says_so(journal: Journal) -> None:
    found = results(journal, {"bpr": 0.30, "ease": 0.44, "hdccf": 0.40})
    question = ("full", "ndcg@50")
    assert found.ranking(question) == ["ease", "hdccf", "bpr"]
    margin, p = found.margin(question)
    assert (margin or 0) < -0.05
    assert (p or 1) < 0.01
    assert "$^*$" not in _latex_body(found)


def test_p_values_are_those_of_the_comparison_over_users(journal: Journal) -> None:
    levels = {"bpr": 0.30, "ease": 0.4395, "hdccf": 0.44}
    found = results(journal, levels)
    systems = {row.label: [evaluated(levels[row.label], seed) for seed in range(row.seeds)] for row in ROWS}
    expected = {
        (test.protocol, test.metric): test.holm_t
        for test in compare(systems, METRICS).tests
        if {test.best, test.other} == {"hdccf", "ease"}
    }
    assert {question: found.margin(question)[1] for question in found.measures} == pytest.approx(expected)


def test_the_file_of_values_by_user_gives_the_same_tests(journal: Journal, tmp_path: Path) -> None:
    found = results(journal, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.41})
    write_table(found, tmp_path / "table" / "small")
    kept = on_common_seeds(*read_per_user(tmp_path / "table" / "small.parquet"))
    again = compare(kept, METRICS)
    assert found.comparison is not None
    for mine, theirs in zip(found.comparison.tests, again.tests, strict=True):
        assert (mine.protocol, mine.metric, mine.other) == (theirs.protocol, theirs.metric, theirs.other)
        assert theirs.holm_t == pytest.approx(mine.holm_t, rel=1e-3, abs=1e-300)


@pytest.mark.parametrize("write", [write_table, write_study])
def test_values_by_user_beside_a_table_serve_where_the_machine_has_none(
    write: Callable[[Results, Path], None], journal: Journal, tmp_path: Path
) -> None:
    levels, stem = {"bpr": 0.30, "ease": 0.40, "hdccf": 0.41}, tmp_path / "table" / "small"
    found = results(journal, levels)
    write(found, stem)
    elsewhere = Journal(journal.path, tmp_path / "other machine")
    again = Results.of("small", ROWS, found.outcome, "command").compared(elsewhere.evaluation, stem)
    for measure in found.measures:
        assert again.margin(measure) == pytest.approx(found.margin(measure), rel=1e-3, abs=1e-300)
    # A row that was run again since has other values, which only its machine knows.
    changed = journal_of(Journal(tmp_path / "later.jsonl", tmp_path / "later"), ROWS, {**levels, "bpr": 0.31})
    found = Results.of("s", ROWS, changed, "command").compared(elsewhere.evaluation, stem)
    assert set(found.per_user) == {"ease", "hdccf"}


def test_a_file_that_holds_no_values_by_user_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pl.DataFrame({"user": [1]}).write_parquet(path)
    with pytest.raises(EvaluationError, match=r"other\.parquet holds no values by user .*; give one"):
        read_per_user(path)


def test_only_seeds_that_all_rows_have_are_tested_and_it_is_said(journal: Journal) -> None:
    rows = [replace(row, seeds={"bpr": 1, "ease": 1, "hdccf": 3}[row.label]) for row in ROWS]
    outcome = journal_of(journal, rows, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    found = Results.of("small", rows, outcome, "hdccf reproduce table").compared(journal.evaluation)
    assert found.comparison is not None
    seeds = {name: cell.seeds for name, cell in found.comparison.cells["full", "hr@10"].items()}
    assert seeds == {"bpr": 1, "ease": 1, "hdccf": 1}
    assert found.cells["hdccf"]["full", "hr@10"].seeds == 3
    said = "the seeds 0, which all tested rows have (the means of HDCCF (ours) are over more); EASE is"
    assert said in comparison_markdown(found)


def test_a_row_that_was_explored_more_is_named(journal: Journal) -> None:
    outcome = journal_of(journal, ROWS, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44}, dataset="ml-1m")
    text = comparison_markdown(Results.of("ml-1m", ROWS, outcome, "hdccf reproduce table"))
    assert "HDCCF's defaults, presets and search space were developed on ML-100K" in text


def test_a_row_without_values_by_user_is_named_and_the_others_are_tested(
    journal: Journal, tmp_path: Path
) -> None:
    outcome = journal_of(journal, ROWS, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})

    def known(record: Record) -> Evaluation | None:
        return None if record["model"] == "bpr" else journal.evaluation(record)

    found = Results.of("small", ROWS, outcome, "command").compared(known)
    assert found.margin(("full", "ndcg@10"))[1] is not None
    assert "values by user are not known of BPR, which are not tested" in comparison_markdown(found)
    write_table(found, tmp_path / "small")
    assert set(read_per_user(tmp_path / "small.parquet")[0]) == {"ease", "hdccf"}


def test_our_calibrated_row_is_the_one_that_is_compared(journal: Journal) -> None:
    calibrated = Row("bpr-calibrated", model="bpr", seeds=2, calibrated=True)
    rows = [*ROWS, calibrated, Row("hdccf-calibrated", seeds=2, calibrated=True)]
    levels = {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44, "bpr-calibrated": 0.42, "hdccf-calibrated": 0.45}
    outcome = journal_of(journal, rows, levels)
    found = Results.of("small", rows, outcome, "command").compared(journal.evaluation)
    for measure in found.measures:
        margin, p = found.margin(measure)
        ours, best = found.cells["hdccf-calibrated"][measure], found.cells["bpr-calibrated"][measure]
        assert margin == pytest.approx(ours.mean / best.mean - 1)
        assert p is not None
    assert "Imp. is HDCCF, calibrated over the best competitor" in comparison_markdown(found)


def test_published_figures_stand_below_the_table_of_a_public_split(journal: Journal) -> None:
    task = task_of("gowalla-m1")
    outcome = journal_of(journal, ROWS, {"bpr": 0.1, "ease": 0.1, "hdccf": 0.1}, dataset="gowalla-m1")
    text = comparison_markdown(Results.of("gowalla-m1", ROWS, outcome, "hdccf reproduce table"))
    assert "## Published by others on this split, not run here" in text
    assert "| NESCL (Sun et al. 2024) | 0.1917 | 0.1617 |" in text
    assert all(len(values) == len(task.metrics) for values in PUBLISHED["gowalla-m1"].values())


def test_without_values_by_user_there_are_means_and_no_p(journal: Journal, tmp_path: Path) -> None:
    outcome = journal_of(journal, ROWS, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    elsewhere = Journal(journal.path, tmp_path / "other machine")
    found = Results.of("small", ROWS, outcome, "command").compared(elsewhere.evaluation)
    assert found.comparison is None
    assert "| – |" in comparison_markdown(found)
    assert "values by user are not on this machine" in comparison_markdown(found)


def test_the_csv_has_the_promised_columns_and_every_cell(journal: Journal) -> None:
    found = results(journal, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    text = comparison_csv(found.cells)
    assert text.startswith("model,protocol,metric,mean,std,seeds\n")
    rows = list(csv.DictReader(io.StringIO(text)))
    asked = [(row["model"], row["protocol"], row["metric"]) for row in rows]
    assert asked == [(r.label, p, m) for r in ROWS for p in PROTOCOLS for m in METRICS]
    by_model = {row["model"]: row for row in rows if row["metric"] == "ndcg@50"}
    assert (by_model["hdccf"]["seeds"], by_model["ease"]["seeds"]) == ("2", "1")
    # What is solved without chance has no deviation; that of one seed of another would be unknown.
    assert float(by_model["ease"]["std"]) == 0.0
    values = [evaluated(0.44, seed).values["full"]["ndcg@50"] for seed in (0, 1)]
    assert float(by_model["hdccf"]["mean"]) == pytest.approx(np.mean(values))
    assert float(by_model["hdccf"]["std"]) == pytest.approx(np.std(values, ddof=1))
    one = cells_of(found.outcome.records["hdccf"][:1])
    assert one["full", "ndcg@50"].std is None
    assert str(Cell(0.12345, 0.001, 3)) == "0.1235 ± 0.0010"
    assert str(Cell(0.12345, None, 1)) == "0.1235"


def test_a_row_that_could_not_be_run_is_left_out_and_told(journal: Journal, tmp_path: Path) -> None:
    outcome = journal_of(journal, ROWS, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    records = {**outcome.records, "ease": []}
    failed = Outcome(records, {"ease": "too many items"})
    found = Results.of("s", ROWS, failed, "command").compared(journal.evaluation)
    assert [row.label for row in found.rows] == ["bpr", "hdccf"]
    assert "- ease: too many items" in comparison_markdown(found)
    assert ",ease," not in comparison_csv(found.cells)


def test_numbers_name_the_split_and_the_commit_they_come_from() -> None:
    facts = {"commit": "abc", "machine": "two cores", "split": "5f", "source": "a wheel"}
    records = [{**facts, "seed": seed} for seed in (1, 0)]
    found = provenance(Outcome({"EASE": records}, {}), "hdccf reproduce table")
    assert found == "`hdccf reproduce table`; data: a wheel; split 5f; seeds 0, 1; commit abc; two cores."


def _latex_body(found: Results) -> str:
    return comparison_latex(found, "x").partition(r"\caption")[0]


def test_an_ablation_has_each_row_s_p_against_the_paper_s_model(journal: Journal, tmp_path: Path) -> None:
    rows = [
        Row(label, {"temperature": t}, seeds=2) for label, t in (("wo-i", 0.3), ("paper", 0.4), ("ours", 0.5))
    ]
    outcome = journal_of(journal, rows, {"wo-i": 0.300, "paper": 0.3005, "ours": 0.5})
    found = Results.of("small", rows, outcome, "hdccf reproduce ablation").compared(journal.evaluation)
    write_study(found, tmp_path / "small")
    lines = list(csv.DictReader((tmp_path / "small.csv").read_text().splitlines()))
    p = {line["row"]: float(line["mean"]) for line in lines if line["metric"] == "p, full NDCG@10"}
    assert p["wo-i"] > 0.01 > 1e-20 > p["ours"]
    assert np.isnan(p["paper"])
    assert "p is of a row against paper" in (tmp_path / "small.md").read_text()


def test_an_ablation_s_row_without_values_by_user_has_no_p(journal: Journal, tmp_path: Path) -> None:
    rows = [Row(label, {"temperature": t}, seeds=2) for label, t in (("wo-i", 0.3), ("paper", 0.4))]
    more = [*rows, Row("ours", {"temperature": 0.5}, seeds=2)]
    outcome = journal_of(journal, more, {"wo-i": 0.300, "paper": 0.3005, "ours": 0.5})

    def known(record: Record) -> Evaluation | None:
        return None if record["settings"]["temperature"] == 0.5 else journal.evaluation(record)

    p = []
    for asked in (rows, more):
        write_study(Results.of("s", asked, outcome, "command").compared(known), tmp_path / "s")
        lines = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
        p.append({line["row"]: float(line["mean"]) for line in lines if line["metric"] == "p, full NDCG@10"})
    assert p[0]["wo-i"] == p[1]["wo-i"]
    assert np.isnan(p[1]["ours"])


def test_an_ablation_has_a_table_of_diagnostics_for_the_seeds_that_have_them(
    journal: Journal, tmp_path: Path
) -> None:
    rows = [
        Row(label, {"temperature": t}, seeds=2, diagnostics=True)
        for label, t in (("wo-i", 0.3), ("bpr-plus", 0.35), ("paper", 0.4))
    ]
    outcome = journal_of(journal, rows, {"wo-i": 0.3, "bpr-plus": 0.2, "paper": 0.31})
    for record in (*outcome.records["wo-i"], *outcome.records["paper"]):
        record["terms"] = {"clipped-items": 0.0, "clipped-users": 0.25, "user-item": 6.2}
    shares = {"uniform-on-false-negatives": 0.002, "on-training-items": 0.0}
    first, second = outcome.records["paper"]
    first["diagnostics"] = {
        "modulation": 0.9,
        "modulation-spread": 0.02,
        "on-false-negatives": 0.004,
        **shares,
    }
    second["diagnostics"] = {
        "modulation": 0.8,
        "modulation-spread": 0.04,
        "on-false-negatives": 0.01,
        **shares,
    }
    found = Results.of("Title", rows, outcome, "command")
    write_study(found, tmp_path / "x")
    text = (tmp_path / "x.md").read_text()
    accuracy, _, below = text.partition("## Diagnostics\n\n")
    assert "clip" not in accuracy
    lines = below.splitlines()
    assert lines[0] == (
        "|  | clip rate, items | clip rate, users | mean of m | spread of m | gradient on false negatives "
        "| if uniform | ratio | gradient on training items | seeds |"
    )
    # A run of earlier code has clip rates only; BPR has not even these.
    assert lines[2:5] == [
        "| wo-i | 0 | 0.25 | – | – | – | – | – | – | 2 |",
        "| bpr-plus | – | – | – | – | – | – | – | – | – |",
        "| paper | 0 | 0.25 | 0.85 ± 0.071 | 0.03 ± 0.014 | 0.007 ± 0.0042 | 0.002 | 3.5 ± 2.1 | 0 | 2 |",
    ]
    table = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    spread = [line for line in table if line["metric"] == "modulation-spread"]
    assert [(line["row"], line["protocol"], line["seeds"]) for line in spread] == [("paper", "", "2")]
    assert float(spread[0]["std"]) == pytest.approx(np.std([0.02, 0.04], ddof=1))
    assert "Title: diagnostics" in (tmp_path / "x.tex").read_text()
    del second["diagnostics"]
    write_study(found, tmp_path / "x")
    assert (
        "| paper | 0 | 0.25 | 0.9 | 0.02 | 0.004 | 0.002 | 2 | 0 | 1, 2 |" in (tmp_path / "x.md").read_text()
    )


def test_without_any_diagnostics_there_is_no_such_table(journal: Journal, tmp_path: Path) -> None:
    rows = [Row("paper", diagnostics=True), Row("ours", {"temperature": 0.2}, diagnostics=True)]
    _, text, _ = study(journal, tmp_path, rows)
    assert "Diagnostics" not in text


def test_latex_is_in_the_paper_s_form(journal: Journal, tmp_path: Path) -> None:
    found = results(journal, {"bpr": 0.30, "ease": 0.40, "hdccf": 0.44})
    write_table(found, tmp_path / "table" / "small")
    files = sorted(file.name for file in (tmp_path / "table").iterdir())
    assert files == ["small.csv", "small.md", "small.parquet", "small.tex"]
    text = (tmp_path / "table" / "small.tex").read_text()
    assert r"Metrics & BPR & EASE & HDCCF (ours) & \textit{Imp.} \\" in text
    line = next(line for line in text.splitlines() if line.startswith("sampled HR@10"))
    assert line.count("&") == 4
    assert r"\underline{0.4" in line
    assert r"\textbf{0.4" in line
    assert r"{\tiny$\pm$0." in line
    assert line.endswith(r"\%$^*$ \\")
    assert line.count("{") == line.count("}")
    assert latex("wo_i & 50 % ± τ") == r"wo\_i \& 50 \% $\pm$ $\tau$"
    assert title_of(("full", "recall@20")) == "full Recall@20"


# -- other studies -------------------------------------------------------------------------------------------


def study(journal: Journal, folder: Path, rows: list[Row], **more: Any) -> tuple[Results, str, str]:
    """Made-up runs, and the text of the tables that they are written as."""
    levels = {row.label: 0.4 - abs((row.x or 0.1) - 0.1) for row in rows}
    found = Results.of("Title", rows, journal_of(journal, rows, levels, **more), "command")
    write_study(found, folder / "small")
    return found, (folder / "small.md").read_text(), (folder / "small.csv").read_text()


def test_bars_are_drawn_twice_alike(journal: Journal, tmp_path: Path) -> None:
    rows = [Row("paper", seeds=2), Row("ours", {"temperature": 0.2}, seeds=2)]
    found, text, _ = study(journal, tmp_path, rows)
    assert panels_of(found.measures) == [("sampled", "hr@10"), ("sampled", "ndcg@10"), ("full", "ndcg@10")]
    for turn in "ab":
        draw_bars(found, tmp_path / turn / "x")
    for kind in ("png", "svg"):
        first, second = ((tmp_path / turn / f"x.{kind}").read_bytes() for turn in "ab")
        assert len(first) > 2000
        assert first == second
    assert b"paper" in first
    assert b"full NDCG@10" in first
    lines = text.splitlines()
    assert lines[2].startswith("|  | sampled HR@10 | sampled NDCG@10 |")
    assert lines[4].startswith(f"| paper | {found.cells['paper']['sampled', 'hr@10']} |")


def test_sweeps_have_bands_a_dotted_best_and_the_clip_rate(journal: Journal, tmp_path: Path) -> None:
    rows = [
        Row(f"{name}={x}", {name: x}, curve=name, x=x, seeds=2)
        for name in ("omega_items", "omega_users")
        for x in (0.0, 0.1, 0.2)
    ]
    terms = {"clipped-items": 0.25, "clipped-users": 0.5}
    found, text, table = study(journal, tmp_path, rows, terms=terms)
    draw_sweeps(found, tmp_path / "x")
    assert (tmp_path / "x.png").stat().st_size > 2000
    assert b"clip rate" in (tmp_path / "x.svg").read_bytes()
    assert table.startswith("row,setting,value,protocol,metric,mean,std,seeds\n")
    assert "omega_items=0.1,omega_items,0.1,,clipped-items,0.25,nan,2\n" in table
    assert "| 0.250 | 0.500 |" in text


def test_densities_are_drawn_with_the_width_of_the_overlap(journal: Journal, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    apart = described(rng.normal(3, 1, 500), rng.normal(0, 1, 5000))
    rows = [Row("modulated", seeds=1, densities=True), Row("unmodulated", {"init_std": 0.2}, densities=True)]
    found, text, _ = study(journal, tmp_path, rows, densities=apart)
    draw_densities(found, tmp_path / "x")
    assert (tmp_path / "x.png").stat().st_size > 2000
    assert f"overlap {apart['width']:.1f} wide".encode() in (tmp_path / "x.svg").read_bytes()
    assert f"| {apart['width']:.3f} | {apart['shared_area']:.3f} |" in text


def test_densities_of_known_scores() -> None:
    same = described(np.arange(101.0), np.arange(101.0))
    assert same["shared_area"] == pytest.approx(1.0, abs=1e-3)
    assert same["interval"] == [1.0, 99.0]  # between the hundredths at the ends
    assert same["width"] == 98.0
    apart = described(np.linspace(5, 6, 200), np.linspace(-4, -3, 300))
    assert (apart["shared_area"], apart["width"]) == (0.0, 0.0)
    for side in ("positive", "negative"):
        assert sum(apart["bins"][side]) * 100 / BINS == pytest.approx(1.0, abs=1e-4)
    # Scaled: the lowest of both is 0, the highest 100, whatever the unit.
    assert described(1e3 * np.linspace(5, 6, 200) - 7, 1e3 * np.linspace(-4, -3, 300) - 7) == apart
    constant = described(np.ones(5), np.ones(7))
    assert constant["shared_area"] == 1.0

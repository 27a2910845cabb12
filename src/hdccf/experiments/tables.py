"""Tables of records as CSV, Markdown and LaTeX: the comparison of models, and other studies."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from hdccf.evaluation.compare import (
    LEVEL,
    BySeed,
    Comparison,
    averaged_over_seeds,
    compare,
    on_common_seeds,
    read_per_user,
    write_per_user,
)
from hdccf.evaluation.evaluation import Evaluation, markdown_table
from hdccf.evaluation.significance import holm, paired_tests
from hdccf.experiments.plans import (
    EXPLORED,
    FORMS,
    OURS,
    PUBLISHED,
    SEEDLESS,
    TITLES,
    Row,
    model_of,
)
from hdccf.files import atomic_file

Record = dict[str, Any]
"""A finished run, as a line of the journal has it."""
Measure = tuple[str, str]
"""Protocol and metric."""
CSV_HEAD = ("model", "protocol", "metric", "mean", "std", "seeds")
PRINTED = "paper"
"""The row that an ablation's others are compared with."""
_OURS = ("hdccf-calibrated", OURS)
_LEAST_SHOWN = 0.0005
_LEAST_P = 1e-99
"""Smaller p-values are shown as below this."""


@dataclass(frozen=True)
class Outcome:
    """The results of a study's rows."""

    records: dict[str, list[Record]]
    """By label; a row that could not be run has none."""
    failures: dict[str, str]
    """Label → why."""


@dataclass(frozen=True)
class Cell:
    """One row on one metric."""

    mean: float
    std: float | None
    """Over seeds; None with one, unless its model does not depend on the seed."""
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if not self.std else f" ± {self.std:.4f}")


Cells = dict[str, dict[Measure, Cell]]
"""By label and measure."""


def cells_of(
    records: Sequence[Record], *, seedless: bool = False, key: str = "values"
) -> dict[Measure, Cell]:
    """The cells of one row's records, a record a seed."""
    tables = [record[key] for record in records]
    found = {}
    for protocol, metrics in tables[0].items() if tables else ():
        for metric in metrics:
            values = [table[protocol][metric] for table in tables]
            std = stdev(values) if len(values) > 1 else 0.0 if seedless else None
            found[protocol, metric] = Cell(mean(values), std, len(values))
    return found


def title_of(measure: Measure) -> str:
    """ "sampled HR@10"."""
    protocol, metric = measure
    return f"{protocol} {metric.upper() if metric[0] != 'r' else metric.capitalize()}"


def clip_rates(rows: Sequence[Row], records: dict[str, list[Record]], term: str) -> list[float]:
    """Mean over seeds of a loss term at the best epoch."""
    return [mean(record.get("terms", {}).get(term, 0.0) for record in records[row.label]) for row in rows]


# -- files ---------------------------------------------------------------------------------------------------

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "_": r"\_",
        "#": r"\#",
        "±": r"$\pm$",
        "ω": r"$\omega$",
        "τ": r"$\tau$",
        "−": "$-$",
    }
)


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return text.translate(_LATEX)


def latex_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, label: str) -> str:
    """Cells are LaTeX already; needs booktabs and graphicx, as the paper's do."""
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        r"\resizebox{\linewidth}{!}{",
        rf"\begin{{tabular}}{{l|{'c' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def csv_text(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers in full, so that a table is also data; an unknown one is nan."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([["nan" if value is None else value for value in row] for row in rows])
    return file.getvalue()


def write_files(stem: Path, **texts: str) -> None:
    """`stem`.csv, .md, .tex and so on, each with its text."""
    for kind, text in texts.items():
        with atomic_file(stem.with_name(f"{stem.name}.{kind}")) as temporary:
            temporary.write_text(text, encoding="utf-8")


def provenance(outcome: Outcome, command: str) -> str:
    """Which command, split, seeds, commits and machines the numbers come from."""
    records = [record for rows in outcome.records.values() for record in rows]
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    machines = "; ".join(dict.fromkeys(record["machine"] for record in records))
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in records}))
    splits = ", ".join(dict.fromkeys(record["split"] for record in records))
    sources = "; ".join(dict.fromkeys(record.get("source") or "not recorded" for record in records))
    return f"`{command}`; data: {sources}; split {splits}; seeds {seeds}; commit {commits}; {machines}."


# -- the comparison of models --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Results:
    """What the tables and figures of a study are made of."""

    title: str
    rows: list[Row]
    """Those that have records."""
    outcome: Outcome
    cells: Cells
    command: str
    comparison: Comparison | None = None
    """Tests over users; None where values by user are missing."""
    per_user: Mapping[str, BySeed] = field(default_factory=dict)
    """What was tested, by label and seed."""

    @classmethod
    def of(cls, title: str, rows: list[Row], outcome: Outcome, command: str) -> "Results":
        """The results of a study's rows, without tests over users."""
        present = [row for row in rows if outcome.records[row.label]]
        cells = {
            row.label: cells_of(outcome.records[row.label], seedless=row.model in SEEDLESS) for row in present
        }
        return cls(title, present, outcome, cells, command)

    def compared(
        self, evaluation: Callable[[Record], Evaluation | None], stem: Path | None = None
    ) -> "Results":
        """With tests over users, of the rows whose values by user are known.

        `evaluation` gives a record's values by user, where this machine has them; others are those that
        `write_table` or `write_study` kept at `stem`.
        """
        kept = {} if stem is None else _kept(stem)
        records = {row.label: self.outcome.records[row.label] for row in self.rows}
        systems: dict[str, dict[int, Evaluation]] = {}
        for label, each in records.items():
            for record in each:
                found = evaluation(record) or kept.get(label, {}).get(record["seed"])
                if found is not None and _agree(found, record):
                    systems.setdefault(label, {})[record["seed"]] = found
        if len(systems) < 2:
            return self
        names = records[self.rows[0].label][0]["metrics"]
        tested = compare(on_common_seeds(systems, self.seedless), names)
        return replace(self, comparison=tested, per_user=systems)

    @property
    def seedless(self) -> list[str]:
        """Rows whose model does not depend on the seed."""
        return [row.label for row in self.rows if row.model in SEEDLESS]

    def seeds_tested(self) -> str:
        """Which seeds the tests are over, and which rows have others."""
        seeded = {label: set(runs) for label, runs in self.per_user.items() if label not in self.seedless}
        common = set.intersection(*seeded.values()) if seeded else set()
        more = [TITLES[label] for label, seeds in seeded.items() if seeds != common]
        words = f"Tests are over the seeds {', '.join(map(str, sorted(common)))}, which all tested rows have"
        if more:
            words += f" (the means of {', '.join(more)} are over more)"
        if self.seedless:
            solved = " and ".join(TITLES[label] for label in self.seedless)
            words += f"; {solved} {'is' if len(self.seedless) == 1 else 'are'} the same with every seed"
        untested = [TITLES[row.label] for row in self.rows if row.label not in self.per_user]
        if untested:
            words += f"; values by user are not known of {', '.join(untested)}, which are not tested"
        return f"{words}."

    @property
    def measures(self) -> list[Measure]:
        """Protocols and metrics, in the order of the table."""
        return list(self.cells[self.rows[0].label]) if self.rows else []

    @property
    def ours(self) -> str:
        """The row that is compared with the best competitor."""
        return next((label for label in _OURS if label in self.cells), OURS)

    def ranking(self, measure: Measure) -> list[str]:
        """Models, best first."""
        return sorted((row.label for row in self.rows), key=lambda label: -self.cells[label][measure].mean)

    def margin(self, measure: Measure) -> tuple[float | None, float | None]:
        """Our relative improvement over the best competitor, and its p-value; None where one is unknown.

        The p-value is that of a paired t-test over users, Holm-corrected over the whole table.
        """
        others = [label for label in self.ranking(measure) if model_of(label) != OURS]
        ours = self.ours
        if ours not in self.cells or not others:
            return None, None
        best = self.cells[others[0]][measure].mean
        tests = self.comparison.tests if self.comparison else []
        found = (
            test.holm_t
            for test in tests
            if (test.protocol, test.metric) == measure and {test.best, test.other} == {ours, others[0]}
        )
        return self.cells[ours][measure].mean / best - 1 if best else None, next(found, None)

    def marked(self, measure: Measure, bold: tuple[str, str], underlined: tuple[str, str]) -> list[str]:
        """The cells of a line: the best bold, the second underlined, the deviation behind."""
        best, second = (*self.ranking(measure), "", "")[:2]
        marks = {second: underlined, best: bold}
        texts = []
        for row in self.rows:
            before, after = marks.get(row.label, ("", ""))
            value, *deviation = str(self.cells[row.label][measure]).split(" ", 1)
            texts.append(" ".join((f"{before}{value}{after}", *deviation)))
        return texts

    def given(self) -> Cells:
        """Ours with the validation items given when testing; nothing where that was not asked."""
        records = {row.label: self.outcome.records[row.label] for row in self.rows if row.given}
        return {
            label: cells_of(each, key="given")
            for label, each in records.items()
            if all("given" in one for one in each)
        }


def _kept(stem: Path) -> dict[str, dict[int, Evaluation]]:
    """The values by user that lie beside a table, by label and seed; none where there is no such file."""
    path = stem.with_name(f"{stem.name}.parquet")
    return read_per_user(path)[0] if path.exists() else {}


def _keep(results: Results, stem: Path) -> None:
    """Writes what the tests are of."""
    if results.per_user:
        write_per_user(stem.with_name(f"{stem.name}.parquet"), results.per_user, results.seedless)


def _agree(evaluation: Evaluation, record: Record) -> bool:
    """Whether values by user have the means of a record: those of an earlier run of the row do not."""
    return all(
        math.isclose(evaluation.values[protocol][metric], value, abs_tol=1e-5)
        for protocol, metrics in record["values"].items()
        for metric, value in metrics.items()
    )


def write_table(results: Results, stem: Path) -> None:
    """`stem`.csv, .md and .tex, with tests the values by user as .parquet, and if asked `stem`-given.csv."""
    markdown, tex = comparison_markdown(results), comparison_latex(results, stem.name)
    write_files(stem, csv=comparison_csv(results.cells), md=markdown, tex=tex)
    _keep(results, stem)
    given = results.given()
    if given:
        # A file of its own: it answers another question than the table's rows.
        write_files(stem.with_name(f"{stem.name}-given"), csv=comparison_csv(given))


def comparison_csv(cells: Cells) -> str:
    """A line for each model, protocol and metric."""
    rows = [
        (label, *measure, cell.mean, cell.std, cell.seeds)
        for label, row in cells.items()
        for measure, cell in row.items()
    ]
    return csv_text(CSV_HEAD, rows)


def comparison_markdown(results: Results) -> str:
    """The table with its legend, settings and provenance."""
    rows = []
    for measure in results.measures:
        margin, p = results.margin(measure)
        shown = "–" if p is None else f"{p:.2g}" if p >= _LEAST_P else f"< {_LEAST_P:.0e}"
        tail = ["–" if margin is None else f"{100 * margin:+.2f} %", shown]
        rows.append([title_of(measure), *results.marked(measure, ("**", "**"), ("<u>", "</u>")), *tail])
    tested = (
        f"p is of {TITLES[results.ours]} against the best competitor: paired t over "
        f"{results.comparison.users:,} users, averaged over seeds, Holm-corrected over all tests of the best "
        f"against another; the paper has p < {LEVEL}. "
        f"{results.seeds_tested()} `hdccf compare` of the .parquet beside this file makes the tests again."
        if results.comparison
        else "p is not known here: the values by user are not on this machine."
    )
    parts = [
        f"# {results.title}",
        markdown_table(["", *(TITLES[row.label] for row in results.rows), "Imp.", "p"], rows),
        "Mean ± deviation over seeds; best bold, second underlined; Imp. is "
        f"{TITLES[results.ours]} over the best competitor. `sampled`: 99 uniform candidates; `popular`: 99 "
        "drawn by popularity; `full`: all items. " + tested,
        FORMS,
        "## Settings",
        _settings(results),
    ]
    records = [record for rows in results.outcome.records.values() for record in rows]
    for name in dict.fromkeys(record["dataset"] for record in records):
        if name in PUBLISHED:
            lines = [
                [title, *(f"{value:.4f}" for value in values)] for title, values in PUBLISHED[name].items()
            ]
            table = markdown_table(["", *map(title_of, results.measures)], lines)
            parts += ["## Published by others on this split, not run here", table]
    parts += [EXPLORED[name] for name in {record["dataset"] for record in records} if name in EXPLORED]
    if results.outcome.failures:
        left_out = [f"- {label}: {why}" for label, why in results.outcome.failures.items()]
        parts += ["## Left out", "\n".join(left_out)]
    given = results.given()
    if given:
        parts += [
            "## HDCCF with the validation item given when testing",
            "As SASRec's published figures are: trained alike, but a user's history ends with the validation "
            "item. Not comparable with the table above.",
            markdown_table(
                ["", *(TITLES[label] for label in given)],
                [[title_of(m), *(str(cells[m]) for cells in given.values())] for m in results.measures],
            ),
        ]
    return "\n\n".join([*parts, provenance(results.outcome, results.command)]) + "\n"


def _settings(results: Results) -> str:
    """Where each model's settings come from, its seeds, epochs and seconds."""
    head = ["model", "settings", "seeds", "epoch", "training seconds"]
    rows = []
    for row in results.rows:
        records = results.outcome.records[row.label]
        epochs = ", ".join(str(record.get("best_epoch", "–")) for record in records)
        seconds = mean(record["seconds"] for record in records)
        rows.append([TITLES[row.label], row.origin, str(len(records)), epochs, f"{seconds:.0f}"])
    return markdown_table(head, rows)


def comparison_latex(results: Results, name: str) -> str:
    """The table in the paper's form."""
    head = ["Metrics", *(latex(TITLES[row.label]) for row in results.rows), r"\textit{Imp.}"]
    rows = []
    for measure in results.measures:
        marked = results.marked(measure, (r"\textbf{", "}"), (r"\underline{", "}"))
        margin, p = results.margin(measure)
        shown = "--" if margin is None else rf"{100 * margin:.2f}\%"
        star = "$^*$" if p is not None and p < LEVEL and (margin or 0) > 0 else ""
        cells = [text.replace(" ± ", r"{\tiny$\pm$") + ("}" if "±" in text else "") for text in marked]
        rows.append([latex(title_of(measure)), *cells, shown + star])
    caption = (
        f"{latex(results.title)}. The bold value marks the best one in one row, the underlined one the "
        rf"second. $^*$ HDCCF is better than the best competitor with corrected $p < {LEVEL}$."
    )
    return latex_table(head, rows, caption=caption, label=f"tab:{name}")


# -- other studies -------------------------------------------------------------------------------------------


def write_study(results: Results, stem: Path) -> None:
    """`stem`.csv, .md and .tex of a study that is no comparison of models, and the values by user."""
    _keep(results, stem)
    rows, cells, outcome = results.rows, results.cells, results.outcome
    extra = {**_extra_columns(rows, outcome), **_against_paper(results)}
    columns = ["", *map(title_of, results.measures), *extra]
    lines: list[tuple[object, ...]] = []
    texts = [[row.label, *(str(cell) for cell in cells[row.label].values())] for row in rows]
    for row in rows:
        for measure, cell in cells[row.label].items():
            lines.append((row.label, row.curve, row.x, *measure, cell.mean, cell.std, cell.seeds))
    for name, values in extra.items():
        for row, text, value in zip(rows, texts, values, strict=True):
            seeds = len(outcome.records[row.label])
            lines.append((row.label, row.curve, row.x, "", name, value, None, seeds))
            text.append(
                "–" if math.isnan(value) else f"{value:.3f}" if value >= _LEAST_SHOWN else f"{value:.0e}"
            )
    diagnosed = {row.label: _diagnosed(outcome.records[row.label]) for row in rows if row.diagnostics}
    for label, found in diagnosed.items():
        lines += [(label, "", None, "", name, *astuple(cell)) for name, cell in found.items()]
    diagnostics = _diagnostics_table(diagnosed)
    failures = "\n".join(f"- left out: {label}: {why}" for label, why in outcome.failures.items())
    origins = "\n".join(f"- {row.label}: {row.origin}" for row in rows if row.origin)
    parts = [f"# {results.title}", markdown_table(columns, texts), origins, failures]
    tested = (
        f" p is of a row against {PRINTED}: paired t over users, Holm-corrected." if results.per_user else ""
    )
    parts += [
        f"Mean ± deviation over seeds.{tested if PRINTED in cells else ''}",
        *(("## Diagnostics", markdown_table(*diagnostics), DIAGNOSTICS) if diagnostics else ()),
        provenance(outcome, results.command),
    ]
    write_files(
        stem,
        csv=csv_text(("row", "setting", "value", *CSV_HEAD[1:]), lines),
        md="\n\n".join(part for part in parts if part) + "\n",
        tex=_latex_study(columns, texts, results.title, stem)
        + (_latex_study(*diagnostics, f"{results.title}: diagnostics", stem, "-why") if diagnostics else ""),
    )


def _latex_study(
    head: Sequence[str], rows: Sequence[Sequence[str]], title: str, stem: Path, part: str = ""
) -> str:
    return latex_table(
        [latex(text) for text in head],
        [[latex(text) for text in line] for line in rows],
        caption=latex(title),
        label=f"tab:{stem.parent.name}-{stem.name}{part}",
    )


_DIAGNOSTICS = {
    "clipped-items": "clip rate, items",
    "clipped-users": "clip rate, users",
    "modulation": "mean of m",
    "modulation-spread": "spread of m",
    "on-false-negatives": "gradient on false negatives",
    "uniform-on-false-negatives": "if uniform",
    "false-negative-ratio": "ratio",
    "on-training-items": "gradient on training items",
}
"""Name in the journal and in CSV → title."""
DIAGNOSTICS = (
    "Clip rate: positives at the lower bound, at the best epoch. Spread of m: deviation of the modulation "
    "(Eq. 8) over pairs of a user and an item, averaged over dimensions. Gradient: of the gradient that "
    "negatives get on a user's item side, the share on the known false negatives (the user's validation and "
    "test items), beside what they would get if all unobserved items got the same; and the share on the "
    "user's training items. Mean ± deviation over the seeds whose line in the journal has them; – where "
    "there is nothing to measure."
)
"""What a table of diagnostics shows, in words."""


def _diagnosed(records: Sequence[Record]) -> dict[str, Cell]:
    """The diagnostics of a row, over the seeds that have them: runs of earlier code have clip rates only."""
    found: dict[str, list[float]] = {}
    for record in records:
        each = {**record.get("terms", {}), **record.get("diagnostics", {})}
        if "on-false-negatives" in each:
            each["false-negative-ratio"] = each["on-false-negatives"] / each["uniform-on-false-negatives"]
        for name in each.keys() & _DIAGNOSTICS.keys():
            found.setdefault(name, []).append(each[name])
    return {
        name: Cell(mean(values), stdev(values) if len(values) > 1 else None, len(values))
        for name in _DIAGNOSTICS
        if (values := found.get(name))
    }


def _diagnostics_table(diagnosed: Mapping[str, dict[str, Cell]]) -> tuple[list[str], list[list[str]]] | None:
    """Head and rows; None where no row has any."""
    shown = [name for name in _DIAGNOSTICS if any(name in cells for cells in diagnosed.values())]
    if not shown:
        return None
    rows = []
    for label, cells in diagnosed.items():
        seeds = sorted({cell.seeds for cell in cells.values()})
        texts = [_short(cells[name]) if name in cells else "–" for name in shown]
        rows.append([label, *texts, ", ".join(map(str, seeds)) or "–"])
    return ["", *(_DIAGNOSTICS[name] for name in shown), "seeds"], rows


def _short(cell: Cell) -> str:
    """Rates and spreads may be far below what four digits after the point show."""
    return f"{cell.mean:.3g}" + (f" ± {cell.std:.2g}" if cell.std else "")


def _against_paper(results: Results) -> dict[str, list[float]]:
    """The p-value of each row of an ablation against the paper's model, by NDCG@10 under each protocol."""
    if PRINTED not in results.per_user:
        return {}
    labels = [row.label for row in results.rows]
    systems = on_common_seeds(results.per_user, results.seedless)
    others = [label for label in labels if label in systems and label != PRINTED]
    measures = [measure for measure in results.measures if measure[1] == "ndcg@10"]
    differences = []
    for protocol, metric in measures:
        of_user = averaged_over_seeds(systems, f"{protocol}/{metric}")
        differences += [of_user[label] - of_user[PRINTED] for label in others]
    tests = paired_tests(differences, resamples=1, generator=np.random.default_rng(0))
    corrected = iter(holm([test.p_t for test in tests]))
    return {
        f"p, {title_of(measure)}": [next(corrected) if label in others else math.nan for label in labels]
        for measure in measures
    }


def _extra_columns(rows: list[Row], outcome: Outcome) -> dict[str, list[float]]:
    """What a study shows beside its metrics: the overlap of scores, clip rates."""
    records = outcome.records
    if rows[0].densities:
        return {
            name: [mean(record["densities"][key] for record in records[row.label]) for row in rows]
            for name, key in (("overlap width", "width"), ("overlap area", "shared_area"))
        }
    if rows[0].curve.startswith("omega"):
        terms = [
            t for t in ("clipped-items", "clipped-users") if t in records[rows[0].label][0].get("terms", ())
        ]
        return {term: clip_rates(rows, records, term) for term in terms}
    return {}

"""The comparison of all models as CSV, Markdown and LaTeX: a row a metric, a column a model."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from hdccf.evaluation.compare import LEVEL, Comparison, compare
from hdccf.evaluation.evaluation import Evaluation
from hdccf.experiments.journal import Journal, Record
from hdccf.experiments.plans import OURS, SEEDLESS, TITLES, Row
from hdccf.experiments.running import Outcome
from hdccf.files import atomic_file

Measure = tuple[str, str]
"""Protocol and metric."""


@dataclass(frozen=True)
class Cell:
    """One row on one metric."""

    mean: float
    std: float | None
    """Over seeds; None with one, unless its model knows no chance."""
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if not self.std else f" ± {self.std:.4f}")


def cells_of(
    records: Sequence[Record], *, seedless: bool = False, given: bool = False
) -> dict[Measure, Cell]:
    """Of the records of one row, a record a seed."""
    if not records:
        return {}
    tables = [record["given" if given else "values"] for record in records]
    found = {}
    for protocol, metrics in tables[0].items():
        for metric in metrics:
            values = [table[protocol][metric] for table in tables]
            std = stdev(values) if len(values) > 1 else 0.0 if seedless else None
            found[protocol, metric] = Cell(mean(values), std, len(values))
    return found


def title_of(measure: Measure) -> str:
    """ "sampled HR@10"."""
    protocol, metric = measure
    return f"{protocol} {metric.upper() if metric[0] != 'r' else metric.capitalize()}"


def csv_text(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers in full, so that a table is also data; what is unknown is nan."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([["nan" if value is None else value for value in row] for row in rows])
    return file.getvalue()


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_LATEX = {
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


def latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


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


def write_files(stem: Path, **texts: str) -> None:
    """`stem`.csv, .md, .tex and so on, each with its text."""
    for kind, text in texts.items():
        with atomic_file(stem.with_name(f"{stem.name}.{kind}")) as temporary:
            temporary.write_text(text, encoding="utf-8")


CSV_HEAD = ("model", "protocol", "metric", "mean", "std", "seeds")

_LEAST_P = 1e-99
"""Smaller ones say no more, and end as 0."""


@dataclass(frozen=True, eq=False)
class Results:
    """What the table is made of."""

    title: str
    rows: list[Row]
    outcome: Outcome
    cells: dict[str, dict[Measure, Cell]]
    comparison: Comparison | None
    """Tests over users; None where the values by user are not all at hand."""
    command: str

    @classmethod
    def of(cls, title: str, rows: list[Row], outcome: Outcome, journal: Journal, command: str) -> "Results":
        cells = {
            row.label: cells_of(outcome.records[row.label], seedless=row.model in SEEDLESS) for row in rows
        }
        present = [row for row in rows if cells[row.label]]
        return cls(title, present, outcome, cells, _compared(present, outcome, journal), command)

    @property
    def measures(self) -> list[Measure]:
        return list(self.cells[self.rows[0].label]) if self.rows else []

    def ranking(self, measure: Measure) -> list[str]:
        """Models, best first."""
        return sorted((row.label for row in self.rows), key=lambda label: -self.cells[label][measure].mean)

    def margin(self, measure: Measure) -> float | None:
        """Ours over the best competitor, relatively; negative where we are behind."""
        others = [label for label in self.ranking(measure) if label != OURS]
        if OURS not in self.cells or not self.cells[OURS] or not others:
            return None
        best = self.cells[others[0]][measure].mean
        return self.cells[OURS][measure].mean / best - 1 if best else None

    def p_value(self, measure: Measure) -> float | None:
        """Of ours against the best competitor: paired t over users, Holm-corrected over the whole table."""
        ranking = self.ranking(measure)
        if self.comparison is None or OURS not in ranking or len(ranking) < 2:
            return None
        rival = next(label for label in ranking if label != OURS)
        for test in self.comparison.tests:
            if (test.protocol, test.metric) == measure and {test.best, test.other} == {OURS, rival}:
                return test.holm_t
        return None


def _compared(rows: Sequence[Row], outcome: Outcome, journal: Journal) -> Comparison | None:
    systems: dict[str, list[Evaluation]] = {}
    for row in rows:
        found = [journal.evaluation(record) for record in outcome.records[row.label]]
        systems[row.label] = [each for each in found if each is not None]
        if len(systems[row.label]) < len(found):
            return None
    if len(systems) < 2:
        return None
    names = list(next(iter(outcome.records[rows[0].label]))["metrics"])
    return compare(systems, names)


def write_table(results: Results, stem: Path) -> None:
    """`stem`.csv, .md and .tex, and where it was asked for `stem`-given.csv."""
    write_files(
        stem,
        csv=comparison_csv(results),
        md=comparison_markdown(results),
        tex=comparison_latex(results, stem.name),
    )
    given = given_cells(results)
    if given:
        # A file of its own: it answers another question than the table's rows.
        lines = [(OURS, *measure, cell.mean, cell.std, cell.seeds) for measure, cell in given.items()]
        write_files(stem.with_name(f"{stem.name}-given"), csv=csv_text(CSV_HEAD, lines))


def comparison_csv(results: Results) -> str:
    rows = [
        (row.label, *measure, cell.mean, cell.std, cell.seeds)
        for row in results.rows
        for measure, cell in results.cells[row.label].items()
    ]
    return csv_text(CSV_HEAD, rows)


def comparison_markdown(results: Results) -> str:
    parts = [
        f"# {results.title}",
        _markdown_cells(results),
        _legend(results),
        "## Settings",
        _settings(results),
    ]
    if results.outcome.failures:
        left_out = [f"- {label}: {why}" for label, why in results.outcome.failures.items()]
        parts += ["## Left out", "\n".join(left_out)]
    parts += [given_markdown(results), provenance(results.outcome, results.command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_cells(results: Results) -> str:
    head = ["", *(TITLES[row.label] for row in results.rows), "Imp.", "p"]
    rows = [
        [
            title_of(measure),
            *_marked(results, measure, ("**", "**"), ("<u>", "</u>")),
            *_tail(results, measure),
        ]
        for measure in results.measures
    ]
    return markdown_table(head, rows)


def _marked(
    results: Results, measure: Measure, bold: tuple[str, str], underlined: tuple[str, str]
) -> list[str]:
    """The cells of a line: the best bold, the second underlined, the deviation behind."""
    best, second = (*results.ranking(measure), "", "")[:2]
    marks: Mapping[str, tuple[str, str]] = {second: underlined, best: bold}
    texts = []
    for row in results.rows:
        cell = results.cells[row.label][measure]
        before, after = marks.get(row.label, ("", ""))
        texts.append(f"{before}{cell.mean:.4f}{after}" + ("" if not cell.std else f" ± {cell.std:.4f}"))
    return texts


def _tail(results: Results, measure: Measure) -> list[str]:
    margin, p = results.margin(measure), results.p_value(measure)
    return ["–" if margin is None else f"{100 * margin:+.2f} %", "–" if p is None else _shown_p(p)]


def _shown_p(p: float) -> str:
    return f"{p:.2g}" if p >= _LEAST_P else f"< {_LEAST_P:.0e}"


def _legend(results: Results) -> str:
    tested = (
        f"p is of HDCCF against the best other: paired t over {results.comparison.users:,} users, averaged "
        f"over seeds, Holm-corrected over all tests of the best against another; the paper has p < {LEVEL}."
        if results.comparison
        else "p is not known here: the values by user are not on this machine."
    )
    marks = "Mean ± deviation over seeds; best bold, second underlined; Imp. is HDCCF over the best other."
    return f"{marks} {tested}"


def _settings(results: Results) -> str:
    head = ["model", "settings", "seeds", "epoch", "training seconds"]
    rows = []
    for row in results.rows:
        records = results.outcome.records[row.label]
        epochs = ", ".join(str(record.get("best_epoch", "–")) for record in records)
        seconds = sum(record["seconds"] for record in records) / len(records)
        rows.append([TITLES[row.label], row.origin, str(len(records)), epochs, f"{seconds:.0f}"])
    return markdown_table(head, rows)


def given_cells(results: Results) -> dict[Measure, Cell]:
    """Ours with the validation items given when testing; nothing where that was not asked."""
    records = results.outcome.records.get(OURS, [])
    return cells_of(records, given=True) if records and all("given" in each for each in records) else {}


def given_markdown(results: Results) -> str:
    cells = given_cells(results)
    if not cells:
        return ""
    rows = [[title_of(measure), str(cell)] for measure, cell in cells.items()]
    return (
        "## HDCCF with the validation item given when testing\n\nAs SASRec's published figures are: trained "
        "alike, but a user's history ends with the validation item. Not comparable with the table above.\n\n"
        + markdown_table(["", "HDCCF (given)"], rows)
    )


def provenance(outcome: Outcome, command: str) -> str:
    """Which command, commits, seeds and machines the numbers come from."""
    records: list[Record] = [record for rows in outcome.records.values() for record in rows]
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    machines = "; ".join(dict.fromkeys(record["machine"] for record in records))
    seeds = ", ".join(str(seed) for seed in sorted({record["seed"] for record in records}))
    return f"`{command}`; seeds {seeds}; commit {commits}; {machines}."


def comparison_latex(results: Results, name: str) -> str:
    head = ["Metrics", *(latex(TITLES[row.label]) for row in results.rows), r"\textit{Imp.}"]
    rows = []
    for measure in results.measures:
        marked = _marked(results, measure, (r"\textbf{", "}"), (r"\underline{", "}"))
        margin = results.margin(measure)
        shown = "--" if margin is None else rf"{100 * margin:.2f}\%"
        p = results.p_value(measure)
        star = "$^*$" if p is not None and p < LEVEL and (margin or 0) > 0 else ""
        cells = [text.replace(" ± ", r"{\tiny$\pm$") + ("}" if "±" in text else "") for text in marked]
        rows.append([latex(title_of(measure)), *cells, shown + star])
    caption = (
        f"{latex(results.title)}. The bold value marks the best one in one row, the underlined one the "
        rf"second. $^*$ HDCCF is better than the best competitor with corrected $p < {LEVEL}$."
    )
    return latex_table(head, rows, caption=caption, label=f"tab:{name}")

"""From records to numbers, mean and deviation over seeds of every row and metric, and to text."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from hdccf.experiments.journal import Record
from hdccf.files import atomic_file

Question = tuple[str, str]
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
) -> dict[Question, Cell]:
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


def title_of(question: Question) -> str:
    """ "sampled HR@10"."""
    protocol, metric = question
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


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

"""`hdccf reproduce`: a study from its rows to its tables and figures."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from statistics import mean

from hdccf.console import note
from hdccf.data.split import Split
from hdccf.errors import ConfigError
from hdccf.experiments import plans
from hdccf.experiments.figures import Cells, clip_rates, draw_bars, draw_densities, draw_sweeps
from hdccf.experiments.journal import Journal
from hdccf.experiments.plans import STUDIES, Plan, Row
from hdccf.experiments.running import Outcome, Runner
from hdccf.experiments.tables import (
    CSV_HEAD,
    Results,
    cells_of,
    csv_text,
    latex,
    latex_table,
    markdown_table,
    provenance,
    title_of,
    write_files,
    write_table,
)
from hdccf.experiments.tasks import part_name

ALL = "all"
_TITLES = {
    "ablation": "Ablations",
    "scores": "Relevance scores of positive and negative items",
    "omega": "Probability of a false negative",
    "neighbours": "Positive neighbours",
    "beta": "Frequency correction",
    "temperature": "Temperature",
    "recency": "Half-lives",
}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One data set, and the folder that its results go to."""

    plan: Plan
    split: Split
    threads: int | None = None
    progress: bool = False

    def run(self, study: str) -> list[Path]:
        """Runs a study, or all of them, and gives the stems of the files that it wrote."""
        if study == ALL:
            possible = [name for name in STUDIES if name != "recency" or self.plan.has_times]
            return [stem for name in possible for stem in self.run(name)]
        if study == "table":
            return self._tables()
        return self._study(study)

    @property
    def _runner(self) -> Runner:
        plan, results = self.plan, self.plan.results
        journal = Journal(results / "journal" / f"{plan.dataset}.jsonl", results / "per-user")
        work = results / ".runs"
        return Runner(plan.dataset, plan.task, self.split, journal, work, self.threads, self.progress)

    def _command(self, study: str) -> str:
        plan = self.plan
        seeds = "" if plan.seeds is None else f" --seeds {plan.seeds}"
        budget = "" if plan.budget == "full" else f" --budget {plan.budget}"
        changed = "".join(f" --set {name}={value}" for name, value in plan.overrides.items())
        only = "".join(f" --only {quote(label)}" for label in plan.only)
        return f"hdccf reproduce {study} --dataset {plan.dataset}{seeds}{budget}{changed}{only}"

    # -- the comparison of models ----------------------------------------------------------------------------

    def _tables(self) -> list[Path]:
        parts = [False, True] if self.plan.has_times else [False]
        if not self.plan.has_times and self.progress:
            note(f"{self.plan.dataset} has no times, so there is no time-aware part")
        return [self._table(time_aware) for time_aware in parts]

    def _table(self, time_aware: bool) -> Path:
        rows, runner = self.plan.chosen(plans.table(self.plan, time_aware)), self._runner
        if self.progress:
            for row in rows:
                note(f"{row.label}: {row.origin}")
        outcome = runner.run(rows)
        words = "time-aware" if time_aware else "time-blind"
        title = f"{self.plan.dataset}, {words}"
        results = Results.of(title, rows, outcome, runner.journal, self._command("table"))
        stem = self.plan.results / "table" / part_name(self.plan.dataset, time_aware)
        write_table(results, stem)
        return stem

    # -- the other studies -----------------------------------------------------------------------------------

    def _study(self, study: str) -> list[Path]:
        rows = self.plan.chosen(STUDIES[study](self.plan))
        outcome = self._runner.run(rows)
        rows = [row for row in rows if outcome.records[row.label]]
        if not rows:
            raise ConfigError(f"no row of {study} could be run: {'; '.join(outcome.failures.values())}")
        cells = {row.label: cells_of(outcome.records[row.label]) for row in rows}
        stem = self.plan.results / study / self.plan.dataset
        title = f"{_TITLES[study]} on {self.plan.dataset}"
        write_study(title, self._command(study), rows, cells, outcome, stem)
        records = {row.label: outcome.records[row.label] for row in rows}
        if study == "ablation":
            draw_bars(title, cells, stem)
        elif study == "scores":
            draw_densities(title, records, stem)
        else:
            draw_sweeps(title, rows, cells, records, stem)
        return [stem]


def write_study(
    title: str, command: str, rows: list[Row], cells: Cells, outcome: Outcome, stem: Path
) -> None:
    """`stem`.csv, .md and .tex of a study that is no comparison of models."""
    measures = list(next(iter(cells.values())))
    extra = _extra_columns(rows, outcome)
    lines = [
        (row.label, row.curve, row.x, *measure, cell.mean, cell.std, cell.seeds)
        for row in rows
        for measure, cell in cells[row.label].items()
    ]
    for name, values in extra.items():
        of_rows = zip(rows, values, strict=True)
        lines += [(row.label, row.curve, row.x, "", name, x, None, cells[row.label][measures[0]].seeds)
                  for row, x in of_rows]  # fmt: skip
    csv = csv_text(("row", "setting", "value", *CSV_HEAD[1:]), lines)
    columns = ["", *(title_of(measure) for measure in measures), *extra]
    texts = [
        [row.label, *(str(cells[row.label][measure]) for measure in measures)]
        + [f"{values[number]:.3f}" for values in extra.values()]
        for number, row in enumerate(rows)
    ]
    failures = "".join(f"\n- left out: {label}: {why}" for label, why in outcome.failures.items())
    origins = "".join(f"\n- {row.label}: {row.origin}" for row in rows if row.origin)
    parts = [f"# {title}", markdown_table(columns, texts), origins.strip(), failures.strip()]
    parts += ["Mean ± deviation over seeds.", provenance(outcome, command)]
    markdown = "\n\n".join(part for part in parts if part) + "\n"
    bodies = [[latex(text) for text in line] for line in texts]
    label = f"tab:{stem.parent.name}-{stem.name}"
    tex = latex_table([latex(text) for text in columns], bodies, caption=latex(title), label=label)
    write_files(stem, csv=csv, md=markdown, tex=tex)


def _extra_columns(rows: list[Row], outcome: Outcome) -> dict[str, list[float]]:
    """What a study shows beside its metrics: the overlap of scores, clip rates."""
    first = outcome.records[rows[0].label][0]
    if rows[0].densities:
        return {
            name: [mean([r["densities"][key] for r in outcome.records[row.label]]) for row in rows]
            for name, key in (("overlap width", "width"), ("overlap area", "shared_area"))
        }
    if rows[0].curve.startswith("omega"):
        terms = [term for term in ("clipped-items", "clipped-users") if term in first["terms"]]
        return {term: clip_rates(rows, outcome.records, term) for term in terms}
    return {}

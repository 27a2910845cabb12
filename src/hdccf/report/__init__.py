"""`hdccf report RUN`: a run's metrics, curves, diagnostics, examples and settings in one HTML file."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from hdccf.errors import ConfigError, DataError, RunError
from hdccf.evaluation.compare import evaluate_run
from hdccf.evaluation.evaluation import Evaluation
from hdccf.files import atomic_file, locked
from hdccf.recommend.lens import GRID, density, estimate
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder, data_facts, facts_of, settings_table
from hdccf.training.race import read_race

EXAMPLES = (0.25, 0.5, 0.75)
"""Quantiles of activity whose users are shown."""
_K = 10
_LATEST = 5


def write_report(known: Recommender, out: Path, *, overwrite: bool = False, progress: bool = False) -> None:
    """Writes the file, all or nothing; the test part's figures are taken from the run where they are kept."""
    if out.exists() and not overwrite:
        # Before the evaluation, which may take minutes.
        raise ConfigError(f"{out} exists; choose another --out, or replace it with --overwrite")
    text = report(known, progress=progress)
    inside = out.parent.resolve() == known.path.resolve()
    with (
        locked(known.path, RunError) if inside else nullcontext(),
        atomic_file(out, overwrite=overwrite) as temporary,
    ):
        temporary.write_text(text, encoding="utf-8")


def report(known: Recommender, *, progress: bool = False) -> str:
    """The file's text."""
    run = facts_of(RunFolder.open(known.path))
    evaluation = None
    if len(known.split.test):
        evaluation = evaluate_run(known, ks=_lengths(known), again=False, progress=progress)
    sections = [
        _summary(run, evaluation),
        _data(known),
        *_candidates(known),
        *_training(run),
        *([] if evaluation is None else [_groups(evaluation)]),
        _negatives(known),
        _examples(known),
        _settings(known),
    ]
    return document(f"{known.name}: {run['name']}", sections)


def _lengths(known: Recommender) -> tuple[int, ...]:
    """10 and 50 as `hdccf evaluate` has them, so that its figures serve; shorter in tiny catalogues."""
    most_had = int(known.events.by_user.degrees.max())
    return tuple(k for k in (10, 50) if k <= known.n_items - most_had) or (1,)


def _summary(run: dict[str, Any], evaluation: Evaluation | None) -> str:
    source = run["source"].get("source", "interactions")
    result = run["result"]
    lines = [f"Trained on {source}, split {run['split'].get('method')}, seed {run['seed']}."]
    # Models without epochs have a result, but no best of it.
    if result is not None and result["best_value"] is not None:
        lines.append(
            f"Best epoch {result['best_epoch']} with {result['best_value']:.4f} on validation, "
            f"after {result['seconds']:,.0f} seconds of training."
        )
    if result is not None and "refit" in result:
        lines.append(
            f"Then trained once more on all {result['refit']['pairs']:,} pairs; the figures are those before."
        )
    if evaluation is None:
        return section("Result", paragraph(" ".join([*lines, "Nothing was held out to test it on."])))
    head, rows = evaluation.overall_table()
    remarks = "".join(paragraph(remark) for remark in evaluation.remarks())
    return section("Result on the test part", paragraph(" ".join(lines)), table(head, rows), remarks)


def _data(known: Recommender) -> str:
    found = data_facts(known.split)
    rows: list[tuple[str, Any]] = [(name, found[name]) for name in ("users", "items")]
    rows += [(f"pairs for {name}", size) for name, size in found["parts"].items()]
    rows += [(name, found[name]) for name in ("density", "first", "last", "repeated_pairs")]
    spreads = [(name, found[f"interactions_per_{name}"]) for name in ("user", "item")]
    head = ["training pairs of a", *spreads[0][1]]
    spread = table(head, [(name, *values.values()) for name, values in spreads if values])
    return section("Data", table(["", "figure"], rows), heading("How unevenly they are spread"), spread)


def _candidates(known: Recommender) -> list[str]:
    """The configurations that were compared, where the settings were chosen automatically."""
    lines = read_race(RunFolder.open(known.path).race)
    if not lines:
        return []
    rows = [(line.round, line.candidate, line.epoch, line.value, line.gain, line.seconds) for line in lines]
    head = ["round", "candidate", "epochs", "validation", "gain of the last doubling", "seconds"]
    chosen = paragraph(f"Chosen on validation: {known.config['chosen']}.")
    return [section("Candidates", chosen, table(head, rows, texts=2))]


def _training(run: dict[str, Any]) -> list[str]:
    if not run["epochs"]:
        return []
    mark = None if run["result"] is None else run["result"]["best_epoch"]
    curves: dict[str, dict[str, list[float | None]]] = run["curves"]

    def charts(named: dict[str, dict[str, list[float | None]]], zero: bool = False) -> list[str]:
        return [
            line_chart(
                title,
                {name: (run["epochs"], values) for name, values in lines.items()},
                x_label="epochs",
                mark=mark,
                from_zero=zero,
            )
            for title, lines in named.items()
            if lines
        ]

    diagnostics = curves.get("diagnostics", {})
    hardness = {name: values for name, values in diagnostics.items() if name.startswith("hardness")}
    single = {name: {name: values} for name, values in diagnostics.items() if name not in hardness}
    training = charts({"Validation": curves.get("validation", {}), "Training loss": curves["training"]})
    clipped = charts({"Share of rows clipped (Eq. 16)": curves.get("clipped", {})}, zero=True)
    what = [*clipped, *charts({"Hardness: quantiles of the negatives' scores": hardness})]
    what += charts(single, zero=True)
    made = [section("Training", side_by_side(training), paragraph("The dashed line is the selected epoch."))]
    return [*made, section("What the negatives did", side_by_side(what))] if what else made


def _groups(evaluation: Evaluation) -> str:
    parts = []
    for kind in ("users", "items"):
        head, rows = evaluation.group_table(kind)
        parts += [heading(f"{kind.capitalize()}, by their training pairs"), table(head, rows)]
    return section("Metrics by group", *parts)


def _negatives(known: Recommender) -> str:
    """The negatives lens over all users; `hdccf serve` shows it for each."""
    title = "Which negatives may be false"
    try:
        lens = estimate(known, known.split)
    except DataError as cause:
        return section(title, paragraph(f"Not known: {cause}."))
    both = np.concatenate([lens.positive, lens.unobserved])
    low, high = np.quantile(both, [0.001, 0.999])
    grid = np.linspace(float(low), float(high), GRID)
    lines = {
        "not in training": density(lens.unobserved, grid, lens.bandwidth),
        "held out, so liked": density(lens.positive, grid, lens.bandwidth),
    }
    chart = line_chart(
        "Densities of scores, in deviations from each user's mean",
        {name: (grid.tolist(), values.tolist()) for name, values in lines.items()},
        from_zero=True,
    )
    odds = line_chart(
        f"Probability of being false, with ω = {lens.omega_mid:.4f}",
        {"ω·p⁺/p": (lens.grid.tolist(), lens.probability(lens.grid, lens.omega_mid).tolist())},
        from_zero=True,
    )
    said = (
        f"Of what a user does not have in training, at least {lens.omega_min:.2%} (held out) and at most "
        f"{lens.omega_max:.2%} (else the hardest were more than certain) are liked; the second chart takes "
        "the geometric mean of both for ω."
    )
    return section(title, side_by_side([chart, odds]), paragraph(said))


def _examples(known: Recommender) -> str:
    degrees = known.events.by_user.degrees
    active = np.flatnonzero(degrees)
    order = active[np.argsort(degrees[active], kind="stable")]
    chosen = dict.fromkeys(int(order[int(share * (len(order) - 1))]) for share in EXAMPLES)
    return section("Examples of recommendations", *(_example(known, row) for row in chosen))


def _example(known: Recommender, row: int) -> str:
    events, user = known.events, known.split.train.user_ids[row]
    latest = events.by_user.of(row)[::-1][:_LATEST]
    history = ", ".join(_title(known, int(item)) for item in latest)
    found = known.recommend([user], k=_K)
    told = known.explain(user, found["item"], top=2) if len(found) else None
    reasons: dict[Any, list[str]] = {}
    if told is not None:
        for part in told.parts.iter_rows(named=True):
            if part["share"] > 0:
                name = part.get("because_title") or part["because"]
                reasons.setdefault(part["item"], []).append(f"{name} ({part['share']:.0%})")
    rows = []
    for line in found.iter_rows(named=True):
        because = ", ".join(reasons.get(line["item"], []))
        rows.append((line["rank"], line.get("title") or line["item"], because, line["score"]))
    parts = [
        heading(f"User {user}, {int(events.by_user.degrees[row]):,} events"),
        paragraph(f"Latest history: {history}."),
        table(["", "recommended", "because of", "score"], rows, texts=3),
    ]
    if told is not None:
        parts.append(
            paragraph(f"Reasons: {told.surrogate}; Kendall's τ with the model {told.agreement:.2f}.")
        )
    return "".join(parts)


def _title(known: Recommender, item: int) -> str:
    train = known.split.train
    return str(train.item_ids[item] if train.titles is None else train.titles[item])


def _settings(known: Recommender) -> str:
    rows = [
        (row["name"], row["value"], "" if not row["changed"] else str(row["default"]), row["meaning"])
        for row in settings_table(known.settings)
    ]
    return section(
        "Settings", table(["setting", "value", "default, if another", "what it does"], rows, texts=4)
    )


# -- HTML ----------------------------------------------------------------------------------------------------


def document(title: str, sections: Iterable[str]) -> str:
    """A whole file, which asks nothing of any host."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}\n</section>"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def side_by_side(parts: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> str:
    """The first `texts` columns to the left, the numbers behind them to the right."""

    def line(cells: Sequence[Any], tag: str) -> str:
        made = (
            f"<{tag}{'' if place < texts else ' class=number'}>{escape(_shown(cell))}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


# -- line charts, in the colours of the style, so that they follow light and dark ----------------------------

WIDTH, HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 8, 8, 22
_COLOURS = 6

Line = tuple[Sequence[float], Sequence[float | None]]
"""x and y; where y is None there is no point."""


def line_chart(
    title: str,
    lines: Mapping[str, Line],
    *,
    x_label: str = "",
    mark: float | None = None,
    from_zero: bool = False,
) -> str:
    """A figure with its legend; `mark` is a place on x that gets a dashed line."""
    points = {
        name: [(x, y) for x, y in zip(*line, strict=True) if y is not None and math.isfinite(y)]
        for name, line in lines.items()
    }
    everything = [point for some in points.values() for point in some]
    if not everything:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>Nothing was recorded.</p></figure>"
    frame = _Frame([x for x, _ in everything], [y for _, y in everything], from_zero)
    parts = frame.axes(x_label) + [frame.curve(some, number) for number, some in enumerate(points.values())]
    if mark is not None:
        x = frame.x(mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
    legend = "".join(
        f'<li><i style="background:var(--line-{number % _COLOURS})"></i>{escape(name)}</li>'
        for number, name in enumerate(points)
    )
    # The chart in words, for screen readers.
    each = [f"{name} from {some[0][1]:.3g} to {some[-1][1]:.3g}" for name, some in points.items() if some]
    told = escape(f"{title}: {'; '.join(each)}")
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{told}">'
        f'{"".join(parts)}</svg><ul class="legend">{legend}</ul></figure>'
    )


class _Frame:
    """Where values lie in the drawing."""

    def __init__(self, xs: list[float], ys: list[float], from_zero: bool) -> None:
        self._x = _range(min(xs), max(xs), 0.5)
        low = min(0.0, *ys) if from_zero else min(ys)
        self._y = _range(low, max(ys), 0.0 if from_zero else 0.5)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _BOTTOM - _TOP)

    def axes(self, x_label: str) -> list[str]:
        parts = []
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
            x = self._x[0] + share * (self._x[1] - self._x[0])
            y = self._y[0] + share * (self._y[1] - self._y[0])
            at = self.y(y)
            said = f"{x:.3g} {escape(x_label)}" if share == 1 and x_label else f"{x:.3g}"
            parts += [
                f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
                f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:.3g}</text>',
                f'<text x="{self.x(x):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{said}</text>',
            ]
        return parts

    def curve(self, points: Sequence[tuple[float, float]], number: int) -> str:
        colour = f"var(--line-{number % _COLOURS})"
        if len(points) == 1:
            x, y = points[0]
            return f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3" fill="{colour}"/>'
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline class="curve" points="{path}" stroke="{colour}"/>'


def _range(low: float, high: float, below: float) -> tuple[float, float]:
    """A line that does not move has no range of its own."""
    return (low, high) if high > low else (low - below, high + 1 - below)

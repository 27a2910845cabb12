"""`hdccf report RUN`: a run's metrics, curves, diagnostics, examples and settings in one HTML file."""

from pathlib import Path
from typing import Any

import numpy as np

from hdccf.errors import ConfigError, DataError
from hdccf.evaluation.compare import evaluate_run
from hdccf.evaluation.evaluation import Evaluation
from hdccf.files import atomic_file
from hdccf.recommend.lens import GRID, density, estimate
from hdccf.recommend.recommender import Recommender
from hdccf.recommend.run_folder import RunFolder, data_facts, facts_of, settings_table
from hdccf.report.html import document, heading, line_chart, paragraph, section, side_by_side, table

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
    with atomic_file(out, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")


def report(known: Recommender, *, progress: bool = False) -> str:
    """The file's text."""
    run = facts_of(RunFolder.open(known.path))
    evaluation = evaluate_run(known, ks=_lengths(known), again=False, progress=progress)
    sections = [
        _summary(run, evaluation),
        _data(known),
        *_training(run),
        _groups(evaluation),
        _negatives(known),
        _examples(known),
        _settings(known),
    ]
    return document(f"{known.name}: {run['name']}", sections)


def _lengths(known: Recommender) -> tuple[int, ...]:
    """10 and 50 as `hdccf evaluate` has them, so that its figures serve; shorter in tiny catalogues."""
    most_had = int(known.events.by_user.degrees.max())
    return tuple(k for k in (10, 50) if k <= known.n_items - most_had) or (1,)


def _summary(run: dict[str, Any], evaluation: Evaluation) -> str:
    source = run["source"].get("source", "interactions")
    result = run["result"]
    lines = [f"Trained on {source}, split {run['split'].get('method')}, seed {run['seed']}."]
    # Models without epochs have a result, but no best of it.
    if result is not None and result["best_value"] is not None:
        lines.append(
            f"Best epoch {result['best_epoch']} with {result['best_value']:.4f} on validation, "
            f"after {result['seconds']:,.0f} seconds of training."
        )
    head, rows = evaluation.overall_table()
    remarks = "".join(paragraph(remark) for remark in evaluation.remarks())
    return section("Result on the test part", paragraph(" ".join(lines)), table(head, rows), remarks)


def _data(known: Recommender) -> str:
    found = data_facts(known.split)
    rows: list[tuple[str, Any]] = [(name, found[name]) for name in ("users", "items")]
    rows += [(f"pairs for {name}", size) for name, size in found["parts"].items()]
    rows += [(name, found[name]) for name in ("density", "first", "last", "repeated_pairs")]
    spreads = {
        name: found[f"interactions_per_{name}"]
        for name in ("user", "item")
        if found[f"interactions_per_{name}"]
    }
    head = ["training pairs of a", *next(iter(spreads.values()), {})]
    spread = table(head, [(name, *values.values()) for name, values in spreads.items()])
    return section("Data", table(["", "figure"], rows), heading("How unevenly they are spread"), spread)


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
    for kind, words in (
        ("users", "Users, by their training pairs"),
        ("items", "Items, by their training pairs"),
    ):
        head, rows = evaluation.group_table(kind)
        parts += [heading(words), table(head, rows)]
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
    rows = [
        (
            line["rank"],
            line.get("title") or line["item"],
            ", ".join(reasons.get(line["item"], [])),
            line["score"],
        )
        for line in found.iter_rows(named=True)
    ]
    return "".join(
        [
            heading(f"User {user}, {int(events.by_user.degrees[row]):,} events"),
            paragraph(f"Latest history: {history}."),
            table(["", "recommended", "because of", "score"], rows, texts=3),
            paragraph(f"Reasons: {told.surrogate}; Kendall's τ with the model {told.agreement:.2f}.")
            if told
            else "",
        ]
    )


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

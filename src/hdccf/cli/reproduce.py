"""`hdccf reproduce`: the paper's table and figures, from scratch."""

from pathlib import Path
from typing import Annotated

import typer

from hdccf.cli import reading


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="table, ablation, scores, omega, neighbours, beta, temperature, recency, or all.",
        ),
    ],
    dataset: Annotated[str, typer.Option(metavar="NAME", help="A named data set (hdccf data list).")],
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs of each row. Without it 5; 3 for ml-1m; for gowalla-m1 3 of HDCCF, 1 of others.",
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="quick|full",
            help="quick: at most 2 seeds, 20 epochs, 32 dimensions, and every other point of a curve.",
        ),
    ] = "full",
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where all of it goes, and tuned settings are."),
    ] = Path("results"),
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of every row that has it; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Only this row, such as ease or 'ours, random start'; repeatable."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Processor threads; all if not given.")] = None,
    folder: reading.From = None,
) -> None:
    """Run a study of the paper on a data set, and write its tables and figures.

    Each finished run is a line of DIR/journal/DATASET.jsonl and is not run again; a run that was stopped goes
    on. table takes tuned settings from DIR/tuned where there are some, and says which.
    """
    from dataclasses import replace

    from hdccf.config import parse_assignments
    from hdccf.errors import ConfigError
    from hdccf.experiments.plans import STUDIES, Plan
    from hdccf.experiments.reports import ALL, Reproduction
    from hdccf.experiments.tasks import open_split, task_of

    if study not in (*STUDIES, ALL):
        raise ConfigError(f"study={study!r} is unknown; choose one of {[*STUDIES, ALL]}")
    overrides = parse_assignments(assignments or [])
    plan = Plan(
        dataset,
        task_of(dataset),
        out,
        seeds,
        budget,
        overrides=overrides,
        only=tuple(dict.fromkeys(only or [])),
    )
    split = open_split(dataset, folder=folder, progress=True)
    plan = replace(plan, has_times=split.train.times is not None)
    for stem in Reproduction(plan, split, threads, progress=True).run(study):
        written = sorted(str(file) for file in stem.parent.glob(f"{stem.name}.*"))
        typer.echo("\n".join(written))

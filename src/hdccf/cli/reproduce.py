"""`hdccf reproduce`: the paper's table and figures, from scratch."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from hdccf.cli.options import Flag, Panel, with_options
from hdccf.cli.reading import CacheOptions
from hdccf.config import Options
from hdccf.errors import ConfigError


class StudyOptions(Options):
    """Which rows of a study are run, how long, and where the results go."""

    seeds: int | None = Field(default=None, ge=1)
    """Runs of each row. Without it 5; 3 for ml-1m; for gowalla-m1 3 of HDCCF, 1 of others."""
    budget: Annotated[str, Flag(metavar="quick|full")] = "full"
    """quick: at most 2 seeds, 20 epochs, 32 dimensions, and every other point of a curve."""
    out: Annotated[Path, Flag(metavar="DIR")] = Path("results")
    """Where all of it goes, and where tuned settings are looked for before the package's presets."""
    assignments: Annotated[list[str] | None, Flag("--set", metavar="NAME=VALUE")] = None
    """A setting of every row that has it; repeatable."""
    only: Annotated[list[str] | None, Flag(metavar="ROW")] = None
    """Only this row, such as ease or 'ours, random start'; repeatable."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads; all if not given."""


@with_options
def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="table, ablation, scores, omega, neighbours, beta, temperature, recency, or all.",
        ),
    ],
    dataset: Annotated[str, typer.Option(metavar="NAME", help="A named data set (hdccf data list).")],
    options: StudyOptions,
    cache: Annotated[CacheOptions, Panel(only=("folder",))],
) -> None:
    """Run a study of the paper on a data set, and write its tables and figures.

    Each finished run is a line of DIR/journal/DATASET.jsonl and is not run again; a run that was stopped goes
    on. table takes tuned settings from DIR/tuned, or else the package's, and says which.
    """
    from dataclasses import replace

    from hdccf.config import parse_assignments
    from hdccf.experiments.plans import STUDIES, Plan, open_split, task_of
    from hdccf.experiments.reproduce import ALL, Reproduction

    if study not in (*STUDIES, ALL):
        raise ConfigError(f"study={study!r} is unknown; choose one of {[*STUDIES, ALL]}")
    plan = Plan(
        dataset,
        task_of(dataset),
        options.out,
        options.seeds,
        options.budget,
        overrides=parse_assignments(options.assignments or []),
        only=tuple(dict.fromkeys(options.only or [])),
    )
    split = open_split(dataset, folder=cache.folder, progress=True)
    plan = replace(plan, has_times=split.train.times is not None)
    for stem in Reproduction(plan, split, options.threads, progress=True).run(study):
        written = sorted(str(file) for file in stem.parent.glob(f"{stem.name}.*"))
        typer.echo("\n".join(written))

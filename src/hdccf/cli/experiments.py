"""`hdccf tune`, `reproduce` and `verify`: searches of settings, the paper's studies, checks of its claims."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from hdccf.cli.data import CacheOptions, ReadOptions, SourceFolder, SplitOptions, open_split
from hdccf.cli.options import Flag, Panel, as_typed, with_options
from hdccf.config import Options
from hdccf.errors import ConfigError, without_secrets

if TYPE_CHECKING:
    from hdccf.data.split import Split
    from hdccf.experiments.plans import Task

Data = Annotated[SplitOptions, Panel("What to train on")]


def _open(data: SplitOptions, read: ReadOptions, cache: CacheOptions) -> "tuple[Task, Split]":
    """How models are evaluated on a data set or on own events, and the split of it."""
    from hdccf.experiments.plans import OWN_EVENTS, task_of

    split = open_split(data, 0, read, cache)
    if not (len(split.validation) and len(split.test)):
        raise ConfigError(
            "models are tuned on validation and compared on test, and one of them is empty; "
            "choose another --split"
        )
    return task_of(data.dataset) if data.dataset else OWN_EVENTS, split


class SearchOptions(Options):
    """What is searched, by which metric, and for how long."""

    trials: int = Field(default=50, ge=1)
    """Settings to try at most, over all calls."""
    minutes: float = Field(default=30.0, ge=0)
    """Processor minutes a thread of trials at most, over all calls."""
    time_aware: bool = False
    """Let the model use time as far as it can; without it no model does."""
    space: str = ""
    """Another search space of the model. For hdccf: printed (every part of the paper on, its parameters
    searched) and corrected (the same with β free)."""
    metric: Annotated[str | None, Flag(metavar="PROTOCOL:METRIC")] = None
    """What is maximised on the validation part; sampled:ndcg@10, or full:ndcg@10 for own events and
    full:ndcg@20 for gowalla-m1."""
    assignments: Annotated[list[str] | None, Flag("--set", metavar="NAME=VALUE")] = None
    """Keep a setting out of the search; repeatable."""
    seed: int = 0
    """Draws the settings, and trains every trial."""
    jobs: int = Field(default=1, ge=1)
    """Processes that work on the study together."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads of each process; all, shared, if not given."""


class StudyFiles(Options):
    """Where a study is kept, what it starts from, and where its best settings go."""

    study: Annotated[str | None, Flag(metavar="FILE")] = None
    """The study's journal, or sqlite:///FILE.db. One that exists is gone on with. Without it:
    results/studies/DATASET[-time]/MODEL[-SPACE].jsonl."""
    out: Annotated[Path | None, Flag(metavar="FILE.toml")] = None
    """The best settings. Without it: results/tuned/DATASET[-time]/MODEL[-SPACE].toml, where hdccf
    reproduce finds them."""
    start: Annotated[Path | None, Flag(metavar="FILE.toml")] = None
    """Settings that a new study tries first, such as those found on a smaller data set."""
    overwrite: bool = False
    """Replace an --out that another study wrote."""


@with_options
def tune(
    model: Annotated[str, typer.Option(metavar="NAME", help="Which model; hdccf models lists them.")],
    data: Data,
    read: ReadOptions,
    cache: CacheOptions,
    options: SearchOptions,
    files: StudyFiles,
) -> None:
    """Try settings of a model on a data set's validation part, and write the best as TOML.

    Call it again to go on after Ctrl-C or a kill, or in a second terminal to work on the same study.
    Hopeless trials are ended early. Needs pip install 'hdccf\\[tune]'.
    """
    from hdccf.config import parse_assignments, read_toml
    from hdccf.experiments.figures import draw_history, draw_importance
    from hdccf.experiments.plans import part_name
    from hdccf.experiments.studies import Budget, Question, StudyFile
    from hdccf.experiments.tuning import tune as search
    from hdccf.models import entry_named

    kind = entry_named(model).settings
    part = part_name(data.name, options.time_aware)
    row = f"{model}-{options.space}" if options.space else model
    place = files.study or f"results/studies/{part}/{row}.jsonl"
    target = files.out or Path(f"results/tuned/{part}/{row}.toml")
    task, split = _open(data, read, cache)
    fixed = task.fixed_for(kind) | parse_assignments(options.assignments or [])
    metric = options.metric or task.validation_metric
    question = Question(
        model,
        data.name,
        split.fingerprint,
        metric,
        options.time_aware,
        fixed,
        options.seed,
        options.space,
    )
    found = search(
        split,
        question,
        Budget(options.trials, options.minutes),
        study=place,
        out=target,
        start=read_toml(files.start) if files.start else None,
        jobs=options.jobs,
        threads=options.threads,
        overwrite=files.overwrite,
        progress=True,
    )
    with StudyFile(place, question) as opened:
        stem = opened.path.with_suffix("")
        draw_history(opened, stem.with_name(f"{stem.name}-history"))
        draw_importance(opened, stem.with_name(f"{stem.name}-importance"))
    typer.echo(
        f"{target}: {question.metric} {found.value:.4f} in trial {found.trial}, after {found.trials} of "
        f"{options.trials} trials and {found.minutes:.1f} of {options.minutes:g} minutes"
    )
    config = shlex.quote(str(target))
    typer.echo(f"Next: hdccf train --model {model} {as_typed(data, read)} --config {config}")


class StudyOptions(Options):
    """Which rows of a study are run, how long, and where the results go."""

    seeds: int | None = Field(default=None, ge=1)
    """Runs of each row. Without it 5; 3 for ml-1m and own events; for gowalla-m1 3 of HDCCF, 1 of others."""
    budget: Annotated[str, Flag(metavar="quick|full")] = "full"
    """quick: at most 2 seeds, 20 epochs, 32 dimensions, and every other point of a curve."""
    out: Annotated[Path, Flag(metavar="DIR")] = Path("results")
    """Where all of it goes, and where tuned settings are looked for before the package's presets."""
    assignments: Annotated[list[str] | None, Flag("--set", metavar="NAME=VALUE")] = None
    """A setting of every row that has it; repeatable."""
    only: Annotated[list[str] | None, Flag(metavar="ROW")] = None
    """Run only this row, such as ease or 'ours, random start'; repeatable. Rows that the journal has already
    stay in the table."""
    time_aware: Annotated[bool | None, Flag("--time-aware/--time-blind")] = None
    """Only the time-aware or the time-blind part of a table; both if not given."""
    metric: Annotated[str | None, Flag(metavar="PROTOCOL:METRIC")] = None
    """What the epoch is chosen by on the validation part; without it that of hdccf tune."""
    metrics: Annotated[str | None, Flag(metavar="NAME,NAME,…")] = None
    """What the tables show. Without it hr@10,ndcg@10,ndcg@50; hr@10,ndcg@10 for own events."""
    fresh: bool = False
    """Run again what the journal has; the newer result counts."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads; all if not given."""
    allow_dirty: bool = False
    """Write into the repository of the code though that has changed since its commit."""


@with_options
def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="table, ablation, scores, omega, neighbours, beta, temperature, recency, or all.",
        ),
    ],
    data: Data,
    read: ReadOptions,
    folder: SourceFolder,
    options: StudyOptions,
) -> None:
    """Run a study of the paper on a data set or on your own events, and write its tables and figures.

    Each finished run is a line of DIR/journal/DATASET.jsonl and is not run again; a run that was stopped goes
    on. table takes tuned settings from DIR/tuned, or else the package's, and says which.
    """
    from hdccf.config import parse_assignments
    from hdccf.data.datasets import origin_of
    from hdccf.experiments.plans import STUDIES, Plan
    from hdccf.experiments.reproduce import ALL, Reproduction

    if study not in (*STUDIES, ALL):
        raise ConfigError(f"study={study!r} is unknown; choose one of {[*STUDIES, ALL]}")
    cache = CacheOptions(**folder.model_dump(exclude_unset=True))
    task, split = _open(data, read, cache)
    if options.metric:
        task = replace(task, validation_metric=options.metric)
    if options.metrics:
        task = replace(task, metrics=tuple(options.metrics.split(",")))
    asked = {"--metric": options.metric, "--metrics": options.metrics}
    plan = Plan(
        data.name,
        task,
        options.out,
        options.seeds,
        options.budget,
        overrides=parse_assignments(options.assignments or []),
        only=tuple(dict.fromkeys(options.only or [])),
        time_aware=options.time_aware,
        given=" ".join(
            [
                f"--dataset {data.dataset}" if data.dataset else as_typed(data, read),
                *(f"{name} {value}" for name, value in asked.items() if value),
            ]
        ),
        has_times=split.train.times is not None,
    )
    reproduction = Reproduction(
        plan,
        split,
        options.threads,
        source=origin_of(data.dataset) if data.dataset else f"own events, {without_secrets(data.source)}",
        allow_dirty=options.allow_dirty,
        fresh=options.fresh,
        progress=True,
    )
    for stem in reproduction.run(study):
        written = sorted(str(file) for file in stem.parent.glob(f"{stem.name}.*"))
        typer.echo("\n".join(written))


def verify(
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Draws the worlds and batches; any seed must do.")
    ] = 0,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="PART,PART,…",
            help="Some of gradients, propositions, theorem, convergence, bound, blocks, dial. Without it: "
            "all of them.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: each claim with what was drawn and counted for it.")
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE.png",
            help="Also draw how the losses approach the ideal loss; needs pip install 'hdccf\\[plots]'. "
            "Never overwrites.",
        ),
    ] = None,
) -> None:
    """Check the paper's gradients, propositions, theorem and lower bound on the pieces that training uses.

    Prints claim, predicted, measured, interval and verdict. Exit code 1 if a claim fails.
    """
    import torch

    from hdccf.verify import PARTS
    from hdccf.verify import verify as check
    from hdccf.verify.report import draw, refuse_figure

    parts = PARTS if only is None else tuple(part.strip() for part in only.split(","))
    if figure is not None:
        refuse_figure(figure, parts)
    # Everything here is small. On two busy cores one thread took 82 seconds, and two, which then mostly wait
    # for each other, had not ended after ten minutes.
    torch.set_num_threads(1)
    report = check(seed, parts, progress=True)
    if figure is not None:
        draw(report.curves, figure)
    if as_json:
        typer.echo(report.to_json())
    else:
        from rich.console import Console

        Console().print(report)
    if report.failures:
        raise typer.Exit(1)

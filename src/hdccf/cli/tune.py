"""`hdccf tune`: search a model's settings on the validation part of a data set."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from hdccf.cli.options import Flag, Panel, with_options
from hdccf.cli.reading import CacheOptions
from hdccf.config import Options


class SearchOptions(Options):
    """What is searched, by which metric, and for how long."""

    trials: int = Field(default=50, ge=1)
    """Settings to try at most, over all calls."""
    minutes: float = Field(default=30.0, ge=0)
    """Processor minutes a thread of trials at most, over all calls."""
    time_aware: bool = False
    """Let the model use time as far as it can; without it no model does."""
    metric: Annotated[str | None, Flag(metavar="PROTOCOL:METRIC")] = None
    """What is maximised on the validation part; sampled:ndcg@10, or full:ndcg@20 for gowalla-m1."""
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
    results/studies/DATASET[-time]/MODEL.jsonl."""
    out: Annotated[Path | None, Flag(metavar="FILE.toml")] = None
    """The best settings. Without it: results/tuned/DATASET[-time]/MODEL.toml, where hdccf reproduce finds
    them."""
    start: Annotated[Path | None, Flag(metavar="FILE.toml")] = None
    """Settings that a new study tries first, such as those found on a smaller data set."""
    overwrite: bool = False
    """Replace an --out that another study wrote."""


@with_options
def tune(
    model: Annotated[str, typer.Option(metavar="NAME", help="Which model; hdccf models lists them.")],
    dataset: Annotated[str, typer.Option(metavar="NAME", help="A named data set (hdccf data list).")],
    options: SearchOptions,
    files: StudyFiles,
    cache: Annotated[CacheOptions, Panel(only=("folder",))],
) -> None:
    """Try settings of a model on a data set's validation part, and write the best as TOML.

    Call it again to go on after Ctrl-C or a kill, or in a second terminal to work on the same study.
    Hopeless trials are ended early.
    """
    from hdccf.config import parse_assignments, read_toml
    from hdccf.experiments.figures import draw_history, draw_importance
    from hdccf.experiments.plans import open_split, part_name, task_of
    from hdccf.experiments.studies import Budget, Question, StudyFile
    from hdccf.experiments.tuning import tune as search
    from hdccf.models import entry_named

    kind = entry_named(model).settings
    task, part = task_of(dataset), part_name(dataset, options.time_aware)
    place = files.study or f"results/studies/{part}/{model}.jsonl"
    target = files.out or Path(f"results/tuned/{part}/{model}.toml")
    split = open_split(dataset, folder=cache.folder, progress=True)
    fixed = task.fixed_for(kind) | parse_assignments(options.assignments or [])
    metric = options.metric or task.validation_metric
    question = Question(model, dataset, split.fingerprint, metric, options.time_aware, fixed, options.seed)
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
    typer.echo(f"Next: hdccf train --model {model} --dataset {dataset} --config {target}")

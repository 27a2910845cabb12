"""`hdccf tune`: find a model's best settings for a data set."""

from pathlib import Path
from typing import Annotated

import typer

from hdccf.cli import reading


def tune(
    model: Annotated[str, typer.Option(metavar="NAME", help="Which model; hdccf models lists them.")],
    dataset: Annotated[str, typer.Option(metavar="NAME", help="A named data set (hdccf data list).")],
    trials: Annotated[int, typer.Option(min=1, help="Settings to try at most, over all calls.")] = 50,
    minutes: Annotated[
        float, typer.Option(min=0, help="Processor minutes a thread of trials at most, over all calls.")
    ] = 30.0,
    time_aware: Annotated[
        bool,
        typer.Option(
            "--time-aware", help="Let the model use time as far as it can; without it no model does."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work on the study together.")] = 1,
    study: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The study's journal, or sqlite:///FILE.db. One that exists is gone on with. "
            "Without it: results/studies/DATASET[-time]/MODEL.jsonl.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="The best settings. Without it: results/tuned/DATASET[-time]/MODEL.toml.",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="Settings that a new study tries first, such as those found on a smaller data set.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an --out that another study wrote.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="PROTOCOL:METRIC",
            help="What is maximised on the validation part; sampled:ndcg@10, or full:ndcg@20 for gowalla-m1.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Keep a setting out of the search; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the settings, and trains every trial.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads of each process; all, shared, if not given.")
    ] = None,
    folder: reading.From = None,
) -> None:
    """Try settings of a model on a data set's validation part, and write the best as TOML.

    Call it again to go on after Ctrl-C or a kill, or in a second terminal to work on the same study.
    Hopeless trials are ended early.
    """
    from hdccf.config import parse_assignments, read_toml
    from hdccf.experiments.places import part_name
    from hdccf.experiments.studies import Budget, Question, open_study
    from hdccf.experiments.tasks import open_split, task_of
    from hdccf.experiments.tuning import tune as search
    from hdccf.experiments.tuning_figures import draw_history, draw_importance
    from hdccf.models import entry_named

    entry_named(model)
    task = task_of(dataset)
    part = part_name(dataset, time_aware)
    place = study or f"results/studies/{part}/{model}.jsonl"
    target = out or Path(f"results/tuned/{part}/{model}.toml")
    split = open_split(dataset, folder=folder, progress=True)
    fields = entry_named(model).settings.model_fields
    fixed = {name: value for name, value in task.fixed.items() if name in fields}
    fixed |= parse_assignments(assignments or [])
    question = Question(
        model, dataset, split.fingerprint, metric or task.validation_metric, time_aware, fixed, seed
    )
    found = search(
        split,
        question,
        Budget(trials, minutes),
        study=place,
        out=target,
        start=read_toml(start) if start else None,
        jobs=jobs,
        threads=threads,
        overwrite=overwrite,
        progress=True,
    )
    with open_study(place, question) as opened:
        stem = opened.path.with_suffix("")
        draw_history(opened, stem.with_name(f"{stem.name}-history"))
        draw_importance(opened, stem.with_name(f"{stem.name}-importance"))
    typer.echo(
        f"{target}: {question.metric} {found.value:.4f} in trial {found.trial}, after {found.trials} of "
        f"{trials} trials and {found.minutes:.1f} of {minutes:g} minutes"
    )
    typer.echo(f"Next: hdccf train --model {model} --dataset {dataset} --config {target}")

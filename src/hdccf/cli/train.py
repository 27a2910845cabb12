"""`hdccf train`: from events to a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdccf.cli import reading
from hdccf.errors import ConfigError

if TYPE_CHECKING:
    from hdccf.config import Settings
    from hdccf.data.interactions import Interactions
    from hdccf.data.split import Split
    from hdccf.recommend.run_folder import Cluster

_WHAT = "What to train on"
_HOW = "Model and settings"
_RUN = "The run"
_CLUSTER = "On several processes or machines"
SPLITS = ("leave-one-out", "global-time", "random", "predefined")
_PAPER_CORE = 5


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A named data set (hdccf data list).", rich_help_panel=_WHAT),
    ] = None,
    interactions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your own events: a file, a folder, a glob, or a database with --query.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    split_method: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="|".join(SPLITS),
            help="How to hold out what is tested on. The default, leave-one-out, takes each user's last "
            "item, as the paper does.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    core: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=0,
            help="Keep users and items with at least K interactions each. 5 for named data sets, as in the "
            "paper; 0, all, for your own.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    user: reading.User = None,
    item: reading.Item = None,
    time: reading.Time = None,
    rating: reading.Rating = None,
    title: reading.Title = None,
    minimum_rating: reading.MinimumRating = None,
    separator: reading.Separator = None,
    header: reading.Header = None,
    encoding: reading.Encoding = None,
    time_format: reading.TimeFormat = None,
    drop_nulls: reading.DropNulls = False,
    query: reading.Query = None,
    folder: reading.From = None,
    fresh: reading.Fresh = False,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Which model; hdccf models lists them.", rich_help_panel=_HOW)
    ] = "hdccf",
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Settings to start from, such as paper, time-blind or recency, or a data set that the model "
            "was tuned on; hdccf models lists them.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A TOML file of settings, over the preset.", rich_help_panel=_HOW),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="One setting, over the file; repeat for more: --set temperature=0.15 --set sampler=uniform.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random comes from it.", rich_help_panel=_HOW)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run's folder; runs/… if not given.", rich_help_panel=_RUN),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start from this run's vectors, on data that has grown; users and items are matched by "
            "their own ids, and new ones start fresh.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with a run that was stopped; takes no other options.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda where there is one.", rich_help_panel=_RUN)
    ] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processor threads; all if not given. Bits repeat for the same number.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Save at least this often.", rich_help_panel=_RUN)
    ] = 5.0,
    checkpoint_epochs: Annotated[
        int, typer.Option(min=1, help="And after this many epochs.", rich_help_panel=_RUN)
    ] = 10,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.", rich_help_panel=_RUN)
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Train with N workers on Ray; needs hdccf[ray]. The result is that of one process, but for "
            "rounding.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The Ray cluster: auto for the one that runs here, ray://HOST:10001, or HOST:6379. Without "
            "it one is started on this machine.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where workers find the pairs and leave checkpoints: a folder or an address (s3://…) that "
            "all machines reach. Without it the run's folder.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    worker_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="A worker that does not answer the others for so long is taken to hang, and all are started "
            "again from the last checkpoint.",
            rich_help_panel=_CLUSTER,
        ),
    ] = 300.0,
    retries: Annotated[
        int,
        typer.Option(min=0, help="How often failed workers are started again.", rich_help_panel=_CLUSTER),
    ] = 3,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Say at the end where the time went, by stage, and keep it as profile.json.",
            rich_help_panel=_RUN,
        ),
    ] = False,
) -> None:
    """Train a model on a data set or on your own events, and keep it as a run.

    The last interaction of each user is held out for testing, the one before for choosing the best epoch.
    Ctrl-C saves, and --resume goes on as if nothing had happened.
    """
    if resume is not None:
        _resume(resume, context)
        return
    source = _one_source(dataset, interactions)
    settings = _settings(model, preset, config, assignments or [])
    from hdccf.recommend.run_folder import FitOptions, free_folder
    from hdccf.training.fit import fit

    cluster = _cluster(context, settings, workers, ray_address, storage, worker_timeout, retries)
    options = {
        "user": user,
        "item": item,
        "time": time,
        "rating": rating,
        "title": title,
        "minimum_rating": minimum_rating,
        "separator": separator,
        "header": header,
        "encoding": encoding,
        "time_format": time_format,
        "drop_nulls": drop_nulls or None,
        "query": query,
        "folder": folder,
        "fresh": fresh,
    }
    core = (_PAPER_CORE if dataset else 0) if core is None else core
    split = _prepare(source, split_method, core, seed, options)
    _say_what_was_chosen(settings, split)
    place = out or free_folder(Path("runs"), f"{_stem(source)}-{preset or model}-seed{seed}")
    about = {"source": source, "core": core, "split": split.method}
    fit_options = FitOptions(
        device, threads, checkpoint_minutes, checkpoint_epochs, tensorboard, profile, cluster
    )
    common: dict[str, Any] = {
        "seed": seed,
        "out": place,
        "options": fit_options,
        "about": about,
        "init_from": init_from,
    }
    if cluster is None:
        fitted = fit(split, settings, progress=True, diagnosis=_diagnosis(about, split), **common)
    else:
        from hdccf.distributed.driver import fit as fit_together

        fitted = fit_together(split, settings, progress=True, **common)
    _tell(fitted.path)


def _cluster(
    context: typer.Context,
    settings: "Settings",
    workers: int | None,
    address: str | None,
    storage: str | None,
    timeout: float,
    retries: int,
) -> "Cluster | None":
    """The workers that were asked for; what cannot be is refused before any data is read."""
    if workers is None:
        names = ("ray_address", "storage", "worker_timeout", "retries")
        given = [name for name in names if "COMMANDLINE" in str(context.get_parameter_source(name))]
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} goes with --workers N; give both or neither")
        return None
    from hdccf.errors import needs_ray
    from hdccf.recommend.run_folder import Cluster

    needs_ray("--workers")
    from hdccf.distributed.driver import check

    check(settings)
    return Cluster(workers, address, storage, timeout, retries)


def _resume(path: Path, context: typer.Context) -> None:
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name not in (None, "resume")
        and "COMMANDLINE" in str(context.get_parameter_source(str(option.name)))
    ]
    if given:
        raise ConfigError(
            f"--resume goes on with the run's own data and settings; leave out {', '.join(sorted(given))}"
        )
    from hdccf.errors import needs_ray
    from hdccf.recommend.run_folder import RunFolder
    from hdccf.training.fit import resume

    run = RunFolder.open(path)
    if run.options.cluster is None:
        fitted = resume(path, progress=True, diagnosis=_diagnosis(run.config["data"], run.split()))
    else:
        needs_ray("a run that was started with --workers")
        from hdccf.distributed.driver import resume as resume_together

        fitted = resume_together(run, progress=True)
    _tell(fitted.path)


def _one_source(dataset: str | None, interactions: str | None) -> str:
    if (dataset is None) == (interactions is None):
        raise ConfigError(
            "give one of --dataset NAME (hdccf data list shows them) and --interactions FILE (your events)"
        )
    if dataset is not None:
        from hdccf.data.datasets import find

        find(dataset)
    return dataset or interactions or ""


def _settings(model: str, preset: str | None, config: Path | None, assignments: list[str]) -> "Settings":
    from hdccf.config import build_settings, parse_assignments, read_toml
    from hdccf.models import entry_named, preset_named

    entry = entry_named(model)
    layers: list[dict[str, Any]] = []
    if preset is not None:
        layers.append(preset_named(model, preset))
    if config is not None:
        layers.append(read_toml(config))
    return build_settings(entry.settings, *layers, parse_assignments(assignments))


def _prepare(source: str, method: str | None, core: int, seed: int, options: dict[str, Any]) -> "Split":
    from hdccf.data import datasets
    from hdccf.data.core import k_core
    from hdccf.data.split import global_time_split, leave_one_out, random_split

    published = source in datasets.DATASETS and datasets.DATASETS[source].parts is not None
    method = method or ("predefined" if published else "leave-one-out")
    if method not in SPLITS:
        raise ConfigError(f"--split {method!r} is unknown; choose one of {', '.join(SPLITS)}")
    if method == "predefined":
        if not published:
            raise ConfigError(
                f"--split predefined needs a data set that is published as a split, and {source} is not; "
                f"choose one of {', '.join(SPLITS[:-1])}"
            )
        return datasets.load_split(
            source, source_folder=options["folder"], fresh=options["fresh"], progress=True
        )
    data: Interactions = reading.open_source(source, **options)
    if core:
        data = k_core(data, users=core, items=core)
    if method == "leave-one-out":
        return leave_one_out(data)
    if method == "global-time":
        return global_time_split(data)
    return random_split(data, seed=seed)


def _say_what_was_chosen(settings: "Settings", split: "Split") -> None:
    from hdccf.console import note

    for remark in (repr(split), *split.remarks()):
        note(remark)
    choices = settings.choices(split.train)
    if choices is not None:
        note(choices)


def _diagnosis(about: dict[str, Any], split: "Split") -> Any:
    """Where the truth is known the share of false negatives is logged as well."""
    if about.get("source") != "synthetic":
        return None
    from hdccf.data.synthetic import synthetic_world
    from hdccf.training.telemetry import false_negative_rate

    return false_negative_rate(synthetic_world(seed=0), split.train)


def _stem(source: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(source).stem) or "events"


def _tell(path: Path) -> None:
    import json

    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    best = (
        ""
        if result["best_value"] is None
        else f", validation {result['best_value']:.4f} at epoch {result['best_epoch']}"
    )
    typer.echo(f"{path}: trained in {result['seconds']:.0f} s{best}")
    typer.echo(f"Next: hdccf evaluate {path}")

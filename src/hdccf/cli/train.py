"""`hdccf train`: train a model on a split of interactions, and keep it as a run."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdccf.cli.answering import given_items
from hdccf.cli.data import CacheOptions, ReadOptions, SplitOptions, open_split
from hdccf.cli.options import Flag, Panel, was_given, with_options
from hdccf.config import Cluster, FitOptions, Options, Settings, TrainingSettings
from hdccf.errors import ConfigError, needs_ray

if TYPE_CHECKING:
    from hdccf.data.interactions import Interactions
    from hdccf.data.split import Split
    from hdccf.recommend.recommender import Recommender

_RUN = "The run"
CLUSTER = "On several processes or machines"
CLUSTER_FLAGS = {
    "workers": Flag(metavar="N"),
    "address": Flag("--ray-address", metavar="ADDRESS"),
    "storage": Flag(metavar="PATH"),
    "timeout": Flag("--worker-timeout", metavar="SECONDS"),
}


class ModelOptions(Options):
    """Which model is trained, with which settings."""

    model: Annotated[str, Flag(metavar="NAME")] = "hdccf"
    """Which model; hdccf models lists them."""
    preset: Annotated[str | None, Flag(metavar="NAME")] = None
    """Settings to start from, such as hdccf, attention, spectral or paper, or a data set that the model was
    tuned on; hdccf models lists them. Without one HDCCF's configuration is chosen on validation."""
    config: Annotated[Path | None, Flag(metavar="FILE")] = None
    """A TOML file of settings, over the preset."""
    assignments: Annotated[list[str] | None, Flag("--set", metavar="NAME=VALUE")] = None
    """One setting, over the file; repeat for more: --set temperature=0.15 --set sampler=uniform."""
    seed: int = 0
    """Everything random comes from it."""

    @property
    def automatic(self) -> bool:
        """Whether the configuration is chosen on validation, within what --set leaves open."""
        return self.model == ModelOptions.model_fields["model"].default and not (self.preset or self.config)

    def settings(self, *, own_events: bool = False) -> Settings:
        """The model's settings: its defaults, then preset, file and assignments over each other."""
        from hdccf.config import build_settings, parse_assignments, read_toml
        from hdccf.models import entry_named, preset_named

        kind = entry_named(self.model).settings
        # Own events are ranked as users will meet them; named data sets as the paper does.
        ranked = {"validation_metric": "full:ndcg@10"}
        own = ranked if own_events and issubclass(kind, TrainingSettings) else {}
        preset = {} if self.preset is None else preset_named(self.model, self.preset)
        file = {} if self.config is None else read_toml(self.config)
        return build_settings(kind, own, preset, file, parse_assignments(self.assignments or []))


class RunOptions(Options):
    """Which folder a run goes to, and what it starts from."""

    out: Annotated[Path | None, Flag(metavar="DIR")] = None
    """The run's folder; runs/… if not given."""
    init_from: Annotated[Path | None, Flag(metavar="RUN")] = None
    """Start from this run's vectors, on data that has grown; users and items are matched by their own ids,
    and new ones start fresh."""
    append: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Add the events of this log (hdccf serve --events) to the data; without --interactions and --dataset to
    the events of the run of --init-from."""
    item_features: Annotated[Path | None, Flag(metavar="FILE")] = None
    """A file of items (Parquet, CSV, TSV, JSON Lines): attributes for recommend --where, and vectors of items
    without interactions; needs pip install 'hdccf[features]' for text, categories and lists."""
    resume: Annotated[Path | None, Flag(metavar="RUN")] = None
    """Go on with a run that was stopped; takes no other options."""


@with_options
def train(
    context: typer.Context,
    data: Annotated[SplitOptions, Panel("What to train on")],
    read: ReadOptions,
    cache: CacheOptions,
    model: Annotated[ModelOptions, Panel("Model and settings")],
    run: Annotated[RunOptions, Panel(_RUN)],
    options: Annotated[FitOptions, Panel(_RUN, flags={"mlflow": Flag(metavar="URI")})],
    cluster: Annotated[Cluster | None, Panel(CLUSTER, flags=CLUSTER_FLAGS)],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME_OR_FILE",
            help="In place of --dataset and --interactions: a named data set or a file.",
        ),
    ] = None,
) -> None:
    """Train a model on a data set or on your own events, and keep it as a run.

    The last interaction of each user is held out for testing, the one before for choosing the best epoch.
    Your own events are then trained on once more with nothing held out (--no-refit leaves that out).
    Without --preset a few configurations of HDCCF are compared first, and the best is trained to the end;
    --set narrows the choice, and --minutes bounds it. Ctrl-C saves, and --resume goes on as if nothing had
    happened.
    """
    if run.resume is not None:
        _resume(run.resume, context)
        return
    from hdccf.console import note
    from hdccf.recommend.features import read_items
    from hdccf.recommend.run_folder import free_folder

    if source is not None:
        data = data.with_source(source)
    base = _events_of(run, data)
    source = data.source if base is None else str(run.append)
    settings = model.settings(own_events=data.dataset is None)
    if cluster is not None:
        needs_ray("--workers")
        from hdccf.distributed.driver import check

        check(settings)  # before any data is read
        if options.refit:
            raise ConfigError("--refit trains in one process; leave out --workers, or --refit")
    else:
        from hdccf.training.loop import device_named

        device_named(options.device)
    if run.item_features is not None:
        read_items(run.item_features)  # what cannot be read is refused before the training
    split = open_split(data, model.seed, read, cache, base=base, append=run.append)
    candidates = {model.model: settings}
    if model.automatic and cluster is None:
        candidates = _candidates(settings.model_dump(exclude_unset=True), split, run.init_from)
    settings, *others = candidates.values()
    decided = settings.choices(split.train)
    if others:
        decided = f"comparing {', '.join(candidates)} on validation; --preset or --set narrows the choice"
    elif not len(split.validation) and isinstance(settings, TrainingSettings):
        chosen = (
            f"{next(iter(candidates))}, the first automatic configuration, is" if model.automatic else "it is"
        )
        decided = (
            f"there is nothing to validate on: {chosen} trained for {settings.epochs} epochs; "
            "--set epochs=N is another number"
        )
    if options.refit is None:
        own = (data.interactions is not None or base is not None) and split.method != "none"
        options = options.changed(refit=own and cluster is None)
        if own and cluster is not None:
            note("with --workers there is no refit: held-out events are not learnt from")
    for remark in (repr(split), *split.remarks(), decided):
        if remark:
            note(remark)
    name = (
        f"{data.name if base is None else Path(source).stem}-{model.preset or model.model}-seed{model.seed}"
    )
    about = {"source": source, "core": data.k_core, "split": split.method}
    common: dict[str, Any] = {
        "seed": model.seed,
        "out": run.out or free_folder(Path("runs"), name),
        "options": options.changed(cluster=cluster),
        "about": about,
        "init_from": run.init_from,
        "progress": True,
    }
    if cluster is None:
        from hdccf.training.fit import fit

        fitted = fit(split, candidates, diagnosis=_diagnosis(about, split), **common)
    else:
        from hdccf.distributed.driver import fit as fit_together

        fitted = fit_together(split, settings, **common)
    if run.item_features is not None:
        given_items(fitted, run.item_features)
    _print_result(fitted)


def _events_of(run: RunOptions, data: SplitOptions) -> "Interactions | None":
    """The events of the run to start from, where a log is added to them; None where the options name data."""
    if run.append is None or data.dataset is not None or data.interactions is not None:
        return None
    if run.init_from is None:
        raise ConfigError(
            "--append FILE adds events to data; give --init-from RUN for that run's events, or --interactions"
        )
    from hdccf.recommend.run_folder import RunFolder

    return RunFolder.open(run.init_from).split().joined()


def _candidates(fixed: dict[str, Any], split: "Split", init_from: Path | None) -> dict[str, Settings]:
    """HDCCF's configurations with some settings given; that of the run to start from, where there is one."""
    from hdccf.models.hdccf.settings import automatic_candidates
    from hdccf.recommend.run_folder import RunFolder

    if init_from is None:
        return dict(automatic_candidates(split.train, validated=len(split.validation) > 0, **fixed))
    source = RunFolder.open(init_from)
    return {source.model: source.settings.changed(**fixed)}


def _resume(path: Path, context: typer.Context) -> None:
    names = {str(option.name): option.opts[0] for option in context.command.params}
    given = sorted(flag for name, flag in names.items() if name != "resume" and was_given(context, name))
    if given:
        raise ConfigError(
            f"--resume goes on with the run's own data and settings; leave out {', '.join(given)}"
        )
    from hdccf.recommend.run_folder import RunFolder
    from hdccf.training.fit import resume

    run = RunFolder.open(path)
    if run.options.cluster is None:
        fitted = resume(path, progress=True, diagnosis=_diagnosis(run.config["data"], run.split()))
    else:
        needs_ray("a run that was started with --workers")
        from hdccf.distributed.driver import resume as resume_together

        fitted = resume_together(run, progress=True)
    _print_result(fitted)


def _diagnosis(about: dict[str, Any], split: "Split") -> Any:
    """Where the true preferences are known the false-negative rate is logged as well."""
    if about.get("source") != "synthetic":
        return None
    from hdccf.data.synthetic import synthetic_world
    from hdccf.training.telemetry import false_negative_rate

    return false_negative_rate(synthetic_world(seed=0), split.train)


def _print_result(fitted: "Recommender") -> None:
    path, split = fitted.path, fitted.split
    result = json.loads((path / "result.json").read_text(encoding="utf-8"))
    value, epoch = result["best_value"], result["best_epoch"]
    best = "" if value is None else f", validation {value:.4f} at epoch {epoch}"
    typer.echo(f"{path}: trained in {result['seconds']:.0f} s{best}")
    if "refit" in result:
        typer.echo(
            f"Refitted on all {result['refit']['pairs']:,} pairs: recommend and serve use these weights, "
            "evaluate those before, which have not seen the held-out items (--no-refit leaves it out)"
        )
    quoted = shlex.quote(str(path))
    held_out = {"": split.test, " --part validation": split.validation}
    tested = [option for option, part in held_out.items() if len(part)]
    following = f"evaluate {quoted}{tested[0]}" if tested else f"recommend {quoted} USER"
    typer.echo(f"Next: hdccf {following}")

"""`hdccf evaluate` and `hdccf compare`: ranking metrics of runs, and tests of their differences."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdccf.cli.answering import Run, load
from hdccf.cli.options import Flag, Panel, with_options
from hdccf.cli.train import CLUSTER_FLAGS
from hdccf.config import MAX_DIAL, Cluster, EvaluationOptions
from hdccf.errors import ConfigError, EvaluationError, needs_ray

if TYPE_CHECKING:
    from hdccf.evaluation.compare import Comparison
    from hdccf.evaluation.evaluation import Evaluation, Rank
    from hdccf.recommend.dial import Curve

_DEFAULTS = EvaluationOptions()
PROTOCOLS_OF = {**{name: (name,) for name in _DEFAULTS.protocols}, "both": _DEFAULTS.protocols}


def _protocols(given: str) -> tuple[str, ...]:
    if given not in PROTOCOLS_OF:
        raise EvaluationError(f"--protocol {given!r} is unknown; choose one of {list(PROTOCOLS_OF)}")
    return PROTOCOLS_OF[given]


def _lengths(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError as cause:
        raise EvaluationError(
            f"--k {given!r} is not a list of whole numbers; write them with commas, such as --k 10,50"
        ) from cause


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


_RANKING = Panel(
    flags={
        "metrics": Flag(metavar="NAME,NAME,…", parse=_names),
        "protocols": Flag("--protocol", metavar="sampled|full|both", shown="both", parse=_protocols),
        "ks": Flag("--k", metavar="K,K,…", shown=",".join(map(str, _DEFAULTS.ks)), parse=_lengths),
        "part": Flag(metavar="test|validation"),
        "weighting": Flag(metavar="uniform|popularity"),
    }
)
Ranking = Annotated[EvaluationOptions, _RANKING]
_COMPARED = tuple(name for name in EvaluationOptions.model_fields if name != "metrics")
"""`compare` has names of its own: it asks for them among what was measured."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with full precision.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")]


@with_options
def evaluate(
    run: Run,
    options: Ranking,
    cluster: Annotated[Cluster | None, Panel(only=("workers", "address"), flags=CLUSTER_FLAGS)],
    popularity: Annotated[
        float | None,
        typer.Option(
            metavar="γ",
            min=-MAX_DIAL,
            max=MAX_DIAL,
            help="Another setting of the popularity dial than validation chose; nothing is kept.",
        ),
    ] = None,
    dial: Annotated[
        bool,
        typer.Option(
            "--dial",
            help="The curve of accuracy, coverage and popularity against the dial, as a table, and as a "
            "picture in the run's directory.",
        ),
    ] = False,
    diversity: Annotated[
        bool,
        typer.Option(
            "--diversity",
            help="The curve of accuracy against the similarity within lists (recommend --diversity), "
            "as a table, and as a picture in the run's directory.",
        ),
    ] = False,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Rank a run's held-out items and print how well it did; per-user values are kept in its directory."""
    from hdccf.console import note
    from hdccf.evaluation.compare import evaluate_run

    _refuse_both(as_json, as_markdown)
    if dial or diversity or popularity is not None:
        if (cluster is not None) + dial + diversity + (popularity is not None) > 1:
            raise EvaluationError(
                "--dial, --diversity, --popularity and --workers exclude each other; choose one"
            )
        _show(_dialled(run, options, popularity, diversity), as_json, as_markdown)
        return
    ranking: AbstractContextManager[Rank | None] = nullcontext()
    if cluster is not None:
        needs_ray("--workers")
        from hdccf.distributed.inference import ranked_together
        from hdccf.recommend.run_folder import RunFolder

        ranking = ranked_together(RunFolder.open(run), cluster, options.memory)
    loaded = load(run, items=False)
    if loaded.refit is not None:
        note("this is the model before the refit, which has not seen the held-out items")
    with ranking as rank:
        found = evaluate_run(loaded, progress=True, rank=rank, **options.model_dump())
    _show(found, as_json, as_markdown)


@with_options
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_A RUN_B …", help="Run directories on the same split, or the one .parquet of a table."
        ),
    ],
    options: Annotated[EvaluationOptions, Panel(only=_COMPARED, flags=_RANKING.flags)],
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="NAME,NAME,…",
            help="What to compare, such as hr@10,ndcg@50,map@10,auc. "
            "Without it: HR at the first K, NDCG at all.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Print runs side by side with tests of the difference: best bold, second underlined, * for p < 0.01.

    Runs that differ only in their seed are one system: each user's values are averaged over its seeds, and
    the deviation over seeds is printed beside.
    """
    from hdccf.console import track
    from hdccf.evaluation.compare import compare as compare_systems
    from hdccf.evaluation.compare import evaluate_run, grouped, on_common_seeds, read_per_user

    _refuse_both(as_json, as_markdown)
    names = _names(metrics) if metrics else None
    if len(runs) == 1 and runs[0].suffix == ".parquet":
        _show(compare_systems(on_common_seeds(*read_per_user(runs[0])), names), as_json, as_markdown)
        return
    if len(runs) < 2:
        raise EvaluationError(f"{len(runs)} run cannot be compared; give two run directories or more")
    systems = grouped([load(run, items=False) for run in runs])
    evaluations: dict[str, list[Evaluation]] = {label: [] for label in systems}
    todo = [(label, run) for label, members in systems.items() for run in members]
    for label, run in track(todo, "evaluating runs", len(todo)):
        evaluations[label].append(evaluate_run(run, again=False, **options.model_dump()))
    _show(compare_systems(evaluations, names), as_json, as_markdown)


def _dialled(
    run: Path, options: EvaluationOptions, popularity: float | None, diversity: bool
) -> "Evaluation | Curve":
    """A run at another setting of the dial, or a whole curve with its picture."""
    from hdccf.console import note
    from hdccf.evaluation.evaluation import evaluate as evaluate_scorer
    from hdccf.recommend.dial import diversity_curve, popularity_curve

    loaded = load(run, items=False)
    if popularity is not None:
        scorer = loaded.scorer("train", popularity)
        return evaluate_scorer(scorer, loaded.split, progress=True, **options.model_dump())
    curve: Curve = (diversity_curve if diversity else popularity_curve)(loaded, options, progress=True)
    picture = loaded.path / ("diversity.png" if diversity else "dial.png")
    try:
        curve.plot(picture)
    except ConfigError as cause:
        note(f"no picture: {cause}")
    else:
        note(f"picture: {picture}")
    return curve


def _show(found: "Evaluation | Comparison | Curve", as_json: bool, as_markdown: bool) -> None:
    if as_json:
        typer.echo(found.to_json())
    elif as_markdown:
        typer.echo(found.to_markdown(), nl=False)
    else:
        from rich.console import Console

        Console().print(found)


def _refuse_both(as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise EvaluationError("--json and --markdown exclude each other; choose one")

"""`hdccf evaluate` and `hdccf compare`: how good a run is, and whether one is better than another."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdccf.errors import ConfigError, EvaluationError, needs_ray

if TYPE_CHECKING:
    from hdccf.evaluation.comparison import Comparison
    from hdccf.evaluation.evaluating import Rank
    from hdccf.evaluation.report import Evaluation

PROTOCOLS_OF = {"sampled": ("sampled",), "full": ("full",), "both": ("sampled", "full")}

Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        metavar="sampled|full|both",
        help="'sampled' ranks each held-out item against drawn negatives, as the paper does; 'full' against "
        "all items, as a user would meet them. Sampled figures look much better: read both.",
    ),
]
Ks = Annotated[
    str, typer.Option("--k", metavar="K,K,…", help="Lengths of the lists that are judged, such as 10,50.")
]
Part = Annotated[
    str,
    typer.Option(
        "--part", metavar="test|validation", help="Which held-out part. Tune on validation, report test."
    ),
]
Negatives = Annotated[
    int, typer.Option("--negatives", help="How many negatives sampled ranking draws for each user.")
]
Weighting = Annotated[
    str,
    typer.Option(
        "--weighting",
        metavar="uniform|popularity",
        help="How negatives are drawn: all items alike, or popular ones more often, which is harder.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Draws the negatives. Keep it: every model is to see the same ones.")
]
Memory = Annotated[
    int,
    typer.Option("--memory", help="MiB for scores at a time; less is slower on very large catalogues only."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with full precision.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that hdccf train wrote.")],
    protocol: Protocol = "both",
    k: Ks = "10,50",
    part: Part = "test",
    negatives: Negatives = 99,
    weighting: Weighting = "uniform",
    seed: Seed = 0,
    memory: Memory = 256,
    as_json: Json = False,
    as_markdown: Markdown = False,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rank with N workers on Ray; needs hdccf[ray].")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --workers: the Ray cluster, as in hdccf train."),
    ] = None,
) -> None:
    """Rank a run's held-out items and print how well it did; per-user values are kept in its directory."""
    from hdccf.evaluation.kept import evaluate_run
    from hdccf.recommend.recommender import load_run

    protocols, ks = _protocols(protocol), _lengths(k)
    _refuse_both(as_json, as_markdown)
    with _ranking(run, workers, ray_address, memory) as rank:
        found = evaluate_run(
            load_run(run),
            part=part,
            protocols=protocols,
            ks=ks,
            negatives=negatives,
            weighting=weighting,
            seed=seed,
            memory=memory,
            progress=True,
            rank=rank,
        )
    _show(found, as_json, as_markdown)


@contextmanager
def _ranking(run: Path, workers: int | None, ray_address: str | None, memory: int) -> Iterator["Rank | None"]:
    """Who ranks, where it is not this process."""
    if workers is None:
        if ray_address is not None:
            raise ConfigError("--ray-address goes with --workers N; give both or neither")
        yield None
        return
    needs_ray("--workers")
    from hdccf.distributed.ranking import ranked_together
    from hdccf.recommend.run_folder import Cluster, RunFolder

    with ranked_together(RunFolder.open(run), Cluster(workers, ray_address), memory) as rank:
        yield rank


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_A RUN_B …", help="Run directories on the same split.")
    ],
    protocol: Protocol = "both",
    k: Ks = "10,50",
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="NAME,NAME,…",
            help="What to compare, such as hr@10,ndcg@50,map@10,auc. "
            "Without it: HR at the first K, NDCG at all.",
        ),
    ] = None,
    part: Part = "test",
    negatives: Negatives = 99,
    weighting: Weighting = "uniform",
    seed: Seed = 0,
    memory: Memory = 256,
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """Print runs side by side with tests of the difference: best bold, second underlined, * for p < 0.01.

    Runs that differ only in their seed are one system: each user's values are averaged over its seeds, and
    the deviation over seeds is printed beside.
    """
    from hdccf.console import track
    from hdccf.evaluation.comparison import compare as compare_systems
    from hdccf.evaluation.kept import evaluate_run, grouped
    from hdccf.recommend.recommender import load_run

    protocols, ks = _protocols(protocol), _lengths(k)
    _refuse_both(as_json, as_markdown)
    if len(runs) < 2:
        raise EvaluationError(f"{len(runs)} run cannot be compared; give two run directories or more")
    names = [name.strip() for name in metrics.split(",")] if metrics else None
    systems = grouped([load_run(run) for run in runs])
    evaluations: dict[str, list[Evaluation]] = {label: [] for label in systems}
    todo = [(label, run) for label, members in systems.items() for run in members]
    for label, run in track(todo, "evaluating runs", len(todo)):
        found = evaluate_run(
            run,
            part=part,
            protocols=protocols,
            ks=ks,
            negatives=negatives,
            weighting=weighting,
            seed=seed,
            memory=memory,
            again=False,
        )
        evaluations[label].append(found)
    _show(compare_systems(evaluations, names), as_json, as_markdown)


def _show(found: "Evaluation | Comparison", as_json: bool, as_markdown: bool) -> None:
    if as_json:
        typer.echo(found.to_json())
    elif as_markdown:
        typer.echo(found.to_markdown(), nl=False)
    else:
        from rich.console import Console

        Console().print(found)


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


def _refuse_both(as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise EvaluationError("--json and --markdown exclude each other; choose one")

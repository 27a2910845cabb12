"""`hdccf similar`, `score`, `explain`, `export`, `report` and `serve`: commands on a trained run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdccf.cli.options import Flag, Panel, with_options
from hdccf.config import EXPLAINED, REASONS, TOP_K
from hdccf.errors import ConfigError, one_line
from hdccf.serving.settings import ServeSettings

if TYPE_CHECKING:
    import polars as pl

    from hdccf.recommend.recommender import Recommender

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that hdccf train wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, a line a row.")]
TopK = Annotated[int, typer.Option("--k", help="How many each.")]


def similar(
    run: Run,
    item: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Items like this one; repeat for more.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Users like this one; repeat for more.")
    ] = None,
    k: TopK = TOP_K,
    as_json: AsJson = False,
) -> None:
    """Print the items most like an item, or the users most like a user.

    By the model's own f(i, i′) or f(u, u′) where it was trained with one, otherwise by its vectors; the title
    of the table says which.
    """
    if bool(item) == bool(user):
        raise ConfigError("give one of --item ID and --user ID")
    loaded = load(run)
    kind = "item" if item else "user"
    found = loaded.similar_items(item, k=k) if item else loaded.similar_users(user or [], k=k)
    stated = loaded.relation("items" if item else "users").stated.removeprefix("the ")
    print_lists(found, as_json, f"like {kind} {{}}, by the {stated}", by=kind)


def score(
    run: Run,
    pair: Annotated[
        list[str] | None, typer.Argument(metavar="USER ITEM", help="One pair, by their own ids.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Many pairs: CSV or Parquet with the columns user and item."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print f of pairs of a user and an item; many come as CSV, in the order of the file."""
    if (pairs is None) == (not pair) or (pair and len(pair) != 2):
        raise ConfigError("give one pair, as USER ITEM, or --pairs FILE with the columns user and item")
    import polars as pl

    from hdccf.data.parquet import read_parquet

    try:
        if pairs is None:
            frame = pl.DataFrame([pair], schema=["user", "item"], orient="row")
        elif pairs.suffix == ".parquet":
            frame = read_parquet(pairs)
        else:
            frame = pl.read_csv(pairs, infer_schema=False)  # an id with leading zeros stays what it is
        frame = frame.select(pl.col("user", "item").cast(pl.String))
    except (OSError, pl.exceptions.PolarsError) as cause:
        raise ConfigError(
            f"{pairs} cannot be read ({one_line(cause)}); give CSV or Parquet with the columns user and item"
        ) from cause
    found = load(run).score(frame["user"].to_list(), frame["item"].to_list())
    typer.echo(found.write_ndjson() if as_json else found.write_csv(), nl=False)


def explain(
    run: Run,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user's own id.")],
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="ITEM …", help="Items to explain; the best k of the user if not given."),
    ] = None,
    k: Annotated[
        int, typer.Option("--k", help="How many of the best, where no items are given.")
    ] = EXPLAINED,
    top: Annotated[int, typer.Option("--top", help="How many reasons each.")] = REASONS,
    as_json: AsJson = False,
) -> None:
    """Print which items of a user's history a recommendation is based on.

    Shares are of a surrogate, a sum over the user's items; how far it orders their candidates as the model
    does is printed below (Kendall's τ: 1 is the same order).
    """
    found = load(run).explain(user, items or None, k=k, top=top)
    if as_json:
        typer.echo(found.parts.write_ndjson(), nl=False)
    else:
        for (item,), rows in found.parts.group_by("item", maintain_order=True):
            title = f" {rows['title'][0]}" if "title" in rows.columns else ""
            shown = rows.select(
                share="share",
                because="because",
                **({"title": "because_title"} if "because_title" in rows.columns else {}),
            )
            print_table(shown, f"item {item}{title}, score {rows['score'][0]:.3f}, because of")
    typer.echo(f"surrogate: {found.surrogate}; Kendall's τ with the model {found.agreement:.3f}", err=as_json)


def export(
    run: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="parquet|numpy|onnx",
            help="Vectors as Parquet or NumPy's .npy, or an ONNX graph from users to scores (hdccf\\[onnx]).",
        ),
    ] = "parquet",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Write a run's vectors and vocabularies to a folder, for use without hdccf."""
    load(run).export(out, file_format=file_format, overwrite=overwrite)
    names = ", ".join(sorted(file.name for file in out.iterdir()))
    typer.echo(f"{out}: {names}")


def items(
    run: Run,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Parquet, CSV, TSV or JSON Lines: a row for each item."),
    ],
    item: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The item's id; otherwise guessed.")
    ] = None,
) -> None:
    """Give a run a file of items: attributes for --where, and vectors of items without interactions.

    Numbers, categories, lists, texts and ready vectors are told apart by their types. An item without
    interactions is represented by what the model has learnt about items with such features. Text, categories
    and lists need the extra features (pip install 'hdccf\\[features]'). hdccf train --item-features does this
    after a training.
    """
    from hdccf.recommend.recommender import load_run

    given_items(load_run(run, items=False), file, item)


def given_items(trained: "Recommender", file: Path, item: str | None = None) -> None:
    """Gives a trained model a file of items, and prints what came of it."""
    found = trained.with_features(file, item=item)
    known = int(found.attributes["given"].count())
    cold = found.n_items - trained.n_items
    typer.echo(f"{trained.path}: {known:,} of {found.n_items:,} items have attributes, {cold:,} are new")


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file to write; report.html in RUN if not given."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
) -> None:
    """Write one HTML file with a run's figures, curves, diagnostics, examples and settings.

    It asks nothing of any host and can be sent as it is. The figures of the test part are those of hdccf
    evaluate, which is done first where it has not been.
    """
    from hdccf.report import write_report

    target = out or run / "report.html"
    write_report(load(run, items=False), target, overwrite=overwrite, progress=True)
    typer.echo(str(target))


_ACCESS = "Who may ask"
_FLAGS = {
    "host": Flag(metavar="ADDRESS"),
    "port": Flag(metavar="N"),
    "api_key_file": Flag(metavar="FILE", panel=_ACCESS),
    "allowed_hosts": Flag("--allow-host", metavar="NAME", panel=_ACCESS),
    "cors_origins": Flag("--cors-origin", metavar="ORIGIN", panel=_ACCESS),
    "watch": Flag("--watch"),
    "events": Flag(metavar="FILE"),
    "items": Flag(metavar="FILE"),
}


@with_options
def serve(
    run: Run,
    options: Annotated[ServeSettings, Panel(only=tuple(_FLAGS), flags=_FLAGS)],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with these and more settings; options come after it."),
    ] = None,
) -> None:
    """Serve a run: REST under /v1, a page at /, and /healthz, /readyz and /metrics beside.

    A new model is taken without a dropped request, and only if it loads. Ctrl-C or SIGTERM stops when what
    is under way has ended. Needs pip install 'hdccf\\[serve]'.
    """
    # Before polars is loaded: its threads have nothing to share in the few rows of an answer, and handing
    # them over takes longer than the work.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from hdccf.config import read_toml

    try:
        from hdccf.serving.app import serve as listen
    except ModuleNotFoundError as cause:
        raise ConfigError(
            f"serving needs {cause.name}; install it with: pip install -c constraints.txt 'hdccf[serve]'"
        ) from cause
    given = options.model_dump(exclude_unset=True)
    listen(run, ServeSettings(**{**(read_toml(config) if config else {}), **given}))


def load(run: Path, index_above: int | None = None, *, items: bool = True) -> "Recommender":
    """The trained model of a run, for evaluation without the items that it was not trained on."""
    from hdccf.recommend.recommender import load_run

    return load_run(run, index_above=index_above, items=items)


def print_lists(found: "pl.DataFrame", as_json: bool, title: str, by: str = "") -> None:
    """A table for each value of the column `by`, which the title names at {}; or all rows as JSON."""
    if as_json:
        typer.echo(found.write_ndjson(), nl=False)
        return
    for (own,), rows in found.group_by(by, maintain_order=True) if by else [((None,), found)]:
        popular = "source" in rows.columns and rows["source"][0] == "popular"
        marked = ": popular items, as there is no history" if popular else ""
        print_table(rows.drop(by, "source", strict=False), title.format(own) + marked)


def print_table(rows: "pl.DataFrame", title: str) -> None:
    """Numbers to the right, texts to the left, scores with three digits, shares in per cent."""
    from rich.console import Console
    from rich.table import Table

    # Not as the table's own title, which would be broken to the table's width.
    typer.echo(title)
    table = Table(box=None, header_style="bold")
    for name in rows.columns:
        table.add_column(name, justify="left" if name == "title" else "right")
    shown = {"score": "{:.3f}", "share": "{:.1%}"}
    for row in rows.iter_rows(named=True):
        table.add_row(*(shown.get(name, "{}").format(value) for name, value in row.items()))
    Console().print(table)

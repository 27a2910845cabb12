"""What every command that takes NAME_OR_FILE shares: the options, and what becomes of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdccf.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from hdccf.data.interactions import Interactions

_COLUMNS = "Columns of a file"
_FORMAT = "How a file is read"
_NAMED = "Named data sets"

Source = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE",
        help="A named data set (hdccf data list), a file (CSV and its relatives, JSON Lines, Parquet, also "
        "compressed), a folder or a glob of files, or with --query a database.",
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Who: a column's name or number; otherwise guessed.", rich_help_panel=_COLUMNS
    ),
]
Item = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="What: likewise.", rich_help_panel=_COLUMNS),
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="When: epoch seconds or milliseconds, ISO 8601, dates. An empty name reads no times.",
        rich_help_panel=_COLUMNS,
    ),
]
Rating = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="A rating or weight, for --min-rating.", rich_help_panel=_COLUMNS),
]
Title = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The item's title, to be shown.", rich_help_panel=_COLUMNS),
]
MinimumRating = Annotated[
    float | None,
    typer.Option(
        "--min-rating",
        "--minimum-rating",
        metavar="X",
        help="Leave out rows rated below X; without it every row counts.",
        rich_help_panel=_COLUMNS,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="What separates fields, such as ';' or '\\t'.", rich_help_panel=_FORMAT
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Whether the first line names the columns.", rich_help_panel=_FORMAT
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where it is not UTF-8: latin-1, …", rich_help_panel=_FORMAT),
]
TimeFormat = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="Such as '%d/%m/%Y %H:%M'.", rich_help_panel=_FORMAT),
]
DropNulls = Annotated[
    bool,
    typer.Option(
        "--drop-nulls",
        help="Leave out rows without user, item or time, which are otherwise refused.",
        rich_help_panel=_FORMAT,
    ),
]
Query = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Read this query's rows from a database: sqlite:///file.db or postgresql://host/database.",
        rich_help_panel=_FORMAT,
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="A folder with the files as published, looked into before anything is fetched. "
        "HDCCF_DATA_HOME does the same for every call.",
        rich_help_panel=_NAMED,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Pass over what the cache has, and fetch the files anew.", rich_help_panel=_NAMED
    ),
]


def open_source(
    source: str, *, folder: Path | None = None, fresh: bool = False, query: str | None = None, **options: Any
) -> "Interactions":
    """The interactions behind NAME_OR_FILE; `options` are those of `hdccf.read`, None where not given."""
    from hdccf.data.datasets import DATASETS, find, load

    given = {name: value for name, value in options.items() if value is not None}
    if source in DATASETS:
        _refuse(given | ({"query": query} if query else {}), f"for files, and {source} is a named data set")
        return load(source, source_folder=folder, fresh=fresh, progress=True)
    unused = {"from": folder, "fresh": fresh}
    _refuse(
        {name: value for name, value in unused.items() if value}, f"for named data sets, not for {source}"
    )
    if query is not None:
        from hdccf.data.sql import read_sql

        of_text = ("separator", "header", "encoding")
        _refuse(
            {name: value for name, value in given.items() if name in of_text},
            "for files, and --query reads a database",
        )
        return read_sql(query, source, **given)
    if "://" in source:
        raise SourceError(f"{source} is a database; say which rows to read with --query 'SELECT …'")
    path = Path(source).expanduser()
    if not path.exists() and not path.suffix and len(path.parts) == 1 and not set(source) & set("*?["):
        find(
            source
        )  # Neither a file nor like the name of one: a data set was meant, and the error says which.
    from hdccf.data.read import read

    if "separator" in given:
        given["separator"] = given["separator"].replace("\\t", "\t")  # a shell leaves \t as it is
    return read(source, **given)


def _refuse(given: dict[str, Any], why: str) -> None:
    if given:
        names = ["min-rating" if name == "minimum_rating" else name.replace("_", "-") for name in given]
        options = " and ".join(f"--{name}" for name in names)
        raise ConfigError(f"{options} {'are' if len(names) > 1 else 'is'} {why}; leave it out")

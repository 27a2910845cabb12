"""`hdccf recommend`: a run answering. `hdccf models`: what can be trained."""

from pathlib import Path
from typing import Annotated

import typer


def recommend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory that hdccf train wrote.")],
    users: Annotated[
        list[str], typer.Argument(metavar="USER …", help="Users by their own ids, as in the data.")
    ],
    k: Annotated[int, typer.Option("--k", help="How many items each.")] = 10,
    include_seen: Annotated[bool, typer.Option("--include-seen", help="Also what the user has had.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, a line an item.")] = False,
) -> None:
    """Print the best items for some users, best first."""
    from rich.console import Console
    from rich.table import Table

    from hdccf.recommend import load_run

    found = load_run(run).recommend(users, k=k, include_seen=include_seen)
    if as_json:
        typer.echo(found.write_ndjson(), nl=False)
        return
    has_titles = "title" in found.columns
    for (user,), rows in found.group_by("user", maintain_order=True):
        table = Table(title=f"for user {user}", title_justify="left", box=None, header_style="bold")
        for name in ("rank", "item", "score"):
            table.add_column(name, justify="right")
        if has_titles:
            table.add_column("title")
        for row in rows.iter_rows(named=True):
            cells = [str(row["rank"]), str(row["item"]), f"{row['score']:.3f}"]
            table.add_row(*cells, *([row["title"]] if has_titles else []))
        Console().print(table)


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this model's settings, field by field.")
    ] = None,
) -> None:
    """List the models that can be trained, or the settings of one."""
    from rich.console import Console
    from rich.table import Table

    from hdccf.models import MODELS, entry_named
    from hdccf.presets import presets_of

    table = Table(box=None, header_style="bold")
    if name is None:
        for column in ("model", "what it is", "presets"):
            table.add_column(column)
        for each, entry in MODELS.items():
            table.add_row(each, entry.summary, ", ".join(presets_of(each)))
    else:
        for column in ("setting", "default", "what it does"):
            table.add_column(column)
        for setting, field in entry_named(name).settings.model_fields.items():
            text = " ".join((field.description or "").split())
            table.add_row(setting, str(field.default), text)
    Console().print(table)

"""`hdccf recommend`: a run answering, on the screen or for everybody into a file. `hdccf models`: what can be
trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdccf.cli.answering import AsJson, Run, print_table
from hdccf.errors import ConfigError, needs_ray

if TYPE_CHECKING:
    import polars as pl

    from hdccf.recommend.recommender import Recommender

_WHOM = "Whom for"
_WHAT = "What may be recommended"
_CLUSTER = "On several processes or machines"


def recommend(
    run: Run,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID …", help="Users by their own ids, as in the data (see also --items)."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="How many each.")] = 10,
    items: Annotated[
        bool,
        typer.Option(
            "--items",
            help="The ids are items: recommend to somebody new who had them, the last the latest.",
            rich_help_panel=_WHOM,
        ),
    ] = False,
    new_item: Annotated[
        bool,
        typer.Option(
            "--new-item",
            help="The ids are users: who else would like a new item that they took?",
            rich_help_panel=_WHOM,
        ),
    ] = False,
    everybody: Annotated[
        bool, typer.Option("--all", help="For all users, into the file --out.", rich_help_panel=_WHOM)
    ] = False,
    include_seen: Annotated[
        bool,
        typer.Option("--include-seen", help="Also what the user has had.", rich_help_panel=_WHAT),
    ] = False,
    allow: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only these items: a file, an id a line.", rich_help_panel=_WHAT),
    ] = None,
    deny: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="None of these items: a file, an id a line.", rich_help_panel=_WHAT
        ),
    ] = None,
    history: Annotated[
        str,
        typer.Option(
            metavar="all|train",
            help="What known users are made of where the model goes by histories: all of their events, or "
            "the training part, as evaluation does.",
            rich_help_panel=_WHOM,
        ),
    ] = "all",
    index_above: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="With more items than N let an approximate index propose them; needs hdccf[index].",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --all: a Parquet file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="With --all: N workers on Ray; needs hdccf[ray].",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The Ray cluster, auto for the one that runs here; without it one is started.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the best items for some users, best first; or write those for all of them to a file."""
    ids = ids or []
    _refuse_contradictions(ids, items, new_item, everybody, out, allow is not None or deny is not None)
    if workers is not None or ray_address is not None:
        if not everybody or index_above is not None:
            raise ConfigError("--workers and --ray-address go with --all, and without --index-above")
        needs_ray("--workers")
    from hdccf.recommend.recommender import load_run

    loaded = load_run(run, index_above=index_above)
    limits: dict[str, Any] = {
        "allow": _ids_in(allow, loaded),
        "deny": _ids_in(deny, loaded),
        "include_seen": include_seen,
    }
    if out is not None:
        _write(loaded, out, k, overwrite, history, limits, workers, ray_address)
        return
    if items:
        _show(loaded.recommend_for_items([ids], k=k, **limits).drop("list"), as_json, "for somebody new")
    elif new_item:
        found = loaded.users_for_new_items([ids], k=k, include_seen=include_seen).drop("list")
        _show(found, as_json, "for a new item")
    else:
        _show(loaded.recommend(ids, k=k, history=history, **limits), as_json)


def _refuse_contradictions(
    ids: list[str], items: bool, new_item: bool, everybody: bool, out: Path | None, limited: bool
) -> None:
    if items + new_item + everybody > 1:
        raise ConfigError("--items, --new-item and --all exclude each other; choose one")
    if everybody != (out is not None):
        raise ConfigError("--all and --out go together, as in: --all --out recs.parquet")
    if everybody and ids:
        raise ConfigError(f"--all is for all users; leave out {' '.join(ids[:3])}")
    if not everybody and not ids:
        raise ConfigError("whom for? Give user ids, or --items with item ids, or --all --out recs.parquet")
    if new_item and limited:
        raise ConfigError("--allow and --deny are about items, and --new-item lists users; leave them out")


def _write(
    loaded: "Recommender",
    out: Path,
    k: int,
    overwrite: bool,
    history: str,
    limits: dict[str, Any],
    workers: int | None,
    ray_address: str | None,
) -> None:
    if workers is None and ray_address is None:
        loaded.recommend_all(out, k=k, history=history, overwrite=overwrite, progress=True, **limits)
    else:
        from hdccf.distributed.answering import recommend_all
        from hdccf.recommend.run_folder import Cluster, RunFolder

        recommend_all(
            RunFolder.open(loaded.path),
            out,
            Cluster(workers or 1, ray_address),
            {"k": k, "history": history, **limits},
            overwrite=overwrite,
            progress=True,
        )
    typer.echo(f"{out}: up to {k} items for each of {loaded.n_users:,} users")


def _ids_in(file: Path | None, loaded: "Recommender") -> list[str] | None:
    if file is None:
        return None
    from hdccf.console import note

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as cause:
        raise ConfigError(
            f"{file} cannot be read ({cause}); give a text file with an item id a line"
        ) from cause
    ids = [line.strip() for line in lines if line.strip()]
    unknown = len(ids) - len(loaded.items.known(ids))
    if unknown:
        note(f"{unknown} of the {len(ids)} ids in {file} are not in the catalogue, and are passed over")
    return ids


def _show(found: "pl.DataFrame", as_json: bool, title: str = "") -> None:
    if as_json:
        typer.echo(found.write_ndjson(), nl=False)
    elif found.is_empty():
        typer.echo("nothing is left to recommend")
    elif title:
        print_table(found, title)
    else:
        for (user,), rows in found.group_by("user", maintain_order=True):
            print_table(rows.drop("user"), f"for user {user}")


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this model's settings, field by field.")
    ] = None,
) -> None:
    """List the models that can be trained, or the settings of one."""
    from rich.console import Console
    from rich.table import Table

    from hdccf.models import MODELS, entry_named, presets_of

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

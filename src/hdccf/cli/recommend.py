"""`hdccf recommend`: top-k lists of a run, printed or written for all users; `hdccf models`: the registry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from hdccf.cli.answering import AsJson, Run, TopK, load, print_lists
from hdccf.cli.options import Flag, Panel, with_options
from hdccf.cli.train import CLUSTER, CLUSTER_FLAGS
from hdccf.config import MAX_DIAL, TOP_K, Cluster, Options
from hdccf.errors import ConfigError, needs_ray

if TYPE_CHECKING:
    from hdccf.recommend.recommender import Recommender


_CLUSTER = f"{CLUSTER}, with --all"


class UserOptions(Options):
    """What the ids stand for, and what known users are represented by."""

    items: bool = False
    """The ids are items: recommend to a new user with this history, the last the latest."""
    new_item: bool = False
    """The ids are users: which other users would like a new item that they took?"""
    all_users: Annotated[bool, Flag("--all")] = False
    """For all users, into the file --out."""
    fresh: Annotated[tuple[str, ...], Flag(metavar="ITEM")] = ()
    """An item since the training, added to the history of the user; repeat for more, the last the latest."""
    unknown: Annotated[str, Flag(metavar="error|skip|popular")] = "error"
    """Users that are not in the data: refuse the request, leave them out, or give them popular items."""
    history: Annotated[str, Flag(metavar="all|validation|train")] = "all"
    """What known users are made of where the model goes by histories: all of their events, the training
    part, as evaluation does, or that and the validation part."""


class CandidateOptions(Options):
    """Which items may be recommended."""

    include_seen: bool = False
    """Also items in the user's history."""
    allow: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Only these items: a file, an id a line."""
    deny: Annotated[Path | None, Flag(metavar="FILE")] = None
    """None of these items: a file, an id a line."""
    popularity: Annotated[float | None, Flag(metavar="γ"), Field(ge=-MAX_DIAL, le=MAX_DIAL)] = None
    """The popularity dial, instead of what validation chose: -0.5 is more of what is popular, 0.5 less, 1
    only what is particular to the user. See hdccf evaluate RUN --dial."""
    where: Annotated[tuple[str, ...], Flag(metavar="NAME=VALUE")] = ()
    """Only items with this attribute of the items file, as category=books; repeat for more. Of one name any
    of the values will do, of several names all must fit."""
    diversity: Annotated[float, Flag(metavar="D"), Field(ge=0, le=1)] = 0.0
    """From 0, the best items, to 1, items as different from each other as possible. See hdccf evaluate RUN
    --diversity."""
    index_above: Annotated[int | None, Flag(metavar="N"), Field(ge=0)] = None
    """With more items than N let an approximate index propose them; needs pip install
    'hdccf[index]'."""


class OutputFile(Options):
    """Where the lists of all users go."""

    out: Annotated[Path | None, Flag(metavar="FILE")] = None
    """With --all: Parquet, CSV or JSON Lines, by its ending: .parquet, .csv or .jsonl."""
    overwrite: bool = False
    """Replace the file of --out."""


@with_options
def recommend(
    run: Run,
    users: Annotated[UserOptions, Panel("Users")],
    candidates: Annotated[CandidateOptions, Panel("Candidates")],
    file: OutputFile,
    cluster: Annotated[Cluster | None, Panel(_CLUSTER, only=("workers", "address"), flags=CLUSTER_FLAGS)],
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID …", help="Users by their own ids, as in the data (see also --items)."),
    ] = None,
    k: TopK = TOP_K,
    as_json: AsJson = False,
) -> None:
    """Print the best items for some users, best first; or write those for all of them to a file."""
    ids = ids or []
    _refuse_contradictions(ids, users, candidates, file.out)
    if cluster is not None:
        if not users.all_users or candidates.index_above is not None:
            raise ConfigError("--workers and --ray-address go with --all, and without --index-above")
        if candidates.where:
            raise ConfigError("--where does not go with --workers; give the items as a file with --allow")
        needs_ray("--workers")
    loaded = load(run, candidates.index_above)
    limits: dict[str, Any] = {
        "k": k,
        "include_seen": candidates.include_seen,
        "allow": _ids_in(candidates.allow, loaded),
        "deny": _ids_in(candidates.deny, loaded),
        "where": _attributes(candidates.where),
        "popularity": candidates.popularity,
        "diversity": candidates.diversity,
    }
    if file.out is not None:
        wanted = {"history": users.history, **limits}
        how: dict[str, Any] = {"overwrite": file.overwrite, "progress": True}
        if cluster is None:
            loaded.recommend_all(file.out, **how, **wanted)
        else:
            from hdccf.distributed.inference import recommend_all
            from hdccf.recommend.run_folder import RunFolder

            recommend_all(RunFolder.open(loaded.path), file.out, cluster, wanted, **how)
        typer.echo(f"{file.out}: up to {k} items for each of {loaded.n_users:,} users")
        return
    by, title = "", "for a new item" if users.new_item else "for a new user"
    if users.items:
        found = loaded.recommend_for_items([ids], **limits).drop("list")
    elif users.new_item:
        found = loaded.users_for_new_items([ids], k=k, include_seen=candidates.include_seen).drop("list")
    else:
        fresh = [list(users.fresh)] * len(ids) if users.fresh else None
        how = {"fresh": fresh, "unknown": users.unknown, "history": users.history}
        found, by, title = loaded.recommend(ids, **how, **limits), "user", "for user {}"
    if found.is_empty() and not as_json:
        typer.echo("nothing is left to recommend")
    else:
        print_lists(found, as_json, title, by)


def _refuse_contradictions(
    ids: list[str], users: UserOptions, candidates: CandidateOptions, out: Path | None
) -> None:
    if users.items + users.new_item + users.all_users > 1:
        raise ConfigError("--items, --new-item and --all exclude each other; choose one")
    if users.all_users != (out is not None):
        raise ConfigError("--all and --out go together, as in: --all --out recs.parquet")
    if users.all_users and ids:
        raise ConfigError(f"--all is for all users; leave out {' '.join(ids[:3])}")
    if not users.all_users and not ids:
        raise ConfigError("no users given; pass ids, --items with item ids, or --all --out recs.parquet")
    if (users.fresh or users.unknown != "error") and (users.items or users.new_item or users.all_users):
        raise ConfigError("--fresh and --unknown are about users given by their ids; leave them out")
    if users.new_item and candidates.model_fields_set - {"include_seen", "index_above"}:
        raise ConfigError(
            "--allow, --deny, --where, --popularity and --diversity are about items, and --new-item lists "
            "users; leave them out"
        )


def _attributes(given: tuple[str, ...]) -> dict[str, list[str]]:
    """category=books and category=games as one name with two values."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--where {each!r} names no value; write it as category=books")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


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


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this model's settings, field by field.")
    ] = None,
) -> None:
    """List the models that can be trained, or the settings of one."""
    from rich.console import Console
    from rich.table import Table

    from hdccf.models import MODELS, entry_named, load_plugins, presets_of

    if name is None:
        load_plugins()
        titles = ("model", "what it is", "presets")
        rows = [(each, entry.summary, ", ".join(presets_of(each))) for each, entry in MODELS.items()]
    else:
        titles = ("setting", "default", "what it does")
        rows = [
            (setting, str(field.default), " ".join((field.description or "").split()))
            for setting, field in entry_named(name).settings.model_fields.items()
        ]
    table = Table(*titles, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)

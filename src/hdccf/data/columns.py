"""Tables whose columns are known but not yet read, and the choice of the user, item and time columns."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from hdccf.console import note
from hdccf.errors import SourceError

# The likeliest names first: a name from an earlier line wins over one from a later line, and between two of
# the same line nothing is chosen.
_USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": (
        "user userid useridentifier uid",
        "customer customerid client clientid member memberid reviewer reviewerid",
        "account accountid visitor visitorid person personid profileid listener listenerid",
        "username login author authorid session sessionid",
    ),
    "item": (
        "item itemid iid",
        "product productid sku asin parentasin article articleid stockcode",
        "movie movieid film filmid book bookid isbn song songid track trackid",
        "artist artistid business businessid place placeid location locationid venue venueid",
        "video videoid game gameid news newsid page pageid document documentid docid",
        "content contentid ad adid poi poiid recipe recipeid anime animeid",
    ),
    "time": (
        "timestamp ts time datetime unixtime epoch",
        "unixreviewtime eventtime eventtimestamp reviewtime createdat occurredat ratedat",
        "date day when created purchasedate orderdate invoicedate",
    ),
    "rating": ("rating ratings stars score overall", "weight value count plays playcount quantity strength"),
    "title": ("title itemtitle movietitle producttitle booktitle", "itemname productname moviename"),
}

_OPTIONAL = ("time", "rating", "title")


@dataclass(frozen=True)
class Columns:
    """The name of the column in each role; None where there is none."""

    user: str
    item: str
    time: str | None = None
    rating: str | None = None
    title: str | None = None

    @property
    def names(self) -> list[str]:
        """Each needed column once."""
        chosen = (self.user, self.item, self.time, self.rating, self.title)
        return list(dict.fromkeys(name for name in chosen if name is not None))


@dataclass(frozen=True)
class TextOptions:
    """How text files are read; None means that the file is looked at."""

    separator: str | None = None
    header: bool | None = None
    quote: str = '"'
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Table:
    """The columns that were asked for. `locate(row)` says where a row is, for error messages."""

    frame: pl.DataFrame
    locate: Callable[[int], str]

    def filter(self, keep: pl.Series) -> "Table":
        """Some of the rows, which still know where they are in the source."""
        rows, locate = keep.arg_true(), self.locate
        return Table(self.frame.filter(keep), lambda row: locate(int(rows[row])))


@dataclass(frozen=True)
class OpenTable:
    """A table whose columns are known but not yet read."""

    name: str
    columns: Sequence[str]
    fetch: Callable[[Columns], Table]
    first_row: Sequence[object] | None = None
    """Shown in place of names where the columns have none."""
    typed: bool = True
    """Whether the source knows types: in a CSV file ids that are all integers are taken as integers."""


def choose_columns(
    names: Sequence[str],
    given: Mapping[str, str | int | None],
    *,
    source: str,
    need_rating: bool = False,
    first_row: Sequence[object] | None = None,
) -> Columns:
    """Takes the columns that were given, guesses the others, and says what was guessed.

    A rating is guessed only where `need_rating`. An empty name means that there is none. `first_row` is
    shown where the columns have no names of their own.
    """
    chosen: dict[str, str] = {}
    guessed: list[str] = []
    for role, want in given.items():
        if want is not None and want != "":
            chosen[role] = _find(names, want, role, source)
    for role in _USUAL_NAMES:
        if (
            role in chosen
            or (given.get(role) == "" and role in _OPTIONAL)
            or (role == "rating" and not need_rating)
        ):
            continue
        name = _guess(names, role, set(chosen.values()), source)
        if name is not None:
            chosen[role] = name
            guessed.append(f"{role}={name!r}")
        elif role not in _OPTIONAL or (role == "rating" and need_rating):
            shown = _listing(names, first_row)
            raise SourceError(f"{source}: no column is plainly the {role}, of {shown}: {_how(role)}")
    if chosen["user"] == chosen["item"]:
        raise SourceError(f"{source}: {chosen['user']!r} cannot be both user and item; give two columns")
    if guessed:
        note(f"{source}: took {', '.join(guessed)} from the columns {_listing(names, None)}")
    return Columns(**chosen)


def _find(names: Sequence[str], want: str | int, role: str, source: str) -> str:
    """A column by its name, or by its number from 1."""
    if isinstance(want, str):
        exact = [name for name in names if name == want] or [
            name for name in names if name.strip() == want.strip()
        ]
        if exact:
            return exact[0]
    number = want if isinstance(want, int) else int(want) if want.isdecimal() else 0
    if 1 <= number <= len(names):
        return names[number - 1]
    raise SourceError(
        f"{source}: there is no column {want!r} for the {role}, only {_listing(names, None)}: {_how(role)}"
    )


def _guess(names: Sequence[str], role: str, taken: set[str], source: str) -> str | None:
    for usual in _USUAL_NAMES[role]:
        found = [name for name in names if name not in taken and _plain(name) in usual.split()]
        if len(found) > 1:
            # 'user' beside 'user_id' is a name and its key; of others, none is chosen.
            keys = [name for name in found if _plain(name).endswith("id")]
            if len(keys) == 1 and len({_plain(name).removesuffix("id") for name in found}) == 1:
                found = keys
        if len(found) > 1 and role != "title":
            both = " and ".join(repr(name) for name in found)
            raise SourceError(f"{source}: {both} could each be the {role}: {_how(role)}")
        if found:
            return found[0]
    return None


def _plain(name: str) -> str:
    """`userId`, `user_id`, `User ID` and RecBole's `user_id:token` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _listing(names: Sequence[str], first_row: Sequence[object] | None) -> str:
    if first_row is not None:
        return ", ".join(f"{name} (such as {value!r})" for name, value in zip(names, first_row, strict=True))
    shown = [repr(name) for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _how(role: str) -> str:
    return f"give {role}= (--{role}) with a column's name or its number from 1"

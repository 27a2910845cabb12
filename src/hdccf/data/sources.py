"""Anyone's table → Interactions: files, folders, globs, data frames, Arrow tables and sparse matrices."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.console import note
from hdccf.data import compiled
from hdccf.data.arrange import Coded, arrange, in_halves
from hdccf.data.columns import Columns, choose_columns
from hdccf.data.ids import Groups, Numbered, group_ids, number_both
from hdccf.data.interactions import Interactions
from hdccf.data.tables import Opened, Table, TextOptions, open_frame, open_parquet, open_several
from hdccf.data.text import open_csv, open_jsonl
from hdccf.data.times import ALLOWED, BadTimeError, integer_factor, to_microseconds
from hdccf.errors import SourceError

FORMATS = {
    "csv": {".csv", ".txt", ".dat", ".data", ".rating", ".inter"},
    "tsv": {".tsv", ".tab"},
    "jsonl": {".jsonl", ".ndjson", ".json"},
    "parquet": {".parquet", ".pq"},
}
_PACKED = {".gz", ".gzip", ".zst", ".zstd"}
_FRAMES = "a path, a Polars or pandas data frame, an Arrow table, or a SciPy sparse matrix"


def read(
    source: Any,
    *,
    user: str | int | None = None,
    item: str | int | None = None,
    time: str | int | None = None,
    rating: str | int | None = None,
    title: str | int | None = None,
    minimum_rating: float | None = None,
    separator: str | None = None,
    header: bool | None = None,
    quote: str = '"',
    encoding: str = "utf-8",
    time_format: str | None = None,
    drop_nulls: bool = False,
    format: str | None = None,  # noqa: A002  # what everyone calls it
) -> Interactions:
    """Reads users, items and, where there are any, times and titles.

    `source` is a path (CSV and its relatives, JSON Lines, Parquet; plain, gzip or zstd), a folder or a glob
    of such files, a folder that `Interactions.save` wrote, a Polars or pandas data frame, an Arrow table, or
    a SciPy sparse matrix (rows are users). Columns are names or numbers from 1; those that are not given are
    guessed, and the guess is printed. `time=""` reads no times. With `minimum_rating`, only rows rated at
    least so count.
    """
    text = TextOptions(separator, header, quote, encoding)
    opened, typed = _open(source, text, format)
    if isinstance(opened, Interactions):
        return opened
    return to_interactions(
        opened,
        {"user": user, "item": item, "time": time, "rating": rating, "title": title},
        minimum_rating=minimum_rating,
        time_format=time_format,
        drop_nulls=drop_nulls,
        typed=typed,
    )


def to_interactions(
    opened: Opened,
    given: Mapping[str, str | int | None],
    *,
    minimum_rating: float | None = None,
    time_format: str | None = None,
    drop_nulls: bool = False,
    typed: bool = True,
) -> Interactions:
    """Chooses the columns of a table, reads them, and maps the ids."""
    columns = choose_columns(
        opened.columns,
        given,
        source=opened.name,
        need_rating=minimum_rating is not None,
        first_row=opened.first_row,
    )
    if columns.rating is not None and minimum_rating is None:
        note(f"{opened.name}: every row counts, whatever its {columns.rating!r}, without minimum_rating")
    if opened.codes is not None and minimum_rating is None and time_format is None:
        coded = opened.codes(columns)
        if coded is not None:
            return _build_large(coded, columns, opened.name, whole=columns.time is not None)
    table = opened.fetch(columns)
    if not table.frame.height:
        raise SourceError(f"{opened.name} has no rows; give a source with rows of user and item")
    table = _without_nulls(table, columns, opened.name, minimum_rating is not None, drop_nulls)
    if not table.frame.height:
        raise SourceError(f"{opened.name} has no row without a missing value; give other columns")
    if columns.rating is not None and minimum_rating is not None:
        table = _at_least(table, columns.rating, minimum_rating, opened.name)
    large = compiled.worthwhile(table.frame.height)
    raw = _whole_times(table, columns) if large else None
    times = None if raw is not None else _times(table, columns, opened.name, time_format)
    # The table is let go column by column: texts are by far the largest thing here.
    parts = {name: table.frame[name] for name in (columns.user, columns.item)}
    titles = None if columns.title is None else table.frame[columns.title]
    del table
    if large:
        chunks = raw if times is None else [times]
        coded, numbered = _number_both(parts, columns, chunks, opened.name, typed)
        named = None if titles is None else _titles(titles, numbered)
        return _build_large(coded, columns, opened.name, whole=raw is not None, titles=named)
    users, items = _group_both(parts, columns, opened.name, typed)
    return _build(users, items, times, None if titles is None else _titles(titles, items))


def _open(source: Any, text: TextOptions, kind: str | None) -> tuple[Opened | Interactions, bool]:
    """The source with its columns, and whether it knows types."""
    if isinstance(source, Interactions):
        return source, True
    if isinstance(source, (str, Path)):
        return _open_paths(str(source), text, kind)
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return open_frame(source, "the data frame"), True
    if hasattr(source, "tocoo") and hasattr(source, "nnz"):
        return open_frame(_matrix_frame(source), "the matrix"), True
    if hasattr(source, "__arrow_c_stream__"):
        return open_frame(pl.DataFrame(source), "the table"), True
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return open_frame(pl.from_pandas(source), "the data frame"), True
    raise SourceError(f"a {type(source).__name__} cannot be read; give {_FRAMES}")


def _matrix_frame(matrix: Any) -> pl.DataFrame:
    """A sparse matrix as a table: what is stored and not zero, in order of row and column."""
    entries = matrix.tocsr().tocoo()
    stored = entries.data != 0
    return pl.DataFrame(
        {
            "user": entries.row[stored].astype(np.int64),
            "item": entries.col[stored].astype(np.int64),
            "weight": entries.data[stored].astype(np.float64),
        }
    )


def _open_paths(source: str, text: TextOptions, kind: str | None) -> tuple[Opened | Interactions, bool]:
    if kind is not None and kind not in FORMATS:
        raise SourceError(f"format={kind!r} is unknown; choose one of {', '.join(sorted(FORMATS))}")
    path = Path(source).expanduser()
    if path.is_dir() and (path / "meta.json").is_file():
        return Interactions.load(path), True
    files = _files(path, source, kind)
    kinds = {kind or _format_of(file) for file in files}
    if len(kinds) > 1:
        raise SourceError(
            f"{source} holds {' and '.join(sorted(kinds))} files; read one format at a time, with a glob"
        )
    parts = [_open_file(file, kinds.copy().pop(), text) for file in files]
    return open_several(parts, source), not kinds & {"csv", "tsv"}


def _files(path: Path, source: str, kind: str | None) -> list[Path]:
    """The file itself, the files in a folder and its folders, or those that a glob finds; by name."""
    if path.is_file():
        return [path]
    if path.is_dir():
        endings = set().union(*FORMATS.values()) if kind is None else FORMATS[kind]
        found = [
            file for file in sorted(path.rglob("*")) if _is_data(file, path) and _ending(file) in endings
        ]
        if not found:
            raise SourceError(
                f"the folder {source} holds no {kind or 'data'} files ({', '.join(sorted(endings))})"
            )
        return found
    if any(mark in source for mark in "*?["):
        anchor = Path(path.anchor) if path.anchor else Path()
        pattern = str(path.relative_to(path.anchor)) if path.anchor else str(path)
        found = [file for file in sorted(anchor.glob(pattern)) if file.is_file()]
        if not found:
            raise SourceError(f"no file matches {source}; check the pattern, seen from {Path.cwd()}")
        return found
    raise SourceError(f"there is no file or folder {source}; check the path, seen from {Path.cwd()}")


def _is_data(file: Path, folder: Path) -> bool:
    """Writers of folders leave marks such as _SUCCESS and hidden files, which are no data."""
    return file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _ending(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    while suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _format_of(file: Path) -> str:
    for kind, endings in FORMATS.items():
        if _ending(file) in endings:
            return kind
    start = _start_of(file)
    return "parquet" if start == b"PAR1" else "jsonl" if start[:1] == b"{" else "csv"


def _start_of(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
    except OSError as cause:
        raise SourceError(f"{file} cannot be read ({cause.strerror}); check its permissions") from cause
    if not start:
        raise SourceError(f"{file} is empty; give a file with rows of user and item")
    return start


def _open_file(file: Path, kind: str, text: TextOptions) -> Opened:
    _start_of(file)
    if kind == "parquet":
        return open_parquet(file)
    if kind == "jsonl":
        return open_jsonl(file, text)
    return open_csv(file, text, separator="\t" if kind == "tsv" else None)


def _without_nulls(table: Table, columns: Columns, source: str, need_rating: bool, drop: bool) -> Table:
    """Refuses rows without user, item, time or (where it is asked for) rating, or drops them and says so."""
    needed = [columns.user, columns.item, columns.time, columns.rating if need_rating else None]
    counts = {name: table.frame[name].null_count() for name in dict.fromkeys(needed) if name is not None}
    missing = {name: count for name, count in counts.items() if count}
    if not missing:
        return table
    listed = " and ".join(f"{count:,} in column {name!r}" for name, count in missing.items())
    empty = table.frame.select(pl.any_horizontal(pl.col(list(missing)).is_null())).to_series()
    if not drop:
        raise SourceError(
            f"{table.locate(int(empty.arg_max() or 0))}: missing value ({listed}, of {len(empty):,} rows); "
            "mend the source, or give drop_nulls=True (--drop-nulls) to leave such rows out"
        )
    note(f"{source}: left out {int(empty.sum()):,} of {len(empty):,} rows with a missing value ({listed})")
    return _filtered(table, ~empty)


def _filtered(table: Table, keep: pl.Series) -> Table:
    """Some of the rows, which still know their places."""
    rows, locate = keep.arg_true(), table.locate
    return Table(table.frame.filter(keep), lambda row: locate(int(rows[row])))


def _at_least(table: Table, rating: str, minimum: float, source: str) -> Table:
    values = table.frame[rating]
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False) if values.dtype == pl.String else values
    if not (numbers.dtype.is_numeric() or numbers.dtype == pl.Boolean):
        raise SourceError(f"{source}: column {rating!r} holds {values.dtype}; a rating must be a number")
    numbers = numbers.cast(pl.Float64)
    if numbers.null_count():
        row = int(numbers.is_null().arg_max() or 0)
        where = f"{table.locate(row)}, column {rating!r}"
        raise SourceError(f"{where}: {values[row]!r} is no number; mend it, or give another rating=")
    keep = numbers >= minimum
    if not keep.any():
        highest = float(numbers.to_numpy().max())
        raise SourceError(f"{source}: no {rating!r} is at least {minimum:g}; the highest is {highest:g}")
    return table if keep.all() else _filtered(table, keep)


def _group_both(
    parts: dict[str, pl.Series], columns: Columns, source: str, typed: bool
) -> tuple[Groups, Groups]:
    """Users and items at the same time, each on a processor of its own; empties `parts`."""
    with ThreadPoolExecutor(2) as pool:
        users, items = pool.map(
            lambda name: group_ids(parts.pop(name), source=source, typed=typed), (columns.user, columns.item)
        )
    _refuse_single(users.vocabulary, items.vocabulary, columns, source)
    return users, items


def _number_both(
    parts: dict[str, pl.Series],
    columns: Columns,
    times: list[NDArray[np.int64]] | None,
    source: str,
    typed: bool,
) -> tuple[Coded, Numbered]:
    """The codes of a large table, and its items once more, for their titles; empties `parts`."""
    users, items = number_both(parts.pop(columns.user), parts.pop(columns.item), source=source, typed=typed)
    halves = in_halves(users.numbers, items.numbers, times)
    return Coded(users.vocabulary, items.vocabulary, halves), items


def _refuse_single(users: pl.Series, items: pl.Series, columns: Columns, source: str) -> None:
    for kind, name, ids in (("user", columns.user, users), ("item", columns.item, items)):
        if len(ids) < 2:
            raise SourceError(
                f"{source}: column {name!r} has one {kind} only, {ids[0]!r}; two are the least: give "
                f"more rows, or another column with {kind}= (--{kind})"
            )


def _build_large(
    coded: Coded, columns: Columns, source: str, *, whole: bool, titles: pl.Series | None = None
) -> Interactions:
    """Through compiled loops; `whole` says that times are numbers of a unit that is still to be found."""
    _refuse_single(coded.user_ids, coded.item_ids, columns, source)
    halves, factor = coded.halves, coded.factor or 1
    if whole and coded.factor is None:
        found = integer_factor(*halves.time_range)
        if found is None:
            times = pl.Series(columns.time, np.concatenate(halves.times))
            halves = halves.with_times(to_microseconds(times, source=source))
        else:
            factor = found
    done = arrange(halves, len(coded.user_ids), len(coded.item_ids), factor)
    return Interactions.from_collapsed(done, user_ids=coded.user_ids, item_ids=coded.item_ids, titles=titles)


def _build(
    users: Groups,
    items: Groups,
    times: NDArray[np.int64] | None,
    titles: pl.Series | None,
) -> Interactions:
    codes = items.codes()
    if times is not None and not bool(np.all(times[1:] >= times[:-1])):
        return Interactions.from_codes(
            users.codes(),
            codes,
            user_ids=users.vocabulary,
            item_ids=items.vocabulary,
            times=times,
            titles=titles,
        )
    # The rows are in order of time already, so each user's group is a history.
    their_items = np.empty(len(codes), np.int32)
    their_times = None if times is None else np.empty(len(times), np.int64)

    def fill(part: tuple[int, int]) -> None:
        for places, rows in users.pieces(*part):
            their_items[places] = codes[rows]
            if times is not None and their_times is not None:
                their_times[places] = times[rows]

    middle = len(users.vocabulary) // 2
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, ((0, middle), (middle, len(users.vocabulary)))))
    return Interactions.from_histories(
        users.starts(),
        their_items,
        user_ids=users.vocabulary,
        item_ids=items.vocabulary,
        times=their_times,
        titles=titles,
    )


def _times(table: Table, columns: Columns, source: str, time_format: str | None) -> NDArray[np.int64] | None:
    if columns.time is None:
        return None
    try:
        return to_microseconds(table.frame[columns.time], source=source, time_format=time_format)
    except BadTimeError as bad:
        raise SourceError(
            f"{table.locate(bad.row)}, column {columns.time!r}: {bad.value!r} is no time; {ALLOWED} are "
            "read, and other orders with time_format= (--time-format), for example '%d/%m/%Y %H:%M'"
        ) from bad


def _whole_times(table: Table, columns: Columns) -> list[NDArray[np.int64]] | None:
    """Times that are whole numbers, chunk by chunk as they were read: the loops make microseconds of them."""
    if columns.time is None or table.frame[columns.time].dtype != pl.Int64:
        return None
    return [chunk.to_numpy() for chunk in table.frame[columns.time].get_chunks()]


def _titles(titles: pl.Series, items: Groups | Numbered) -> pl.Series:
    """The first title that is given for each item."""
    frame = pl.DataFrame({"item": items.codes(), "title": titles.cast(pl.String)}).drop_nulls()
    named = frame.unique("item", keep="first", maintain_order=True)
    every = pl.DataFrame({"item": np.arange(len(items.vocabulary), dtype=np.int32)})
    return every.join(named, on="item", how="left", maintain_order="left")["title"]

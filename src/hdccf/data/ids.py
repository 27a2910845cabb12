"""A column of anyone's ids → groups of equal ids, in order of first appearance, and the vocabulary back.

Grouping is one sort: each row becomes one 64-bit number, the id's hash above and the row's position below,
and NumPy sorts plain numbers with vector instructions. A second, independent hash tells apart ids that the
first one confuses. `docs/decisions/030-grouping-ids.md` has what this costs beside the alternatives.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data import compiled
from hdccf.data.interactions import stable_order
from hdccf.errors import SourceError

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_SEEDS = (20_190, 76_543)
_PIECE = 1 << 18  # rows at a time, so that what is only passing through stays in the cache


@dataclass(frozen=True)
class Groups:
    """Equal ids together. Groups are numbered in order of first appearance."""

    vocabulary: pl.Series
    """The id of each group."""
    rows: NDArray[np.int64]
    """All rows, those of a group together and ascending; the groups in no particular order."""
    places: NDArray[np.int64]
    """Where in `rows` each group starts."""
    sizes: NDArray[np.int64]
    """How many rows each group has."""

    def codes(self) -> NDArray[np.int32]:
        """The group of each row."""
        codes = np.empty(len(self.rows), np.int32)
        by_place = stable_order(self.places)
        codes[self.rows] = np.repeat(by_place.astype(np.int32), self.sizes[by_place])
        return codes

    def starts(self) -> NDArray[np.int64]:
        """Where each group starts once the groups stand in the order of their numbers; and the end."""
        starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=starts[1:])
        return starts

    def pieces(self, first: int, last: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """The rows of groups `first` to `last` in the order of their numbers, with the places they get."""
        starts = self.starts()
        while first < last:
            stop = max(first + 1, int(np.searchsorted(starts, starts[first] + _PIECE, side="right")) - 1)
            stop = min(stop, last)
            shift = np.repeat(self.places[first:stop] - starts[first:stop], self.sizes[first:stop])
            shift += np.arange(starts[first], starts[stop])
            yield slice(int(starts[first]), int(starts[stop])), self.rows[shift]
            first = stop


@dataclass(frozen=True)
class Numbered:
    """What a large column of texts becomes: each row's number, in order of first appearance."""

    vocabulary: pl.Series
    """The id of each number."""
    numbers: NDArray[np.int32]
    """The number of each row."""

    def codes(self) -> NDArray[np.int32]:
        """The number of each row, under the name that `Groups` has for it."""
        return self.numbers


def number_ids(ids: pl.Series, *, source: str, typed: bool = True) -> Numbered:
    """The same numbers as `group_ids` gives; a large column of texts goes through a compiled hash table."""
    if ids.dtype == pl.String and compiled.worthwhile(len(ids)):
        return _number_texts([ids], typed)[0]
    groups = group_ids(ids, source=source, typed=typed)
    return Numbered(groups.vocabulary, groups.codes())


def number_both(
    users: pl.Series, items: pl.Series, *, source: str, typed: bool = True
) -> tuple[Numbered, Numbered]:
    """`number_ids` of two equally long columns, with two processors."""
    if users.dtype == pl.String == items.dtype and compiled.worthwhile(len(users)):
        # Halves of both columns are more evenly shared than one column each.
        numbered = _number_texts([users, items], typed)
        return numbered[0], numbered[1]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda ids: number_ids(ids, source=source, typed=typed), (users, items))
    return one, other


def _number_texts(columns: list[pl.Series], typed: bool) -> list[Numbered]:
    numbered = compiled.number_texts(columns)
    return [
        Numbered(vocabulary(column.gather(firsts), typed), numbers)
        for column, (numbers, firsts) in zip(columns, numbered, strict=True)
    ]


def group_ids(ids: pl.Series, *, source: str, typed: bool = True) -> Groups:
    """Groups text, integers or categories; there must be no nulls.

    `typed` says that the source knows types. Where it does not (CSV), ids that are all plain integers become
    integers; `007` stays text, so that every id comes back as it was written.
    """
    ids = _as_text_or_integers(ids, source)
    rows, leads = _sort_into_groups(ids)
    places = np.flatnonzero(leads)
    sizes = np.diff(places, append=len(rows))
    by_appearance = stable_order(rows[places])
    places, sizes = places[by_appearance], sizes[by_appearance]
    return Groups(vocabulary(ids.gather(rows[places]), typed), rows, places, sizes)


def vocabulary(ids: pl.Series, typed: bool) -> pl.Series:
    """Each id once → as they are kept: integers, also where texts of an untyped source are, or texts."""
    if ids.dtype == pl.Int64:
        return ids
    texts = ids.cast(pl.String)
    return texts.cast(pl.Int64) if not typed and _are_integers(texts) else texts


def _as_text_or_integers(ids: pl.Series, source: str) -> pl.Series:
    kind = ids.dtype
    if kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum)):
        return ids
    if kind == pl.UInt64 and ids.cast(pl.Int64, strict=False).null_count():
        return ids.cast(pl.String)
    if kind.is_integer() and kind != pl.Int128:
        return ids.cast(pl.Int64)
    if kind.is_float() or kind.is_decimal():
        # pandas turns integers into floats where a value was missing; 3.0 was 3.
        whole = ids.cast(pl.Int64, strict=False)
        if not whole.null_count() and bool((whole.cast(kind) == ids).all()):
            return whole
    raise SourceError(
        f"{source}: column {ids.name!r} holds {kind}, which is no id; text and integers are read"
    )


def _are_integers(vocabulary: pl.Series) -> bool:
    # The first ones nearly always settle it.
    return all(
        bool(part.str.contains(_CANONICAL_INTEGER).all()) for part in (vocabulary.head(1_000), vocabulary)
    )


def _sort_into_groups(ids: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """All rows with equal ids together, and which of them lead a group."""
    if not len(ids):
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    position_bits = max(1, (len(ids) - 1).bit_length())
    below = np.uint64((1 << position_bits) - 1)
    packed = _leading_bits(ids, position_bits)
    exact = packed is not None
    if packed is None:
        packed = ids.hash(_SEEDS[0]).to_numpy() & ~below
    for piece in _slices(len(ids)):
        packed[piece] |= np.arange(piece.start, piece.stop, dtype=np.uint64)
    packed.sort()
    leads = np.empty(len(ids), np.bool_)
    leads[0] = True
    for piece in _slices(len(ids) - 1):
        after = slice(piece.start + 1, piece.stop + 1)
        np.greater(packed[after] ^ packed[piece], below, out=leads[after])
    packed &= below
    rows = packed.view(np.int64)
    if not exact:
        _part_confused_ids(rows, leads, _second_opinion(ids))
    return rows, leads


def _slices(length: int) -> Iterator[slice]:
    return (slice(start, min(start + _PIECE, length)) for start in range(0, length, _PIECE))


def _leading_bits(ids: pl.Series, position_bits: int) -> NDArray[np.uint64] | None:
    """Integers and categories that fit above the position need no hash."""
    if ids.dtype == pl.String:
        return None
    numbers = ids.to_physical().cast(pl.Int64).to_numpy()
    lowest = int(numbers.min())
    if int(numbers.max()) - lowest >= 1 << (64 - position_bits):
        return None
    return (numbers - lowest).astype(np.uint64) << np.uint64(position_bits)


def _second_opinion(ids: pl.Series) -> NDArray[np.uint64] | NDArray[np.uint32]:
    """What tells ids apart whose leading hash bits are equal: the integers, or 32 bits of another hash.

    Of ten million rows the first hash has 40 bits. That makes 72, with which two of a million ids are
    taken for one with a probability of 10⁻¹⁰; half a hash is looked up faster, as it fits into the cache.
    """
    if ids.dtype == pl.Int64:
        return ids.to_numpy().view(np.uint64)
    return ids.hash(_SEEDS[1]).to_numpy().astype(np.uint32)


def _part_confused_ids(
    rows: NDArray[np.int64], leads: NDArray[np.bool_], opinions: NDArray[np.uint64] | NDArray[np.uint32]
) -> None:
    """Splits groups whose ids only shared the leading bits of the first hash; in place."""
    confused = []
    for piece in _slices(len(rows) - 1):
        near = opinions[rows[piece.start : piece.stop + 1]]
        differs = (near[1:] != near[:-1]) & ~leads[piece.start + 1 : piece.stop + 1]
        confused.append(np.flatnonzero(differs) + piece.start + 1)
    places = np.flatnonzero(leads)
    ends = np.append(places[1:], len(rows))
    for group in np.unique(np.searchsorted(places, np.concatenate([*confused, []]), side="right") - 1):
        members = slice(int(places[group]), int(ends[group]))
        theirs = opinions[rows[members]]
        by_opinion = np.argsort(theirs, kind="stable")
        rows[members] = rows[members][by_opinion]
        leads[members] = np.diff(theirs[by_opinion], prepend=theirs[by_opinion[0]] + 1) != 0

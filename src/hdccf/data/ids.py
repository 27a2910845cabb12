"""A column of anyone's ids → groups of equal ids, in order of first appearance, and the vocabulary back.

Grouping is one sort: each row becomes one 64-bit number, the id's hash above and the row's position below,
and NumPy sorts plain numbers with vector instructions. A second, independent hash tells apart ids that the
first one confuses; `docs/decisions/001-interactions-order.md` has what this costs beside the alternatives.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.errors import SourceError

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_SEEDS = (20_190, 76_543)


@dataclass(frozen=True)
class Groups:
    """Equal ids together: group `k` is the rows `order[starts[k]:starts[k + 1]]`, ascending."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]
    vocabulary: pl.Series
    """The id of each group. Groups are numbered in order of first appearance."""

    @property
    def first(self) -> NDArray[np.int64]:
        """The row where each id appears first."""
        return self.order[self.starts[:-1]]

    @cached_property
    def codes(self) -> NDArray[np.int32]:
        """The group of each row."""
        codes = np.empty(len(self.order), np.int32)
        codes[self.order] = np.repeat(np.arange(len(self.vocabulary), dtype=np.int32), np.diff(self.starts))
        return codes


def group_ids(ids: pl.Series, *, source: str, typed: bool = True) -> Groups:
    """Groups text, integers or categories; there must be no nulls.

    `typed` says that the source knows types. Where it does not (CSV), ids that are all plain integers become
    integers; `007` stays text, so that every id comes back as it was written.
    """
    ids = _as_text_or_integers(ids, source)
    order, starts = _sort_into_groups(ids)
    vocabulary = ids.gather(order[starts[:-1]])
    if vocabulary.dtype != pl.Int64:
        vocabulary = vocabulary.cast(pl.String)
        if not typed and vocabulary.str.contains(_CANONICAL_INTEGER).all():
            vocabulary = vocabulary.cast(pl.Int64)
    return Groups(order, starts, vocabulary)


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


def _sort_into_groups(ids: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if not len(ids):
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    position_bits = max(1, (len(ids) - 1).bit_length())
    below = np.uint64((1 << position_bits) - 1)
    packed = _leading_bits(ids, position_bits)
    exact = packed is not None
    if packed is None:
        packed = ids.hash(_SEEDS[0]).to_numpy() & ~below
    packed |= np.arange(len(ids), dtype=np.uint64)
    packed.sort()
    leads = np.empty(len(ids), np.bool_)
    leads[0] = True
    np.greater(packed[1:] ^ packed[:-1], below, out=leads[1:])
    packed &= below
    order = packed.view(np.int64)
    if not exact:
        _part_confused_ids(order, leads, _fingerprints(ids))
    return _by_first_appearance(order, np.flatnonzero(leads))


def _leading_bits(ids: pl.Series, position_bits: int) -> NDArray[np.uint64] | None:
    """Integers and categories that fit above the position need no hash."""
    if ids.dtype == pl.String:
        return None
    numbers = ids.to_physical().cast(pl.Int64).to_numpy()
    lowest = int(numbers.min())
    if int(numbers.max()) - lowest >= 1 << (64 - position_bits):
        return None
    return (numbers - lowest).astype(np.uint64) << np.uint64(position_bits)


def _fingerprints(ids: pl.Series) -> NDArray[np.uint64]:
    """What tells ids apart whose leading hash bits are equal: the integers, or 64 bits of another hash.

    With 40 bits of the first hash, two of ten million texts are taken for one with a probability of 10⁻¹⁸.
    """
    return ids.to_numpy().view(np.uint64) if ids.dtype == pl.Int64 else ids.hash(_SEEDS[1]).to_numpy()


def _part_confused_ids(
    order: NDArray[np.int64], leads: NDArray[np.bool_], fingerprints: NDArray[np.uint64]
) -> None:
    """Splits groups whose ids only shared the leading bits of the first hash; in place."""
    sorted_prints = fingerprints[order]
    confused = np.flatnonzero((sorted_prints[1:] != sorted_prints[:-1]) & ~leads[1:]) + 1
    if not len(confused):
        return
    starts = np.flatnonzero(leads)
    for group in np.unique(np.searchsorted(starts, confused, side="right") - 1):
        rows = slice(int(starts[group]), int(starts[group + 1]) if group + 1 < len(starts) else len(order))
        by_print = np.argsort(sorted_prints[rows], kind="stable")
        prints = sorted_prints[rows][by_print]
        order[rows] = order[rows][by_print]
        leads[rows] = np.concatenate(([True], prints[1:] != prints[:-1]))


def _by_first_appearance(
    order: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Moves whole groups, so that they stand in order of their first rows."""
    lengths = np.diff(starts, append=len(order))
    ranking = np.argsort(order[starts])
    new_starts = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths[ranking], out=new_starts[1:])
    moved_from = np.repeat(starts[ranking] - new_starts[:-1], lengths[ranking])
    moved_from += np.arange(len(order))
    return order[moved_from], new_starts

"""Numbering of ids: any column of texts or integers → contiguous integers in order of first appearance."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.adjacency import IntArray, load_kernels
from hdccf.errors import SourceError

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_HASH_SEED = 20_190
_PIECE = 1 << 18  # rows at a time, so that temporary arrays stay in the cache


def number_ids(ids: pl.Series, *, source: str, typed: bool = True) -> tuple[pl.Series, IntArray]:
    """Distinct ids in order of first appearance, and the number among them of each row's id; no nulls.

    Where the source knows no types (CSV), ids that are all plain integers become integers; `007` stays text,
    so that every id comes back as it was written.
    """
    ids = _as_text_or_integers(ids, source)
    codes = _number_hashes(ids.hash(_HASH_SEED))
    vocabulary = ids.gather(_first_rows(codes))
    if not (vocabulary.gather(codes) == ids).all():
        # Two ids have the same 64-bit hash, about once in 40,000 sources of 30 million ids.
        codes = _join(ids, ids.unique(maintain_order=True))
        vocabulary = ids.gather(_first_rows(codes))
    if vocabulary.dtype != pl.Int64:
        vocabulary = vocabulary.cast(pl.String)
        if not typed and _are_integers(vocabulary):
            vocabulary = vocabulary.cast(pl.Int64)
    return vocabulary, codes


def _number_hashes(hashes: pl.Series) -> IntArray:
    """The place of each hash among the distinct ones, in order of first appearance.

    A table that is addressed by a hash's leading bits answers for nearly all rows, four times as fast as a
    join; where two distinct hashes share these bits, the later one is left to a join.
    """
    kernels = load_kernels(len(hashes))
    if kernels is not None:
        return _by_hash_table(kernels, hashes.to_numpy())
    distinct = hashes.unique(maintain_order=True)
    known, keys = distinct.to_numpy(), hashes.to_numpy()
    bits = max(1, (4 * len(known)).bit_length())
    table = np.zeros(1 << bits, np.int32)
    # Backwards: of several assignments to one place the last one stays, which is the earlier hash.
    table[_leading(known, bits)[::-1]] = np.arange(len(known), dtype=np.int32)[::-1]
    codes, missed = np.empty(len(keys), np.int32), np.empty(len(keys), np.bool_)
    for start in range(0, len(keys), _PIECE):
        piece = slice(start, start + _PIECE)
        codes[piece] = table[_leading(keys[piece], bits)]
        np.not_equal(known[codes[piece]], keys[piece], out=missed[piece])
    rows = np.flatnonzero(missed)
    if len(rows):
        codes[rows] = _join(hashes.gather(rows), distinct)
    return codes


def _by_hash_table(kernels: Any, hashes: NDArray[np.uint64]) -> IntArray:
    """The same by a compiled loop; tables that turn out too small do so within the first rows."""
    codes, room = np.empty(len(hashes), np.int32), 1 << 16
    while kernels.number_hashes(hashes, np.zeros(2 * room, np.int32), np.empty(room, np.uint64), codes) < 0:
        room *= 8
    return codes


def _leading(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - bits)).view(np.int64)


def _join(keys: pl.Series, distinct: pl.Series) -> IntArray:
    """The place of each key among the distinct ones."""
    places = pl.DataFrame({"key": distinct, "place": np.arange(len(distinct), dtype=np.int32)})
    found = pl.DataFrame({"key": keys}).join(places, on="key", how="left", maintain_order="left")
    codes: IntArray = found["place"].to_numpy()
    return codes


def _first_rows(codes: IntArray) -> NDArray[np.int64]:
    """The row in which each code appears first."""
    rows = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return rows


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

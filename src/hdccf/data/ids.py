"""Numbering of ids: a column of texts or integers → contiguous integers in order of first appearance."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.adjacency import IntArray, load_kernels
from hdccf.errors import SourceError

_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_HASH_SEED = 20_190


def number_ids(ids: pl.Series, *, source: str, typed: bool = True) -> tuple[pl.Series, IntArray]:
    """Distinct ids in order of first appearance, and the number among them of each row's id; no nulls.

    Where the source knows no types (CSV), ids that are all plain integers become integers; `007` stays text,
    so that every id comes back as it was written.
    """
    ids = _as_text_or_integers(ids, source)
    vocabulary, codes = _number(ids)
    if vocabulary.dtype != pl.Int64:
        vocabulary = vocabulary.cast(pl.String)
        if not typed and _are_integers(vocabulary):
            vocabulary = vocabulary.cast(pl.Int64)
    return vocabulary, codes


def _number(ids: pl.Series) -> tuple[pl.Series, IntArray]:
    codes = _number_hashes(ids.hash(_HASH_SEED))
    vocabulary = ids.gather(_first_rows(codes))
    if not (vocabulary.gather(codes) == ids).all():
        # Two ids have the same 64-bit hash, about once in 40,000 sources of 30 million ids.
        vocabulary = ids.unique(maintain_order=True)
        codes = places_among(ids, vocabulary).to_numpy()
    return vocabulary, codes


def _number_hashes(hashes: pl.Series) -> IntArray:
    """The place of each hash among the distinct ones, in order of first appearance."""
    kernels = load_kernels(len(hashes))
    if kernels is None:
        return places_among(hashes, hashes.unique(maintain_order=True)).to_numpy()
    keys = hashes.to_numpy()
    codes, room = np.empty(len(keys), np.int32), 1 << 16
    # A table that is too small proves so within the first rows.
    while kernels.number_hashes(keys, np.zeros(2 * room, np.int32), np.empty(room, np.uint64), codes) < 0:
        room *= 8
    return codes


def places_among(keys: pl.Series, distinct: pl.Series) -> pl.Series:
    """The place of each key among the distinct ones; null where it is none of them."""
    places = pl.DataFrame({"key": distinct, "place": np.arange(len(distinct), dtype=np.int32)})
    return pl.DataFrame({"key": keys}).join(places, on="key", how="left", maintain_order="left")["place"]


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

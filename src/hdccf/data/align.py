"""Alignment of interactions that were read separately under one set of ids."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.interactions import IntArray, Interactions


def align(parts: list[Interactions]) -> list[Interactions]:
    """The same pairs under ids that all parts share."""
    user_ids, user_codes = _one_vocabulary([part.user_ids for part in parts])
    item_ids, item_codes = _one_vocabulary([part.item_ids for part in parts])
    titles = _one_set_of_titles([part.titles for part in parts], item_ids, item_codes)
    aligned = []
    for part, user_code, item_code in zip(parts, user_codes, item_codes, strict=True):
        if user_code is None and item_code is None:
            aligned.append(replace(part, user_ids=user_ids, item_ids=item_ids, titles=titles))
            continue
        aligned.append(
            Interactions.from_codes(
                part.users if user_code is None else user_code[part.users],
                part.items if item_code is None else item_code[part.items],
                user_ids=user_ids,
                item_ids=item_ids,
                times=part.times,
                counts=part.counts,
                titles=titles,
            )
        )
    return aligned


def _one_vocabulary(parts: list[pl.Series]) -> tuple[pl.Series, list[IntArray | None]]:
    """All ids, in order of first appearance, and each part's new codes (None: they stay as they are)."""
    if len({str(ids.dtype) for ids in parts}) > 1:
        parts = [ids.cast(pl.String) for ids in parts]
    everything = pl.concat([ids.rename("id") for ids in parts]).unique(maintain_order=True)
    place = pl.DataFrame({"id": everything, "code": np.arange(len(everything), dtype=np.int32)})
    codes: list[IntArray | None] = []
    for ids in parts:
        if ids.equals(everything.head(len(ids))):
            codes.append(None)
            continue
        found = pl.DataFrame({"id": ids}).join(place, on="id", how="left", maintain_order="left")
        codes.append(found["code"].to_numpy())
    return everything.rename(parts[0].name), codes


def _one_set_of_titles(
    given: list[pl.Series | None], item_ids: pl.Series, codes: list[IntArray | None]
) -> pl.Series | None:
    """Each item's title from the first part that has one; an item without is called by its id."""
    if all(titles is None for titles in given):
        return None
    merged: NDArray[Any] = item_ids.cast(pl.String).to_numpy(writable=True).astype(object)
    for titles, code in reversed(list(zip(given, codes, strict=True))):
        if titles is not None:
            places = np.arange(len(titles)) if code is None else code
            there = titles.is_not_null().to_numpy()
            merged[places[there]] = titles.to_numpy()[there]
    return pl.Series("title", merged.tolist(), pl.String)

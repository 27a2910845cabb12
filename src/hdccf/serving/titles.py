"""Looking up items by their titles and users by their ids, the popular and the active first."""

import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from hdccf.data.interactions import Interactions


@dataclass(frozen=True)
class Catalogue:
    """item, title, users and the text that is searched, most popular first."""

    frame: pl.DataFrame

    @classmethod
    def of(cls, events: Interactions) -> "Catalogue":
        titles = events.titles
        if titles is None:
            titles = pl.Series([None] * events.n_items, dtype=pl.String)
        frame = pl.DataFrame(
            {"item": events.item_ids, "title": titles, "users": np.diff(events.by_item.starts)}
        )
        own = pl.col("item").cast(pl.String)
        searched = _plain_column(pl.coalesce("title", own))
        frame = frame.with_columns(own=own, searched=searched)
        return cls(frame.sort("users", descending=True, maintain_order=True))

    def search(self, text: str, limit: int) -> list[dict[str, Any]]:
        """Those whose title has all words of the text; first the item of this id, then titles that begin so.

        Capitals and accents do not matter. An empty text finds the most popular.
        """
        plain = _plain(text)
        found = self.frame
        for word in plain.split():
            has_word = pl.col("searched").str.contains(word, literal=True)
            found = found.filter(has_word | (pl.col("own") == text))
        if plain:
            order = (pl.col("own") != text, ~pl.col("searched").str.starts_with(plain))
            found = found.sort(*order, maintain_order=True)
        return found.head(limit).select("item", "title", "users").to_dicts()


@dataclass(frozen=True)
class People:
    """user and events, most active first."""

    frame: pl.DataFrame

    @classmethod
    def of(cls, events: Interactions) -> "People":
        frame = pl.DataFrame({"user": events.user_ids, "events": np.diff(events.by_user.starts)})
        frame = frame.with_columns(own=pl.col("user").cast(pl.String))
        return cls(frame.sort("events", descending=True, maintain_order=True))

    def search(self, text: str, limit: int) -> list[dict[str, Any]]:
        """Those whose id has this text; first the user of this id, then ids that begin so."""
        found = self.frame.filter(pl.col("own").str.contains(text, literal=True))
        if text:
            found = found.sort(
                pl.col("own") != text, ~pl.col("own").str.starts_with(text), maintain_order=True
            )
        return found.head(limit).select("user", "events").to_dicts()


def _plain(text: str) -> str:
    """Without accents, in small letters."""
    parts = unicodedata.normalize("NFKD", text)
    return "".join(part for part in parts if not unicodedata.combining(part)).lower().strip()


def _plain_column(column: pl.Expr) -> pl.Expr:
    return column.str.normalize("NFKD").str.replace_all(r"\p{Mn}", "").str.to_lowercase()

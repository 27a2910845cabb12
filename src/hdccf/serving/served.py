"""The served model: loading, atomic replacement, and search over its items and users.

A request takes `current` once and keeps it to its end, so that every answer comes from one model and no
request waits for a swap. The old model goes when its last request has ended.
"""

import hashlib
import logging
import math
import threading
import time
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hdccf.data.interactions import Interactions
from hdccf.errors import HdccfError, RunError
from hdccf.recommend.recommender import Recommender, load_run

log = logging.getLogger("hdccf.serving")

Signature = tuple[object, ...]
_ATTEMPTS = 5


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
class UserCatalogue:
    """user and events, most active first."""

    frame: pl.DataFrame

    @classmethod
    def of(cls, events: Interactions) -> "UserCatalogue":
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


@dataclass(frozen=True)
class Served:
    """A model in use, with what is looked up beside it."""

    recommender: Recommender
    version: str
    """Begins the SHA-256 of the weights: two answers with the same version come from the same model."""
    path: Path
    loaded_at: float = field(default_factory=time.time)

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue.of(self.recommender.events)

    @cached_property
    def user_catalogue(self) -> UserCatalogue:
        return UserCatalogue.of(self.recommender.events)


Loader = Callable[[Path], Served]


def load(path: Path, *, index_above: int | None = None) -> Served:
    """Opens a run and tries it: what it returns has answered once, with numbers."""
    # Resolved once: a link that is set to another run meanwhile must not give half of each.
    folder = path.resolve()
    recommender, version = _read(folder, index_above)
    served = Served(recommender, version, folder)
    # Also what the first request would otherwise wait for.
    user = recommender.split.train.user_ids.head(1)
    scores = recommender.recommend(user, k=10, include_seen=True)["score"].to_list()
    if not scores or not all(math.isfinite(score) for score in scores):
        raise RunError(f"the model of {folder} scores {scores[:3]}, which are no numbers; train again")
    recommender.similar_items(recommender.split.train.item_ids.head(1), k=1)
    with suppress(HdccfError):  # this user may have no history to explain by
        recommender.explain(user[0], k=1)
    served.catalogue.search("", 1)
    served.user_catalogue.search("", 1)
    return served


def signature(path: Path) -> Signature:
    """Changes when the run behind `path` gets other weights, or `path` becomes a link to another run."""
    folder = path.resolve()
    try:
        stat = (folder / "best.safetensors").stat()
    except OSError:
        return (folder,)
    return (folder, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@dataclass(frozen=True)
class Outcome:
    """What came of an attempt to take a new model."""

    accepted: bool
    version: str
    """Of the model that answers now."""
    detail: str


class Holder:
    """Holds the model of a run's folder; `reload` replaces it if the new one loads, and only then."""

    def __init__(self, path: Path, loader: Loader = load) -> None:
        self.path = path
        self._load = loader
        self._reloading = threading.Lock()
        self._seen = signature(path)
        self.current = loader(path)
        self.last_rejection: str | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the weights are others than at the last attempt. What was rejected is not tried again."""
        return signature(self.path) != self._seen

    def reload(self) -> Outcome:
        """Loads beside the old model, in the calling thread; one at a time."""
        with self._reloading:
            self._seen = signature(self.path)
            try:
                new = self._load(self.path)
            except Exception as error:
                # Whatever is wrong with a new model, foreseen or not, the old one goes on.
                detail = " ".join(str(error).split()) or type(error).__name__
                self.last_rejection = detail
                log.warning("the new model was rejected, the old one goes on: %s", detail)
                return Outcome(False, self.current.version, detail)
            old, self.current = self.current, new
            self.last_rejection = None
            same = " (the same weights)" if old.version == new.version else ""
            return Outcome(True, new.version, f"{new.path} answers now{same}")


def _read(folder: Path, index_above: int | None) -> tuple[Recommender, str]:
    """The model and the version of exactly its weights, which a training may be replacing meanwhile."""
    for _ in range(_ATTEMPTS):
        before = signature(folder)
        recommender = load_run(folder, index_above=index_above)
        with (folder / "best.safetensors").open("rb") as opened:
            version = hashlib.file_digest(opened, "sha256").hexdigest()[:16]
        if signature(folder) == before:
            return recommender, version
    raise RunError(f"the weights of {folder} change faster than they can be read; wait for its training")

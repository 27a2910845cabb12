"""Ids in, data frames out: vocabularies, lists of new users or items, and answers as Polars frames."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.data.interactions import Interactions
from hdccf.errors import ConfigError, DataError
from hdccf.recommend.candidates import Best

Ids = Collection[Any]
"""Users or items by their own ids: a list, an array, a Polars or pandas series."""

Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids of all users, or of all items. Integers and their texts both serve."""

    kind: str
    """"user" or "item"."""
    ids: pl.Series
    where: str

    @cached_property
    def _index(self) -> dict[Any, int]:
        return {own: code for code, own in enumerate(self.ids)}

    @cached_property
    def _type(self) -> type[int] | type[str]:
        return int if self.ids.dtype.is_integer() else str

    def find(self, own: Any) -> int | None:
        """The contiguous id; None where it is unknown."""
        try:
            return self._index.get(self._type(own))
        except (ValueError, TypeError, OverflowError):
            return None

    def codes(self, ids: Ids) -> Codes:
        """All of them, or an error that names the first unknown one."""
        found = self._found(ids)
        if None in found:
            unknown = list(ids)[found.index(None)]
            examples = self.ids.head(3).to_list()
            raise DataError(
                f"{self.kind} {unknown!r} is not in {self.where}; known are for example {examples}"
            )
        return np.array(found, np.int64)

    def known(self, ids: Ids) -> Codes:
        """Those that are known; the others are left out."""
        return np.array([code for code in self._found(ids) if code is not None], np.int64)

    def _found(self, ids: Ids) -> list[int | None]:
        if isinstance(ids, str | int):
            raise ConfigError(f"{self.kind}s={ids!r} is one id; give a list of them, as in [{ids!r}]")
        return [self.find(own) for own in ids]


Lists = Sequence[Ids]
"""One list of ids for each new user, or for each new item."""


def histories_of(lists: Lists, vocabulary: Vocabulary, whose: str) -> Interactions:
    """Lists as the histories of so many new nodes, the last entry the latest.

    A repeat counts once, where it came first, as it does in data that is read.
    """
    if isinstance(lists, str | int) or any(isinstance(some, str | int) for some in lists):
        raise ConfigError(f"give a list of lists, one for each of the new {whose}, as in [[…], […]]")
    codes = [vocabulary.codes(some) for some in lists]
    for number, some in enumerate(codes):
        if not len(some):
            raise DataError(
                f"list {number} is empty, and an empty history has no recommendations; leave it out, or take "
                "what is popular: hdccf train --model most-popular"
            )
    flat: Codes = np.concatenate([np.zeros(0, np.int64), *codes])
    return Interactions.from_codes(
        np.repeat(np.arange(len(codes)), [len(some) for some in codes]),
        flat,
        user_ids=pl.Series(np.arange(len(codes))),
        item_ids=vocabulary.ids,
        times=np.arange(len(flat)),
    )


Named = dict[str, pl.Series]
"""The name of a column, and the own id of every contiguous one."""


def listed(whose: Named, what: Named, found: Iterable[Best], titles: pl.Series | None = None) -> pl.DataFrame:
    """Lists as rows of whose, rank, what, score (and title); places that were filled up are left out."""
    ((of, of_ids),), ((entry, entry_ids),) = whose.items(), what.items()
    rows, ranks, chosen = ([np.zeros(0, np.int64)] for _ in range(3))
    scores = [np.zeros(0, np.float32)]
    for best in found:
        n, width = best.items.shape
        rows.append(np.repeat(best.rows.numpy(), width))
        ranks.append(np.tile(np.arange(1, width + 1), n))
        chosen.append(best.items.numpy().ravel())
        scores.append(best.scores.numpy().astype(np.float32, copy=False).ravel())
    score = np.concatenate(scores)
    kept = np.flatnonzero(~np.isneginf(score))
    codes = np.concatenate(chosen)[kept]
    frame = pl.DataFrame(
        {
            of: of_ids.gather(np.concatenate(rows)[kept]),
            "rank": np.concatenate(ranks)[kept],
            entry: entry_ids.gather(codes),
            "score": score[kept],
        }
    )
    return titled(frame, codes, titles)


def titled(frame: pl.DataFrame, items: Codes, titles: pl.Series | None) -> pl.DataFrame:
    """With the titles of the items that its rows are about, where there are any."""
    return frame if titles is None else frame.with_columns(title=titles.gather(items))

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
        found = self.places(ids)
        if None in found:
            raise self.unknown(list(ids)[found.index(None)])
        return np.array(found, np.int64)

    def known(self, ids: Ids) -> Codes:
        """Those that are known; the others are left out."""
        return np.array([code for code in self.places(ids) if code is not None], np.int64)

    def places(self, ids: Ids) -> list[int | None]:
        """The contiguous id of each; None where it is unknown."""
        if isinstance(ids, str | int):
            raise ConfigError(f"{self.kind}s={ids!r} is one id; give a list of them, as in [{ids!r}]")
        return [self.find(own) for own in ids]

    def unknown(self, own: Any) -> DataError:
        """An error that names an unknown id and some known ones."""
        examples = self.ids.head(3).to_list()
        return DataError(f"{self.kind} {own!r} is not in {self.where}; known are for example {examples}")

    def spell(self, own: Any) -> Any:
        """A known or unknown id in the data's type; a text where it does not fit."""
        try:
            found = self._type(own)
        except (ValueError, TypeError, OverflowError):
            return str(own)
        fits = isinstance(found, str) or -(2**63) <= found < 2**63
        return found if fits else str(own)

    def spelled(self, ids: Ids) -> pl.Series:
        """Known and unknown ids in one column, of the data's type; of texts where one does not fit it."""
        own = [self.spell(each) for each in ids]
        if all(isinstance(each, self._type) for each in own):
            return pl.Series(own, dtype=self.ids.dtype)
        return pl.Series([str(each) for each in own], dtype=pl.String)


Lists = Sequence[Ids]
"""One list of ids for each new user, or for each new item."""


def histories_of(lists: Lists, vocabulary: Vocabulary, whose: str) -> Interactions:
    """Lists as the histories of so many new nodes, the last entry the latest.

    A repeat counts once, where it came first, as it does in data that is read.
    """
    codes = codes_of(lists, vocabulary, f"new {whose}")
    for number, some in enumerate(codes):
        if not len(some):
            raise DataError(f"list {number} is empty, and an empty history says nothing; leave it out")
    return as_histories(codes, vocabulary)


def codes_of(lists: Lists, vocabulary: Vocabulary, whose: str) -> list[Codes]:
    """Lists of ids as contiguous ids, all of which must be known."""
    if isinstance(lists, str | int) or any(isinstance(some, str | int) for some in lists):
        raise ConfigError(f"give a list of lists, one for each of the {whose}, as in [[…], […]]")
    return [vocabulary.codes(some) for some in lists]


def as_histories(codes: Sequence[Codes], vocabulary: Vocabulary) -> Interactions:
    """A user for each list, whose history it is, in its order."""
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

"""From the ids that people use to the contiguous ones, with an answer for those that nobody knows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hdccf.errors import ConfigError, DataError

Ids = Sequence[Any] | pl.Series | NDArray[Any]
"""Users or items by their own ids."""

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
        if isinstance(ids, str | int):
            raise ConfigError(f"{self.kind}s={ids!r} is one id; give a list of them, as in [{ids!r}]")
        found = np.empty(len(ids), np.int64)
        for place, own in enumerate(ids):
            code = self.find(own)
            if code is None:
                examples = self.ids.head(3).to_list()
                raise DataError(
                    f"{self.kind} {own!r} is not in {self.where}; known are for example {examples}"
                )
            found[place] = code
        return found

    def known(self, ids: Iterable[Any]) -> Codes:
        """Those that are known; the others are left out."""
        if isinstance(ids, str | int):
            raise ConfigError(f"{self.kind}s={ids!r} is one id; give a list of them, as in [{ids!r}]")
        found = (self.find(own) for own in ids)
        return np.array([code for code in found if code is not None], np.int64)

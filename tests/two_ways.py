"""A file read by the compiled loops and by Polars: equal results, or equal words of refusal."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hdccf.data import compiled
from hdccf.data.interactions import Interactions
from hdccf.data.sources import read
from hdccf.errors import SourceError
from sameness import assert_same


class Watch:
    """Notes whether a function that a module calls gave anything."""

    def __init__(self, patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.taken: list[bool] = []
        original = getattr(module, name)

        def watched(*given: Any) -> Any:
            coded = original(*given)
            self.taken.append(coded is not None)
            return coded

        patch.setattr(module, name, watched)


def by_polars(path: Path, **options: Any) -> Interactions:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "LEAST_ROWS", 1 << 40)
        return read(path, **options)


def outcome(way: Any, path: Path, **options: Any) -> Interactions | str:
    try:
        done: Interactions = way(path, **options)
    except SourceError as error:
        return str(error)
    return done


def assert_equal_outcomes(path: Path, **options: Any) -> None:
    """Both ways give the same interactions, or refuse with the same words."""
    mine, theirs = outcome(read, path, **options), outcome(by_polars, path, **options)
    if isinstance(mine, str) or isinstance(theirs, str):
        assert mine == theirs
    else:
        assert_same(mine, theirs)

"""What is asked: which users, their held-out items, and the items that nobody may answer with.

Users with the most held-out items come first. So the users who have a second, a third, … held-out item are
always the leading rows of a block of scores, and ranking several of them takes slices and no copies.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hdccf.data.interactions import Adjacency
from hdccf.data.split import Split
from hdccf.errors import EvaluationError

PARTS = ("validation", "test")

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Questions:
    """Build it with `ask`."""

    split: Split
    part: str
    users: IndexArray
    """Those who have held-out items: the ones with the most first, then ascending."""
    starts: IndexArray
    """The held-out items of `users[k]` are `items[starts[k]:starts[k + 1]]`."""
    items: IndexArray
    answered: tuple[Adjacency, ...]
    """Where the items that leave the full ranking stand: training, and for test validation too."""

    def __len__(self) -> int:
        return len(self.users)

    @cached_property
    def held_out(self) -> IndexArray:
        """How many held-out items each user has."""
        return np.diff(self.starts)

    @cached_property
    def excluded(self) -> IndexArray:
        """How many items of each user leave the full ranking."""
        counts = np.zeros(len(self), np.int64)
        for source in self.answered:
            counts += source.degrees[self.users]
        return counts

    def excluded_cells(self, start: int, stop: int) -> IndexArray:
        """The cells of a block of users, numbered row by row, that leave the full ranking."""
        users = self.users[start:stop]
        bounds = [(source.starts[users], source.starts[users + 1]) for source in self.answered]
        items = [
            _rows_of(source, users, first, last)
            for source, (first, last) in zip(self.answered, bounds, strict=True)
        ]
        cells = np.concatenate(items, dtype=np.int64)
        row_starts = np.arange(len(users)) * self.split.n_items
        cells += np.repeat(
            np.tile(row_starts, len(bounds)), np.concatenate([last - first for first, last in bounds])
        )
        return cells


def ask(split: Split, part: str) -> Questions:
    """The questions that `part` of `split` poses."""
    if part not in PARTS:
        raise EvaluationError(f"part={part!r} cannot be evaluated; choose one of {list(PARTS)}")
    held_out = split.part(part)
    if not len(held_out):
        raise EvaluationError(
            f"the {part} part of this {split.method} split is empty, so there is nothing to evaluate; "
            "use a split that holds interactions out"
        )
    starts = held_out.by_user.starts
    counts = np.diff(starts)
    users = np.flatnonzero(counts)
    if counts[users].max() > 1:
        users = users[np.argsort(-counts[users], kind="stable")]
    asked = _rows_of(held_out.by_user, users, starts[users], starts[users + 1]).astype(np.int64)
    # A test question comes after validation: what the user was seen to take then is no candidate any more. A
    # validation question must leave test items in: taking them out would tell the model what comes later.
    answered = (
        (split.train.by_user,) if part == "validation" else (split.train.by_user, split.validation.by_user)
    )
    asked_starts = np.concatenate(([0], np.cumsum(counts[users])))
    return Questions(split, part, users.astype(np.int64), asked_starts, asked, answered)


def _rows_of(source: Adjacency, users: IndexArray, first: IndexArray, last: IndexArray) -> NDArray[np.int32]:
    """The neighbours of several users, one after another."""
    if not len(users):
        return source.neighbours[:0]
    if users[-1] - users[0] == len(users) - 1 and np.all(users[1:] > users[:-1]):
        return source.neighbours[first[0] : last[-1]]  # consecutive users: a slice, which costs nothing
    lengths = last - first
    ends = np.cumsum(lengths)
    # Counting from each user's first entry: positions since the user began, plus where the user's entries
    # are.
    positions = np.arange(ends[-1], dtype=np.int64) + np.repeat(first - (ends - lengths), lengths)
    gathered: NDArray[np.int32] = source.neighbours[positions]
    return gathered

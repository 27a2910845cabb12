"""`Split`: interactions in three parts under one set of ids, and what the cut left without training data."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hdccf.data.interactions import Interactions
from hdccf.errors import DataError
from hdccf.files import atomic_directory, read_described, write_json

PARTS = ("train", "validation", "test")

FORMAT = "hdccf-split"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Immutable; build it with `leave_one_out`, `global_time_split`, `random_split` or `predefined_split`.

    The three parts share their ids and titles: user 7 of `train` is user 7 of `test`, whether or not that
    user has pairs in both.
    """

    train: Interactions
    """What a model may learn from."""
    validation: Interactions
    """What early stopping and tuning are judged on; may be empty."""
    test: Interactions
    """What results are reported on; may be empty."""
    method: str
    """How it was cut: "leave-one-out", "global-time", "random" or "predefined"."""
    facts: dict[str, int]
    """What the cut did, counted; `describe` puts it into words."""

    def __post_init__(self) -> None:
        shapes = [(part.n_users, part.n_items) for part in (self.train, self.validation, self.test)]
        if len(set(shapes)) > 1:
            raise DataError(
                f"the parts have {', '.join(f'{users} × {items}' for users, items in shapes)} users × items, "
                "but must share their ids; build the split with predefined_split, which aligns them"
            )

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def n_items(self) -> int:
        return self.train.n_items

    def part(self, name: str) -> Interactions:
        """The part of that name."""
        if name not in PARTS:
            raise DataError(f"part={name!r} is unknown; choose one of {list(PARTS)}")
        found: Interactions = getattr(self, name)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same three parts, on any machine; otherwise different."""
        parts = ":".join(self.part(name).fingerprint for name in PARTS)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        sizes = " + ".join(f"{len(self.part(name)):,}" for name in PARTS)
        return f"Split({self.method}, {self.n_users:,} users × {self.n_items:,} items, {sizes} pairs)"

    def describe(self) -> str:
        """What is in each part and what the cut left without training data, one fact a line."""
        lines = [f"{self.method} split of {self.n_users:,} users × {self.n_items:,} items"]
        for name in PARTS:
            part = self.part(name)
            users = np.count_nonzero(part.by_user.degrees)
            lines.append(f"  {name}: {len(part):,} pairs of {users:,} users")
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks())])

    def remarks(self) -> list[str]:
        """What somebody who uses the split should know: a sentence for each fact that is not zero."""
        remarks = [
            _WORDS[fact].format(n=count) for fact, count in self.facts.items() if count and fact in _WORDS
        ]
        if self.method == "leave-one-out" and self.train.times is None:
            remarks.append("there are no times: each user's order is that of arrival")
        return remarks

    # -- on disk ---------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes one folder, a sub-folder for each part and `meta.json`, all or nothing."""
        with atomic_directory(Path(path), overwrite=overwrite) as folder:
            for name in PARTS:
                self.part(name).save(folder / name)
            meta = {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "method": self.method,
                "fingerprint": self.fingerprint,
                "facts": self.facts,
            }
            write_json(folder / "meta.json", meta)

    @classmethod
    def load(cls, path: str | Path) -> "Split":
        """Opens a folder that `save` wrote, and checks that it still holds what was written."""
        folder = Path(path)
        meta = _read_meta(folder)
        train, validation, test = (Interactions.load(folder / name) for name in PARTS)
        # The fingerprint is of the parts as they were read, ids included; only then are the ids shared.
        loaded = cls(train, validation, test, meta["method"], meta["facts"])
        if loaded.fingerprint != meta["fingerprint"]:
            raise DataError(
                f"{folder} is damaged: its fingerprint is {loaded.fingerprint}, but {meta['fingerprint']} "
                "was saved; save the split again"
            )
        return replace(loaded, validation=_under_ids_of(train, validation), test=_under_ids_of(train, test))


_WORDS = {
    "users_too_short": "{n:,} users have fewer than three interactions: kept in training only",
    "users_without_training": "{n:,} users have no training pair",
    "items_without_training": "{n:,} items have no training pair",
    "validation_pairs_without_training": "{n:,} validation pairs have a user or item without training pairs",
    "test_pairs_without_training": "{n:,} test pairs have a user or item without training pairs",
    "overlap_dropped": "{n:,} pairs were dropped from a later part because an earlier part has them",
    "users_added": "{n:,} users are in validation or test only",
    "items_added": "{n:,} items are in validation or test only",
}


def _under_ids_of(train: Interactions, part: Interactions) -> Interactions:
    return replace(part, user_ids=train.user_ids, item_ids=train.item_ids, titles=train.titles)


def without_training(train: Interactions, validation: Interactions, test: Interactions) -> dict[str, int]:
    """Counts the users, items and held-out pairs that a model knows nothing about."""
    user_known = train.by_user.degrees > 0
    item_known = np.bincount(train.items, minlength=train.n_items) > 0
    facts = {
        "users_without_training": int(np.count_nonzero(~user_known)),
        "items_without_training": int(np.count_nonzero(~item_known)),
    }
    for name, part in (("validation", validation), ("test", test)):
        known = user_known[part.users] & item_known[part.items]
        facts[f"{name}_pairs_without_training"] = int(np.count_nonzero(~known))
    return facts


def _read_meta(folder: Path) -> dict[str, Any]:
    meta = read_described(
        folder / "meta.json",
        "saved split",
        kind=FORMAT,
        version=FORMAT_VERSION,
        writer="Split.save()",
        remedy="save the split again",
        error=DataError,
    )
    if not {"method", "facts", "fingerprint"} <= meta.keys():
        raise DataError(f"{folder}/meta.json is damaged; save the split again")
    return meta

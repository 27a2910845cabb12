"""`Split`: interactions in three parts under one set of ids, and five ways to make one."""

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdccf.console import html_table, note
from hdccf.data.interactions import Interactions, align
from hdccf.data.read import read
from hdccf.errors import ConfigError, DataError
from hdccf.files import atomic_directory, read_described, write_json

PARTS = ("train", "validation", "test")
OVERLAP = ("refuse", "drop")

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

FORMAT = "hdccf-split"
FORMAT_VERSION = 1

Moment = str | date | datetime | np.datetime64


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Interactions in three parts. Immutable.

    Build it with `leave_one_out`, `global_time_split`, `random_split` or `predefined_split`. The three parts
    share their ids and titles: user 7 of `train` is user 7 of `test`, whether or not that user has pairs in
    both.

    Examples
    --------
    >>> split = hdccf.leave_one_out(hdccf.load("ml-100k"))
    >>> len(split.train), len(split.validation), len(split.test)
    (98114, 943, 943)
    """

    train: Interactions
    """What a model may learn from."""
    validation: Interactions
    """What early stopping and tuning are judged on; may be empty."""
    test: Interactions
    """What results are reported on; may be empty."""
    method: str
    """How it was cut: "leave-one-out", "global-time", "random", "predefined" or "none"."""
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

    def joined(self, *names: str) -> Interactions:
        """Some parts together, all where none is named, in order of time.

        The first part says whether there are times and weights. Without times one part comes after the other;
        pairs of a later part have the latest time so far, and the weight 1, where it has none of its own.
        """
        parts = [self.part(name) for name in names or PARTS]
        times: list[NDArray[np.int64]] = []
        weights: list[NDArray[np.float32]] = []
        for part in parts:
            latest = max((int(each.max()) for each in times if len(each)), default=0)
            times.append(np.full(len(part), latest, np.int64) if part.times is None else part.times)
            weights.append(np.ones(len(part), np.float32) if part.weights is None else part.weights)
        return Interactions.from_codes(
            np.concatenate([part.users for part in parts]),
            np.concatenate([part.items for part in parts]),
            user_ids=self.train.user_ids,
            item_ids=self.train.item_ids,
            times=None if parts[0].times is None else np.concatenate(times),
            counts=np.concatenate([part.counts for part in parts]),
            titles=self.train.titles,
            weights=None if parts[0].weights is None else np.concatenate(weights),
        )

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same three parts, on any machine; otherwise different."""
        parts = ":".join(self.part(name).fingerprint for name in PARTS)
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        sizes = " + ".join(f"{len(self.part(name)):,}" for name in PARTS)
        return f"Split({self.method}, {self.n_users:,} users × {self.n_items:,} items, {sizes} pairs)"

    def _repr_html_(self) -> str:
        rows = []
        for name in PARTS:
            part = self.part(name)
            present = (np.count_nonzero(side.degrees) for side in (part.by_user, part.by_item))
            rows.append([name, *(f"{count:,}" for count in (len(part), *present))])
        return html_table(repr(self), ["part", "pairs", "users", "items"], rows)

    def describe(self) -> str:
        """What is in each part and what the cut left without training data, one fact a line."""
        lines = [f"{self.method} split of {self.n_users:,} users × {self.n_items:,} items"]
        for name in PARTS:
            part = self.part(name)
            users = np.count_nonzero(part.by_user.degrees)
            lines.append(f"  {name}: {len(part):,} pairs of {users:,} users")
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks())])

    def remarks(self) -> list[str]:
        """A sentence for each fact that is not zero."""
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
        train, validation, test = (Interactions.load(folder / name) for name in PARTS)
        # The fingerprint is of the parts as they were read, ids included; only then are the ids shared.
        loaded = cls(train, validation, test, meta["method"], meta["facts"])
        if loaded.fingerprint != meta["fingerprint"]:
            raise DataError(
                f"{folder} is damaged: its fingerprint is {loaded.fingerprint}, but {meta['fingerprint']} "
                "was saved; save the split again"
            )
        ids: dict[str, Any] = {"user_ids": train.user_ids, "item_ids": train.item_ids, "titles": train.titles}
        return replace(loaded, validation=replace(validation, **ids), test=replace(test, **ids))


# -- ways to split -------------------------------------------------------------------------------------------


def leave_one_out(data: Interactions, *, progress: bool = False) -> Split:
    """Each user's last interaction is for testing, the one before it for validation, the rest for training.

    The order is that of time, on ties and without times that of arrival. Users with fewer than three
    interactions have nothing to spare: they stay in training and are counted in `facts["users_too_short"]`.

    Parameters
    ----------
    data
        The interactions to split.
    progress
        Whether to print remarks about the split.

    Returns
    -------
    Split
        One pair of each user in validation and in test.

    Examples
    --------
    >>> split = hdccf.leave_one_out(data)
    """
    starts, lengths = data.by_user.starts, data.by_user.degrees
    long_enough = lengths >= 3
    if not long_enough.any():
        raise DataError(
            f"none of {data.n_users:,} users has three interactions, which leave-one-out needs; "
            "use random_split or no_split (--split random, --split none), or give more data"
        )
    last = starts[1:][long_enough] - 1
    part = np.zeros(len(data), np.uint8)
    part[last] = 2
    part[last - 1] = 1
    too_short = int(np.count_nonzero(~long_enough & (lengths > 0)))
    return _made(_cut(data, part), "leave-one-out", {"users_too_short": too_short}, progress)


def global_time_split(
    data: Interactions,
    validation: float = 0.1,
    test: float = 0.1,
    *,
    validation_from: Moment | None = None,
    test_from: Moment | None = None,
    progress: bool = False,
) -> Split:
    """What happened last is for testing, what happened before that for validation, the rest for training.

    Interactions of the same moment stay together, so the shares are met as nearly as ties allow.

    Parameters
    ----------
    data
        The interactions to split; they must have times.
    validation, test
        Shares of the interactions.
    validation_from, test_from
        In place of shares, the moments at which the two parts begin: ISO 8601 or dates, in UTC unless they
        say otherwise.
    progress
        Whether to print remarks about the split.

    Returns
    -------
    Split
        Three parts that follow each other in time.

    Examples
    --------
    >>> split = hdccf.global_time_split(data, validation_from="2024-05-01", test_from="2024-06-01")
    """
    if data.times is None:
        raise DataError(
            "a global-time split needs times and these interactions have none; use random_split instead"
        )
    if (validation_from is None) != (test_from is None):
        raise ConfigError("only one of validation_from and test_from was given; give both, or shares instead")
    if validation_from is not None and test_from is not None:
        cuts = _microseconds("validation_from", validation_from), _microseconds("test_from", test_from)
        if cuts[0] > cuts[1]:
            raise ConfigError(
                f"validation_from={validation_from} is after test_from={test_from}; put it before"
            )
    else:
        _check_shares(validation, test)
        n_test = round(test * len(data))
        n_held_out = n_test + round(validation * len(data))
        ordered, never = np.sort(data.times), np.iinfo(np.int64).max
        cuts = int(ordered[-n_held_out]) if n_held_out else never, int(ordered[-n_test]) if n_test else never
    part = (data.times >= cuts[0]).astype(np.uint8)
    part += data.times >= cuts[1]
    wanted = (True, validation_from is not None or validation > 0, test_from is not None or test > 0)
    for number, name in enumerate(PARTS):
        if wanted[number] and not np.any(part == number) and data.time_range is not None:
            first, last = data.time_range
            raise DataError(
                f"no interaction is left for {name}: times run from {first} to {last}; move the cut, or use "
                "leave_one_out or random_split (--split leave-one-out, --split random)"
            )
    return _made(_cut(data, part), "global-time", {}, progress)


def random_split(
    data: Interactions, validation: float = 0.1, test: float = 0.1, *, seed: int = 0, progress: bool = False
) -> Split:
    """Pairs drawn without regard to time or user; the parts are `round(share · pairs)` long.

    Parameters
    ----------
    data
        The interactions to split.
    validation, test
        Shares of the pairs.
    seed
        The same seed gives the same split.
    progress
        Whether to print remarks about the split.

    Returns
    -------
    Split
        Three disjoint parts.

    Examples
    --------
    >>> split = hdccf.random_split(data, validation=0.1, test=0.2, seed=7)
    """
    _check_shares(validation, test)
    n_validation, n_test = round(validation * len(data)), round(test * len(data))
    if n_validation + n_test >= len(data):
        raise DataError(f"{len(data)} pairs leave none for training; give more data or smaller shares")
    drawn = np.random.default_rng(seed).permutation(len(data))
    part = np.zeros(len(data), np.uint8)
    part[drawn[:n_validation]] = 1
    part[drawn[n_validation : n_validation + n_test]] = 2
    return _made(_cut(data, part), "random", {}, progress)


def predefined_split(
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    overlap: str = "refuse",
    progress: bool = False,
    **reading: Any,
) -> Split:
    """Parts that are given, under one set of ids: the training part's, then new ones.

    Ids that are integers in one part and strings in another become strings.

    Parameters
    ----------
    train, validation, test
        Each is an `Interactions`, or anything that `hdccf.read` reads; `None` is a part without pairs.
    overlap
        A pair in two parts would be learnt and then asked for. `"refuse"` raises; `"drop"` leaves it in the
        earlier part only and counts it.
    progress
        Whether to print remarks about the split.
    **reading
        Options of `hdccf.read` for all parts.

    Returns
    -------
    Split
        The given parts under common ids.

    Examples
    --------
    >>> split = hdccf.predefined_split("train.csv", test="test.csv", user="user", item="item")
    """
    if overlap not in OVERLAP:
        raise ConfigError(f"overlap={overlap!r} is unknown; choose one of {list(OVERLAP)}")
    first = read(train, **reading)
    none = first.subset(np.zeros(len(first), np.bool_))
    given = [first, *(none if part is None else read(part, **reading) for part in (validation, test))]
    aligned = align(given)
    known = np.empty(0, np.int64)
    dropped = 0
    for place, part in enumerate(aligned):
        keys = part.users.astype(np.int64) * part.n_items + part.items
        repeated = np.isin(keys, known)
        if repeated.any() and overlap == "refuse":
            raise DataError(
                f"{int(repeated.sum()):,} pairs of {PARTS[place]} are in an earlier part as well; "
                'give parts without common pairs, or overlap="drop" to keep them in the earlier part only'
            )
        dropped += int(repeated.sum())
        aligned[place] = part.subset(~repeated) if repeated.any() else part
        known = np.concatenate((known, keys))
    facts = {
        "overlap_dropped": dropped,
        "users_added": aligned[0].n_users - first.n_users,
        "items_added": aligned[0].n_items - first.n_items,
    }
    return _made(aligned, "predefined", facts, progress)


def no_split(data: Interactions) -> Split:
    """All interactions are for training, and none is held out: nothing can be validated or evaluated.

    Parameters
    ----------
    data
        The interactions to train on.

    Returns
    -------
    Split
        One whose validation and test parts are empty.

    Examples
    --------
    >>> model = hdccf.fit(hdccf.no_split(data), hdccf.HDCCF(epochs=20))
    """
    return _made(_cut(data, np.zeros(len(data), np.uint8)), "none", {}, False)


# -- common to all -------------------------------------------------------------------------------------------


def _cut(data: Interactions, part: NDArray[np.uint8]) -> list[Interactions]:
    """Three parts: row r is in part number `part[r]`."""
    return [data.subset(part == number) for number in range(3)]


def _made(parts: list[Interactions], method: str, facts: dict[str, int], progress: bool) -> Split:
    """The split of these parts, with the counts of what a model cannot know; prints them on request."""
    train, validation, test = parts
    user_known, item_known = train.by_user.degrees > 0, np.bincount(train.items, minlength=train.n_items) > 0
    facts = {
        **facts,
        "users_without_training": int(np.count_nonzero(~user_known)),
        "items_without_training": int(np.count_nonzero(~item_known)),
    }
    for name, part in (("validation", validation), ("test", test)):
        known = user_known[part.users] & item_known[part.items]
        facts[f"{name}_pairs_without_training"] = int(np.count_nonzero(~known))
    split = Split(train, validation, test, method, facts)
    for remark in split.remarks() if progress else ():
        note(remark)
    return split


def _check_shares(validation: float, test: float) -> None:
    for name, share in (("validation", validation), ("test", test)):
        if not 0 <= share < 1:
            raise ConfigError(f"{name}={share} is not a share; give a number from 0 to below 1")
    if validation + test >= 1:
        raise ConfigError(
            f"validation={validation} and test={test} leave nothing for training; give less than 1 in all"
        )


def _microseconds(name: str, moment: Moment) -> int:
    """Microseconds since 1970; a moment without a zone is in UTC."""
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if isinstance(parsed, datetime) and parsed.tzinfo is not None:
            parsed = parsed.astimezone(UTC).replace(tzinfo=None)
        return int(np.array(parsed, "datetime64[us]").astype(np.int64))
    except ValueError as cause:
        raise ConfigError(
            f"{name}={moment!r} is not a moment; give a date such as 2024-05-31 or ISO 8601"
        ) from cause

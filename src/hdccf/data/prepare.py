"""From all interactions to what a model is trained and judged on: the k-core, and four ways to split."""

from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdccf.data.align import align
from hdccf.data.core import k_core
from hdccf.data.interactions import Interactions, TimeArray
from hdccf.data.split import PARTS, Split, without_training
from hdccf.errors import ConfigError, DataError
from hdccf.progress import note

__all__ = [
    "PARTS",
    "Split",
    "global_time_split",
    "k_core",
    "leave_one_out",
    "predefined_split",
    "random_split",
]

Moment = str | date | datetime | np.datetime64

OVERLAP = ("refuse", "drop")


# -- splits --------------------------------------------------------------------------------------------------


def leave_one_out(data: Interactions, *, progress: bool = False) -> Split:
    """Each user's last interaction is for testing, the one before it for validation, the rest for training.

    The order is that of time, on ties and without times that of arrival. Users with fewer than three
    interactions have nothing to spare: they stay in training and are counted in `facts["users_too_short"]`.
    """
    starts = data.by_user.starts
    lengths = np.diff(starts)
    long_enough = lengths >= 3
    if not long_enough.any():
        raise DataError(
            f"none of {data.n_users:,} users has three interactions, which leave-one-out needs; "
            "use random_split or give more data"
        )
    last = starts[1:][long_enough] - 1
    part = np.zeros(len(data), np.uint8)
    part[last] = 2
    part[last - 1] = 1
    too_short = int(np.count_nonzero(~long_enough & (lengths > 0)))
    return _cut(data, part, "leave-one-out", {"users_too_short": too_short}, progress)


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

    `validation` and `test` are shares of the interactions; or give the moments at which the two parts begin
    (ISO 8601 or dates, UTC unless they say otherwise). Interactions of the same moment stay together, so the
    shares are met as nearly as ties allow.
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
        cuts = _cuts_at_shares(data.times, validation, test)
    part = (data.times >= cuts[0]).astype(np.uint8)
    part += data.times >= cuts[1]
    sizes = np.bincount(part, minlength=3)
    wanted = (True, validation_from is not None or validation > 0, test_from is not None or test > 0)
    for name, size, is_wanted in zip(PARTS, sizes, wanted, strict=True):
        if is_wanted and not size:
            first, last = (
                np.datetime64(int(data.times.min()), "us"),
                np.datetime64(int(data.times.max()), "us"),
            )
            raise DataError(
                f"no interaction is left for {name}: times run from {first} to {last}; move the cut"
            )
    return _cut(data, part, "global-time", {}, progress)


def random_split(
    data: Interactions, validation: float = 0.1, test: float = 0.1, *, seed: int = 0, progress: bool = False
) -> Split:
    """Pairs drawn without regard to time or user; the parts are `round(share · pairs)` long."""
    _check_shares(validation, test)
    n_validation, n_test = round(validation * len(data)), round(test * len(data))
    if n_validation + n_test >= len(data):
        raise DataError(f"{len(data)} pairs leave none for training; give more data or smaller shares")
    drawn = np.random.default_rng(seed).permutation(len(data))
    part = np.zeros(len(data), np.uint8)
    part[drawn[:n_validation]] = 1
    part[drawn[n_validation : n_validation + n_test]] = 2
    return _cut(data, part, "random", {}, progress)


def predefined_split(
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    overlap: str = "refuse",
    progress: bool = False,
    **reading: Any,
) -> Split:
    """Parts that somebody else cut, under one set of ids: the training part's, then new ones.

    Each is an `Interactions`, or whatever `hdccf.read` reads, with `reading` as its options: files, folders,
    data frames. `None` is a part without pairs.

    A pair in two parts would be learnt and then asked for. `overlap="refuse"` raises; `"drop"` leaves it in
    the earlier part only and counts it. Ids that are integers here and strings there become strings.
    """
    if overlap not in OVERLAP:
        raise ConfigError(f"overlap={overlap!r} is unknown; choose one of {list(OVERLAP)}")
    first = _opened(train, reading)
    none = first.subset(np.zeros(len(first), np.bool_))
    given = [first, *(none if part is None else _opened(part, reading) for part in (validation, test))]
    aligned = align(given)
    known = _pair_keys(aligned[0])
    dropped = 0
    for place in (1, 2):
        keys = _pair_keys(aligned[place])
        repeated = np.isin(keys, known)
        if repeated.any() and overlap == "refuse":
            raise DataError(
                f"{int(repeated.sum()):,} pairs of {PARTS[place]} are in an earlier part as well; "
                'give parts without common pairs, or overlap="drop" to keep them in the earlier part only'
            )
        dropped += int(repeated.sum())
        aligned[place] = aligned[place].subset(~repeated)
        known = np.concatenate((known, keys[~repeated]))
    facts = {
        "overlap_dropped": dropped,
        "users_added": aligned[0].n_users - first.n_users,
        "items_added": aligned[0].n_items - first.n_items,
    }
    found = without_training(aligned[0], aligned[1], aligned[2])
    return _report(Split(aligned[0], aligned[1], aligned[2], "predefined", facts | found), progress)


# -- common to all -------------------------------------------------------------------------------------------


def _cut(
    data: Interactions, part: NDArray[np.uint8], method: str, facts: dict[str, int], progress: bool
) -> Split:
    """The split in which row r is in part number `part[r]`."""
    train, validation, test = (data.subset(part == number) for number in range(3))
    found = without_training(train, validation, test)
    return _report(Split(train, validation, test, method, facts | found), progress)


def _report(split: Split, progress: bool) -> Split:
    if progress:
        for remark in split.remarks():
            note(remark)
    return split


def _opened(part: Any, reading: dict[str, Any]) -> Interactions:
    if isinstance(part, Interactions):
        return part
    # Only who splits files needs the readers.
    from hdccf.data.read import read

    return read(part, **reading)


def _check_shares(validation: float, test: float) -> None:
    for name, share in (("validation", validation), ("test", test)):
        if not 0 <= share < 1:
            raise ConfigError(f"{name}={share} is not a share; give a number from 0 to below 1")
    if validation + test >= 1:
        raise ConfigError(
            f"validation={validation} and test={test} leave nothing for training; give less than 1 in all"
        )


def _cuts_at_shares(times: TimeArray, validation: float, test: float) -> tuple[int, int]:
    """The moments from which on the last `validation + test` and the last `test` of all interactions lie."""
    never = np.iinfo(np.int64).max
    n_test = round(test * len(times))
    n_held_out = n_test + round(validation * len(times))
    ranks = {len(times) - n for n in (n_held_out, n_test) if n}
    ordered = np.partition(times, sorted(ranks)) if ranks else times
    first, second = (int(ordered[len(times) - n]) if n else never for n in (n_held_out, n_test))
    return first, second


def _microseconds(name: str, moment: Moment) -> int:
    """Microseconds since 1970; a moment without a zone is in UTC."""
    try:
        if isinstance(moment, str):
            moment = datetime.fromisoformat(moment)
        if isinstance(moment, datetime):
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            moment = np.datetime64(aware.astimezone(UTC).replace(tzinfo=None), "us")
        elif isinstance(moment, date):
            moment = np.datetime64(datetime.combine(moment, time()), "us")
        return int(moment.astype("datetime64[us]").astype(np.int64))
    except (ValueError, AttributeError) as cause:
        raise ConfigError(
            f"{name}={moment!r} is not a moment; give a date such as 2024-05-31 or ISO 8601"
        ) from cause


def _pair_keys(data: Interactions) -> NDArray[np.int64]:
    return data.users.astype(np.int64) * data.n_items + data.items

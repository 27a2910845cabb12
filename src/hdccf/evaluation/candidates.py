"""Evaluation queries (users, held-out and excluded items) and the frozen negatives of sampled ranking.

Negatives are items that the user has not touched up to and including the evaluated part, without repeats,
uniform or by popularity. In validation a test item can be one: leaving it out would tell what comes later.
They are drawn once from a seed and cached on disk, so that every model is ranked against the same ones.
Rejection sampling draws exactly from what remains; users with few items left are drawn from an explicit list,
with the same probabilities.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from scipy import sparse

from hdccf.console import note
from hdccf.data.download import cache_home
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from hdccf.errors import EvaluationError
from hdccf.files import atomic_file

PARTS = ("validation", "test")

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Queries:
    """The users of an evaluation, their held-out items, and the items excluded from full ranking.

    Users with the most held-out items come first. So those who have a second, a third, … held-out item are
    always the leading rows of a block of scores, and ranking several of them takes slices and no copies.
    """

    split: Split
    part: str
    users: IndexArray
    """Those who have held-out items: the ones with the most first, then ascending."""
    starts: IndexArray
    """The held-out items of `users[k]` are `items[starts[k]:starts[k + 1]]`."""
    items: IndexArray

    @classmethod
    def of(cls, split: Split, part: str) -> "Queries":
        """The queries of the validation or test part of a split."""
        check_part(split, part)
        held_out = split.part(part)
        counts = held_out.by_user.degrees
        users = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        places = np.argsort(users)  # of each user among those who have held-out items, ascending by user
        rows = np.argsort(np.repeat(places, counts[counts > 0]), kind="stable")
        starts = np.concatenate(([0], np.cumsum(counts[users])))
        return cls(split, part, users, starts, held_out.items[rows].astype(np.int64))

    def __len__(self) -> int:
        return len(self.users)

    @cached_property
    def held_out(self) -> IndexArray:
        """How many held-out items each user has."""
        return np.diff(self.starts)

    @cached_property
    def history(self) -> sparse.csr_array:
        """Users × items that are excluded from full ranking: training, and for test validation too.

        A validation query leaves test items in: excluding them would tell the model what comes later.
        """
        train = self.split.train.matrix
        return train if self.part == "validation" else sparse.csr_array(train + self.split.validation.matrix)

    @cached_property
    def excluded(self) -> IndexArray:
        """How many items of each user are excluded from full ranking."""
        return np.diff(self.history.indptr)[self.users].astype(np.int64)

    def excluded_cells(self, start: int, stop: int) -> IndexArray:
        """The cells of a block of users, numbered row by row, that are excluded from full ranking."""
        block = self.history[self.users[start:stop]]
        rows = np.repeat(np.arange(stop - start), np.diff(block.indptr))
        return rows * self.split.n_items + block.indices


def check_part(split: Split, part: str) -> None:
    """Refuses a part that cannot be evaluated."""
    if part not in PARTS:
        raise EvaluationError(f"part={part!r} cannot be evaluated; choose one of {list(PARTS)}")
    if not len(split.part(part)):
        others = [other for other in PARTS if len(split.part(other))]
        remedy = f"take part={others[0]!r} (--part {others[0]})" if others else "use one that holds some out"
        raise EvaluationError(
            f"the {part} part of this split ({split.method}) is empty, so there is nothing to evaluate; "
            f"{remedy}"
        )


# -- negatives -----------------------------------------------------------------------------------------------

WEIGHTINGS = ("uniform", "popularity")

CACHE = Path("cache")
"""Placeholder for the folder in the user's cache, which is looked up when needed."""

CANDIDATE_FORMAT = "hdccf-candidates-2"
"""Changes with the rule by which negatives are drawn; kept ones of another rule are not used."""
_ROUNDS = 30
"""Rounds of rejection sampling before the remaining users are drawn from a list."""
_CELLS_AT_ONCE = 2_000_000


@dataclass(frozen=True, eq=False)
class Candidates:
    """Row k has the negatives of `users[k]`, ascending; −1 fills the row where there were fewer."""

    users: IndexArray
    """Ascending."""
    negatives: NDArray[np.int32]

    def of(self, users: IndexArray) -> NDArray[np.int32]:
        """The rows of these users, in their order."""
        return self.negatives[np.searchsorted(self.users, users)]


def frozen_candidates(
    split: Split,
    part: str,
    *,
    negatives: int = 99,
    weighting: str = "uniform",
    seed: int = 0,
    folder: Path | None = CACHE,
) -> Candidates:
    """Reads the candidates from `folder`, or draws and saves them there; None for no file."""
    check_part(split, part)
    if weighting not in WEIGHTINGS:
        raise EvaluationError(f"weighting={weighting!r} is unknown; choose one of {list(WEIGHTINGS)}")
    if negatives < 1:
        raise EvaluationError(
            f"negatives={negatives} leaves nothing to rank against; use 1 or more, usually 99"
        )
    if seed < 0:
        raise EvaluationError(f"seed={seed} is negative; use 0 or more")
    users = np.unique(split.part(part).users).astype(np.int64)
    labels = {"format": CANDIDATE_FORMAT, "split": split.fingerprint, "part": part}
    labels |= {"negatives": str(negatives), "weighting": weighting, "seed": str(seed)}
    path = None
    if folder is not None:
        path = cache_home() / "candidates" if folder is CACHE else Path(folder)
        path /= f"{'-'.join(labels.values())}.safetensors"
        if path.exists():
            return Candidates(users, _read(path, labels, (len(users), negatives)))
    drawn = draw(split, part, users, negatives, weighting, np.random.default_rng(seed))
    if path is not None:
        try:
            with atomic_file(path) as temporary:
                save_file({"negatives": drawn}, temporary, {**labels, "checksum": _checksum(drawn)})
        except OSError as cause:
            note(
                f"the candidates could not be kept in {path.parent} ({cause.strerror}); the same seed "
                "draws them again"
            )
    return Candidates(users, drawn)


def _read(path: Path, labels: dict[str, str], shape: tuple[int, int]) -> NDArray[np.int32]:
    try:
        with safe_open(path, framework="numpy") as file:
            found = file.metadata() or {}
            negatives: NDArray[np.int32] = file.get_tensor("negatives")
    except (OSError, SafetensorError) as cause:
        raise EvaluationError(f"{path} cannot be read ({cause}); delete it, and it is drawn again") from cause
    if negatives.shape != shape or found != {**labels, "checksum": _checksum(negatives)}:
        raise EvaluationError(f"{path} does not hold what its name says; delete it, and it is drawn again")
    return negatives


def _checksum(negatives: NDArray[np.int32]) -> str:
    return hashlib.sha256(negatives.astype("<i4").tobytes()).hexdigest()


def draw(
    split: Split, part: str, users: IndexArray, negatives: int, weighting: str, generator: np.random.Generator
) -> NDArray[np.int32]:
    """Up to `negatives` items for each of `users` (ascending) that they have not touched up to `part`."""
    observed, n_items = _observed_keys(split, part), split.n_items
    weights = np.ones(n_items)
    if weighting == "popularity":
        weights = np.bincount(split.train.items, minlength=n_items).astype(np.float64)
    # How many items that can be drawn each user has left, and their weight.
    owner, item = np.divmod(observed, n_items)
    possible = weights > 0
    held = np.bincount(owner[possible[item]], minlength=split.n_users)[users]
    left = np.count_nonzero(possible) - held
    mass = weights.sum() - np.bincount(owner, weights=weights[item], minlength=split.n_users)[users]
    lacking = np.minimum(left, negatives)
    # Where most draws would be rejected, or most of what is left is wanted, a list is faster.
    slow = (mass < 0.3 * weights.sum()) | (left < 2 * negatives)
    chosen, taken = _draw_and_reject(observed, users, np.where(slow, 0, lacking), weights, generator)
    rest = lacking - np.bincount(np.searchsorted(users, chosen // n_items), minlength=len(users))
    listed = _draw_from_list(taken, users, rest, weights, generator)
    keys = np.sort(np.concatenate((chosen, listed)))
    rows = np.searchsorted(users, keys // n_items)
    table = np.full((len(users), negatives), -1, np.int32)
    table[rows, _position_in_run(rows)] = keys % n_items
    return table


def _observed_keys(split: Split, part: str) -> IndexArray:
    """user · n_items + item of every pair up to `part`, ascending; a pair in two parts is refused."""
    parts: tuple[Interactions, ...] = (split.train, split.validation, split.test)
    of_part = [each.users.astype(np.int64) * split.n_items + each.items for each in parts]
    keys = np.sort(np.concatenate(of_part))
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        user, item = divmod(int(keys[twice[0]]), split.n_items)
        raise EvaluationError(
            f"{len(twice)} pairs are in two parts of the split, the first: user "
            f"{split.train.user_ids[user]!r}, item {split.train.item_ids[item]!r}; a held-out pair must "
            "not be in training: split the data again"
        )
    return keys if part == "test" else np.sort(np.concatenate(of_part[:2]))


def _draw_and_reject(
    observed: IndexArray,
    users: IndexArray,
    wanted: IndexArray,
    weights: NDArray[np.float64],
    generator: np.random.Generator,
) -> tuple[IndexArray, IndexArray]:
    """Keys of drawn pairs: each user's first `wanted` draws that are neither observed nor repeats.

    And both, drawn and observed keys, ascending.
    """
    n_items, taken, lacking = len(weights), observed, wanted.copy()
    cumulated = None if np.all(weights == 1) else np.cumsum(weights / weights.sum())
    chosen = [np.empty(0, np.int64)]
    for _ in range(_ROUNDS):
        active = np.flatnonzero(lacking)
        if not len(active):
            break
        who = np.repeat(active, lacking[active] + lacking[active] // 3 + 4)
        if cumulated is None:
            items = generator.integers(0, n_items, len(who))
        else:
            # Rounding can leave the last sum just below one.
            items = np.searchsorted(cumulated, generator.random(len(who)), side="right")
            items = np.minimum(items, n_items - 1)
        keys = users[who] * n_items + items
        fresh = taken[np.minimum(np.searchsorted(taken, keys), len(taken) - 1)] != keys
        keys, who = keys[fresh], who[fresh]
        first = np.sort(np.unique(keys, return_index=True)[1])
        keys, who = keys[first], who[first]
        kept = _position_in_run(who) < lacking[who]
        lacking -= np.bincount(who[kept], minlength=len(users))
        chosen.append(keys[kept])
        taken = np.sort(np.concatenate((taken, keys[kept])))
    return np.concatenate(chosen), taken


def _draw_from_list(
    taken: IndexArray,
    users: IndexArray,
    lacking: IndexArray,
    weights: NDArray[np.float64],
    generator: np.random.Generator,
) -> IndexArray:
    """Keys of `lacking` items a user that are not `taken`: the smallest of exponential times over weights.

    The order of independent exponential times is that of weighted draws without replacement.
    """
    n_items = len(weights)
    drawn = [np.empty(0, np.int64)]
    active = np.flatnonzero(lacking)
    rows_at_once = max(1, _CELLS_AT_ONCE // n_items)
    with np.errstate(divide="ignore"):
        scale = 1 / weights  # infinite where an item cannot be drawn
    for begin in range(0, len(active), rows_at_once):
        rows = active[begin : begin + rows_at_once]
        times = generator.exponential(size=(len(rows), n_items)) * scale
        first, last = np.searchsorted(taken, [users[rows] * n_items, (users[rows] + 1) * n_items])
        for row, (begin_taken, end_taken) in enumerate(zip(first, last, strict=True)):
            times[row, taken[begin_taken:end_taken] % n_items] = np.inf
        most = int(lacking[rows].max())
        order = np.argsort(times, axis=1)[:, :most]
        wanted = np.arange(most) < lacking[rows, None]
        drawn.append((users[rows, None] * n_items + order)[wanted])
    return np.concatenate(drawn)


def _position_in_run(ascending: IndexArray) -> IndexArray:
    """0, 1, 2, … within each run of equal values."""
    positions = np.arange(len(ascending))
    return positions - np.searchsorted(ascending, ascending, side="left")

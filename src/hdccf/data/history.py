"""From likes and exposures to histories: the observed pairs of each user, in an order and at times.

A user's taste moves along a line while they are around, from moment −1 to 1, and with it the odds of a like:
by e^(moment · tilt). A liked item is met at a moment drawn in proportion to these odds, so items that the
later taste favours come late. *Whether* a pair is liked or exposed does not depend on the moment: drift
orders the histories and changes nothing else.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hdccf.data.exposure import Exposure
from hdccf.data.hashing import Words, key_of, mix, uniforms
from hdccf.data.interactions import IntArray, TimeArray
from hdccf.data.tastes import Codes, Floats, Tastes

_DRAWS_AT_ONCE = 1 << 16
_USERS_AT_ONCE = 1 << 18
# What is sorted: user, moment and item in one number. The users of a chunk need 18 bits and the items 22.
_ITEM_BITS = 22
_MOMENT_BITS = 22

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_OPENING = 18_628 * _DAY  # 1 January 2021
_OPEN_DAYS = 3 * 365.0


def draw_histories(
    tastes: Tastes, shown: Exposure, seed: int, advance: Callable[[int], None]
) -> tuple[Codes, IntArray, TimeArray]:
    """Each user's number of observed pairs; all items, user after user in order of time; and the times."""
    rng = np.random.default_rng([seed, 6])
    n_users = len(tastes.users)
    joined = _OPEN_DAYS * 0.8 * rng.random(n_users)
    stayed = np.minimum(200.0 * np.exp(rng.standard_normal(n_users)), _OPEN_DAYS - joined)
    key = np.uint64(key_of(seed, "moments"))
    degrees = np.zeros(n_users, np.int64)
    items: list[IntArray] = []
    times: list[TimeArray] = []
    for first, last in _chunks(shown.starts):
        pairs = _observed(tastes, shown, first, last)
        users, codes, gaps = _in_order(tastes, *pairs, key, first)
        degree = np.bincount(users - first, minlength=last - first)
        degrees[first:last] = degree
        days = joined[users] + stayed[users] * _shares_of_stay(gaps, degree)
        items.append(codes.astype(np.int32))
        times.append(_OPENING + (days * 86_400).astype(np.int64) * _SECOND)
        advance(int(shown.starts[last] - shown.starts[first]))
    all_items = np.concatenate(items)
    items.clear()
    return degrees, all_items, np.concatenate(times)


def _chunks(starts: Codes) -> Iterator[tuple[int, int]]:
    """Users from … to before …, with about as many draws in each chunk, and at least one user."""
    n_users = len(starts) - 1
    first = 0
    while first < n_users:
        last = int(np.searchsorted(starts, starts[first] + _DRAWS_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), first + _USERS_AT_ONCE, n_users)
        yield first, last
        first = last


def _observed(tastes: Tastes, shown: Exposure, first: int, last: int) -> tuple[Codes, Codes]:
    """The distinct pairs that are both shown and liked."""
    users, items = shown.draws(first, last)
    liked = tastes.liked_pairs(users, items)
    pairs = np.unique(users[liked] << 32 | items[liked])
    return pairs >> 32, pairs & 0xFFFFFFFF


def _in_order(
    tastes: Tastes, users: Codes, items: Codes, key: np.uint64, first: int
) -> tuple[Codes, Codes, Floats]:
    """The pairs by user and moment, and for each the gap of time before it, in no unit."""
    uniform = uniforms(_words(tastes, users, items, key))
    moments = _moments(tastes.tilt_of_pairs(users, items), uniform)
    steps = ((moments + 1) * (0.5 * ((1 << _MOMENT_BITS) - 1))).astype(np.int64)
    packed = ((users - first) << _MOMENT_BITS | steps) << _ITEM_BITS | items
    packed.sort()
    users = (packed >> (_MOMENT_BITS + _ITEM_BITS)) + first
    items = packed & ((1 << _ITEM_BITS) - 1)
    # Heavy-tailed gaps: a few evenings with many films, and weeks with none.
    gaps = (1.0 - uniforms(mix(_words(tastes, users, items, key)))) ** -0.7
    return users, items, gaps


def _words(tastes: Tastes, users: Codes, items: Codes, key: np.uint64) -> Words:
    return mix(tastes.user_keys[users] ^ tastes.item_keys[items] ^ key)


def _moments(tilt: Floats, uniform: Floats) -> Floats:
    """Moments in [−1, 1] with density ∝ e^(moment · tilt), by the inverse of the distribution function.

    F⁻¹(x) = log(e^−a + x·(e^a − e^−a)) / a, written with a ≥ 0 so that nothing overflows; a = 0 is uniform.
    """
    a: Floats = np.maximum(np.abs(tilt), 1e-9)
    moments: Floats = 1.0 + np.log(uniform - (uniform - 1.0) * np.exp(-2.0 * a)) / a
    np.clip(moments, -1.0, 1.0, out=moments)
    return np.where(tilt < 0, -moments, moments)


def density_of_moment(tilt: Floats, moment: float) -> Floats:
    """The density of `_moments` over that of no tilt: e^(moment · a) · a / sinh(a), whose mean is 1."""
    a: Floats = np.maximum(np.abs(tilt), 1e-9)
    density: Floats = 2.0 * a * np.exp(np.where(tilt < 0, -moment, moment) * a - a) / -np.expm1(-2.0 * a)
    return density


def _shares_of_stay(gaps: Floats, degree: Codes) -> Floats:
    """How much of the user's stay has passed at each pair: the gaps so far, of all the user's gaps."""
    passed = np.cumsum(gaps)
    before = np.concatenate(([0.0], passed))
    ends = np.cumsum(degree)
    begin, end = before[ends - degree], before[ends]
    length = np.maximum(end - begin, 1e-12)
    shares: Floats = (passed - np.repeat(begin, degree)) / np.repeat(length, degree)
    return shares

"""The paper's equations as they are written: loops over lists in float64, slow and plain.

`f(u, i)` is any function of two numbers, `observed(u, i)` whether the pair is in D; multi-sets are lists.
Errata that are followed (see docs/decisions): the corrected sign of Eq. 16, (u, u′) in Eq. 27, the target is
not counted twice in N⁺ ∪ {target}, f(u, u) is left out of Eq. 5 and 17, and a side with nothing left is 0.

The user's side is written out. For the item's side exchange the roles with `swapped(f)`, `swapped(observed)`.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Score = Callable[[int, int], float]
Observed = Callable[[int, int], bool]
Weight = Callable[[int], float]
T = TypeVar("T")


def swapped(function: Callable[[int, int], T]) -> Callable[[int, int], T]:
    return lambda a, b: function(b, a)


def one(_: int) -> float:
    return 1.0


def negative_score(scores: Sequence[float], tau: float) -> float:
    """Eq. 2: Σ e^{f/τ}."""
    return sum(math.exp(score / tau) for score in scores)


def contrastive(
    f: Score,
    u: int,
    i: int,
    negative_items: Sequence[int],
    negative_users: Sequence[int],
    tau: float,
    item_weight: float = 1.0,
    user_weight: float = 1.0,
) -> float:
    """Eq. 1, the term of one (u, i)."""
    items = negative_score([f(u, item) for item in negative_items], tau)
    users = negative_score([f(user, i) for user in negative_users], tau)
    top = math.exp(f(u, i) / tau)
    return -math.log(top / (user_weight * users + item_weight * items + top))


def neighbour_contrastive(
    f: Score, u: int, positive_users: Sequence[int], negative_users: Sequence[int], tau: float
) -> list[float]:
    """Eq. 5, the terms of one (u, i) for each u⁺, 0 for u itself; f is f(u, u′)."""
    negatives = negative_score([f(u, user) for user in negative_users], tau)
    return [_share(f, u, user, negatives, tau) for user in positive_users]


def _share(f: Score, u: int, positive: int, negatives: float, tau: float) -> float:
    if positive == u:
        return 0.0
    top = math.exp(f(u, positive) / tau)
    return -math.log(top / (top + negatives))


def in_batch_negatives(positives: Sequence[Sequence[int]], k: int) -> list[int]:
    """Eq. 9: the union of every other instance's positives, as a multi-set."""
    return [neighbour for m, drawn in enumerate(positives) if m != k for neighbour in drawn]


def pi_0(
    user: int, i: int, negative_users: Sequence[int], observed: Observed, omega: float, weight: Weight = one
) -> float:
    """Eq. 25, first line; each negative weighted by frequency^(−β), all 1 in the paper."""
    if observed(user, i):
        return 0.0
    unobserved = sum(weight(other) for other in negative_users if not observed(other, i))
    return len(negative_users) * weight(user) / ((1 - omega) * unobserved)


def pi_1(n_positives: int, n_negatives: int, omega: float) -> float:
    """Eq. 25, second line; `n_positives` is |N⁺ ∪ {target}|."""
    return n_negatives * omega / ((1 - omega) * n_positives)


def debiased_negative_score(
    f: Score,
    u: int,
    i: int,
    negative_users: Sequence[int],
    positive_users: Sequence[int],
    observed: Observed,
    omega: float,
    tau: float,
    weight: Weight = one,
) -> float:
    """Eq. 15, over negative users, before the clamp."""
    positives = [user for user in positive_users if user != u] + [u]
    first = sum(
        pi_0(user, i, negative_users, observed, omega, weight) * math.exp(f(user, i) / tau)
        for user in negative_users
    )
    second = sum(
        pi_1(len(positives), len(negative_users), omega) * math.exp(f(user, i) / tau) for user in positives
    )
    return first - second


def clamped(score: float, n_negatives: int, lowest: float, tau: float) -> float:
    """Eq. 16 with the sign put right: max{F̃, |N⁻|·e^{f_min/τ}}."""
    return max(score, n_negatives * math.exp(lowest / tau))


def held_negative_score(
    f: Score,
    u: int,
    i: int,
    negative_users: Sequence[int],
    positive_users: Sequence[int],
    observed: Observed,
    omega: float,
    tau: float,
    weight: Weight = one,
    lowest: float = -1.0,
) -> float:
    """Eq. 15 and 16 for one (u, i); 0 where every negative is observed. Nothing to clamp without ω."""
    if all(observed(user, i) for user in negative_users):
        return 0.0
    score = debiased_negative_score(f, u, i, negative_users, positive_users, observed, omega, tau, weight)
    return clamped(score, len(negative_users), lowest, tau) if omega > 0 else score


def debiased_contrastive(
    f: Score,
    u: int,
    i: int,
    negative_items: Sequence[int],
    negative_users: Sequence[int],
    positive_items: Sequence[int],
    positive_users: Sequence[int],
    observed: Observed,
    omega_items: float,
    omega_users: float,
    tau: float,
    weight_items: Weight = one,
    weight_users: Weight = one,
    lowest: float = -1.0,
    item_weight: float = 1.0,
    user_weight: float = 1.0,
) -> float:
    """Eq. 14, the term of one (u, i)."""
    users = held_negative_score(
        f, u, i, negative_users, positive_users, observed, omega_users, tau, weight_users, lowest
    )
    items = held_negative_score(
        swapped(f),
        i,
        u,
        negative_items,
        positive_items,
        swapped(observed),
        omega_items,
        tau,
        weight_items,
        lowest,
    )
    top = math.exp(f(u, i) / tau)
    return -math.log(top / (user_weight * users + item_weight * items + top))


def pi_uu(
    user: int, i: int, negative_users: Sequence[int], observed: Observed, weight: Weight = one
) -> float:
    """Eq. 27, normalised over (u, u′); a candidate is a neighbour of u through i when (u⁻, i) is in D."""
    return pi_0(user, i, negative_users, observed, 0.0, weight)


def debiased_neighbour_contrastive(
    f: Score,
    u: int,
    i: int,
    positive_users: Sequence[int],
    negative_users: Sequence[int],
    observed: Observed,
    tau: float,
    weight: Weight = one,
) -> list[float]:
    """Eq. 17, the terms of one (u, i) for each u⁺, 0 for u itself; f is f(u, u′)."""
    negatives = sum(
        pi_uu(user, i, negative_users, observed, weight) * math.exp(f(u, user) / tau)
        for user in negative_users
    )
    return [_share(f, u, user, negatives, tau) for user in positive_users]


def modulated(
    p: Sequence[float],
    q: Sequence[float],
    e_left: Sequence[float],
    e_right: Sequence[float],
    g: Callable[[list[float]], list[float]],
) -> float:
    """Eq. 7 and 8: (m ⊙ p)·(m ⊙ q), m = σ(g(e_right ‖ e_left ‖ e_right ⊙ e_left))."""
    product = [a * b for a, b in zip(e_right, e_left, strict=True)]
    m = [1 / (1 + math.exp(-z)) for z in g([*e_right, *e_left, *product])]
    return sum((mk * pk) * (mk * qk) for mk, pk, qk in zip(m, p, q, strict=True))

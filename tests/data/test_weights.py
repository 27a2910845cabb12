"""What each positive counts, against the formula as a loop."""

import numpy as np
import pytest

from graphs import interactions, random_interactions
from hdccf.data.interactions import Interactions
from hdccf.data.weights import positive_weights
from hdccf.errors import ConfigError

DAY = 86_400_000_000


def literal_weights(
    data: Interactions, half_life: float, floor: float, unit: str, count_power: float
) -> list[float]:
    """floor + (1 − floor)·½^(age / half-life), times count^power; rows are sorted by user and time."""
    assert data.times is not None
    weights = []
    for row, user in enumerate(data.users):
        later = [other for other in range(row + 1, len(data)) if data.users[other] == user]
        if unit == "interactions":
            age = float(len(later))
        else:
            last = max(int(data.times[other]) for other in [row, *later])
            age = (last - int(data.times[row])) / DAY
        recency = floor + (1 - floor) * 0.5 ** (age / half_life)
        weights.append(recency * float(data.counts[row]) ** count_power)
    return weights


@pytest.mark.parametrize("unit", ["interactions", "days"])
@pytest.mark.parametrize(("half_life", "floor"), [(5.0, 0.02), (0.7, 0.0), (3.0, 1.0)])
@pytest.mark.parametrize("count_power", [0.0, 0.5, 1.0])
def test_recency_and_counts_are_their_formula(
    unit: str, half_life: float, floor: float, count_power: float
) -> None:
    rng = np.random.default_rng(3)
    pairs = [(int(user), int(item)) for user, item in rng.integers(0, (8, 12), (60, 2))]  # with repeats
    times = rng.integers(0, 40 * DAY, len(pairs))
    data = interactions(pairs, n_users=9, n_items=12, times=times)
    assert data.counts.max() > 1
    measured = positive_weights(data, half_life=half_life, floor=floor, unit=unit, count_power=count_power)
    np.testing.assert_allclose(
        measured.numpy(), literal_weights(data, half_life, floor, unit, count_power), rtol=1e-6
    )


def test_the_last_interaction_counts_in_full_and_half_a_life_earlier_half() -> None:
    data = interactions([(0, 3), (0, 1), (0, 2)], times=[0, 2 * DAY, 6 * DAY])
    assert positive_weights(data, half_life=1).tolist() == [0.25, 0.5, 1.0]
    assert positive_weights(data, half_life=2, unit="days").tolist() == [0.125, 0.25, 1.0]


def test_without_times_all_count_alike_and_recency_is_an_error_of_one_line() -> None:
    data = random_interactions(0, timed=False)
    assert positive_weights(data).tolist() == [1.0] * len(data)
    with pytest.raises(ConfigError, match=r"^recency was asked for, but .* no times; .*$"):
        positive_weights(data, half_life=3.0)


def test_equal_times_age_by_their_order_in_interactions_and_not_at_all_in_days() -> None:
    data = interactions([(0, 0), (0, 1), (1, 0)], times=[5, 5, 9])
    assert positive_weights(data, half_life=1).tolist() == [0.5, 1.0, 1.0]
    assert positive_weights(data, half_life=1, unit="days").tolist() == [1.0, 1.0, 1.0]

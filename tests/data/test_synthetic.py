"""The synthetic world against literal versions of its definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdccf.data import synthetic_draws
from hdccf.data.interactions import Interactions, k_core
from hdccf.data.splitmix import mix, words_at
from hdccf.data.synthetic import GENRES, World, film_titles, synthetic_world
from hdccf.data.synthetic_draws import _alias_table, _moments, density_of_moment
from hdccf.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def small() -> World:
    return synthetic_world(1_500, n_users=150, n_items=200, exposure=0.6, seed=3)


@pytest.fixture(scope="module")
def constant() -> World:
    return synthetic_world(30_000, seed=1)


def observed_block(world: World) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    block = np.zeros((world.n_users, world.n_items), np.bool_)
    block[world.interactions.users, world.interactions.items] = True
    return block


def exposed_block(world: World, users: range) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """What was shown to these users, liked or not."""
    block = np.zeros((len(users), world.n_items), np.bool_)
    for user in users:
        block[user, world.shown.draws(user, user + 1)[1]] = True
    return block


# -- truth ---------------------------------------------------------------------------------------------------


def literal_mix(word: int) -> int:
    """SplitMix64's finaliser in Python's integers."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_hash_is_splitmix64() -> None:
    # The first outputs of the reference implementation for the seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [literal_mix((1234567 + n * 0x9E3779B97F4A7C15) % 2**64) for n in (1, 2, 3)] == expected
    assert words_at(1234567, np.arange(1, 4)).tolist() == expected
    assert mix(np.arange(5, dtype=np.uint64)).tolist() == [literal_mix(word) for word in range(5)]


def test_likes_are_literal_draws_of_the_preference(small: World) -> None:
    tastes = small.tastes
    preference, liked = small.preference([7, 3]), small.liked([7, 3])
    for row, user in enumerate((7, 3)):
        for item in range(0, small.n_items, 17):
            logit = tastes.leniency[user] + tastes.appeal[item]
            logit += sum(
                tastes.users[user, k] * tastes.items[item, k] for k in range(small.settings.dimensions)
            )
            expected = 1 / (1 + math.exp(-logit))
            assert preference[row, item] == pytest.approx(expected, abs=1e-12)
            word = literal_mix(int(tastes.user_keys[user]) ^ int(tastes.item_keys[item]))
            assert liked[row, item] == ((word >> 11) / 2**53 < expected)


def test_blocks_and_pairs_tell_the_same(small: World) -> None:
    users, items = np.divmod(np.arange(small.n_users * small.n_items), small.n_items)
    whole = small.liked(np.arange(small.n_users))
    assert np.array_equal(small.liked_pairs(users, items), whole.ravel())
    some_users, some_items = [5, 149, 0, 5], [199, 3, 3]
    assert np.array_equal(small.liked(some_users, some_items), whole[np.ix_(some_users, some_items)])
    part = small.preference(some_users)[:, some_items]
    assert small.preference(some_users, some_items) == pytest.approx(part, abs=1e-14)


def test_observed_is_liked_and_exposed(small: World) -> None:
    everyone = np.arange(small.n_users)
    expected = small.liked(everyone) & exposed_block(small, range(small.n_users))
    assert np.array_equal(observed_block(small), expected)


def test_omega_is_the_share_of_false_negatives(small: World) -> None:
    liked, observed = small.liked(np.arange(small.n_users)), observed_block(small)
    for user in range(small.n_users):
        unobserved = [item for item in range(small.n_items) if not observed[user, item]]
        false = [item for item in unobserved if liked[user, item]]
        assert small.omega_items[user] == pytest.approx(len(false) / len(unobserved), abs=1e-15)
        assert small.false_negatives(user).tolist() == false
        assert small.true_negatives(user).tolist() == [item for item in unobserved if not liked[user, item]]
    for item in range(small.n_items):
        unobserved = [user for user in range(small.n_users) if not observed[user, item]]
        false = [user for user in unobserved if liked[user, item]]
        assert small.omega_users[item] == pytest.approx(len(false) / len(unobserved), abs=1e-15)
    assert np.array_equal(small.omega_items_of([4, 2]), small.omega_items[[4, 2]])
    assert small.omega_items.min() >= 0
    assert small.omega_items.mean() > 0.01


def test_likes_happen_as_often_as_they_should(constant: World) -> None:
    """One test over deciles of the preference: the likes within each against the sum of probabilities."""
    preference, liked = constant.preference(range(400)).ravel(), constant.liked(range(400)).ravel()
    decile = np.searchsorted(np.quantile(preference, np.linspace(0.1, 0.9, 9)), preference)
    expected = np.bincount(decile, preference)
    variance = np.bincount(decile, preference * (1 - preference))
    deviations = (np.bincount(decile, liked) - expected) / np.sqrt(variance)
    assert stats.chi2.sf(float(deviations @ deviations), df=10) > 1e-4
    assert liked.mean() == pytest.approx(constant.settings.liked, rel=0.1)


# -- exposure ------------------------------------------------------------------------------------------------


def test_constant_exposure_is_the_same_for_every_pair(constant: World) -> None:
    """What Theorem 1 asks for: among the liked, being observed depends on nothing."""
    probability = constant.shown.probabilities
    assert np.ptp(probability) == 0
    q = probability[0]
    everyone = np.arange(constant.n_users)
    liked, observed = constant.liked(everyone), observed_block(constant)
    for axis in (0, 1):
        trials, successes = liked.sum(axis), observed.sum(axis)
        there = trials > 0
        deviations = (successes - trials * q)[there] / np.sqrt(trials * q * (1 - q))[there]
        # Variance one, mean nought: neither some items nor some users are shown more than others.
        assert abs(deviations.mean()) < 5 / math.sqrt(there.sum())
        assert abs(deviations.var() - 1) < 5 * math.sqrt(2 / there.sum())
    # Nor does the degree of liking matter.
    preference = constant.preference(everyone)
    gap = preference[observed].mean() - preference[liked & ~observed].mean()
    assert abs(gap) < 5 * preference[liked].std() * math.sqrt(
        1 / observed.sum() + 1 / (liked & ~observed).sum()
    )


def test_dial_turns_exposure_towards_popularity() -> None:
    spreads, correlations = [], []
    for dial in (0.0, 0.5, 1.0):
        world = synthetic_world(20_000, exposure=dial, seed=2)
        q = world.shown.probabilities
        spreads.append(float(q.max() / q.min()))
        popularity = world.interactions.by_item.degrees
        shares = exposed_block(world, range(150)).mean(0)
        correlations.append(float(stats.spearmanr(shares, popularity).statistic))
        # The realised exposure has the probability that is claimed for it, item by item.
        deviations = (shares - q) / np.sqrt(q * (1 - q) / 150)
        assert stats.chi2.sf(float(deviations @ deviations), df=len(q)) > 1e-4
    assert spreads[0] == 1
    assert spreads[0] < spreads[1] < spreads[2]
    assert abs(correlations[0]) < 0.2
    assert correlations[2] > 0.8
    # The same users, items and likes under every dial.
    assert correlations[0] < correlations[1] < correlations[2]


def test_dial_changes_the_exposure_and_not_the_truth() -> None:
    worlds = [synthetic_world(2_000, exposure=dial) for dial in (0.0, 1.0)]
    users = np.arange(worlds[0].n_users)
    assert np.array_equal(worlds[0].liked(users), worlds[1].liked(users))
    again = synthetic_world(2_000, exposure_seed=9)
    assert np.array_equal(worlds[0].liked(users), again.liked(users))
    assert again.interactions.fingerprint != worlds[0].interactions.fingerprint


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40))
@settings(deadline=None)
def test_alias_table_gives_the_weights_back(weights: list[float]) -> None:
    wanted = np.array(weights) / sum(weights)
    accept, alias = _alias_table(wanted)
    given_back = np.zeros(len(wanted))
    for cell in range(len(wanted)):
        given_back[cell] += accept[cell] / len(wanted)
        given_back[alias[cell]] += (1 - accept[cell]) / len(wanted)
    assert given_back == pytest.approx(wanted, abs=1e-12)


# -- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tilt", [-30.0, -2.0, 0.0, 0.5, 4.0])
def test_moments_have_the_density_that_is_claimed(tilt: float) -> None:
    uniform = (np.arange(4000) + 0.5) / 4000
    moments = _moments(np.full(4000, tilt), uniform)
    grid = np.linspace(-1, 1, 20_001)
    density = np.array([0.5 * density_of_moment(np.array([tilt]), float(moment))[0] for moment in grid])
    steps = np.diff(grid)
    distribution = np.concatenate(([0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * steps)))
    assert distribution[-1] == pytest.approx(1.0, abs=1e-4)  # the mean intensity is the preference
    expected = uniform if tilt >= 0 else 1 - uniform
    assert np.interp(moments, grid, distribution) == pytest.approx(expected, abs=1e-3)
    if tilt:
        ratio = density[-1] / density[0]
        assert math.log(ratio) == pytest.approx(2 * tilt, rel=1e-6)


def test_drift_orders_histories_and_changes_nothing_else() -> None:
    still, moving = (synthetic_world(20_000, drift=drift, seed=4) for drift in (0.0, 2.0))
    # Both worlds are measured by where the moving one's users go.
    observed = np.flatnonzero(observed_block(moving))
    order_follows_tilt = []
    for data in (still.interactions, moving.interactions):
        place = np.arange(len(data)) - data.by_user.starts[data.users]
        share = place / np.maximum(data.by_user.degrees[data.users] - 1, 1)
        tilt = moving.tastes.tilt(data.users.astype(np.int64), data.items.astype(np.int64), pairs=True)
        order_follows_tilt.append(float(np.corrcoef(share, tilt)[0, 1]))
    assert np.array_equal(np.flatnonzero(observed_block(still)), observed)
    assert abs(order_follows_tilt[0]) < 0.03
    assert order_follows_tilt[1] > 0.3


def test_intensity_averages_to_the_preference(small: World) -> None:
    moments = np.linspace(-1, 1, 2001)
    weights = np.full(2001, 1 / 2000)
    weights[[0, -1]] /= 2
    mean = sum(w * small.intensity([3], at=float(at)) for w, at in zip(weights, moments, strict=True))
    assert mean == pytest.approx(small.preference([3]), rel=1e-4)
    with pytest.raises(ConfigError, match="at=2 is outside"):
        small.intensity([3], at=2)


def test_times_ascend_within_users_and_lie_in_three_years(constant: World) -> None:
    data = constant.interactions
    assert data.times is not None
    same_user = data.users[1:] == data.users[:-1]
    assert np.all(data.times[1:][same_user] >= data.times[:-1][same_user])
    assert np.all(data.times % 1_000_000 == 0)
    first, last = data.time_range or (None, None)
    assert first is not None
    assert last is not None
    assert first >= np.datetime64("2021-01-01")
    assert last <= np.datetime64("2024-01-01")


# -- the interactions ----------------------------------------------------------------------------------------


def test_interactions_are_as_from_codes_would_make_them(small: World) -> None:
    data = small.interactions
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(data))
    assert data.times is not None
    made = Interactions.from_codes(
        data.users[shuffled],
        data.items[shuffled],
        user_ids=data.user_ids,
        item_ids=data.item_ids,
        times=data.times[shuffled],
        titles=data.titles,
    )
    # Ties in time may stand in another order; all else is the same.
    assert np.array_equal(made.users, data.users)
    assert made.times is not None
    assert np.array_equal(made.times, data.times)
    assert np.array_equal(made.counts, data.counts)
    keys = ["user", "time", "item"]
    assert made.frame().sort(keys).equals(data.frame().sort(keys))


@pytest.mark.parametrize("n", [100, 1_000, 20_000])
@pytest.mark.parametrize("exposure", [0.0, 1.0])
def test_size_is_as_asked_for(n: int, exposure: float) -> None:
    for seed in range(3):
        world = synthetic_world(n, exposure=exposure, seed=seed)
        assert len(world.interactions) == pytest.approx(n, abs=n * (0.01 + 4 / math.sqrt(n)))


def test_large_world_is_sampled_and_still_meets_its_size() -> None:
    """More pairs than are looked at when the rate is found; sparse, so nothing is enumerated."""
    world = synthetic_world(30_000, n_users=5_000, n_items=40_000, exposure=0.8)
    assert len(world.interactions) == pytest.approx(30_000, abs=300 + 4 * math.sqrt(30_000))
    assert world.interactions.n_items == 40_000
    assert np.all(world.liked_pairs(world.interactions.users, world.interactions.items))


def test_worlds_depend_on_their_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthetic_world(3_000, seed=8)
    assert synthetic_world(3_000, seed=8).interactions.fingerprint == first.interactions.fingerprint
    assert synthetic_world(3_000, seed=9).interactions.fingerprint != first.interactions.fingerprint
    assert first.settings == synthetic_world(3_000, seed=8).settings
    # Neither on how much is drawn at once.
    monkeypatch.setattr(synthetic_draws, "_DRAWS_AT_ONCE", 500)
    assert synthetic_world(3_000, seed=8).interactions.fingerprint == first.interactions.fingerprint


def test_codes_of_finds_renumbered_users_and_items(small: World) -> None:
    core = k_core(small.interactions, 5, 5)
    assert core.n_items < small.n_items
    users, items = small.codes_of(core)
    assert np.all(observed_block(small)[users[core.users], items[core.items]])
    foreign = synthetic_world(200, n_users=3_000, n_items=50).interactions
    with pytest.raises(DataError, match="not of this world"):
        small.codes_of(foreign)


def test_settings_that_cannot_be_are_refused(small: World) -> None:
    for changes, message in (
        ({"exposure": 1.5}, "exposure=1.5 is not possible: it should be"),
        ({"liked": 0.0}, "liked=0.0 is not possible: it should be"),
        ({"drift": -1.0}, "drift=-1.0 is not possible: it should be"),
        ({"n_users": 1}, "n_users=1 is not possible: it should be"),
        ({"n_items": 0}, "n_items=0 is not possible: it should be"),
        ({"seed": -1}, "seed=-1 is not possible: it should be"),
        ({"n_users": 20, "n_items": 20}, "n_interactions=1,000 is too many for 20 users × 20 items"),
    ):
        with pytest.raises(ConfigError, match=message):
            synthetic_world(1_000, **changes)
    with pytest.raises(ConfigError, match="n_interactions=0 is not possible: it should be"):
        synthetic_world(0)
    with pytest.raises(DataError, match="user codes run from -1"):
        small.liked([-1])
    with pytest.raises(DataError, match="item codes run from 3 to 200; this world has 0 to 199"):
        small.preference([0], [3, 200])


# -- names ---------------------------------------------------------------------------------------------------


def test_titles_are_distinct_and_name_the_genre(constant: World) -> None:
    data = constant.interactions
    assert data.titles is not None
    assert data.titles.n_unique() == data.n_items
    for title, code in zip(data.titles, constant.tastes.genres, strict=True):
        assert f"({GENRES[code]}, " in title
    assert data.user_ids[:2].to_list() == ["u000", "u001"]
    assert data.user_ids.equals(data.user_ids.sort())


def test_titles_go_on_with_second_parts() -> None:
    titles = film_titles(np.zeros(2_000, np.int32), seed=0)
    assert titles.n_unique() == 2_000
    assert titles.str.contains(f", Part 3 ({GENRES[0]}", literal=True).any()

"""k-core and splits against slow, literal versions, and what they refuse."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdccf.data.interactions import Interactions, k_core
from hdccf.data.split import (
    Moment,
    Split,
    global_time_split,
    leave_one_out,
    predefined_split,
    random_split,
)
from hdccf.errors import ConfigError, DataError, HdccfError

Pairs = set[tuple[str, str]]


def interactions(
    pairs: Sequence[tuple[int, int]], times: Sequence[int] | None = None, *, titles: bool = False
) -> Interactions:
    """Users "u0", "u1", …, items "i0", "i1", …, in this order; times in microseconds."""
    users = np.array([user for user, _ in pairs], np.int32)
    items = np.array([item for _, item in pairs], np.int32)
    n_users, n_items = int(users.max(initial=-1)) + 1, int(items.max(initial=-1)) + 1
    return Interactions.from_codes(
        users,
        items,
        user_ids=pl.Series([f"u{code}" for code in range(n_users)], dtype=pl.String),
        item_ids=pl.Series([f"i{code}" for code in range(n_items)], dtype=pl.String),
        times=None if times is None else np.array(times, np.int64),
        titles=pl.Series([f"Item {code}" for code in range(n_items)]) if titles else None,
    )


def own_pairs(data: Interactions) -> Pairs:
    """The pairs under the users' own ids, which no renumbering changes."""
    return {
        (data.user_ids[int(u)], data.item_ids[int(i)]) for u, i in zip(data.users, data.items, strict=True)
    }


def random_data(seed: int, pairs: int = 400, *, tied: bool = False) -> Interactions:
    rng = np.random.default_rng(seed)
    drawn = list(zip(rng.integers(0, 40, pairs).tolist(), rng.integers(0, 30, pairs).tolist(), strict=True))
    times = rng.integers(0, 7 if tied else 10**9, pairs).tolist()
    return interactions(drawn, times, titles=True)


pair_lists = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60)


# -- k-core --------------------------------------------------------------------------------------------------


def literal_core(pairs: Pairs, users: int, items: int) -> Pairs:
    """Drop one weak user or item at a time until there is none."""
    while True:
        of_user, of_item = Counter(user for user, _ in pairs), Counter(item for _, item in pairs)
        weak_user = next((user for user, degree in of_user.items() if degree < users), None)
        weak_item = next((item for item, degree in of_item.items() if degree < items), None)
        if weak_user is None and weak_item is None:
            return pairs
        pairs = {(u, i) for u, i in pairs if u != weak_user and i != weak_item}


@given(pair_lists, st.integers(0, 5), st.integers(0, 5))
@settings(deadline=None)
def test_core_equals_literal_peeling(pairs: list[tuple[int, int]], users: int, items: int) -> None:
    data = interactions(pairs)
    expected = literal_core(own_pairs(data), users, items)
    if not expected:
        with pytest.raises(DataError, match="smaller core"):
            k_core(data, users, items)
        return
    core = k_core(data, users, items)
    assert own_pairs(core) == expected
    assert core.by_user.degrees.min() >= max(users, 1)  # and so no user or item is left without a pair
    assert core.by_item.degrees.min() >= max(items, 1)


def test_core_keeps_times_counts_titles_and_order() -> None:
    data = random_data(3)
    core = k_core(data, 7, 7)
    assert 0 < len(core) < len(data)
    kept = data.frame().join(core.frame().select("user", "item"), on=["user", "item"], how="semi")
    assert core.frame().equals(kept)
    assert core.titles is not None
    assert core.titles.to_list() == [f"Item {own[1:]}" for own in core.item_ids]


def test_core_follows_a_long_chain() -> None:
    """A path falls from its two ends, one link a round: rounds must not be limited."""
    links = 300
    path = [pair for link in range(links) for pair in ((link, link), (link, link + 1))]
    square = [(links + row, links + 1 + column) for row in range(3) for column in range(3)]
    core = k_core(interactions(path + square), 2, 2)
    assert own_pairs(core) == {(f"u{user}", f"i{item}") for user, item in square}


def test_core_refuses_what_cannot_be() -> None:
    data = interactions([(0, 0), (0, 1), (1, 0)])
    with pytest.raises(ConfigError, match="items=-1"):
        k_core(data, 5, -1)
    with pytest.raises(DataError, match="nothing is left of 3 pairs"):
        k_core(data)


# -- leave-one-out -------------------------------------------------------------------------------------------


def literal_leave_one_out(data: Interactions) -> tuple[Pairs, Pairs, Pairs, int]:
    train: Pairs = set()
    validation: Pairs = set()
    test: Pairs = set()
    too_short = 0
    for user in range(data.n_users):
        history = [
            (data.user_ids[user], data.item_ids[int(item)])
            for owner, item in zip(data.users, data.items, strict=True)
            if owner == user
        ]
        if len(history) >= 3:
            test.add(history.pop())
            validation.add(history.pop())
        elif history:
            too_short += 1
        train.update(history)
    return train, validation, test, too_short


@given(pair_lists, st.data())
@settings(deadline=None)
def test_leave_one_out_equals_literal_version(pairs: list[tuple[int, int]], draw: st.DataObject) -> None:
    times = draw.draw(st.lists(st.integers(0, 4), min_size=len(pairs), max_size=len(pairs)))
    data = interactions(pairs, times)
    train, validation, test, too_short = literal_leave_one_out(data)
    if not test:
        with pytest.raises(DataError, match="three interactions"):
            leave_one_out(data)
        return
    split = leave_one_out(data)
    assert (own_pairs(split.train), own_pairs(split.validation), own_pairs(split.test)) == (
        train,
        validation,
        test,
    )
    assert split.facts["users_too_short"] == too_short


def test_leave_one_out_keeps_short_users_in_training_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    data = interactions([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)], [1, 2, 1, 2, 3, 4])
    split = leave_one_out(data, progress=True)
    assert own_pairs(split.train) == {("u0", "i0"), ("u0", "i1"), ("u1", "i0"), ("u1", "i1")}
    assert split.facts == {
        "users_too_short": 1,
        "users_without_training": 0,
        "items_without_training": 2,
        "validation_pairs_without_training": 1,
        "test_pairs_without_training": 1,
    }
    assert "note: 1 users have fewer than three interactions" in capsys.readouterr().err
    assert "2 items have no training pair" in split.describe()


def test_leave_one_out_without_times_says_what_order_it_took() -> None:
    split = leave_one_out(interactions([(0, 2), (0, 0), (0, 1)]))
    assert split.test.items.tolist() == [1]
    assert "order is that of arrival" in split.describe()
    assert "order is that of arrival" not in leave_one_out(random_data(0)).describe()


# -- global time ---------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.booleans())
@settings(deadline=None, max_examples=30)
def test_global_time_never_trains_on_the_future(seed: int, tied: bool) -> None:
    data = random_data(seed, tied=tied)
    split = global_time_split(data, 0.2, 0.2)
    assert sum(len(split.part(name)) for name in ("train", "validation", "test")) == len(data)
    train, validation, test = split.train.times, split.validation.times, split.test.times
    assert train is not None
    assert validation is not None
    assert test is not None
    # Strictly: a moment is never cut in two.
    assert train.max() < validation.min()
    assert validation.max() < test.min()
    if not tied:
        distinct = len(data)
        assert len(split.test) == pytest.approx(0.2 * distinct, abs=2)
        assert len(split.validation) == pytest.approx(0.2 * distinct, abs=2)


DAY = 86_400_000_000


@pytest.mark.parametrize(
    "third_day",
    [
        "1970-01-03",
        "1970-01-03T00:00:00",
        "1970-01-03T02:00:00+02:00",
        date(1970, 1, 3),
        datetime(1970, 1, 3, tzinfo=UTC),
        datetime(1970, 1, 3, 2, tzinfo=timezone(timedelta(hours=2))),
        np.datetime64("1970-01-03"),
    ],
)
def test_global_time_at_given_dates(third_day: Moment) -> None:
    data = interactions([(0, 0), (0, 1), (0, 2), (0, 3)], [0, 2 * DAY - 1, 2 * DAY, 3 * DAY])
    split = global_time_split(data, validation_from=third_day, test_from="1970-01-04")
    assert split.train.items.tolist() == [0, 1]
    assert split.validation.items.tolist() == [2]
    assert split.test.items.tolist() == [3]


def test_global_time_without_validation() -> None:
    split = global_time_split(random_data(1), validation=0.0, test=0.25)
    assert len(split.validation) == 0
    assert len(split.train) > 0
    assert len(split.test) > 0


def test_global_time_refuses_what_cannot_be() -> None:
    data = random_data(0)
    with pytest.raises(DataError, match="needs times"):
        global_time_split(interactions([(0, 0), (0, 1)]))
    with pytest.raises(ConfigError, match="give both"):
        global_time_split(data, test_from="2020-01-01")
    with pytest.raises(ConfigError, match="is after test_from"):
        global_time_split(data, validation_from="2020-01-02", test_from="2020-01-01")
    with pytest.raises(ConfigError, match="'soon' is not a moment"):
        global_time_split(data, validation_from="soon", test_from="2020-01-01")
    with pytest.raises(DataError, match="no interaction is left for validation: times run from 1970-01-01"):
        global_time_split(data, validation_from="2020-01-01", test_from="2020-01-02")
    with pytest.raises(DataError, match=r"no interaction is left for train.*--split random"):
        global_time_split(interactions([(0, 0), (0, 1), (1, 0)], [5, 5, 5]), 0.0, 0.3)


# -- random --------------------------------------------------------------------------------------------------


def test_random_split_has_the_sizes_asked_for_and_depends_on_the_seed_only() -> None:
    data = random_data(0)
    split = random_split(data, 0.1, 0.25, seed=7)
    assert len(split.validation) == round(0.1 * len(data))
    assert len(split.test) == round(0.25 * len(data))
    parts = [own_pairs(part) for part in (split.train, split.validation, split.test)]
    assert set().union(*parts) == own_pairs(data)
    assert sum(map(len, parts)) == len(data)
    assert random_split(data, 0.1, 0.25, seed=7).fingerprint == split.fingerprint
    assert random_split(data, 0.1, 0.25, seed=8).fingerprint != split.fingerprint


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5), (float("nan"), 0.1)])
def test_shares_that_cannot_be_are_refused(validation: float, test: float) -> None:
    for split in (random_split, global_time_split):
        with pytest.raises(ConfigError, match=r"give (a number|less)"):
            split(random_data(0), validation, test)


def test_random_split_of_too_little_is_refused() -> None:
    with pytest.raises(DataError, match="2 pairs leave none for training"):
        random_split(interactions([(0, 0), (1, 1)]), 0.45, 0.5)


# -- predefined ----------------------------------------------------------------------------------------------


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_predefined_brings_separately_read_parts_together(seed: int) -> None:
    """Cut at random and compacted, so that each part has codes of its own; then put together again."""
    whole = random_split(random_data(seed, 120), 0.2, 0.3, seed=seed)
    split = predefined_split(whole.train.compact(), whole.validation.compact(), whole.test.compact())
    for name in ("train", "validation", "test"):
        part, expected = split.part(name), whole.part(name)
        order = ["user", "item"]
        assert part.frame().sort(order).equals(expected.frame().sort(order))
        assert part.user_ids.equals(split.train.user_ids)
        assert part.titles is split.train.titles
    assert split.train.titles is not None
    assert split.train.titles.to_list() == [f"Item {own[1:]}" for own in split.train.item_ids]
    # Training codes stay what they were, so that a model trained before still fits.
    assert split.train.fingerprint == whole.train.compact().fingerprint or split.facts["users_added"] > 0
    assert np.array_equal(split.train.users, whole.train.compact().users)
    assert split.facts["users_without_training"] == split.facts["users_added"]
    assert split.facts["items_without_training"] == split.facts["items_added"]


def test_predefined_counts_what_the_later_parts_add() -> None:
    train = interactions([(0, 0), (1, 1)])
    test = interactions([(0, 1), (2, 5)]).compact()
    split = predefined_split(train, test=test)
    assert split.train.user_ids.to_list() == ["u0", "u1", "u2"]
    assert split.train.item_ids.to_list() == ["i0", "i1", "i5"]
    assert own_pairs(split.test) == {("u0", "i1"), ("u2", "i5")}
    assert len(split.validation) == 0
    assert split.facts["users_added"] == split.facts["items_added"] == 1
    assert split.facts["test_pairs_without_training"] == 1
    assert "1 users are in validation or test only" in split.describe()


def test_predefined_reads_files_and_frames(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("who,what\n7,a\n8,b\n7,c\n")
    (tmp_path / "valid.csv").write_text("who,what\n8,a\n7,b\n")
    test = pl.DataFrame({"who": ["8", "ann"], "what": ["c", "d"]})
    split = predefined_split(tmp_path / "train.csv", tmp_path / "valid.csv", test, user="who", item="what")
    assert split.train.user_ids.to_list() == ["7", "8", "ann"]  # integers in two parts, strings in the third
    assert own_pairs(split.train) == {("7", "a"), ("8", "b"), ("7", "c")}
    assert own_pairs(split.validation) == {("8", "a"), ("7", "b")}
    assert own_pairs(split.test) == {("8", "c"), ("ann", "d")}


def test_parts_without_times_come_after_a_training_part_with_times() -> None:
    train = interactions([(0, 0), (0, 1), (1, 1)], [5, 3, 9])
    validation, test = interactions([(0, 2), (1, 0)]), interactions([(1, 2), (0, 3)], [1, 20])
    split = predefined_split(train, validation, test)
    joined = split.joined()
    assert joined.times is not None
    assert joined.item_ids.gather(joined.by_user.of(0)).to_list() == ["i1", "i0", "i2", "i3"]
    assert split.joined("train", "validation").times is not None
    assert predefined_split(validation, train, test).joined().times is None


def test_predefined_refuses_or_drops_pairs_in_two_parts() -> None:
    train = interactions([(0, 0), (0, 1), (1, 1)])
    validation = interactions([(0, 1), (1, 0)])
    test = interactions([(1, 0), (1, 2)])
    with pytest.raises(
        DataError, match=r'1 pairs of validation are in an earlier part as well.*overlap="drop"'
    ):
        predefined_split(train, validation, test)
    split = predefined_split(train, validation, test, overlap="drop")
    assert own_pairs(split.train) == own_pairs(train)
    assert own_pairs(split.validation) == {("u1", "i0")}
    assert own_pairs(split.test) == {("u1", "i2")}
    assert split.facts["overlap_dropped"] == 2
    with pytest.raises(ConfigError, match="overlap='keep' is unknown"):
        predefined_split(train, validation, test, overlap="keep")


def test_predefined_calls_an_item_without_title_by_its_id() -> None:
    split = predefined_split(interactions([(0, 0)], titles=True), test=interactions([(0, 1)]))
    assert split.test.titles is not None
    assert split.test.titles.to_list() == ["Item 0", "i1"]
    untitled = predefined_split(interactions([(0, 0)]), test=interactions([(0, 1)]))
    assert untitled.test.titles is None


# -- Split ---------------------------------------------------------------------------------------------------


def test_split_needs_one_set_of_ids() -> None:
    data = random_data(0)
    other = interactions([(0, 0)])
    with pytest.raises(DataError, match="predefined_split"):
        Split(data, data, other, "random", {})


def test_split_names_its_parts() -> None:
    split = leave_one_out(random_data(0))
    with pytest.raises(DataError, match="part='tset' is unknown; choose one of"):
        split.part("tset")
    assert f"{len(split.train):,} + {len(split.validation)} + {len(split.test)} pairs" in repr(split)


def test_split_round_trips(tmp_path: Path) -> None:
    split = leave_one_out(random_data(5))
    split.save(tmp_path / "split")
    loaded = Split.load(tmp_path / "split")
    assert loaded.fingerprint == split.fingerprint
    assert (loaded.method, loaded.facts) == (split.method, split.facts)
    for name in ("train", "validation", "test"):
        assert loaded.part(name).frame().equals(split.part(name).frame())
        assert loaded.part(name).titles is loaded.train.titles
    with pytest.raises(HdccfError, match="exists"):
        split.save(tmp_path / "split")
    other = random_split(random_data(6))
    other.save(tmp_path / "split", overwrite=True)
    assert Split.load(tmp_path / "split").fingerprint == other.fingerprint
    assert [entry.name for entry in tmp_path.iterdir()] == ["split"]


def test_split_refuses_folders_that_it_did_not_write(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no saved split"):
        Split.load(tmp_path / "nowhere")
    random_data(0).save(tmp_path / "data")
    with pytest.raises(DataError, match="holds no saved split"):
        Split.load(tmp_path / "data")


def test_split_notices_a_part_that_was_exchanged(tmp_path: Path) -> None:
    split = random_split(random_data(0), 0.2, 0.2)
    split.save(tmp_path / "split")
    (tmp_path / "split" / "test").rename(tmp_path / "aside")
    (tmp_path / "split" / "validation").rename(tmp_path / "split" / "test")
    (tmp_path / "aside").rename(tmp_path / "split" / "validation")
    with pytest.raises(DataError, match="fingerprint"):
        Split.load(tmp_path / "split")

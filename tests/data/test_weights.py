"""What each positive counts, against the formula as a loop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import hdccf
from command_line import call, error_of
from graphs import interactions, random_interactions, tastes
from hdccf.data.interactions import Interactions, k_core
from hdccf.data.split import Split, leave_one_out, predefined_split
from hdccf.data.weights import positive_weights, weighted_histories, weights_of
from hdccf.errors import ConfigError, SourceError
from hdccf.models.als import ALS
from hdccf.models.hdccf.settings import HDCCF

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


# -- weights of the data -------------------------------------------------------------------------------------

LOG = [
    ("ann", "tea", "view", 1),
    ("ann", "jam", "view", 2),
    ("bob", "tea", "cart", 3),
    ("ann", "tea", "buy", 4),
    ("bob", "jam", "view", 5),
    ("ann", "rye", "view", 6),
    ("ann", "jam", "view", 7),
]
WEIGHTS = {"view": 1.0, "cart": 3.0, "buy": 5.0}


def log() -> pl.DataFrame:
    return pl.DataFrame(LOG, schema=["user", "item", "type", "time"], orient="row")


def rows_of(data: Interactions) -> list[tuple[Any, ...]]:
    return data.frame().drop("time", strict=False).rows()


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [
        ("first", [("tea", 2, 5.0), ("jam", 2, 1.0), ("rye", 1, 1.0)]),
        ("last", [("tea", 2, 5.0), ("rye", 1, 1.0), ("jam", 2, 1.0)]),
        ("all", [("tea", 2, 6.0), ("rye", 1, 1.0), ("jam", 2, 2.0)]),
    ],
)
def test_a_pair_that_repeats_has_the_largest_weight_or_the_sum(
    repeats: str, expected: list[tuple[str, int, float]]
) -> None:
    data = hdccf.read(log(), event="type", event_weights=WEIGHTS, repeats=repeats)
    ann = [row[1:] for row in rows_of(data) if row[0] == "ann"]
    assert ann == expected
    # The order of the rows in the source does not matter where there are times.
    shuffled = log().sample(fraction=1.0, shuffle=True, seed=3)
    again = hdccf.read(shuffled, event="type", event_weights=WEIGHTS, repeats=repeats)
    assert sorted(rows_of(again)) == sorted(rows_of(data))


def test_repeats_without_weights_and_without_times() -> None:
    plain = log().drop("type", "time")
    assert hdccf.read(plain).weights is None
    last = hdccf.read(plain, repeats="last")
    assert last.weights is None
    assert last.item_ids.gather(last.by_user.of(0)).to_list() == ["tea", "rye", "jam"]
    counted = hdccf.read(plain, repeats="all")
    assert counted.weights is not None
    assert counted.weights.tolist() == counted.counts.tolist() == [2, 1, 2, 1, 1]
    with pytest.raises(
        ConfigError, match=r"^repeats='some' is unknown; choose one of \['first', 'last', 'all'\]$"
    ):
        hdccf.read(plain, repeats="some")


def test_a_weight_of_zero_leaves_a_row_out(capsys: pytest.CaptureFixture[str]) -> None:
    data = hdccf.read(log(), event="type", event_weights={"view": 1, "cart": 3, "buy": 0}, repeats="all")
    assert ("ann", "tea", 1, 1.0) in rows_of(data)
    assert "left out 1 of 7 rows with the weight 0" in capsys.readouterr().err


def test_weights_of_a_column_and_of_a_matrix() -> None:
    weighed = log().with_columns(weight=pl.Series([1.0, 2, 3, 0.5, 1, 1, 1]))
    data = hdccf.read(weighed, weight="weight")
    assert data.weights is not None
    assert data.weights.tolist() == [1.0, 2.0, 1.0, 3.0, 1.0]
    matrix = sparse.csr_array(np.array([[0, 2.0], [3.0, 4.0]]))
    assert hdccf.read(matrix, weight="weight").frame()["weight"].to_list() == [2.0, 3.0, 4.0]
    assert hdccf.read(matrix).weights is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weight": "time", "event": "type", "event_weights": WEIGHTS},
            "weight and event .* were both given",
        ),
        ({"event": "type"}, "event and event_weights go together"),
        ({"event_weights": WEIGHTS}, "event and event_weights go together"),
        (
            {"event": "type", "event_weights": {"view": -1.0}},
            "event_weights has -1.0 for 'view'; give numbers from 0",
        ),
        ({"event": "type", "event_weights": {"view": float("nan")}}, "event_weights has nan"),
        (
            {"event": "type", "event_weights": {"cart": 3.0}},
            r"column 'type' has 'view' \(5 rows\), 'buy' \(1 rows\), which event_weights .* does not name",
        ),
        ({"event": "type", "event_weights": dict.fromkeys(WEIGHTS, 0.0)}, "no row with a weight above 0"),
        ({"weight": "type"}, "row 1, column 'type': 'view' is no number"),
        ({"weight": "nowhere"}, "no column 'nowhere' for the weight"),
        ({"weight": "low"}, "row 2, column 'low': -1.0 is no weight; give finite numbers from 0"),
        ({"weight": "gap"}, "missing value"),
    ],
)
def test_weights_that_are_none_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    frame = log().with_columns(
        low=pl.Series([1.0, -1.0, 1, 1, 1, 1, 1]), gap=pl.Series([None, 1.0, 1, 1, 1, 1, 1])
    )
    with pytest.raises((ConfigError, SourceError), match=message) as refused:
        hdccf.read(frame, **options)
    assert "\n" not in str(refused.value)


def test_weights_survive_splits_cores_and_folders(tmp_path: Path) -> None:
    plain = tastes()
    data = replace(plain, weights=np.arange(1, len(plain) + 1, dtype=np.float32))
    assert data.fingerprint != plain.fingerprint
    assert data.fingerprint != replace(data, weights=data.weights[::-1].copy()).fingerprint  # type: ignore[index]
    data.save(tmp_path / "saved")
    loaded = Interactions.load(tmp_path / "saved")
    assert loaded.fingerprint == data.fingerprint
    own = {row[:2]: row[-1] for row in data.frame().rows()}
    split = leave_one_out(data)
    split.save(tmp_path / "split")
    parts = [
        split.train,
        split.test,
        split.joined(),
        k_core(data, 5, 9),
        Split.load(tmp_path / "split").train,
    ]
    parts += [predefined_split(split.train, test=split.test).test]
    for part in parts:
        assert len(part)
        assert {row[:2]: row[-1] for row in part.frame().rows()}.items() <= own.items()
    assert split.joined().fingerprint == data.fingerprint


def test_the_weights_of_the_data_multiply_those_of_the_settings() -> None:
    data = replace(interactions([(0, 3), (0, 1)], times=[0, DAY]), weights=np.array([2.0, 3.0], np.float32))
    settings = HDCCF(recency_half_life=1.0)
    assert weights_of(settings, data).tolist() == [1.0, 3.0]
    assert weighted_histories(data, ALS(recency_half_life=1.0)).data.tolist() == [1.0, 3.0]


def test_the_command_line_weighs_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = pl.Series("type", ["view", "buy", "cart"]).gather(np.arange(len(tastes())) % 3)
    tastes().frame().drop("count").with_columns(kinds).write_csv(tmp_path / "log.csv")
    given: list[str | Path] = ["train", "--interactions", tmp_path / "log.csv", "--event", "type"]
    given += ["--set", "epochs=1", "--preset", "hdccf", "--out", tmp_path / "run"]
    for weights, message in (
        ("view", "'view' is no list of weights; write them like view=1,cart=3,buy=5"),
        ("view=1,buy=2", "has 'cart' (106 rows), which event_weights"),
    ):
        assert message in error_of(capsys, *given, "--event-weights", weights)
    assert call(*given, "--event-weights", "view=1, cart=3, buy=5") == 0
    train = hdccf.load_run(tmp_path / "run").events
    assert train.weights is not None
    assert set(train.weights.tolist()) == {1.0, 3.0, 5.0}

"""Search spaces: every point of every space is a possible setting, and time stays out where it must."""

from typing import Any

import numpy as np
import pytest

from hdccf.config import Choice, Dimension, Real, Space, Variant, Whole, recency
from hdccf.errors import ConfigError
from hdccf.experiments.plans import SEQUENTIAL
from hdccf.models import MODELS
from hdccf.models.hdccf.settings import HDCCF

TUNED = [name for name in sorted(MODELS) if MODELS[name].settings.space]


def drawn_by(rng: np.random.Generator, dimension: Dimension) -> Any:
    """A point of a dimension, its ends often."""
    if isinstance(dimension, Choice | Variant):
        return list(dimension.options)[rng.integers(len(dimension.options))]
    ends = [dimension.low, dimension.high]
    if rng.random() < 0.5:
        return ends[rng.integers(2)]
    if isinstance(dimension, Whole):
        return int(rng.integers(dimension.low, dimension.high + 1))
    return float(rng.uniform(dimension.low, dimension.high))


def points(space: Space, time_aware: bool, fixed: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        space.draw(lambda _, dimension: drawn_by(rng, dimension), time_aware=time_aware, fixed=fixed)
        for _ in range(200)
    ]


def test_every_model_but_the_references_has_a_space() -> None:
    assert set(TUNED) == set(MODELS) - {"most-popular", "random"}


@pytest.mark.parametrize("name", TUNED)
@pytest.mark.parametrize("time_aware", [False, True])
def test_every_point_is_a_possible_setting(name: str, time_aware: bool) -> None:
    kind = MODELS[name].settings
    for point in points(kind.space, time_aware):
        kind(**point)


@pytest.mark.parametrize("space", HDCCF.spaces)
def test_every_point_of_the_paper_s_spaces_has_every_part_of_it(space: str) -> None:
    for point in points(HDCCF.space_named(space), False):
        settings = HDCCF(**point)
        assert (settings.similarity, settings.factors, settings.start) == ("modulated", "separate", "random")
        on = (settings.omega_items, settings.omega_users, settings.user_side, settings.mask_observed)
        assert all((*on, settings.user_user_weight, settings.item_item_weight))
        if space == "printed":
            assert settings.frequency_correction == 0
    with pytest.raises(ConfigError, match="space='neither' is unknown for HDCCF; choose one of"):
        HDCCF.space_named("neither")


@pytest.mark.parametrize("name", TUNED)
def test_what_a_dimension_waits_for_is_a_variant_before_it(name: str) -> None:
    space = MODELS[name].settings.space
    before: list[str] = []
    for own, dimension in space.dimensions.items():
        if dimension.when is not None:
            variant = space.dimensions[dimension.when[0]]
            assert dimension.when[0] in before
            assert isinstance(variant, Variant)
            assert dimension.when[1] in variant.options
        if isinstance(dimension, Variant):
            # A name that is also a setting would be taken for one when the best is written.
            assert own not in MODELS[name].settings.model_fields
        before.append(own)


@pytest.mark.parametrize("name", TUNED)
def test_a_time_blind_study_knows_no_time(name: str) -> None:
    kind = MODELS[name].settings
    for point in points(kind.space, time_aware=False):
        settings = kind(**point).model_dump()
        assert settings.get("recency_half_life") is None
        assert settings.get("user_vector", "free") == "free"
        if name == "svdpp":
            assert settings["history_half_life"] is None


@pytest.mark.parametrize("name", [name for name in TUNED if name not in SEQUENTIAL])
def test_a_time_aware_study_may_weigh_by_recency(name: str) -> None:
    kind = MODELS[name].settings
    assert kind.space.knows_time
    assert any(kind(**point).model_dump()["recency_half_life"] for point in points(kind.space, True))


@pytest.mark.parametrize("name", ["bpr", "ssm", "hdccf"])
def test_a_time_aware_study_tries_histories(name: str) -> None:
    kinds = {point.get("user_vector", "free") for point in points(MODELS[name].settings.space, True)}
    assert kinds == {"free", "history"}


def test_conditions_variants_and_fixed_settings() -> None:
    space = Space(
        {
            "kind": Variant({"plain": {"a": 1}, "other": {"a": 2, "b": 3}}),
            "x": Real(0.0, 1.0, when=("kind", "plain")),
            "n": Whole(1, 4),
            **recency(),
        },
        blind={"z": "blind"},
        aware={"z": "aware"},
    )
    asked: list[str] = []

    def suggest(name: str, dimension: Dimension) -> Any:
        asked.append(name)
        return "other" if name == "kind" else 7

    assert space.draw(suggest, time_aware=False) == {"z": "blind", "a": 2, "b": 3, "n": 7}
    assert asked == ["kind", "n"]
    asked.clear()
    found = space.draw(suggest, time_aware=True, fixed={"kind": "x", "n": 9})
    # Where the variant is not asked for, its first option counts.
    assert asked == ["x", "recency_half_life", "recency_floor"]
    assert (found["z"], found["n"], found["x"]) == ("aware", 9, 7)

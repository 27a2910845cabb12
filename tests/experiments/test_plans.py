"""What is run: the issue's lists, tuned settings where there are some, and smaller ones for a quick look."""

from dataclasses import replace
from pathlib import Path

import pytest

from hdccf.config import Real, Space
from hdccf.errors import ConfigError
from hdccf.experiments import plans
from hdccf.experiments.plans import PAPER, SEEDLESS, STUDIES, Plan, task_of
from hdccf.experiments.tuning import write_best
from hdccf.models import MODELS, entry_named
from hdccf.models.hdccf.settings import HDCCF


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(plans, "TUNED", tmp_path / "none")
    return Plan("small", PAPER, tmp_path)


def test_the_table_has_every_model_ours_last(plan: Plan) -> None:
    rows = plans.table(plan)
    compared = set(MODELS) - {"most-popular", "random"}
    assert {row.model for row in rows} == compared - {"sasrec"}  # which needs times
    assert {row.model for row in plans.table(plan, True)} == compared
    assert rows[-1].model == "hdccf"
    assert [row.model for row in rows][:7] == ["pmf", "bpr", "svdpp", "neumf", "enmf", "irgan", "sd-gar"]
    assert {row.seeds for row in rows if row.model not in SEEDLESS} == {5}
    assert all(row.origin == "not tuned: defaults" for row in rows)
    assert rows[-1].settings["user_vector"] == "free"


def test_tuned_settings_are_taken_where_there_are_some_and_it_is_said(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODELS["enmf"].settings, "space", Space({"l2": Real(0.0, 1.0)}))
    origin = {"trials": 12, "minutes": 3.25, "budget": {"trials": 50, "minutes": 30}}
    write_best(plan.results / "tuned" / "small" / "bpr.toml", {"learning_rate": 0.007}, origin)
    write_best(plan.results / "tuned" / "small-time" / "bpr.toml", {"recency_half_life": 3.0}, origin)
    blind, aware = ({row.model: row for row in plans.table(plan, time)} for time in (False, True))
    assert blind["bpr"].settings["learning_rate"] == 0.007
    assert blind["bpr"].origin == "tuned: 12 of 50 trials, 3.2 of 30 minutes"
    assert aware["bpr"].settings["recency_half_life"] == 3.0
    # A model without use for time has its time-blind run in this part too.
    assert aware["enmf"].settings == blind["enmf"].settings
    assert aware["enmf"].origin.endswith("(knows no time)")
    assert aware["hdccf"].given
    assert not blind["hdccf"].given


def test_gowalla_m1_is_asked_as_the_leaderboard_asks(plan: Plan) -> None:
    rows = plans.table(replace(plan, task=task_of("gowalla-m1")))
    assert {row.model: row.seeds for row in rows}["hdccf"] == 3
    assert {row.seeds for row in rows if row.model != "hdccf"} == {1}
    for row in rows:
        settings = entry_named(row.model).settings(**row.settings).model_dump()
        assert settings.get("embedding_dim", 64) == 64
        assert settings.get("validation_metric", "full:ndcg@20") == "full:ndcg@20"


@pytest.mark.parametrize(("study", "curve", "ends"), [
    ("omega", "omega_items", (0.0, 0.2)),
    ("omega", "omega_users", (0.0, 0.2)),
    ("neighbours", "neighbours", (1, 6)),
    ("beta", "frequency_correction", (0.0, 1.0)),
    ("temperature", "temperature", (0.05, 0.5)),
    ("recency", "recency_half_life", (1.0, 100.0)),
    ("recency", "history_half_life", (1.0, 100.0)),
])  # fmt: skip
@pytest.mark.parametrize("budget", ["quick", "full"])
def test_a_sweep_changes_one_setting_from_end_to_end(
    plan: Plan, study: str, curve: str, ends: tuple[float, float], budget: str
) -> None:
    rows = [row for row in STUDIES[study](replace(plan, budget=budget)) if row.curve == curve]
    values = [row.settings[curve] for row in rows]
    assert (values[0], values[-1]) == ends
    assert values == sorted(set(values)) == [row.x for row in rows]
    others = [{name: x for name, x in row.settings.items() if name != curve} for row in rows]
    assert all(other == others[0] for other in others)
    for row in rows:
        entry_named(row.model).settings(**row.settings)


def test_the_ablations_are_the_paper_s_and_ours(plan: Plan) -> None:
    labels = [row.label for row in plans.ablation(plan)]
    wanted = ["wo-i", "wo-u", "wo-ui", "bpr-plus", "biased", "unmodulated", "paper", "ours"]
    wanted += ["ours, any neighbours", "ours, nearest neighbours"]
    assert labels == [*wanted, "ours, time-aware"]
    assert [row.label for row in plans.ablation(replace(plan, has_times=False))] == wanted
    # The vector of the history is not HDCCF's own: with it, its parts and other losses over it have rows.
    ours = {"user_vector": "history", "history_encoder": "attention", "history_length": 7, "temperature": 0.2}
    origin = {"trials": 1, "minutes": 1.0, "budget": {"trials": 1, "minutes": 1.0}}
    write_best(plan.results / "tuned" / "small-time" / "hdccf.toml", ours, origin)
    rows = plans.ablation(plan)
    further = ["history as a sum", "BPR, same vectors", "SSM, same vectors"]
    assert [row.label for row in rows] == [*wanted, "ours, time-aware", *further]
    for row in rows[-2:]:
        settings = entry_named(row.model).settings(**row.settings).model_dump()
        assert (settings["history_encoder"], settings["history_length"], settings["sampler"]) == (
            "attention",
            7,
            "block",
        )
    # Nor is where vectors start.
    write_best(plan.results / "tuned" / "small" / "hdccf.toml", {"start": "spectral"}, origin)
    write_best(plan.results / "tuned" / "small-time" / "hdccf.toml", {**ours, "start": "spectral"}, origin)
    by_label = {row.label: row for row in plans.ablation(plan)}
    starts = {label: row.settings.get("start") for label, row in by_label.items() if "start" in label}
    assert starts == {
        "ours, random start": "random",
        "BPR, same start": "spectral",
        "SSM, same start": "spectral",
        "time-aware, random start": "random",
    }
    assert by_label["paper"].settings == {
        **HDCCF.spaces["printed"].blind,
        "validation_metric": "sampled:ndcg@10",
    }
    # Each variant is the paper's model, as it was tuned, less one part.
    write_best(plan.results / "tuned" / "small" / "hdccf-printed.toml", {"temperature": 0.3}, origin)
    settings = {row.label: row.settings for row in plans.ablation(plan)}
    assert settings["paper"]["temperature"] == settings["wo-i"]["temperature"] == 0.3
    assert "item_item_weight" not in settings["paper"]
    assert settings["wo-i"]["item_item_weight"] == 0.0


def test_a_quick_look_is_smaller(plan: Plan) -> None:
    quick = replace(plan, budget="quick")
    for row in [*plans.table(quick), *STUDIES["omega"](quick)]:
        settings = entry_named(row.model).settings(**row.settings).model_dump()
        assert settings.get("epochs", 0) <= 20
        assert settings.get("embedding_dim", 0) <= 32
        assert row.seeds <= 2
    assert len(STUDIES["omega"](quick)) < len(STUDIES["omega"](plan))


def test_overrides_reach_the_rows_that_have_the_setting(plan: Plan) -> None:
    rows = plans.table(replace(plan, overrides={"temperature": 0.3, "l2": 9.0}, seeds=1))
    by_model = {row.model: row.settings for row in rows}
    assert by_model["hdccf"]["temperature"] == 0.3
    assert "l2" not in by_model["hdccf"]
    assert by_model["ease"] == {"l2": 9.0}


def test_what_is_impossible_is_refused(plan: Plan) -> None:
    with pytest.raises(ConfigError, match="budget='huge' is unknown; choose one of"):
        replace(plan, budget="huge")
    with pytest.raises(ConfigError, match="recency needs times, and small has none"):
        STUDIES["recency"](replace(plan, has_times=False))

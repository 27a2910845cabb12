"""Presets: a model's own, and what it was tuned to on a data set, shipped as files."""

import json
from pathlib import Path

import pytest

from hdccf import models
from hdccf.cli import main
from hdccf.errors import ConfigError
from hdccf.experiments.plans import task_of
from hdccf.models import MODELS, preset_named, presets_of

JOURNAL = Path(__file__).parent.parent / "results" / "journal"


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tuned"
    (folder / "ml-1m").mkdir(parents=True)
    (folder / "ml-1m-time").mkdir()
    (folder / "ml-1m" / "bpr.toml").write_text("learning_rate = 0.003\n")
    (folder / "ml-1m-time" / "bpr.toml").write_text("recency_half_life = 4.0\n")
    monkeypatch.setattr(models, "TUNED", folder)
    return folder


def test_a_data_set_is_a_preset_of_the_models_that_were_tuned_on_it(tuned: Path) -> None:
    assert preset_named("bpr", "ml-1m") == {"learning_rate": 0.003}
    assert preset_named("bpr", "ml-1m-time") == {"recency_half_life": 4.0}
    assert presets_of("bpr") == ["ml-1m", "ml-1m-time"]
    with pytest.raises(ConfigError, match="preset='ml-1m' is unknown for model pmf; choose one of none"):
        preset_named("pmf", "ml-1m")


def test_they_are_listed(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["models"])
    assert "ml-1m-time" in capsys.readouterr().out


def test_own_presets_come_first(tuned: Path) -> None:
    (tuned / "ml-1m" / "hdccf.toml").write_text("temperature = 0.2\n")
    assert preset_named("hdccf", "paper")["temperature"] == 0.5
    assert presets_of("hdccf")[-1] == "ml-1m"
    with pytest.raises(ConfigError, match="preset='ml-2m' is unknown for model hdccf"):
        preset_named("hdccf", "ml-2m")


def test_everything_that_is_shipped_builds_settings() -> None:
    for name, entry in MODELS.items():
        for preset in presets_of(name):
            entry.settings(**preset_named(name, preset))


def test_tuned_presets_are_what_the_committed_tables_were_trained_with() -> None:
    """They are changes to defaults: a default that changes must not change them."""
    compared, others = 0, set()
    for file in sorted(JOURNAL.glob("*.jsonl")):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for name, entry in MODELS.items():
            trained = [record["settings"] for record in records if record["model"] == name]
            for preset in (file.stem, f"{file.stem}-time"):
                if not trained or preset not in presets_of(name):
                    continue
                metric = task_of(file.stem).validation_metric
                own = entry.settings(**preset_named(name, preset)).model_dump(mode="json")
                own |= {"validation_metric": metric} if "validation_metric" in own else {}
                shared = [{key: own[key] for key in old if key in own} for old in trained]
                same = [
                    {key: old[key] for key in new} == new for old, new in zip(trained, shared, strict=True)
                ]
                if not any(same):
                    others.add((name, preset))
                compared += 1
    assert compared > 40
    assert not others


def test_the_paper_over_blocks_has_every_part_of_the_printed_form() -> None:
    printed, blocks = preset_named("hdccf", "paper-in-batch"), preset_named("hdccf", "paper")
    parts = (
        "similarity",
        "factors",
        "user_side",
        "frequency_correction",
        "user_user_weight",
        "item_item_weight",
    )
    assert {key: blocks[key] for key in parts} == {key: printed[key] for key in parts}
    assert blocks["sampler"] == "block"
    assert blocks["omega_items"] > 0
    assert blocks["omega_users"] > 0

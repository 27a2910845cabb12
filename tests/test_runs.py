"""A run's folder: what is in it, that it opens again, and what is said of one that is damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphs import small_split
from hdccf.config import FitOptions
from hdccf.errors import ConfigError, HdccfError, RunError
from hdccf.files import locked
from hdccf.models import MODELS
from hdccf.models.hdccf.settings import HDCCF
from hdccf.recommend.recommender import load_run
from hdccf.recommend.run_folder import RunFolder, facts_of, free_folder
from hdccf.training.fit import fit, resume
from training import quick


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(small_split(), quick(hidden=(3,)), seed=5, out=out, about={"source": "tests"})
    return out


def test_a_run_has_everything_that_it_needs(trained: Path) -> None:
    names = {file.name for file in trained.iterdir()}
    assert names == {
        "run.json",
        "environment.json",
        "split",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "best.safetensors",
        "result.json",
    }
    run = json.loads((trained / "run.json").read_text())
    assert (run["format"], run["version"], run["model"], run["seed"]) == ("hdccf-run", 1, "hdccf", 5)
    assert run["settings"] == quick(hidden=(3,)).model_dump(mode="json")
    assert run["data"] == {"source": "tests"}
    assert run["split"] == {"method": "leave-one-out", "fingerprint": small_split().fingerprint}
    environment = json.loads((trained / "environment.json").read_text())
    assert {"python", "platform", "threads", "versions"} == environment.keys()
    assert environment["versions"]["torch"] != "unknown"
    result = json.loads((trained / "result.json").read_text())
    best = max(RunFolder.open(trained).metrics(), key=lambda record: record["validation"]["sampled:ndcg@10"])
    assert result["best_epoch"] == best["epoch"]
    assert result["best_value"] == best["validation"]["sampled:ndcg@10"]


def test_every_file_is_of_a_kind_that_executes_nothing(trained: Path) -> None:
    files = [file for file in trained.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".jsonl", ".safetensors", ".parquet"}
    for file in files:
        start = file.read_bytes()[:16]
        if file.suffix == ".parquet":
            assert start.startswith(b"PAR1")
        elif file.suffix == ".safetensors":
            assert start[8:9] == b"{"
        else:
            for line in file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else ():
                json.loads(line)


def test_a_run_opens_as_it_was_made(trained: Path) -> None:
    run = RunFolder.open(str(trained))
    assert (run.model, run.seed, run.options) == ("hdccf", 5, FitOptions(threads=torch.get_num_threads()))
    assert run.settings == quick(hidden=(3,))
    assert isinstance(run.settings, HDCCF)
    split = run.split()
    assert split.fingerprint == small_split().fingerprint
    assert np.array_equal(split.train.items, small_split().train.items)
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3]


def test_metrics_say_what_happened_in_each_epoch(trained: Path) -> None:
    for record in RunFolder.open(trained).metrics():
        assert record.keys() == {"epoch", "loss", "terms", "validation", "diagnostics", "seconds"}
        assert record["terms"].keys() == {"clipped-items", "clipped-users"}
        assert record["validation"].keys() == {"sampled:ndcg@10"}
        assert {"masked", "effective-negatives", "hardness-90"} < record["diagnostics"].keys()


def copied(trained: Path, to: Path) -> Path:
    for file in trained.rglob("*"):
        if file.is_file():
            target = to / file.relative_to(trained)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    return to


def with_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "run.json").read_text())
    config.update(changes)
    (folder / "run.json").write_text(json.dumps({k: v for k, v in config.items() if v != "gone"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "holds no run"),
        ({"version": 2}, "has format version 2; this hdccf reads version 1: train again, or install"),
        ({"model": "ncf"}, r"run.json is damaged or of another hdccf \(model='ncf' is unknown"),
        ({"settings": {"temperature": -1}}, "run.json is damaged or of another hdccf .temperature=-1"),
        ({"settings": {"warmth": 1}}, "HDCCF has no setting 'warmth'"),
        ({"settings": "gone"}, "run.json is damaged or of another hdccf"),
        ({"settings": 3}, "run.json is damaged or of another hdccf"),
        ({"seed": "gone"}, "run.json is damaged or of another hdccf"),
        ({"options": {"colour": "red"}}, "run.json is damaged or of another hdccf"),
        ({"split": {"fingerprint": "0123"}}, "split is not the split that this run was trained on"),
    ],
)
def test_a_damaged_description_is_told_in_one_line(
    changes: dict[str, Any], message: str, trained: Path, tmp_path: Path
) -> None:
    folder = copied(trained, tmp_path / "run")
    with_config(folder, **changes)
    with pytest.raises(RunError, match=message) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)


def test_other_damage_is_told_in_one_line_as_well(trained: Path, tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return copied(trained, tmp_path / name)

    cases = []
    folder = broken("cut")
    (folder / "run.json").write_text('{"format": "hdccf-run", ')
    cases.append((folder, "run.json is damaged; train again"))
    folder = broken("list")
    (folder / "run.json").write_text("[]")
    cases.append((folder, "holds no run"))
    folder = broken("pairs")
    pairs = folder / "split" / "train" / "pairs.parquet"
    pairs.write_bytes(pairs.read_bytes()[:-30])
    cases.append((folder, "cannot be opened"))
    folder = broken("part")
    (folder / "split" / "test" / "meta.json").unlink()
    cases.append((folder, "cannot be opened"))
    folder = broken("weights")
    (folder / "best.safetensors").write_bytes((folder / "best.safetensors").read_bytes()[:100])
    cases.append((folder, "best.safetensors is damaged"))
    folder = broken("no-weights")
    (folder / "best.safetensors").unlink()
    cases.append((folder, "has no trained weights yet; finish it with: hdccf train --resume"))
    folder = broken("other-weights")
    (folder / "best.safetensors").write_bytes((folder / "checkpoint.safetensors").read_bytes())
    cases.append((folder, "has the weights of another model or other data"))
    cases.append((tmp_path, "holds no run .no run.json"))
    cases.append((tmp_path / "nowhere", "holds no run .no run.json"))
    cases.append((folder / "run.json", "holds no run .no run.json"))
    for folder, message in cases:
        with pytest.raises(RunError, match=message) as caught:
            load_run(folder)
        assert "\n" not in str(caught.value)


def test_a_folder_in_the_place_of_the_log(trained: Path, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl") as caught:
        facts_of(RunFolder.open(folder))
    assert "\n" not in str(caught.value)


def test_a_folder_in_use_is_never_written_into(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    for path in (trained, tmp_path / "file", tmp_path / "folder"):
        with pytest.raises(RunError, match=r"is not empty; choose another --out, or go on with hdccf train"):
            fit(small_split(), quick(), out=path)
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    fit(small_split(), quick(epochs=1), out=tmp_path / "empty")
    assert load_run(tmp_path / "empty").path == tmp_path / "empty"


def test_a_folder_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hdccf.recommend.run_folder._environment", die)
    with pytest.raises(KeyboardInterrupt):
        fit(small_split(), quick(), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_trained_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(HdccfError, match="needs times"):
        fit(small_split(timed=False), quick("history"), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        fit(small_split(), quick(), out=tmp_path / "file" / "run")


def test_the_next_free_name(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert free_folder(tmp_path, "run") == tmp_path / "run-3"


@pytest.mark.parametrize(
    "values",
    [{"threads": 0}, {"checkpoint_minutes": -1}, {"checkpoint_epochs": 0}, {"checkpoint_minutes": np.nan}],
)
def test_impossible_options_are_told_in_one_line(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(values))}=.* is not possible: it should be"):
        FitOptions(**values)


def test_edited_settings_do_not_meet_the_old_weights(trained: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited"
    shutil.copytree(trained, edited)
    config = json.loads((edited / "run.json").read_text(encoding="utf-8"))
    config["settings"]["temperature"] = 0.5
    (edited / "run.json").write_text(json.dumps(config), encoding="utf-8")
    for use in (load_run, resume):
        with pytest.raises(RunError, match=r"written with other settings than .*; restore run.json, or"):
            use(edited)


def test_weights_that_are_no_numbers_are_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    tensors, facts = run.load_tensors(run.best)
    tensors["items.embedding"][0, 0] = float("nan")
    run.save_tensors(run.best, tensors, facts)
    with pytest.raises(RunError, match=r"weights that are no finite numbers; train again$"):
        load_run(tmp_path / "run")


def test_temporaries_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    left = [tmp_path / ".run.tmp-x1", tmp_path / "run" / ".best.safetensors.tmp-x2"]
    for folder in (tmp_path / ".run.tmp-x1", tmp_path / "run"):
        folder.mkdir()
    left[1].write_text("half")
    with locked(tmp_path / "run", RunError):
        assert not any(path.exists() for path in left)


def test_temporaries_of_another_run_stay(tmp_path: Path) -> None:
    """The name of a run is no pattern."""
    other = tmp_path / ".run1.tmp-x1"
    other.mkdir()
    with locked(tmp_path / "run[1]", RunError):
        assert other.exists()


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        ("postgresql://shop:hunter2@db.example/shop", "postgresql://***@db.example/shop"),
        ("postgresql://shop:hun@ter2@db/shop", "postgresql://***@db/shop"),
        ("postgresql://shop:hun/ter2@db/shop", "postgresql://***@db/shop"),
        ("postgresql://db/shop?user=x&password=hunter2", "postgresql://db/shop?user=x&password=***"),
        ("postgresql://db/shop?PASSWORD=hunter2&a=1", "postgresql://db/shop?PASSWORD=***&a=1"),
        ("postgresql://db/shop?sslkey=hunter2", "postgresql://db/shop?sslkey=***"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("orders@home.csv", "orders@home.csv"),
    ],
)
def test_no_password_is_kept_in_a_run(uri: str, kept: str, tmp_path: Path) -> None:
    fit(small_split(), MODELS["most-popular"].settings(), out=tmp_path / "run", about={"source": uri})
    assert RunFolder.open(tmp_path / "run").config["data"]["source"] == kept
    for file in (tmp_path / "run").rglob("*.json"):
        assert "ter2" not in file.read_text(encoding="utf-8")
    # A run of an earlier version, which kept it.
    text = (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    (tmp_path / "run" / "run.json").write_text(text.replace(kept, uri), encoding="utf-8")
    assert facts_of(RunFolder.open(tmp_path / "run"))["source"]["source"] == kept

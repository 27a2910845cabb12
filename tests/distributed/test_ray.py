"""Two real workers on two Ray nodes: the same steps, the same trainings, and what becomes of faults."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from probing import CASES, DTYPES, TRAININGS, every_step, trained
from scenario import PARTS, SETTINGS, world
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import FitOptions
from hdccf.distributed.sharding import TorchProcessGroup, WorkerData
from hdccf.distributed.store import Store, write_store
from hdccf.distributed.worker import newest
from hdccf.evaluation.evaluation import Evaluation, evaluate
from hdccf.recommend.recommender import load_run
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.fit import SplitValidator, fit
from training import assert_same_runs

pytest_plugins = ["playing"]


@cache
def alone() -> dict[str, dict[str, Tensor]]:
    """Every step, by this process."""
    return dict(every_step(world().train))


@pytest.mark.parametrize("kind", sorted(DTYPES))
@pytest.mark.parametrize("case", sorted(CASES))
def test_a_step_is_the_same_on_two_workers(played: Path, case: str, kind: str) -> None:
    """Loss, terms and gradients; of the last batch a worker may have no row at all."""
    for number in range(2):
        name = f"{case}, {kind}, {number}"
        assert_same_step(name, checkpoint.load(played / "probe" / "steps" / f"{name}.safetensors")[0])


def assert_same_step(name: str, found: dict[str, Tensor]) -> None:
    """As this process takes it: to 1e-9 in float64, and relatively to 1e-5 in float32."""
    exact, expected = "float64" in name, alone()[name]
    assert found.keys() == expected.keys()
    assert any("gradient" in part for part in expected)
    for part, value in expected.items():
        largest = float(value.abs().max())
        difference = float((found[part].double() - value.double()).abs().max())
        assert difference <= (1e-9 * max(largest, 1.0) if exact else 1e-5 * largest), (name, part)


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[TorchProcessGroup]:
    place = tmp_path / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
    try:
        yield TorchProcessGroup()
    finally:
        dist.destroy_process_group()


def test_one_worker_takes_the_steps_of_one_process(group_of_one: TorchProcessGroup, tmp_path: Path) -> None:
    """Over a store of which it has everything."""
    write_store(world(), str(tmp_path / "store"))
    train = WorkerData(Store(str(tmp_path / "store")), group_of_one).pairs()
    alone()  # before the other's steps, as both set torch's default precision
    for name, found in every_step(train, group_of_one):
        assert_same_step(name, found)


@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_a_short_training_logs_the_same_on_two_workers(played: Path, name: str) -> None:
    found = facts(played)["logs"][name]
    split, settings = world(), TRAININGS[name]
    expected = trained(settings, split.train, SplitValidator(split, settings))
    assert len(found) == 3
    for mine, theirs in zip(expected, found, strict=True):
        assert flat(theirs) == pytest.approx(flat(mine), rel=1e-9, abs=1e-12)


def test_no_worker_holds_all_pairs(played: Path) -> None:
    held, pairs = facts(played)["held"], len(world().train)
    assert sum(held) == pairs
    assert max(held) < 0.6 * pairs


def test_workers_were_on_two_nodes(played: Path) -> None:
    workers = json.loads((played / "calm" / "workers.json").read_text())
    assert len({worker["node"] for worker in workers}) == 2
    assert all(worker["sent_bytes"] > 0 and worker["peak_bytes"] > 1e8 for worker in workers)


def test_a_run_ends_as_that_of_one_process(played: Path, tmp_path: Path) -> None:
    # Workers select the epoch by uncalibrated scores, and calibrate when training has ended.
    options = FitOptions(threads=1, checkpoint_minutes=0, checkpoint_epochs=1, calibrate=False)
    fit(world(), SETTINGS, seed=3, out=tmp_path / "alone", options=options)
    mine, theirs = RunFolder.open(tmp_path / "alone"), RunFolder.open(played / "calm")
    for one, other in zip(mine.metrics(), theirs.metrics(), strict=True):
        assert flat(other) == pytest.approx(flat({**one, "seconds": other["seconds"]}), rel=1e-3)
    weights, others = checkpoint.load(mine.best)[0], checkpoint.load(theirs.best)[0]
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        # Adam takes roots of squares of gradients, so that rounding of small ones is larger at first.
        assert (tensor - others[name]).abs().max() < 1e-3 * tensor.abs().max()
    assert load_run(theirs.path).score_block(torch.arange(5)).isfinite().all()
    result = json.loads(theirs.result.read_text())
    assert result["best_epoch"] == json.loads(mine.result.read_text())["best_epoch"]


def test_checkpoints_went_to_the_address_that_was_given(played: Path) -> None:
    (place,) = (played / "storage").iterdir()
    found = newest(f"file://{place}")
    assert found is not None
    assert found.startswith(f"file://{place}/attempt-1/")
    assert not (played / "calm" / "ray").exists()


def test_a_killed_and_a_hanging_worker_change_nothing(played: Path) -> None:
    for fault in ("killed", "hangs"):
        assert (played / "faults" / fault).exists()
    assert_same_runs(played / "calm", played / "faulty")


def test_faults_are_reported(played: Path) -> None:
    said = (played / "scenario.log").read_text()
    assert "hdccf: worker 1 of 2 died; going on from the last checkpoint" in said
    assert "hdccf: worker 0 of 2 hangs: it has not answered the others for 10 s" in said


def test_a_killed_driver_is_resumed(played: Path) -> None:
    assert json.loads((played / "driver.json").read_text())["code"] == -9
    assert {path.name for path in (played / "resumed" / "ray").iterdir()} == {
        "store",
        "attempt-1",
        "attempt-2",
    }
    assert_same_runs(played / "calm", played / "resumed")


def test_lists_of_all_users_are_those_of_one_process(played: Path, tmp_path: Path) -> None:
    load_run(played / "calm").recommend_all(tmp_path / "all.parquet", k=5, deny=[101, 102])
    mine, theirs = (pl.read_parquet(folder / "all.parquet") for folder in (tmp_path, played))
    assert theirs.drop("score").equals(mine.drop("score"))
    np.testing.assert_allclose(theirs["score"], mine["score"], rtol=1e-5)


def test_an_evaluation_is_that_of_one_process(played: Path) -> None:
    found, run = Evaluation.load(played / "evaluation"), load_run(played / "calm")
    expected = evaluate(run, run.split, ks=(3, 5), negatives=6)
    assert found.values == expected.values
    assert found.per_user.equals(expected.per_user)


def test_every_part_was_played(played: Path) -> None:
    assert json.loads((played / "seconds.json").read_text()).keys() == PARTS.keys()


def facts(played: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((played / "probe" / "found.json").read_text())
    return found


def flat(record: dict[str, Any]) -> dict[str, float]:
    """A record of metrics.jsonl without its levels."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found.update({f"{name}/{inner}": number for inner, number in value.items()})
        else:
            found[name] = value
    return found

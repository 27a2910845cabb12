"""What needs no second process: the store, gradients, checkpoints, log lines, refusals."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from graphs import random_interactions, small_split
from hdccf import checkpoint
from hdccf.cli import app
from hdccf.config import Cluster, FitOptions
from hdccf.data.split import leave_one_out
from hdccf.distributed import driver
from hdccf.distributed.driver import LogFilter, describe
from hdccf.distributed.sharding import all_reduce_gradients
from hdccf.distributed.store import Store, write_store
from hdccf.distributed.worker import newest, seal
from hdccf.errors import ConfigError, RunError
from hdccf.evaluation.candidates import frozen_candidates
from hdccf.files import locked
from hdccf.models import MODELS
from hdccf.models.factorization import BPR
from hdccf.models.hdccf.settings import HDCCF
from hdccf.recommend.run_folder import RunFolder

# -- the store -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("address", [True, False])
def test_a_shard_of_the_store_is_that_of_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool, address: bool
) -> None:
    monkeypatch.setattr("hdccf.distributed.store.ROWS_IN_A_GROUP", 16)
    data = random_interactions(2, 40, 30, 0.3, full=False, timed=timed)
    weights = np.arange(len(data), dtype=np.float32) if timed else None
    split = leave_one_out(replace(data, weights=weights))
    place = f"file://{tmp_path}/store" if address else str(tmp_path / "store")
    write_store(split, place)
    store = Store(place)
    assert (store.n_users, store.n_items) == (split.n_users, split.n_items)
    for users in store.shards("user", 3):
        for own_ids in (True, False):
            some = store.split_of(users, own_ids=own_ids)
            for name in ("train", "validation", "test"):
                whole, part = split.part(name), some.part(name)
                rows = (whole.users >= users.first) & (whole.users < users.last)
                np.testing.assert_array_equal(part.users + users.first, whole.users[rows])
                np.testing.assert_array_equal(part.items, whole.items[rows])
                np.testing.assert_array_equal(part.counts, whole.counts[rows])
                assert (part.times is None) == (whole.times is None) == (part.weights is None)
                if part.weights is not None and whole.weights is not None:
                    np.testing.assert_array_equal(part.weights, whole.weights[rows])
                if part.times is not None and whole.times is not None:
                    np.testing.assert_array_equal(part.times, whole.times[rows])
            if own_ids:
                assert some.train.user_ids.equals(split.train.user_ids[users.first : users.last])
                assert some.train.item_ids.equals(split.train.item_ids)
    for items in store.shards("item", 3):
        starts = split.train.by_item.starts
        expected = split.train.by_item.neighbours[starts[items.first] : starts[items.last]]
        np.testing.assert_array_equal(store.users_of(items), expected)


def test_shards_have_about_as_many_pairs_each(tmp_path: Path) -> None:
    split = leave_one_out(random_interactions(4, 200, 40, 0.2, full=False))
    write_store(split, str(tmp_path))
    store = Store(str(tmp_path))
    for parts in (1, 2, 3, 7):
        found = store.shards("user", parts)
        assert [shard.first for shard in found] == [0, *(shard.last for shard in found[:-1])]
        assert found[-1].last == split.n_users
        sizes = [int(store.user_degrees[each.first : each.last].sum()) for each in found]
        assert sum(sizes) == len(split.train)
        assert max(sizes) < 1.3 * len(split.train) / parts


def test_candidates_come_with_the_store(tmp_path: Path) -> None:
    split = small_split()
    write_store(split, str(tmp_path))
    store, frozen = Store(str(tmp_path)), frozen_candidates(split, "validation")
    for users in store.shards("user", 2):
        found = store.candidates_of(users)
        np.testing.assert_array_equal(found.negatives, frozen.of(found.users + users.first))


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no store of training pairs"):
        Store(str(tmp_path))
    (tmp_path / "meta.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(RunError, match="another version"):
        Store(str(tmp_path))


# -- gradients -----------------------------------------------------------------------------------------------


class _Threads:
    """A group whose members are threads: what each gives lies on a table that all look at."""

    def __init__(self, rank: int, size: int, barrier: Barrier, table: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._table = rank, size, barrier, table

    def all_gather_ragged(self, own: Tensor, purpose: str, lengths: list[int] | None = None) -> list[Tensor]:
        self._table[self.rank] = own.clone()
        self._barrier.wait()
        found = list(self._table)
        self._barrier.wait()
        return found

    def all_reduce_in_place(self, own: Tensor, purpose: str) -> Tensor:
        return torch.stack(self.all_gather_ragged(own, purpose)).sum(0)

    def all_gather_ints(self, own: Tensor, purpose: str) -> Tensor:
        return torch.stack(self.all_gather_ragged(own, purpose))


@pytest.mark.parametrize("touched", ["same", "apart", "all", "none"])
@pytest.mark.parametrize("size", [2, 3])
def test_gradients_add_up_whichever_way_they_go(
    touched: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table, a vector and a number. A member without one adds nothing; where all are, they stay so."""
    monkeypatch.setattr("hdccf.distributed.sharding._LEAST_ROWS", 2)
    rows: dict[str, list[list[int]]] = {
        "same": [[3, 5]] * 3,
        "apart": [[1], [4, 6], [9]],
        "all": [list(range(30))] * 3,
        "none": [[]] * 3,
    }
    generator, members, gradients = torch.Generator().manual_seed(0), [], []
    for rank in range(size):
        table = torch.zeros(30, 4)
        table[rows[touched][rank]] = torch.randn(len(rows[touched][rank]), 4, generator=generator)
        given = [table, torch.randn(5, generator=generator), torch.tensor(float(rank)), None, None]
        given[3] = torch.ones(2, 2) if rank == 1 else None
        sizes: list[tuple[int, ...]] = [(30, 4), (5,), (), (2, 2), (7,)]
        members.append([nn.Parameter(torch.zeros(each)) for each in sizes])
        for parameter, gradient in zip(members[-1], given, strict=True):
            parameter.grad = gradient
        gradients.append(given)
    barrier, shared = Barrier(size), [None] * size
    with ThreadPoolExecutor(size) as pool:
        groups: list[Any] = [_Threads(rank, size, barrier, shared) for rank in range(size)]
        list(pool.map(all_reduce_gradients, groups, members))
    for number in range(5):
        present = [given[number] for given in gradients if given[number] is not None]
        for parameters in members:
            if present:
                expected = torch.stack([x for x in present if x is not None]).sum(0)
                torch.testing.assert_close(parameters[number].grad, expected)
            else:
                assert parameters[number].grad is None


# -- checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [True, False])
def test_the_newest_whole_checkpoint_is_found(tmp_path: Path, address: bool) -> None:
    place = f"file://{tmp_path}" if address else str(tmp_path)
    assert newest(place) is None
    for attempt, step in (("attempt-1", 5), ("attempt-1", 7), ("attempt-2", 9)):
        folder = tmp_path / attempt / f"checkpoint_{step}"
        folder.mkdir(parents=True)
        (folder / "checkpoint.safetensors").write_bytes(b"x" * step)
        seal(folder, step)
    last = tmp_path / "attempt-2" / "checkpoint_9"
    assert newest(place) == f"{place}/attempt-2/checkpoint_9"
    # As a kill in the middle of a copy leaves them: a file cut short, one that is missing, half a list.
    (last / "checkpoint.safetensors").write_bytes(b"x")
    assert newest(place) == f"{place}/attempt-1/checkpoint_7"
    (last / "checkpoint.safetensors").unlink()
    assert newest(place) == f"{place}/attempt-1/checkpoint_7"
    parts = tmp_path / "attempt-1" / "checkpoint_7" / "parts.json"
    parts.write_text(parts.read_text()[:20])
    assert newest(place) == f"{place}/attempt-1/checkpoint_5"


# -- words ---------------------------------------------------------------------------------------------------


def test_only_the_training_is_heard() -> None:
    heard = io.StringIO()
    filtered = LogFilter(heard)
    print("\x1b[36m(RayTrainWorker pid=7)\x1b[0m epoch 1/3  loss 2.0", file=filtered)
    print("\x1b[36m(PlacementGroupCleaner pid=7)\x1b[0m Failed to query", file=filtered)
    print("(TrainController pid=8, ip=10.0.0.1) hdccf: worker 1 of 2 died", file=filtered)
    print("error: something of the driver's own", file=filtered)
    assert heard.getvalue() == (
        "epoch 1/3  loss 2.0\nhdccf: worker 1 of 2 died\nerror: something of the driver's own\n"
    )


def test_faults_are_told_apart() -> None:
    late = RuntimeError("[gloo] Timed out waiting 8000ms for recv")
    assert "worker 1 of 2 hangs" in describe({0: late}, 2, 8.0)
    assert "worker 1 of 2 died" in describe({0: late, 1: RuntimeError("The actor died")}, 2, 8.0)
    assert "worker 0 of 2 failed: out of luck" in describe({0: ValueError("out of luck")}, 2, 8.0)


# -- what is refused -----------------------------------------------------------------------------------------


def test_models_that_train_alone_are_refused() -> None:
    for name, entry in MODELS.items():
        if name in driver.DATA_PARALLEL:
            driver.check(entry.settings())
        else:
            with pytest.raises(ConfigError, match=f"^{name} trains in one process; leave out --workers"):
                driver.check(entry.settings())
    with pytest.raises(ConfigError, match="'irgan' learns beside the model"):
        driver.check(BPR(sampler="irgan"))
    with pytest.raises(ConfigError, match=r"^nearest needs the whole graph"):
        driver.check(HDCCF(nearest=2))


def test_a_second_driver_is_refused_before_it_writes(tmp_path: Path) -> None:
    out, options = tmp_path / "run", FitOptions(cluster=Cluster(workers=1))
    run = RunFolder.create(out, {"bpr": BPR()}, small_split(), 0, options, {})
    with locked(out, RunError):
        with pytest.raises(RunError, match="another process is writing into"):
            driver.fit(small_split(), BPR(), seed=0, out=out, options=options)
        with pytest.raises(RunError, match="another process is writing into"):
            driver.resume(run)
    assert not (out / "ray").exists()


def test_a_checkpoint_of_other_settings_is_refused_before_workers_start(tmp_path: Path) -> None:
    options = FitOptions(cluster=Cluster(workers=1))
    run = RunFolder.create(tmp_path / "run", {"bpr": BPR()}, small_split(), 0, options, {})
    kept = run.path / "ray" / "attempt-1" / "checkpoint"
    checkpoint.save(kept / "checkpoint.safetensors", {}, {"run": "of another"})
    seal(kept, 1)
    with pytest.raises(RunError, match="written with other settings"):
        driver.resume(run)


def test_more_workers_than_pairs_are_refused(tmp_path: Path) -> None:
    options = FitOptions(cluster=Cluster(workers=500))
    with pytest.raises(ConfigError, match="500 workers are too many for 40 users"):
        driver.fit(small_split(), BPR(), seed=0, out=tmp_path / "run", options=options)


@pytest.mark.parametrize(
    "values", [{"workers": 0}, {"workers": 2, "timeout": 0}, {"workers": 2, "retries": -1}]
)
def test_impossible_clusters_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is not possible: it should be"):
        Cluster(**values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--dataset", "synthetic", "--ray-address", "auto"], "--ray-address goes with --workers"),
        (
            ["train", "--dataset", "synthetic", "--workers", "2", "--model", "ease"],
            "ease trains in one process",
        ),
    ],
)
def test_the_command_line_refuses_in_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--dataset", "synthetic", "--workers", "2"],
        ["recommend", "run", "--all", "--out", "all.parquet", "--workers", "2"],
    ],
)
def test_without_the_extra_it_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdccf.errors.find_spec", lambda name: None)
    result = CliRunner().invoke(app, arguments)
    assert str(result.exception) == "--workers needs Ray; install it with: pip install 'hdccf[ray]'"

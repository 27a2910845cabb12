"""What every worker runs: the training loop on its shard of the data, with checkpoints through Ray Train.

A checkpoint is a folder with the tensors, the best weights, the metrics so far, and `parts.json`, which has
the size of each: one that was interrupted lacks something, and is skipped.
"""

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pyarrow import fs
from ray import get_runtime_context, train
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.distributed.sharding import TorchProcessGroup, WorkerData
from hdccf.distributed.store import Shard, Store, file_system_of
from hdccf.errors import TrainingError
from hdccf.evaluation import metrics
from hdccf.evaluation.ranking import Ranker
from hdccf.files import write_json
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.recommend.run_folder import FitOptions
from hdccf.rng import generator_for
from hdccf.training.fit import parse_metric
from hdccf.training.loop import Loop, beyond_chance, device_named
from hdccf.training.state import CheckpointStore
from hdccf.training.telemetry import Board, Stopwatch


def run_worker(config: dict[str, Any]) -> dict[str, Any]:
    """Trains with a configuration of plain values; returns facts for the driver, or an error."""
    began = time.time()
    torch.set_num_threads(config["threads"])
    group, options = TorchProcessGroup(), FitOptions(**config["options"])
    device = device_named(options.device if options.device == "cpu" else "cuda")
    data = WorkerData(Store(config["store"]), group)
    entry = entry_named(config["model"])
    settings = entry.settings(**config["settings"])
    model: Any = entry.build(settings, data.pairs(), generator_for(config["seed"], "initial values"))
    model.to(device)
    model.process_group = group
    store = RayCheckpointStore(group.rank, config["start"], config["run"])
    if config["warm"] is not None:
        with fetched(config["warm"]) as folder:
            checkpoint.fill(model, checkpoint.load(folder / "start.safetensors")[0], folder)
    watch = Stopwatch() if options.profile else None
    loop = Loop(
        model,
        settings,
        DistributedValidator(settings, data),
        store,
        seed=config["seed"],
        options=options,
        device=device,
        process_group=group,
        clock=watch or nullcontext,
        progress=config["progress"] and group.rank == 0,
    )
    ready = time.time()
    try:
        loop.run(Board(), warm=config["warm"] is not None)
    except TrainingError as error:
        # Every worker has the same one, and would again: so it is not a failure that Ray should retry.
        return {"error": str(error)}
    own = {
        "node": int(get_runtime_context().get_node_id()[:12], 16),
        "pid": os.getpid(),
        "pairs": len(data.split.train),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "sent_bytes": sum(group.sent.values()),
        "began": began,
        "ready": ready,
        "ended": time.time(),
    }
    workers: list[Any] = [None] * group.size
    dist.all_gather_object(workers, own)
    return {"workers": workers, "profile": None if watch is None else watch.report()}


def shard_state(whole: dict[str, Tensor], alone: Model, users: Shard) -> dict[str, Tensor]:
    """The weights of a shard of users, from those of the whole model."""
    return {
        # A table of another length has a row for each user.
        name: whole[name] if fresh.shape == whole[name].shape else whole[name][users.first : users.last]
        for name, fresh in alone.state_dict().items()
    }


class DistributedValidator:
    """The validation metric: the mean over the users of all workers."""

    def __init__(self, settings: Settings, data: WorkerData) -> None:
        self.settings, self.data = settings, data
        self.alone: Model | None = None
        self.ranker: Ranker | None = None
        if len(data.split.validation):
            self.ranker = Ranker(data.split, "validation", drawn=lambda: data.store.candidates_of(data.users))

    def __call__(self, model: Model) -> dict[str, float]:
        settings, data = self.settings, self.data
        if not data.store.meta["validation"] or not isinstance(settings, TrainingSettings):
            return {}
        values = np.empty(0)
        if self.ranker is not None:
            if self.alone is None:
                build = entry_named(name_of(settings)).build
                self.alone = build(settings, data.split.train, torch.Generator())
            weights = shard_state(model.state_dict(), self.alone, data.users)
            self.alone.load_state_dict(weights, assign=True)  # without a copy
            protocol, name, _ = parse_metric(settings.validation_metric)
            values = metrics.per_user(self.ranker.rank(self.alone.scorer(), protocol).ranks, name)
        total, count = self._sum_and_count(values)
        return {settings.validation_metric: total / count}

    @cached_property
    def chance(self) -> float:
        values = np.empty(0)
        if self.ranker is not None and isinstance(self.settings, TrainingSettings):
            protocol, name, _ = parse_metric(self.settings.validation_metric)
            values = self.ranker.chance(protocol, name)
        return beyond_chance(*self._sum_and_count(values))

    def _sum_and_count(self, values: metrics.Values) -> tuple[float, float]:
        """Of the values of all workers' users that are not NaN."""
        known = values[~np.isnan(values)]
        total, count = self.data.group.all_reduce(
            torch.tensor([known.sum(), len(known)], dtype=torch.float64)
        )
        return float(total), float(count)


# -- checkpoints ---------------------------------------------------------------------------------------------

PARTS = "parts.json"
STATE, BEST, METRICS = "checkpoint.safetensors", "best.safetensors", "metrics.jsonl"


def seal(folder: Path, step: int) -> None:
    """Writes the sizes of a folder's files, for `newest` to compare with."""
    (folder / PARTS).unlink(missing_ok=True)
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    write_json(folder / PARTS, {"step": step, "sizes": sizes})


def newest(path: str) -> str | None:
    """The whole checkpoint with the most steps in a folder, however deep; none where there is none."""
    system, folder = file_system_of(path)
    found = system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    sizes = {info.path: info.size for info in found if info.type == fs.FileType.File}
    whole: list[tuple[int, str]] = []
    for name in sizes:
        if not name.endswith(f"/{PARTS}"):
            continue
        place = name.removesuffix(f"/{PARTS}")
        with suppress(ValueError), system.open_input_stream(name) as file:
            parts = json.loads(file.read())
            if all(sizes.get(f"{place}/{part}") == size for part, size in parts["sizes"].items()):
                whole.append((parts["step"], place))
    if not whole:
        return None
    best = max(whole)[1]
    # File systems leave out the scheme of an address.
    return best if "://" not in path else path.rstrip("/") + best.removeprefix(folder.rstrip("/"))


@contextmanager
def fetched(path: str) -> Iterator[Path]:
    """A checkpoint's folder as a local one."""
    system, folder = file_system_of(path)
    if isinstance(system, fs.LocalFileSystem):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hdccf-checkpoint-") as local:
        fs.copy_files(folder, local, source_filesystem=system)
        yield Path(local)


Tensors = dict[str, Tensor]


class RayCheckpointStore(CheckpointStore):
    """The checkpoint store of a worker: rank 0 writes, all ranks report, and all read at the start."""

    def __init__(self, rank: int, start: str | None, run: str) -> None:
        """`start` is a checkpoint of an earlier call to resume from, unless Ray has one of this call.

        `run` is the fingerprint that checkpoints of the run carry.
        """
        self.rank, self._start, self._run = rank, start, run
        self._scratch = tempfile.TemporaryDirectory(prefix="hdccf-worker-")
        self._folder = Path(self._scratch.name)
        self._records: list[dict[str, Any]] = []
        self.location = "Ray's storage path"

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        reported = train.get_checkpoint()
        if reported is None and self._start is None:
            return None
        with reported.as_directory() if reported is not None else fetched(str(self._start)) as found:
            folder = Path(found)
            self.location = str(folder / STATE)
            if self.rank == 0:
                best, records = folder / BEST, folder / METRICS
                if best.exists():
                    shutil.copyfile(best, self._folder / BEST)
                lines = records.read_text(encoding="utf-8").splitlines()
                self._records = [json.loads(line) for line in lines]
            return checkpoint.load(folder / STATE, device)

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        state = facts["state"]
        shown = {"epoch": state["epoch"], "step": state["step"]}
        if self.rank != 0:
            train.report(shown, checkpoint=None)
            return
        checkpoint.save(self._folder / STATE, tensors, {**facts, "run": self._run})
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self._records)
        (self._folder / METRICS).write_text(lines, encoding="utf-8")
        # Epochs are many steps long: this orders checkpoints whatever an epoch's number of steps.
        seal(self._folder, state["epoch"] * 1_000_000_000 + state["step"])
        train.report(shown, checkpoint=train.Checkpoint.from_directory(str(self._folder)))

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        if self.rank == 0:
            checkpoint.save(self._folder / BEST, tensors, {"epoch": epoch, "run": self._run})

    def load_best(self, device: torch.device) -> Tensors | None:
        best = self._folder / BEST
        return checkpoint.load(best, device)[0] if best.exists() else None

    def log(self, record: dict[str, Any]) -> None:
        self._records.append(record)

    def truncate_log(self, epoch: int) -> None:
        self._records = [record for record in self._records if record["epoch"] <= epoch]

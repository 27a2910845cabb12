"""What every worker runs: the training loop on its shard of the data, validated on its own users."""

import os
import resource
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from ray import get_runtime_context
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.distributed.checkpoint_store import RayCheckpointStore, fetched
from hdccf.distributed.graph import WorkerData
from hdccf.distributed.process_group import TorchProcessGroup
from hdccf.distributed.store import Shard, Store
from hdccf.errors import TrainingError
from hdccf.evaluation import metrics
from hdccf.evaluation.ranking import Ranker
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.recommend.run_folder import FitOptions
from hdccf.rng import generator_for
from hdccf.training.fit import parse_metric
from hdccf.training.loop import Loop, device_named
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
    store = RayCheckpointStore(group.rank, config["start"])
    _warm(model, config["warm"])
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
    facts = _facts(group, data, began, ready)
    return {"workers": facts, "profile": None if watch is None else watch.report()}


def _warm(model: Model, place: str | None) -> None:
    """Fills the model with another run's weights (warm start)."""
    if place is not None:
        with fetched(place) as folder:
            checkpoint.fill(model, checkpoint.load(folder / "start.safetensors")[0], folder)


def _facts(group: TorchProcessGroup, data: WorkerData, began: float, ready: float) -> list[dict[str, float]]:
    """Of every worker: node, pairs held, peak memory, bytes sent, and times."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = {
        "node": int(get_runtime_context().get_node_id()[:12], 16),
        "pid": os.getpid(),
        "pairs": len(data.split.train),
        "peak_bytes": peak,
        "sent_bytes": sum(group.sent.values()),
        "began": began,
        "ready": ready,
        "ended": time.time(),
    }
    table = torch.zeros(group.size, len(own), dtype=torch.float64)
    table[group.rank] = torch.tensor(list(own.values()), dtype=torch.float64)
    return [dict(zip(own, row, strict=True)) for row in group.all_reduce(table).tolist()]


def share_weights(alone: Model, model: Model, users: Shard) -> None:
    """Gives a model of a shard of users the weights of the whole model, without copying them."""
    assert isinstance(alone, torch.nn.Module)  # noqa: S101 - all models that a process group trains are
    alone.load_state_dict(shard_state(model.state_dict(), alone, users), assign=True)


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
        settings = self.settings
        if not self.data.store.meta["validation"] or not isinstance(settings, TrainingSettings):
            return {}
        sums = self.data.group.all_reduce(torch.tensor(self._sum_and_count(model), dtype=torch.float64))
        return {settings.validation_metric: float(sums[0] / sums[1])}

    def _sum_and_count(self, model: Model) -> tuple[float, float]:
        if self.ranker is None or not isinstance(self.settings, TrainingSettings):
            return 0.0, 0.0
        if self.alone is None:
            build = entry_named(name_of(self.settings)).build
            self.alone = build(self.settings, self.data.split.train, torch.Generator())
        share_weights(self.alone, model, self.data.users)
        protocol, name = parse_metric(self.settings.validation_metric)
        ranks = self.ranker.rank(self.alone.scorer(), protocol).ranks
        values = metrics.per_user(ranks, name)
        return float(np.nansum(values)), float(np.count_nonzero(~np.isnan(values)))

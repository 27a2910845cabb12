"""What every worker runs: the training loop on its shard of the data, validated on its own users."""

import os
import resource
import time
from typing import Any

import numpy as np
import torch
from ray import get_runtime_context
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import Settings, TrainingSettings
from hdccf.distributed.checkpoint_store import RayCheckpointStore, fetched
from hdccf.distributed.graph import Member
from hdccf.distributed.process_group import Group
from hdccf.distributed.store import Store, Stretch
from hdccf.errors import TrainingError
from hdccf.evaluation import metrics
from hdccf.evaluation.ranking import Ranker
from hdccf.models import entry_named, name_of
from hdccf.models.base import Model
from hdccf.recommend.run_folder import FitOptions
from hdccf.rng import generator_for
from hdccf.training.fit import parse_metric
from hdccf.training.loop import Loop, device_named
from hdccf.training.telemetry import Board, Stopwatch, no_clock


def run_worker(config: dict[str, Any]) -> dict[str, Any]:
    """Trains as `config` says, in plain values; gives back what the driver wants to know."""
    began = time.time()
    torch.set_num_threads(config["threads"])
    group, options = Group(), FitOptions(**config["options"])
    device = device_named(options.device if options.device == "cpu" else "cuda")
    member = Member(Store(config["store"]), group)
    entry = entry_named(config["model"])
    settings = entry.settings(**config["settings"])
    model: Any = entry.build(settings, member.pairs(), generator_for(config["seed"], "initial values"))
    model.to(device)
    model.process_group = group
    store = RayCheckpointStore(group.rank, config["start"])
    _warm(model, config["warm"])
    watch = Stopwatch() if options.profile else None
    loop = Loop(
        model,
        settings,
        DistributedValidator(settings, member),
        store,
        seed=config["seed"],
        options=options,
        device=device,
        process_group=group,
        clock=watch or no_clock,
        progress=config["progress"] and group.rank == 0,
    )
    ready = time.time()
    try:
        loop.run(Board(), warm=config["warm"] is not None)
    except TrainingError as error:
        # The same in every worker, and the same again if it were tried again: so it is no failure of Ray's.
        return {"error": str(error)}
    facts = _facts(group, member, began, ready)
    return {"workers": facts, "profile": None if watch is None else watch.report()}


def _warm(model: Model, place: str | None) -> None:
    """Weights that another run has learnt, to start from."""
    if place is not None:
        with fetched(place) as folder:
            checkpoint.fill(model, checkpoint.load(folder / "start.safetensors")[0], folder)


def _facts(group: Group, member: Member, began: float, ready: float) -> list[dict[str, float]]:
    """Of every worker: what it held, took and sent."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own = {
        "node": int(get_runtime_context().get_node_id()[:12], 16),
        "pid": os.getpid(),
        "pairs": len(member.split.train),
        "peak_bytes": peak,
        "sent_bytes": sum(group.sent.values()),
        "began": began,
        "ready": ready,
        "ended": time.time(),
    }
    table = torch.zeros(group.size, len(own), dtype=torch.float64)
    table[group.rank] = torch.tensor(list(own.values()), dtype=torch.float64)
    return [dict(zip(own, row, strict=True)) for row in group.all_reduce(table).tolist()]


def model_of_some(model: Model, settings: Settings, member: Member) -> Model:
    """The model as the own users alone would have it: over the same memory, and numbered from 0."""
    build = entry_named(name_of(settings)).build
    alone = build(settings, member.split.train, torch.Generator())
    restrict(alone, model, member.users)
    return alone


def restrict(alone: Model, model: Model, users: Stretch) -> None:
    """Gives a model of some users the weights of the model of all, without copying them."""
    assert isinstance(alone, torch.nn.Module)  # noqa: S101 - all models that a process group trains are
    alone.load_state_dict(slice_of(model.state_dict(), alone, users), assign=True)


def slice_of(whole: dict[str, Tensor], alone: Model, users: Stretch) -> dict[str, Tensor]:
    """What of the weights of all a model of some users has."""
    return {
        # What has another length has a row a user.
        name: whole[name] if fresh.shape == whole[name].shape else whole[name][users.first : users.last]
        for name, fresh in alone.state_dict().items()
    }


class DistributedValidator:
    """The validation metric: the mean over the users of all workers."""

    def __init__(self, settings: Settings, member: Member) -> None:
        self.settings, self.member = settings, member
        self.alone: Model | None = None
        self.ranker: Ranker | None = None
        if len(member.split.validation):
            self.ranker = Ranker(
                member.split, "validation", drawn=lambda: member.store.candidates_of(member.users)
            )

    def __call__(self, model: Model) -> dict[str, float]:
        settings = self.settings
        if not self.member.store.meta["validation"] or not isinstance(settings, TrainingSettings):
            return {}
        sums = self.member.group.all_reduce(torch.tensor(self._sum_and_count(model), dtype=torch.float64))
        return {settings.validation_metric: float(sums[0] / sums[1])}

    def _sum_and_count(self, model: Model) -> tuple[float, float]:
        if self.ranker is None or not isinstance(self.settings, TrainingSettings):
            return 0.0, 0.0
        if self.alone is None:
            self.alone = model_of_some(model, self.settings, self.member)
        else:
            restrict(self.alone, model, self.member.users)
        protocol, name = parse_metric(self.settings.validation_metric)
        ranks = self.ranker.rank(self.alone.scorer(), protocol).ranks
        values = metrics.per_user(ranks, name)
        return float(np.nansum(values)), float(np.count_nonzero(~np.isnan(values)))

"""What every worker runs: the one loop, on its part of the data, in step with the others."""

import os
import resource
import time
from typing import Any

import torch
from ray import get_runtime_context

from hdccf import checkpoint
from hdccf.distributed.checkpoint_store import RayCheckpointStore
from hdccf.distributed.checkpoints import fetched
from hdccf.distributed.group import Group
from hdccf.distributed.members import Member
from hdccf.distributed.store import Store
from hdccf.distributed.validation import DistributedValidator
from hdccf.errors import TrainingError
from hdccf.models import entry_named
from hdccf.models.base import Model
from hdccf.recommend.run_folder import FitOptions
from hdccf.rng import generator_for
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

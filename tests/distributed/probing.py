"""One step of a model as one process takes it and as workers do: loss, terms and gradients to compare."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hdccf import checkpoint
from hdccf.config import FitOptions, Settings
from hdccf.data.interactions import Interactions
from hdccf.distributed import sharding as group_module
from hdccf.distributed.sharding import TorchProcessGroup, WorkerData
from hdccf.distributed.store import Store
from hdccf.distributed.worker import DistributedValidator
from hdccf.models import entry_named, name_of
from hdccf.models.factorization import BPR, PMF, SSM
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.models.neumf import NeuMF
from hdccf.models.svdpp import SVDpp
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.rng import generator_for
from hdccf.training.loop import Loop, Validator
from hdccf.training.state import CheckpointStore
from hdccf.training.telemetry import Board

_SMALL: dict[str, Any] = {"embedding_dim": 4, "init_std": 1.0}
_AGED: dict[str, Any] = {"recency_half_life": 3.0, "recency_floor": 0.1}
_BLOCK: dict[str, Any] = {
    **_SMALL,
    **_AGED,
    "user_vector": "free",
    "block_users": 7,
    "temperature": 0.4,
    "user_side": 0.7,
    "frequency_correction": 0.5,
    "count_power": 0.5,
}
_RELATIONS: dict[str, Any] = {
    "user_user_weight": 0.3,
    "item_item_weight": 0.2,
    "batch_size": 9,
    "neighbours": 3,
}
_DEBIASED: dict[str, Any] = {"omega_items": 0.05, "omega_users": 0.1}
_PAPER: dict[str, Any] = {**PRESETS["paper-in-batch"], **_SMALL, **_AGED, "batch_size": 9, "neighbours": 3}
_HISTORY: dict[str, Any] = {**_BLOCK, "user_vector": "history", "recency_half_life": None}
_ATTENTION: dict[str, Any] = {
    **_HISTORY,
    "history_encoder": "attention",
    "history_length": 4,
    "attention_heads": 2,
    "attention_layers": 2,
}
_PAIRS: dict[str, Any] = {**_SMALL, **_AGED, "batch_size": 9, "l2": 0.01}

CASES: dict[str, Settings] = {
    "block": HDCCF(**_BLOCK),
    "block, random start": HDCCF(**_BLOCK, start="random"),
    "block, debiased": HDCCF(**_BLOCK, **_DEBIASED),
    "block, some columns": HDCCF(**_BLOCK, **_DEBIASED, block_items=5),
    "block, relations": HDCCF(**_BLOCK, **_RELATIONS),
    "block, modulated": HDCCF(
        **_BLOCK, **_RELATIONS, **_DEBIASED, similarity="modulated", factors="separate", block_items=9
    ),
    "block, modulated, hidden": HDCCF(**_BLOCK, similarity="modulated", hidden=(3,)),
    "block, popular": HDCCF(**_BLOCK, similarity="popular", omega_items=0.05),
    "block, euclidean": HDCCF(**_BLOCK, **_DEBIASED, similarity="euclidean"),
    "block, cold": HDCCF(**{**_BLOCK, "temperature": 0.01, "similarity": "dot"}),
    "block, bpr": HDCCF(**_BLOCK, loss="bpr", similarity="dot"),
    "history": HDCCF(**_HISTORY),
    "history, all": HDCCF(**_HISTORY, **_RELATIONS, **_DEBIASED, block_items=9, history_table="own"),
    "history, modulated": HDCCF(**_HISTORY, **_RELATIONS, similarity="modulated", factors="separate"),
    "attention": HDCCF(**_ATTENTION),
    "attention, all": HDCCF(**_ATTENTION, **_RELATIONS, **_DEBIASED, block_items=9, attention_dropout=0.3),
    "pool": HDCCF(**{**_BLOCK, "user_side": 0.0}, sampler="pool", negatives=6),
    "pool, debiased": HDCCF(**{**_BLOCK, "user_side": 0.0}, omega_items=0.05, sampler="pool", negatives=6),
    "in-batch": HDCCF(**_PAPER),
    "in-batch, biased": HDCCF(**{**_PAPER, "mask_observed": False, "frequency_correction": 1.0}),
    "in-batch, cosine": HDCCF(**{**_PAPER, "similarity": "cosine", "factors": "shared"}),
    "in-batch, bpr": HDCCF(**{**_PAPER, "loss": "bpr", "similarity": "dot"}),
    "in-batch, pointwise": HDCCF(**{**_PAPER, "loss": "pointwise", "similarity": "dot"}),
    "uniform": HDCCF(**{**_PAPER, "sampler": "uniform", "negatives": 6, "frequency_correction": 0.5}),
    "pmf": PMF(**_PAIRS),
    "pmf, sigmoid": PMF(**_PAIRS, link="sigmoid"),
    "bpr": BPR(**_PAIRS),
    "bpr, sparse": BPR(**_PAIRS, sparse_updates=True),
    "bpr, popularity": BPR(**_PAIRS, sampler="popularity"),
    "bpr, in-batch": BPR(**_PAIRS, sampler="in-batch", negatives=3),
    "bpr, dynamic": BPR(**_PAIRS, sampler="dynamic"),
    "bpr, spectral": BPR(**_PAIRS, start="spectral"),
    "bpr, block": BPR(**{**_PAIRS, "l2": 0.0, "sampler": "block", "block_users": 7}),
    "ssm": SSM(**_PAIRS, negatives=5, sampler="uniform"),
    "ssm, corrected": SSM(**_PAIRS, negatives=5, sampler="popularity", correct_chances=True),
    "ssm, histories": SSM(
        **{**_SMALL, "l2": 0.0, "sampler": "block", "block_users": 7, "user_vector": "history"}
    ),
    "svdpp": SVDpp(**_PAIRS),
    "svdpp, fading": SVDpp(**_PAIRS, history_half_life=2.0),
    "neumf": NeuMF(**_PAIRS),
    "neumf, apart": NeuMF(**_PAIRS, pretrain_epochs=1),
    "neumf, gmf": NeuMF(**_PAIRS, branch="gmf"),
    "neumf, mlp": NeuMF(**_PAIRS, branch="mlp"),
}
_SHORT: dict[str, Any] = {"epochs": 3, "evaluate_every": 1, "embedding_dim": 4, "learning_rate": 0.05}
TRAININGS: dict[str, Settings] = {
    "hdccf": HDCCF(**_SHORT, block_users=10, user_side=0.5, omega_items=0.01),
    "hdccf, attention": HDCCF(**_SHORT, block_users=10, history_encoder="attention", attention_heads=2),
    "hdccf, paper": HDCCF(**{**PRESETS["paper"], **_SHORT, "batch_size": 64}),
    "hdccf, paper-in-batch": HDCCF(**{**PRESETS["paper-in-batch"], **_SHORT, "batch_size": 64}),
    "hdccf, full ranking": HDCCF(**_SHORT, block_users=10, validation_metric="full:ndcg@10"),
    "pmf": PMF(**_SHORT, batch_size=64),
    "bpr": BPR(**_SHORT, batch_size=64, sparse_updates=True),
    "ssm": SSM(**_SHORT, batch_size=64, negatives=8),
    "svdpp": SVDpp(**_SHORT, batch_size=64, history_half_life=3.0),
    "neumf": NeuMF(**_SHORT, batch_size=64, pretrain_epochs=1),
}
SEED = 3
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def steps(
    settings: Settings, train: Interactions, process_group: ProcessGroup
) -> Iterator[dict[str, Tensor]]:
    """Loss, terms and gradients of the first and the last batch of an epoch."""
    model: Any = entry_named(name_of(settings)).build(settings, train, generator_for(SEED, "initial values"))
    model.process_group = process_group
    batches = list(model.batches(generator_for(SEED, "epoch", 1)))
    for batch in (batches[0], batches[-1]):
        found: dict[str, Tensor] = {}
        for objective in model.objectives(batch, generator_for(SEED, "step", 1, 0)):
            parameters = model.groups[objective.group]
            for parameter in parameters:
                parameter.grad = None
            objective.loss.backward()
            process_group.all_reduce_gradients(parameters)
            named = {f"{objective.group}.{name}": value for name, value in objective.terms.items()}
            named[f"{objective.group}.loss"] = objective.loss.detach()
            found.update({name: process_group.all_reduce(value.double()) for name, value in named.items()})
            for number, parameter in enumerate(parameters):
                if parameter.grad is not None:
                    dense = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                    found[f"{objective.group}.gradient.{number}"] = dense.clone()
        yield found


def every_step(
    train: Interactions, process_group: ProcessGroup = SINGLE_PROCESS
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """All cases in both precisions."""
    for kind, dtype in DTYPES.items():
        torch.set_default_dtype(dtype)
        try:
            for name, settings in CASES.items():
                for number, found in enumerate(steps(settings, train, process_group)):
                    yield f"{name}, {kind}, {number}", found
        finally:
            torch.set_default_dtype(torch.float32)


def trained(
    settings: Settings,
    train: Interactions,
    validator: Validator,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> list[dict[str, Any]]:
    """What a short training logs, in float64: in float32 a rank may turn on the last bit."""
    log = _Log()
    torch.set_default_dtype(torch.float64)
    try:
        model: Any = entry_named(name_of(settings)).build(
            settings, train, generator_for(SEED, "initial values")
        )
        model.process_group = process_group
        options = FitOptions(checkpoint_epochs=100)
        loop = Loop(
            model,
            settings,
            validator,
            log,
            seed=SEED,
            options=options,
            device=torch.device("cpu"),
            process_group=process_group,
        )
        loop.run(Board())
    finally:
        torch.set_default_dtype(torch.float32)
    return [{**record, "seconds": 0, "chance": validator.chance} for record in log.records]


class _Log(CheckpointStore):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def log(self, record: dict[str, Any]) -> None:
        self.records.append(record)


def probe(config: dict[str, Any]) -> dict[str, Any]:
    """What a worker runs: all cases over its part of the store. The first one writes them down."""
    torch.set_num_threads(1)
    # Small tables go out by rows too, so that both ways are taken.
    group_module._LEAST_ROWS = config["least_rows"]
    group = TorchProcessGroup()
    data = WorkerData(Store(config["store"]), group)
    train = data.pairs()
    for name, found in every_step(train, group):
        if group.rank == 0:
            checkpoint.save(Path(config["out"]) / f"{name}.safetensors", found, {})
    logs = {
        name: trained(settings, train, DistributedValidator(settings, data), group)
        for name, settings in TRAININGS.items()
    }
    held = group.all_gather_int(len(data.split.train), "facts")
    return {"held": held, "sent": dict(group.sent), "logs": logs}

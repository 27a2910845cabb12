"""For tests of training: quick settings, a run that is cut off, and the comparison of two runs' folders."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hdccf import checkpoint
from hdccf.models.hdccf.settings import HDCCF
from hdccf.recommend.run_folder import RunFolder
from hdccf.training.optim import Stepper

KINDS: dict[str, dict[str, Any]] = {
    "history": {"user_vector": "history"},
    "attention": {
        "user_vector": "history",
        "history_encoder": "attention",
        "history_length": 6,
        "user_user_weight": 0.1,
    },
    "block": {"user_vector": "free", "user_user_weight": 0.1, "item_item_weight": 0.1},
    "nearest": {"user_vector": "free", "nearest": 3, "user_user_weight": 0.1, "item_item_weight": 0.1},
    "drawn-block": {"user_vector": "free", "block_items": 8, "recency_half_life": 4.0},
    "in-batch": {
        "sampler": "in-batch",
        "omega_items": 0.01,
        "user_user_weight": 0.1,
        "item_item_weight": 0.1,
    },
    "modulated": {"sampler": "in-batch", "similarity": "modulated", "factors": "separate", "batch_size": 128},
    "uniform": {"sampler": "uniform", "negatives": 4},
    "popular": {"user_vector": "free", "similarity": "popular"},
    "pool": {"sampler": "pool", "negatives": 8, "user_side": 0.0},
    "bpr": {"sampler": "in-batch", "loss": "bpr"},
    "sparse": {"sampler": "uniform", "negatives": 4, "sparse_updates": True},
    "adagrad": {"user_vector": "history", "optimizer": "adagrad", "learning_rate": 0.05},
    "sgd": {"user_vector": "free", "optimizer": "sgd", "learning_rate": 1.0},
    "adamw": {"user_vector": "free", "optimizer": "adamw", "weight_decay": 0.01},
    "cosine": {"user_vector": "free", "schedule": "cosine"},
    "averaged": {"user_vector": "history", "average_epochs": 0.5},
}
"""Every sampler, loss and optimizer at least once."""


def quick(kind: str = "history", **values: Any) -> HDCCF:
    """About four steps an epoch on `graphs.small_split`."""
    chosen: dict[str, Any] = {
        "embedding_dim": 4,
        "epochs": 3,
        "evaluate_every": 1,
        "patience": 10,
        "learning_rate": 0.02,
        "optimizer": "adam",
        "block_users": 10,
        "batch_size": 64,
        "calibrate": "off",
    }
    return HDCCF(**{**chosen, **KINDS[kind], **values})


class CutOff(BaseException):
    """What a test raises where a process would die: nothing may catch it."""


@contextmanager
def cut_off_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The step after so many is never taken."""
    taken, step = 0, Stepper.step

    def counted(self: Stepper, loss: Any) -> None:
        nonlocal taken
        if taken == steps:
            raise CutOff
        taken += 1
        step(self, loss)

    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "step", counted)
        with pytest.raises(CutOff):
            yield


def assert_same_runs(first: Path, second: Path) -> None:
    """Bit for bit, but for how long it took."""
    assert (first / "best.safetensors").read_bytes() == (second / "best.safetensors").read_bytes()
    tensors, facts = checkpoint.load(first / "checkpoint.safetensors")
    others, other_facts = checkpoint.load(second / "checkpoint.safetensors")
    assert tensors.keys() == others.keys()
    assert [name for name in tensors if not tensors[name].equal(others[name])] == []
    for found in (facts, other_facts):
        del found["state"]["seconds"]
    assert facts == other_facts
    lines, other_lines = (RunFolder.open(path).metrics() for path in (first, second))
    for record in (*lines, *other_lines):
        del record["seconds"]
    assert lines == other_lines


def give_weights(source: Path, target: Path) -> None:
    """Puts the weights of one run into another, as if that one had been trained to them."""
    run, tensors = RunFolder.open(target), checkpoint.load(source / "best.safetensors")[0]
    run.save_tensors(run.best, tensors, {"epoch": 1})

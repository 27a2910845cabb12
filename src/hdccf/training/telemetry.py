"""Telemetry of a training: TensorBoard curves, seconds by stage, and the false-negative rate."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from hdccf.data.batches import Block, InBatch, SampledBatch
from hdccf.data.interactions import Interactions
from hdccf.data.synthetic import World
from hdccf.errors import ConfigError
from hdccf.losses.diagnostics import false_negative_rates

STAGES = ("sampling", "scores and loss", "backward", "optimizer", "evaluation", "checkpoints")
OTHER = "other"

Clock = Callable[[str], AbstractContextManager[Any]]
"""Opened around each piece of a stage, by the stage's name; `nullcontext` measures nothing."""


class Stopwatch:
    """A clock that adds up each stage's seconds and counts its pieces."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.pieces = dict.fromkeys(STAGES, 0)
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
            self.pieces[stage] += 1

    def report(self) -> dict[str, Any]:
        """Seconds, share of the whole and number of pieces of each stage; `other` is what is in none."""
        total = time.perf_counter() - self._started
        seconds = {**self.seconds, OTHER: max(total - sum(self.seconds.values()), 0.0)}
        stages = {
            stage: {
                "seconds": round(taken, 4),
                "share": round(taken / total, 4),
                "pieces": self.pieces.get(stage),
            }
            for stage, taken in seconds.items()
        }
        return {"seconds": round(total, 4), "stages": stages}


def table(report: dict[str, Any]) -> str:
    """A report for people, the longest stage first."""
    lines = ["where the time went", f"{'':<20} {'seconds':>9} {'share':>7} {'pieces':>8} {'ms each':>9}"]
    stages = sorted(report["stages"].items(), key=lambda stage: -stage[1]["seconds"])
    for name, stage in stages:
        line = f"{name:<20} {stage['seconds']:>9.2f} {stage['share']:>7.1%}"
        if stage["pieces"]:
            line += f" {stage['pieces']:>8,} {1e3 * stage['seconds'] / stage['pieces']:>9.2f}"
        lines.append(line)
    return "\n".join([*lines, f"{'all':<20} {report['seconds']:>9.2f}"])


class Board:
    """Takes the records of metrics.jsonl and shows them as curves."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        curves = {"loss": record["loss"]}
        for group in ("terms", "validation", "diagnostics"):
            curves.update({f"{group}/{name}": value for name, value in record[group].items()})
        for name, value in curves.items():
            self._writer.add_scalar(name, value, record["epoch"])


def open_tensorboard(folder: Path | None) -> Board:
    """A board that writes into `folder`, or one that does nothing where there is none."""
    if folder is None:
        return Board()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as cause:
        raise ConfigError(
            "TensorBoard is not installed; install it with: pip install 'hdccf[tensorboard]'"
        ) from cause
    return Board(SummaryWriter(str(folder / "tensorboard")))


def false_negative_rate(world: World, train: Interactions) -> Callable[[Any, Any], dict[str, float]]:
    """A diagnosis for `fit` on data from `world`, which may have lost users and items in preparation."""
    world_users, world_items = world.codes_of(train)

    def diagnose(model: Any, batch: InBatch | SampledBatch | Block) -> dict[str, float]:
        with torch.no_grad():
            negatives = model.item_negatives(batch)
        if negatives is None:
            return {}
        users = world_users[batch.users.numpy()]
        if isinstance(batch, SampledBatch):
            items = world_items[batch.negative_items.numpy()]
            rows = np.broadcast_to(users[:, None], items.shape)
            liked = world.liked_pairs(rows.ravel(), items.ravel()).reshape(items.shape)
        else:
            columns = batch.item_negatives.columns if isinstance(batch, InBatch) else batch.columns
            items = world_items if columns is None else world_items[columns.numpy()]
            liked = world.liked(users, items)
        return false_negative_rates(negatives, torch.from_numpy(liked), model.settings.temperature)

    return diagnose

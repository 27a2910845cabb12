"""A process group's store: checkpoints go through Ray Train to its storage path, and come from there."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray import train
from torch import Tensor

from hdccf import checkpoint
from hdccf.distributed.checkpoints import BEST, METRICS, STATE, fetched, seal

Tensors = dict[str, Tensor]


class RayCheckpointStore:
    """The first member writes; every member takes part in every report, and reads when it starts."""

    def __init__(self, rank: int, start: str | None) -> None:
        """`start` is a checkpoint of an earlier call to go on from; Ray's own, of this call, come first."""
        self.rank, self._start = rank, start
        self._scratch = tempfile.TemporaryDirectory(prefix="hdccf-worker-")
        self._folder = Path(self._scratch.name)
        self._records: list[dict[str, Any]] = []
        self.location = self.best_location = "Ray's storage path"

    def load(self, device: torch.device) -> tuple[Tensors, dict[str, Any]] | None:
        reported = train.get_checkpoint()
        if reported is not None:
            with reported.as_directory() as folder:
                return self._read(Path(folder), device)
        if self._start is not None:
            with fetched(self._start) as local:
                return self._read(local, device)
        return None

    def _read(self, folder: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
        self.location = str(folder / STATE)
        if self.rank == 0:
            best, records = folder / BEST, folder / METRICS
            if best.exists():
                (self._folder / BEST).write_bytes(best.read_bytes())
            self._records = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
        return checkpoint.load(folder / STATE, device)

    def save(self, tensors: Tensors, facts: dict[str, Any]) -> None:
        state = facts["state"]
        shown = {"epoch": state["epoch"], "step": state["step"]}
        if self.rank != 0:
            train.report(shown, checkpoint=None)
            return
        checkpoint.save(self._folder / STATE, tensors, facts)
        lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in self._records)
        (self._folder / METRICS).write_text(lines, encoding="utf-8")
        # Epochs are many steps long: this orders checkpoints whatever an epoch's number of steps.
        seal(self._folder, state["epoch"] * 1_000_000_000 + state["step"])
        train.report(shown, checkpoint=train.Checkpoint.from_directory(str(self._folder)))

    def save_best(self, tensors: Tensors, epoch: int) -> None:
        if self.rank == 0:
            checkpoint.save(self._folder / BEST, tensors, {"epoch": epoch})

    def load_best(self, device: torch.device) -> Tensors | None:
        best = self._folder / BEST
        return checkpoint.load(best, device)[0] if best.exists() else None

    def log(self, record: dict[str, Any]) -> None:
        self._records.append(record)

    def truncate_log(self, epoch: int) -> None:
        self._records = [record for record in self._records if record["epoch"] <= epoch]

    def raise_interrupted(self, epoch: int, step: int) -> None:
        raise KeyboardInterrupt

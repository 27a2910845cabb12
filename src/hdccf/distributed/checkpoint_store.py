"""Checkpoints of a distributed run: written through Ray Train, found and fetched from any Arrow file system.

A checkpoint is a folder with the tensors, the best weights, the metrics so far, and `parts.json`, which has
the size of each: one that was interrupted lacks something, and is skipped.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pyarrow import fs
from ray import train
from torch import Tensor

from hdccf import checkpoint
from hdccf.distributed.store import file_system_of
from hdccf.files import write_json
from hdccf.training.state import CheckpointStore

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
    steps: dict[str, int] = {}
    for name in sizes:
        if name.endswith(f"/{PARTS}"):
            step = _step_if_whole(system, name, sizes)
            if step is not None:
                steps[name.removesuffix(f"/{PARTS}")] = step
    if not steps:
        return None
    best = max(steps, key=lambda name: (steps[name], name))
    # File systems leave out the scheme of an address.
    return best if "://" not in path else path.rstrip("/") + best.removeprefix(folder.rstrip("/"))


def _step_if_whole(system: fs.FileSystem, name: str, sizes: dict[str, int]) -> int | None:
    try:
        with system.open_input_stream(name) as file:
            parts = json.loads(file.read())
        folder = name.removesuffix(PARTS)
        whole = all(sizes.get(f"{folder}{part}") == size for part, size in parts["sizes"].items())
        return int(parts["step"]) if whole else None
    except (ValueError, KeyError, TypeError):
        return None


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

    def __init__(self, rank: int, start: str | None) -> None:
        """`start` is a checkpoint of an earlier call to resume from, unless Ray has one of this call."""
        self.rank, self._start = rank, start
        self._scratch = tempfile.TemporaryDirectory(prefix="hdccf-worker-")
        self._folder = Path(self._scratch.name)
        self._records: list[dict[str, Any]] = []
        self.location = "Ray's storage path"

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

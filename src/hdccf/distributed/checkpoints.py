"""Checkpoints in a folder of any file system that Arrow knows, and which of them are whole.

A checkpoint is a folder with the tensors, the best weights, the metrics so far, and `parts.json`, which has
the size of each: one that a kill cut short lacks something, and is passed over.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from hdccf.distributed.store import place_of
from hdccf.files import write_json

PARTS = "parts.json"
STATE, BEST, METRICS = "checkpoint.safetensors", "best.safetensors", "metrics.jsonl"


def seal(folder: Path, step: int) -> None:
    """Notes what is in a folder, for `newest` to compare with."""
    (folder / PARTS).unlink(missing_ok=True)
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    write_json(folder / PARTS, {"step": step, "sizes": sizes})


def newest(path: str) -> str | None:
    """The whole checkpoint with the most steps in a folder, however deep; none where there is none."""
    system, folder = place_of(path)
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
    return best if "://" not in path else _with_scheme(path, folder, best)


def _step_if_whole(system: fs.FileSystem, name: str, sizes: dict[str, int]) -> int | None:
    try:
        with system.open_input_stream(name) as file:
            parts = json.loads(file.read())
        folder = name.removesuffix(PARTS)
        whole = all(sizes.get(f"{folder}{part}") == size for part, size in parts["sizes"].items())
        return int(parts["step"]) if whole else None
    except (ValueError, KeyError, TypeError):
        return None


def _with_scheme(path: str, folder: str, found: str) -> str:
    """An address again: file systems answer with paths of their own."""
    return path.rstrip("/") + found.removeprefix(folder.rstrip("/"))


@contextmanager
def fetched(path: str) -> Iterator[Path]:
    """A checkpoint's folder as a local one."""
    system, folder = place_of(path)
    if isinstance(system, fs.LocalFileSystem):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="hdccf-checkpoint-") as local:
        fs.copy_files(folder, local, source_filesystem=system)
        yield Path(local)

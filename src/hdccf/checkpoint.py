"""Tensors and facts in one file, written all or nothing, read without executing anything.

The file is safetensors; what is not a tensor (counters, the best metric so far) is JSON in its header, so
that one rename makes both current.
"""

import errno
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hdccf.errors import RunError
from hdccf.files import atomic_file

FORMAT_VERSION = 1
_HEADER = "hdccf"


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes `path` anew; where that fails what was there before is still there."""
    # A copy each: safetensors refuses two names for one memory.
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    about = {"version": FORMAT_VERSION, "facts": facts, "sha256": _checksum(own)}
    # One entry, as safetensors writes several in an order of its own: equal content gives equal files.
    header = {_HEADER: json.dumps(about, allow_nan=False)}
    with explained(path), atomic_file(path) as temporary:
        save_file(own, temporary, metadata=header)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns a failure to write `path` into a sentence that says what is left and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as cause:
        # Where not even the run's folder could be made there is nothing to resume.
        begun = path.exists() or any((folder / "run.json").exists() for folder in path.parents)
        remedy = "resume" if begun else "train again"
        if getattr(cause, "errno", None) == errno.ENOSPC or "No space left" in str(cause):
            kept = f"; the last good one is still {path}" if path.exists() else ""
            raise RunError(
                f"the disk is full, so {path.name} could not be written{kept}: make room and {remedy}"
            ) from cause
        raise RunError(f"{path} could not be written ({cause}); check the folder and {remedy}") from cause


def load(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError as cause:
        raise RunError(f"{path} does not exist; give the folder of a run that has been trained") from cause
    except (OSError, SafetensorError) as cause:
        raise RunError(
            f"{path} is damaged ({cause}); train again, or resume from another checkpoint"
        ) from cause
    try:
        about = json.loads(header[_HEADER])
        version, facts, checksum = about["version"], about["facts"], about.get("sha256")
    except (KeyError, TypeError, ValueError) as cause:
        raise RunError(f"{path} is not a checkpoint of hdccf; give the folder of a run") from cause
    if version != FORMAT_VERSION:
        raise RunError(f"{path} has format version {version}; this hdccf reads {FORMAT_VERSION}: train again")
    if _checksum({name: tensor.cpu() for name, tensor in tensors.items()}) != checksum:
        raise RunError(f"{path} is damaged: its tensors are not those that were written; train again")
    return tensors, facts


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype};".encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(model: Any, tensors: dict[str, Tensor], path: Path) -> None:
    """Gives a model the weights that were read from `path`."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError as cause:
        raise RunError(f"{path} has the weights of another model or other data; train again") from cause


class Stateful(Protocol):
    """An optimizer, of torch's or ours."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def pack_optimizer(optimizer: Stateful, prefix: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors and numbers."""
    tensors, numbers = {}, {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"{prefix}.{index}.{key}"
            if isinstance(value, Tensor):
                tensors[name] = value
            elif value is not None:
                numbers[name] = value
    return tensors, numbers


def unpack_optimizer(
    optimizer: Stateful, prefix: str, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Puts a packed state back; learning rates and the like stay as the settings made them."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **numbers}.items():
        if name.startswith(f"{prefix}."):
            index, key = name.removeprefix(f"{prefix}.").split(".", 1)
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**whole, "state": state})

"""Where tensors live and who computes: the device by its name, batches on their way to it, and threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hdccf.errors import ConfigError


def device_named(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as cause:
        raise ConfigError(f"device={name!r} is not to be had on this machine; take cpu") from cause
    return device


def moved(value: Any, device: torch.device) -> Any:
    """A batch's tensors on the device that computes; batches are (nested) tuples of them."""
    if device.type == "cpu" or value is None:
        return value
    if isinstance(value, Tensor):
        return value.to(device)
    return type(value)(*(moved(part, device) for part in value)) if isinstance(value, tuple) else value


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Operations within are shared among no more threads than this."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)

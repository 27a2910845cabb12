"""Who computes a step together. One process is a process group of one, and then none of this does anything.

Every member has all parameters, sees the same batch and has the same generator. Of a batch's rows each takes
a stretch, and computes its *share* of every loss: the shares of all add up to the loss of the whole batch.
What needs the others' rows as well, as a column's sum does, goes through the process group, with gradients.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn


@runtime_checkable
class ProcessGroup(Protocol):
    """What a step asks of those who compute it together; all members ask the same, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def rows(self, n: int) -> slice:
        """Which of n rows are this member's."""
        ...

    def log_sum_exp(self, own: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """log Σ e^own over the members, element by element, with gradients; −inf adds nothing."""
        ...

    def all_gather(self, own: Float[Tensor, "own *rest"], n: int) -> Float[Tensor, "n *rest"]:
        """The n rows of which each member has those that `rows` says, with gradients."""
        ...

    def all_reduce(self, own: Tensor) -> Tensor:
        """The sum over the members, element by element, without gradients."""
        ...

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds up the members' gradients: all have then the gradient of the whole batch's loss."""
        ...


class SingleProcess:
    """A process group of one."""

    rank = 0
    size = 1

    def rows(self, n: int) -> slice:
        return slice(0, n)

    def log_sum_exp(self, own: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return own

    def all_gather(self, own: Float[Tensor, "own *rest"], n: int) -> Float[Tensor, "n *rest"]:
        return own

    def all_reduce(self, own: Tensor) -> Tensor:
        return own

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        pass


SINGLE_PROCESS: ProcessGroup = SingleProcess()


def processors() -> int:
    """How many processors this process may really use: by its affinity and its control group's quota."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        # Version 2 of control groups: "max 100000", or the microseconds of every period.
        quota, period = QUOTA.read_text(encoding="ascii").split()
        usable = min(usable, max(1, int(quota) // int(period)))
    return usable


QUOTA = Path("/sys/fs/cgroup/cpu.max")

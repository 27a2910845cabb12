"""A process group whose members are torch.distributed's processes: gloo on processors, NCCL on graphics cards.

Everything that goes out is counted, as payload: what a member hands over, not what the backend makes of it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hdccf.distributed.gradients import all_reduce_gradients


class _Sum(torch.autograd.Function):
    """Σ over the members. Each one's loss takes the sum, so that gradients add up as well.

    torch.distributed.nn has the same, and warns that it is going to be removed.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: "Group") -> Tensor:
        ctx.group = group
        return group.all_reduce(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(grad), None


class Group:
    """The members of the default process group, which must have been started."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sent: Counter[str] = Counter()
        """Bytes that this member has handed over, by what for."""

    def rows(self, n: int) -> slice:
        return slice(self.rank * n // self.size, (self.rank + 1) * n // self.size)

    def log_sum_exp(self, own: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        if self.size == 1:
            return own
        largest = self._reduced(own.detach().clone(), dist.ReduceOp.MAX, "sums")
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        terms: Tensor = _Sum.apply((own - largest).exp(), self)  # type: ignore[no-untyped-call]
        # log 0 has an infinite slope, which times the zero of an empty sum is not a number.
        present = terms > 0
        return torch.where(present, torch.where(present, terms, 1.0).log() + largest, -torch.inf)

    def all_gather(self, own: Float[Tensor, "own *rest"], n: int) -> Float[Tensor, "n *rest"]:
        """By adding up tables that are zero but for a member's own rows: that has a gradient."""
        if self.size == 1:
            return own
        rows = self.rows(n)
        before, after = (
            own.new_zeros(rows.start, *own.shape[1:]),
            own.new_zeros(n - rows.stop, *own.shape[1:]),
        )
        whole: Tensor = _Sum.apply(torch.cat([before, own, after]), self)  # type: ignore[no-untyped-call]
        return whole

    def all_reduce(self, own: Tensor) -> Tensor:
        return own if self.size == 1 else self._reduced(own.detach().clone(), dist.ReduceOp.SUM, "sums")

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.size > 1:
            all_reduce_gradients(self, parameters)

    # -- what a graph and gradients ask ----------------------------------------------------------------------

    def reduced(self, own: Tensor, purpose: str) -> Tensor:
        """The sum over the members in the place of `own`."""
        return own if self.size == 1 else self._reduced(own, dist.ReduceOp.SUM, purpose)

    def lists(self, own: Tensor, purpose: str, lengths: Sequence[int] | None = None) -> list[Tensor]:
        """Every member's tensor; they may differ in their first dimension.

        Whoever knows the lengths saves asking for them: an exchange costs more than its bytes.
        """
        if self.size == 1:
            return [own]
        if lengths is None:
            lengths = self.everyone(len(own), purpose)
        padded = own.new_zeros(max(lengths), *own.shape[1:])
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in lengths]
        self._count(padded, purpose)
        dist.all_gather(found, padded)
        return [each[:length] for each, length in zip(found, lengths, strict=True)]

    def everyone(self, number: int, purpose: str) -> list[int]:
        """A number of every member."""
        return self.numbers(torch.tensor([number]), purpose)[:, 0].tolist()

    def numbers(self, own: Int64[Tensor, " n"], purpose: str) -> Int64[Tensor, "size n"]:
        """A row of whole numbers of every member, of equal lengths."""
        table = own.new_zeros(self.size, len(own))
        table[self.rank] = own
        return self.reduced(table, purpose)

    def _reduced(self, own: Tensor, how: Any, purpose: str) -> Tensor:
        own = own.contiguous()
        self._count(own, purpose)
        dist.all_reduce(own, how)
        return own

    def _count(self, tensor: Tensor, purpose: str) -> None:
        self.sent[purpose] += tensor.numel() * tensor.element_size()

"""A torch.distributed process group: sums, gathers and gradients (gloo on CPUs, NCCL on GPUs).

Bytes sent are counted as payload, before the backend. A step touches few rows of a large table: then the rows
are sent with their numbers, not the table, and every process adds them in the same order, so that replicas
stay equal to the last bit.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Sum(torch.autograd.Function):
    """Σ over the processes. Each one's loss takes the sum, so that gradients add up as well.

    torch.distributed.nn has the same, and warns that it is going to be removed.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: "TorchProcessGroup") -> Tensor:
        ctx.group = group
        return group.all_reduce(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(grad), None


class TorchProcessGroup:
    """The processes of the default process group, which must have been started."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sent: Counter[str] = Counter()
        """Bytes sent by this process, by purpose."""

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
        """A sum of tables that are zero but for a process's own rows, which has a gradient."""
        if self.size == 1:
            return own
        rows = self.rows(n)
        before, after = (own.new_zeros(size, *own.shape[1:]) for size in (rows.start, n - rows.stop))
        whole: Tensor = _Sum.apply(torch.cat([before, own, after]), self)  # type: ignore[no-untyped-call]
        return whole

    def all_reduce(self, own: Tensor) -> Tensor:
        return own if self.size == 1 else self._reduced(own.detach().clone(), dist.ReduceOp.SUM, "sums")

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.size > 1:
            all_reduce_gradients(self, parameters)

    def all_reduce_in_place(self, own: Tensor, purpose: str) -> Tensor:
        """The sum over the processes, in the memory of `own`."""
        return own if self.size == 1 else self._reduced(own, dist.ReduceOp.SUM, purpose)

    def all_gather_ragged(
        self, own: Tensor, purpose: str, lengths: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Every process's tensor; they may differ in their first dimension.

        Pass known `lengths` to save an exchange: it costs more than its bytes.
        """
        if self.size == 1:
            return [own]
        if lengths is None:
            lengths = self.all_gather_int(len(own), purpose)
        padded = own.new_zeros(max(lengths), *own.shape[1:])
        padded[: len(own)] = own
        found = [torch.empty_like(padded) for _ in lengths]
        self._count(padded, purpose)
        dist.all_gather(found, padded)
        return [each[:length] for each, length in zip(found, lengths, strict=True)]

    def all_gather_int(self, number: int, purpose: str) -> list[int]:
        """A number of every process."""
        return self.all_gather_ints(torch.tensor([number]), purpose)[:, 0].tolist()

    def all_gather_ints(self, own: Int64[Tensor, " n"], purpose: str) -> Int64[Tensor, "size n"]:
        """A row of whole numbers of every process, of equal lengths."""
        table = own.new_zeros(self.size, len(own))
        table[self.rank] = own
        return self.all_reduce_in_place(table, purpose)

    def _reduced(self, own: Tensor, how: Any, purpose: str) -> Tensor:
        own = own.contiguous()
        self._count(own, purpose)
        dist.all_reduce(own, how)
        return own

    def _count(self, tensor: Tensor, purpose: str) -> None:
        self.sent[purpose] += tensor.numel() * tensor.element_size()


# -- gradients -----------------------------------------------------------------------------------------------

_NONE = -1
_LEAST_ROWS = 1024
"""A table of fewer rows is sent whole: finding touched rows would cost more than it saves."""
_WORTH_COPYING = 1 << 20
"""Numbers, four megabytes: copying so many takes about as long as an exchange takes to begin."""


def all_reduce_gradients(group: TorchProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Gives every parameter the sum of the processes' gradients; none where no process has one."""
    touched: list[Tensor | None] = []
    sent = []
    for parameter in parameters:
        gradient, rows = parameter.grad, None
        if gradient is not None and gradient.layout != torch.sparse_coo and _is_table(gradient):
            rows = gradient.ne(0).any(1).nonzero().squeeze(1)
        touched.append(rows)
        # How many rows would go out; all, where rows are not looked at.
        sent.append(_NONE if gradient is None else gradient.shape[:1].numel() if rows is None else len(rows))
    sizes = group.all_gather_ints(torch.tensor(sent), "gradients")
    whole = []
    for parameter, rows, counts in zip(parameters, touched, sizes.T.tolist(), strict=True):
        if max(counts) == _NONE:
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        if gradient.layout == torch.sparse_coo:
            gradient = _sparse_sum(group, gradient)
        elif _rows_are_less(parameter, max(counts), group.size):
            gradient = _sum_of_rows(group, gradient, rows, [max(count, 0) for count in counts])
        elif parameter.numel() > _WORTH_COPYING:
            gradient = group.all_reduce_in_place(gradient, "gradients")
        else:
            whole.append(parameter)
        parameter.grad = gradient
    # Small gradients in one exchange: copying them together costs less than several. By type, as a group may
    # have parameters of several.
    for kind in dict.fromkeys(parameter.dtype for parameter in whole):
        alike = [parameter for parameter in whole if parameter.dtype == kind]
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in alike if parameter.grad is not None])
        flat = group.all_reduce_in_place(flat, "gradients")
        parts = torch.split(flat, [parameter.numel() for parameter in alike])
        for parameter, part in zip(alike, parts, strict=True):
            parameter.grad = part.view(parameter.shape)


def _is_table(gradient: Tensor) -> bool:
    return gradient.ndim == 2 and len(gradient) >= _LEAST_ROWS


def _rows_are_less(parameter: nn.Parameter, most: int, size: int) -> bool:
    """A row is sent to all, with its number; of a whole table each process sends about twice the size."""
    if not _is_table(parameter):
        return False
    row = parameter.shape[1] * parameter.element_size()
    return most * size * (row + 8) < 2 * len(parameter) * row


def _sum_of_rows(
    group: TorchProcessGroup, gradient: Tensor, rows: Tensor | None, lengths: list[int]
) -> Tensor:
    """The rows of each process in turn; or, where processes touch the same rows, a sum over their union."""
    rows = torch.zeros(0, dtype=torch.int64, device=gradient.device) if rows is None else rows
    numbers = group.all_gather_ragged(rows, "gradients", lengths)
    union = torch.unique(torch.cat(numbers))
    total = torch.zeros_like(gradient)
    if 2 * len(union) <= group.size * max(map(len, numbers)):
        total[union] = group.all_reduce_in_place(gradient[union], "gradients")
        return total
    values = group.all_gather_ragged(gradient[rows], "gradients", lengths)
    for which, part in zip(numbers, values, strict=True):
        total.index_add_(0, which, part)
    return total


def _sparse_sum(group: TorchProcessGroup, gradient: Tensor) -> Tensor:
    own = gradient.coalesce()
    lengths = group.all_gather_int(own._nnz(), "gradients")
    numbers = torch.cat(group.all_gather_ragged(own.indices()[0], "gradients", lengths))
    values = torch.cat(group.all_gather_ragged(own.values(), "gradients", lengths))
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), values, gradient.shape, check_invariants=False
    ).coalesce()

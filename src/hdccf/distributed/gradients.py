"""Gradients of all members added up, by whichever way has fewer bytes.

A step touches few rows of a large table: then the rows go out with their numbers, and not the table. Every
member adds the others' rows in the same order, so that replicas stay alike to the last bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from hdccf.distributed.group import Group

_NONE = -1
_LEAST_ROWS = 1024
"""A table of fewer rows goes out whole: looking for touched ones would cost more than it saves."""
_WORTH_COPYING = 1 << 20
"""Numbers, four megabytes: copying so many takes about as long as an exchange takes to begin."""


def all_reduce_gradients(group: "Group", parameters: Sequence[nn.Parameter]) -> None:
    """Gives every parameter the sum of the members' gradients; none where no member has one."""
    touched = [_touched_rows(parameter.grad) for parameter in parameters]
    own = torch.tensor([_size(p.grad, rows) for p, rows in zip(parameters, touched, strict=True)])
    sizes = group.numbers(own, "gradients")
    whole = []
    for parameter, rows, counts in zip(parameters, touched, sizes.T.tolist(), strict=True):
        if max(counts) == _NONE:
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        if gradient.layout == torch.sparse_coo:
            parameter.grad = _sparse_sum(group, gradient)
        elif _rows_are_less(parameter, max(counts), group.size):
            parameter.grad = _sum_of_rows(group, gradient, rows, [max(count, 0) for count in counts])
        else:
            parameter.grad = gradient
            whole.append(parameter)
    _sum_whole(group, whole)


def _sum_whole(group: "Group", parameters: Sequence[nn.Parameter]) -> None:
    """Whole gradients in one exchange, as long as copying them together costs less than another one."""
    small = [parameter for parameter in parameters if parameter.numel() <= _WORTH_COPYING]
    for parameter in parameters:
        if parameter.numel() > _WORTH_COPYING and parameter.grad is not None:
            parameter.grad = group.reduced(parameter.grad, "gradients")
    # By type, as a group may have parameters of several.
    for kind in dict.fromkeys(parameter.dtype for parameter in small):
        alike = [parameter for parameter in small if parameter.dtype == kind]
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in alike if parameter.grad is not None])
        parts = torch.split(group.reduced(flat, "gradients"), [parameter.numel() for parameter in alike])
        for parameter, part in zip(alike, parts, strict=True):
            parameter.grad = part.view(parameter.shape)


def _touched_rows(gradient: Tensor | None) -> Tensor | None:
    if gradient is None or gradient.layout == torch.sparse_coo or not _is_table(gradient):
        return None
    return gradient.ne(0).any(1).nonzero().squeeze(1)


def _is_table(gradient: Tensor) -> bool:
    return gradient.ndim == 2 and len(gradient) >= _LEAST_ROWS


def _size(gradient: Tensor | None, rows: Tensor | None) -> int:
    """How many rows would go out; all, where rows are not looked at."""
    if gradient is None:
        return _NONE
    return len(gradient) if rows is None and gradient.ndim else 1 if rows is None else len(rows)


def _rows_are_less(parameter: nn.Parameter, most: int, size: int) -> bool:
    """A row costs its number too, and goes to all; of a table everybody sends about twice the whole."""
    if not _is_table(parameter):
        return False
    row = parameter.shape[1] * parameter.element_size()
    return most * size * (row + 8) < 2 * parameter.numel() * parameter.element_size()


def _sum_of_rows(group: "Group", gradient: Tensor, rows: Tensor | None, lengths: list[int]) -> Tensor:
    """Everybody's rows one after the other; or, where members touch the same ones, those of any added up."""
    rows = torch.zeros(0, dtype=torch.int64, device=gradient.device) if rows is None else rows
    numbers = group.lists(rows, "gradients", lengths)
    union = torch.unique(torch.cat(numbers))
    total = torch.zeros_like(gradient)
    if 2 * len(union) <= group.size * max(map(len, numbers)):
        total[union] = group.reduced(gradient[union], "gradients")
        return total
    values = group.lists(gradient[rows], "gradients", lengths)
    for which, part in zip(numbers, values, strict=True):
        total.index_add_(0, which, part)
    return total


def _sparse_sum(group: "Group", gradient: Tensor) -> Tensor:
    own = gradient.coalesce()
    lengths = group.everyone(own._nnz(), "gradients")
    numbers = torch.cat(group.lists(own.indices()[0], "gradients", lengths))
    values = torch.cat(group.lists(own.values(), "gradients", lengths))
    return torch.sparse_coo_tensor(
        numbers.unsqueeze(0), values, gradient.shape, check_invariants=False
    ).coalesce()

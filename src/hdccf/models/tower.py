"""NeuMF's perceptron over the pairs of a batch: its gradient by hand, and shared among threads.

torch shares each operation by itself, and these are too small for that: two threads took as long as one. Here
each thread takes a part of the batch's users from the look-up to the logits, and from their gradient back.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from hdccf.pairwise_workers import share

threshold_backward = torch.ops.aten.threshold_backward
embedding_backward = torch.ops.aten.embedding_dense_backward


class Layers(NamedTuple):
    """h·relu(W₂ relu(W_p p + W_q q + b₁) + b₂) + b."""

    user_weight: Float[Tensor, "w e"]
    item_weight: Float[Tensor, "w e"]
    first_bias: Float[Tensor, " w"]
    second_weight: Float[Tensor, "f w"]
    second_bias: Float[Tensor, " f"]
    head: Float[Tensor, " f"]
    bias: Float[Tensor, ""]


def tower_logits(
    of_users: Float[Tensor, "m e"],
    of_items: Float[Tensor, "n e"],
    layers: Layers,
    users: Int64[Tensor, " b"],
    columns: Int64[Tensor, "b c"],
) -> Float[Tensor, "b c"]:
    """The logit of each user with the items of its columns."""
    logits: Tensor = _Tower.apply(users, columns.contiguous(), of_users, of_items, *layers)  # type: ignore[no-untyped-call]
    return logits


class _Part(NamedTuple):
    """Some users of a batch, what they and their columns looked up, and both layers."""

    rows: slice
    p: Tensor
    q: Tensor
    first: Tensor
    second: Tensor


class _Tower(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, users: Tensor, columns: Tensor, of_users: Tensor, of_items: Tensor, *layers: Tensor
    ) -> Tensor:
        logits, net = of_users.new_empty(columns.shape), Layers(*layers)

        def work(some: Sequence[slice]) -> list[_Part]:
            parts = [_forward(rows, users, columns, of_users, of_items, net) for rows in some]
            for part in parts:
                logits[part.rows] = (part.second @ net.head + net.bias).view(-1, columns.shape[1])
            return parts

        threads = torch.get_num_threads()
        ctx.parts = [part for found in share(work, _slices(len(users), threads), threads) for part in found]
        ctx.save_for_backward(users, columns, of_users, of_items, *layers)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        users, columns, of_users, of_items, *layers = ctx.saved_tensors
        net, grad = Layers(*layers), grad.contiguous()
        of_p, of_q = (of_users.new_empty(index.numel(), of_users.shape[1]) for index in (users, columns))

        def work(some: Sequence[_Part]) -> list[list[Tensor]]:
            return [_backward(part, grad[part.rows], net, of_p, of_q) for part in some]

        threads = len(ctx.parts)
        found = [gradients for of_thread in share(work, ctx.parts, threads) for gradients in of_thread]
        of_layers, *others = found
        for gradients in others:
            for total, gradient in zip(of_layers, gradients, strict=True):
                total.add_(gradient)
        tables = [(of_p, users, of_users), (of_q, columns.flatten(), of_items)]

        def scatter(some: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Tensor]:
            return [embedding_backward(rows, index, len(table), -1, False) for rows, index, table in some]

        scattered = [table for of_thread in share(scatter, tables, threads) for table in of_thread]
        return None, None, *scattered, *of_layers


def _slices(n: int, threads: int) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(n * thread // threads for thread in range(threads + 1)) if b > a]


def _forward(
    rows: slice, users: Tensor, columns: Tensor, of_users: Tensor, of_items: Tensor, net: Layers
) -> _Part:
    p, q = of_users.index_select(0, users[rows]), of_items.index_select(0, columns[rows].flatten())
    first = torch.mm(q, net.item_weight.T)
    first.view(len(p), -1, len(net.first_bias)).add_(
        torch.addmm(net.first_bias, p, net.user_weight.T).unsqueeze(1)
    )
    first.relu_()
    return _Part(rows, p, q, first, torch.addmm(net.second_bias, first, net.second_weight.T).relu_())


def _backward(part: _Part, grad: Tensor, net: Layers, of_p: Tensor, of_q: Tensor) -> list[Tensor]:
    """Writes the gradients of its rows of p and q, and gives those of the layers."""
    flat, columns = grad.flatten(), grad.shape[1]
    of_second = threshold_backward(torch.outer(flat, net.head), part.second, 0)
    of_first = threshold_backward(torch.mm(of_second, net.second_weight), part.first, 0)
    of_user = of_first.view(len(part.p), columns, -1).sum(1)
    start, stop = part.rows.start, part.rows.stop
    torch.mm(of_user, net.user_weight, out=of_p[start:stop])
    torch.mm(of_first, net.item_weight, out=of_q[start * columns : stop * columns])
    return list(
        Layers(
            user_weight=of_user.T @ part.p,
            item_weight=of_first.T @ part.q,
            first_bias=of_user.sum(0),
            second_weight=of_second.T @ part.first,
            second_bias=of_second.sum(0),
            head=part.second.T @ flat,
            bias=flat.sum(),
        )
    )

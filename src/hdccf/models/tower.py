"""NeuMF's perceptron over the pairs of a batch, compiled: its gradient by hand, and shared among threads.

torch shares each operation by itself, and these are too small for that: two threads took as long as one. Here
each thread takes a part of the batch's users from the look-up to the logits, and from their gradient back.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hdccf.kernels.sparse_gradients import arrays, gradient_of_rows
from hdccf.kernels.threads import share

Where = tuple[int, int]
"""The first of some users of a batch and the one after the last."""


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
) -> tuple[Float[Tensor, "b c"], Float[Tensor, ""]]:
    """The logit of each user with the items of its columns, and the sum of squares of what was looked up."""
    given = users.contiguous(), columns.contiguous(), of_users, of_items
    logits, squares = _Tower.apply(*given, *layers)  # type: ignore[no-untyped-call]
    return logits, squares


class _Tower(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, users: Tensor, columns: Tensor, of_users: Tensor, of_items: Tensor, *layers: Tensor
    ) -> tuple[Tensor, Tensor]:
        kernels = _kernels()
        net, logits = Layers(*layers), of_users.new_empty(columns.shape)
        n, rows = _up(len(users), kernels.ROWS), _up(len(users), kernels.ROWS) * columns.shape[1]
        wide, factors = (_up(len(bias), kernels.COLUMNS) for bias in (net.first_bias, net.second_bias))
        dim = _up(of_users.shape[1], kernels.COLUMNS)
        shapes = (n, dim), (rows, dim), (rows, wide), (rows, factors)
        ctx.kept = [of_users.new_empty(shape) for shape in shapes]
        weights = [_padded(x) for x in (net.user_weight, net.item_weight, net.second_weight)]
        vectors = [_padded(x) for x in (net.first_bias, net.second_bias, net.head)]
        looked_up = arrays(of_users, of_items, users, columns)
        layout = arrays(*weights), arrays(*vectors), float(net.bias), arrays(*ctx.kept), logits.numpy()

        def work(some: Sequence[Where]) -> float:
            return math.fsum(kernels.forward(*looked_up, where, *layout) for where in some)

        threads = torch.get_num_threads()
        ctx.parts = _parts(n, kernels.ROWS, threads)
        total = sum(share(work, ctx.parts, threads))
        ctx.save_for_backward(users, columns, of_users, of_items, *layers)
        ctx.set_materialize_grads(False)  # a sum of squares that nobody asks for costs no gradient
        return logits, of_users.new_tensor(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logits: Tensor | None, of_squares: Tensor | None) -> tuple[Tensor | None, ...]:
        kernels = _kernels()
        users, columns, of_users, of_items, *layers = ctx.saved_tensors
        net = Layers(*layers)
        slopes = of_users.new_zeros(columns.shape) if of_logits is None else of_logits.contiguous()
        pull = 0.0 if of_squares is None else float(of_squares)
        weights = [_padded(x) for x in (net.user_weight, net.item_weight, net.second_weight)]
        of_p, of_q = (torch.empty_like(x) for x in ctx.kept[:2])
        wide, factors, dim = (x.shape[1] for x in (*ctx.kept[2:], of_p))
        shapes = (wide, dim), (wide, dim), (factors, wide), (wide,), (factors,), (factors,)
        head, of_rows = _padded(net.head).numpy(), arrays(of_p, of_q)
        given = arrays(*weights), head, arrays(*ctx.kept), slopes.numpy(), pull

        def work(some: Sequence[Where]) -> list[Tensor]:
            found = [slopes.new_zeros(shape) for shape in shapes]
            for where in some:
                kernels.backward(where, *given, arrays(*found[:3]), arrays(*found[3:]), of_rows)
            return found

        first, *others = share(work, ctx.parts, len(ctx.parts))
        for found in others:
            for total, gradient in zip(first, found, strict=True):
                total.add_(gradient)
        of_layers = Layers(first[0], first[1], first[3], first[2], first[4], first[5], slopes.sum())
        return (
            *(None, None),
            gradient_of_rows(users, _cut(of_p, (len(users), of_users.shape[1])), of_users),
            gradient_of_rows(columns.flatten(), _cut(of_q, (columns.numel(), of_items.shape[1])), of_items),
            *(_cut(gradient, layer.shape) for gradient, layer in zip(of_layers, net, strict=True)),
        )


def _kernels() -> Any:
    return import_module("hdccf.kernels.tower_numba")  # not at the top: numba takes half a second to import


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _parts(n: int, rows: int, threads: int) -> list[Where]:
    """Whole groups of users, about as many for each thread."""
    bounds = [n // rows * thread // threads * rows for thread in range(threads + 1)]
    return [(a, b) for a, b in pairwise(bounds) if b > a]


def _padded(x: Tensor) -> Tensor:
    """Filled up with zeros, along every dimension, to a whole number of a product's columns."""
    more = [_up(size, _kernels().COLUMNS) - size for size in x.shape]
    x = x.detach()
    return functional.pad(x, [0, more[1], 0, more[0]] if x.dim() == 2 else [0, more[0]]) if any(more) else x


def _cut(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x if x.shape == shape else x[tuple(slice(size) for size in shape)].contiguous()

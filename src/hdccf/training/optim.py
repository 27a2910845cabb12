"""Optimizers by name: one Adam for dense gradients, one for the rows that a step touched."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer
from torch.optim.adam import adam

from hdccf.config import TrainingSettings
from hdccf.kernels.embedding import arrays, is_compiled
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.training.telemetry import Clock


class Rule(Protocol):
    """What moves parameters by their gradients; of torch's optimizers that much is asked."""

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Moments:
    """What Adam's rules remember of their parameters, by place, as a checkpoint keeps it."""

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr = list(parameters), lr
        self.state: dict[int, dict[str, Tensor]] = {}

    def _state_of(self, index: int) -> dict[str, Tensor]:
        if index not in self.state:
            parameter = self.parameters[index]
            self.state[index] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        return self.state[index]

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = {}
        for index, kept in state_dict["state"].items():
            for name, tensor in self._state_of(index).items():
                tensor.copy_(kept[name])


class FusedAdam(Moments):
    """torch's fused Adam, one pass over each table, without its optimizer class.

    The class imports torch's compiler at its first step: seconds of every training (decision 25). With a
    decoupled decay it is AdamW. A parameter without a gradient stays.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, *, decoupled: bool
    ) -> None:
        super().__init__(parameters, lr)
        self.weight_decay, self.decoupled = weight_decay, decoupled

    @torch.no_grad()
    def step(self) -> None:
        with_gradient = [
            (parameter, parameter.grad, self._state_of(index))
            for index, parameter in enumerate(self.parameters)
            if parameter.grad is not None
        ]
        if not with_gradient:
            return
        parameters, gradients, states = zip(*with_gradient, strict=True)
        adam(
            list(parameters),
            list(gradients),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            decoupled_weight_decay=self.decoupled,
            amsgrad=False,
            beta1=self.BETAS[0],
            beta2=self.BETAS[1],
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=self.EPSILON,
            maximize=False,
        )


class RowAdam(Moments):
    """What `torch.optim.SparseAdam` does, over sparse gradients.

    That class imports torch's compiler at its first step, sorts the rows, and makes a sparse tensor of every
    intermediate result; here a row's moments are read once and written once (decision 25).
    """

    @torch.no_grad()
    def step(self) -> None:
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                state = self._state_of(index)
                state["step"] += 1
                move = self._move_compiled if is_compiled(parameter) else self._move
                move(parameter, parameter.grad, state)

    def _length(self, state: dict[str, Tensor]) -> float:
        (first, second), steps = self.BETAS, int(state["step"])
        return self.lr * math.sqrt(1 - second**steps) / (1 - first**steps)

    def _move(self, table: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        """As written: the oracle of the compiled one, and what there is without numba or on a GPU."""
        first, second = self.BETAS
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        mean = state["exp_avg"][rows].lerp_(values, 1 - first)
        square = state["exp_avg_sq"][rows].lerp_(values.square(), 1 - second)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        table.index_add_(0, rows, mean / (square.sqrt() + self.EPSILON), alpha=-self._length(state))

    def _move_compiled(self, table: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        from hdccf.kernels import embedding_numba  # not at the top: numba takes half a second to import

        first, second = self.BETAS
        rates = 1 - first, second, 1 - second, self._length(state), self.EPSILON
        moments = state["exp_avg"], state["exp_avg_sq"]
        index, values = gradient._indices()[0].contiguous(), gradient._values().contiguous()
        # The last place of each row in the index, and the place before each.
        last, before = (torch.empty(n, dtype=torch.int32) for n in (len(gradient), len(index)))
        embedding_numba.link_rows(*arrays(index, last, before))
        embedding_numba.adam_some(*arrays(table, *moments, index, last, before, values), rates)  # type: ignore[call-arg]


OPTIMIZERS: dict[str, Callable[..., Rule]] = {
    "adam": partial(FusedAdam, decoupled=False),
    "adamw": partial(FusedAdam, decoupled=True),
    "adagrad": Adagrad,
    "sgd": SGD,
}


class Stepper:
    """Takes steps with one group of parameters.

    With sparse updates a parameter whose gradient names the rows it touched has the others, and their
    moments, left alone: SGD and Adagrad do so by themselves, for Adam's rules RowAdam does. A parameter
    with a whole gradient goes through the ordinary rule.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        settings: TrainingSettings,
        clock: Clock = nullcontext,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.parameters = list(parameters)
        self.clock = clock
        self.process_group = process_group
        self.rate = settings.learning_rate
        rule = OPTIMIZERS[settings.optimizer]
        self.optimizers: dict[str, Rule] = {
            "dense": rule(self.parameters, lr=self.rate, weight_decay=settings.weight_decay)
        }
        self.sparse = settings.sparse_updates
        if self.sparse and settings.optimizer in ("adam", "adamw"):
            self.optimizers["sparse"] = RowAdam(self.parameters, lr=self.rate)

    def set_lr_factor(self, share: float) -> None:
        """Steps from here on are this share of the settings' learning rate."""
        for rule in self.optimizers.values():
            if isinstance(rule, Moments):
                rule.lr = share * self.rate
            elif isinstance(rule, Optimizer):
                for group in rule.param_groups:
                    group["lr"] = share * self.rate

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        with self.clock("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
            for parameter in self.parameters if not self.sparse else ():
                # Gradients of looked-up rows as whole tables, which all rules but the sparse ones take.
                if parameter.grad is not None and parameter.grad.layout == torch.sparse_coo:
                    parameter.grad = parameter.grad.to_dense()
            if self.process_group.size > 1:
                self.process_group.all_reduce_gradients(self.parameters)
        # The rules make sparse tensors of valid ones' indices; torch warns until told not to check.
        unchecked = torch.sparse.check_sparse_tensor_invariants(False)  # type: ignore[no-untyped-call]
        with self.clock("optimizer"), unchecked:
            self._step()

    def _step(self) -> None:
        if "sparse" not in self.optimizers:
            self.optimizers["dense"].step()
            return
        gradients = [(parameter, parameter.grad) for parameter in self.parameters]
        for kind, optimizer in self.optimizers.items():
            # An optimizer passes over parameters without a gradient: each sees only its own kind.
            for parameter, gradient in gradients:
                is_sparse = gradient is not None and gradient.layout == torch.sparse_coo
                parameter.grad = gradient if is_sparse == (kind == "sparse") else None
            optimizer.step()


_UPDATES = 256
"""Of an average in the time that it looks back: more cost more and change nothing."""
_RECENT = 4
"""At the beginning an average looks back over about this fraction, a quarter, of the steps so far."""


class MovingAverage:
    """An exponential moving average of weights over the last steps (Polyak averaging).

    As long as training is young it looks back less far (polynomial-decay averaging, Shamir and Zhang, 2013):
    a mean of all steps would have the first weights in it, and make a fast start look slow.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], steps: float) -> None:
        self.parameters, self.steps = list(parameters), steps
        self.every = max(1, round(steps / _UPDATES))
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after a step; the first is step 1."""
        if step % self.every == 0:
            share = max(self.every / self.steps, _RECENT * self.every / step)
            for average, parameter in zip(self.averages, self.parameters, strict=True):
                average.lerp_(parameter, min(1.0, share))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages within."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)

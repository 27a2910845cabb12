"""The rules of the steps, by name, for one group of parameters."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from hdccf.config import TrainingSettings
from hdccf.parallel import SINGLE_PROCESS, ProcessGroup
from hdccf.training.adam import FusedAdam, Moments
from hdccf.training.profiling import Clock, no_clock
from hdccf.training.row_adam import RowAdam


class Rule(Protocol):
    """What moves parameters by their gradients; of torch's optimizers that much is asked."""

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


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
        clock: Clock = no_clock,
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
            if not self.sparse:
                self._make_whole()
            self.process_group.all_reduce_gradients(self.parameters)
        with self.clock("optimizer"):
            if self.sparse:
                # The rules make sparse tensors of valid ones' indices; torch warns until told not to check.
                with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                    self._step()
            else:
                self._step()

    def _make_whole(self) -> None:
        """Gradients that name their rows, where only Adam and one alone read them as what they mean.

        Other rules would leave the other rows alone, and members may differ in what pays for their part.
        """
        if self.process_group.size == 1 and isinstance(self.optimizers["dense"], FusedAdam):
            return
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.layout == torch.sparse_coo:
                parameter.grad = parameter.grad.to_dense()

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

"""The rules of the steps, by name, for one group of parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from hdccf.config import TrainingSettings
from hdccf.profiling import Clock, no_clock

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "sgd": SGD,
}


class Stepper:
    """Takes steps with one group of parameters.

    With sparse updates a parameter whose gradient names the rows it touched has the others, and their
    moments, left alone: SGD and Adagrad do so by themselves, for Adam's rules SparseAdam does. A parameter
    with a whole gradient goes through the ordinary rule.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], settings: TrainingSettings, clock: Clock = no_clock
    ) -> None:
        self.parameters = list(parameters)
        self.clock = clock
        options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
        if settings.optimizer in ("adam", "adamw") and not settings.sparse_updates:
            options["fused"] = True  # one pass over each table instead of a dozen
        self.optimizers = {"dense": OPTIMIZERS[settings.optimizer](self.parameters, **options)}
        if settings.sparse_updates and settings.optimizer in ("adam", "adamw"):
            self.optimizers["sparse"] = SparseAdam(self.parameters, lr=settings.learning_rate)

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        with self.clock("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        # The rules make sparse tensors of valid ones' indices; torch warns until told not to check them.
        with self.clock("optimizer"), torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
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

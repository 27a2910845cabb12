"""The rules of the steps, by name, for one group of parameters."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, SparseAdam
from torch.optim.adam import adam

from hdccf.config import TrainingSettings
from hdccf.profiling import Clock, no_clock
from hdccf.team import ALONE

ShareGradients = Callable[[Sequence[nn.Parameter]], None]
"""What makes of a member's gradients those of its team."""


class Rule(Protocol):
    """What moves parameters by their gradients; of torch's optimizers that much is asked."""

    def step(self) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class FusedAdam:
    """torch's own fused Adam, one pass over each table instead of a dozen, without its optimizer class.

    The class imports torch's compiler at its first step: seconds of every training (decision 126).
    Where the decay is decoupled it is AdamW. A parameter without a gradient stays.
    """

    BETAS, EPSILON = (0.9, 0.999), 1e-8

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, *, decoupled: bool
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.weight_decay, self.decoupled = lr, weight_decay, decoupled
        self.state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        parameters: list[Tensor] = []
        gradients: list[Tensor] = []
        states: list[dict[str, Tensor]] = []
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                parameters.append(parameter)
                gradients.append(parameter.grad)
                states.append(self._state_of(index))
        adam(
            parameters,
            gradients,
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


OPTIMIZERS: dict[str, Callable[..., Rule]] = {
    "adam": partial(FusedAdam, decoupled=False),
    "adamw": partial(FusedAdam, decoupled=True),
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
        self,
        parameters: Iterable[nn.Parameter],
        settings: TrainingSettings,
        clock: Clock = no_clock,
        share_gradients: ShareGradients = ALONE.share_gradients,
    ) -> None:
        self.parameters = list(parameters)
        self.clock = clock
        self.share_gradients = share_gradients
        rule = OPTIMIZERS[settings.optimizer]
        self.optimizers: dict[str, Rule] = {
            "dense": rule(self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        }
        self.sparse = settings.sparse_updates
        if self.sparse and settings.optimizer in ("adam", "adamw"):
            self.optimizers["sparse"] = SparseAdam(self.parameters, lr=settings.learning_rate)

    def step(self, loss: Tensor) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        with self.clock("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
            self.share_gradients(self.parameters)
        with self.clock("optimizer"):
            if self.sparse:
                # The rules make sparse tensors of valid ones' indices; torch warns until told not to check.
                with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                    self._step()
            else:
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

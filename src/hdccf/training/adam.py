"""Adam over all numbers of its parameters, without torch's optimizer class, and without whole gradients."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from hdccf.kernels.sparse_gradients import arrays, is_compiled
from hdccf.kernels.threads import share

_Given = tuple[Tensor, Tensor, dict[str, Tensor]]
"""A parameter, its gradient and its moments."""

_WORTH_SHARING = 1 << 20
"""Numbers of the tables from which a second thread gains more than waking it takes."""


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
    """torch's own fused Adam, one pass over each table instead of a dozen, without its optimizer class.

    The class imports torch's compiler at its first step: seconds of every training (decision 25).
    Where the decay is decoupled it is AdamW. A parameter without a gradient stays. Where a gradient names the
    rows that have one, the others have zero, and move on by their moments as ever (decision 25).
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float, *, decoupled: bool
    ) -> None:
        super().__init__(parameters, lr)
        self.weight_decay, self.decoupled = weight_decay, decoupled

    @torch.no_grad()
    def step(self) -> None:
        whole: list[_Given] = []
        of_rows: list[_Given] = []
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                by_rows = parameter.grad.layout == torch.sparse_coo and is_compiled(parameter)
                gradient = parameter.grad if by_rows else parameter.grad.to_dense()
                (of_rows if by_rows else whole).append((parameter, gradient, self._state_of(index)))
        if whole:
            self._step_whole(*zip(*whole, strict=True))
        if of_rows:
            self._step_rows([self._laid_out(*each) for each in of_rows])

    def _step_whole(
        self, parameters: Sequence[Tensor], gradients: Sequence[Tensor], states: Sequence[dict[str, Tensor]]
    ) -> None:
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

    def _laid_out(self, table: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> tuple[Any, ...]:
        """What the compiled loop takes, but for which rows."""
        _, *chained = chained_rows(gradient)
        state["step"] += 1
        moments = state["exp_avg"], state["exp_avg_sq"]
        return *arrays(table, *moments, *chained), self._rates(float(state["step"]))

    def _rates(self, step: float) -> tuple[float, ...]:
        first, second = self.BETAS
        of_mean, of_root = 1 - first**step, (1 - second**step) ** 0.5
        decay, remains = (
            (0.0, 1 - self.lr * self.weight_decay) if self.decoupled else (self.weight_decay, 1.0)
        )
        moments = 1 - first, second, 1 - second
        return *moments, self.lr * of_root / of_mean, self.EPSILON * of_root, decay, remains

    def _step_rows(self, tables: Sequence[tuple[Any, ...]]) -> None:
        adam_rows = kernels().adam_rows
        threads = torch.get_num_threads() if sum(table[0].size for table in tables) >= _WORTH_SHARING else 1

        def work(some: Sequence[int]) -> None:
            for thread in some:
                for *given, rates in tables:
                    rows = len(given[0])
                    adam_rows(*given, rows * thread // threads, rows * (thread + 1) // threads, rates)

        share(work, range(threads), threads)


def chained_rows(gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a gradient that names its rows: which, the last place of each, the places before, and values."""
    index, values = gradient._indices()[0].contiguous(), gradient._values().contiguous()
    last, before = (torch.empty(n, dtype=torch.int32) for n in (len(gradient), len(index)))
    kernels().link_rows(*arrays(index, last, before))
    return index, last, before, values


def kernels() -> Any:
    return import_module("hdccf.kernels.adam_numba")  # not at the top: numba takes half a second to import

"""Adam for tables of which a step touches few rows: the others, and their moments, are left alone."""

import math

import torch
from torch import Tensor

from hdccf.kernels.sparse_gradients import arrays, is_compiled
from hdccf.training.adam import Moments, chained_rows, kernels


class RowAdam(Moments):
    """What `torch.optim.SparseAdam` does, over gradients that name their rows.

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
        first, second = self.BETAS
        rates = 1 - first, second, 1 - second, self._length(state), self.EPSILON
        moments = state["exp_avg"], state["exp_avg_sq"]
        kernels().adam_some(*arrays(table, *moments, *chained_rows(gradient)), rates)

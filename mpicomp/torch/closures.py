"""Leave out a step that evaluates a closure, in whichever evaluation the gradients turn out to be left out."""

from __future__ import annotations

from copy import deepcopy

import torch


class LeftOut(Exception):
    """Ends the wrapped optimizer's step, since gradients were left out; ``loss`` is the mean loss over all ranks."""

    def __init__(self, loss: torch.Tensor) -> None:
        super().__init__(loss)
        self.loss = loss


class Kept:
    """A copy of an optimizer's parameters and state: LBFGS changes both between the evaluations of one step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [(parameter, parameter.detach().clone())
                            for group in optimizer.param_groups for parameter in group["params"]]
        self._state = {parameter: deepcopy(state) for parameter, state in optimizer.state.items()}

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, value in self._parameters:
            parameter.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

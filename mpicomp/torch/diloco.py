"""``DiLoCo`` of PyTorch models: workers train alone, and average how far they went."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ..comm.comm import Comm
from ..comm.job import Intracomm
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..optim import diloco
from ..optim.fragments import State
from ..schemes.registry import Scheme
from .broadcast import broadcast_parameters, check_alike, describe
from .flat import COMPUTE, Named
from .refusals import check_parameters, trainable
from .tensor_states import with_arrays, with_tensors


class TorchParameters:
    """The trainable parameters of a model, for ``mpicomp.optim.DiLoCo``; half precision is computed in float32."""

    def __init__(self, named: Named) -> None:
        self._named = dict(named)
        self.names = list(self._named)

    def read(self, name: str) -> np.ndarray:
        parameter = self._named[name].detach()
        values: np.ndarray = parameter.to("cpu", COMPUTE[parameter.dtype]).contiguous().numpy()
        return values

    @torch.no_grad()
    def write(self, name: str, values: np.ndarray) -> None:
        self._named[name].copy_(torch.from_numpy(np.asarray(values)))  # NumPy computes scalars from 0-d arrays

    def holds(self, name: str, values: np.ndarray) -> bool:
        parameter = self._named[name].detach()
        return torch.equal(parameter.cpu(), torch.from_numpy(np.asarray(values)).to(parameter.dtype))


class DiLoCo(diloco.DiLoCo):
    """Low-communication training: every so many inner steps, average how far the workers went.

    After each ``inner_optimizer.step()`` call ``diloco.step()``, equally often on every rank. Inner steps, gradient
    scalers, closures and learning-rate schedules are plain PyTorch. Buffers and frozen parameters are rank 0's at
    first, and each rank's own afterwards.

    Parameters
    ----------
    model : torch.nn.Module
    inner_optimizer : torch.optim.Optimizer
        Must have all parameters that require gradients.
    comm, every, scheme, fragments, delay, outer_lr, outer_momentum, merge, nonfinite
        As in ``mpicomp.optim.DiLoCo``.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: models that differ, parameters that the optimizer lacks, settings out of range or that differ.

    Examples
    --------
    >>> import torch
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> from mpicomp.torch import DiLoCo
    >>> model = torch.nn.Linear(2, 1)
    >>> inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> diloco = DiLoCo(model, inner, mpicomp.Comm(MPI.COMM_SELF), every=10)
    >>> for _ in range(30):
    ...     inner.zero_grad()
    ...     model(torch.ones(4, 2)).pow(2).mean().backward()
    ...     inner.step()
    ...     diloco.step()
    >>> diloco.steps
    30
    >>> diloco.close()
    """

    def __init__(self, model: torch.nn.Module, inner_optimizer: torch.optim.Optimizer, comm: Intracomm,
                 every: int = 30, scheme: str | Scheme = "dense", *, fragments: int = 1, delay: int = 0,
                 outer_lr: float = 0.7, outer_momentum: float = 0.9, merge: float | None = None,
                 nonfinite: str = "raise") -> None:
        own = Comm(comm)
        try:
            named: Named = run_collectively(own, lambda: _checked(model, inner_optimizer))
            check_alike(own, [describe(name, parameter) for name, parameter in named])
            broadcast_parameters(model.state_dict(), own)
            super().__init__(TorchParameters(named), own, every, scheme, fragments=fragments, delay=delay,
                             outer_lr=outer_lr, outer_momentum=outer_momentum, merge=merge, nonfinite=nonfinite)
        finally:
            own.Free()

    def step(self, closure: object = None) -> None:
        """Count an inner step; begin and end the exchanges that are due (collective if there are any).

        Raises
        ------
        InvalidArgument
            A closure was given.
        NonFiniteGradient
            On every rank, with ``nonfinite="raise"``: a worker's difference holds NaN or infinity.
        """
        if closure is not None:
            raise InvalidArgument("step() of DiLoCo takes no closure: pass it to the inner optimizer's step(closure), "
                                  "and then call step()")
        super().step()

    def state_dict(self) -> State:
        """The outer state; tensors take the place of arrays, as ``torch.load`` reads them without unpickling.

        Every rank saves its own, with those of its model and its inner optimizer. Waits for the exchanges in flight
        and saves their means.
        """
        return with_tensors(super().state_dict())

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective); load model and inner optimizer, too.

        Raises
        ------
        InvalidArgument
            On every rank: the state is of other settings, of another model, rank or number of ranks.
        Disagreement
            On every rank: the ranks' states are of different steps.
        """
        super().load_state_dict(run_collectively(self.comm, lambda: with_arrays(state)))


def _checked(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Named:
    """The model's trainable parameters; refuse those that cannot be averaged or that the optimizer lacks."""
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument("DiLoCo needs a torch.nn.Module and its torch.optim.Optimizer, got "
                              f"{type(model).__name__} and {type(optimizer).__name__}")
    named = trainable(model.named_parameters())
    check_parameters(optimizer, named)
    return named

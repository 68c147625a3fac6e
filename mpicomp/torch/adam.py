"""1-bit Adam and 0/1 Adam as PyTorch optimizers, which exchange compressed momenta in ``step``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from ..comm.comm import Comm
from ..comm.job import Intracomm
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..ops.device import ready
from ..optim import communicating
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from ..types import Array
from .broadcast import broadcast_parameters
from .flat import about_sparse, as_array, finished
from .optimizer import Uncopied
from .tensor_states import with_arrays, with_tensors

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

Loss = TypeVar("Loss")
DTYPES = (torch.float32, torch.float64)
DEVICES = ("cpu", "cuda")
ALLOWED = {"params", "lr", "initial_lr", "param_names"}  # all that groups may differ in; schedulers need the third


class _CommunicatingAdam(Uncopied, torch.optim.Optimizer):
    """Base of both.

    Each rank calls ``backward()`` as if it were alone, and ``step()`` on every rank exchanges and updates.
    Learning-rate schedulers and ``torch.amp.GradScaler`` work as usual; an overflow of a scaler on any rank is a
    gradient that is not finite, and with ``nonfinite="skip"`` all ranks leave out the step.

    Parameters
    ----------
    params : iterable of parameters, or of groups
        Contiguous, float32 or float64. Groups may differ in ``lr`` alone.
    comm : Comm or MPI.Intracomm
        Duplicated.
    lr, betas, eps, weight_decay
        As of ``torch.optim.AdamW``; weight decay is decoupled.
    scheme, gradient_scheme, algorithm, nonfinite
        As in ``mpicomp.optim``.
    broadcast : bool
        Begin with rank 0's parameters.
    **options
        Further ones of the optimizer in ``mpicomp.optim``, such as ``warmup``.
    """

    kind: ClassVar[type[communicating.CommunicatingAdam]]
    _step_supports_amp_scaling = True  # a scaler leaves it to step() what to do about an overflow

    def __init__(self, params: ParamsT, comm: Intracomm, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0.0, *, scheme: str | Scheme = communicating.ONE_BIT,
                 gradient_scheme: str | Scheme = "dense", algorithm: str = "auto", nonfinite: str = "raise",
                 broadcast: bool = True, **options: int) -> None:
        self.comm = own = Comm(comm)
        try:
            beta1, beta2 = run_collectively(own, lambda: self._take(params, lr, betas))
            own.agree(f"{type(self).__name__} broadcast={broadcast}")
            if broadcast:
                broadcast_parameters(self._named(), own)
            self.exchange = self.kind(own, self._views(), scheme=scheme, gradient_scheme=gradient_scheme,
                                      algorithm=algorithm, nonfinite=nonfinite, beta1=beta1, beta2=beta2, eps=eps,
                                      weight_decay=weight_decay, **options)
        except Exception:  # of any class: raised on all ranks, so that all free it
            own.Free()
            raise

    def _take(self, params: ParamsT, lr: float, betas: tuple[float, float]) -> tuple[float, float]:
        """Check what this rank passes; return ``betas``."""
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            if extra := sorted(set(group) - ALLOWED):
                raise InvalidArgument(f"parameter groups may differ in lr alone, got {', '.join(extra)}: give it to "
                                      f"{type(self).__name__} for all parameters")
        self._check_layout()
        self._views()  # on a GPU needs CuPy
        try:
            beta1, beta2 = betas
        except (TypeError, ValueError):
            raise InvalidArgument(f"betas must be two numbers, such as (0.9, 0.999), got {betas!r}") from None
        return beta1, beta2

    def _check_layout(self) -> None:
        for name, parameter in self._named():
            if parameter.device.type not in DEVICES:
                raise InvalidArgument(f"parameters must be on {' or '.join(DEVICES)}, got {name} on "
                                      f"{parameter.device}: move the model first, from meta by to_empty()")
            if parameter.dtype not in DTYPES or not parameter.is_contiguous():
                raise InvalidArgument(f"parameters must be contiguous and float32 or float64, got {name} of "
                                      f"{parameter.dtype} with strides {parameter.stride()}: use autocast, which keeps "
                                      "parameters in float32")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "exchange"):
            raise InvalidArgument("parameters cannot be added: give all of them when the optimizer is made")
        super().add_param_group(param_group)

    @property
    def reducers(self) -> dict[str, Reducer]:
        """The reducers of gradients and momenta, for ``stats`` and ``mpicomp.checkpoint``."""
        return self.exchange.reducers

    @torch.no_grad()
    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """Exchange and update (collective)."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.exchange.step(self._gradients, self._rates)
        ready(next(iter(self.exchange.parameters.values())))  # PyTorch's streams do not wait for CuPy's
        return loss

    def _rates(self) -> dict[str, float]:
        """The learning rate of each parameter; zero of a frozen one, which does not move."""
        rates = (group["lr"] for group in self.param_groups for _ in group["params"])
        return {name: float(rate) if parameter.requires_grad else 0.0
                for (name, parameter), rate in zip(self._named(), rates, strict=True)}

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        return [(f"parameter {i}", parameter) for i, parameter in enumerate(parameters)]

    def _views(self) -> dict[str, Array]:
        return {name: _view(parameter) for name, parameter in self._named()}

    def _gradients(self) -> dict[str, Array]:
        """This rank's gradients, zero if there is none; unscaled. Parameters may have been given other memory."""
        self._check_layout()
        self.exchange.parameters = self._views()
        scale = getattr(self, "grad_scale", None)
        gradients: dict[str, Array] = {}
        for name, parameter in self._named():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if gradient.layout != torch.strided:
                raise InvalidArgument(about_sparse(name))
            if scale is not None:
                gradient = gradient / scale.to(gradient.device)
            gradients[name] = _view(gradient.contiguous())
        return gradients

    def state_dict(self) -> dict[str, Any]:
        """Learning rates, and under ``exchange`` this rank's moments and error memories: every rank saves its own."""
        return {**super().state_dict(), "exchange": with_tensors(self.exchange.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of another optimizer, model or scheme.
        Disagreement
            On every rank: the ranks' states are of different steps.

        Nothing is changed then.
        """
        before = super().state_dict()
        try:
            self.exchange.load_state_dict(run_collectively(self.comm, lambda: self._load(state_dict)))
        except Exception:
            super().load_state_dict(before)
            raise

    def _load(self, state_dict: object) -> dict[str, object]:
        """Load the learning rates; return the state of ``exchange``."""
        own = dict(state_dict) if isinstance(state_dict, Mapping) else {}
        saved = own.pop("exchange", None)
        if not isinstance(saved, dict):
            raise InvalidArgument(f"the state must be of {type(self).__name__}, with 'exchange' in it, got "
                                  f"{', '.join(own) or 'nothing'}")
        try:
            super().load_state_dict(own)
        except (ValueError, KeyError) as error:
            raise InvalidArgument(f"the optimizer does not take the saved state: {error}") from error
        return with_arrays(saved)

    def close(self) -> None:
        """Free the communicator (collective)."""
        self.comm.Free()


class OneBitAdam(_CommunicatingAdam):
    __doc__ = f"""1-bit Adam: exact gradients for ``warmup`` steps, then one bit per element of the momentum.

    See :class:`mpicomp.optim.OneBitAdam` for algorithm and options.
    {(_CommunicatingAdam.__doc__ or "").removeprefix("Base of both.")}"""
    kind = communicating.OneBitAdam


class ZeroOneAdam(_CommunicatingAdam):
    __doc__ = f"""0/1 Adam: exact gradients ever more rarely, momenta by one bit per element, and later local steps.

    See :class:`mpicomp.optim.ZeroOneAdam` for algorithm and options.
    {(_CommunicatingAdam.__doc__ or "").removeprefix("Base of both.")}"""
    kind = communicating.ZeroOneAdam


def _view(tensor: torch.Tensor) -> Array:
    """A contiguous tensor's memory as an array of its shape."""
    finished(tensor)
    return as_array(tensor.detach().view(-1)).reshape(tuple(tensor.shape))

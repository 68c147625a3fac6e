"""``DistributedOptimizer``: any torch optimizer, on gradients that are the ranks' mean when backward returns."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, cast

import torch

from ..comm.job import Intracomm
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..reducer.reducer import Reducer, load_states
from ..schemes.compatibility import warn
from ..schemes.registry import Scheme
from .broadcast import broadcast_optimizer_state, broadcast_parameters, check_alike, describe
from .closures import Kept, LeftOut
from .drift import compared, disagreement
from .exchange import Alone, Exchange, sends_all
from .lanes import Lanes
from .refusals import check_graph, check_momentum
from .settings import Options, Settings, settle
from .tensor_states import with_arrays, with_tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

Loss = torch.Tensor | float  # of a closure
# Left out: a scaler goes on to the next backward, or, if the optimizer is fused, calls step() first.
FRESH, RUNNING, DONE, LEFT_OUT = "fresh", "running", "done", "left out"
UNSTEPPED = (
    "A backward() whose gradients this optimizer does not use (a generator's loss through the discriminator) goes into "
    "`with optimizer.no_sync():` of this optimizer"
)


class State(TypedDict):
    """States of reducers, one per bucket."""

    layout: list[list[str]]  # names by bucket
    states: list[dict[str, object]]


class OfInner:
    """An attribute of the wrapped optimizer, read, set and deleted there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, wrapper: DistributedOptimizer | None, owner: type | None = None) -> object:
        return self if wrapper is None else getattr(wrapper.optimizer, self._name)

    def __set__(self, wrapper: DistributedOptimizer, value: object) -> None:
        setattr(wrapper.optimizer, self._name, value)

    def __delete__(self, wrapper: DistributedOptimizer) -> None:
        delattr(wrapper.optimizer, self._name)


class Uncopied:
    """Base of optimizers with communicators, which ``copy`` and ``pickle`` cannot duplicate."""

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgument(f"{type(self).__name__} holds communicators and cannot be copied or pickled: take its "
                              "state_dict(), and load_state_dict() of another one")


class DistributedOptimizer(Uncopied, torch.optim.Optimizer):
    """Optimizer wrapper that averages gradients over all ranks, by any scheme, during ``loss.backward()``.

    Buckets of gradients are exchanged during backward, in the same order on all ranks. The rest is plain PyTorch:
    clip the mean (``clip_grad_norm_``), then ``step()``. Learning-rate schedulers take this object. Construction,
    backward outside ``no_sync``, ``load_state_dict`` and ``close`` are collective.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    named_parameters : iterable of (str, Parameter), or of Parameter
        ``model.named_parameters()``; with ``model.parameters()`` numbers are the names. Those that require gradients
        must be the optimizer's; names, shapes and dtypes must be the same on all ranks.
    comm : Comm or MPI.Intracomm
        Duplicated.
    scheme : str or Scheme
    bucket_bytes : int, optional
        Size of a bucket, in bytes of gradients; by default a sixth of the model, within 128 KiB and 25 MiB. A scheme
        with ``layers=whole`` selects in each bucket; a bucket as large as the model makes that the whole model.
    overlap : bool
        Exchange while backward goes on, if MPI gives MPI_THREAD_MULTIPLE; the results are the same without.
    grad_scaler : torch.amp.GradScaler, optional
        The one in use. Schemes then see unscaled gradients, and an overflow on any rank is one on every rank: the
        scaler leaves out the step, and error memory stays as it was. Implies ``nonfinite="skip"``.
    nonfinite : {"raise", "skip", "allow"}
        As in ``Reducer``, for the whole model: with ``skip`` the next ``step`` does nothing. (With an error memory
        buckets are then exchanged after backward; ``step(closure)`` keeps a copy of parameters and optimizer state.)
    broadcast : bool
        Begin with rank 0's parameters, frozen ones among them, and optimizer state.
    options
        Further ones of ``Reducer``: ``algorithm``, ``densities``, ``measures``, ``trace``.

    Attributes
    ----------
    skipped : bool
        True if the last gradients were left out.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: parameters that are not the optimizer's, that cannot be averaged, or that ranks do not share;
        arguments that differ. Later, at the end of backward: learning rate, momentum, betas or weight decay of a group,
        or the number of steps, differ. The mean gradients are there: with equal rates ``step`` may go on.

    Examples
    --------
    >>> import torch
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> from mpicomp.torch import DistributedOptimizer
    >>> model = torch.nn.Linear(2, 1)
    >>> plain = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> comm = mpicomp.Comm(MPI.COMM_SELF)
    >>> optimizer = DistributedOptimizer(plain, model.named_parameters(), comm, "topk:density=0.5")
    >>> model(torch.ones(4, 2)).sum().backward()
    >>> print(model.weight.grad)  # one of two weights per step; the other waits in the error memory
    tensor([[4., 0.]])
    >>> optimizer.step()
    >>> optimizer.close()
    """

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | Iterable[torch.nn.Parameter],
                 comm: Intracomm, scheme: str | Scheme = "dense", *, bucket_bytes: int | None = None,
                 overlap: bool = True, grad_scaler: torch.amp.GradScaler | None = None, nonfinite: str = "raise",
                 broadcast: bool = True, **options: Unpack[Options]) -> None:
        self.optimizer, self._lanes = optimizer, Lanes(comm)
        with self._lanes.closed_if_refused() as own:
            settings: Settings = run_collectively(own, lambda: settle(
                optimizer, named_parameters, scheme, bucket_bytes, grad_scaler, nonfinite, options,
                overlap=overlap, broadcast=broadcast))
            check_alike(own, [describe(name, parameter) for name, parameter in settings.named])
            own.agree(settings.text)
            if broadcast:
                broadcast_parameters(settings.given, own)
                broadcast_optimizer_state(optimizer, own)
            self._exchange = self._made(settings, overlap, options)
        if "betas" in optimizer.defaults:
            warn(str(settings.scheme), settings.scheme.adam_warning_texts(), own.rank)
        self.comm, self._lock, self._phase, self._accumulating = own, threading.Lock(), FRESH, False
        self._scaler, self._skips, self._steps = settings.scaler, settings.nonfinite == "skip", 0
        self._scheme = settings.scheme
        self._mine = {parameter for _, parameter in settings.named}
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
                       for _, parameter in settings.named]  # PyTorch gives that method no types

    def _made(self, settings: Settings, overlap: bool, options: Options) -> Alone | Exchange:
        named, scheme, nonfinite = settings.named, settings.scheme, settings.nonfinite
        if self._lanes.control.size == 1 and sends_all(scheme) and not options:
            return Alone(named, nonfinite)
        return Exchange(named, self._lanes, scheme, settings.bucket_bytes, overlap, nonfinite, options)

    # -- the wrapped optimizer's own

    # They are to be read only, which PyTorch's class does not say of them.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, object]:  # type: ignore[override]
        return self.optimizer.defaults

    # A GradScaler sets these on the object it is given; a fused optimizer reads them on itself.
    grad_scale, found_inf = OfInner(), OfInner()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True if a GradScaler leaves unscaling to the optimizer, which then reads the attributes above.

        An optimizer that takes the scaler as an argument of ``step`` gets gradients that the scaler has unscaled.
        """
        takes_scaler = "grad_scaler" in inspect.signature(self.optimizer.step).parameters
        return not takes_scaler and getattr(self.optimizer, "_step_supports_amp_scaling", False)

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def add_param_group(self, group: dict[str, object]) -> None:
        raise InvalidArgument("parameters cannot be added: add them to the optimizer before DistributedOptimizer")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. If backward has failed, wait for what it has sent: it must have failed on all ranks.

        Raises
        ------
        InvalidArgument
            No ``step()`` has used the gradients of the last backward, and what was sent has left the error memory.
        """
        self._check_stepped("zero_grad()")
        self._exchange.settle()
        self.optimizer.zero_grad(set_to_none)
        self._phase = FRESH

    # -- a step

    @property
    def skipped(self) -> bool:
        return self._exchange.skipped

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block, backward adds to this rank's gradients and nothing is exchanged."""
        self._accumulating, before = True, self._accumulating
        try:
            yield
        finally:
            self._accumulating = before

    def synchronize(self) -> None:
        """Exchange what a rank has that had no backward in this step, zeros where it has nothing (collective).

        Backward does so by itself: this is for a rank that is out of data while others are not.
        """
        if self._phase == DONE:
            return
        if self._phase != RUNNING:
            self._begin()
        self._finish()

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """Let the optimizer step by the mean gradients; do nothing if they were left out.

        A ``closure`` recomputes the loss and calls backward; the optimizer gets the mean loss over all ranks. If the
        gradients of any of its evaluations are left out, the whole step is.
        """
        if closure is None and self._phase not in (DONE, LEFT_OUT):
            raise InvalidArgument("step() needs gradients: call backward() outside no_sync() before every step(); "
                                  "synchronize() if a rank has no data")
        if closure is not None:
            self._check_stepped("step(closure)")
        check_graph(self.optimizer, self._mine)
        check_momentum(self.optimizer, self._scheme)  # which a learning-rate schedule may have set
        self._phase, self._steps = FRESH, self._steps + 1
        if closure is not None:
            return self._step_by(self._averaged(closure))
        return None if self.skipped else self.optimizer.step()

    def _step_by(self, averaged: Callable[[], torch.Tensor]) -> Loss:
        kept = Kept(self.optimizer) if self._skips else None
        try:
            return self.optimizer.step(cast("Callable[[], float]", averaged))
        except LeftOut as left:
            if kept is not None:
                kept.restore()
            return left.loss

    def _check_stepped(self, call: str) -> None:
        """Refuse to lose gradients that no step has used: the values sent have left the error memory."""
        if self._phase == DONE and self._exchange.remembers and not self.skipped:
            raise InvalidArgument(f"{call} needs a step() before it: the gradients of the last backward() were "
                                  f"exchanged, and what was sent of them has left the error memory. {UNSTEPPED}")

    def _averaged(self, closure: Callable[[], Loss]) -> Callable[[], torch.Tensor]:
        def averaged() -> torch.Tensor:
            self._phase = FRESH
            with torch.enable_grad():
                loss = closure()
            self._phase = FRESH
            own = loss if isinstance(loss, torch.Tensor) else torch.as_tensor(loss, dtype=torch.float64)
            mean = torch.as_tensor(self.comm.allreduce(own.item()) / self.comm.size,
                                   dtype=torch.promote_types(own.dtype, torch.float32))
            if self.skipped:
                raise LeftOut(mean)
            return mean

        return averaged

    def _arrived(self, parameter: torch.nn.Parameter) -> None:
        """Backward has finished a parameter's gradient; may be called by several threads of autograd."""
        with self._lock:
            if self._phase == DONE:
                raise InvalidArgument("backward() ran again before step(): expected step() or zero_grad() of "
                                      "DistributedOptimizer; of several backward() all but the last go into no_sync(). "
                                      f"{UNSTEPPED}")
            if self._accumulating:
                return
            if self._phase != RUNNING:
                self._begin()
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._exchange.put(parameter, self._inverse)

    def _begin(self) -> None:
        self._scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        self._inverse, self._phase = 1.0 / self._scale, RUNNING
        self._exchange.begin()

    @torch.no_grad()
    def _finish(self) -> None:
        """Backward is over: wait for the means, and put them where optimizer and user look for them."""
        exchange, self._phase = self._exchange, FRESH  # an error leaves it so
        mine = compared(self.optimizer, self._steps)
        unused = exchange.finish(self._inverse, mine)
        if not self.skipped:
            for bucket in exchange.buckets:
                if self._scale != 1.0:
                    bucket.flat.mul_(self._scale)
                for i, parameter in enumerate(bucket.parameters):
                    parameter.grad = None if parameter in unused else bucket.mean_of(i)
        else:
            value = 0.0 if self._scaler is None else torch.inf  # which every rank's scaler finds
            for parameter in self._mine:
                parameter.grad = torch.full_like(parameter, value)
        self._phase = LEFT_OUT if self.skipped and self._scaler is not None else DONE
        if not exchange.alike:
            raise disagreement(self.comm, mine)

    # -- state

    @property
    def reducers(self) -> dict[str, Reducer]:
        """The buckets' reducers by name, for ``mpicomp.checkpoint``."""
        self._exchange.settle()
        return {f"bucket {i}": reducer for i, reducer in enumerate(self._exchange.reducers)}

    def state_dict(self) -> dict[str, object]:
        """The optimizer's state, and under ``reducers`` this rank's error memories: every rank saves its own."""
        self._check_stepped("state_dict()")
        self._exchange.settle()
        layout = [bucket.names for bucket in self._exchange.buckets]
        states = saved_states(self._exchange.reducers)
        return {**self.optimizer.state_dict(), "reducers": {"layout": layout, "states": states}}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Go on, bit for bit, where ``state_dict`` was taken (collective).

        Raises
        ------
        InvalidArgument
            On every rank: the state is of another scheme, model, bucket size or kind of optimizer, or has the error
            memories of another rank or another number of ranks (``mpicomp.checkpoint`` redistributes ``reducers``).
            Nothing is changed then.
        """
        self._exchange.settle()
        own, states = run_collectively(self.comm, lambda: self._parted(state_dict))
        load_states(zip(self._exchange.reducers, states, strict=True), lambda: self._take_together(own))
        self._phase, self._steps = FRESH, 0

    def _parted(self, state_dict: Mapping[str, object]) -> tuple[dict[str, object], list[dict[str, object]]]:
        """The state of the wrapped optimizer, and those of the reducers."""
        own = dict(state_dict) if isinstance(state_dict, Mapping) else {}
        saved = cast("State | None", own.pop("reducers", None))
        if saved is None:
            raise InvalidArgument("the state must have the reducers' under 'reducers'; a plain optimizer's goes into "
                                  "the wrapped one: .optimizer.load_state_dict")
        layout, got = [bucket.names for bucket in self._exchange.buckets], saved.get("layout")
        if got != layout:
            raise InvalidArgument(f"the state must be of buckets {layout}, got {got}: use the same model, "
                                  "number of ranks (one or several) and bucket_bytes")
        return own, loaded_states(saved)

    def _take_together(self, own: dict[str, object]) -> None:
        before = self.optimizer.state_dict()
        try:
            run_collectively(self.comm, lambda: self._take(own))
        except Exception:
            self.optimizer.load_state_dict(before)
            raise

    def _take(self, own: dict[str, object]) -> None:
        try:
            self.optimizer.load_state_dict(own)
        except (ValueError, KeyError) as error:
            raise InvalidArgument(f"the optimizer does not take the saved state: {error}") from error

    def close(self) -> None:
        """Leave the gradients alone from now on; end the threads, free their communicators (collective)."""
        for hook in self._hooks:
            hook.remove()
        self._lanes.close()


def saved_states(reducers: Iterable[Reducer]) -> list[dict[str, object]]:
    """States of reducers, with tensors."""
    return [with_tensors(reducer.state_dict()) for reducer in reducers]


def loaded_states(saved: State) -> list[dict[str, object]]:
    """The states that ``saved_states`` was given; there must be one per bucket of the layout."""
    if len(saved["states"]) != len(saved["layout"]):
        raise InvalidArgument(f"the state must be of {len(saved['layout'])} reducers, one a bucket, got "
                              f"{len(saved['states'])}")
    return [with_arrays(state) for state in saved["states"]]

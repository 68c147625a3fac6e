"""A communication hook for DistributedDataParallel: its buckets travel by MPI and by any scheme."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch

from ..comm.safety.collective_errors import together
from ..errors import InvalidArgument
from ..ops.device import device_of
from ..reducer.reducer import Reducer
from ..schemes.registry import Scheme
from .exchange import SEED_STEP
from .flat import COMPUTE, as_array, finished, named_arrays
from .lanes import Lanes
from .settings import is_traced, settle_hook


def ddp_hook(comm: Any, scheme: str | Scheme = "dense",
             named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | Iterable[torch.nn.Parameter] = (),
             **options: Any) -> DDPHook:
    """The hook for ``model.register_comm_hook(None, ddp_hook(comm, "powersgd:rank=2"))`` (collective).

    The first step goes dense: DDP arranges its buckets anew after it, and an error memory belongs to its bucket.

    Parameters
    ----------
    comm : Comm or MPI.Intracomm
        The same processes as DDP's process group, in any order.
    scheme : str or Scheme
        Selects within each of DDP's buckets.
    named_parameters : iterable of (str, Parameter), or of Parameter, optional
        ``model.named_parameters()``, for schemes that go by names (``dense=norm``).
    options
        Further ones of ``Reducer``: ``algorithm``, ``densities``, ``measures``, ``nonfinite``, ``trace``.

    Raises
    ------
    InvalidArgument, Disagreement
        On every rank: arguments that are out of range, or differ.
    """
    lanes = Lanes(comm)
    with lanes.closed_if_refused() as own:
        parsed, named, text = together(own, lambda: settle_hook(scheme, named_parameters, options))
        own.agree(text)
        lanes.open(several=not is_traced(options))
    return DDPHook(lanes, parsed, dict(named), options)


class DDPHook:
    """Called by DDP with each bucket, in the same order on all ranks; see ``ddp_hook``.

    Buckets take turns on ``Lanes``.

    Attributes
    ----------
    reducers : dict of int -> Reducer
        By bucket; for ``stats``, and for ``state_dict`` of a training that goes on.
    """

    def __init__(self, lanes: Lanes, scheme: Scheme, named: dict[str, torch.nn.Parameter],
                 options: dict[str, Any]) -> None:
        self.scheme, self._options = scheme, options
        self._names = {parameter: name for name, parameter in named.items()}
        self.reducers: dict[int, Reducer] = {}
        self._layouts: dict[int, list[Any]] = {}
        self._first = True
        self._lanes = lanes
        self.__name__ = self.__qualname__ = "ddp_hook"  # DDP looks at a hook's name

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations but its own
        flat = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        event = torch.cuda.current_stream(flat.device).record_event() if flat.is_cuda else None
        arguments = bucket.index(), flat, bucket.parameters(), self._first, event, future
        self._first = self._first and not bucket.is_last()
        if self._lanes.threaded:
            self._lanes.start(self._lane(bucket.index(), flat), self._answer, *arguments)
        else:
            self._answer(*arguments)
        return future

    def _lane(self, index: int, gradients: torch.Tensor) -> int:
        """That of a bucket; the first where gradients are on a GPU."""
        return 0 if gradients.is_cuda else self._lanes.of(index)

    def _answer(self, index: int, flat: torch.Tensor, parameters: list[Any], first: bool, event: Any,
                future: torch.futures.Future[torch.Tensor]) -> None:
        """Average a bucket and tell DDP, which raises what went wrong."""
        try:
            self._average(index, flat, parameters, first, event)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # PyTorch says a result where it means an error
        else:
            future.set_result(flat)

    def _average(self, index: int, flat: torch.Tensor, parameters: list[Any], first: bool, event: Any) -> None:
        if flat.dtype not in COMPUTE:
            raise InvalidArgument(f"gradients must be one of {', '.join(map(str, COMPUTE))}, got {flat.dtype}")
        if event is not None:
            event.synchronize()  # the gradients are there: DDP adds all of them up on one stream
        work = flat.to(COMPUTE[flat.dtype])  # itself, but for half precision
        names = [self._names.get(parameter, f"bucket {index} gradient {i}") for i, parameter in enumerate(parameters)]
        device, converted = device_of(work), work is not flat
        if converted:
            finished(work)
        with nullcontext() if device is None else device.aside(as_array(work)):
            self._reduce(index, names, parameters, work, first)
        if converted:
            flat.copy_(work)
            finished(flat)

    def _reduce(self, index: int, names: list[str], parameters: list[Any], work: torch.Tensor, first: bool) -> None:
        comm = self._lanes.comms[self._lane(index, work)]
        if first:
            vector = as_array(work)
            Reducer(comm, "dense", nonfinite=self._options.get("nonfinite", "raise")).reduce(vector, out=vector)
            return
        arrays = named_arrays(work, names, [parameter.shape for parameter in parameters])
        layout = list(zip(names, (array.shape for array in arrays.values()), strict=True))
        expected = self._layouts.setdefault(index, layout)
        if expected != layout:
            raise InvalidArgument(f"DDP's bucket {index} must keep its arrays after the first step, {expected}, "
                                  f"got {layout}: make another hook after a change to the model")
        self._reducer(index, comm).reduce(arrays, out=arrays)

    def _reducer(self, index: int, comm: Any) -> Reducer:
        if index not in self.reducers:
            seed = self.scheme.options["seed"] + SEED_STEP * index
            scheme = self.scheme.replace(seed=seed) if index else self.scheme
            self.reducers[index] = Reducer(comm, scheme, **self._options)
        return self.reducers[index]

    def close(self) -> None:
        """End the threads and free the communicators (collective)."""
        self._lanes.close()

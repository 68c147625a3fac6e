"""mpi4py's own methods on ``Comm``: logged collectives, buffers that are checked, children that are a ``Comm``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any

from mpi4py import MPI

from ..errors import BufferRefused
from ..ops.device import device_of
from .buffers import Buffer, array_in, check_type
from .safety.call_log import NAMES, logged

# Methods that compute on buffers, by the datatype that mpi4py finds for them; not Iallreduce, which is our own
REDUCTIONS = (
    "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
    "Ireduce", "Ireduce_scatter_block", "Ireduce_scatter", "Iscan", "Iexscan",
    "Reduce_init", "Allreduce_init", "Reduce_scatter_block_init", "Reduce_scatter_init", "Scan_init", "Exscan_init",
)  # fmt: skip
# Collectives that return before they are complete: Open MPI's crash on device memory
BACKGROUND = (
    "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather", "Iallgatherv", "Ialltoall", "Ialltoallv",
    "Ialltoallw", "Bcast_init", "Gather_init", "Gatherv_init", "Scatter_init", "Scatterv_init", "Allgather_init",
    "Allgatherv_init", "Alltoall_init", "Alltoallv_init", "Alltoallw_init",
    *(name for name in REDUCTIONS if name.startswith("I") or name.endswith("_init")),
)  # fmt: skip
# Not Create_cart and the like, whose results have methods that a Comm has not
MAKERS = (
    "Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone", "Create", "Create_group", "Split", "Split_type",
    "Shrink",
)  # fmt: skip
Method = Callable[..., Any]  # of mpi4py, with arguments of any type


class Inherited(MPI.Intracomm):
    """Base of ``Comm``."""

    @abstractmethod
    def _child(self, made_by_mpi: MPI.Comm) -> MPI.Comm:
        """Return a new communicator as one of this class, with the same settings."""


def making(method: Method) -> Method:
    """Let a method that makes a communicator, or a pair of one and a request, return a ``Comm``."""

    @wraps(method)
    def make(self: Inherited, *arguments: object, **options: object) -> object:
        result = method(self, *arguments, **options)
        return (self._child(result[0]), *result[1:]) if isinstance(result, tuple) else self._child(result)

    return make


def typed(method: Method) -> Method:
    """Refuse buffers whose type MPI lacks: mpi4py would let MPI add the bits of bfloat16 as those of float16."""

    @wraps(method)
    def call(self: Inherited, sendbuf: Buffer, recvbuf: Buffer, *arguments: object, **options: object) -> object:
        check_type(sendbuf, "sendbuf")
        check_type(recvbuf, "recvbuf")
        return method(self, sendbuf, recvbuf, *arguments, **options)

    return call


def on_host(method: Method) -> Method:
    """Refuse device arrays in a collective that returns before it is complete."""

    @wraps(method)
    def call(self: Inherited, *buffers: Buffer, **options: object) -> object:
        if any(device_of(array_in(one)) is not None for one in (*buffers, *options.values())):
            blocking = method.__name__.removesuffix("_init")
            blocking = blocking if blocking != method.__name__ else blocking[1:].capitalize()
            raise BufferRefused(f"{method.__name__} takes arrays in host memory, got one on a device, on which Open "
                                f"MPI's crashes: call {blocking}, or Iallreduce, which runs in a thread")
        return method(self, *buffers, **options)

    return call


for _name in REDUCTIONS:
    setattr(Inherited, _name, typed(getattr(MPI.Intracomm, _name)))
for _name in BACKGROUND:
    setattr(Inherited, _name, on_host(getattr(Inherited, _name)))
for _name in NAMES:
    setattr(Inherited, _name, logged(getattr(Inherited, _name)))
for _name in MAKERS:
    if hasattr(MPI.Intracomm, _name):  # all but the last are in every mpi4py
        setattr(Inherited, _name, making(getattr(MPI.Intracomm, _name)))

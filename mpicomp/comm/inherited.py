"""mpi4py's own methods on ``Comm``: logged collectives, reductions with a type check, children that are a ``Comm``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any

from mpi4py import MPI

from .buffers import check_type
from .safety.call_log import logged

# Not Allreduce, which is our own.
NAMES = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan", "barrier", "bcast", "gather",
    "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
)  # fmt: skip
# Those that compute on buffers, by the datatype that mpi4py finds for them. Not Iallreduce, which is our own.
REDUCTIONS = (
    "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
    "Ireduce", "Ireduce_scatter_block", "Ireduce_scatter", "Iscan", "Iexscan",
    "Reduce_init", "Allreduce_init", "Reduce_scatter_block_init", "Reduce_scatter_init", "Scan_init", "Exscan_init",
)  # fmt: skip
# Not Create_cart and the like, whose results have methods that a Comm has not.
MAKERS = (
    "Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone", "Create", "Create_group", "Split", "Split_type",
    "Shrink",
)  # fmt: skip


class Inherited(MPI.Intracomm):
    """Base of ``Comm``."""

    @abstractmethod
    def _child(self, made_by_mpi: MPI.Comm) -> MPI.Comm:
        """A new communicator of some of these ranks as one of this class, with the same settings."""


def making(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that makes a communicator, or a pair of one and a request, give a ``Comm``."""

    @wraps(method)
    def make(self: Inherited, *arguments: Any, **options: Any) -> Any:
        result = method(self, *arguments, **options)
        return (self._child(result[0]), *result[1:]) if isinstance(result, tuple) else self._child(result)

    return make


def typed(method: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse buffers whose type MPI lacks: mpi4py would have MPI add the bits of bfloat16 as those of float16."""

    @wraps(method)
    def call(self: Any, sendbuf: Any, recvbuf: Any, *arguments: Any, **options: Any) -> Any:
        check_type(sendbuf, "sendbuf")
        check_type(recvbuf, "recvbuf")
        return method(self, sendbuf, recvbuf, *arguments, **options)

    return call


for _name in REDUCTIONS:
    setattr(Inherited, _name, typed(getattr(MPI.Intracomm, _name)))
for _name in NAMES:
    setattr(Inherited, _name, logged(getattr(Inherited, _name)))
for _name in MAKERS:
    if hasattr(MPI.Intracomm, _name):  # all but the last are in every mpi4py
        setattr(Inherited, _name, making(getattr(MPI.Intracomm, _name)))

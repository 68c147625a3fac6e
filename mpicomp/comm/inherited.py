"""mpi4py's own collectives as methods of ``Comm``: the watchdog sees the blocking ones, reductions check the type."""

from __future__ import annotations

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


class Inherited(MPI.Intracomm):
    """Base of ``Comm``."""


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

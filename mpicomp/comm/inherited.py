"""mpi4py's own blocking collectives as methods of ``Comm``: unchanged, but the watchdog sees them."""

from __future__ import annotations

from mpi4py import MPI

from .safety.call_log import logged

# Not Allreduce, which is our own.
NAMES = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan", "barrier", "bcast", "gather",
    "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
)  # fmt: skip


class Inherited(MPI.Intracomm):
    """Base of ``Comm``."""


for _name in NAMES:
    setattr(Inherited, _name, logged(getattr(MPI.Intracomm, _name)))

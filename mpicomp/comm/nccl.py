"""NVIDIA's NCCL as a dense schedule for arrays in CUDA memory, through CuPy; with a communicator of its own.

Schedule      NCCL's own choice (rings, trees, NVLink SHARP); queued on CuPy's current stream, then waits for it.
Cost          Counted as 2(p-1)/p n bytes per rank, the least that any schedule can send.
Restrictions  Every rank has CuPy with NCCL and a GPU of its own; sums, products, minima and maxima of the types below.
Reference     NVIDIA Collective Communications Library, user guide, ``ncclAllReduce``.
"""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..errors import BufferRefused, InvalidArgument, MissingExtra
from ..ops.gpu.cuda_runtime import addresses, nccl, xp
from .buffers import Vector

if TYPE_CHECKING:
    from mpi4py import MPI

NAME = "nccl"
OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "min": "NCCL_MIN", "max": "NCCL_MAX"}
TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
}


def check_vector(target: Vector | None, op: str) -> None:
    """Refuse vectors that NCCL cannot reduce; ``target`` is None for buffers that only MPI reduces."""
    if target is None or target.device is None:
        raise BufferRefused("algorithm='nccl' reduces arrays of numbers in CUDA memory, got another buffer: use 'auto'")
    if op not in OPS or target.name not in TYPES:
        raise InvalidArgument(
            f"algorithm='nccl' reduces by {', '.join(OPS)} arrays of {', '.join(TYPES)}, got op={op} of {target.name}"
        )


class Nccl:
    """NCCL's communicator of the ranks of ``comm`` (collective).

    Raises
    ------
    InvalidArgument
        On every rank: CuPy or NCCL is missing on one, or two ranks have the same GPU.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        library, mine = _library()
        problem = why_not(comm.allgather(mine))
        if problem is not None:
            raise InvalidArgument(problem)
        unique = comm.bcast(library.get_unique_id() if comm.Get_rank() == 0 else None)
        self._library, self._communicator = library, library.NcclCommunicator(comm.Get_size(), unique, comm.Get_rank())

    def allreduce(self, vector: Vector, op: str) -> None:
        """Reduce a vector in place and wait for the result."""
        stream, (address,) = xp().cuda.get_current_stream(), addresses([vector.array])
        kind, how = getattr(self._library, TYPES[vector.name]), getattr(self._library, OPS[op])
        self._communicator.allReduce(address, address, vector.array.size, kind, how, stream.ptr)
        stream.synchronize()


def _library() -> tuple[Any, dict[str, str]]:
    """Return CuPy's NCCL, and for the other ranks this rank's GPU, or the reason why it cannot take part."""
    try:
        cupy, library = xp(), nccl()
        if not getattr(library, "available", False):
            return None, {"missing": "CuPy here finds no NCCL (pip install nvidia-nccl-cu12, or -cu13)"}
        own = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice())
    except MissingExtra as error:
        return None, {"missing": str(error)}
    return library, {"gpu": f"{socket.gethostname()} {own}"}


def why_not(reports: list[dict[str, str]]) -> str | None:
    """Return the reason why these ranks cannot use NCCL, from the report of each; None if they can."""
    for rank, one in enumerate(reports):
        if "missing" in one:
            return f"algorithm='nccl' is not possible: rank {rank}: {one['missing']}"
    gpu, ranks = Counter(one["gpu"] for one in reports).most_common(1)[0]
    if ranks > 1:
        return (f"algorithm='nccl' needs a GPU for each rank, which NCCL insists on; {ranks} ranks share GPU {gpu}: "
                "start one rank per GPU, or choose another algorithm")
    return None

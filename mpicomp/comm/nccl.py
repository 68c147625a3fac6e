"""NVIDIA's NCCL for arrays in CUDA memory, through CuPy: reductions, broadcast, all-gather and messages.

Schedule      NCCL's own choice (rings, trees, NVLink SHARP); queued on CuPy's current stream, without a wait.
Cost          Counted as 2(p-1)/p n bytes per rank for an all-reduce, the least that any schedule can send; the other
              calls as a chain and a ring send. Those within the nodes of two levels are not counted.
Restrictions  Every rank has CuPy with NCCL and a GPU of its own, and all change to another GPU in the same call; sums,
              products, minima and maxima of the types below.
Reference     NVIDIA Collective Communications Library, user guide, ``ncclAllReduce``.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ..errors import BufferRefused, InvalidArgument
from ..ops.device import at_home
from ..ops.gpu.cuda_runtime import addresses, nccl, xp
from ..types import Array, dtype_name
from .buffers import Vector

if TYPE_CHECKING:
    from mpi4py import MPI

NAME = "nccl"
OPS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "min": "NCCL_MIN", "max": "NCCL_MAX"}
TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
}
# Those that `auto` leaves to NCCL. It adds half precision in float32, and the overflow of short integers is MPI's.
BY_ITSELF = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def check_vector(target: Vector | None, op: str) -> None:
    """Refuse vectors that NCCL cannot reduce; ``target`` is None for buffers that only MPI reduces."""
    if target is None or target.device is None:
        raise BufferRefused("algorithm='nccl' reduces arrays of numbers in CUDA memory, got another buffer: use 'auto'")
    if op not in OPS or target.name not in TYPES:
        raise InvalidArgument(
            f"algorithm='nccl' reduces by {', '.join(OPS)} arrays of {', '.join(TYPES)}, got op={op} of {target.name}"
        )


class Nccl:
    """NCCL's communicator of the ranks of ``comm``, for the current device (collective).

    Calls are queued on CuPy's current stream: later work there sees the results. All ranks make them in one order.

    Raises
    ------
    InvalidArgument
        On every rank: CuPy or NCCL is missing on one, two ranks have the same GPU, or NCCL fails on one.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        library, mine = _library()
        problem = why_not(comm.allgather(mine))
        if problem is not None:
            raise InvalidArgument(problem)
        self.rank, self.size, self._library = comm.Get_rank(), comm.Get_size(), library
        unique = agreed(comm, lambda: library.get_unique_id() if self.rank == 0 else None)
        unique = comm.bcast(unique)
        self._communicator = agreed(comm, lambda: library.NcclCommunicator(self.size, unique, self.rank))

    def allreduce(self, source: Array, target: Vector, op: str) -> None:
        """Reduce the array ``source``, which may be that of the ``target``, into the target."""
        begin, end = addresses([source, target.array])
        kind, how = getattr(self._library, TYPES[target.name]), getattr(self._library, OPS[op])
        self._communicator.allReduce(begin, end, target.array.size, kind, how, _stream())

    def reduce_scatter(self, x: Array, total: Array, counts: list[int]) -> None:
        """Sum the arrays ``x`` of all ranks; write this rank's of the slices of ``counts`` elements into ``total``."""
        stream, begin, end = _stream(), *addresses([x, total])
        kind, how = getattr(self._library, TYPES[dtype_name(x.dtype)]), self._library.NCCL_SUM
        with self._group():
            for rank, (count, displ) in enumerate(zip(counts, [0, *accumulate(counts)], strict=False)):
                if count:
                    skip = displ * x.itemsize
                    self._communicator.reduce(begin + skip, end + skip, count, kind, how, rank, stream)

    def broadcast(self, x: Array, root: int) -> int:
        """Copy the bytes ``x`` of rank ``root`` to all; return the bytes that this rank of a chain sends."""
        (address,) = addresses([x])
        self._communicator.broadcast(address, address, x.size, self._library.NCCL_UINT8, root, _stream())
        return 0 if (self.rank + 1) % self.size == root else x.nbytes

    def gather(self, x: Array, flat: Array, counts: list[int]) -> int:
        """Concatenate the bytes ``x`` of all ranks in ``flat``; return the bytes that this rank of a ring sends."""
        stream, kind = _stream(), self._library.NCCL_UINT8
        begin, end = addresses([x, flat])
        if len(set(counts)) == 1:
            self._communicator.allGather(begin, end, counts[0], kind, stream)
        else:
            with self._group():
                for rank, (count, displ) in enumerate(zip(counts, [0, *accumulate(counts)], strict=False)):
                    if count:
                        source = begin if rank == self.rank else end + displ
                        self._communicator.broadcast(source, end + displ, count, kind, rank, stream)
        return sum(counts) - counts[(self.rank + 1) % self.size]

    def exchange(self, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]) -> None:
        """Send bytes to ranks and receive from ranks, all at once."""
        stream, kind = _stream(), self._library.NCCL_UINT8
        with self._group():
            for call, arrays in ((self._communicator.recv, incoming), (self._communicator.send, outgoing)):
                for rank, array in arrays.items():
                    if array.size:
                        call(addresses([array])[0], array.size, kind, rank, stream)

    @contextmanager
    def _group(self) -> Iterator[None]:
        """Within the block, queue calls that NCCL runs at once."""
        self._library.groupStart()
        try:
            yield
        finally:
            self._library.groupEnd()


class Communicators:
    """NCCL's communicators of a link, one per device of this rank.

    Parameters
    ----------
    comm : MPI.Intracomm
    preferred : bool
        ``auto`` takes NCCL if all ranks can; the same on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, preferred: bool) -> None:
        self.preferred = preferred and comm.Get_size() > 1
        self._comm = comm
        self._made: dict[int, Nccl] = {}

    def of(self, array: Array) -> Nccl:
        """Return the communicator for the device of ``array``; the first use of a device is collective."""
        with at_home(array):
            found = self._made.get(_device())
            if found is None:
                found = Nccl(self._comm)
                self._made[_device()] = found
        return found

    def of_auto(self, array: Array, known: bool = False) -> Nccl | None:
        """Return the communicator that ``auto`` uses for ``array``, None if there is none; collective as ``of``.

        ``known`` returns one that an earlier call has made, and is not collective.
        """
        if not self.preferred:
            return None
        if known:
            with at_home(array):
                return self._made.get(_device())
        try:
            return self.of(array)
        except InvalidArgument:  # on every rank, so that none asks again
            self.preferred = False
            return None

    def takes(self, target: Vector, op: str) -> bool:
        """Return True if ``auto`` reduces ``target`` by NCCL; collective as ``of`` for device arrays."""
        covered = target.device is not None and not target.kind and target.name in BY_ITSELF and op in OPS
        return covered and target.array.size > 0 and self.of_auto(target.array) is not None


def agreed(comm: MPI.Intracomm, work: Callable[[], Any]) -> Any:
    """Return the result of this rank's ``work``; if a rank fails, raise InvalidArgument on all (collective)."""
    result, problem = None, None
    try:
        result = work()
    except Exception as error:  # NCCL's own class; the other ranks wait for the verdict below
        problem = f"{type(error).__name__}: {error}"
    for rank, one in enumerate(comm.allgather(problem)):
        if one is not None:
            raise InvalidArgument(f"algorithm='nccl' is not possible: rank {rank}: {one}")
    return result


def _stream() -> int:
    """Return the current device's current stream, as CUDA numbers it."""
    number: int = xp().cuda.get_current_stream().ptr
    return number


def _device() -> int:
    """Return the number of the current device; -1 without CuPy or a GPU, of which `Nccl` informs all ranks."""
    try:
        number: int = xp().cuda.runtime.getDevice()
    except Exception:
        return -1
    return number


def _library() -> tuple[Any, dict[str, str]]:
    """Return CuPy's NCCL, and for the other ranks this rank's GPU, or the reason why it cannot take part."""
    try:
        cupy, library = xp(), nccl()
        if not getattr(library, "available", False):
            return None, {"missing": "CuPy here finds no NCCL (pip install nvidia-nccl-cu12, or -cu13)"}
        own = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.runtime.getDevice())
    except Exception as error:  # no CuPy, no GPU, an NCCL that does not load: the other ranks wait for the reason
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

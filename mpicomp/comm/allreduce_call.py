"""Validated arguments of one ``Allreduce`` call, and the schedule that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from .. import allreduce
from ..errors import BufferRefused, InvalidArgument
from ..ops.device import Device, device_of, ready
from ..ops.node_shared import plain_nbytes
from ..types import Array, dtype_name
from . import nccl
from .buffers import Buffer, Vector, array_in, check_pair, check_type, vector
from .mpi_types import MPI_OPS, is_in_place, numpy_dtype, op_name, raw_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from .reduction import Reduction

AVG: Final = "avg"  # op: the sum divided by the number of ranks


class Call(NamedTuple):
    """One call; ``target`` is None if only MPI's own call covers the buffers or the operation."""

    source: Vector | None  # None: in place
    target: Vector | None
    op: str  # name of MPI's operation, or AVG
    algorithm: str  # as requested

    def schedule(self, default: str, reduction: Reduction) -> str:
        """Return the name of the schedule that runs; the first use of a device is collective."""
        if self.target is None:
            return "native"
        op = "sum" if self.op == AVG else self.op
        return reduction.schedule(self.target, op, default if self.algorithm == "auto" else self.algorithm)

    def key(self) -> tuple[object, ...]:
        """Return the facts of ``signature``, for less time."""
        if self.target is None:
            return self.op, "by MPI's own call"
        array = self.target.array
        return self.op, (array.size, self.target.kind or array.dtype), self.algorithm, *place(self.target.device)

    def signature(self) -> str:
        """Return the description that ranks compare."""
        if self.target is None:
            return f"op={self.op}, by MPI's own call"
        size, name = self.target.array.size, self.target.name
        return ", ".join([signature(self.op, size, name, self.algorithm), *place(self.target.device)])


def place(device: Device | None) -> list[str]:
    """Return the array's place if it must be the same on all ranks: device arrays may travel in other messages."""
    return [] if device is None else ["on a device"]


def signature(op: str, size: int, dtype: str, algorithm: str) -> str:
    """Return the description of a call with host arrays."""
    return f"op={op}, {size} elements, dtype={dtype}, algorithm={algorithm}"


def plain_signature(op: MPI.Op, x: Array) -> str:
    """Return the description of a call of ``auto`` with this plain array."""
    return signature(op_name(op), x.size, dtype_name(x.dtype), "auto")


def check_covered(call: Call) -> None:
    """Refuse calls that the reproducible mode does not cover."""
    if call.target is None:
        raise InvalidArgument(
            f"reproducible=True covers MPI's predefined operations on real numbers, got op={call.op} on other buffers: "
            "use a Comm without it"
        )


def resolve(sendbuf: Buffer, recvbuf: Buffer, op: MPI.Op | str, algorithm: str, gpu_path: tuple[str, str]) -> Call:
    """Return the call for these arguments of ``Allreduce``; raise if they are invalid."""
    lossy = algorithm in allreduce.LOSSY
    if not lossy:
        allreduce.check_requested(algorithm)
    name = op if isinstance(op, str) else op_name(op)
    in_place = is_in_place(sendbuf)
    ours = name in MPI_OPS and not lossy and algorithm != nccl.NAME
    if ours and plain_nbytes(None if in_place else sendbuf, recvbuf) >= 0:  # usual arrays, known in a tenth of the time
        source = None if in_place else Vector(sendbuf.reshape(-1), None, None)
        return Call(source, Vector(recvbuf.reshape(-1), None, None), name, algorithm)
    source, target = None, vector(recvbuf, "recvbuf", numpy_dtype, raw_bytes)
    if not in_place:
        source = vector(sendbuf, "sendbuf", numpy_dtype, raw_bytes)
        if source is not None and target is not None:
            check_pair(source, target)
        else:
            target = None
    if lossy:
        check_lossy(target, recvbuf, name, algorithm)
        return Call(source, target, name, algorithm)
    if algorithm == nccl.NAME:
        nccl.check_vector(target, name)
    if target is None or name not in MPI_OPS:
        prepare_for_mpi(sendbuf, recvbuf, name, gpu_path)
        return Call(None, None, name, algorithm)
    return Call(source, target, name, algorithm)


def check_lossy(target: Vector | None, recvbuf: Buffer, op: str, algorithm: str) -> None:
    """Refuse what codes do not add: operations other than sums, and buffers that do not hold real numbers."""
    if op not in ("sum", AVG):
        raise InvalidArgument(f"algorithm={algorithm!r} needs op=MPI.SUM or mpicomp.AVG, got {op}: choose another "
                              "algorithm")
    if target is None or not (target.kind or target.array.dtype.kind == "f"):
        given = array_in(recvbuf)
        name = target.name if target else getattr(given, "dtype", type(given).__name__)
        raise BufferRefused(f"algorithm={algorithm!r} takes buffers of float32, float64, float16 or bfloat16, got "
                            f"{name}: convert them, or choose another algorithm")


def prepare_for_mpi(sendbuf: Buffer, recvbuf: Buffer, op: str, gpu_path: tuple[str, str]) -> None:
    """Refuse device memory unless MPI is known to take it, and wait for the device."""
    for message, role in ((sendbuf, "sendbuf"), (recvbuf, "recvbuf")):
        check_type(message, role)
        array = array_in(message)
        if device_of(array) is None:
            continue
        path, reason = gpu_path
        if path != "direct":
            raise BufferRefused(
                f"op={op} on this datatype is MPI's own, and MPI may not see device memory ({reason}): "
                "copy the array to the host"
            )
        ready(array)

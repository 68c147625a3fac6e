"""One ``Allreduce`` call: its arguments, validated, and the schedule that will run it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import allreduce
from ..allreduce.choice import schedule
from ..errors import BufferRefused, InvalidArgument
from ..ops.device import device_of, ready
from . import nccl
from .buffers import Vector, check_pair, check_type, vector
from .transport import MPI_OPS, Link, is_in_place, numpy_dtype, op_name, raw_bytes


class Call(NamedTuple):
    """``target`` is None where the message or the operation is for MPI's own call alone."""

    source: Vector | None  # None: in place
    target: Vector | None
    op: str
    algorithm: str  # as asked for

    def schedule(self, default: str, link: Link) -> str:
        """The schedule that really runs."""
        if self.target is None:
            return "native"
        return schedule(self.target, self.op, default if self.algorithm == "auto" else self.algorithm, link)

    def key(self) -> tuple[Any, ...]:
        """What ``signature`` tells, cheaper."""
        if self.target is None:
            return self.op, "by MPI's own call"
        array = self.target.array
        return self.op, (array.size, self.target.kind or array.dtype), self.algorithm, *place(self.target.device)

    def signature(self) -> str:
        if self.target is None:
            return f"op={self.op}, by MPI's own call"
        size, name = self.target.array.size, self.target.name
        return ", ".join([signature(self.op, size, name, self.algorithm), *place(self.target.device)])


def place(device: Any) -> list[str]:
    """Where ranks must all have an array if one has it there: from a device it may travel in other messages."""
    return [] if device is None else ["on a device"]


def signature(op: str, size: int, dtype: str, algorithm: str) -> str:
    """What ranks compare of a call with arrays on the host."""
    return f"op={op}, {size} elements, dtype={dtype}, algorithm={algorithm}"


def plain_signature(op: Any, x: np.ndarray) -> str:
    """The same of a call of ``auto`` with this plain array."""
    return signature(op_name(op), x.size, x.dtype.name, "auto")


def check_covered(call: Call) -> None:
    """Refuse what the reproducible mode cannot promise anything about."""
    if call.target is None:
        raise InvalidArgument(
            f"reproducible=True covers MPI's predefined operations on real numbers, got op={call.op} on other buffers: "
            "use a Comm without it"
        )


def resolve(sendbuf: Any, recvbuf: Any, op: Any, algorithm: str, gpu_path: tuple[str, str]) -> Call:
    """The call these arguments of ``Allreduce`` mean; raises what is wrong with them."""
    allreduce.check_asked(algorithm)
    name = op_name(op)
    source, target = None, vector(recvbuf, "recvbuf", numpy_dtype, raw_bytes)
    if not is_in_place(sendbuf):
        source = vector(sendbuf, "sendbuf", numpy_dtype, raw_bytes)
        if source is not None and target is not None:
            check_pair(source, target)
        else:
            target = None
    if algorithm == nccl.NAME:
        nccl.check_vector(target, name)
    if target is None or name not in MPI_OPS:
        prepare_for_mpi(sendbuf, recvbuf, name, gpu_path)
        return Call(None, None, name, algorithm)
    return Call(source, target, name, algorithm)


def prepare_for_mpi(sendbuf: Any, recvbuf: Any, op: str, gpu_path: tuple[str, str]) -> None:
    """MPI's own call must not see device memory unless it is known to take it; there, the device is waited for."""
    for message, role in ((sendbuf, "sendbuf"), (recvbuf, "recvbuf")):
        check_type(message, role)
        array = message[0] if isinstance(message, (list, tuple)) and message else message
        if device_of(array) is None:
            continue
        path, reason = gpu_path
        if path != "direct":
            raise BufferRefused(
                f"op={op} on this datatype is MPI's own, and MPI may not see device memory ({reason}): "
                "copy the array to the host"
            )
        ready(array)

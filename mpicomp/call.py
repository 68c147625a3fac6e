"""One ``Allreduce`` call: its arguments, validated, and the schedule that will run it."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import allreduce
from .buffers import Vector, check_pair, vector
from .device import device_of, ready
from .errors import BufferRefused, InvalidArgument
from .job import gpu_path
from .link import MPI_OPS, Link, is_in_place, numpy_dtype, op_name, raw_bytes
from .ops.shared import has_kernel


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

    def key(self) -> tuple:
        """What ``signature`` tells, cheaper."""
        if self.target is None:
            return self.op, "by MPI's own call"
        array = self.target.array
        return self.op, (array.size, self.target.kind or array.dtype), self.algorithm

    def signature(self) -> str:
        if self.target is None:
            return f"op={self.op}, by MPI's own call"
        return signature(self.op, self.target.array.size, self.target.name, self.algorithm)


def signature(op: str, size: int, dtype: str, algorithm: str) -> str:
    """What ranks compare."""
    return f"op={op}, {size} elements, dtype={dtype}, algorithm={algorithm}"


def check_covered(call: Call) -> None:
    """Refuse what the reproducible mode cannot promise anything about."""
    if call.target is None:
        raise InvalidArgument(
            f"reproducible=True covers MPI's predefined operations on real numbers, got op={call.op} on other buffers: "
            "use a Comm without it"
        )


def resolve(sendbuf: Any, recvbuf: Any, op: Any, algorithm: str) -> Call:
    """The call these arguments of ``Allreduce`` mean; raises what is wrong with them."""
    allreduce.check_name(algorithm)
    name = op_name(op)
    source, target = None, vector(recvbuf, "recvbuf", numpy_dtype, raw_bytes)
    if not is_in_place(sendbuf):
        source = vector(sendbuf, "sendbuf", numpy_dtype, raw_bytes)
        if source is not None and target is not None:
            check_pair(source, target)
        else:
            target = None
    if target is None or name not in MPI_OPS:
        prepare_for_mpi(sendbuf, recvbuf, name)
        return Call(None, None, name, algorithm)
    return Call(source, target, name, algorithm)


def schedule(target: Vector, op: str, algorithm: str, link: Link) -> str:
    """The schedule that runs where ``algorithm`` was asked for."""
    if link.reproducible and link.size > 1:
        return in_rank_order(target, op, link)
    own = op in allreduce.VERBS  # logical and bitwise operations are not for the schedules that send messages
    if algorithm == "auto":
        algorithm = automatic(target, link)
    if algorithm == "node_shared":
        if shares_memory(target, op, link):
            return algorithm
        algorithm = "ring"
    if not own:
        return "native"
    if target.kind == "bfloat16" or (target.kind and algorithm != "native"):
        return "direct"  # the one that sums half precision in float32
    return algorithm


def in_rank_order(target: Vector, op: str, link: Link) -> str:
    """The schedule of the reproducible mode: one that combines the ranks' elements in the order of the ranks.

    Logical and bitwise operations give the same bits in any order.
    """
    if link.one_node and shares_memory(target, op, link):
        return "node_shared"
    return "direct" if op in allreduce.VERBS else "native"


def automatic(target: Vector, link: Link) -> str:
    if target.kind:
        return "node_shared" if link.one_node and link.size > 1 else "direct"
    if target.array.dtype.kind in "iu" and target.array.itemsize < 4:
        return "native"  # what overflow does is MPI's choice, and must not depend on the length
    return link.rows["cpu" if target.device is None else "gpu"].pick(target.array.nbytes)


def shares_memory(target: Vector, op: str, link: Link) -> bool:
    """Whether ``node_shared`` can run; collective where it is asked for the first time."""
    if not link.one_node:  # between nodes a ring adds
        covered = op in allreduce.VERBS and not target.kind and link.even and link.ranks_per_node > 1
    else:
        covered = has_kernel(op, target.name)
    return covered and link.node.problem is None


def prepare_for_mpi(sendbuf: Any, recvbuf: Any, op: str) -> None:
    """MPI's own call must not see device memory unless it is known to take it; there, the device is waited for."""
    for message in (sendbuf, recvbuf):
        array = message[0] if isinstance(message, (list, tuple)) and message else message
        if device_of(array) is None:
            continue
        path, reason = gpu_path()
        if path != "direct":
            raise BufferRefused(
                f"op={op} on this datatype is MPI's own, and MPI may not see device memory ({reason}): "
                "copy the array to the host"
            )
        ready(array)

"""The MPI library's own all-reduce.

Schedule      The MPI library's choice; vectors longer than its counts go in several calls.
Cost          Counted as 2(p-1)/p n bytes per rank, the least that any schedule can send; the library may send more.
Restrictions  None: any datatype and operation of MPI. Half precision is summed in half precision.
Reference     MPI 4.1, section 6.9.6.
"""

from __future__ import annotations

from ..types import Array
from .interfaces import Arithmetic, Link, Scratch


def allreduce(
    link: Link, work: Array, op: str, ops: Arithmetic, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None,
) -> None:
    link.native_allreduce(work, op, source)
    if factor != 1.0:
        ops.scale(work, factor)


def least_bytes(nbytes: int, size: int) -> int:
    """Return the least that each rank sends, and receives, in an all-reduce of ``nbytes``: 2 (p-1)/p of them.

    All-reduces whose schedule cannot be observed, MPI's own and NCCL's, count as this.
    """
    return 2 * (size - 1) * nbytes // size

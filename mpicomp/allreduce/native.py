"""The MPI library's own all-reduce.

Schedule      whatever the MPI library picks; vectors longer than its counts go in several calls.
Cost          counted as 2(p-1)/p n bytes a rank, the least any schedule can send; the library may send more.
Restrictions  none: any datatype and operation of MPI. Half precision is summed in half precision.
Reference     MPI 4.1, section 6.9.6.
"""

from __future__ import annotations

from typing import Any


def allreduce(
    link: Any, work: Any, op: str, ops: Any, scratch: Any, factor: float = 1.0, source: Any = None
) -> None:
    link.native_allreduce(work, op, source)
    if factor != 1.0:
        ops.scale(work, factor)

"""Our names of MPI's operations, NumPy's of its datatypes, and the forms in which mpi4py takes buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..types import Array
from .buffers import Buffer

MPI_OPS = {
    "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX,
    "land": MPI.LAND, "lor": MPI.LOR, "lxor": MPI.LXOR, "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR,
}  # fmt: skip
IN_PLACE = MPI.IN_PLACE
OTHER_OPS = ("MAXLOC", "MINLOC", "REPLACE", "NO_OP")
# Numbers in memory that MPI rejects in a sum, or gives another meaning
NOT_NUMBERS = (MPI.BYTE, MPI.PACKED, *(getattr(MPI, name) for name in dir(MPI) if name.startswith("LOGICAL")))


def is_in_place(sendbuf: object) -> bool:
    """Return True for ``MPI.IN_PLACE``, and for None, which mpi4py takes for it."""
    return sendbuf is None or isinstance(sendbuf, type(MPI.IN_PLACE))


def op_name(op: MPI.Op) -> str:
    """Return our name of an MPI operation; our schedules run only those in ``MPI_OPS``."""
    if op is MPI.SUM:
        return "sum"
    for name, known in MPI_OPS.items():
        if op == known:
            return name
    return next((name for name in OTHER_OPS if op == getattr(MPI, name)), "user-defined")


def numpy_dtype(datatype: MPI.Datatype | str) -> np.dtype | None:
    """Return the NumPy dtype of a predefined MPI datatype, or of its letter; None for the others."""
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL or not datatype.is_predefined:
        return None
    if datatype in NOT_NUMBERS or not datatype.typestr:
        return None
    return np.dtype(datatype.typestr)


def raw_bytes(obj: Buffer) -> memoryview:
    """Return the memory of any buffer that mpi4py takes, without its dtype or protocol."""
    memory: Any = MPI.buffer(obj)  # has the buffer protocol, which its stub declares from Python 3.12 on
    return memoryview(memory)


def specification(array: Array, count: int | None = None) -> tuple[MPI.buffer, int, MPI.Datatype]:
    """Return ``array`` in the form that costs mpi4py least: a bare array takes about a microsecond more per call.

    ``count`` (by default all elements) is the length of one rank's block if the array holds one block per rank: an
    all-gather's output, both arrays of a reduce-scatter of blocks. It is not checked against the array.
    """
    return MPI.buffer(array), array.size if count is None else count, MPI.Datatype.fromcode(array.dtype.char)

"""mpi4py's own methods on ``Comm``: logged collectives, reductions with a type check, children that are a ``Comm``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any

from mpi4py import MPI

from .buffers import Buffer, check_type
from .safety.call_log import NAMES, logged

# Methods that compute on buffers, by the datatype that mpi4py finds for them; not Iallreduce, which is our own
REDUCTIONS = (
    "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
    "Ireduce", "Ireduce_scatter_block", "Ireduce_scatter", "Iscan", "Iexscan",
    "Reduce_init", "Allreduce_init", "Reduce_scatter_block_init", "Reduce_scatter_init", "Scan_init", "Exscan_init",
)  # fmt: skip
# Not Create_cart and the like, whose results have methods that a Comm has not
MAKERS = (
    "Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone", "Create", "Create_group", "Split", "Split_type",
    "Shrink",
)  # fmt: skip
Method = Callable[..., Any]  # of mpi4py, with arguments of any type


class Inherited(MPI.Intracomm):
    """Base of ``Comm``."""

    @abstractmethod
    def _child(self, made_by_mpi: MPI.Comm) -> MPI.Comm:
        """Return a new communicator as one of this class, with the same settings."""


def making(method: Method) -> Method:
    """Let a method that makes a communicator, or a pair of one and a request, return a ``Comm``."""

    @wraps(method)
    def make(self: Inherited, *arguments: object, **options: object) -> object:
        result = method(self, *arguments, **options)
        return (self._child(result[0]), *result[1:]) if isinstance(result, tuple) else self._child(result)

    return make


def typed(method: Method) -> Method:
    """Refuse buffers whose type MPI lacks: mpi4py would let MPI add the bits of bfloat16 as those of float16."""

    @wraps(method)
    def call(self: Inherited, sendbuf: Buffer, recvbuf: Buffer, *arguments: object, **options: object) -> object:
        check_type(sendbuf, "sendbuf")
        check_type(recvbuf, "recvbuf")
        return method(self, sendbuf, recvbuf, *arguments, **options)

    return call


for _name in REDUCTIONS:
    setattr(Inherited, _name, typed(getattr(MPI.Intracomm, _name)))
for _name in NAMES:
    setattr(Inherited, _name, logged(getattr(Inherited, _name)))
for _name in MAKERS:
    if hasattr(MPI.Intracomm, _name):  # all but the last are in every mpi4py
        setattr(Inherited, _name, making(getattr(MPI.Intracomm, _name)))

"""Dense all-reduce schedules: the registry of their names (`table` holds the choice between them).

Each schedule is one file with ``allreduce(link, work, op, ops, scratch, factor, source)``. It replaces the vector
``work`` on every rank by the reduction over the ranks of ``link``, with the same bits on every rank. If a ``source`` is
given, it is reduced instead of ``work`` and stays unchanged; nothing is copied. A ``factor`` other than 1 multiplies
every element of the result as it becomes final: for floats in full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument

if TYPE_CHECKING:  # the help of the command line must not import NumPy
    from ..types import Array
    from .interfaces import Arithmetic

ALGORITHMS = {
    "native": "mpicomp.allreduce.native",
    "ring": "mpicomp.allreduce.ring",
    "halving_doubling": "mpicomp.allreduce.halving_doubling",
    "direct": "mpicomp.allreduce.direct",
    "node_shared": "mpicomp.allreduce.node_shared",
}
# For device arrays only, and only on request: not among the names that run everywhere.
ON_DEVICES = frozenset({"nccl"})
# Formats of block codes, by which an all-reduce rounds: for `Comm.Allreduce` only, and only on request.
LOSSY = ("int8", "int4", "fp8")
# In host memory: device arrays go through the host, even if MPI takes device memory.
ON_HOSTS = frozenset({"node_shared", *LOSSY})
# The array operation that combines two operands, by the name of the reduction.
VERBS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}
# NumPy functions for integers in host memory, used by `node_shared` between nodes; otherwise MPI's own call runs them.
LOGIC = {
    "land": "logical_and", "lor": "logical_or", "lxor": "logical_xor",
    "band": "bitwise_and", "bor": "bitwise_or", "bxor": "bitwise_xor",
}  # fmt: skip

Combine = Callable[["Array", "Array"], None]


def names() -> list[str]:
    """Names accepted as ``algorithm=``; ``auto`` picks one of the others by size and number of ranks."""
    return ["auto", *ALGORITHMS]


def unknown_algorithm(name: str, known: Iterable[str], where: str = "") -> InvalidArgument:
    """The error about an algorithm that is not ``known``; ``where`` is such as " for bcast"."""
    known = list(known)
    return InvalidArgument(f"unknown algorithm {name!r}{did_you_mean(name, known)}: "
                           f"choose one of {', '.join(known)}{where}")


def check_name(name: str) -> str:
    if name not in ALGORITHMS and name != "auto":
        raise unknown_algorithm(name, names())
    return name


def check_requested(name: str) -> str:
    """Check a name as ``check_name`` does; allow schedules for device arrays, too."""
    if name in LOSSY:
        raise InvalidArgument(f"algorithm={name!r} is lossy, for Comm.Allreduce alone: choose one of "
                              f"{', '.join(names())}, or a scheme of a Reducer")
    return name if name in ON_DEVICES else check_name(name)


def check_home(name: str, vector: object) -> None:
    """Refuse a schedule for device arrays if the vectors are NumPy's."""
    if name in ON_DEVICES and type(vector).__module__ == "numpy":
        raise InvalidArgument(f"algorithm={name!r} adds arrays in CUDA memory, got arrays in host memory: use 'auto'")


def get(name: str) -> Callable[..., None]:
    """Return the schedule called ``name``."""
    if name in LOSSY:
        return partial(import_module("mpicomp.allreduce.block_codes").allreduce, format=name)
    if name not in ALGORITHMS:
        raise unknown_algorithm(name, ALGORITHMS)
    return _module(ALGORITHMS[name]).allreduce


_module = cache(import_module)  # which takes longer for what is imported already


def combiner(ops: Arithmetic, op: str, factor: float = 1.0) -> Combine:
    """Return ``combine(dst, src)``: dst = (dst OP src) * factor, element by element."""
    if factor != 1.0:
        combine = combiner(ops, op)

        def finish(dst: Array, src: Array) -> None:
            combine(dst, src)
            ops.scale(dst, factor)

        return finish
    if op in LOGIC:
        function = getattr(import_module("numpy"), LOGIC[op])
        return lambda dst, src: function(dst, src, out=dst)
    if op not in VERBS:
        raise InvalidArgument(f"unknown reduction {op!r}: choose one of {', '.join([*VERBS, *LOGIC])}")
    return getattr(ops, VERBS[op])

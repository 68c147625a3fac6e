"""Dense all-reduce schedules: the registry of their names, and the choice between them.

Each schedule is one file with ``allreduce(link, work, op, ops, scratch)``: it replaces the vector ``work`` on every
rank by the reduction over the ranks of ``link``, in place and with the same bits on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..errors import InvalidArgument

ALGORITHMS = {
    "native": "mpicomp.allreduce.native",
    "ring": "mpicomp.allreduce.ring",
    "halving_doubling": "mpicomp.allreduce.halving_doubling",
    "direct": "mpicomp.allreduce.direct",
}
# The array operation that combines two operands, by the name of the reduction.
VERBS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}


def names() -> list[str]:
    """Names accepted as ``algorithm=``; ``auto`` picks one of the others by size and number of ranks."""
    return ["auto", *ALGORITHMS]


def check_name(name: str) -> str:
    if name not in ALGORITHMS and name != "auto":
        raise InvalidArgument(f"unknown algorithm {name!r}: choose one of {', '.join(names())}")
    return name


def get(name: str) -> Callable[..., None]:
    """The schedule called ``name``."""
    if name not in ALGORITHMS:
        raise InvalidArgument(f"unknown algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}")
    return import_module(ALGORITHMS[name]).allreduce


def combiner(ops: Any, op: str) -> Callable[[Any, Any], None]:
    """``combine(dst, src)``: dst = dst OP src, element by element."""
    if op not in VERBS:
        raise InvalidArgument(f"unknown reduction {op!r}: choose one of {', '.join(VERBS)}")
    return getattr(ops, VERBS[op])


# (largest message in bytes, algorithm), tried in order; measured, see docs/benchmarks.md.
CHOICE = ((64 * 1024, "native"), (float("inf"), "ring"))


def choose(nbytes: int, size: int) -> str:
    """The algorithm behind ``auto`` for a vector of ``nbytes`` on ``size`` ranks."""
    if size == 1:
        return "native"
    return next(name for largest, name in CHOICE if nbytes <= largest)

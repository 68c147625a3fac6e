"""What ``mpicomp bench schemes`` measures: each scheme on every rank alone, then its step over all ranks."""

from __future__ import annotations

from typing import Any

from ..comm.comm import Comm
from . import data
from .allreduce import Vectors
from .compressed import Alone, Compressed, noise
from .plan import Plan


def implementations(comm: Any, plan: Plan, n: int) -> list[Any]:
    """Dense algorithms to compare with; then each scheme twice."""
    made: list[Any] = data.dense(comm, plan, Vectors(comm, plan, n)) if plan.algorithms else []
    own = comm.Split(comm.rank, 0)
    gradient, alone = noise(comm.rank, plan, n), Comm(own)
    own.Free()
    for scheme in plan.schemes:
        made += [Alone(comm, alone, scheme, gradient, plan.device), Compressed(comm, scheme, gradient, plan.device)]
    return made

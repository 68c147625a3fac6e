"""Number of threads of an operation on long arrays: ``MPICOMP_NUM_THREADS``, or this rank's share of its CPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

from ..errors import InvalidArgument
from .extension import AVAILABLE

if AVAILABLE:
    from . import _cpu

VARIABLE = "MPICOMP_NUM_THREADS"
# Ranks that the launcher started on this node, or on each: Open MPI's mpirun, MPICH's mpiexec, Slurm's srun ("4(x2),3")
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")

_compared = 0  # ranks of this node whose CPUs are known, at most so far


def count() -> int:
    """Return the number of threads that a call of this thread may use now."""
    return _cpu.threads() if AVAILABLE else 1


def read_environment() -> str | None:
    """Take the number from the environment, or return the error in it, or in ``MPICOMP_ISA``."""
    try:
        if AVAILABLE:
            _cpu.set_threads(os.environ.get(VARIABLE, ""))
            _cpu.isa()
    except InvalidArgument as error:
        return str(error)
    return None


def share_cpus(masks: Sequence[Collection[int]]) -> None:
    """Take this rank's share of its CPUs, given those of ranks of this node, this one among them.

    If the launcher started more ranks here, the others are taken to crowd the CPUs as these do. Fewer ranks than an
    earlier call had change nothing.
    """
    global _compared
    if not AVAILABLE or len(masks) < _compared:
        return
    _compared = len(masks)
    own = os.sched_getaffinity(0)
    share = sum(1 / max(1, sum(cpu in mask for mask in masks)) for cpu in own)
    _cpu.set_crowd(len(own) / share * max(1, local_ranks() / len(masks)))


def local_ranks() -> int:
    """Return the number of ranks that the launcher started on this node, or on the fullest; 1 if it is unknown."""
    for name in LOCAL_RANKS:
        found = [int(number) for number in re.findall(r"(?:^|,)(\d{1,9})", os.environ.get(name, ""))]
        if found:
            return max(1, *found)
    return 1

"""What a job's environment sets for ``Comm``: read by one rank, the same on all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from mpi4py import MPI

from .allreduce import ALGORITHMS
from .allreduce.table import Row, Table, built_in, load
from .errors import InvalidArgument

VARIABLE = "MPICOMP_TUNING"
REPRODUCIBLE_VARIABLE = "MPICOMP_REPRODUCIBLE"
NODE_VARIABLE = "MPICOMP_RANKS_PER_NODE"
ALGORITHM_VARIABLE = "MPICOMP_ALGORITHM"
CHECK_VARIABLE = "MPICOMP_CHECK"


def shared_table(comm: MPI.Intracomm) -> Table:
    """The table in the file that rank 0's ``MPICOMP_TUNING`` names; the built-in one without it (collective)."""
    text = error = None
    path = os.environ.get(VARIABLE)
    if comm.Get_rank() == 0 and path:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as caught:
            error = f"{VARIABLE}={path}: {getattr(caught, 'strerror', None) or caught}"
    path, text, error = comm.bcast((path, text, error))
    if error:
        raise InvalidArgument(f"{error}: write a table with mpicomp tune, or unset {VARIABLE}")
    return built_in() if text is None else load(text, str(path), list(ALGORITHMS))


def node_limit(comm: MPI.Intracomm) -> int:
    """The most ranks that count as one node, by rank 0's ``MPICOMP_RANKS_PER_NODE``; 0 without it (collective)."""
    text = comm.bcast(os.environ.get(NODE_VARIABLE))
    if text is None:
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise InvalidArgument(f"{NODE_VARIABLE} must be a number of ranks, 1 or more, got {text!r}: set or unset it")
    return int(text)


def job_settings(comm: MPI.Intracomm) -> tuple[str, str]:
    """Rank 0's ``MPICOMP_ALGORITHM`` and ``MPICOMP_CHECK``, on all ranks (collective).

    Launchers do not pass every variable to every host: ranks that went by their own would wait for each other.
    """
    wanted = os.environ.get(ALGORITHM_VARIABLE, "auto"), os.environ.get(CHECK_VARIABLE, "auto")
    return MPI.Intracomm.bcast(comm, wanted)


def reproducible_for(comm: MPI.Intracomm, wanted: bool | None) -> bool:
    """Whether this communicator sums in rank order: as asked for, else by rank 0's environment (collective)."""
    code = -1 if wanted is None else int(bool(wanted))
    ends = np.array([code, -code], np.int64)
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, ends, MPI.MAX)
    if ends[0] != -ends[1]:  # only now a list of all ranks
        everyone = MPI.Intracomm.allgather(comm, wanted)
        raise InvalidArgument(f"reproducible must be the same on all ranks, got {everyone} in the order of the ranks")
    if wanted is not None:
        return bool(wanted)
    text: str = MPI.Intracomm.bcast(comm, os.environ.get(REPRODUCIBLE_VARIABLE, "0"))
    if text not in ("0", "1"):
        raise InvalidArgument(f"{REPRODUCIBLE_VARIABLE} must be 0 or 1, got {text!r}: set or unset it")
    return text == "1"


def rows_for(comm: MPI.Intracomm, ranks_per_node: int, nodes: int) -> dict[str, Row]:
    """By device, the row of the table that fits the job (collective)."""
    table = shared_table(comm)
    return {device: table.row(ranks_per_node, nodes, device) for device in ("cpu", "gpu")}

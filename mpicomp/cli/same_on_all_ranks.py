"""Whether all ranks were told to do the same: launchers and shells can give each its own options or configuration."""

from __future__ import annotations

import shlex
import zlib
from typing import Any

from ..errors import Disagreement

FAILED = -1


def compare(comm: Any, command: list[str] | None) -> None:
    """Raise `Disagreement` on every rank unless all have the same command line (collective); None: this one has failed.

    Where one has failed nothing is raised: what it has to say ends the job.
    """
    import numpy as np  # not for --help

    digest = FAILED if command is None else zlib.crc32("\0".join(command).encode(errors="surrogateescape"))
    digests = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([digest], np.int64), digests)
    if FAILED in digests or (digests == digests[0]).all():
        return
    from ..comm.safety.agreement import sides

    told = sides(comm.allgather(shlex.join(command or [])))
    raise Disagreement(f"the ranks were told to do different things. {'; '.join(told)}. Give all the same options, and "
                       "the same configuration (MPICOMP_CONFIG), if any")  # fmt: skip

"""What the launcher's environment says before MPI is started: good enough for texts, never for data."""

from __future__ import annotations

import os

# Each launcher's own names, (rank, size); Slurm's only where srun started this process (SLURM_PROCID is set).
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMIX_RANK", ""),
)


def rank_hint() -> int:
    """This process's rank as the launcher numbers it; 0 without a launcher."""
    return next((value for value, _ in _hints()), 0)


def size_hint() -> int:
    """The number of processes the launcher started; 1 without a launcher or where it does not say."""
    return max((value for _, value in _hints()), default=1)


def _hints() -> list[tuple[int, int]]:
    return [
        (int(os.environ[rank]), _positive(os.environ.get(size, "")))
        for rank, size in _VARIABLES
        if os.environ.get(rank, "").isdigit()
    ]


def _positive(text: str) -> int:
    return int(text) if text.isdigit() else 1

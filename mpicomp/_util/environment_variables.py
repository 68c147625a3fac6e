"""Environment variables that explain a measurement, for files that people share."""

from __future__ import annotations

import os

# Only these are kept: others may be private or secret.
PREFIXES = ("OMPI_MCA_", "PRTE_MCA_", "UCX_", "MPICH_", "MPIR_CVAR_", "FI_", "NCCL_", "MPICOMP_")
NAMES = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
         "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # fmt: skip
LONGEST = 256  # characters; longer values are left out


def explaining() -> dict[str, str]:
    """The variables that are set, in alphabetical order."""
    return {
        name: value for name, value in sorted(os.environ.items())
        if (name.startswith(PREFIXES) or name in NAMES) and len(value) <= LONGEST
    }  # fmt: skip

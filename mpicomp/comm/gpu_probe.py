"""Probe of MPI's CUDA support, in a child process: an MPI without it crashes.

``main`` is the child: a job of one rank, which reduces and sends to itself arrays in CUDA memory, by the calls that
`transport.MpiLink` makes on such arrays.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache

from mpi4py import MPI

from .._util.subprocesses import python
from ..ops.gpu import cuda_runtime

WRONG, NO_GPU = 3, 4  # exit codes of the child; 0: all is right
COUNTS = 1000, 1 << 20  # elements: MPI libraries send short and long messages by different protocols
# Variables by which a process knows its launcher: the child is a job of its own.
_LAUNCHERS = ("OMPI_COMM_", "OMPI_APP", "OMPI_ARGV", "OMPI_COMMAND", "OMPI_FIRST_RANKS", "OMPI_MCA_ess", "OMPI_NUM_APP",
              "OMPI_UNIVERSE", "PALS_", "PMIX_", "PMI_", "PMI2_", "PRTE_", "HYD", "MPIR_", "SLURM_")  # fmt: skip


def probe(patience_s: float = 60.0) -> tuple[bool | None, str]:
    """Return True if MPI moves CUDA memory correctly, None if there is no GPU; and the observation.

    Parameters
    ----------
    patience_s : float
        The child is killed after so many seconds.
    """
    alone = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    child = python("from mpicomp.comm.gpu_probe import main; sys.exit(main())")
    try:
        done = subprocess.run(
            child, env=alone, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=patience_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"did not return within {patience_s:g} s"
    said = (done.stdout.splitlines() or [""])[-1]
    if done.returncode in (0, WRONG, NO_GPU):
        return {0: True, WRONG: False, NO_GPU: None}[done.returncode], said
    if done.returncode < 0:
        return False, f"ended by signal {-done.returncode}"
    error = (done.stderr.strip().splitlines() or ["no word"])[-1]
    return False, f"failed with exit code {done.returncode}: {error}"


@lru_cache(maxsize=1)
def probe_once() -> tuple[bool | None, str]:
    """Return the result of the first `probe` of this process."""
    return probe()


def forced(comm: MPI.Intracomm, unsupported: bool, reason: str) -> tuple[str, str]:
    """Return ``direct`` if a probe succeeds although MPI reports no support, else ``none`` (collective).

    The first rank whose MPI is ``unsupported``, by its own report, runs the probe. ``reason`` is the error for device
    arrays, to which the result of the probe is added.
    """
    first = MPI.Intracomm.allreduce(comm, comm.Get_rank() if unsupported else comm.Get_size(), MPI.MIN)
    right, seen = MPI.Intracomm.bcast(comm, probe_once() if comm.Get_rank() == first else None, first)
    if right:
        return "direct", f"MPICOMP_GPU_PATH=direct, and a probe succeeds: {seen}"
    return "none", f"{reason} (a probe {'fails' if right is False else 'is not possible'}: {seen})"


def main() -> int:
    """Run the child: all-reduces from a source and in place, and a message, of arrays in CUDA memory."""
    try:
        xp = cuda_runtime.xp()
        xp.cuda.runtime.getDeviceCount()
        sent = [xp.arange(count, dtype="float32") for count in COUNTS]
    except Exception as error:  # CuPy has many errors for "no GPU"; the parent prints this one
        print(f"{type(error).__name__}: {error}".splitlines()[0])
        return NO_GPU
    results = [(send, xp.zeros_like(send), xp.zeros_like(send)) for send in sent]
    xp.cuda.runtime.deviceSynchronize()
    for send, summed, moved in results:
        MPI.COMM_SELF.Allreduce(send, summed)
        MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, summed)
        for request in (MPI.COMM_SELF.Irecv(moved, 0), MPI.COMM_SELF.Isend(send, 0)):
            request.Wait()
    xp.cuda.runtime.deviceSynchronize()
    wrong = sum(int((xp.asnumpy(got) != xp.asnumpy(send)).sum()) for send, *received in results for got in received)
    print(f"{wrong} of {2 * sum(COUNTS)} elements are wrong" if wrong else "Allreduce, Isend and Irecv are right")
    return WRONG if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

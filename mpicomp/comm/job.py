"""Facts of the whole job: its launcher, its end if a rank fails, and MPI's CUDA support."""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from types import TracebackType
from typing import TypeAlias

from mpi4py import MPI

from ..errors import InvalidArgument, RankLeft

Intracomm: TypeAlias = MPI.Intracomm  # for signatures of other folders

# (variable with the number of processes started, variable that must be set too, launcher)
# SLURM_NTASKS is not among them: in the one process of an interactive step (salloc's shell) it is that of the job.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", None, "Open MPI's mpirun"),
    ("PMI_SIZE", None, "an MPICH or PMI launcher"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "Slurm's srun"),
)
# (variable with this process's rank, launcher): a rank above 0 is not alone, whatever else is set
RANKS = (
    ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun"),
    ("PMI_RANK", "an MPICH or PMI launcher"),
    ("SLURM_PROCID", "Slurm's srun"),
    ("PMIX_RANK", "a PMIx launcher"),
)
LEFT_S = 2.0  # time for the rank that has left to print its error before another one ends the job
GPU_VARIABLE = "MPICOMP_GPU_PATH"
GPU_PATHS = ("auto", "direct", "staged")
DRIVER = "libcuda.so.1"  # without it no process has arrays in CUDA memory
CRAY, CRAY_VARIABLE = "CRAY MPICH", "MPICH_GPU_SUPPORT_ENABLED"
FIRST_SAFE_MPICH = (4,)  # older ones fail an assertion in a query for CUDA support if built without it


def world() -> MPI.Intracomm:
    """Return all ranks of the job."""
    return MPI.COMM_WORLD


def this_rank() -> str:
    """Return rank, host and process id, for the beginning of a line on standard error."""
    host, pid = socket.gethostname(), os.getpid()
    return f"[mpicomp] rank {world().Get_rank()} of {world().Get_size()} (host {host}, pid {pid})"


def launcher_mismatch() -> str | None:
    """Return the reason why this process is alone although its launcher started several; None if it is not.

    MPI libraries silently fall back to "rank 0 of 1" if the launcher uses another library's protocol.
    """
    if world().Get_size() > 1 or os.environ.get("MPICOMP_ALLOW_SINGLETON") == "1":
        return None
    for variable, needed, launcher in LAUNCHERS:
        started = os.environ.get(variable, "")
        if started.isdigit() and int(started) > 1 and (needed is None or needed in os.environ):
            return mismatch_text(variable, int(started), int(started), launcher)
    for variable, launcher in RANKS:
        rank = os.environ.get(variable, "")
        if rank.isdigit() and int(rank) > 0:
            return mismatch_text(variable, int(rank), int(rank) + 1, launcher)
    return None


def mismatch_text(variable: str, value: int, started: int, launcher: str) -> str:
    at_least = "" if value == started else "at least "
    return (
        f"this process is rank 0 of 1, but {launcher} started {at_least}{started} ({variable}={value}): mpi4py runs on "
        f"{library_name()}, which that launcher cannot start. Use the launcher of that library "
        f"({next_to_interpreter('mpirun')} -n {started} ...), or under Slurm: srun --mpi=pmix ... for Open MPI, "
        "srun --mpi=pmi2 ... for MPICH (srun --mpi=list shows the choices). "
        "MPICOMP_ALLOW_SINGLETON=1 runs separate processes on purpose"
    )


@cache
def before_finalize(function: Callable[[], None]) -> None:
    """Call ``function`` at exit, and in the program's own ``MPI.Finalize()`` before MPI is finalized."""
    atexit.register(function)
    MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: function()), None)


def library_name() -> str:
    """Return name and version of the MPI library."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


def next_to_interpreter(program: str) -> str:
    """Return the path of a program next to this interpreter, as of an MPI from the package index; else its name."""
    path = os.path.join(os.path.dirname(sys.executable), program)
    return path if os.path.exists(path) else program


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_previous_hook: Hook | None = None
_ending: Callable[[], object] | None = None


def install_abort() -> None:
    """Let an uncaught exception on one rank end the whole job: the other ranks would wait forever."""
    global _previous_hook
    if _previous_hook is None and os.environ.get("MPICOMP_ABORT", "1") != "0" and not hasattr(sys, "ps1"):
        _previous_hook, sys.excepthook = sys.excepthook, report_and_abort


def end_by(ending: Callable[[], object]) -> None:
    """Let an uncaught exception end this process by ``ending``, which does not return, instead of MPI's abort."""
    global _ending
    _ending = ending


def report_and_abort(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print the usual traceback and the rank that failed; abort MPI after the interpreter's exit handlers."""
    assert _previous_hook is not None
    _previous_hook(kind, error, traceback)
    if MPI.Is_initialized() and not MPI.Is_finalized():
        from mpi4py.run import set_abort_status

        print(f"{this_rank()}: {kind.__name__}: {error}", file=sys.stderr, flush=True)
        if issubclass(kind, RankLeft):
            time.sleep(LEFT_S)
        if _ending is not None:
            _ending()
        set_abort_status(error if isinstance(error, KeyboardInterrupt) else 1)


def gpu_path(wanted: str | None = None) -> tuple[str, str]:
    """Return the path of device arrays to this process's MPI and its reason.

    ``wanted`` is one of GPU_PATHS, by default that of the environment. A ``Comm`` has the ``gpu_path`` of all its
    ranks.

    ``direct``: MPI reads and writes device memory. ``staged``: through pinned host buffers. ``none``:
    ``MPICOMP_GPU_PATH`` requests direct and this MPI does not report support: device arrays are refused unless a
    probe succeeds (`settings.job_settings`).
    """
    wanted = os.environ.get(GPU_VARIABLE, "auto") if wanted is None else wanted
    if wanted not in GPU_PATHS:
        raise InvalidArgument(f"{GPU_VARIABLE} must be one of {', '.join(GPU_PATHS)}, got {wanted!r}")
    if wanted == "staged":
        return "staged", "MPICOMP_GPU_PATH=staged"
    aware, reason = cuda_aware()
    if wanted == "direct" and not aware:
        return "none", (
            f"MPICOMP_GPU_PATH=direct, but {reason}: start with a CUDA-aware MPI, "
            "or set MPICOMP_GPU_PATH=staged to go through host memory"
        )
    return ("direct" if aware else "staged"), reason


@lru_cache(maxsize=1)
def cuda_aware() -> tuple[bool, str]:
    """Return True if MPI reports that it takes CUDA memory, and the report."""
    kinds = world().Get_info().Get("mpi_memory_alloc_kinds")
    if kinds and any(kind.split(":")[0] == "cuda" for kind in kinds.split(",")):
        return True, f"{library_name()} lists cuda in mpi_memory_alloc_kinds ({kinds})"
    missing = no_device_arrays()
    if missing:
        return False, f"{missing}, so {library_name()} was not asked"
    if CRAY in MPI.Get_library_version().upper():  # MPI_Init fails if it is set without the library for GPUs
        wanted = os.environ.get(CRAY_VARIABLE, "0")
        return wanted == "1", f"{library_name()} is Cray MPICH with {CRAY_VARIABLE}={wanted}"
    name, version = MPI.get_vendor()
    if name == "MPICH" and version < FIRST_SAFE_MPICH:
        return False, f"{library_name()} was not asked: before {FIRST_SAFE_MPICH[0]}.0 the query may end the process"
    for query, ask in QUERIES.items():
        try:
            answer = ask(getattr(ctypes.CDLL(MPI.__file__), query))
        except (OSError, AttributeError):
            continue
        return answer, f"{library_name()} answers {'yes' if answer else 'no'} to {query}"
    return False, f"{library_name()} has no query for CUDA support"


def no_device_arrays() -> str | None:
    """Return the reason why this process cannot have arrays in CUDA memory; None if it can."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return f"this host has no CUDA driver ({DRIVER})"
    return None if find_spec("cupy") else "CuPy, which device arrays need, is not installed"


def _ask_mpich(query: ctypes._NamedFuncPointer) -> bool:
    supported = ctypes.c_int(0)
    return query(0, ctypes.byref(supported)) == 0 and supported.value == 1  # 0: MPIX_GPU_SUPPORT_CUDA


# MPICH has both; the first one is asked.
QUERIES: dict[str, Callable[[ctypes._NamedFuncPointer], bool]] = {
    "MPIX_GPU_query_support": _ask_mpich,
    "MPIX_Query_cuda_support": lambda query: query() == 1,
}

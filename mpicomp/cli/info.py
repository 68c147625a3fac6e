"""``mpicomp info``: check launcher, MPI, devices and binding, and advise on every problem."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from glob import glob
from typing import TYPE_CHECKING, NamedTuple

import click

from .._util import environment_variables
from .._util.plurals import count
from ..bench import environment
from ..errors import InvalidArgument
from ..trace.units import some_ranges
from . import mpi
from .console import print_json, say
from .options import Command, as_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHM_ENOUGH = 256 * 2**20  # bytes; Open MPI and MPICH keep their buffers between the ranks of a node there
HOSTS = 4  # that are named
WAIT_S = 0.02  # from one look at the others to the next


class Finding(NamedTuple):
    """One line of the report; ``advice`` says what to do about a problem."""

    name: str
    value: str
    advice: str = ""


class RankFacts(environment.Rank, total=False):
    """The facts in the report about one rank, beside its place."""

    shm_free: int | None
    settings: dict[str, str]
    threads: int


@click.command(cls=Command)
@as_json()
@click.option("--probe-gpu", is_flag=True, help="Also pass CUDA memory to MPI, in a child process that may crash.")
def info(as_json: bool, probe_gpu: bool) -> None:
    """Check launcher, MPI, GPU path, binding and installation, and advise on every problem.

    Alone it checks this process; under a launcher, the whole job:

    \b
    mpirun -n 4 mpicomp info
    """
    world = mpi.world()
    from ..comm.naps import Naps  # imports MPI

    places = environment.ranks(world)
    place = places[world.rank]
    (path, reason), wrong = _gpu_path(world)
    own: RankFacts = {**place, "gpu": _own_gpu(place["local_rank"]), "shm_free": _shm_free(), "settings": _settings(),
                      "threads": _threads([one["cpus"] for one in places if one["host"] == place["host"]])}
    table: list[RankFacts] = world.allgather(own)
    speaks = world.rank == 0 and mpi.rank_hint() == 0
    probed = tuple(_probe(path)) if probe_gpu and speaks else ()
    # The ranks sleep until all have arrived: the probe takes a minute if MPI hangs, and needs the CPU meanwhile.
    Naps(int, WAIT_S, WAIT_S).until_done(world.Ibarrier())
    if not speaks:
        return
    findings = [*_job(table), *_gpu(path, reason), *probed, *_devices(table), *_node(table), *_here(table, wrong),
                *_operations(table), *_installation()]  # fmt: skip
    if as_json:
        print_json(_document(table, findings))
        return
    for finding in findings:
        say(finding.value, f"{finding.name:<14}")
        if finding.advice:
            say(finding.advice, f"{'':<14}-> ")


def _document(table: Sequence[RankFacts], findings: Sequence[Finding]) -> Mapping[str, object]:
    return {
        "format": "mpicomp-info",
        "version": 1,
        "ok": not any(finding.advice for finding in findings),
        "findings": [finding._asdict() for finding in findings],
        "mpi": mpi.library(),
        "versions": environment.versions(),
        "ranks": table,
        "environment": environment_variables.explaining(),
    }


def _job(table: Sequence[RankFacts]) -> Iterator[Finding]:
    from ..comm.comm import launcher_mismatch

    library = mpi.library()
    yield Finding("MPI", f"{library['name']}, MPI {library['standard']}, mpi4py {environment.versions()['mpi4py']}")
    hosts = environment.nodes(table)
    yield Finding("job", f"{count(len(table), 'rank')} on {count(len(hosts), 'node')}: {', '.join(hosts[:HOSTS])}"
                         f"{f', ... ({len(hosts) - HOSTS} more)' * (len(hosts) > HOSTS)}")
    problem = launcher_mismatch()
    started = mpi.size_hint()
    yield Finding("launcher", f"started {count(started, 'process', 'es')}", problem or "")
    level = library["thread_level"]
    off = "" if level == "MULTIPLE" else "overlap and watchdog need MULTIPLE: unset MPI4PY_RC_THREAD_LEVEL"
    yield Finding("threads", f"MPI_THREAD_{level}", off)


def _gpu_path(world: mpi.MPI.Intracomm) -> tuple[tuple[str, str], str]:
    """Path of device memory to MPI with its reason, and why no ``Comm`` of all ranks can be made (collective)."""
    from ..comm.safety.watchdog import wrong_variable
    from ..comm.settings import job_settings

    try:
        return job_settings(world, None, wrong_variable()).gpu_path, ""
    except InvalidArgument as error:  # on every rank
        return ("none", "no Comm can be made: see the settings"), str(error)


def _gpu(path: str, reason: str) -> Iterator[Finding]:
    devices = sorted(glob("/dev/nvidia[0-9]*"))
    slower = path == "staged" and devices and os.environ.get("MPICOMP_GPU_PATH") != "staged"
    copies = "arrays are copied through host memory: an MPI built for CUDA avoids that (try --probe-gpu)"
    yield Finding("GPU path", f"{path} ({reason})", reason if path == "none" else copies if slower else "")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
    cupy = importlib.util.find_spec("cupy") is not None
    missing = devices and not cupy
    yield Finding(
        "GPUs",
        f"{len(devices) or 'none'} on this node{shown}; CuPy is {'' if cupy else 'not '}installed",
        "install CuPy for them: pip install 'mpicomp[cuda12]' or 'mpicomp[cuda13]'" if missing else "",
    )


def _probe(path: str) -> Iterator[Finding]:
    """The result of passing CUDA memory to MPI, on the node of rank 0."""
    from ..comm.gpu_probe import probe

    right, seen = probe()
    if right is None:
        yield Finding("GPU probe", f"not possible here: {seen}", "run it on a node with a GPU and CuPy")
    elif right:
        staged = "" if path == "direct" else "; arrays go through host memory all the same, since MPI does not say so"
        yield Finding("GPU probe", f"MPI takes CUDA memory: {seen}{staged}")
    else:
        broken = "MPI claims CUDA memory that it cannot handle: set MPICOMP_GPU_PATH=staged, or repair UCX and MPI"
        yield Finding("GPU probe", f"MPI does not take CUDA memory: {seen}", broken if path == "direct" else "")


def _own_gpu(local_rank: int) -> environment.Gpu | None:
    """The GPU that this rank would use; imports CuPy, which is slow, only if the node has a GPU."""
    if not glob("/dev/nvidia[0-9]*"):
        return None
    from ..bench.devices import device_of_rank

    return device_of_rank(local_rank)


def _devices(table: Sequence[RankFacts]) -> Iterator[Finding]:
    """The GPU of each rank."""
    from ..bench.devices import shared

    crowded = shared(table)
    for one in table:
        rank, gpu = one["rank"], one["gpu"]
        if gpu is None:
            continue
        sharing = next((ranks for ranks in crowded.values() if rank in ranks), [])
        advice = f"ranks {', '.join(map(str, sharing))} share it: start one rank per GPU, or request more GPUs per node"
        text = f"GPU {gpu['number']} of {one['host']}, {gpu['name']} {gpu['uuid'][:8]}"
        yield Finding(f"rank {rank}", text, advice if sharing else "")


def _node(table: Sequence[RankFacts]) -> Iterator[Finding]:
    kind = environment.binding(table)
    cpus = f"rank 0 may run on {count(len(table[0]['cpus']), 'CPU')} of {os.cpu_count()}; binding: {kind}"
    bind = "bind each rank to CPUs of its own: mpirun --bind-to core ..., srun --cpu-bind=cores ..."
    crowded = environment.oversubscribed(table)
    free_to_move = kind == "none" and len(table) > len(environment.nodes(table)) and not crowded
    yield Finding("CPUs", cpus, bind if kind == "overlapping" or free_to_move else "")
    yield Finding(
        "load", crowded or "no more ranks than CPUs",
        "times will not be comparable: start at most one rank per CPU" if crowded else "",
    )  # fmt: skip
    least = min(((one["shm_free"], one["host"]) for one in table if one["shm_free"] is not None), default=None)
    if least is not None:
        small = "messages between ranks of a node may fail: enlarge it (containers: --shm-size=1g)"
        text = f"{least[0] / 2**20:.0f} MiB free on {least[1]}, the least of all nodes"
        yield Finding("/dev/shm", text, small if least[0] < SHM_ENOUGH else "")


def _here(table: Sequence[RankFacts], wrong: str) -> Iterator[Finding]:
    """The folder for results and for the journals of a trace; the settings in rank 0's environment."""
    folder = os.getcwd()
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    advice = "" if os.access(folder, os.W_OK) else "choose a writable folder for --trace and --output"
    full = "little room for a trace (48 bytes per event and rank): write it elsewhere" if free < SHM_ENOUGH else ""
    yield Finding("folder", f"{folder}, {free / 2**30:.1f} GiB free", advice or full)
    settings = ", ".join(f"{name}={value}" for name, value in table[0]["settings"].items()) or "no MPICOMP_ variable"
    yield Finding("settings", settings + _other_settings(table), wrong)


def _settings() -> dict[str, str]:
    return {name: value for name, value in environment_variables.explaining().items() if name.startswith("MPICOMP_")}


def _other_settings(table: Sequence[RankFacts]) -> str:
    """The ranks whose settings differ from rank 0's: launchers do not pass every variable to every host."""
    first = table[0]["settings"]
    others = [one for one in table if one["settings"] != first]
    if not others:
        return ""
    names = sorted({name for one in others for name, _ in first.items() ^ one["settings"].items()})
    ranks = some_ranges([one["rank"] for one in others])
    return f"; rank {ranks}: other values of {', '.join(names)} (docs/reliability.md says which count: Variables)"


def _threads(masks: list[list[int]]) -> int:
    """Number of threads of this rank's operations, 0 if the environment does not allow any."""
    from ..ops import threads

    threads.share_cpus(masks)
    try:
        return threads.count()
    except InvalidArgument:
        return 0


def _operations(table: Sequence[RankFacts]) -> Iterator[Finding]:
    """The threads of the compiled operations, and the first rank whose environment has another number."""
    least, most = (choice(one["threads"] for one in table) for choice in (min, max))
    advice = ""
    for one in table:
        wanted, has = one["settings"].get("MPICOMP_NUM_THREADS", ""), one["threads"]
        if not has:
            advice = f"rank {one['rank']}: MPICOMP_NUM_THREADS must be 1 or more, got {wanted!r}: set or unset it"
        elif wanted and int(wanted) > has:
            advice = (f"rank {one['rank']}: MPICOMP_NUM_THREADS={wanted}, but it may run on {count(has, 'CPU')}: "
                      "bind it to more, or lower the number")  # fmt: skip
        if advice:
            break
    yield Finding("op threads", f"{least} to {most} per rank" if least < most else f"{most} per rank", advice)


def _installation() -> Iterator[Finding]:
    try:
        from ..ops.cpu import isa

        yield Finding("ops", f"compiled, {isa()}")
    except ImportError as error:
        yield Finding("ops", f"not usable: {error}", "build them: pip install . (needs a C++17 compiler)")
    try:
        from ..bench.hdf5 import build

        yield Finding("HDF5", f"{build()} (serial is enough)")
    except ImportError as error:
        yield Finding("HDF5", f"not usable: {error}", "install it again: pip install --force-reinstall h5py")
    others = {name: version for name, version in environment.versions().items() if name not in ("mpi4py", "h5py")}
    yield Finding("versions", ", ".join(f"{name} {version}" for name, version in others.items() if version))


def _shm_free() -> int | None:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return None
    return status.f_bavail * status.f_frsize

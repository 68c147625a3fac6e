"""The backend ``mpicomp`` of ``torch.distributed``: its registration, how its ranks meet, and its process groups.

``torch.distributed.init_process_group("mpicomp")`` needs no address, port, rank or world size: MPI knows them.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlparse
from zlib import crc32

import torch.distributed as dist

from ..comm.job import Intracomm, launcher_mismatch, world
from ..comm.safety.agreement import rebuild
from ..errors import InvalidArgument, MpicompError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from .process_group import MpicompGroup

NAME = "mpicomp"
CONNECT = timedelta(seconds=60)  # for all ranks to reach rank 0's store
MOST_TAGS = 1 << 15  # MPI allows as many
Rendezvous = Callable[..., Iterator["tuple[Store, int, int]"]]
R = TypeVar("R")


def register() -> None:
    """Make the backend known to PyTorch; repeated calls change nothing."""
    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    from torch.distributed.rendezvous import _rendezvous_handlers

    _rendezvous_handlers["env"] = over_mpi(_rendezvous_handlers["env"])
    _rendezvous_handlers["tcp"] = at_an_address(_rendezvous_handlers["tcp"])


def create(options: Any, _: object) -> MpicompGroup:
    """Return the process group for PyTorch's description of it; collective over its ranks."""
    from .process_group import MpicompGroup

    check_launcher()
    everyone, ranks = world(), list(options.global_ranks_in_group)
    if not ranks:
        check_ranks(everyone, options.group_rank, options.group_size)
        return MpicompGroup(everyone, options.store)
    group = everyone.Get_group()
    members = group.Incl(ranks)
    comm = everyone.Create_group(members, crc32(str(options.group_id).encode()) % MOST_TAGS)
    try:
        return MpicompGroup(comm, options.store)
    finally:
        comm.Free()
        members.Free()
        group.Free()


def over_mpi(original: Rendezvous) -> Rendezvous:
    """Return PyTorch's rendezvous by environment variables with another way for this backend, over MPI."""
    def rendezvous(url: str, timeout: timedelta = CONNECT, **options: Any) -> Iterator[tuple[Store, int, int]]:
        if not is_asked_for():
            yield from original(url, timeout=timeout, **options)
            return
        check_launcher()
        variables = {name.lower(): os.environ[name] for name in ("RANK", "WORLD_SIZE") if os.environ.get(name)}
        everyone = world()
        check_given(everyone, url, variables)
        yield shared_store(everyone), everyone.Get_rank(), everyone.Get_size()
        raise MpicompError("a process group of backend mpicomp cannot meet again: restart the job")

    return rendezvous


def at_an_address(original: Rendezvous) -> Rendezvous:
    """Return PyTorch's rendezvous at an address, where this backend has its ranks checked before it waits for all."""
    def rendezvous(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        if is_asked_for():
            check_launcher()
            check_given(world(), url, {})
        yield from original(url, **options)

    return rendezvous


def check_given(comm: Intracomm, url: str, variables: dict[str, str]) -> None:
    """Check the rank and world size in the query of a URL, or else in ``variables`` (collective)."""
    given = {**variables, **dict(parse_qsl(urlparse(url).query))}
    check_ranks(comm, given.get("rank", comm.Get_rank()), given.get("world_size", comm.Get_size()))


def is_asked_for() -> bool:
    """Return True if the caller, ``init_process_group``, was called for this backend: it does not pass the name."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    return frame is not None and NAME in str(frame.f_locals.get("backend")).lower()


def check_launcher() -> None:
    """Refuse a process that MPI takes for a lone one although its launcher started several."""
    problem = launcher_mismatch()
    if problem:
        raise MpicompError(problem)


def check_ranks(comm: Intracomm, rank: int | str, size: int | str) -> None:
    """Raise on every rank if any was given another rank or world size than MPI's (collective)."""
    def check() -> None:
        with suppress(ValueError):  # of a text that is no number
            if (int(rank), int(size)) == (comm.Get_rank(), comm.Get_size()):
                return
        raise InvalidArgument(
            f"backend mpicomp has MPI's ranks: expected rank {comm.Get_rank()} of {comm.Get_size()}, got rank {rank} "
            f"of {size} (RANK, WORLD_SIZE or arguments): leave both out, and start all processes by mpirun or srun"
        )

    together(comm, check)


def shared_store(comm: Intracomm) -> Store:
    """Return a store that rank 0 serves (collective)."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    rank, size = comm.Get_rank(), comm.Get_size()
    name = socket.gethostname()
    one_host = len(set(comm.allgather(name))) == 1
    host = comm.bcast(os.environ.get("MASTER_ADDR") or ("localhost" if one_host else name))

    def store(port: int) -> TCPStore:
        try:
            socket.getaddrinfo(host, port)  # an unknown name fails at once; PyTorch tries for CONNECT
            return TCPStore(host, port, size, rank == 0, CONNECT, wait_for_workers=False)
        except (OSError, RuntimeError, ValueError) as error:  # the last of a malformed name
            raise MpicompError(f"cannot reach rank 0's store at {host}: set MASTER_ADDR to an address of rank 0 that "
                               f"all hosts know ({error})") from error

    served = together(comm, lambda: store(0) if rank == 0 else None)
    port = comm.bcast(served.port if served is not None else 0)
    return together(comm, lambda: served or store(port))


def together(comm: Intracomm, work: Callable[[], R]) -> R:
    """Run rank-local work; if any rank fails, raise its error on every rank (collective; needs no ``Comm``)."""
    result: list[R] = []
    failed: tuple[str, str] | None = None
    try:
        result.append(work())
    except Exception as error:  # of any class: the other ranks wait for it below
        failed = type(error).__name__, f"rank {comm.Get_rank()}: {error}"
    for name, text in filter(None, comm.allgather(failed)):
        raise rebuild(name, text)
    return result[0]

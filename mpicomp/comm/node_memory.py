"""Memory that the ranks of one node share.

A segment is a file in memory that every rank of the node maps; it is unlinked before its first use, so the system
frees it with the last rank that maps it, however the job ends. (A window of ``MPI_Win_allocate_shared`` would do, but
freeing one is collective, which hangs when a rank has failed, an array in it must not outlive it, and Open MPI 5.0.11
as found on the package index prints an error whenever one is made.)
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from mpi4py import MPI

from ..errors import MpicompError
from ..ops import threads
from ..ops.extension import AVAILABLE
from ..ops.node_shared import LINE_BYTES, NodeWindow
from .safety.revocation import announce

PAGE = 4096
ORPHANED_S = 600  # a segment is unlinked milliseconds after it was made
SEARCH_S = 3600  # a process looks for orphans with its first segment, and again after so long
# Results and contributions of one rank travel in slots of so many bytes, DEPTH of them in turn. All slots of a node
# have to fit in a shared cache (4 ranks: 5 MiB); with four in turn a rank seldom waits for another
# (docs/development/measurements.md).
SLOT_BYTES = 1 << 18
DEPTH = 4
SPINS = 2000  # tests of a flag before a rank yields its core, if every rank has one of its own
NOWHERE = (-1, 0)


class Node:
    """The ranks of ``comm`` that share this node's memory; making one is collective over ``comm``.

    Parameters
    ----------
    progress : callable
        Called while this rank waits for others.
    limit : int
        The most ranks that count as one node; 0: all that share memory.
    owners : int, optional
        The first so many ranks reduce a slice of the vector each: the same number on every node, by default all.

    Attributes
    ----------
    problem : str or None
        The reason why there is no shared memory; None if there is, on all nodes alike.
    bytes_shared : int
        Bytes left in the shared memory for the other ranks.
    """

    def __init__(self, comm: MPI.Intracomm, progress: Callable[[], None], limit: int = 0,
                 owners: int | None = None) -> None:
        self.comm = split_node(comm, limit)
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        owners = owners or self.size
        self.progress = progress
        self.problem: str | None = None
        self.bytes_shared = 0
        self._segments: dict[int, Segment] = {}
        self._made = 0
        self._arrays: dict[int, weakref.ref[Part]] = {}  # by segment: this rank's part of it
        control = round_up(LINE_BYTES * self.size, PAGE)
        slots = DEPTH * SLOT_BYTES
        try:
            if not AVAILABLE:
                raise OSError("only compiled operations share memory, and MPICOMP_OPS=reference runs without")
            segment = self._segment(control + 2 * slots if self.rank == 0 else slots)
        except OSError as error:
            self.problem = str(error)
        broken = np.array([self.problem is not None], np.int8)
        comm.Allreduce(MPI.IN_PLACE, broken, MPI.MAX)
        if broken[0]:  # only now a list of all ranks
            self.problem = next(text for text in comm.allgather(self.problem) if text)
            return
        spins = SPINS if self.size <= len(set().union(*self.comm.allgather(os.sched_getaffinity(0)))) else 0
        self._window = NodeWindow(
            segment.address, self.rank, self.size, owners, control, SLOT_BYTES, DEPTH, spins
        )

    def _segment(self, nbytes: int) -> Segment:
        """Return a new segment of ``nbytes`` per rank of the node; raise the same OSError on all of them."""
        segment = Segment(self.comm, nbytes)
        self._segments[self._made] = segment
        self._made += 1
        return segment

    def run(
        self, verb: str, send: np.ndarray, receive: np.ndarray, op: str, kind: str, stream: bool = False,
        factor: float = 1.0,
    ) -> None:
        """Run ``allreduce``, ``reduce_scatter`` or ``all_gather`` among the ranks of this node.

        The reduced values are multiplied by ``factor``; ``stream`` writes results past the caches.
        """
        if verb != "all_gather":
            self.bytes_shared += receive.nbytes
        if verb != "reduce_scatter":
            self.bytes_shared += receive[self.slice(receive)].nbytes
        addresses = [self._segments[i].address if i in self._segments else 0 for i in range(self._made)]
        self._window.run(
            verb, op, kind, send, receive, self._place(send), self._place(receive), addresses, stream, factor,
            self.progress,
        )

    def slice(self, array: np.ndarray) -> slice:
        """Return this rank's slice of ``array``, which it reduces and the others copy; empty if it owns none."""
        return self._window.slice(array.size, array.itemsize)

    def _place(self, array: np.ndarray) -> tuple[int, int]:
        """Return segment and offset of an array in shared memory; NOWHERE for one in private memory."""
        if len(self._segments) == 1:
            return NOWHERE
        address = array.__array_interface__["data"][0]
        for number, segment in self._segments.items():
            if segment.address <= address and address + array.nbytes <= segment.address + segment.nbytes:
                return number, address - segment.address
        return NOWHERE

    def empty(self, nbytes: int) -> np.ndarray:
        """Return ``nbytes`` of memory that the other ranks of the node see; collective over the node.

        Memory of earlier arrays is freed once no rank of the node uses it.
        """
        self._drop_unused()
        try:
            segment = self._segment(max(1, nbytes))
        except OSError as error:
            raise MpicompError(f"no shared memory for {nbytes} bytes per rank: {error}") from error
        part = Part(segment, nbytes)
        self._arrays[self._made - 1] = weakref.ref(part)
        return np.asarray(part)

    def _drop_unused(self) -> None:
        unused = {number for number, part in self._arrays.items() if part() is None}
        for number in set.intersection(*self.comm.allgather(unused)):
            del self._segments[number], self._arrays[number]

    def free(self) -> None:
        """Drop the segments: the system frees them with the last array in them."""
        self._segments.clear()
        self.comm.Free()


class Segment:
    """Memory with a part of every rank, mapped as a whole by each; collective over ``comm``."""

    def __init__(self, comm: MPI.Intracomm, nbytes: int) -> None:
        parts = [round_up(part, PAGE) for part in comm.allgather(nbytes)]
        rank = comm.Get_rank()
        self.begin, self.nbytes = sum(parts[:rank]), sum(parts)
        path, fd = None, None
        problem = None
        try:
            if rank == 0:
                path, fd = create(self.nbytes)
        except OSError as error:
            problem = str(error)
        path = comm.bcast(path)
        try:
            if path is not None:
                fd = os.open(path, os.O_RDWR) if fd is None else fd
                # Each rank allocates its own part, on the memory of its own socket. Without this, a full file system
                # would cause a bus error in the middle of a call.
                os.posix_fallocate(fd, self.begin, max(1, parts[rank]))
                self._map = mmap.mmap(fd, self.nbytes)
        except OSError as error:
            problem = f"{error.strerror}: {path} ({self.nbytes} bytes)"
        problems = [text for text in comm.allgather(problem) if text]
        if fd is not None:
            os.close(fd)
        if rank == 0 and path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if problems:
            raise OSError(problems[0])
        self.address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]


class Part:
    """A rank's own part of a segment, as an object for ``numpy.asarray``; alive while one of its arrays is."""

    def __init__(self, segment: Segment, nbytes: int) -> None:
        self._segment = segment
        address = segment.address + segment.begin
        self.__array_interface__: dict[str, object] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def split_node(comm: MPI.Intracomm, limit: int) -> MPI.Intracomm:
    """Return the ranks of ``comm`` that share memory with this one, in groups of at most ``limit`` (0: all)."""
    node = cast("MPI.Intracomm", announce(comm.Split_type(MPI.COMM_TYPE_SHARED)))
    if limit == 0:
        return node
    part = cast("MPI.Intracomm", announce(node.Split(node.Get_rank() // limit)))
    node.Free()
    return part


def layout_of(comm: MPI.Intracomm, limit: int) -> tuple[int, int, int, int]:
    """Return the number of nodes, the fewest and most ranks on one, and the fewest threads of a rank.

    Collective; no rank lists all others.
    """
    node = split_node(comm, limit)
    threads.share_cpus(node.allgather(os.sched_getaffinity(0)))
    first, here = np.array([node.Get_rank() == 0], np.int64), node.Get_size()
    most = np.array([-here, here, -threads.count()], np.int64)
    node.Free()
    comm.Allreduce(MPI.IN_PLACE, first, MPI.SUM)
    comm.Allreduce(MPI.IN_PLACE, most, MPI.MAX)
    return int(first[0]), -int(most[0]), int(most[1]), -int(most[2])


def ranks_by_node(comm: MPI.Intracomm, limit: int) -> list[list[int]]:
    """Return the ascending ranks of every node (collective)."""
    node = split_node(comm, limit)
    first = node.bcast(comm.Get_rank())
    node.Free()
    found: dict[int, list[int]] = {}
    for rank, leader in enumerate(comm.allgather(first)):
        found.setdefault(leader, []).append(rank)
    return list(found.values())


def create(nbytes: int) -> tuple[str, int]:
    """Return path and descriptor of a new file in /dev/shm, or in the temporary folder if there is none."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    if search_is_due():
        remove_orphans(folder)
    fd, path = tempfile.mkstemp(prefix=f"mpicomp-{os.getpid()}-", dir=folder)
    try:
        os.ftruncate(fd, nbytes)
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return path, fd


_searched: float | None = None  # time of the last search for orphans, by the monotonic clock


def search_is_due() -> bool:
    """Return True if it is time to look for orphans: a folder of thousands of files takes time to search."""
    global _searched
    now = time.monotonic()
    if _searched is not None and now - _searched < SEARCH_S:
        return False
    _searched = now
    return True


def remove_orphans(folder: str) -> None:
    """Unlink segments whose maker was killed before it could do so.

    Only this user's, and only old ones: a process of another container may look dead from here.
    """
    for path in Path(folder).glob("mpicomp-*-*"):
        with contextlib.suppress(OSError, ValueError):
            facts = path.stat()
            pid = int(path.name.split("-")[1])
            old = time.time() - facts.st_mtime > ORPHANED_S
            if old and facts.st_uid == os.getuid() and not os.path.exists(f"/proc/{pid}"):
                path.unlink()


def round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit

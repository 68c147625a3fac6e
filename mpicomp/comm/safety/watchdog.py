"""Watchdog thread: notices a collective that does not return, prints a hang report, and ends the job.

Nothing in Python can interrupt a blocked MPI call, but another thread continues. If the outermost call of a
communicator takes longer than ``MPICOMP_TIMEOUT``, the thread asks the other ranks' threads for their state, by
messages with a tag of their own. Every rank then prints its current call, its last calls and its stacks, also ranks
that never began the call; the waiting ranks abort the job. While a rank makes calls, its thread only reads the clock.

A rank that ends, or leaves a call in the middle, sends the number of its calls to its neighbours. A neighbour in a
later call would wait forever: it aborts the job at once. As long as some ranks have left and others continue, two of
them are neighbours.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from weakref import WeakSet

import numpy as np
from mpi4py import MPI

from ...errors import InvalidArgument
from ...ops.node_shared import PlainCalls
from ..job import before_finalize, this_rank, world
from . import hang_report
from .agreement import sides
from .call_log import NAMES, CallLog, Entry
from .fault_injection import TOLERANT, Fault, FaultyCallLog, parse
from .fault_injection import VARIABLE as FAULT

TIMED_OUT = 70  # exit code
DEFAULT_S = 1800.0
TAG = 2  # of the messages between watchdogs
STATE_BYTES = 256  # per such message: text, padded by zeros
SILENT = "no answer: stopped, gone, busy with later calls, or without MPICOMP_TIMEOUT"
STILL_TICKS = 2  # a rank listens to the others' alarms after so long in one call
STILL_SHARE = 0.25  # or after this share of the limit outside of calls
PRINTING_S = 0.5  # for the ranks' texts to reach the launcher before the abort does
LEFT_S = 5.0  # in a call that a rank which has left will never begin
LEFT_EARLY = 73  # exit code, the same as of a command whose other ranks continue
LEFT = "left:"  # beginning of the message of such a rank
ENDED, IN_THE_MIDDLE = "has ended", "left a call in the middle"
ABORT_S = 10  # MPI_Abort may hang (Open MPI in fault-tolerant mode); then a signal ends this process


def timeout() -> float | None:
    """Return the seconds that a collective may take, from ``MPICOMP_TIMEOUT``; None: no limit."""
    text = os.environ.get("MPICOMP_TIMEOUT", str(DEFAULT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidArgument(f"MPICOMP_TIMEOUT must be a number of seconds, or 0 for no limit, got {text!r}")
    return seconds or None


def wrong_variable() -> str | None:
    """Return the error of this rank's variables, which may differ from those of the others; None if there is none."""
    try:
        timeout()
        if fault := os.environ.get(FAULT):
            parse(fault, world().Get_size())
    except InvalidArgument as error:
        return str(error)
    return None


class Watchdog:
    """Watches the calls of all communicators of this process, in one thread that sleeps most of the time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.tick = seconds, min(1.0, seconds / 4)
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._watched: WeakSet[Watched] = WeakSet()
        self.lock = threading.Lock()  # held while the thread calls MPI
        self._over = threading.Event()
        threading.Thread(target=self._look, name="mpicomp-watchdog", daemon=True).start()
        before_finalize(self.stop)

    def watch(self, calls: CallLog, comm: MPI.Intracomm) -> Watched:
        """Begin to watch the calls of a communicator."""
        watched = Watched(calls, comm, self)
        with self.lock:
            self._watched.add(watched)
        return watched

    def forget(self, watched: Watched) -> None:
        """Watch a communicator no more, which is about to be freed."""
        with self.lock:
            self._watched.discard(watched)

    def stop(self) -> None:
        """Report to the neighbours that this rank ends, and call MPI no more: it is about to be finalized."""
        self._over.set()
        with self.lock:
            for watched in list(self._watched):
                watched.announce_departure(ENDED)
            self._watched.clear()

    def _look(self) -> None:
        while not self._over.wait(self.tick):
            with self.lock:
                if MPI.Is_finalized():
                    return
                for watched in list(self._watched):
                    try:
                        watched.look()
                    except MPI.Exception:  # revoked: survivors continue on a new communicator
                        self._watched.discard(watched)


class Watched:
    """State of one communicator in the watchdog."""

    def __init__(self, calls: CallLog, comm: MPI.Intracomm, watchdog: Watchdog) -> None:
        self.calls, self._comm, self._watchdog = calls, comm, watchdog
        self._sent_states: list[MPI.Request] = []  # sends to the other ranks, never waited for
        self._states: dict[int, str] = {}  # states of the ranks that have sent theirs
        self._seen: tuple[object, ...] = ()  # the calls at their last change
        self._moved = 0.0
        self._departures: list[MPI.Request] = []  # sends to neighbours, never waited for
        self._departed: tuple[int, int, str] | None = None  # a neighbour, the number of its calls, and how it left

    def leave(self) -> None:
        """Watch no more: the communicator is about to be freed."""
        self._watchdog.forget(self)

    def broken(self) -> None:
        """Report to the neighbours that this rank leaves a call in the middle."""
        with self._watchdog.lock:
            self.announce_departure(IN_THE_MIDDLE)

    def announce_departure(self, how: str) -> None:
        """Report to the neighbours that this rank begins no further call."""
        goes_on = os.environ.get(TOLERANT) == "1"  # the job, without this rank, on another communicator
        if goes_on or not self._watchdog.threaded or MPI.Is_finalized():
            return
        done = self.calls.plain.number - bool(self.calls.going())
        text, rank, size = _message(f"{LEFT}{done}:{how}"), self._comm.Get_rank(), self._comm.Get_size()
        with suppress(MPI.Exception):  # revoked, or a neighbour has died
            for neighbour in {(rank - 1) % size, (rank + 1) % size} - {rank}:
                self._departures.append(self._comm.Isend(text, neighbour, TAG))

    def look(self) -> None:
        """Raise the alarm if a call takes too long; answer the alarm of another rank."""
        for entry in self.calls.going()[:1]:
            waited = time.monotonic() - entry.begun
            if waited > self._watchdog.seconds:
                self._alarm(waited)
            if waited > LEFT_S and self._never_ends(entry):
                hang_report.write(f"{hang_report.head(self.calls)}, but {self._departure_text()}; stopping all ranks\n"
                                  f"{hang_report.body(self.calls)}")
                self._stop(LEFT_EARLY)
        if self._watchdog.threaded and not self._sent_states and self._makes_no_progress() and self._listen():
            self._send_state()
            hang_report.write(f"{hang_report.head(self.calls)} while other ranks wait for longer than "
                              f"{self._watchdog.seconds:g} s (MPICOMP_TIMEOUT)\n{hang_report.body(self.calls)}")

    def _never_ends(self, entry: Entry) -> bool:
        """Return True if a neighbour that has left will never begin this call."""
        if self._departed is None or self.calls.uneven:
            return False
        _, done, how = self._departed
        return entry.number > done and (how == ENDED or entry.name not in NAMES)  # mpi4py's own calls do not break

    def _departure_text(self) -> str:
        assert self._departed is not None
        rank, done, how = self._departed
        return f"rank {rank} of this communicator {how} after #{done}"

    def _makes_no_progress(self) -> bool:
        """Return True if others may wait for this rank: only then its thread calls MPI to listen.

        A rank that asks has waited for the whole limit, and this rank has begun no later call. A rank that has just
        begun it hears the question a few ticks later, for which ``_states_of_all`` leaves time.
        """
        calls, now = self.calls, time.monotonic()
        seen = calls.plain.number, len(calls.open), calls.ring[-1] if calls.ring else None
        if seen != self._seen:
            self._seen, self._moved = seen, now
        still = now - self._moved
        if calls.going():
            return still >= STILL_TICKS * self._watchdog.tick
        return still >= STILL_SHARE * self._watchdog.seconds

    def _alarm(self, waited: float) -> None:
        """Print the report, then the states of all ranks, and end the job.

        The report comes first: a rank that raises the alarm a moment later must have written its own before the abort.
        """
        limit = f"MPICOMP_TIMEOUT={self._watchdog.seconds:g}"
        hang_report.write(f"{hang_report.head(self.calls)} for {waited:.1f} s, longer than {limit}; stopping all "
                          f"ranks\n{hang_report.body(self.calls)}")
        if self._watchdog.threaded:
            self._send_state()
            hang_report.write(self._states_of_all())
        self._stop(TIMED_OUT)

    def _stop(self, code: int) -> None:
        """End the job, once the report has reached the launcher."""
        time.sleep(PRINTING_S)
        if not self._watchdog.threaded:  # MPI may not be called here; the launcher ends the others
            os._exit(code)
        signal.alarm(ABORT_S)
        world().Abort(code)

    def _send_state(self) -> None:
        """Send this rank's state to all other ranks."""
        if self._sent_states:
            return
        rank, state = self._comm.Get_rank(), hang_report.state(self.calls)
        self._states[rank] = state
        text = _message(state)
        others = (other for other in range(self._comm.Get_size()) if other != rank)
        self._sent_states = [self._comm.Isend(text, other, TAG) for other in others]

    def _listen(self) -> bool:
        """Receive the messages of other ranks; return True if one asks for this rank's state."""
        status, asked = MPI.Status(), False
        while self._comm.Iprobe(MPI.ANY_SOURCE, TAG, status):
            source, text = status.Get_source(), np.zeros(STATE_BYTES, np.uint8)
            self._comm.Recv(text, source, TAG)
            said = text.tobytes().rstrip(b"\0").decode(errors="replace")
            if said.startswith(LEFT):
                done, _, how = said.removeprefix(LEFT).partition(":")
                self._states[source] = f"{how} after #{done}"
                if self._departed is None or how == ENDED:
                    self._departed = source, int(done), how
            else:
                self._states[source], asked = said, True
        return asked

    def _states_of_all(self) -> str:
        """Return the states of all ranks that answer in time."""
        deadline = time.monotonic() + (STILL_TICKS + 2) * self._watchdog.tick + PRINTING_S
        while time.monotonic() < deadline:
            self._listen()
            time.sleep(self._watchdog.tick / 10)
        size = self._comm.Get_size()
        everyone = [self._states.get(rank, SILENT) for rank in range(size)]
        lines = "".join(f"    {side}\n" for side in sides(everyone))
        return f"{this_rank()}: where the {size} ranks of this communicator are:\n{lines}"


def _message(text: str) -> np.ndarray:
    """Return a text as a message between watchdogs."""
    message = np.zeros(STATE_BYTES, np.uint8)
    cut = np.frombuffer(text.encode(errors="backslashreplace")[:STATE_BYTES], np.uint8)
    message[: cut.size] = cut
    return message


_watchdog: Watchdog | None = None


def log_wanted() -> bool:
    """Return True if a timeout or fault injection is configured."""
    return bool(timeout() or os.environ.get(FAULT))


def log_for(comm: MPI.Intracomm, plain: PlainCalls) -> tuple[CallLog | None, Watched | None]:
    """Return the log of calls of a new private communicator and its state in the watchdog, if they are configured."""
    global _watchdog
    seconds, fault = timeout(), os.environ.get(FAULT)
    calls = _faulty(fault, plain) if fault else CallLog(plain) if seconds else None
    if calls is None or not seconds:
        return calls, None
    if _watchdog is None or _watchdog.seconds != seconds:
        _watchdog = Watchdog(seconds)
    return calls, _watchdog.watch(calls, comm)


_faults: dict[str, Fault] = {}


def _faulty(text: str, plain: PlainCalls) -> CallLog:
    """Return a log with the fault that ``text`` describes, which counts the calls of the whole process."""
    if text not in _faults:
        _faults[text] = parse(text, world().Get_size())
    fault = _faults[text]
    return FaultyCallLog(plain, fault) if fault.rank == world().Get_rank() else CallLog(plain)

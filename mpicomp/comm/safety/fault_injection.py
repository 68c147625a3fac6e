"""Fault injection for tests: ``MPICOMP_FAULT=kill:rank=2,call=17`` kills rank 2 in its 17th collective."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ...errors import InjectedFault, InvalidArgument
from .call_log import CallLog

if TYPE_CHECKING:
    from ...ops.node_shared import PlainCalls

VARIABLE = "MPICOMP_FAULT"
TOLERANT = "OMPI_MCA_mpi_ft_enable"  # "1": set by mpirun --with-ft ulfm, which lets a job go on without dead ranks
DETECTOR_THREAD = "OMPI_MCA_mpi_ft_detector_thread"  # set by mpirun --mca mpi_ft_detector_thread true
SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "stop": signal.SIGSTOP}
KINDS = (*SIGNALS, "exit", "raise", "hang", "slow")
DIGITS = 18  # the most in a number
USAGE = (f"KIND:rank=R,call=N[,message=M], KIND one of {', '.join(KINDS[:-1])}, or "
         "slow:rank=R,seconds=S[,call=N[,message=M]]")


@dataclass
class Fault:
    """A fault of one rank, in the ``call``-th collective of this library that it begins, from 1.

    A step of a Reducer counts, and so does each collective inside it; agreements inside others do not. With
    ``message`` the fault strikes at that message of the call, from 1; ``slow`` without ``call`` applies to all calls.
    """

    kind: str
    rank: int
    call: int | None = None
    message: int | None = None
    seconds: float = 0.0
    calls: int = 0
    messages: int = 0

    def begun(self, name: str) -> None:
        """Count a call; strike if it is the one."""
        self.calls, self.messages = self.calls + 1, 0
        if self.message is None and self.call in (None, self.calls):
            self.strike(name)

    def posted(self) -> None:
        """Count a message; strike if it is the one."""
        self.messages += 1
        if self.message == self.messages and self.call == self.calls:
            self.strike(f"message {self.message}")

    def strike(self, where: str) -> None:
        """Do the harm."""
        text = f"{VARIABLE}: {self.kind} on rank {self.rank} in call {self.calls} ({where})"
        if self.kind != "slow":
            sys.stderr.write(f"[mpicomp] {text}\n")
            sys.stderr.flush()
        if self.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.kind])
        elif self.kind == "exit":
            os._exit(3)
        elif self.kind == "raise":
            raise InjectedFault(text)
        elif self.kind == "hang":
            _hang()
        time.sleep(self.seconds)


def finalize_hangs() -> bool:
    """Return True if MPI_Finalize waits forever for Open MPI's detector of dead ranks (5.0.11), even if none died."""
    return os.environ.get(DETECTOR_THREAD, "").lower() not in ("", "0", "f", "false", "n", "no", "disabled")


def _hang() -> NoReturn:
    while True:
        time.sleep(1)


def parse(text: str, size: int) -> Fault:
    """Return the fault that ``text`` describes, in a job of ``size`` ranks.

    Raises
    ------
    InvalidArgument
        The text is not of the form of USAGE.
    """
    kind, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    given = {key: value for key, _, value in pairs}
    allowed = {"rank", "call", "message"} | ({"seconds"} if kind == "slow" else set())
    needed = {"rank", "seconds" if kind == "slow" else "call"} | ({"call"} if "message" in given else set())
    known = kind in KINDS and needed <= given.keys() <= allowed
    if not (colon and known and len(given) == len(pairs)):
        raise InvalidArgument(f"{VARIABLE} must be {USAGE}; got {text!r}")
    if not all(len(v) <= DIGITS and v.replace(".", "", key == "seconds").isdecimal() for key, v in given.items()):
        raise InvalidArgument(f"{VARIABLE} must hold plain numbers, {USAGE}; got {text!r}")
    seconds = float(given.pop("seconds", 0))
    numbers = {key: int(value) for key, value in given.items()}
    if not 0 <= numbers["rank"] < size:
        raise InvalidArgument(f"{VARIABLE} must name a rank from 0 to {size - 1}, got {text!r}")
    if min(numbers.get("call", 1), numbers.get("message", 1)) < 1:
        raise InvalidArgument(f"{VARIABLE} counts calls and messages from 1, got {text!r}")
    return Fault(kind, seconds=seconds, **numbers)


class FaultyCallLog(CallLog):
    """A log that lets a fault strike at the begin of a call or message."""

    plain_calls = False

    def __init__(self, plain: PlainCalls, fault: Fault) -> None:
        super().__init__(plain)
        self._fault = fault

    def begin(self, name: str, *details: object) -> None:
        super().begin(name, *details)
        self._fault.begun(name)

    def posted(self, request: object, sends: bool, peer: int, nbytes: int, comm: object) -> None:
        super().posted(request, sends, peer, nbytes, comm)
        self._fault.posted()

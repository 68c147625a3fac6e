"""Log of a rank's collective calls, read by the hang report.

``begin`` and ``end`` run in every call, so they only read the clock and append to a ring buffer. The log keeps no
buffer alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy as np

    from ...ops.node_shared import PlainCalls

KEPT = 64  # calls, and messages of the current call
# mpi4py's collectives that are logged; not Allreduce, which is our own
NAMES = (
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan", "barrier", "bcast", "gather",
    "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan",
)  # fmt: skip
Message = tuple[object, bool, int, int, object]  # request, whether it sends, peer, bytes, communicator of the peer
P = ParamSpec("P")
R = TypeVar("R")


class Entry:
    """One call: its number among the communicator's outermost calls, nesting depth, name, details, thread and times."""

    __slots__ = ("begun", "depth", "details", "ended", "name", "number", "thread")

    def __init__(self, number: int, depth: int, name: str, details: tuple[object, ...]) -> None:
        self.number, self.depth, self.name, self.details = number, depth, name, details
        self.thread = get_ident()
        self.begun: float = monotonic()
        self.ended: float | None = 0.0  # None: not known


class CallLog:
    """The latest ``KEPT`` collective calls of one communicator on this rank.

    Attributes
    ----------
    plain : PlainCalls
        Small all-reduces, which log themselves without their end. Its ``number`` counts the outermost calls, which is
        the same on all ranks while they make the same calls.
    open : list of Entry
        Calls that have not returned, the outermost first.
    messages : deque of (request, sends, peer, nbytes, comm)
        Started by schedules since the latest call began.
    waiting : object or None
        The request that this rank waits for.
    uneven : bool
        True if this rank has made an outermost call that other ranks may leave out, so that numbers may differ.
    """

    plain_calls = True  # small all-reduces may log themselves

    def __init__(self, plain: PlainCalls) -> None:
        self.plain = plain
        self.open: list[Entry] = []
        self.ring: deque[Entry] = deque(maxlen=KEPT)
        self.messages: deque[Message] = deque(maxlen=KEPT)
        self.waiting: object = None
        self.uneven = False

    def begin(self, name: str, *details: object) -> None:
        """Log the begin of a call; ``end`` must follow, also after an exception."""
        depth = len(self.open)
        if not depth:
            self.plain.number += 1
            self.messages.clear()
        entry = Entry(self.plain.number, depth, name, details)
        self.ring.append(entry)
        self.open.append(entry)

    def agree(self, signature: str) -> None:
        """Log the begin of an agreement. One inside another call does not enter the ring, which it would double."""
        if self.open:
            self.open.append(Entry(self.plain.number, len(self.open), "agreement", ()))
        else:
            self.begin("agreement on", signature or "errors")

    def note(self, *details: object) -> None:
        """Add details to this thread's current call."""
        self._innermost().details += details

    def end(self) -> None:
        """Log the end of this thread's innermost call."""
        entry = self._innermost()
        self.open.remove(entry)
        entry.ended = monotonic()

    def _innermost(self) -> Entry:
        thread, last = get_ident(), self.open[-1]
        return last if last.thread == thread else next(one for one in self.open[::-1] if one.thread == thread)

    def going(self) -> list[Entry]:
        """Return the calls that have not returned, the outermost first."""
        plain = self.plain.going
        if not plain:
            return list(self.open)
        outer = as_entry(plain)
        return [outer, Entry(outer.number, 1, "agreement", ())] if self.plain.comparing else [outer]

    def latest(self) -> list[Entry]:
        """Return the last calls, oldest first."""
        entries = [*self.ring.copy(), *map(as_entry, self.plain.latest())]
        return sorted(entries, key=lambda entry: entry.begun)[-KEPT:]

    def posted(self, request: object, sends: bool, peer: int, nbytes: int, comm: object) -> None:
        """Log the start of a message; ``peer`` is a rank of ``comm``."""
        self.messages.append((request, sends, peer, nbytes, comm))

    def wait(self, request: object) -> None:
        """Log the request that this rank waits for."""
        self.waiting = request

    def may_be_uneven(self) -> None:
        """Note that other ranks may leave out the current call, if it is an outermost one."""
        self.uneven |= len(self.open) <= 1


def as_entry(one: tuple[int, float, tuple[int, np.dtype, object]]) -> Entry:
    """Return the entry of a call that ``PlainCalls`` has logged."""
    number, begun, (nbytes, dtype, op) = one
    entry = Entry(number, 0, "Allreduce", ((nbytes // dtype.itemsize, dtype), op, "native"))
    entry.begun, entry.ended = begun, None
    return entry


class Logs(Protocol):
    """An object with a log of calls; None if calls are not logged."""

    @property
    def _log(self) -> CallLog | None: ...


L = TypeVar("L", bound=Logs)


def logged(method: Callable[Concatenate[L, P], R]) -> Callable[Concatenate[L, P], R]:
    """Log the calls of a method in ``self._log``, with the size and dtype of arrays."""
    name = method.__name__

    @wraps(method)
    def call(self: L, /, *arguments: P.args, **options: P.kwargs) -> R:
        log = self._log
        if log is None:
            return method(self, *arguments, **options)
        try:
            log.begin(name, *[described(one) for one in (*arguments, *options.values())])
            return method(self, *arguments, **options)
        finally:
            log.end()

    return call


def described(argument: object) -> object:
    """Return (size, dtype) of an array, the value of a number or text, else the name of the type."""
    if isinstance(argument, (int, str)):
        return argument
    if isinstance(argument, float):
        return "float"
    dtype = getattr(argument, "dtype", None)
    if dtype is None:
        return type(argument).__name__
    size = getattr(argument, "size", None)
    return size if isinstance(size, int) else "some", dtype

"""What a rank does and did last, kept for whoever has to explain a hang.

``begin`` and ``end`` are on the path of every call: they read the clock and append to a ring, and make no text. No
buffer is kept alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import Any

KEPT = 64  # calls, and messages of the call that goes on


class Entry:
    """One call: its number among the outermost calls of its communicator, how deep inside it lies, what and when."""

    __slots__ = ("begun", "depth", "details", "ended", "name", "number")

    def __init__(self, number: int, depth: int, name: str, details: tuple[Any, ...]) -> None:
        self.number, self.depth, self.name, self.details = number, depth, name, details
        self.begun: float = monotonic()
        self.ended: float | None = 0.0  # None: not known


class NoPlainCalls:
    """Of a communicator whose small all-reduces take no short way. See ``PlainCalls`` of `mpicomp.ops.node_shared`."""

    number = 0
    going = None
    comparing = False

    def latest(self) -> list[tuple[Any, ...]]:
        return []


class Calls:
    """The collective calls of one communicator on this rank, the latest ``KEPT``.

    Attributes
    ----------
    plain : PlainCalls or NoPlainCalls
        Small all-reduces, which log themselves without telling when they ended, and which count the outermost
        calls: the same on all ranks while they do the same.
    open : list of Entry
        Calls that have not returned, the outermost first.
    messages : deque of (request, sends, peer, nbytes, comm)
        Started by our own schedules since the latest call began.
    waiting : object or None
        The request that is waited for.
    uneven : bool
        Whether this rank has made an outermost call that other ranks may leave out, so that it has made more.
    """

    plain_calls = True  # whether small all-reduces may log themselves

    def __init__(self) -> None:
        self.plain: Any = NoPlainCalls()
        self.open: list[Entry] = []
        self.ring: deque[Entry] = deque(maxlen=KEPT)
        self.messages: deque[tuple[Any, ...]] = deque(maxlen=KEPT)
        self.waiting: Any = None
        self.uneven = False

    def begin(self, name: str, *details: Any) -> None:
        """A call begins; ``end`` must follow, whatever happens in it."""
        depth = len(self.open)
        if not depth:
            self.plain.number += 1
            self.messages.clear()
        entry = Entry(self.plain.number, depth, name, details)
        self.ring.append(entry)
        self.open.append(entry)

    def agree(self, signature: str) -> None:
        """As ``begin``, for an agreement. One inside another call does not enter the ring: it would double it."""
        if self.open:
            self.open.append(Entry(self.plain.number, len(self.open), "agreement", ()))
        else:
            self.begin("agreement on", signature)

    def note(self, *details: Any) -> None:
        """More about the call that goes on."""
        self.open[-1].details += details

    def end(self) -> None:
        """The innermost call is over."""
        self.open.pop().ended = monotonic()

    def going(self) -> list[Entry]:
        """Calls that have not returned, the outermost first."""
        plain = self.plain.going
        if not plain:
            return list(self.open)
        outer = as_entry(plain)
        return [outer, Entry(outer.number, 1, "agreement", ())] if self.plain.comparing else [outer]

    def latest(self) -> list[Entry]:
        """The last calls, oldest first."""
        entries = [*self.ring.copy(), *map(as_entry, self.plain.latest())]
        return sorted(entries, key=lambda entry: entry.begun)[-KEPT:]

    def posted(self, request: Any, sends: bool, peer: int, nbytes: int, comm: Any) -> None:
        """A message was started; ``peer`` counts in ``comm``."""
        self.messages.append((request, sends, peer, nbytes, comm))


def as_entry(one: tuple[Any, ...]) -> Entry:
    number, begun, (nbytes, dtype, op) = one
    entry = Entry(number, 0, "Allreduce", ((nbytes // dtype.itemsize, dtype), op, "native"))
    entry.begun, entry.ended = begun, None
    return entry


def logged(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let the calls of a communicator's method be logged in ``self._log``, with the size and dtype of its array."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        log = self._log
        if log is None:
            return method(self, *arguments, **options)
        try:
            log.begin(name, *(described(one) for one in (*arguments, *options.values())))
            return method(self, *arguments, **options)
        finally:
            log.end()

    return call


def described(argument: Any) -> Any:
    """Of an array (size, dtype), of other arguments the value where it is short."""
    if hasattr(argument, "dtype"):
        size = getattr(argument, "size", None)
        return size if isinstance(size, int) else "some", argument.dtype
    return argument if isinstance(argument, (int, str)) else type(argument).__name__

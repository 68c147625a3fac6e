"""What the exchanges of schemes speak to, of one simulated rank: the verbs of ``Comm``.

A verb is written down as a call with plain arguments, the same on all ranks that do the same; ``play`` turns the calls
of a script into the messages of one rank.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import allreduce
from ..allreduce.choice import schedule
from ..broadcast import broadcast
from ..gather_to_all import gather_to_all
from .ghost import Ghost, Tiled, Unknown
from .link import RecordingLink
from .tape import Tape

BYTE = np.dtype(np.uint8)
AGREEMENT = 2  # int64 that the agreement before a step reduces


@dataclass
class Script:
    """What a rank does in a step: its own work, and between its events the calls that send messages."""

    tape: Tape = field(default_factory=Tape)
    calls: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)  # at so many numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Script) and (self.tape.events, self.calls) == (other.tape.events, other.calls)

    def play(self, link: RecordingLink) -> None:
        """Put all onto the tape of ``link``."""
        begin = 0
        for end, verb, arguments in [*self.calls, (len(self.tape.events), _nothing, ())]:
            link.tape.events.extend(self.tape.events[begin:end] if end > begin else array("q"))
            link.tape.phase()
            verb(link, *arguments)
            begin = end

    def schedules(self, link: RecordingLink) -> set[str]:
        """The dense schedules that run."""
        return {_chosen(link, *arguments) for _, verb, arguments in self.calls if verb is _allreduce}


class RecordingComm:
    """The verbs that exchanges can be simulated with; all ranks are taken to send equally long messages."""

    log = recorder = None

    def __init__(self, script: Script, rank: int, size: int) -> None:
        self._script, self.rank, self.size = script, rank, size

    def _call(self, verb: Callable[..., None], *arguments: Any) -> None:
        self._script.calls.append((len(self._script.tape.events), verb, arguments))

    def agree(self, signature: str = "", error: Exception | None = None, patient: bool = False) -> None:
        self._call(_agreement)

    def allreduce_in_place(self, x: Any, algorithm: str = "auto", op: str = "sum", kind: str | None = None) -> None:
        self._call(_allreduce, x.size, np.dtype(x.dtype), algorithm, op, kind)

    def broadcast(self, x: Any, root: int) -> None:
        self._call(_broadcast, x.nbytes, root)

    def lengths_of_all(self, length: int) -> list[int]:
        self._call(_gather, 8)
        return [length] * self.size

    def gather_to_all(self, x: Any, counts: list[int] | None = None) -> tuple[Any, list[int]]:
        counts = counts or self.lengths_of_all(x.size)
        self._call(_gather, x.nbytes)
        return Tiled(x, self.size), counts

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        return self._script.tape.meanwhile(work)

    def __getattr__(self, name: str) -> Any:
        raise Unknown(f"it uses Comm.{name}")


# ---- the calls, of one rank

def _nothing(link: RecordingLink) -> None:
    """What ends a script."""


def _agreement(link: RecordingLink) -> None:
    link.native_allreduce(Ghost(link.ops, AGREEMENT, np.int64), "min")


def _allreduce(link: RecordingLink, n: int, dtype: np.dtype, algorithm: str, op: str, kind: str | None) -> None:
    flat, chosen = Ghost(link.ops, n, dtype), _chosen(link, n, dtype, algorithm, op, kind)
    if link.size == 1 or n == 0:
        return
    if chosen == "native":
        link.native_allreduce(flat, op)
        return
    options = {"kind": _half(dtype, kind)} if _half(dtype, kind) else {}
    allreduce.get(chosen)(link, flat, op, link.ops, link.scratch(dtype), **options)


def _chosen(link: RecordingLink, n: int, dtype: np.dtype, algorithm: str, op: str, kind: str | None) -> str:
    half = _half(dtype, kind)
    target = SimpleNamespace(array=Ghost(link.ops, n, dtype), kind=half, name=half or dtype.name, device=None)
    return schedule(target, op, algorithm, link)


def _half(dtype: np.dtype, kind: str | None) -> str | None:
    return kind or ("float16" if dtype == np.float16 else None)


def _broadcast(link: RecordingLink, nbytes: int, root: int) -> None:
    broadcast(link, Ghost(link.ops, nbytes, BYTE), root)


def _gather(link: RecordingLink, nbytes: int) -> None:
    """As many bytes from every rank."""
    ops, size = link.ops, link.size
    gather_to_all(link, Ghost(ops, nbytes, BYTE), Ghost(ops, nbytes * size, BYTE), [nbytes] * size)

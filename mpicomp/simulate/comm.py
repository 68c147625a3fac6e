"""What the exchanges of schemes speak to, of one simulated rank: the verbs of ``Comm``, onto a tape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import allreduce
from ..allreduce.choice import schedule
from ..broadcast import broadcast
from ..gather_to_all import gather_to_all
from .ghost import Ghost, Tiled, Unknown
from .link import RecordingLink

BYTE = np.dtype(np.uint8)
AGREEMENT = 2  # int64 that the agreement before a step reduces


class RecordingComm:
    """The verbs that the exchanges can be simulated with; all ranks are taken to send equally long messages.

    ``choices`` collects which schedules ran, by what was asked for.
    """

    log = recorder = None

    def __init__(self, link: RecordingLink, choices: set[str]) -> None:
        self._link, self._choices = link, choices
        self.rank, self.size = link.rank, link.size

    def agree(self, signature: str = "", error: Exception | None = None, patient: bool = False) -> None:
        self._link.tape.phase()
        self._link.native_allreduce(Ghost(self._link.ops, AGREEMENT, np.int64), "min")

    def allreduce_in_place(self, x: Any, algorithm: str = "auto", op: str = "sum", kind: str | None = None) -> None:
        link, ops = self._link, self._link.ops
        flat = Ghost(ops, x.size, x.dtype)
        half = kind or ("float16" if flat.dtype == np.float16 else None)
        target = SimpleNamespace(array=flat, kind=half, name=half or flat.dtype.name, device=None)
        chosen = schedule(target, op, algorithm, link)
        self._choices.add(chosen)
        link.tape.phase()
        if link.size == 1 or flat.size == 0:
            return
        if chosen == "native":
            link.native_allreduce(flat, op)
            return
        options = {"kind": half} if half else {}
        allreduce.get(chosen)(link, flat, op, ops, link.scratch(flat.dtype), **options)

    def Iallreduce(self, sendbuf: None, recvbuf: Any, algorithm: str = "auto") -> Any:
        """Not beside what follows, but before it: an upper bound."""
        self.allreduce_in_place(recvbuf, algorithm)
        return SimpleNamespace(Wait=lambda: None)

    def broadcast(self, x: Any, root: int) -> None:
        self._link.tape.phase()
        broadcast(self._link, Ghost(self._link.ops, x.nbytes, BYTE), root)

    def lengths_of_all(self, length: int) -> list[int]:
        self._link.tape.phase()
        eight = Ghost(self._link.ops, 8, BYTE)
        gather_to_all(self._link, eight, Ghost(self._link.ops, 8 * self.size, BYTE), [8] * self.size)
        return [length] * self.size

    def gather_to_all(self, x: Any, counts: list[int] | None = None) -> tuple[Any, list[int]]:
        counts = counts or self.lengths_of_all(x.size)
        flat = Tiled(x, self.size)
        self._link.tape.phase()
        gather_to_all(self._link, x.view(BYTE), Ghost(x.ops, flat.nbytes, BYTE), [n * x.itemsize for n in counts])
        return flat, counts

    def meanwhile(self, work: Iterator[None]) -> AbstractContextManager[None]:
        return self._link.meanwhile(work)

    def __getattr__(self, name: str) -> Any:
        raise Unknown(f"it uses Comm.{name}")

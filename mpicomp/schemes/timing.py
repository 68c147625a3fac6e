"""Seconds of each phase of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from ..comm.interfaces import Recorder

PhaseTime = tuple[str, int, int]  # name, start, stop in ns of the monotonic clock


class Trace(Recorder, Protocol):
    """The interface of a trace recorder (``mpicomp.trace.Recorder``) that a step uses."""

    enabled: bool

    def step_number(self, own: int) -> int:
        """The number of the enclosing step; outside of one a caller's ``own`` count."""

    def spans(self, step: int, spans: list[PhaseTime]) -> None:
        """Record phases of a step: kind, start, stop in ns of the monotonic clock."""


class PhaseTimer:
    """Notes the phases of a step, and hands them to the trace if there is one."""

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace
        self.number = -1  # of the current step in the trace
        self.phases: list[PhaseTime] = []  # of it so far; each step has a list of its own
        self._blocks: dict[str, Phase] = {}

    def begin_step(self, number: int) -> None:
        self.number, self.phases = number if self.trace is None else self.trace.step_number(number), []

    def busy_ns(self) -> int:
        """Nanoseconds since the first phase of the current step began, without those spent waiting in ``agree``."""
        if not self.phases:
            return 0
        waited = sum(stop - start for name, start, stop in self.phases if name == "agree")
        return time.monotonic_ns() - min(start for _, start, _ in self.phases) - waited

    def phase(self, name: str) -> Phase:
        """Return a context manager that notes its block as a part of a phase; no block holds another of its phase."""
        return self._blocks.get(name) or self._blocks.setdefault(name, Phase(self, name))

    def pieces(self, name: str, work: Iterator[None]) -> Iterator[None]:
        """``work``, each piece noted as a part of a phase."""
        start = time.monotonic_ns()
        for _ in work:
            self.spent(name, start)
            yield
            start = time.monotonic_ns()

    def record(self) -> None:
        """Hand the step's phases to the trace, all at once: that costs less than one by one."""
        if self.trace is not None:
            self.trace.spans(self.number, self.phases)

    def spent(self, name: str, start: int) -> None:
        """Note the time since ``start`` as a part of a phase."""
        self.phases.append((name, start, time.monotonic_ns()))


class Phase:
    """Context manager of the blocks of one phase: a class, since a generator takes twice the time."""

    __slots__ = ("_around", "_name", "_start", "_timer")

    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer, self._name = timer, name

    def __enter__(self) -> None:
        self._start = time.monotonic_ns()
        trace = self._timer.trace
        if trace is not None:
            self._around, trace.doing = trace.doing, (self._name, self._timer.number, self._start)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
                 ) -> None:
        timer = self._timer
        if timer.trace is not None:
            timer.trace.doing = self._around
        if kind is None:
            timer.phases.append((self._name, self._start, time.monotonic_ns()))

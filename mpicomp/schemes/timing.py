"""Seconds of each phase of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from ..comm.interfaces import Recorder


class Trace(Recorder, Protocol):
    """The interface of a trace recorder (``mpicomp.trace.Recorder``) that a step uses."""

    enabled: bool

    def spans(self, step: int, spans: list[tuple[str, int, int]]) -> None:
        """Record phases of a step: kind, start, stop in ns of the monotonic clock."""

    def metric(self, name: str, step: int, value: float) -> None:
        """Record a number of a step."""


class PhaseTimer:
    """Adds up the seconds of each phase of a step, and hands phases to the trace if there is one.

    Attributes
    ----------
    seconds : dict of str to float
        By phase, of the current step so far.
    number : int
        The current step.
    """

    def __init__(self, trace: Trace | None) -> None:
        self.trace = trace
        self._phases: list[tuple[str, int, int]] = []
        self.number = -1
        self.seconds: dict[str, float] = {}

    def begin_step(self, number: int) -> None:
        self.number, self.seconds = number, {}
        self._phases.clear()

    def phase(self, name: str) -> Phase:
        """Return a context manager that adds the time of its block to a phase of the step."""
        return Phase(self, name)

    def pieces(self, name: str, work: Iterator[None]) -> Iterator[None]:
        """``work``, its time added to a phase piece by piece."""
        self.seconds.setdefault(name, 0.0)
        start = time.monotonic_ns()
        for _ in work:
            self.spent(name, start)
            yield
            start = time.monotonic_ns()

    def record(self) -> None:
        """Hand the step's phases to the trace, all at once: that costs less than one by one."""
        if self.trace is not None:
            self.trace.spans(self.number, self._phases)
            self._phases.clear()

    def spent(self, name: str, start: int) -> None:
        """Add the time since ``start`` to a phase."""
        stop = time.monotonic_ns()
        self.seconds[name] = self.seconds.get(name, 0.0) + (stop - start) * 1e-9
        if self.trace is not None:
            self._phases.append((name, start, stop))


class Phase:
    """Context manager of one block of a phase: a class, since a generator takes twice the time."""

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
        if kind is not None:  # the step's events tell more than its end
            return
        if self._timer.trace is not None:
            self._timer.trace.doing = self._around
        self._timer.spent(self._name, self._start)

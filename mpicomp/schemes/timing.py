"""Seconds of each phase of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ..comm.interfaces import Recorder


class Trace(Recorder, Protocol):
    """What a step asks of a trace recorder (``mpicomp.trace.Recorder``)."""

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
    """

    def __init__(self, trace: Trace | None) -> None:
        self._trace = trace
        self._phases: list[tuple[str, int, int]] = []
        self._number = -1
        self.seconds: dict[str, float] = {}

    def begin_step(self, number: int) -> None:
        self._number, self.seconds = number, {}
        self._phases.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase of the step."""
        start, trace = time.monotonic_ns(), self._trace
        if trace is not None:  # not set back after an error: the step's events tell more than its end
            around, trace.doing = trace.doing, (name, self._number, start)
        yield
        if trace is not None:
            trace.doing = around
        self._spent(name, start)

    def pieces(self, name: str, work: Iterator[None]) -> Iterator[None]:
        """``work``, its time added to a phase piece by piece."""
        self.seconds.setdefault(name, 0.0)
        start = time.monotonic_ns()
        for _ in work:
            self._spent(name, start)
            yield
            start = time.monotonic_ns()

    def record(self) -> None:
        """Hand the step's phases to the trace, all at once: that costs less than one by one."""
        if self._trace is not None:
            self._trace.spans(self._number, self._phases)
            self._phases.clear()

    def _spent(self, name: str, start: int) -> None:
        stop = time.monotonic_ns()
        self.seconds[name] = self.seconds.get(name, 0.0) + (stop - start) * 1e-9
        if self._trace is not None:
            self._phases.append((name, start, stop))

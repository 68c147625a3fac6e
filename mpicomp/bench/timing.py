"""Timing of several implementations against each other: alternately, so that whatever drifts hits all of them.

The unit is a round: every implementation runs once, each behind a barrier. A duration is the maximum over ranks:
an all-reduce is over when the last rank has its result. Ranks see the same maxima, so they all take the same decision
when to stop, without another message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .confidence import median_interval
from .plan import Plan

MIN_ROUNDS = 5  # timed, whatever max_time says
MAX_ROUNDS = 1000  # enough for a p99
MAX_BLOCK = 100  # rounds between two looks at the clock
WARMUP_SHARE = 0.2  # of max_time


class Implementation(Protocol):
    """One way to do a collective on buffers of one size."""

    name: str
    one_way: float  # the part of a step's time that counts
    modelled: int  # bytes a step sends by a call of MPI's own that Comm does not see

    def begin(self) -> None:
        """Whatever a step needs and is not part of it; not timed."""

    def step(self) -> None:
        """The step that is timed."""

    def end(self) -> None:
        """Keep what the step said about itself; not timed."""

    def check(self) -> int:
        """Do one step whose result is known; the number of wrong elements on this rank."""

    def facts(self, rounds: int) -> dict[str, Any]:
        """What the rows say about the last ``rounds`` steps beside their times (collective)."""


class Sample(NamedTuple):
    """The timed rounds of one implementation."""

    seconds: np.ndarray  # one duration a round, the maximum over ranks
    mean_seconds: float  # mean over rounds and ranks, as OSU's benchmarks average
    wire_bytes: float  # mean a step, of the rank that sends most
    modelled_bytes: float  # the part of them that MPI's own collectives are taken to send


class Timer:
    """Runs rounds of ``implementations`` over the ranks of ``comm``.

    ``watch`` is called with an implementation's name before each of its steps. With ``shuffle``, a seed that all ranks
    share, every round has an order of its own; without, each round begins one further.
    """

    def __init__(
        self, comm: Any, implementations: Sequence[Implementation], watch: Callable[[str], None],
        shuffle: Sequence[int] | None = None, steps: int = 1,
    ) -> None:  # fmt: skip
        from .data import mpis_own  # MPI: not for --help

        self.comm, self.implementations, self.watch, self.steps = comm, implementations, watch, steps
        self._barrier = mpis_own(comm, "Barrier")  # what Comm notes down about its own takes time
        self._random = None if shuffle is None else np.random.default_rng(shuffle)
        self._sent = np.zeros((len(implementations), 2))
        self._local = np.zeros(len(implementations))  # seconds of this rank, all rounds together

    def run(self, plan: Plan) -> tuple[list[Sample], int]:
        """Warm up and time by ``plan``; a sample for each implementation, and the warm-up rounds there were."""
        warmup = self._warm_up(plan)
        self._sent[:], self._local[:] = 0, 0
        seconds, elapsed = np.empty((0, len(self.implementations))), 0.0
        while True:
            rounds = self._next_block(plan, seconds, elapsed)
            if rounds == 0:
                return self._samples(seconds), warmup
            block, spent = self.block(rounds)
            seconds, elapsed = np.vstack([seconds, block]), elapsed + spent

    def block(self, rounds: int) -> tuple[np.ndarray, float]:
        """Durations of ``rounds`` rounds, shape (rounds, implementations), and the time all of it took."""
        n = len(self.implementations)
        local = np.empty(rounds * n + 1)
        start = time.perf_counter()
        for i in range(rounds):
            for j in self._order(i):
                local[i * n + j] = self._once(j)
        local[-1] = time.perf_counter() - start
        self._local += local[:-1].reshape(rounds, n).sum(axis=0)
        self.comm.allreduce_in_place(local, "native", "max")
        return local[:-1].reshape(rounds, n), float(local[-1])

    def _order(self, i: int) -> list[int]:
        """In which order implementations run in round ``i``: nobody always runs behind the same neighbour."""
        n = len(self.implementations)
        if self._random is not None:
            return self._random.permutation(n).tolist()
        return [(position + i) % n for position in range(n)]

    def _once(self, j: int) -> float:
        """One step of implementation ``j``, or the mean of several; its duration on this rank."""
        implementation = self.implementations[j]
        self.watch(implementation.name)
        implementation.begin()
        before = self.comm.traffic
        step, steps, clock = implementation.step, range(self.steps), time.perf_counter
        self._barrier()
        start = clock()
        for _ in steps:
            step()
        duration = (clock() - start) / self.steps * implementation.one_way
        used = self.comm.traffic - before
        unseen = implementation.modelled
        self._sent[j] += used.bytes_sent / self.steps + unseen, used.modelled / self.steps + unseen
        implementation.end()
        return duration

    def _warm_up(self, plan: Plan) -> int:
        """As many rounds as the plan asks for and its time allows: at least two, the first is slow for many reasons."""
        spent = min(self.block(1)[1], self.block(1)[1])
        more = max(0, min(plan.warmup - 2, int(WARMUP_SHARE * plan.max_time / spent)))
        if more:
            self.block(more)
        return 2 + more

    def _next_block(self, plan: Plan, seconds: np.ndarray, elapsed: float) -> int:
        """How many more rounds to run before looking again; 0 when there is enough."""
        done = len(seconds)
        if plan.iters is not None:
            return min(plan.iters - done, MAX_BLOCK)
        if done == 0:
            return 1
        timed_enough = done >= MAX_ROUNDS or _enough(plan, seconds)
        affordable = int((plan.max_time - elapsed) / (elapsed / done))
        if done >= MIN_ROUNDS and (timed_enough or affordable < 1):
            return 0
        return min(done, max(1, affordable), MAX_BLOCK)

    def _samples(self, seconds: np.ndarray) -> list[Sample]:
        sent = self._sent.ravel() / len(seconds)
        self.comm.allreduce_in_place(sent, "native", "max")
        mean = self._local / len(seconds) / self.comm.size
        self.comm.allreduce_in_place(mean, "native")
        per_step = sent.reshape(self._sent.shape)
        return [
            Sample(seconds[:, j], float(mean[j]), float(wire), float(modelled))
            for j, (wire, modelled) in enumerate(per_step)
        ]


def _enough(plan: Plan, seconds: np.ndarray) -> bool:
    """Whether every implementation (a column) has been timed for as long, or is known as well, as is asked for."""
    if plan.target_ci is None:
        return seconds.sum(axis=0).min() >= plan.min_time
    for one in seconds.T:
        low, high = median_interval(one)
        if high - low > 2 * plan.target_ci / 100 * float(np.median(one)):
            return False
    return True

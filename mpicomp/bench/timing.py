"""Timing of several implementations in alternation, so that drift affects all of them alike.

The unit is a round: every implementation runs once, each behind a barrier. A duration is the maximum over ranks:
an all-reduce ends when the last rank has its result. All ranks see the same maxima, so they agree when to stop without
another message.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .confidence import median_interval
from .plan import Plan

if TYPE_CHECKING:
    from ..comm.comm import Comm

MIN_ROUNDS = 5  # timed, even beyond max_time
MAX_ROUNDS = 1000  # enough for a p99
MAX_BLOCK = 100  # rounds between two looks at the clock
WARMUP_SHARE = 0.2  # of max_time


class Facts(NamedTuple):
    """The facts about an implementation in its row, beside times and bytes."""

    algorithm: str | None = None
    scheme: str | None = None
    part: str = "step"
    place: str | None = None
    density: float | None = None
    t_phase_us: dict[str, float] | None = None
    bound: float | None = None
    relative: bool | None = None
    data: str | None = None
    ran: str | None = None
    reason: str | None = None
    max_error: float | None = None
    error_limit: float | None = None
    psnr_db: float | None = None


class Implementation(ABC):
    """One way to do a collective on buffers of one size."""

    name: str
    place: str | None = None
    one_way = 1.0  # the part of a step's time that counts; 0 on a rank that only waits for the others
    modelled = 0  # bytes per step inside a call of MPI's own that Comm does not see
    step: Callable[[], object]  # the timed step

    def begin(self) -> None:  # noqa: B027  (most prepare nothing)
        """Prepare a step; not timed."""

    def end(self) -> None:  # noqa: B027
        """Keep the facts about a step; not timed."""

    @abstractmethod
    def check(self) -> int:
        """Execute one step with a known result; the number of wrong elements on this rank."""

    @abstractmethod
    def facts(self, rounds: int) -> Facts:
        """The facts about the last ``rounds`` steps (collective)."""


class Sample(NamedTuple):
    """The timed rounds of one implementation."""

    seconds: np.ndarray  # one duration per round, the maximum over ranks
    mean_seconds: float  # mean over rounds and the ranks that take part, as OSU's benchmarks average
    wire_bytes: float  # mean per step, of the rank that sends most
    modelled_bytes: float  # the part of them inside MPI's own collectives, by formula


def mpis_own(comm: Comm, name: str) -> Callable[..., None]:
    """The method of mpi4py itself, as a program without this library calls it; ours passes the call on to it."""
    from ..comm.inherited import Inherited  # imports MPI: not for --help

    method: Callable[..., None] = getattr(super(Inherited, comm), name)
    return method


class Timer:
    """Runs rounds of ``implementations`` over the ranks of ``comm``.

    ``watch`` is called with an implementation's name before each of its steps. With ``shuffle``, a seed that all ranks
    share, every round has a random order; without, the order rotates by one from round to round.
    """

    def __init__(
        self, comm: Comm, implementations: Sequence[Implementation], watch: Callable[[str], None],
        shuffle: Sequence[int] | None = None, steps: int = 1,
    ) -> None:  # fmt: skip
        self.comm, self.implementations, self.watch, self.steps = comm, implementations, watch, steps
        self._barrier = mpis_own(comm, "Barrier")  # Comm spends time on logging its own
        self._random = None if shuffle is None else np.random.default_rng(shuffle)
        self._sent = np.zeros((len(implementations), 2))
        self._local = np.zeros(len(implementations))  # seconds of this rank, all rounds together

    def run(self, plan: Plan) -> tuple[list[Sample], int]:
        """Warm up and time by ``plan``; a sample per implementation, and the number of warm-up rounds."""
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
        """Durations of ``rounds`` rounds, shape (rounds, implementations), and the time of all of it."""
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
        """The order of implementations in round ``i``: none always runs after the same neighbour."""
        n = len(self.implementations)
        if self._random is not None:
            return [int(j) for j in self._random.permutation(n)]
        return [(position + i) % n for position in range(n)]

    def _once(self, j: int) -> float:
        """Execute one step of implementation ``j``, or several; the (mean) duration on this rank."""
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
        """Run the plan's warm-up rounds as far as its time allows, at least two; returns their number."""
        spent = min(self.block(1)[1], self.block(1)[1])
        more = max(0, min(plan.warmup - 2, int(WARMUP_SHARE * plan.max_time / spent)))
        if more:
            self.block(more)
        return 2 + more

    def _next_block(self, plan: Plan, seconds: np.ndarray, elapsed: float) -> int:
        """Number of rounds until the next decision; 0 if there are enough."""
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
        totals = np.concatenate([self._local, self._local > 0])
        self.comm.allreduce_in_place(totals, "native")
        total, ranks = np.split(totals, 2)
        mean = total / ranks / len(seconds)
        per_step = sent.reshape(self._sent.shape)
        return [
            Sample(seconds[:, j], float(mean[j]), float(wire), float(modelled))
            for j, (wire, modelled) in enumerate(per_step)
        ]


def _enough(plan: Plan, seconds: np.ndarray) -> bool:
    """True if every implementation (a column) reached the plan's ``min_time``, or its ``target_ci``."""
    if plan.target_ci is None:
        return seconds.sum(axis=0).min() * plan.steps_per_barrier >= plan.min_time  # of means over these steps
    for one in seconds.T:
        low, high = median_interval(one)
        if high - low > 2 * plan.target_ci / 100 * float(np.median(one)):
            return False
    return True

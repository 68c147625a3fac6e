"""An ensemble of heat equations whose members relax to their mean, taken exactly and with an error bound.

Every member solves u_t = laplace(u) + f on the periodic unit cube by explicit Euler steps with the 7-point stencil. All
members begin with one field; each has a source f of its own. Every k steps the mean m over all members and ranks is
taken, and u <- u + c (m - u), so that errors of the mean enter the members. Two copies of the ensemble run side by
side, one with exact means and one with error-bounded means. Relaxation does not change the mean, which is known in
closed form: so the difference of the copies can be compared with the discretisation error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mpicomp import AVG
from mpicomp.errors import InvalidArgument

WAVES = 8  # of a field, with the wave numbers 1 to 8
COURANT = 0.1  # dt / h^2; explicit Euler is stable up to 1/6
SEVEN_POINTS = np.float32(-6)

Array = np.ndarray


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    grid: int = 64  # points per axis
    members: int = 2  # per rank
    steps: int = 200
    every: int = 10  # steps between means
    relax: float = 0.5
    bound: float = 1e-4
    relative: bool = True
    algorithm: str = "two_hops"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("grid", 4), ("members", 1), ("steps", 1), ("every", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidArgument(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.every > self.steps:
            raise InvalidArgument(f"every must be at most the number of steps, {self.steps}, got {self.every}")
        if not 0 <= self.relax <= 1:
            raise InvalidArgument(f"relax must be in [0, 1], got {self.relax:g}")
        if not 0 < self.bound < math.inf:
            raise InvalidArgument(f"bound must be a positive finite number, got {self.bound:g}")


class Point(NamedTuple):
    """Mean fields at one step. Errors are root mean squares over the grid, unless they are the largest."""

    step: int
    energy: float  # half the mean square of the error-bounded run
    energy_change: float  # against the exact run, relative
    spread: float  # of the members about their mean, before they relax to it
    discretisation: float  # exact run against the solution in closed form
    difference: float  # error-bounded run against the exact one
    largest: float  # of the differences
    ratio: float
    ran: str  # two_hops, or exact with the reason


@dataclass
class Result:
    """Points of a run, and seconds of the slowest rank: ``steps``, ``exact`` means and ``bounded`` means."""

    settings: Settings
    ranks: int
    series: list[Point] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings), "ranks": self.ranks, "seconds": self.seconds, "complete": True,
                "series": [point._asdict() for point in self.series]}  # fmt: skip


class Waves:
    """Sum of plane waves with random directions and phases, each times a factor that depends on its decay rate."""

    def __init__(self, seed: list[int], grid: int) -> None:
        rng, k = np.random.default_rng(seed), np.arange(1, WAVES + 1)
        directions = rng.normal(size=(WAVES, 3))
        numbers = np.rint(directions * (k / np.linalg.norm(directions, axis=1))[:, None])  # whole, so periodic
        z, y, x = np.exp(2j * np.pi / grid * numbers.T[:, None] * np.arange(grid)[:, None])  # each (grid, WAVES)
        self._shape, self._rates = (grid,) * 3, 4 * np.pi**2 * (numbers**2).sum(axis=1)
        self._planes = (z[:, None] * y).reshape(-1, WAVES)
        self._lines = (x * k ** (-5 / 6) * np.exp(2j * np.pi * rng.random(WAVES))).T

    def at(self, factor: Callable[[Array], Array]) -> Array:
        """The field in float64."""
        field: Array = (self._planes * factor(self._rates) @ self._lines).imag
        return field.reshape(self._shape)


class Ensemble:
    """One copy of this rank's members."""

    def __init__(self, start: Array, sources: list[Array]) -> None:
        """``sources``: what a step adds to each member."""
        self._sources = [one.astype(np.float32) for one in sources]
        self._members = [start.astype(np.float32) for _ in sources]

    def step(self) -> None:
        """One step of every member."""
        for u, source in zip(self._members, self._sources, strict=True):
            change = SEVEN_POINTS * u
            for axis in range(3):
                change += np.roll(u, 1, axis)
                change += np.roll(u, -1, axis)
            u += np.float32(COURANT) * change
            u += source

    def mean(self) -> Array:
        """The mean of this rank's members."""
        total: Array = sum(self._members[1:], self._members[0].copy())
        total /= np.float32(len(self._members))
        return total

    def relax(self, mean: Array, share: float) -> None:
        for u in self._members:
            u += np.float32(share) * (mean - u)

    def variance(self, mean: Array) -> float:
        """Mean square of the distance of the members from ``mean``."""
        return sum(rms(u - mean) ** 2 for u in self._members) / len(self._members)


class Run:
    """Both copies of the ensemble on all ranks."""

    def __init__(self, comm: Any, settings: Settings) -> None:
        self._comm, self._settings, self._dt = comm, settings, COURANT / settings.grid**2
        first = 1 + comm.rank * settings.members
        self._shared = Waves([settings.seed, 0], settings.grid)
        self._own = [Waves([settings.seed, number], settings.grid) for number in range(first, first + settings.members)]
        start = self._shared.at(np.ones_like)
        sources = [waves.at(lambda rates: self._dt * rates) for waves in self._own]
        self.exact, self.bounded = Ensemble(start, sources), Ensemble(start, sources)
        self.seconds = {"steps": 0.0, "exact": 0.0, "bounded": 0.0}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[what] += time.perf_counter() - begin

    def means(self) -> tuple[Array, Array]:
        """The exact mean of one copy and the error-bounded mean of the other (collective)."""
        comm, settings = self._comm, self._settings
        local, exact = self.exact.mean(), np.empty((settings.grid,) * 3, np.float32)
        comm.Barrier()
        with self.timed("exact"):
            comm.Allreduce(local, exact)
            exact /= np.float32(comm.size)
        local, bounded = self.bounded.mean(), np.empty_like(exact)
        comm.Barrier()
        with self.timed("bounded"):
            comm.Allreduce(local, bounded, AVG, settings.algorithm, settings.bound, settings.relative)
        return exact, bounded

    def point(self, step: int, exact: Array, bounded: Array) -> Point:
        """Compare the means with each other and with the solution (collective)."""
        stats = self._comm.bounded_stats
        solution, variance, ratio = self._over_ranks(step * self._dt, exact)
        energies = [rms(mean) ** 2 / 2 for mean in (bounded, exact)]
        between = bounded.astype(np.float64) - exact
        return Point(
            step, energies[0], energies[0] / energies[1] - 1, math.sqrt(variance), rms(exact - solution), rms(between),
            float(np.abs(between).max()), ratio,
            f"{stats.algorithm}: {stats.reason}" if stats.reason else stats.algorithm,
        )  # fmt: skip

    def _over_ranks(self, t: float, mean: Array) -> tuple[Array, float, float]:
        """Mean over ranks: of the members' solutions at time ``t``, their variance in the exact copy, and the ratio."""
        total = np.mean([waves.at(lambda rates: -np.expm1(-rates * t)) for waves in self._own], axis=0)
        averaged = np.append(total, [self.exact.variance(mean), self._comm.bounded_stats.ratio])
        self._comm.allreduce_in_place(averaged)
        averaged /= self._comm.size
        own, (variance, ratio) = averaged[:-2].reshape(total.shape), averaged[-2:].tolist()
        return self._shared.at(lambda rates: np.exp(-rates * t)) + own, variance, ratio


def rms(x: Array) -> float:
    """Root mean square."""
    return math.sqrt(float(np.mean(np.square(x, dtype=np.float64))))


def simulate(comm: Any, settings: Settings, trace: Any, watch: Callable[[Point], None] = lambda point: None) -> Result:
    """Run both copies (collective); the same result on every rank.

    Parameters
    ----------
    comm : mpicomp.Comm
    settings : Settings
    trace : mpicomp.trace.Recorder or NullRecorder
        Gets the regions of a step, the collectives, and the metrics difference, spread and discretisation.
    watch : callable
        Called on every rank after each mean.
    """
    run, result = Run(comm, settings), Result(settings, comm.size)
    before, comm.recorder = comm.recorder, trace if trace.enabled else None
    try:
        for point in _points(run, settings, trace):
            result.series.append(point)
            watch(point)
    finally:
        comm.recorder = before
    slowest = np.array([*run.seconds.values()])
    comm.allreduce_in_place(slowest, "native", "max")
    result.seconds = dict(zip(run.seconds, slowest.tolist(), strict=True))
    return result


def _points(run: Run, settings: Settings, trace: Any) -> Iterator[Point]:
    """Execute the steps; a point per mean."""
    for step in range(1, settings.steps + 1):
        with trace.step(step):
            with trace.region("compute"), run.timed("steps"):
                run.exact.step()
                run.bounded.step()
            if step % settings.every:
                continue
            exact, bounded = run.means()
            with trace.region("evaluate"):
                point = run.point(step, exact, bounded)
            for name in ("difference", "spread", "discretisation"):
                trace.metric(name, step, getattr(point, name))
            run.exact.relax(exact, settings.relax)
            run.bounded.relax(bounded, settings.relax)
        yield point

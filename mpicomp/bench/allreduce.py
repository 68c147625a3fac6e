"""What ``mpicomp bench allreduce`` measures: dense algorithms and compression schemes on one vector."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from ..ops import ops_for
from ..partition import pieces
from ..reducer import Reducer
from .plan import Plan

PERIOD = 65521  # prime, so that a piece that lands in the wrong place is seen
AMPLITUDE = 8
SLACK = 16  # roundings in a mean of few ranks


def implementations(comm: Any, plan: Plan, n: int) -> list[Dense | Compressed]:
    """Everything in ``plan``, on vectors of ``n`` elements."""
    vectors = Vectors(comm, plan, n)
    dense = [Dense(comm, algorithm, vectors, plan.place) for algorithm in plan.algorithms]
    gradient = noise(comm.rank, plan, n) if plan.schemes else None
    return [*dense, *(Compressed(comm, scheme, gradient) for scheme in plan.schemes)]


class Vectors:
    """The vectors all dense algorithms share: small integers stored in ``dtype``, so that sums are exact.

    Rank r holds its own random period again and again; the sum over ranks has that period too, so it is known
    without holding another vector.
    """

    def __init__(self, comm: Any, plan: Plan, n: int) -> None:
        dtype = np.dtype(plan.dtype)
        amplitude = max(1, min(AMPLITUDE, exact_limit(dtype) // comm.size))
        periods = (period(plan.seed, rank, amplitude) for rank in range(comm.size))
        self.total = np.sum(list(periods), axis=0).astype(dtype)
        self.send = np.resize(period(plan.seed, comm.rank, amplitude).astype(dtype), n)
        self.receive = np.zeros(n, dtype)

    def wrong(self) -> int:
        """Elements of ``receive`` that are not the sum over ranks."""
        rows = (self.receive[begin:end] for begin, end in pieces(0, self.receive.size, PERIOD))
        return sum(int(np.count_nonzero(row != self.total[: row.size])) for row in rows)


def period(seed: int, rank: int, amplitude: int) -> np.ndarray:
    """``PERIOD`` random integers of one rank, in [-amplitude, amplitude]."""
    return np.random.default_rng([seed, rank]).integers(-amplitude, amplitude, PERIOD, endpoint=True)


def exact_limit(dtype: np.dtype) -> int:
    """The largest integer up to which ``dtype`` holds all of them."""
    return 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else np.iinfo(dtype).max


def noise(rank: int, plan: Plan, n: int) -> np.ndarray:
    """One rank's gradient for the schemes: Gaussian, because a selection among equal magnitudes is none."""
    generator = np.random.default_rng([plan.seed, rank])
    return generator.standard_normal(n, dtype=np.float32).astype(plan.dtype, copy=False)


class Dense:
    """One dense algorithm behind ``Comm.Allreduce``."""

    def __init__(self, comm: Any, algorithm: str, vectors: Vectors, place: str) -> None:
        self.comm, self.name, self.vectors, self.in_place = comm, algorithm, vectors, place == "in"

    def begin(self) -> None:
        if self.in_place:  # or the values would grow from step to step
            self.vectors.receive[:] = self.vectors.send

    def step(self) -> None:
        if self.in_place:
            self.comm.allreduce_in_place(self.vectors.receive, self.name)
        else:
            self.comm.Allreduce(self.vectors.send, self.vectors.receive, algorithm=self.name)

    def end(self) -> None:
        """A dense algorithm has nothing to say about itself."""

    def check(self) -> int:
        self.vectors.receive.fill(-1)  # what another algorithm left there must not pass for a result
        self.begin()
        self.step()
        return self.vectors.wrong()

    def facts(self, rounds: int) -> dict[str, Any]:
        return {"algorithm": self.name, "scheme": None}


class Compressed:
    """One scheme: steps of a fresh reducer on a constant gradient, returning the sparse mean."""

    def __init__(self, comm: Any, scheme: str, gradient: np.ndarray) -> None:
        self.comm, self.name, self.gradient = comm, scheme, gradient
        self.reducer = Reducer(comm, scheme)
        self._density: list[float] = []
        self._phases: list[dict[str, float]] = []

    def begin(self) -> None:
        """Its error memory goes on from the last step, as in training."""

    def step(self) -> None:
        self.reducer.reduce_sparse(self.gradient)

    def end(self) -> None:
        self._density.append(self.reducer.stats.density)
        self._phases.append(self.reducer.stats.seconds)

    def check(self) -> int:
        """One step of another reducer: its mean is that of what memories say was sent, alike on every rank."""
        reducer = Reducer(self.comm, self.name)
        mean = reducer.reduce_sparse(self.gradient).dense(ops_for(self.gradient)).astype(np.float64)
        if reducer.scheme.part_names["memory"] == "error-reset":  # a rank's own share differs; together they are all
            self.comm.allreduce_in_place(mean, "native")
            total = self.gradient.astype(np.float64)
            self.comm.allreduce_in_place(total, "native")
            return self._far(mean, total, self.comm.size * self._tolerance(reducer))
        wrong = 0 if self._same_bits(mean) else 1
        sent = self._sent(reducer)
        if sent is None:
            return wrong + int(np.count_nonzero(~np.isfinite(mean)))
        self.comm.allreduce_in_place(sent, "native")
        sent /= self.comm.size
        return wrong + self._far(mean, sent, self._tolerance(reducer))

    def facts(self, rounds: int) -> dict[str, Any]:
        """Density and the median time of every phase, of the rank where it takes longest (collective)."""
        phases = self._phases[-rounds:]
        medians = np.array([np.median([one[name] for one in phases]) for name in phases[0]])
        self.comm.allreduce_in_place(medians, "native", "max")
        return {
            "algorithm": None,
            "scheme": self.name,
            "density": float(np.mean(self._density[-rounds:])),
            "t_phase_us": dict(zip(phases[0], (1e6 * medians).tolist(), strict=True)),
        }

    def _sent(self, reducer: Reducer) -> np.ndarray | None:
        """What this rank sent in the first step, from what its memory kept; None where no memory tells.

        From an empty memory m' = beta (g - sent) everywhere, since nothing was sent where all is kept. What the owner
        of a piece of the mean kept back is counted as not sent.
        """
        state, options = reducer.state_dict(), reducer.scheme.options
        kept = state.get("memory/0/residual")
        if kept is None or reducer.scheme.part_names["memory"] != "residual":
            exact = reducer.scheme.part_names["codec"] == "float" and reducer.stats.density == 1
            return self.gradient.astype(np.float64) if exact else None
        sent = self.gradient.astype(np.float64) - kept.astype(np.float64) / options["beta"]
        if "exchange/residual" in state:
            second, start = state["exchange/residual"], int(state["exchange/start"])
            sent[start : start + second.size] -= self.comm.size * second.astype(np.float64)
        return sent

    def _tolerance(self, reducer: Reducer) -> float:
        """Roundings of the values on the wire, and of the division by beta that finds what was sent."""
        options = reducer.scheme.options
        values = options.get("values", "same")
        eps = [float(np.finfo(self.gradient.dtype).eps)]
        if values != "same":
            eps.append(2.0**-7 if values == "bfloat16" else float(np.finfo(values).eps))
        return SLACK * max(eps) * float(np.abs(self.gradient).max()) / options.get("beta", 1.0)

    @staticmethod
    def _far(mean: np.ndarray, expected: np.ndarray, tolerance: float) -> int:
        """Elements further apart than the tolerance, or not finite."""
        return int(np.count_nonzero(~(np.abs(mean - expected) <= tolerance)))

    def _same_bits(self, mean: np.ndarray) -> bool:
        return len(set(self.comm.allgather(zlib.crc32(mean.view(np.uint8))))) == 1

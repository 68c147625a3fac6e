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
        """One step of another reducer: *sent + kept = came in* on every rank, and the mean is that of what was sent.

        Ranks must also hold the same bits.
        """
        reducer = Reducer(self.comm, self.name)
        ops = ops_for(self.gradient)
        mean = reducer.reduce_sparse(self.gradient).dense(ops).copy()
        if reducer.scheme.parts(1).memories[0].name == "error-reset":  # each result holds what its rank did not send
            wrong, sent = 0, self.gradient.astype(np.float64)
            self.comm.allreduce_in_place(mean, "native")
            mean /= self.comm.size
        else:
            wrong, sent = 0 if self._same_bits(mean) else 1, self._sent(reducer)
        if sent is None:
            return wrong
        self.comm.allreduce_in_place(sent, "native")
        sent /= self.comm.size
        return wrong + int(np.count_nonzero(~(np.abs(mean - sent) <= self._tolerance(reducer))))

    def facts(self, rounds: int) -> dict[str, Any]:
        """Density and the median time of every phase, of the rank where it takes longest (collective)."""
        phases = self._phases[-rounds:]
        names = sorted({name for one in phases for name in one})  # steps that send nothing lack some
        medians = np.array([np.median([one.get(name, 0.0) for one in phases]) for name in names])
        self.comm.allreduce_in_place(medians, "native", "max")
        return {
            "algorithm": None,
            "scheme": self.name,
            "density": float(np.mean(self._density[-rounds:])),
            "t_phase_us": dict(zip(names, (1e6 * medians).tolist(), strict=True)),
        }

    def _sent(self, reducer: Reducer) -> np.ndarray | None:
        """What this rank sent in the first step, from what its memory kept; None where no memory tells.

        From an empty memory m' = beta (g - sent) everywhere, since nothing was sent where all is kept. Where Nesterov's
        momentum has gone ahead g counts 1 + momentum times.
        """
        kept, options = reducer.state_dict().get("memory/0/residual"), reducer.scheme.options
        if kept is not None:
            ahead = options["momentum"] if options.get("nesterov") == "yes" else 0.0
            return self.gradient.astype(np.float64) * (1 + ahead) - kept.astype(np.float64) / options.get("beta", 1.0)
        return self.gradient.astype(np.float64) if reducer.stats.density == 1 else None

    def _tolerance(self, reducer: Reducer) -> float:
        """Roundings of the values on the wire, and of the division by beta that finds what was sent."""
        options = reducer.scheme.options
        dtypes = [self.gradient.dtype]
        if options["values"] != "same":
            dtypes.append(np.dtype(options["values"]))
        eps = max(float(np.finfo(dtype).eps) for dtype in dtypes)
        return SLACK * eps * float(np.abs(self.gradient).max()) / options.get("beta", 1.0)

    def _same_bits(self, mean: np.ndarray) -> bool:
        return len(set(self.comm.allgather(zlib.crc32(mean.view(np.uint8))))) == 1

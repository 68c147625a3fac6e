"""Schemes as the bench times them: steps of a ``Reducer`` on a constant gradient, over all ranks or on each alone."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from ..ops import ops_for
from ..ops.device import ready
from ..reducer.reducer import Reducer
from .devices import to_device
from .plan import Plan

SLACK = 16  # roundings in a mean of few ranks


def noise(rank: int, plan: Plan, n: int) -> np.ndarray:
    """One rank's gradient for the schemes: Gaussian, because a selection among equal magnitudes is none."""
    generator = np.random.default_rng([plan.seed, rank])
    return generator.standard_normal(n, dtype=np.float32).astype(plan.dtype, copy=False)


class Compressed:
    """One scheme: steps of a fresh reducer on a constant gradient, returning the sparse mean."""

    one_way, modelled, place = 1.0, 0, None
    part = "step"

    def __init__(self, comm: Any, scheme: str, gradient: np.ndarray, device: str = "cpu") -> None:
        self.comm, self.name, self.gradient, self.scheme = comm, scheme, gradient, scheme
        self.on_device = device == "gpu"
        self.input = to_device(gradient, device)
        self.reducer = Reducer(comm, scheme)
        self._density: list[float] = []
        self._phases: list[dict[str, float]] = []

    def begin(self) -> None:
        """Its error memory goes on from the last step, as in training."""

    def step(self) -> None:
        mean = self.reducer.reduce_sparse(self.input)
        if self.on_device:
            ready(mean.values)

    def end(self) -> None:
        self._density.append(self.reducer.stats.density)
        self._phases.append(self.reducer.stats.seconds)

    def check(self) -> int:
        """One step of another reducer: its mean is that of what memories say was sent, alike on every rank."""
        reducer = Reducer(self.comm, self.scheme)
        ops = ops_for(self.input)
        mean = ops.to_host(reducer.reduce_sparse(self.input).dense(ops)).astype(np.float64)
        if reducer.scheme.diverges:  # a rank's own share differs; together they are all
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
        medians = np.array([np.median([one.get(name, 0.0) for one in phases]) for name in phases[0]])
        self.comm.allreduce_in_place(medians, "native", "max")
        return {
            "algorithm": None,
            "scheme": self.scheme,
            "part": self.part,
            "place": None,
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
        sent: np.ndarray = self.gradient.astype(np.float64) - kept.astype(np.float64) / options["beta"]
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
        return len(set(self.comm.allgather(zlib.crc32(mean.view(np.uint8).data)))) == 1


class Alone(Compressed):
    """The same step on every rank by itself, all at once: what compressing and decompressing cost without a network."""

    part = "local"

    def __init__(self, comm: Any, alone: Any, scheme: str, gradient: np.ndarray, device: str = "cpu") -> None:
        super().__init__(alone, scheme, gradient, device)
        self.everyone, self.name = comm, f"{scheme} (local)"

    def facts(self, rounds: int) -> dict[str, Any]:
        """As of a step; phases of the rank where they take longest (collective over all ranks)."""
        facts = super().facts(rounds)
        phases = np.array([*facts["t_phase_us"].values(), facts["density"]])
        self.everyone.allreduce_in_place(phases, "native", "max")
        facts["t_phase_us"] = dict(zip(facts["t_phase_us"], phases[:-1].tolist(), strict=True))
        return {**facts, "density": float(phases[-1])}

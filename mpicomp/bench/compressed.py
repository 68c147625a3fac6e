"""Schemes as the bench times them: steps of a ``Reducer`` on a constant gradient, over all ranks or on each alone."""

from __future__ import annotations

import numpy as np

from ..comm.comm import Comm
from ..ops import ops_for
from ..ops.device import ready
from ..reducer.reducer import Reducer
from .data import same_bits
from .devices import to_device
from .plan import Plan
from .timing import Facts, Implementation

SLACK = 16  # times the rounding error of one value, for a mean over few ranks


def gaussian(rank: int, plan: Plan, n: int) -> np.ndarray:
    """One rank's gradient for the schemes: Gaussian, so that magnitudes differ and a selection means something."""
    generator = np.random.default_rng([plan.seed, rank])
    return generator.standard_normal(n, dtype=np.float32).astype(plan.dtype, copy=False)


class Compressed(Implementation):
    """One scheme: steps of a fresh reducer on a constant gradient, returning the sparse mean.

    The error memory continues from step to step, as in training.
    """

    part = "step"

    def __init__(self, comm: Comm, scheme: str, gradient: np.ndarray, device: str = "cpu") -> None:
        self.comm, self.name, self.gradient, self.scheme = comm, scheme, gradient, scheme
        self.on_device = device == "gpu"
        self.input = to_device(gradient, device)
        self.reducer = Reducer(comm, scheme)
        self._density: list[float] = []
        self._phases: list[dict[str, float]] = []

    def step(self) -> None:
        mean = self.reducer.reduce_sparse(self.input)
        if self.on_device:
            ready(mean.values)

    def end(self) -> None:
        self._density.append(self.reducer.stats.density)
        self._phases.append(self.reducer.stats.seconds)

    def check(self) -> int:
        """Compare one step of another reducer with the mean of the sent values, which follow from the memories."""
        reducer = Reducer(self.comm, self.scheme)
        ops = ops_for(self.input)
        mean = ops.to_host(reducer.reduce_sparse(self.input).dense(ops)).astype(np.float64)
        if reducer.scheme.diverges:  # the results of the ranks differ; their sum is that of the gradients
            self.comm.allreduce_in_place(mean, "native")
            total = self.gradient.astype(np.float64)
            self.comm.allreduce_in_place(total, "native")
            return self._far(mean, total, self.comm.size * self._tolerance(reducer))
        wrong = 0 if same_bits(self.comm, mean) else 1
        sent = self._sent(reducer)
        if sent is None:
            return wrong + int(np.count_nonzero(~np.isfinite(mean)))
        self.comm.allreduce_in_place(sent, "native")
        sent /= self.comm.size
        return wrong + self._far(mean, sent, self._tolerance(reducer))

    def facts(self, rounds: int) -> Facts:
        """Density and the median time of every phase, of each round's slowest rank (collective)."""
        phases = self._phases[-rounds:]
        own = dict.fromkeys(name for one in phases for name in one)  # not every step has every phase, nor every rank
        names = dict.fromkeys(name for of_rank in self.comm.allgather([*own]) for name in of_rank)
        seconds = np.array([[one.get(name, 0.0) for name in names] for one in phases])
        self.comm.allreduce_in_place(seconds.ravel(), "native", "max")  # a scheme's leader is another rank each time
        medians = np.median(seconds, axis=0)
        return Facts(
            scheme=self.scheme,
            part=self.part,
            density=float(np.mean(self._density[-rounds:])),
            t_phase_us=dict(zip(names, (1e6 * medians).tolist(), strict=True)),
        )

    def _sent(self, reducer: Reducer) -> np.ndarray | None:
        """The values that this rank sent in the first step, computed from its memory; None without such a memory.

        From an empty memory m' = beta (g - sent) for every element, sent or not. Values that the owner of a piece of
        the mean kept back count as not sent.
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
        """Rounding errors of the values on the wire, and of the division by beta in `_sent`."""
        options = reducer.scheme.options
        values = options.get("values", "same")
        eps = [float(np.finfo(self.gradient.dtype).eps)]
        if values != "same":
            eps.append(2.0**-7 if values == "bfloat16" else float(np.finfo(values).eps))
        candidates = reducer.scheme.parts(1).exchange.candidates
        if any(one.codec.may_overflow(self.gradient.dtype) for one in candidates):
            eps.append(2.0**-7)
        return SLACK * max(eps) * float(np.abs(self.gradient).max()) / options.get("beta", 1.0)

    @staticmethod
    def _far(mean: np.ndarray, expected: np.ndarray, tolerance: float) -> int:
        """Number of elements further apart than the tolerance, or not finite."""
        return int(np.count_nonzero(~(np.abs(mean - expected) <= tolerance)))


class Alone(Compressed):
    """The same step on every rank alone, all at once: the cost of compressing and decompressing without a network."""

    part = "local"

    def __init__(self, comm: Comm, alone: Comm, scheme: str, gradient: np.ndarray, device: str = "cpu") -> None:
        super().__init__(alone, scheme, gradient, device)
        self.everyone, self.name = comm, f"{scheme} (local)"

    def facts(self, rounds: int) -> Facts:
        """The facts of a step, with density and phases of the slowest rank (collective over all ranks)."""
        facts = super().facts(rounds)
        phases = facts.t_phase_us or {}
        slowest = np.array([*phases.values(), facts.density])
        self.everyone.allreduce_in_place(slowest, "native", "max")
        return facts._replace(t_phase_us=dict(zip(phases, slowest[:-1].tolist(), strict=True)),
                              density=float(slowest[-1]))  # fmt: skip


def compressed(comm: Comm, plan: Plan, n: int) -> list[Compressed]:
    """Every scheme of ``plan`` on vectors of ``n`` elements; twice for the collective "schemes"."""
    if not plan.schemes:
        return []
    gradient = gaussian(comm.rank, plan, n)
    if plan.collective != "schemes":
        return [Compressed(comm, scheme, gradient, plan.device) for scheme in plan.schemes]
    own = comm.Split(comm.rank, 0)
    alone = type(comm)(own)
    own.Free()
    return [one for scheme in plan.schemes for one in (Alone(comm, alone, scheme, gradient, plan.device),
                                                       Compressed(comm, scheme, gradient, plan.device))]

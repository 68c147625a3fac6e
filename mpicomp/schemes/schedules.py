"""Schedules of the density: which fraction of each tensor is sent in which step. Chosen by declared name.

``density`` gives a span's density where the scheme's own is ``target``; ``observe`` sees every step's common mean, and
``learning_rate_dropped`` hears of it. All ranks hold the same mean and count the same steps, so they decide alike
without asking each other. (Learning rates: `mpicomp.rates`.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import InvalidArgument
from ..ops.protocol import Ops
from ..types import Array
from .interfaces import DensitySchedule, StepContext
from .options import Option
from .values import Mean, State


class WarmUp(DensitySchedule):
    """From ``warmup_density`` to the scheme's own in ``stages`` equal ratios over the first ``warmup`` steps.

    With 4 stages from 25 % to 0.1 % the sparsity is 75, 93.7, 98.4, 99.6 and then 99.9 %, as published. One stage is a
    warm-up at ``warmup_density`` itself, for example 1. Without warm-up the density is always the scheme's own.

    Reference: Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3.
    """

    name = "warm-up"
    options = (
        Option("warmup", int, 0, "steps until the density is the scheme's own", low=0),
        Option("warmup_density", float, 0.25, "density of the first steps", low=0, high=1, open_low=True),
        Option("stages", int, 4, "how many densities the warm-up has", low=1),
    )
    reference = "Lin et al. 2018"

    def __init__(self, warmup: int, warmup_density: float, stages: int) -> None:
        self.warmup, self.first, self.stages = warmup, warmup_density, stages
        if type(self).density is WarmUp.density:  # a subclass may change it later
            self.settled_from = warmup

    def density(self, target: float, span: int, number: int) -> float:
        if number >= self.warmup or target >= self.first:
            return target
        stage = self.stages * number // self.warmup
        return self.first * (target / self.first) ** (stage / self.stages)

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """The density depends on the step's number alone."""

    def learning_rate_dropped(self) -> None:
        """Nor on the learning rate."""


class Accordion(DensitySchedule):
    """Sends more of a span while it is in a critical regime: there its gradients' norm changes fast.

    The means of ``interval`` steps are added up. Where the norm of that sum differs from that of the interval before by
    at least the fraction ``change``, the next interval is critical, and ``high`` of the span is sent (or the scheme's
    own density, if that is more). So are all intervals until there are two to compare; and a learning-rate drop
    makes critical the steps from the next one to the end of the next interval.

    Cost: no messages; one vector, and one pass over it an interval.

    Reference: Agarwal et al., ACCORDION, MLSys 2021, algorithm 1.
    """

    name = "accordion"
    options = (
        Option("high", float, 0.1, "density in critical regimes", low=0, high=1, open_low=True),
        Option("interval", int, 10, "steps from one decision to the next", low=1),
        Option("change", float, 0.5, "relative change of the gradient's norm that is critical", low=0),
    )
    reference = "Agarwal et al. 2021"
    stateful = True

    _sum: Array | None  # of the interval's means; a loaded one goes to the device at first use
    _loaded: np.ndarray | None
    _norms: np.ndarray | None
    _critical: np.ndarray | None  # by span; None where all are
    _due: int  # the steps after which to decide

    def __init__(self, high: float, interval: int, change: float) -> None:
        self.high, self.interval, self.change = high, interval, change
        self.load({})

    def density(self, target: float, span: int, number: int) -> float:
        critical = self._critical is None or self._critical[span]
        return max(target, self.high) if critical else target

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """Add the step's mean; decide at the end of the interval, or after it where its last step was skipped."""
        if self._sum is None:
            self._sum = self._begun(ctx)
        ctx.add_at(self._sum, mean.indices, mean.values)
        if ctx.number + 1 >= self._due:
            self._decide(self._sum, ctx)

    def _begun(self, ctx: StepContext) -> Array:
        """The sum before its first step: zero, or what was loaded."""
        total = ctx.ops.zeros(ctx.n, ctx.dtype)
        if self._loaded is not None:
            total[:] = ctx.ops.from_host(self._loaded)
        return total

    def learning_rate_dropped(self) -> None:
        self._dropped, self._critical = True, None

    def _decide(self, total: Array, ctx: StepContext) -> None:
        now = np.array([math.sqrt(ctx.ops.squared_norm(total[start:stop])) for start, stop in ctx.spans])
        if self._dropped or self._norms is None:
            self._critical = None
        else:
            changed = np.abs(self._norms - now)
            self._critical = (changed > 0) & (changed >= self.change * self._norms)
        self._norms, self._dropped = now, False
        self._due = ((ctx.number + 1) // self.interval + 1) * self.interval
        total[:] = 0

    def state(self, ops: Ops) -> State:
        total = self._loaded if self._sum is None else np.array(ops.to_host(self._sum))
        arrays = {"sum": total, "norms": self._norms, "critical": self._critical}
        state = {name: array.copy() for name, array in arrays.items() if array is not None}
        return {**state, "due": np.array(self._due), "dropped": np.array(self._dropped)}

    def load(self, state: State) -> None:
        self._sum = None
        self._loaded, self._norms = state.get("sum"), state.get("norms")
        self._critical = state.get("critical")
        self._due = int(state.get("due", self.interval))
        self._dropped = bool(state.get("dropped", False))


SCHEDULES = {part.name: part for part in (WarmUp, Accordion)}


def densities_by_flops(
    flops: Mapping[str, float], rates: Sequence[tuple[float, float]] = ((196, 25), (128, 50), (0, 400))
) -> dict[str, float]:
    """The density of each array by how much is computed for each element of its gradient, for ``Reducer(densities=)``.

    Parameters
    ----------
    flops : mapping of name -> float
        Floating-point operations of forward and backward pass per gradient element. They grow with a worker's batch.
    rates : sequence of (least flops, compression rate)
        Descending: an array takes the first rate whose bound it reaches.

    Examples
    --------
    >>> densities_by_flops({"conv": 400, "dense": 32})
    {'conv': 0.04, 'dense': 0.0025}

    Reference: Chen et al., ScaleCom, NeurIPS 2020, section 4: 25x from 196 FLOPs per element, 50x from 128, else 400x.
    """
    bounds = [bound for bound, _ in rates]
    if bounds != sorted(bounds, reverse=True) or not bounds or bounds[-1] > 0:
        raise InvalidArgument(f"the bounds of rates must descend to 0, got {bounds}")
    if any(not rate >= 1 for _, rate in rates):
        raise InvalidArgument(f"compression rates must be at least 1, got {[rate for _, rate in rates]}")
    if wrong := {name: value for name, value in flops.items() if not value >= bounds[-1]}:
        raise InvalidArgument(f"FLOPs per gradient element must be at least {bounds[-1]:g}, got {wrong}")
    return {name: 1 / next(rate for bound, rate in rates if value >= bound) for name, value in flops.items()}

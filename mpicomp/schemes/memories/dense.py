"""Momentum of the mean of arrays that go dense, which no optimizer takes."""

from __future__ import annotations

import warnings

import numpy as np

from ...errors import SchemeWarning
from ...types import Array
from ..interfaces import DenseMean, StepContext
from ..values import Compensated
from .kept import Keeping


class DenseMomentum(Keeping, DenseMean):
    """The momentum of dense arrays, for memories whose workers take that of the others before they send.

    Schedule: velocity <- mu velocity + weight mean, which is the result; Nesterov: velocity <- mu (velocity + mean),
    and the result is mean + velocity: with everything sent and no masking the workers' own, which is linear.
    Cost: no messages; two vectors a rank (velocity, its successor), of the dense arrays alone, whatever the number of
    workers; one pass over all of them together (Nesterov: two).
    All ranks start from zero and add the same means, so velocities agree to the last bit.

    Reference: the authors' implementation of DGC (synxlin/deep-gradient-compression), where what is not compressed is
    compensated after its all-reduce. The paper compresses everything.
    """

    def __init__(self, momentum: float, nesterov: bool, weight: float = 1.0) -> None:
        self.momentum, self.nesterov, self.weight = momentum, nesterov, weight
        super().__init__("velocity")

    def overflows(self, gradient: Array, ctx: StepContext) -> int:
        return ctx.overflows(Compensated(self._kept.get("velocity"), gradient))

    def apply(self, mean: Array, ctx: StepContext) -> Array:
        with ctx.timer.phase("update"):
            velocity, mu = self._kept.open(mean, ctx.ops)["velocity"], self.momentum
            successor = self._kept.room("velocity", mean, ctx.ops)
            ctx.ops.axpby(successor, mu, velocity, mu if self.nesterov else self.weight, mean)
            if not self.nesterov:
                return successor
            ctx.ops.add(mean, successor)
            return mean

    def keep(self) -> None:
        self._kept.advance("velocity")

    def check(self, n: int, dtype: np.dtype, number: int, rank: int) -> None:
        """Refuse a velocity of other arrays; say on one rank where a training goes on without the one it had."""
        self._kept.check(n, dtype, "the dense arrays")
        if n and number and self._kept.empty and rank == 0:
            warnings.warn(f"the state of step {number} has no velocity of the arrays that go dense, as those saved "
                          "before there was one: it begins at zero", SchemeWarning, stacklevel=2)

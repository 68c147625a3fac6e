"""What becomes of the mean of the arrays that go dense: nothing, or the momentum that no optimizer takes of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...errors import SchemeWarning
from ...types import Array, Compensated
from .kept import Kept


class DenseMean:
    """The mean is the result, and nothing is kept. (All that came in is sent.)"""

    def overflows(self, gradient: Array, step: Any) -> int:
        """How many elements of one worker's dense arrays are to be refused."""
        return step.ops.count_nonfinite(gradient)[0]

    def apply(self, mean: Array, step: Any) -> Array:
        """What the optimizer gets in place of ``mean``, which may be overwritten; good until the next step."""
        return mean

    def keep(self) -> None:
        """Keep what ``apply`` worked out: nothing refuses the step any more."""

    def check(self, n: int, step: Any, number: int) -> None:
        """Look whether a loaded state is of ``n`` elements in dense arrays, before step ``number``."""

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to load."""


class DenseMomentum(DenseMean):
    """The momentum of dense arrays, for memories whose workers take that of the others before they send.

    Schedule: velocity <- mu velocity + mean, which is the result; Nesterov: velocity <- mu (velocity + mean), and the
    result is mean + velocity: with everything sent and no masking the same as the workers' own, which is linear.
    Cost: no messages; two vectors a rank (velocity, its successor), of the dense arrays alone, whatever the number of
    workers; one pass over all of them together (Nesterov: two).
    All ranks start from zero and add the same means, so velocities agree to the last bit.

    Reference: the authors' implementation of DGC (synxlin/deep-gradient-compression), where what is not compressed is
    compensated after its all-reduce. The paper compresses everything.
    """

    def __init__(self, momentum: float, nesterov: bool) -> None:
        self.momentum, self.nesterov = momentum, nesterov
        self._kept = Kept("velocity")
        self._successor: Array | None = None  # the velocity after this step

    def overflows(self, gradient: Array, step: Any) -> int:
        return step.overflows(Compensated(self._kept.get("velocity"), gradient))

    def apply(self, mean: Array, step: Any) -> Array:
        with step.timed("update"):
            velocity, mu = self._kept.open(mean, step.ops)["velocity"], self.momentum
            if self._successor is None:
                self._successor = step.ops.empty(mean.size, mean.dtype)
            step.ops.axpby(self._successor, mu, velocity, mu if self.nesterov else 1.0, mean)
            if not self.nesterov:
                return self._successor
            step.ops.add(mean, self._successor)
            return mean

    def keep(self) -> None:
        assert self._successor is not None, "apply comes first"
        velocity, self._successor = self._successor, self._kept.get("velocity")
        self._kept.put("velocity", velocity)

    def check(self, n: int, step: Any, number: int) -> None:
        """Refuse a velocity of other arrays; say on one rank where a training goes on without the one it had."""
        self._kept.check(n, "the dense arrays")
        if n and number and self._kept.empty and step.comm.rank == 0:
            warnings.warn(f"the state of step {number} has no velocity of the arrays that go dense, as those saved "
                          "before there was one: it begins at zero", SchemeWarning, stacklevel=2)

    def set_aside(self, spans: list[tuple[int, int]]) -> None:
        """Let the velocity of some spans rest, until ``put_back``."""
        self._kept.set_aside(spans)

    def put_back(self, ops: Any) -> None:
        self._kept.put_back(ops)

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return self._kept.state(ops)

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._kept.load(state)

"""Momentum correction: the momentum is taken by each worker before it holds back, not by the optimizer after."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import DenseMean, StepContext
from ..options import Option
from ..values import Compensated, Sent
from .dense import DenseMomentum
from .kept import ErrorMemory
from .residual import keep_unsent

MOMENTUM = Option("momentum", float, 0.9, "of the workers' own velocities; the optimizer then has none", low=0, high=1)
NESTEROV = Option("nesterov", str, "no", "take the gradient ahead, as Nesterov does", choices=("yes", "no"))


class MomentumCorrected(ErrorMemory):
    """Keeps a velocity beside what was not sent, and sends of velocities: mean steps for plain ``x -= lr * mean``.

    Schedule: velocity <- mu velocity + g; u = residual + velocity; residual <- u - sent; with factor masking the
    velocity is zeroed where something was sent, so that stale momentum does not carry on there. Nesterov:
    velocity <- mu (velocity + g); u = residual + velocity + g. With ``clip`` each worker first clips g to a norm of at
    most clip * workers^(1/2). The paper clips g / workers, the worker's share of the mean, to clip * workers^(-1/2).
    The mean of independent gradients of that norm has a norm of about clip.
    Cost: no messages. Three vectors (residual, velocity, its successor; Nesterov: four): the new velocity takes its
    place only in ``update``, so a step that is refused or skipped leaves both.
    Restrictions: the optimizer must be plain gradient descent, also for the arrays that go dense: they have the same
    momentum, taken of their mean (``DenseMomentum``), but do not count for the clipping and are not clipped. With
    everything sent, masking=no is SGD with momentum, and masking=yes SGD without any.

    Reference: Lin et al., Deep Gradient Compression, ICLR 2018, algorithms 3 and 4, sections 3.1 and 3.2.
    """

    name = "momentum-corrected"
    options: tuple[Option, ...] = (
        MOMENTUM, NESTEROV,
        Option("masking", str, "yes", "stop the momentum of what was sent", choices=("yes", "no")),
        Option("clip", float, 0.0, "each worker's gradient is cut to clip sqrt(workers), a mean of independent ones so "
               "to about clip; 0 is off", low=0),
    )
    reference = "Lin et al. 2018 (DGC)"
    takes_momentum = True
    required_state = ("residual", "velocity")

    def __init__(self, momentum: float, nesterov: str, masking: str, clip: float) -> None:
        super().__init__()
        self.momentum, self.clip = momentum, clip
        self.nesterov, self.masking = nesterov == "yes", masking == "yes"

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        kept, ops, mu = self._kept.open(gradient, ctx.ops), ctx.ops, self.momentum
        share, successor = self._clipped_share(gradient, ctx), self._kept.room("velocity", gradient, ops)
        ops.axpby(successor, mu, kept["velocity"], mu * share if self.nesterov else share, gradient)
        if not self.nesterov:
            return Compensated(kept["residual"], successor)
        ahead = self._kept.room("ahead", gradient, ops)
        ops.axpby(ahead, 1.0, successor, share, gradient)
        return Compensated(kept["residual"], ahead)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        """Keep the unsent part; then the velocity moves on (u is made of it, so not before)."""
        yield from keep_unsent(u, sent, 1.0, ctx.ops)
        successor = self._kept.room("velocity", u.gradient, ctx.ops)
        if self.masking:
            _zero(successor, sent.indices, ctx.ops)
        self._kept.advance("velocity")

    def for_dense(self) -> DenseMean:
        return DenseMomentum(self.momentum, self.nesterov) if self.momentum else DenseMean()

    def _clipped_share(self, gradient: Array, ctx: StepContext) -> float:
        """The factor that clips a gradient; 1 for one that is not finite, which others report."""
        if not self.clip:
            return 1.0
        norm, limit = math.sqrt(ctx.ops.squared_norm(gradient)), self.clip * ctx.workers.total**0.5
        return limit / norm if limit < norm < math.inf else 1.0


def _zero(x: Array, indices: Array | None, ops: Ops) -> None:
    if indices is None:
        x[:] = 0
    else:
        ops.clear(x, indices)

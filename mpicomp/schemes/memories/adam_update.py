"""Error feedback on Adam's update: each worker has moments of its own gradients, and sends of its own update."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...types import Array
from ..interfaces import DenseMean, StepContext
from ..options import BETAS, Option
from ..values import Compensated, Sent
from .kept import ErrorMemory, Keeping, Kept
from .residual import keep_unsent

MOMENTS = ("first", "second")


class Moments:
    """Adam's moments among the vectors that a part keeps; they move on when a step counts."""

    def __init__(self, kept: Kept, beta1: float, beta2: float, eps: float) -> None:
        self._kept, self.beta1, self.beta2, self.eps = kept, beta1, beta2, eps

    def direction(self, gradient: Array, ctx: StepContext) -> Array:
        """Adam's direction by a gradient, good until the next step; the moments stay."""
        kept, ops, b1, b2 = self._kept.open(gradient, ctx.ops), ctx.ops, self.beta1, self.beta2
        first, second, direction = (self._kept.room(name, gradient, ops) for name in (*MOMENTS, "direction"))
        ops.axpby(first, b1, kept["first"], 1 - b1, gradient)
        direction[:] = gradient
        ops.multiply(direction, gradient)
        ops.axpby(second, b2, kept["second"], 1 - b2, direction)
        # With bias corrections c = 1 - beta^t: m / c1 / (sqrt(s / c2) + eps) = (root / c1) m / (sqrt(s) + root eps).
        root = math.sqrt(1 - b2 ** (ctx.number + 1))
        direction[:] = first
        ops.scale(direction, root / (1 - b1 ** (ctx.number + 1)))
        ops.divide_by_root(direction, second, root * self.eps)
        return direction

    def advance(self) -> None:
        """Take the moments after the step."""
        for name in MOMENTS:
            self._kept.advance(name)


class DenseAdam(Keeping, DenseMean):
    """Adam's direction by the mean of arrays that go dense, the same on all ranks."""

    def __init__(self, beta1: float, beta2: float, eps: float) -> None:
        super().__init__(*MOMENTS)
        self._moments = Moments(self._kept, beta1, beta2, eps)

    def apply(self, mean: Array, ctx: StepContext) -> Array:
        with ctx.timer.phase("update"):
            return self._moments.direction(mean, ctx)

    def keep(self) -> None:
        self._moments.advance()

    def check(self, n: int, dtype: np.dtype, number: int, rank: int) -> None:
        self._kept.check(n, dtype, "the dense arrays")


class AdamUpdate(ErrorMemory):
    """Error feedback on each worker's own Adam update instead of its gradient.

    Schedule: m <- b1 m + (1-b1) g; s <- b2 s + (1-b2) g^2; u = residual + m / (1-b1^t) / (sqrt(s / (1-b2^t)) + eps);
    residual <- u - sent. A coordinate that waited sends its steps later, so none is lost; Adam on the mean of sparse
    gradients divides the sum of what waited by the root of its rare squares, and moves less (`Scheme.rate_factor`).
    Cost: no messages; six vectors (residual, both moments, their successors, direction).
    Restrictions: the optimizer is plain gradient descent, with Adam's learning rate; its weight decay is that of AdamW.
    Moments are of one worker's batch, so their noise is that of the worker's, not of all workers'. Arrays that go dense
    have Adam's moments of their mean. A state of other workers is refused.

    Reference: as memory update (Sahu et al., NeurIPS 2021, algorithm 3), with Adam's rule (Kingma and Ba, ICLR 2015).
    """

    name = "adam-update"
    options: tuple[Option, ...] = BETAS
    reference = "Kingma and Ba 2015; Sahu et al. 2021"
    takes_momentum = True
    required_state = ("residual", *MOMENTS)
    redistribution = tuple((name, "stay") for name in MOMENTS)

    def __init__(self, beta1: float, beta2: float, eps: float) -> None:
        super().__init__()
        self._moments = Moments(self._kept, beta1, beta2, eps)

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        direction = self._moments.direction(gradient, ctx)
        return Compensated(self._kept.get("residual"), direction)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        yield from keep_unsent(u, sent, 1.0, ctx.ops)
        self._moments.advance()

    def for_dense(self) -> DenseMean:
        return DenseAdam(self._moments.beta1, self._moments.beta2, self._moments.eps)

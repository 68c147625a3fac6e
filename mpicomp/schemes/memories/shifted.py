"""Error feedback on what a gradient differs by from a shift that each worker knows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...errors import InvalidArgument
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import StepContext
from ..values import Compensated, Sent, Span, State
from .kept import ErrorMemory, Kept
from .residual import keep_unsent


class Shifted(ErrorMemory):
    """Error feedback on g - h, where h is the worker's shift, for example its gradient at the optimum.

    Schedule: u = residual + g - h; residual <- u - sent; the mean of all shifts, known to all, is added to the mean.
    At the optimum the workers' gradients are not zero but g = h is, so the memories empty and full gradients with a
    constant step converge to the optimum itself.
    Cost: one dense all-reduce in ``Reducer.set_shift``; in every step one more pass, and a dense mean.
    Four vectors (residual, shift, the shifts' mean, g - h). Without a shift it is plain error feedback, with one.
    Restrictions: arrays that go dense are averaged exactly anyway, so their shifts do nothing.

    Reference: Gorbunov et al., Linearly converging error compensated SGD, NeurIPS 2020 (EF-GD*).
    """

    name = "shifted"
    options = ()
    reference = "Gorbunov et al. 2020 (EF-GD*)"
    takes_shift = True
    redistribution = (("shift", "stay"), ("shift_mean", "stay"))

    def __init__(self) -> None:
        super().__init__()
        self._shift = Kept("shift", "shift_mean")

    def set_shift(self, shift: Array, mean: Array) -> None:
        """This worker's shift, and the mean of all workers'; the arrays are the memory's from now on."""
        self._shift.put("shift", shift)
        self._shift.put("shift_mean", mean)

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        residual = self._kept.open(gradient, ctx.ops)["residual"]
        if self._shift.empty:
            return Compensated(residual, gradient)
        shift, difference = self._shift.open(gradient, ctx.ops)["shift"], self._kept.room("shifted", gradient, ctx.ops)
        ctx.ops.axpby(difference, 1.0, gradient, -1.0, shift)
        return Compensated(residual, difference)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        return keep_unsent(u, sent, 1.0, ctx.ops)

    def local(self, u: Compensated, sent: Sent, ctx: StepContext) -> Array | None:
        """The mean of all shifts: the same for every worker, so the average over a rank's is that of all ranks."""
        mean = self._shift.get("shift_mean")
        return None if mean is None else mean.copy()

    def set_aside(self, spans: list[Span]) -> None:
        super().set_aside(spans)
        self._shift.set_aside(spans)

    def put_back(self, ops: Ops) -> None:
        super().put_back(ops)
        self._shift.put_back(ops)

    def check(self, n: int, dtype: np.dtype) -> None:
        super().check(n, dtype)
        self._shift.check(n, dtype)

    def state(self, ops: Ops) -> State:
        return {**super().state(ops), **self._shift.state(ops)}

    def load(self, state: State) -> None:
        if ("shift" in state) != ("shift_mean" in state):
            raise InvalidArgument("the state must have both of shift and shift_mean, or neither")
        super().load(state)
        self._shift.load(state)

"""Error reset: each rank applies its unsent elements at once, and all ranks share them every few steps."""

from __future__ import annotations

from collections.abc import Iterator

from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Compensated, Sent
from .kept import ErrorMemory
from .residual import keep_unsent


class ErrorReset(ErrorMemory):
    """Every rank's model takes the rank's own unsent part along; each ``period``-th step sends of what has gathered.

    Schedule: u = g in most steps (``between=gradient``), or nothing is sent in them at all (``between=nothing``: local
    SGD); u = e + g in every period-th. In all of them e <- e + g - sent, and the rank's result is mean + g - sent.
    So after any number of steps of x_i <- x_i - lr * result (lr constant, all from x_0)

        x_i = x_0 - lr sum(mean) - lr sum(g_i - sent_i) = common - lr e_i,

    the models differ by their errors alone, and agree wherever a period-th step has sent all of e: with the selector
    ``all`` on every rank, to the last bit but for rounding.
    Differs from CSER, which sends of g and then of e in a period-th step, in two exchanges: a rank's own model differs,
    the mean of all does not. With between=nothing there is no difference.
    Cost: no messages; with half-precision gradients 16 bytes in a step that sends, to agree that all ranks' results fit
    that dtype. One vector, and one more for the rank's own share.
    Restrictions: ranks do not get the same result, by design. Where the learning rate changes within a period,
    reduce lr * g and apply the result as it is, or the identity above breaks. Several workers on a rank share its
    model, which carries the mean of their errors. With between=nothing no arrays may go dense, and a gradient that is
    not finite is left out in a silent step by its own rank, and told to all in the next step that sends.

    Reference: Xie et al., CSER, NeurIPS 2020, algorithm 2; between=nothing: Stich, Local SGD, ICLR 2019; Basu et al.,
    Qsparse-local-SGD, NeurIPS 2019.
    """

    name = "error-reset"
    options = (
        Option("period", int, 8, "steps from one that sends of the error memory to the next", low=1),
        Option("between", str, "gradient", "what the steps in between send of", choices=("gradient", "nothing")),
    )
    reference = "Xie et al. 2020 (CSER); Stich 2019 (local SGD); Basu et al. 2019"
    diverges = True

    def __init__(self, period: int, between: str) -> None:
        super().__init__()
        self.period, self.local_steps = period, between == "nothing"

    def is_local(self, number: int) -> bool:
        return self.local_steps and not self._resets(number)

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        residual = self._kept.open(gradient, ctx.ops)["residual"]
        return Compensated(residual if self._resets(ctx.number) else None, gradient)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        """e + g - sent, whether or not e was part of u."""
        return keep_unsent(Compensated(self._kept.get("residual"), u.gradient), sent, 1.0, ctx.ops)

    def local(self, u: Compensated, sent: Sent, ctx: StepContext) -> Array:
        """g - sent, a fresh array."""
        return sent.taken_from(u.gradient.copy(), ctx.ops)

    def _resets(self, number: int) -> bool:
        return (number + 1) % self.period == 0

"""EF21: error feedback on the changes of each worker's gradient estimate, which the mean adds up."""

from __future__ import annotations

from collections.abc import Iterator

from ...types import Array
from ..interfaces import DenseMean, StepContext
from ..options import Option
from ..values import Compensated, Mean, Sent
from .dense import DenseMomentum
from .kept import ErrorMemory
from .residual import keep_unsent


class EF21(ErrorMemory):
    """Every worker sends of what its estimate v has moved away from the part h_i of it that the others know.

    Schedule: v' = v + eta (g - v); u = v' - h_i; h_i <- h_i + sent; the result is h <- h + mean. Kept is the residual
    v - h_i in place of h_i: u = residual + eta (g - v), residual <- u - sent, so all that was sent and the residual
    add up to v. The result is dense: a coordinate that is not sent keeps the value that it has in h. Therefore the
    second moment of Adam sees a steady gradient instead of rare, large ones.
    Cost: no messages; four vectors (residual, estimate, common, eta (g - v)), and a dense mean.
    Restrictions: with eta < 1 the estimate is a momentum of 1 - eta, to which an optimizer's own adds; eta = 1 is
    EF21, for gradients without much noise. Arrays that go dense are averaged, with the same momentum.

    Reference: Richtarik et al., EF21, NeurIPS 2021; Fatkhullin et al., Momentum provably improves error feedback
    (EF21-SGDM), NeurIPS 2023, algorithm 1.
    """

    name = "ef21"
    options = (Option("eta", float, 0.1, "weight of the gradient in a worker's estimate; 1 is the gradient itself",
                      low=0, high=1, open_low=True),)  # fmt: skip
    reference = "Richtarik et al. 2021 (EF21); Fatkhullin et al. 2023 (EF21-SGDM)"
    estimates = True
    required_state = ("residual", "estimate", "common")
    redistribution = tuple((name, "stay") for name in required_state)  # they are one estimate

    def __init__(self, eta: float) -> None:
        super().__init__()
        self.eta = eta

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        kept, change = self._kept.open(gradient, ctx.ops), self._kept.room("change", gradient, ctx.ops)
        ctx.ops.axpby(change, self.eta, gradient, -self.eta, kept["estimate"])
        return Compensated(kept["residual"], change)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        yield from keep_unsent(u, sent, 1.0, ctx.ops)
        ctx.ops.add(self._kept.open(u.gradient, ctx.ops)["estimate"], u.gradient)

    def local(self, u: Compensated, sent: Sent, ctx: StepContext) -> Array:
        """The common estimate before this step: the same for every worker."""
        return self._kept.open(u.gradient, ctx.ops)["common"].copy()

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        common = self._kept.get("common")
        assert common is not None, "compensate comes first"
        ctx.add_at(common, mean.indices, mean.values)

    def for_dense(self) -> DenseMean:
        return DenseMomentum(1 - self.eta, nesterov=False, weight=self.eta) if self.eta < 1 else DenseMean()

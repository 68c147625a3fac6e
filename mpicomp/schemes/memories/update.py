"""Update compression: local momentum first, then error feedback on the update."""

from __future__ import annotations

from .momentum_corrected import MOMENTUM, NESTEROV, MomentumCorrected


class Update(MomentumCorrected):
    """Error feedback on each worker's own update instead of its gradient.

    Schedule: velocity <- mu velocity + g; u = residual + velocity (Nesterov: + mu velocity + g); residual <- u - sent.
    It is momentum correction without its masking and clipping. (Gradient compression is ``residual``, with the
    momentum in the optimizer, after the reduction, the same on all ranks.)
    Cost: no messages; three vectors (Nesterov: four).
    Restrictions: the optimizer must be plain gradient descent; arrays that go dense have the momentum after their mean.
    The paper compresses lr times the update: where the learning rate changes, reduce lr * g and apply the mean as it
    is.

    Reference: Sahu et al., NeurIPS 2021, algorithm 3 and section C.6.
    """

    name = "update"
    options = (MOMENTUM, NESTEROV)
    reference = "Sahu et al. 2021, algorithm 3"

    def __init__(self, momentum: float, nesterov: str) -> None:
        super().__init__(momentum, nesterov, masking="no", clip=0.0)

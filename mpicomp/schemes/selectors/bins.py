"""AdaComp's bins: send what the last gradient is about to make the largest."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Compensated
from ._by_span import Listed


class Bins(Listed):
    """All elements with |u + g| >= the largest |u| of their bin of ``bin`` elements: a few per bin, by its activity.

    u is the memory and the gradient g, so that u + g looks one gradient ahead. Nothing tells how many are sent: look at
    the achieved density. Elements with u = 0 are not sent (in a bin of zeros all would pass). Bins restart at each
    span (tensor). NaN counts as largest.

    Reference: Chen et al., AdaComp, AAAI 2018, algorithm 2.
    """

    name = "bins"
    options = (Option("bin", int, 500, "elements a bin, of which at least one is sent", low=1),)
    reference = "Chen et al. 2018 (AdaComp)"

    def __init__(self, bin: int) -> None:
        self.bin = bin

    def select(self, u: Compensated, ctx: StepContext) -> Array:
        return ctx.ops.bin_select(*u, ctx.spans, self.bin, zeros=False)

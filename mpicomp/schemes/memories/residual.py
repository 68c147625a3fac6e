"""Error feedback, with ScaleCom's low-pass filter."""

from __future__ import annotations

from collections.abc import Iterator

from ..._util.partition import pieces
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import StepContext
from ..options import Option
from ..values import Compensated, Sent
from .kept import ErrorMemory


class Residual(ErrorMemory):
    """Keeps what was not sent, through a low-pass filter: m <- (1 - beta) m + beta (u - sent).

    With beta = 1 this is plain error feedback: *sent + kept = came in*, exactly. With beta < 1 the sent
    coordinates keep (1 - beta) m; they are never zeroed. One pass of 12 bytes per element (float32): read m and g,
    write m.

    Reference: Chen et al., ScaleCom, NeurIPS 2020, equation 5 and algorithm 1; beta = 1: Seide et al., 2014.
    """

    name = "residual"
    options = (
        Option("beta", float, 1.0, "low-pass factor of the memory; 1 is plain error feedback",
               low=0, high=1, open_low=True),
    )
    reference = "Seide et al. 2014; with beta < 1 Chen et al. 2020 (ScaleCom)"

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        return Compensated(self._kept.open(gradient, ctx.ops)["residual"], gradient)

    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        """One pass in place: the filter everywhere, what stays of what was sent where something was."""
        return keep_unsent(u, sent, self.beta, ctx.ops)


def keep_unsent(u: Compensated, sent: Sent, beta: float, ops: Ops) -> Iterator[None]:
    """``memory <- (1 - beta) memory + beta (u - sent)`` in place, piece by piece."""
    if sent.indices is None:
        yield from _keep_of_all(u, sent, beta, ops)
        return
    bounds = [*range(0, u.n, ops.PIECE), u.n]
    cuts = [0, sent.indices.size] if u.n <= ops.PIECE else ops.positions_of(sent.indices, bounds)
    for start, stop, first, last in zip(bounds, bounds[1:], cuts, cuts[1:], strict=False):
        memory, gradient = u.span(start, stop)
        assert memory is not None, "the residual"
        whole = start == 0 and last == sent.indices.size  # the very list, which has been examined
        indices = sent.indices if whole else sent.indices[first:last] - start
        ops.masked_update(memory, gradient, indices, sent.values[first:last], beta)
        yield


def _keep_of_all(u: Compensated, sent: Sent, beta: float, ops: Ops) -> Iterator[None]:
    """``keep_unsent`` where every coordinate was sent."""
    for start, values in sent.coded:
        for first, last in pieces(0, values.size, ops.PIECE):
            memory, gradient = u.span(start + first, start + last)
            assert memory is not None, "the residual"
            ops.coded_update(memory, gradient, values, first, beta)
            yield

"""Steps that send nothing (local SGD): no agreement, no exchange; an error waits for the next step that agrees."""

from __future__ import annotations

from ..errors import InvalidArgument, NonFiniteGradient
from ..schemes.interfaces import Memory, StepContext
from ..schemes.values import Compensated, Exchanged, Mean, Sent
from ..types import Array
from .levels import OneLevel


class LocalSteps:
    """The policy of a scheme whose memory has such steps; of any other scheme it covers none.

    Parameters
    ----------
    memories : list of Memory
        Of one kind; they know the step's number.
    """

    def __init__(self, memories: list[Memory]) -> None:
        self._memories, self._some = memories, memories[0].local_steps
        self._deferred: Exception | None = None  # raised by the next agreement

    def covers(self, number: int) -> bool:
        """True for a step that sends nothing."""
        return self._some and self._memories[0].is_local(number)

    def check(self, dense: int) -> None:
        """Refuse a layout with ``dense`` elements that are averaged in every step."""
        if self._memories[0].local_steps and dense:
            raise InvalidArgument("arrays cannot go dense where a scheme sends nothing in some steps; expected "
                                  "dense=none and no density of 1, or between=gradient")

    def leave_out(self, us: list[Compensated], vectors: list[Array], levels: OneLevel, ctx: StepContext) -> list[int]:
        """Let gradients that are not finite count as zero; how many elements of each worker's are not."""
        found = [ctx.overflows(Compensated(None, g)) if ctx.check_finite else 0 for g in vectors]
        found = levels.anywhere(found)
        for worker, count in enumerate(found):
            if count:
                us[worker] = self._memories[worker].compensate(ctx.ops.zeros(ctx.n, ctx.dtype), ctx)
        return found

    def can_wait(self, error: Exception | None) -> bool:
        """True if ``error``, if there is one, is about gradients and may be raised by a later agreement."""
        return error is None or isinstance(error, NonFiniteGradient)

    def defer(self, error: Exception | None, raises: bool) -> None:
        """Keep an error about gradients for the next agreement, if it is to be raised at all."""
        if raises:
            self._deferred = self._deferred or error

    def deferred(self) -> Exception | None:
        """The error that was kept, once."""
        error = self._deferred
        self.forget()
        return error

    def forget(self) -> None:
        """Raise no error of the steps so far."""
        self._deferred = None


def nothing_sent(n: int, ctx: StepContext) -> Exchanged:
    """The result of a step in which nothing is sent: a zero mean of ``n`` elements."""
    nothing = ctx.ops.arange(0), ctx.ops.empty(0, ctx.dtype)
    return Exchanged(Mean(*nothing, n), [Sent(*nothing)] * ctx.workers.on(ctx.comm.rank), 0.0)

"""Steps that send nothing (local SGD): no agreement, no exchange; an error waits for the next step that agrees."""

from __future__ import annotations

from ..comm.safety.agreement import rebuild
from ..errors import InvalidArgument, NonFiniteGradient
from ..schemes.interfaces import Memory, StepContext
from ..schemes.values import Compensated, Exchanged, Mean, Sent
from ..types import Array


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

    def nonfinite(self, vectors: list[Array], ctx: StepContext) -> list[int]:
        """Count the elements of each worker's gradients that are not finite."""
        return [ctx.overflows(Compensated(None, g)) if ctx.check_finite else 0 for g in vectors]

    def leave_out(self, us: list[Compensated], found: list[int], ctx: StepContext) -> None:
        """Let a gradient count as zero if elements that are not finite were ``found`` in it."""
        for worker, count in enumerate(found):
            if count:
                us[worker] = self._memories[worker].compensate(ctx.ops.zeros(ctx.n, ctx.dtype), ctx)

    def can_wait(self, error: Exception | None) -> bool:
        """True if ``error``, if there is one, is about gradients and may be raised by a later agreement."""
        return error is None or isinstance(error, NonFiniteGradient)

    def defer(self, error: Exception | None, raises: bool) -> None:
        """Keep an error about gradients for the next agreement, if it is to be raised at all."""
        if raises:
            self._deferred = self._deferred or error

    def deferred(self) -> Exception | None:
        """The error that was kept, once."""
        error, self._deferred = self._deferred, None
        return error

    def state(self) -> dict[str, list[str]]:
        """The error that is kept, by its class and text."""
        error = self._deferred
        return {} if error is None else {"deferred": [type(error).__name__, str(error)]}

    def load(self, deferred: list[str] | None) -> None:
        """Keep a saved error, or none."""
        self._deferred = rebuild(*deferred) if deferred else None


def nothing_sent(n: int, ctx: StepContext) -> Exchanged:
    """The result of a step in which nothing is sent: a zero mean of ``n`` elements."""
    nothing = ctx.ops.arange(0), ctx.ops.empty(0, ctx.dtype)
    return Exchanged(Mean(*nothing, n), [Sent(*nothing)] * ctx.workers.on(ctx.comm.rank), 0.0)

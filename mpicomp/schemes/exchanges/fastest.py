"""The fastest of several candidates, by measured seconds and compression error, chosen again while training goes on."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from ...ops.device import ready
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import Candidate, Exchange, StepContext
from ..options import Option
from ..trials import Trials
from ..values import Choice, Compensated, Exchanged, Mean, Message, Sent, State

DEFAULT = "dense+half+int8+scalecom/chunk=16+scalecom/chunk=112"
BILLION = 1e9  # nanoseconds in a second, and parts of an error: what ranks compare are whole numbers
MOST = 1e9  # of a number that is compared


class Observed(NamedTuple):
    """Message of a candidate, each local worker's u, and copies of these if the error of the step is measured.

    ``empties`` is True if the memories are to hold nothing afterwards: then nothing is known of what counts as sent.
    """

    copies: list[Array]
    us: list[Compensated]
    inner: Message
    empties: bool

    @property
    def sent(self) -> list[Sent] | None:
        return None if self.empties else self.inner.sent


class Fastest(Exchange[Choice, Observed]):
    """Runs selector, codec and exchange of one candidate per step, over the memory that all candidates share.

    Schedule: as the candidate's. A trial runs every candidate for four steps: in the first its error
    |u - sent|^2 / |u|^2 is measured, the others are timed. Of those whose error is at most ``error`` the fastest runs
    on. Every ``every`` steps error and seconds are measured again: see ``mpicomp.schemes.trials``.
    Cost: as the candidate's. In steps of a trial, and once in ``every`` steps, one agreement of 16 bytes or two. A
    step whose error is measured copies u and passes over it four times. Trials without a change of the measured seconds
    take at most 5 % of the time.
    A candidate that sends all coordinates and by itself has no memory (dense, half) empties the common memory once, and
    then does not touch it; what its codes do not hold is lost, as without candidates.
    Restrictions: the candidates share memory, schedule, layers, dense arrays and seed, which are options of the scheme
    itself; candidates with a state of their own (low-rank, balanced, pieces with a second memory) and memories with
    steps that send nothing are refused. Choices follow the clock: two runs have different bits, so a reproducible
    communicator is refused.
    Reference: Tyagi and Swany, GraVAC, IEEE CLOUD 2023 (compression gain and seconds decide); Chen et al., ScaleCom,
    NeurIPS 2020, section 3 (contraction).
    """

    name = "fastest"
    options = (
        Option("error", float, 0.1, "largest share of |u|^2 that a step may leave unsent, of any rank",
               low=0, high=1, open_low=True),
        Option("candidates", str, DEFAULT, "schemes to choose from, NAME/OPTION=VALUE/..., joined by +"),
        Option("every", int, 20, "steps from one look at error and seconds to the next", low=1),
        Option("hysteresis", float, 0.05, "share of its time by which the candidate that runs must be beaten",
               low=0, high=1),
        # The candidates have their own; that of the scheme's codec would have no effect.
        Option("values", str, "same", "precision on the wire: an option of the candidates", choices=("same",)),
    )
    reference = "Tyagi and Swany 2023 (GraVAC); Chen et al. 2020 (ScaleCom)"
    takes = "all"
    codecs = "float"
    chooses = True
    stateful = True
    redistribution = tuple((name, "anew") for name in ("seconds", "errors", "times", "order", "spent", "counts"))

    def __init__(self, error: float, candidates: str, every: int, hysteresis: float, values: str) -> None:
        self._texts = candidates.split("+")
        self._trials = Trials(len(self._texts), error, every, hysteresis)
        self._error = 0.0  # of the current step, if it is measured
        self._instead: Candidate | None = None  # of a candidate whose codes have overflowed in the current step
        self._told = self._trials.told(self._texts)
        self._template: StepContext | None = None  # that of all steps
        self._contexts: dict[tuple[int, bool, bool], StepContext] = {}  # made of it, by candidate
        self._measures = False  # the error of the current step
        self._empties = False  # the candidate of the current step leaves nothing in the memory
        self._blank = True  # the memories, if they are plain error feedback: such a candidate then needs none

    def check(self, ctx: StepContext) -> None:
        """Refuse a number of workers that a candidate cannot serve."""
        for one in self.candidates:
            one.codec.check_workers(ctx.workers.total)
            one.exchange.check(ctx)

    def context(self, ctx: StepContext) -> StepContext:
        self._instead, self._error, now = None, 0.0, self._now
        if ctx is not self._template:
            self._template, self._contexts = ctx, {}
        exact = now.exchange.name == "dense" and now.codec.sends_unchanged(ctx.dtype)
        # A mean that its dtype cannot hold is kept back by the memory, so that a candidate without one has it, too.
        self._empties = not now.keeps and (exact or ctx.result is None)
        plain, self._measures = self._empties and self._blank, self._trials.measures_error and not exact
        key = self._trials.candidate, self._measures, plain
        if key not in self._contexts:
            remembers = self._measures or (ctx.remembers and not plain)
            self._contexts[key] = ctx.using(now.selector, now.codec, remembers, plain)
        return self._contexts[key]

    def instead(self, ctx: StepContext) -> StepContext | None:
        safe = [one for one in self.candidates if not one.codec.may_overflow(ctx.dtype)]
        if not safe or not ctx.codec.may_overflow(ctx.dtype):
            return None
        self._instead, self._empties, self._measures = safe[0], False, False
        return ctx.using(safe[0].selector, safe[0].codec, True, plain=False)

    def may_refuse(self, ctx: StepContext) -> bool:
        return self._now.exchange.may_refuse(ctx)

    def choose(self, us: list[Compensated], ctx: StepContext) -> Choice:
        choice: Choice = self._now.exchange.choose(_without_memory(us) if ctx.plain else us, ctx)
        return choice

    def encode(self, us: list[Compensated], choice: Choice, ctx: StepContext) -> Observed:
        copies = [ctx.whole(u) for u in us] if self._measures else []
        inner = self._now.exchange.encode(_without_memory(us) if ctx.plain else us, choice, ctx)
        return Observed(copies, us, inner, self._empties and not ctx.plain)

    def combine(self, message: Observed, ctx: StepContext) -> Exchanged:
        result: Exchanged = self._now.exchange.combine(message.inner, ctx)
        sent = result.sent
        if message.copies:
            self._error = _unsent(message.copies, sent, ctx)
        if message.empties:
            sent = [Sent(None, partial(u.at, None, ctx.ops)) for u in message.us]
        return Exchanged(result.mean, sent, result.payload_bits, result.leader, self._now.text, self._told)

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """Take the step's seconds and error; those of the slowest rank and the worst if they are due (collective)."""
        whole = ctx.all_ranks or ctx  # all slices make the same choice
        if not whole.n:
            return
        self._blank = self._empties and (self._blank or not whole.left_out)
        trials = self._trials
        if not trials.due and self._instead is None:
            trials.note(ctx.timer.busy_ns() / BILLION)
            return
        ready(mean.values)  # a device may still be at work
        seconds = ctx.timer.busy_ns() / BILLION
        before = trials.candidate, trials.reason
        if self._instead is not None:
            trials.refuse()
        else:
            error = _largest(self._error, whole) if trials.measures_error else 0.0
            trials.take(_largest(trials.mine(seconds), whole) if trials.times else 0.0, error)
        self._told = trials.told(self._texts)
        if ctx.trace is not None:
            ctx.trace.metric(f"seconds of {self._texts[before[0]]}", ctx.timer.number, seconds)
            if (trials.candidate, trials.reason) != before:
                ctx.trace.event("choose", time.monotonic_ns(), step=ctx.timer.number, algo=trials.reason,
                                scheme=self._texts[trials.candidate])

    def state(self, ops: Ops) -> State:
        return self._trials.state()

    def load(self, state: State) -> None:
        self._trials.load(state)
        self._blank = False
        self._told = self._trials.told(self._texts)

    @property
    def _now(self) -> Candidate:
        """The candidate of the current step."""
        return self._instead or self.candidates[self._trials.candidate]


def _without_memory(us: list[Compensated]) -> list[Compensated]:
    """u of memories that hold zeros alone."""
    return [Compensated(None, u.gradient) for u in us]


def _largest(number: float, ctx: StepContext) -> float:
    """The largest of all ranks' numbers, to nine digits behind the point; NaN counts as ``MOST``."""
    return ctx.comm.extremes(round((number if number < MOST else MOST) * BILLION))[1] / BILLION


def _unsent(us: list[Array], sent: list[Sent], ctx: StepContext) -> float:
    """The share of |u|^2 that this rank's workers did not send; ``us`` are overwritten."""
    whole = sum(ctx.ops.squared_norm(u) for u in us)
    left = sum(ctx.ops.squared_norm(one.taken_from(u, ctx.ops)) for u, one in zip(us, sent, strict=True))
    return left / whole if whole else 0.0

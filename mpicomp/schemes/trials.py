"""The choice among candidates by measured seconds and error: trials, hysteresis, and what begins a new trial.

All numbers that decide are the largest of all ranks, so all ranks decide alike. No clock and no message is in here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from .values import State

TIMED = 3  # steps of a candidate in a trial, after one in which its error is measured
ABANDONED = 2.0  # times the fastest so far: such a candidate's trial ends with its first timed step
CHANGED = 1.5  # a factor between the seconds expected and measured that begins a new trial
FALSE_ALARMS = 4  # up to which each raises that factor by itself
EXPLORED = 0.05  # of the time since the last trial: what another one may take without such a change
RECENT = 5  # steps before a look: their median is compared with the seconds expected
UNKNOWN = float("nan")
OVERFLOWED = 1e9  # an error above all limits
UNSAVED = -1.0  # in a state, which holds finite numbers, in place of what is not known
REASONS = {
    "trial": "tried for a few steps", "fastest": "the fastest within the error", "kept": "no other is enough faster",
    "least-error": "none is within the error: this has the least", "error": "the one before exceeded the error",
}


class Trials:
    """Decides which candidate runs the next step.

    A trial runs every candidate for 1 + ``TIMED`` steps. In the first its error is measured, the share of |u|^2 that
    the step leaves unsent; one above the limit ``error`` is left at that. The median of the timed steps counts. Then
    the fastest runs on; the one that ran before is kept unless another takes less than (1 - ``hysteresis``) of its
    time. Every ``every`` steps one look at error and recent seconds: the fastest other takes over if the error exceeds
    its limit; a new trial begins if the seconds have changed by a factor of ``CHANGED``, or if it would take less than
    ``EXPLORED`` of the time since the last one.
    """

    seconds: np.ndarray  # of each candidate in the last trial; NaN if it was not timed
    errors: np.ndarray  # of each candidate when it was last measured
    _order: list[int]  # candidates that are still to be tried, beginning with the one that runs
    _chosen: int  # -1 before the first trial has ended
    _done: int  # steps of the candidate in a trial; else since the last look
    _times: list[float]  # of the candidate in a trial
    _spent: float  # seconds since the last trial
    _by_change: bool  # the last trial began because seconds had changed
    _false_alarms: int  # such trials in a row that changed nothing
    _reason: str

    def __init__(self, count: int, error: float, every: int, hysteresis: float) -> None:
        self.count, self.limit, self.every, self.hysteresis = count, error, every, hysteresis
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds on this rank
        self.load({})

    @property
    def candidate(self) -> int:
        """The candidate of the next step."""
        return self._order[0] if self._order else self._chosen

    @property
    def reason(self) -> str:
        """Why the next step has its candidate: a key of ``REASONS``."""
        return "trial" if self._order else self._reason

    @property
    def measures_error(self) -> bool:
        """True if the error of the next step is to be measured."""
        return self._done == 0 if self._order else self._done == self.every - 1

    @property
    def due(self) -> bool:
        """True if all ranks are to agree on the numbers of the next step."""
        return bool(self._order) or self.measures_error

    @property
    def times(self) -> bool:
        """True if the seconds of the next step, or recent ones, are to be agreed on."""
        return not self._order or self._done > 0

    def told(self, names: Sequence[str]) -> str:
        """The reason in words, with all that is known of the candidates."""
        known = [f"{name}: " + ", ".join(fact for fact, there in ((f"{1e3 * seconds:.3g} ms", not np.isnan(seconds)),
                                                                  (f"error {error:.2g}", not np.isnan(error))) if there)
                 for name, seconds, error in zip(names, self.seconds, self.errors, strict=True) if not np.isnan(error)]
        return f"{REASONS[self.reason]} ({'; '.join(known) or 'nothing is measured yet'})"

    def note(self, seconds: float) -> None:
        """Take the seconds of a step whose numbers are not due."""
        self._done += 1
        self._recent.append(seconds)

    def mine(self, seconds: float) -> float:
        """This rank's contribution to the seconds that are agreed on after a step."""
        return seconds if self._order or not self._recent else median(self._recent)

    def take(self, seconds: float, error: float) -> None:
        """Take the largest numbers of all ranks; ``error`` has a meaning only if it was measured."""
        if not self._order:
            self._look(seconds, error)
        elif self._done == 0:
            self.errors[self.candidate] = error
            if error > self.limit:
                self._next()
            else:
                self._done = 1
        else:
            self._time(seconds)

    def refuse(self) -> None:
        """Take nothing of the candidate but that its codes overflowed."""
        self.errors[self.candidate] = OVERFLOWED
        if self._order:
            self._next()
        else:
            self._leave()

    # -- a trial

    def _begin(self, changed: bool) -> None:
        """Begin a trial, of the lossiest candidates first: on a slow network the others are then soon abandoned."""
        self._order = sorted(range(self.count), key=lambda one: -np.nan_to_num(self.errors[one], nan=np.inf))
        self._done, self._times, self._by_change, self._spent = 0, [], changed, 0.0
        self.seconds[:] = UNKNOWN
        self._recent.clear()

    def _time(self, seconds: float) -> None:
        self._times.append(seconds)
        self._done += 1
        if self._done > TIMED or seconds > ABANDONED * np.nanmin([*self.seconds, np.inf]):
            self.seconds[self.candidate] = median(self._times)
            self._next()

    def _next(self) -> None:
        self._order, self._done, self._times = self._order[1:], 0, []
        if not self._order:
            self._decide()

    def _decide(self) -> None:
        before = self._chosen
        if np.isnan(self.seconds).all():
            self._chosen, self._reason = int(np.argmin(self.errors)), "least-error"
        else:
            best = int(np.nanargmin(self.seconds))
            beaten = before < 0 or not self.seconds[best] >= (1 - self.hysteresis) * self.seconds[before]
            self._chosen, self._reason = (best, "fastest") if beaten or best == before else (before, "kept")
        alarmed = self._by_change and self._chosen == before
        self._false_alarms = min(FALSE_ALARMS, self._false_alarms + 1) if alarmed else 0

    # -- a look

    def _look(self, seconds: float, error: float) -> None:
        now = self._chosen
        self._done, self.errors[now] = 0, error
        self._spent += self.every * seconds
        self._recent.clear()
        expected, factor = self.seconds[now], CHANGED ** (1 + self._false_alarms)
        if error > self.limit and not np.isnan(expected):
            self._leave()
        elif seconds > factor * expected or factor * seconds < expected:
            self._begin(changed=True)
        elif EXPLORED * self._spent > self._cost(seconds):
            self._begin(changed=False)

    def _cost(self, seconds: float) -> float:
        """Seconds of a trial of the others, at most; of those not timed, as many steps as of this one."""
        others = np.delete(self.seconds, self._chosen)
        return float((1 + TIMED) * np.where(np.isnan(others), seconds, others).sum())

    def _leave(self) -> None:
        """Let the fastest other take over, as far as another is known."""
        self.seconds[self._chosen] = UNKNOWN
        if np.isnan(self.seconds).all():
            self._begin(changed=False)
        else:
            self._chosen, self._reason, self._done = int(np.nanargmin(self.seconds)), "error", 0

    # -- state

    def state(self) -> State:
        """All but the recent seconds of this rank; the same on all ranks."""
        return {
            "seconds": np.nan_to_num(self.seconds, nan=UNSAVED), "errors": np.nan_to_num(self.errors, nan=UNSAVED),
            "times": np.array(self._times, float),
            "order": np.array(self._order, np.int64), "spent": np.array(self._spent),
            "counts": np.array([self._chosen, self._done, self._by_change, self._false_alarms,
                                list(REASONS).index(self._reason)], np.int64),
        }

    def load(self, state: State) -> None:
        """Go on from a state; without one, begin with a trial."""
        self.seconds, self.errors = (_known(state.get(name, np.full(self.count, UNSAVED)))
                                     for name in ("seconds", "errors"))
        self._times = state["times"].tolist() if "times" in state else []
        self._order = state["order"].tolist() if "order" in state else list(range(self.count))
        self._spent = float(state.get("spent", 0.0))
        counts = state["counts"].tolist() if "counts" in state else [-1, 0, 0, 0, 0]
        self._chosen, self._done, by_change, self._false_alarms, reason = counts
        self._by_change, self._reason = bool(by_change), list(REASONS)[reason]
        self._recent.clear()


def _known(numbers: np.ndarray) -> np.ndarray:
    return np.where(numbers < 0, UNKNOWN, numbers)

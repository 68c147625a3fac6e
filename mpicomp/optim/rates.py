"""Learning rates over the steps: pure functions of the step's number, so there is no state to save or to resume.

    schedule = mpicomp.rates.make("step:at=150+250", base=0.1, steps_per_epoch=195, epochs=300, warmup=5)
    optimizer.step(mean, lr=schedule(step))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import InvalidArgument
from ..schemes.options import Option, resolve
from .optimizers import parse

Rate = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """lr(t) = base."""

    base: float

    def __call__(self, step: int) -> float:
        return self.base


@dataclass(frozen=True)
class StepDecay:
    """lr(t) = base factor^(number of milestones up to t).

    Reference: He et al., Deep residual learning, CVPR 2016, section 4.2 (a tenth at each milestone).
    """

    base: float
    milestones: tuple[int, ...]  # steps
    factor: float = 0.1

    def __call__(self, step: int) -> float:
        return self.base * self.factor ** sum(step >= one for one in self.milestones)


@dataclass(frozen=True)
class Cosine:
    """lr(t) = end + (base - end) (1 + cos(pi t / steps)) / 2, and ``end`` afterwards.

    Reference: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5, without restarts.
    """

    base: float
    steps: int
    end: float = 0.0

    def __call__(self, step: int) -> float:
        return self.end + (self.base - self.end) * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2


@dataclass(frozen=True)
class WarmUp:
    """lr(t) = start + (after(t) - start) t / steps in the first ``steps`` steps, then ``after(t)``.

    With ``start`` the rate for one worker and ``after`` n times that it is the gradual warm-up of linear scaling.

    Reference: Goyal et al., Accurate, large minibatch SGD, 2017, sections 2.1 and 2.2.
    """

    after: Rate
    steps: int
    start: float = 0.0

    def __call__(self, step: int) -> float:
        rate = self.after(step)
        return rate if step >= self.steps else self.start + (rate - self.start) * step / self.steps


MOST_EPOCHS = 1e9  # of any training: steps can be counted
RATES = {
    "constant": (),
    "step": (Option("at", str, None, "epochs at which the rate drops, joined by +"),
             Option("factor", float, 0.1, "what it is multiplied by", low=0, high=1, open_low=True)),
    "cosine": (Option("end", float, 0.0, "fraction of the base rate it ends at", low=0, high=1),),
}  # fmt: skip


def make(text: str, base: float, steps_per_epoch: int, epochs: float, warmup: float = 0.0, start: float = 0.0) -> Rate:
    """The schedule that ``constant``, ``step:at=150+250,factor=0.1`` or ``cosine:end=0`` stands for.

    Parameters
    ----------
    base, start : float
        The rate after the warm-up, and at its first step.
    epochs, warmup : float
        Length of the training, and of the warm-up, in epochs.

    Raises
    ------
    InvalidArgument
        Naming what was expected and got.

    Examples
    --------
    >>> rate = make("step:at=2", base=0.1, steps_per_epoch=10, epochs=3, warmup=0.5)
    >>> [round(rate(step), 3) for step in (0, 1, 5, 19, 20)]
    [0.0, 0.02, 0.1, 0.1, 0.01]
    """
    if not 0 < base < math.inf or not 0 <= start < math.inf or not 0 <= warmup <= MOST_EPOCHS:
        raise InvalidArgument("the learning rate must be positive, its start at least 0, its warm-up from 0 to "
                              f"{MOST_EPOCHS:g} epochs, got {base}, {start} and {warmup}")
    name, given = parse(text, RATES, "schedule of the learning rate")
    options = resolve(RATES[name], given, f"schedule {name}")
    rate: Rate = Constant(base)
    if name == "step":
        rate = StepDecay(base, tuple(round(one * steps_per_epoch) for one in _epochs(options["at"])), options["factor"])
    elif name == "cosine":
        rate = Cosine(base, max(1, round(epochs * steps_per_epoch)), options["end"] * base)
    return WarmUp(rate, round(warmup * steps_per_epoch), start) if warmup else rate


def _epochs(text: str | None) -> list[float]:
    try:
        epochs = [float(one) for one in (text or "").split("+")]
    except ValueError:
        epochs = []
    if not epochs or not all(0 < one <= MOST_EPOCHS for one in epochs):
        raise InvalidArgument(f"at must be epochs, at most {MOST_EPOCHS:g}, joined by +, as in step:at=150+250, got "
                              f"{text!r}")
    return epochs

"""Result of a logistic regression: the problem's constants, points of the curve, totals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .settings import Settings


class Problem(NamedTuple):
    """The constants of the objective, the same on every rank."""

    smoothness: float  # L
    l2: float
    step_size: float  # gamma
    f_star: float
    x_star: np.ndarray


class Evaluation(NamedTuple):
    """One point of the curve. Bits, density and errors are means over the workers."""

    step: int  # steps done
    epoch: float
    bits: float  # sent by a worker so far
    gap: float  # f(x) - f*
    density: float  # share of the coordinates sent a step, so far
    total_error: float  # sum over the steps of |e_i|^2
    memory_norm: float  # root of the mean of |e_i|^2, now


@dataclass
class Result:
    """A finished run, the same on every rank but for the seconds."""

    settings: Settings
    data: dict[str, Any]  # name, rows, features, nonzeros; workers and ranks they were spread over
    problem: Problem
    f_start: float  # f(x0)
    steps: int = 0
    series: list[Evaluation] = field(default_factory=list)
    targets: list[Evaluation] = field(default_factory=list)  # the first step that reached each of target_bits
    bytes_sent: float = 0.0  # handed to MPI by the mean rank, by the reducer's steps
    seconds: dict[str, float] = field(default_factory=dict)  # phase -> this rank's seconds, since it was resumed
    complete: bool = True  # False where it was asked to stop before its end

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        problem = self.problem
        return {
            "settings": asdict(self.settings), "data": self.data,
            "L": problem.smoothness, "l2": problem.l2, "gamma": problem.step_size,
            "f_star": problem.f_star, "f_x0": self.f_start,
            "series": [e._asdict() for e in self.series],
            "targets": [e._asdict() for e in self.targets],
            "steps": self.steps, "complete": self.complete, "bytes_sent": self.bytes_sent, "seconds": self.seconds,
        }  # fmt: skip

"""Schedules of the density: which fraction of each tensor is sent in which step. Chosen by declared name.

``density`` gives a span's density where the scheme's own is ``target``; ``observe`` sees every step's mean. All ranks
hold the same mean and count the same steps, so they decide alike without asking each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .options import Option
from .values import Mean


class WarmUp:
    """From ``warmup_density`` to the scheme's own in ``stages`` equal ratios over the first ``warmup`` steps.

    With 4 stages from 25 % to 0.1 % the sparsity is 75, 93.7, 98.4, 99.6 and then 99.9 %, as published. One stage is a
    warm-up at ``warmup_density`` itself, for example 1. Without warm-up the density is always the scheme's own.

    Reference: Lin et al., Deep Gradient Compression, ICLR 2018, section 3.3.
    """

    name = "warm-up"
    options = (
        Option("warmup", int, 0, "steps until the density is the scheme's own", low=0),
        Option("warmup_density", float, 0.25, "density of the first steps", low=0, high=1, open_low=True),
        Option("stages", int, 4, "how many densities the warm-up has", low=1),
    )
    reference = "Lin et al. 2018"

    def __init__(self, warmup: int, warmup_density: float, stages: int) -> None:
        self.warmup, self.first, self.stages = warmup, warmup_density, stages

    def density(self, target: float, span: int, number: int) -> float:
        if number >= self.warmup or target >= self.first:
            return target
        stage = self.stages * number // self.warmup
        return self.first * (target / self.first) ** (stage / self.stages)

    def observe(self, mean: Mean, step: Any) -> None:
        """The density depends on the step's number alone."""

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to load."""


SCHEDULES = {part.name: part for part in (WarmUp,)}

"""EF-GD*: full gradients, and error memory on what they differ by from the workers' gradients at the optimum.

With f the mean of f_i over n workers, h_i = grad f_i(x*), and a step of gamma:

    u_i = e_i + gamma (grad f_i(x) - h_i);   e_i <- u_i - C(u_i);   x <- x - (1/n) sum_i (C(u_i) + gamma h_i)

At x* the workers' gradients are not zero, but their differences from h_i are: near it a hard threshold sends hardly
anything, and x stays within a distance that the threshold sets, as small as one likes. Without the shift (plain EF-GD,
``PlainRun``) the workers go on sending gradients that cancel out.

Reference: Gorbunov et al., Linearly converging error compensated SGD, NeurIPS 2020 (EF-GD*); Sahu et al., Rethinking
gradient sparsification as total error minimization, NeurIPS 2021, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from . import logistic
from .logreg import Run
from .matrix import Matrix


class PlainRun(Run):
    """Error-compensated gradient descent: every worker's full gradient in every step, in float64."""

    app = "ef-gd"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        shards = self.shards
        self.steps_per_epoch = 1  # a step sees all rows
        ends = [*shards.starts[1:].tolist(), shards.labels.size]
        rows = [np.arange(start, end) for start, end in zip(shards.starts.tolist(), ends, strict=True)]
        self._parts: list[tuple[Matrix, np.ndarray]] = [(shards.features.take(r), shards.labels[r]) for r in rows]

    def samples(self, steps: int) -> Iterator[None]:
        return iter([None] * (steps - self.steps))

    def updates(self, samples: Any) -> np.ndarray:
        """gamma grad f_i(x) of this rank's workers (one worker: one vector)."""
        return self.at(self.x)

    def at(self, x: np.ndarray) -> np.ndarray:
        """gamma grad f_i of this rank's workers at ``x``."""
        problem, found = self.problem, []
        for (features, labels), weight in zip(self._parts, self.shards.weights, strict=True):
            # The mean over a shard times its share: so that the mean over workers is the gradient over all rows.
            slope = logistic.gradient(features, labels, 0.0, x)
            found.append(problem.step_size * (weight * slope + problem.l2 * x))
        return np.stack(found) if len(found) > 1 else found[0]


class StarRun(PlainRun):
    """EF-GD*: the same with the shift."""

    app = "ef-gdstar"
    scheme_options: ClassVar[dict[str, Any]] = {"memory": "shifted"}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reducer.set_shift(self.at(self.problem.x_star))

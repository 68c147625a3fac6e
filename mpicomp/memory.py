"""Error memories: what is kept back in one step and added in the next.

Every memory has the verbs ``compensate`` (the gradient with what was kept back) and ``update`` (what stays of what was
not sent), an iterator that does its work piece by piece, so that it can fill the time an exchange waits. A memory
changes in ``update`` alone, once all ranks have agreed on the step: one that fails before or is skipped leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .errors import InvalidArgument
from .options import Option
from .values import Array, Compensated, Sent


class NoMemory:
    """Keeps nothing: what is not sent is lost."""

    name = "none"
    options = ()
    reference = "-"

    def compensate(self, gradient: Array, ops: Any) -> Compensated:
        return Compensated(None, gradient)

    def update(self, u: Compensated, sent: Sent, ops: Any) -> Iterator[None]:
        """Nothing is kept."""
        return iter(())

    def squared_norm(self, ops: Any) -> float:
        return 0.0

    def check(self, n: int) -> None:
        """Any size will do."""

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Nothing to load."""


class Residual:
    """Keeps what was not sent, through a low-pass filter: m <- (1 - beta) m + beta (u - sent).

    With beta = 1 this is plain error feedback: *sent + kept = came in*, exactly. With beta < 1 the sent
    coordinates keep (1 - beta) m; they are never zeroed. One pass of 12 bytes an element (float32): read m and g,
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
        self.beta = beta
        self.current: Array | None = None
        self._loaded: np.ndarray | None = None

    def compensate(self, gradient: Array, ops: Any) -> Compensated:
        if self.current is None:
            self.current = ops.zeros(gradient.size, gradient.dtype)
            if self._loaded is not None:
                self.current[:] = ops.from_host(self._loaded)
                self._loaded = None
        return Compensated(self.current, gradient)

    def update(self, u: Compensated, sent: Sent, ops: Any) -> Iterator[None]:
        """One pass in place: the filter everywhere, what stays of what was sent where something was."""
        indices = ops.arange(u.n) if sent.indices is None else sent.indices
        bounds = [*range(0, u.n, ops.PIECE), u.n]
        cuts = ops.positions_of(indices, bounds)
        for start, stop, first, last in zip(bounds, bounds[1:], cuts, cuts[1:], strict=False):
            here, values = indices[first:last], sent.values[first:last]
            ops.masked_update(self.current[start:stop], u.gradient[start:stop], here - start, values, self.beta)
            yield

    def squared_norm(self, ops: Any) -> float:
        return 0.0 if self.current is None else ops.squared_norm(self.current)

    def check(self, n: int) -> None:
        """Refuse a saved residual of another size than the gradient's."""
        if self._loaded is not None and self._loaded.size != n:
            raise InvalidArgument(f"the saved error memory has {self._loaded.size} elements, the gradients have {n}")

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        if self.current is None:
            return {} if self._loaded is None else {"residual": self._loaded}
        return {"residual": np.array(ops.to_host(self.current))}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take over a saved residual; it goes to the gradient's device at the next step."""
        self.current = None
        self._loaded = state.get("residual")


MEMORIES = {part.name: part for part in (NoMemory, Residual)}

"""Operations on arrays without elements that cost what others do, one after another, as on the CPU."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from ..ops.arguments import Bounds, Found, Samples
from ..ops.protocol import Ops
from ..ops.search import exponential_in, normal_in, sampled_in
from ..ops.spans import restrict_in


class Composed:
    """Mixed into ``GhostOps``, which has the others."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def encode_natural(self, x: Any, bounds: np.ndarray, first: int, key: Any, message: Any) -> None:
        self.group_norms(x, bounds, "max", None)
        self.pack_natural(x)

    def decode_natural(self, message: Any, out: Any, known: bool = False) -> None:
        self.unpack_natural(out)

    def limit_norms(self, x: Any, bounds: np.ndarray, factor: float, out: Any) -> None:
        self.group_norms(x, bounds, "l2", out)

    def gather_counted(self, memory: Any, grad: Any, indices: Any, values: Any, limit: float) -> int:
        self.gather(memory, grad, indices, values)
        return self.count_beyond(None, values, limit)

    def select_normal(self, memory: Any, grad: Any, spans: Bounds, targets: list[int]) -> Found:
        return normal_in(cast(Ops, self), memory, grad, spans, targets)

    def select_exponential(self, memory: Any, grad: Any, spans: Bounds, targets: list[int]) -> Found:
        return exponential_in(cast(Ops, self), memory, grad, spans, targets)

    def select_sampled(self, memory: Any, grad: Any, spans: Bounds, samples: Samples, counts: list[int]) -> Found:
        return sampled_in(cast(Ops, self), memory, grad, spans, samples, counts)

    def add_lists(self, lists: list[Any], values: list[Any], n: int, filled: bool = False) -> tuple[Any, Any]:
        union = self.union([one[: self.filled_length(one, n)] for one in lists] if filled else lists, n)
        sums = self.empty(union.size, values[0].dtype)
        sums.spread = union.spread
        for one in lists:
            self.work("scatter_add", one.size)
        return union, sums

    def restrict(self, lists: list[Any], values: list[Any], whole: Any, nonzero: list[bool]) -> tuple[Any, ...]:
        return restrict_in(self.common, lists, values, whole, nonzero)

    def sorted_magnitudes(self, x: Any, spans: Bounds) -> list[np.ndarray]:
        """All larger than what a search tries."""
        self.work("top_k_short", x.size)
        return [np.broadcast_to(np.iinfo(np.int64).max, stop - start) for start, stop in spans]

"""Operations on arrays without elements, which only write down what they would cost.

What depends on the elements themselves is assumed, and said: see ``GhostOps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ..ops.arguments import Bounds, Matrices, Moments, Samples
from ..ops.arguments import Key as RandomKey
from ..ops.host import PIECE, index_dtype, vouch
from ..ops.protocol import Ops
from ..ops.spans import (
    bin_select_in,
    expand_rows_in,
    low_rank_product_each,
    moments_in,
    orthogonalise_each,
    project_back_each,
    project_each,
    project_rows_in,
    random_strata_in,
    threshold_in,
    top_k_in,
)
from .ghost import Ghost, Unknown
from .ghost_composed import Composed
from .index_spacing import Spread, joined, union

# What operations count by: the elements of the largest argument, or of the one at this place.
IN_PLACE = {
    "add": None, "multiply": None, "minimum": None, "maximum": None, "scale": None, "widen": None, "narrow": None,
    "add_widened": None, "scatter": 1, "clear": 1,
    "masked_update": None, "dense_update": None, "axpby": None, "group_norms": 0, "group_means": 0,
    "pack_signs": None, "unpack_signs": 4, "pack_levels": 0, "unpack_levels": 5, "quantise": 0,
    "dequantise": None, "pack_gaps": 0, "unpack_gaps": 3, "pack_bitmap": 0, "unpack_bitmap": 2, "pack_natural": None,
    "unpack_natural": None,
}  # fmt: skip
STEP = "step"  # what a step of a scheme costs whatever its length: counted once a step
SAMPLED = 4 << 16  # elements from which on top_k's sample grows no more (ops/cpu/top_k.cpp): a constant part
TOP_K_SHORT, TOP_K_LEAST = "top_k_short", "top_k_least"  # an element of less; a whole call on so many elements
KERNELS = (
    "copy", *IN_PLACE, "chunk_max", "chunk_indices", "sample", "project", "project_back", "low_rank_product",
    "orthogonalise", "count_nonfinite", "squared_norm", "threshold", "top_k", "union", "largest_gap", "random_strata",
    STEP, "gather", "scatter_add", "common", "moments", "bin_select", "count_sketch", "sketch_estimate", "project_rows",
    "expand_rows", TOP_K_SHORT, TOP_K_LEAST,
)  # fmt: skip
BIN = 5  # pass of AdaComp's bins in the long run: 4 to 8 of 50 or 500 random gradients, however they were drawn


class GhostOps(Composed):
    """The operations of ``mpicomp.ops`` on ghosts: what each passes over goes to ``work(kernel, elements)``.

    Assumed, where it depends on elements: a threshold lets ``passing`` of the places through that its elements were
    chosen from (0 lets a vector through), so of sums as many as of each rank's own; ranks choose independently of each
    other, which gives the length of unions and of what two lists have in common; gaps between indices are those of a
    random choice; indices lie evenly over what they were chosen from; of every bin BIN pass; magnitudes are those of
    normal deviates; everything is finite, and nothing zero.

    Parameters
    ----------
    work : callable
        ``(kernel, elements)``.
    n : int
        Elements of the whole vector.
    """

    PIECE, Key = PIECE, RandomKey
    index_dtype, vouch = staticmethod(index_dtype), staticmethod(vouch)

    def __init__(self, work: Callable[[str, int], None], n: int, passing: float = 1.0) -> None:
        self.work, self.n, self.passing = work, n, passing

    def __getattr__(self, name: str) -> Any:
        if name not in IN_PLACE:
            raise Unknown(f"the cost of {name} is not known to the simulation")
        place = IN_PLACE[name]

        def run(*arguments: Any) -> None:
            if place is None:
                self.work(name, max([one.size for one in arguments if hasattr(one, "size")]))
            else:
                self.work(name, arguments[place].size)

        setattr(self, name, run)  # found at once next time
        return run

    def copied(self, ghost: Any) -> Any:
        self.work("copy", ghost.size)
        return ghost

    # -- arrays

    def empty(self, n: int, dtype: Any) -> Ghost:
        return Ghost(self, n, dtype)

    zeros = empty

    def arange(self, n: int) -> Ghost:
        return self._indices(n, n, n)

    def _indices(self, n: int, count: int, of: int) -> Ghost:
        """So many indices, evenly out of ``n``, of the type that a vector of ``of`` elements needs."""
        return Ghost(self, count, index_dtype(of), spread=Spread.even(0, n, count))

    def to_host(self, x: Any) -> np.ndarray:
        if not isinstance(x, Ghost):
            return x
        return x.head if x.head is not None and x.head.size == x.size else np.ones(x.size, x.dtype)

    def from_host(self, x: np.ndarray) -> np.ndarray:
        return x

    group_bounds = from_host

    def concatenate(self, arrays: list[Any], dtype: Any) -> Any:
        if arrays and all(isinstance(one, np.ndarray) for one in arrays):
            return np.concatenate(arrays, dtype=dtype)
        head = arrays[0] if arrays and isinstance(arrays[0], np.ndarray) else None
        spread = joined([getattr(one, "spread", None) for one in arrays if one.size])
        return self.copied(Ghost(self, sum(one.size for one in arrays), dtype, head, spread))

    def positions_of(self, indices: Any, bounds: list[int]) -> list[int]:
        return (indices.spread or Spread.even(0, self.n, indices.size)).below(bounds)

    def gather(self, memory: Any, grad: Any, indices: Any, values: Any) -> None:
        self.work("gather", indices.size)
        values.spread = indices.spread

    def scatter_add(self, dst: Any, indices: Any, values: Any) -> None:
        self.work("scatter_add", indices.size)

    # -- many arrays, one after the other

    def pack(self, arrays: list[Any], flat: Any) -> None:
        self.work("copy", flat.size)

    def unpack(self, flat: Any, arrays: list[Any]) -> None:
        self.work("copy", flat.size)

    def project(self, memory: Any, grad: Any, matrices: Matrices, q: Any, p: Any) -> None:
        project_each(lambda memory, u, rows, q, p: self.work("project", u.size), memory, grad, matrices, q, p)

    def project_back(self, memory: Any, grad: Any, matrices: Matrices, p: Any, q: Any) -> None:
        project_back_each(lambda memory, u, rows, p, q: self.work("project_back", u.size), memory, grad, matrices, p, q)

    def low_rank_product(self, p: Any, q: Any, matrices: Matrices, out: Any) -> None:
        low_rank_product_each(lambda p, q, rows, out: self.work("low_rank_product", out.size), p, q, matrices, out)

    def orthogonalise(self, p: Any, matrices: Matrices) -> None:
        orthogonalise_each(lambda p, rows: self.work("orthogonalise", p.size), p, matrices)

    def top_k(self, memory: Any, grad: Any, spans: Bounds, counts: list[int]) -> Ghost:
        return top_k_in(self._top_k, self.concatenate, memory, grad, spans, counts)

    def threshold(self, memory: Any, grad: Any, spans: Bounds, lams: list[float]) -> tuple[Ghost, list[int]]:
        return threshold_in(self._threshold, self.concatenate, memory, grad, spans, lams)

    def bin_select(self, memory: Any, grad: Any, spans: Bounds, length: int, zeros: bool = True) -> Ghost:
        found = bin_select_in(self._bin_select, self.concatenate, memory, grad, spans, length)
        if not zeros:
            self.work("gather", found.size)
            self.work("threshold", found.size)
        return found

    def random_strata(self, n: int, spans: Bounds, counts: list[int], key: RandomKey) -> Ghost:
        return random_strata_in(self._random_strata, self.concatenate, n, spans, counts, key)

    def moments(self, memory: Any, grad: Any, spans: Bounds, floor: float) -> list[Moments]:
        return moments_in(self._moments, memory, grad, spans, floor)

    def project_rows(self, memory: Any, grad: Any, spans: Bounds, row: int, width: int, seed: int, out: Any) -> None:
        project_rows_in(self._project_rows, memory, grad, spans, row, width, seed, out)

    def expand_rows(self, rows: Any, row: int, spans: Bounds, n: int) -> Ghost:
        return expand_rows_in(self._expand_rows, self.concatenate, self.positions_of, rows, row, spans, n)

    def sample(self, memory: Any, grad: Any, samples: Samples, values: Any) -> None:
        for _, _, count in samples:
            self.work("sample", count)

    def kth_largest(self, x: Any, spans: Bounds, counts: list[int]) -> list[float]:
        """Each the least of a selection, which is read."""
        for (start, stop), k in zip(spans, counts, strict=True):
            x[start:stop][self._top_k(None, x[start:stop], k)].copy()
        return [1.0] * len(spans)

    # -- what is chosen

    def chunk_max(self, memory: Any, grad: Any, spans: list[tuple[int, int, int]], positions: Any) -> None:
        self.work("chunk_max", grad.size)

    def chunk_indices(self, positions: Any, spans: list[tuple[int, int, int]], n: int, indices: Any,
                      known: bool = False) -> None:
        self.work("chunk_indices", positions.size)

    def _threshold(self, memory: Any, grad: Any, lam: float) -> Ghost:
        self.work("threshold", grad.size)
        if lam == 0 and not grad.spread:  # (of sums it is what a search for more than there are ends at)
            return self._indices(grad.size, grad.size, grad.size)
        places = grad.spread.width if grad.spread else grad.size
        return self._indices(grad.size, min(grad.size, max(1, round(self.passing * places))), grad.size)

    def _top_k(self, memory: Any, grad: Any, k: int) -> Ghost:
        if grad.size < SAMPLED:
            self.work(TOP_K_SHORT, grad.size)
        else:
            self.work(TOP_K_LEAST, 1)
            self.work("top_k", grad.size - SAMPLED)
        return self._indices(grad.size, k, grad.size)

    def _bin_select(self, memory: Any, grad: Any, length: int) -> Ghost:
        self.work("bin_select", grad.size)
        return self._indices(grad.size, min(grad.size, BIN * -(-grad.size // length)), grad.size)

    def _random_strata(self, n: int, k: int, key: RandomKey) -> Ghost:
        self.work("random_strata", k)
        return self._indices(n, k, n)

    def _expand_rows(self, rows: Any, row: int, n: int) -> Ghost:
        count = min(n, rows.size * row)
        self.work("expand_rows", count)
        return self._indices(n, count, n)

    def union(self, lists: list[Any], n: int) -> Ghost:
        sizes = [one.size for one in lists]
        self.work("union", sum(sizes))
        spread = union([one.spread for one in lists], sizes, n)
        found = Ghost(self, int(spread.counts[-1]), index_dtype(n), spread=spread)
        found.lists = frozenset(lists)
        return found

    def common(self, a: Any, b: Any) -> tuple[Ghost, Ghost]:
        """As many as chance gives; all of a list, where the other is a union of it and more."""
        self.work("common", a.size + b.size)
        count = a.size if a in b.lists else min(a.size, b.size, round(a.size * b.size / self.n))

        in_a, in_b = (Ghost(self, count, np.int64, spread=Spread.even(0, one.size, count)) for one in (a, b))
        return in_a, in_b

    # -- sketches: a pass over the vector for each of their rows, or columns of random signs

    def count_sketch(self, memory: Any, grad: Any, rows: int, columns: int, seed: int, table: Any) -> None:
        self.work("count_sketch", rows * grad.size)

    def sketch_estimate(self, table: Any, rows: int, columns: int, seed: int, out: Any) -> None:
        self.work("sketch_estimate", rows * out.size)

    def _project_rows(self, memory: Any, grad: Any, row: int, width: int, seed: int, out: Any) -> None:
        self.work("project_rows", width * grad.size)

    # -- what is measured

    def ascends(self, indices: Any, n: int) -> bool:
        self.work("largest_gap", indices.size)  # one pass over the list, too
        return True

    def filled_length(self, indices: Any, n: int) -> int:
        self.work("largest_gap", indices.size)
        return self.positions_of(indices, [n])[0]

    def largest_gap(self, indices: Any) -> int:
        self.work("largest_gap", indices.size)
        return max(1, min(self.n, round(self.n / max(1, indices.size) * math.log(max(2, indices.size)))))

    def count_nonfinite(self, x: Any) -> tuple[int, int]:
        self.work("count_nonfinite", x.size)
        return 0, -1

    def count_beyond(self, memory: Any, grad: Any, limit: float) -> int:
        self.work("count_nonfinite", grad.size if memory is None else 2 * grad.size)
        return 0

    def squared_norm(self, x: Any) -> float:
        self.work("squared_norm", x.size)
        return 1.0

    def _moments(self, memory: Any, grad: Any, floor: float) -> Moments:
        """Of normal deviates, all of which count."""
        self.work("moments", grad.size)
        return grad.size, 0.0, math.sqrt(2 / math.pi) * grad.size, float(grad.size)


def as_ops(ops: GhostOps) -> Ops:
    """The simulated operations, for code that takes those of arrays."""
    return cast(Ops, ops)

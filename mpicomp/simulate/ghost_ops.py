"""Operations on arrays without elements, which only write down what they would cost.

Costs that depend on the elements themselves are assumed, see ``GhostOps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..ops.arguments import Array, Bounds, Coded, Moments, Samples
from ..ops.arguments import Key as RandomKey
from ..ops.coded import Reading
from ..ops.host import PIECE, index_dtype, vouch
from ..ops.protocol import Ops
from ..ops.search import exponential_in, normal_in, sampled_in
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
    restrict_in,
    threshold_in,
    top_k_in,
)
from .ghost import Ghost, Sized, Unknown
from .index_spacing import Spread, joined, union

S = TypeVar("S", bound=Sized)
Operation = Callable[..., object]

# What operations count by: the elements of the largest argument, or of the one at this place.
IN_PLACE = {
    "add": None, "multiply": None, "minimum": None, "maximum": None, "scale": None, "widen": None, "narrow": None,
    "add_widened": None, "scatter": 1, "clear": 1,
    "masked_update": None, "dense_update": None, "axpby": None, "divide_by_root": None, "group_norms": 0,
    "group_means": 0, "pack_signs": None, "unpack_signs": 4, "pack_levels": 0, "unpack_levels": 5, "quantise": 0,
    "dequantise": None, "pack_gaps": 0, "unpack_gaps": 3, "pack_bitmap": 0, "unpack_bitmap": 2, "pack_natural": None,
    "unpack_natural": None, "encode_blocks": 0, "decode_blocks": 2,
}  # fmt: skip
# Kernel that an operation runs, and the argument whose elements it counts by; with an underscore, on one matrix.
COUNTED: dict[str, tuple[str, int | None]] = {
    **{name: (name, place) for name, place in IN_PLACE.items()},
    "scatter_add": ("scatter_add", 1), "pack": ("copy", 1), "unpack": ("copy", 0), "chunk_max": ("chunk_max", 1),
    "chunk_indices": ("chunk_indices", 0), "decode_natural": ("unpack_natural", 1), "limit_norms": ("group_norms", 0),
    "_project": ("project", 1), "_project_back": ("project_back", 1), "_low_rank_product": ("low_rank_product", 3),
    "_orthogonalise": ("orthogonalise", 0),
}  # fmt: skip
# Driver of an operation on many spans, matrices or lists, and the operations that it calls.
DRIVEN: dict[str, tuple[Operation, tuple[str, ...]]] = {
    "top_k": (top_k_in, ("_top_k", "concatenate")),
    "threshold": (threshold_in, ("_threshold", "concatenate")),
    "random_strata": (random_strata_in, ("_random_strata", "concatenate")),
    "moments": (moments_in, ("_moments",)),
    "project_rows": (project_rows_in, ("_project_rows",)),
    "expand_rows": (expand_rows_in, ("_expand_rows", "concatenate", "positions_of")),
    "project": (project_each, ("_project",)),
    "project_back": (project_back_each, ("_project_back",)),
    "low_rank_product": (low_rank_product_each, ("_low_rank_product",)),
    "orthogonalise": (orthogonalise_each, ("_orthogonalise",)),
    "restrict": (restrict_in, ("common",)),
}
SEARCHES: dict[str, Operation] = {  # which call several operations
    "select_normal": normal_in, "select_exponential": exponential_in, "select_sampled": sampled_in,
}  # fmt: skip
STEP, CALL = "step", "call"  # what a step of a scheme, and each operation in it, costs whatever its length
SAMPLED = 4 << 16  # elements from which on top_k's sample grows no more (ops/cpu/top_k.cpp): a constant part
TOP_K_SHORT, TOP_K_LEAST = "top_k_short", "top_k_least"  # an element of less; a whole call on so many elements
KERNELS = (
    "copy", *IN_PLACE, "chunk_max", "chunk_indices", "sample", "project", "project_back", "low_rank_product",
    "orthogonalise", "count_nonfinite", "squared_norm", "threshold", "top_k", "union", "largest_gap", "random_strata",
    STEP, "gather", "scatter_add", "common", "moments", "bin_select", "count_sketch", "sketch_estimate", "project_rows",
    "expand_rows", TOP_K_SHORT, TOP_K_LEAST, "encode_bounded", "sum_bounded", "decode_bounded", "add_lists", CALL,
)  # fmt: skip
BIN = 5  # pass of AdaComp's bins in the long run: 4 to 8 of 50 or 500 random gradients, however they were drawn


class GhostOps:
    """The operations of ``mpicomp.ops`` on ghosts: ``work(kernel, elements)`` counts each pass over elements.

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

    def __getattr__(self, name: str) -> Operation:
        run: Operation
        if name in COUNTED:
            run = partial(self._count, *COUNTED[name])
        elif name in DRIVEN:
            driver, called = DRIVEN[name]
            run = partial(driver, *(getattr(self, one) for one in called))
        elif name in SEARCHES:
            run = partial(SEARCHES[name], self)
        else:
            raise Unknown(f"the cost of {name} is not known to the simulation")
        setattr(self, name, run)  # found at once next time
        return run

    def _count(self, kernel: str, place: int | None, *arguments: object, **options: object) -> None:
        if place is None:
            self.work(kernel, max(one.size for one in (*arguments, *options.values())
                                  if isinstance(one, (Ghost, np.ndarray))))
        else:
            self.work(kernel, cast(Sized, options.get("out") or arguments[place]).size)

    def copied(self, ghost: S) -> S:
        self.work("copy", ghost.size)
        return ghost

    # -- arrays

    def empty(self, n: int, dtype: npt.DTypeLike) -> Ghost:
        """Return an array, of memory that was in use before."""
        return Ghost(self, n, dtype)

    zeros = empty  # a memory, which is kept from step to step

    def arange(self, n: int) -> Ghost:
        return self._indices(n, n, n)

    def _indices(self, n: int, count: int, of: int) -> Ghost:
        """Return so many indices, evenly out of ``n``, of the type that a vector of ``of`` elements needs."""
        return Ghost(self, count, index_dtype(of), spread=Spread.even(0, n, count))

    def to_host(self, x: Ghost | np.ndarray) -> np.ndarray:
        if not isinstance(x, Ghost):
            return x
        return x.head if x.head is not None and x.head.size == x.size else np.ones(x.size, x.dtype)

    def from_host(self, x: np.ndarray) -> np.ndarray:
        return x

    group_bounds = from_host

    def concatenate(self, arrays: Sequence[Ghost | np.ndarray], dtype: npt.DTypeLike) -> Ghost | np.ndarray:
        known = [one for one in arrays if isinstance(one, np.ndarray)]
        if arrays and len(known) == len(arrays):
            return np.concatenate(known, dtype=dtype)
        head = arrays[0] if arrays and isinstance(arrays[0], np.ndarray) else None
        spread = joined([one.spread if isinstance(one, Ghost) else None for one in arrays if one.size])
        return self.copied(Ghost(self, sum(one.size for one in arrays), dtype, head, spread))

    def positions_of(self, indices: Ghost, bounds: list[int]) -> list[int]:
        return (indices.spread or Spread.even(0, self.n, indices.size)).below(bounds)

    def gather(self, memory: Ghost | None, grad: Ghost, indices: Ghost, values: Ghost) -> None:
        if not isinstance(indices, Ghost):  # of a selector of the user's own; every exchange begins here
            raise Unknown(f"indices must be made by operations of ctx.ops, got {type(indices).__name__}")
        self.work("gather", indices.size)
        values.spread = indices.spread

    def gather_counted(self, memory: Ghost | None, grad: Ghost, indices: Ghost, values: Ghost, limit: float) -> int:
        self.gather(memory, grad, indices, values)
        return self.count_beyond(None, values, limit)

    def sample(self, memory: Ghost | None, grad: Ghost, samples: Samples, values: Ghost) -> None:
        for _, _, count in samples:
            self.work("sample", count)

    # -- selections

    def _threshold(self, memory: Ghost | None, grad: Ghost, lam: float) -> Ghost:
        self.work("threshold", grad.size)
        if lam == 0 and not grad.spread:  # (of sums it is what a search for more than there are ends at)
            return self._indices(grad.size, grad.size, grad.size)
        places = grad.spread.width if grad.spread else grad.size
        count = min(grad.size, max(1, round(self.passing * places)))
        return self._indices(grad.size, count, grad.size)

    def _top_k(self, memory: Ghost | None, grad: Sized, k: int) -> Ghost:
        if grad.size < SAMPLED:
            self.work(TOP_K_SHORT, grad.size)
        else:
            self.work(TOP_K_LEAST, 1)
            self.work("top_k", grad.size - SAMPLED)
        return self._indices(grad.size, k, grad.size)

    def kth_largest(self, x: Ghost, spans: Bounds, counts: list[int]) -> list[float]:
        """Return the least of a selection per span; the selected elements are copied and read."""
        for (start, stop), k in zip(spans, counts, strict=True):
            self._top_k(None, x[start:stop], k)
            self.work("copy", 2 * k)
        return [1.0] * len(spans)

    def sorted_magnitudes(self, x: Ghost, spans: Bounds) -> list[np.ndarray]:
        """Return magnitudes that are all larger than any that a search tries."""
        self.work("top_k_short", x.size)
        return [np.broadcast_to(np.iinfo(np.int64).max, stop - start) for start, stop in spans]

    def _bin_select(self, memory: Ghost | None, grad: Sized, length: int) -> Ghost:
        self.work("bin_select", grad.size)
        return self._indices(grad.size, min(grad.size, BIN * -(-grad.size // length)), grad.size)

    def bin_select(self, memory: Ghost | None, grad: Ghost, spans: Bounds, length: int, zeros: bool = True
                   ) -> Sized:
        select: Callable[..., Sized] = bin_select_in  # written for arrays
        found = select(self._bin_select, self.concatenate, memory, grad, spans, length)
        if not zeros:
            self.work("gather", found.size)
            self.work("threshold", found.size)
        return found

    def _random_strata(self, n: int, k: int, key: RandomKey) -> Ghost:
        self.work("random_strata", k)
        return self._indices(n, k, n)

    def _expand_rows(self, rows: Sized, row: int, n: int) -> Ghost:
        count = min(n, rows.size * row)
        self.work("expand_rows", count)
        return self._indices(n, count, n)

    # -- lists

    def union(self, lists: list[Ghost], n: int) -> Ghost:
        self.work("union", sum(one.size for one in lists))
        return self._union(lists, n, n // 8)

    def _union(self, lists: list[Ghost], n: int, flags: int) -> Ghost:
        """Return the union, found by a pass over so many bytes of flags."""
        self.work("copy", flags // 4)
        spread = union([one.spread for one in lists], [one.size for one in lists], n)
        found = Ghost(self, int(spread.counts[-1]), index_dtype(n), spread=spread)
        found.lists = frozenset(lists)
        return found

    def add_lists(self, lists: list[Ghost], values: list[Ghost], n: int, filled: bool = False) -> tuple[Ghost, Ghost]:
        own = [cast(Ghost, one[: self.filled_length(one, n)]) for one in lists] if filled else lists
        self.work("add_lists", sum(one.size for one in own))
        union = self._union(own, n, n // 8 + n // 16)
        sums = self.empty(union.size, values[0].dtype)
        sums.spread = union.spread
        return union, sums

    def common(self, a: Ghost, b: Ghost) -> tuple[Ghost, Ghost]:
        """Return as many positions as chance gives; all of a list, if the other is a union of it and more."""
        self.work("common", a.size + b.size)
        count = a.size if a in b.lists else min(a.size, b.size, round(a.size * b.size / self.n))
        in_a, in_b = (Ghost(self, count, np.int64, spread=Spread.even(0, one.size, count)) for one in (a, b))
        return in_a, in_b

    # -- codes

    def encode_natural(self, x: Ghost, bounds: np.ndarray, first: int, key: RandomKey, message: Ghost) -> None:
        self.work("group_norms", x.size)
        self.work("pack_natural", x.size)

    def coded(self, operation: str, arguments: dict[str, object], n: int, dtype: np.dtype) -> Reading:
        return Reading(getattr(self, operation), arguments, n, dtype)

    def coded_mean(self, coded: Iterable[Array | Coded], factor: float, plus: Array | None, out: Array) -> None:
        """Count a pass over each code, which decodes and adds its values, and one over the sum."""
        for one in coded:
            self._read(one, out.size)
        self.work("scale", out.size)

    def coded_update(self, memory: Array, grad: Array, sent: Array | Coded, first: int, beta: float) -> None:
        self.work("dense_update", grad.size)
        if isinstance(sent, Reading):
            self._read(sent, grad.size)

    def _read(self, one: Array | Coded, count: int) -> None:
        """Count the decoding of so many values that are used at once, or the addition of plain ones."""
        if isinstance(one, Reading):
            one.read(**one.arguments, out=self.zeros(count, one.dtype))
        else:
            self.work("add", count)

    # -- sketches: a pass over the vector for each of their rows, or columns of random signs

    def count_sketch(self, memory: Ghost | None, grad: Ghost, rows: int, columns: int, seed: int, table: Ghost) -> None:
        self.work("count_sketch", rows * grad.size)

    def sketch_estimate(self, table: Ghost, rows: int, columns: int, seed: int, out: Ghost) -> None:
        self.work("sketch_estimate", rows * out.size)

    def _project_rows(self, memory: Ghost | None, grad: Sized, row: int, width: int, seed: int, out: Sized) -> None:
        self.work("project_rows", width * grad.size)

    # -- measures

    def ascends(self, indices: Ghost, n: int) -> bool:
        self.work("largest_gap", indices.size)  # one pass over the list, too
        return True

    def filled_length(self, indices: Ghost, n: int) -> int:
        self.work("largest_gap", indices.size)
        return self.positions_of(indices, [n])[0]

    def largest_gap(self, indices: Ghost) -> int:
        self.work("largest_gap", indices.size)
        return max(1, min(self.n, round(self.n / max(1, indices.size) * math.log(max(2, indices.size)))))

    def count_nonfinite(self, x: Sized) -> tuple[int, int]:
        self.work("count_nonfinite", x.size)
        return 0, -1

    def count_beyond(self, memory: Ghost | None, grad: Sized, limit: float) -> int:
        self.work("count_nonfinite", grad.size if memory is None else 2 * grad.size)
        return 0

    def squared_norm(self, x: Sized) -> float:
        self.work("squared_norm", x.size)
        return 1.0

    def _moments(self, memory: Ghost | None, grad: Sized, floor: float) -> Moments:
        """Return the moments of normal deviates, all of which count."""
        self.work("moments", grad.size)
        return grad.size, 0.0, math.sqrt(2 / math.pi) * grad.size, float(grad.size)


def as_ops(ops: GhostOps) -> Ops:
    """Return the simulated operations, for code that takes those of arrays."""
    return cast(Ops, ops)

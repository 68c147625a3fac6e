"""Arrays without elements, and array operations on them that only write down what they would cost.

The real schedules, selectors, codecs and exchanges run on these: every length on the way, and so every message, is
theirs. What depends on the elements themselves is assumed, and said: see ``GhostOps``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import MpicompError
from ..ops.reference import PIECE, Key, index_dtype
from ..ops.reference.low_rank import (
    Matrices,
    low_rank_product_each,
    orthogonalise_each,
    project_back_each,
    project_each,
)
from ..ops.reference.many import top_k_in

# What operations count by: the elements of the largest argument, or of the one at this place.
IN_PLACE = {
    "add": None, "multiply": None, "minimum": None, "maximum": None, "scale": None, "widen": None, "narrow": None,
    "add_widened": None, "chunk_max": None, "chunk_indices": None, "gather": 2, "scatter": 1, "scatter_add": 1,
    "clear": 1, "masked_update": None, "dense_update": None, "axpby": None, "sample": 4, "group_norms": 0,
    "group_means": 0, "pack_signs": None, "unpack_signs": 4, "pack_levels": 0, "unpack_levels": 5, "quantise": 0,
    "dequantise": None, "pack_gaps": 0, "unpack_gaps": 3, "pack_bitmap": 0, "unpack_bitmap": 2, "pack_natural": None,
    "unpack_natural": None, "project": 1, "project_back": 1, "low_rank_product": 3, "orthogonalise": None,
}  # fmt: skip
STEP = "step"  # what a step of a scheme costs whatever its length: counted once a step
KERNELS = (
    "copy", *IN_PLACE, "count_nonfinite", "squared_norm", "threshold", "top_k", "union", "largest_gap", "random_strata",
    STEP,
)  # fmt: skip


DTYPES = {type(np.dtype(name)) for name in "?bBhHiIlLqQefd"}  # what np.dtype need not look at again


class Unknown(MpicompError):
    """Something asked for elements that a simulation does not have."""


class Ghost:
    """Length and type of a flat array; ``head`` are leading elements that are known all the same."""

    __slots__ = ("dtype", "head", "ops", "size")

    def __init__(self, ops: GhostOps, size: int, dtype: Any, head: np.ndarray | None = None) -> None:
        self.ops, self.size, self.head = ops, size, head
        self.dtype = dtype if dtype.__class__ in DTYPES else np.dtype(dtype)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        if key.__class__ is slice:
            start, stop, _ = key.indices(self.size)
            if self.head is not None and start == 0 and stop <= self.head.size:
                return self.head[:stop]
            return Ghost(self.ops, stop - start if stop > start else 0, self.dtype)
        if isinstance(key, (Ghost, np.ndarray)) and key.dtype.kind in "iu":
            return self.ops.copied(Ghost(self.ops, key.size, self.dtype))
        raise Unknown(f"an element is asked for ({key!r})")

    def __setitem__(self, key: Any, value: Any) -> None:
        self.ops.copied(self if key is ... else self[key])

    def _same(self, *_: Any) -> Ghost:
        return self.ops.copied(Ghost(self.ops, self.size, self.dtype))

    copy = __add__ = __sub__ = __iadd__ = __abs__ = _same

    def astype(self, dtype: Any, copy: bool = True) -> Ghost:
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return self.ops.copied(Ghost(self.ops, self.size, dtype))

    def view(self, dtype: Any) -> Ghost:
        if np.dtype(dtype) == self.dtype:
            return self
        head = None if self.head is None else self.head.view(dtype)
        return Ghost(self.ops, self.nbytes // np.dtype(dtype).itemsize, dtype, head)

    def min(self) -> float:
        return 1.0


class Tiled(Ghost):
    """One message after the other, all as long as the first, which stands for each of them."""

    __slots__ = ("message",)

    def __init__(self, message: Ghost, times: int) -> None:
        super().__init__(message.ops, message.size * times, message.dtype)
        self.message = message

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, _ = key.indices(self.size)
            length = self.message.size
            if length and start % length == 0 and stop - start == length:
                return self.message
        return super().__getitem__(key)


class GhostOps:
    """The operations of ``mpicomp.ops`` on ghosts: what each passes over goes to ``work(kernel, elements)``.

    Assumed, where it depends on elements: a threshold lets ``passing`` of the elements through; ranks choose
    independently of each other, which gives the length of unions; gaps between indices are those of a random choice;
    indices lie evenly over the vector; everything is finite.

    Parameters
    ----------
    work : callable
        ``(kernel, elements)``.
    n : int
        Elements of the whole vector.
    """

    PIECE, Key = PIECE, Key
    index_dtype = staticmethod(index_dtype)

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
        return Ghost(self, n, index_dtype(n))

    def to_host(self, x: Any) -> np.ndarray:
        return np.ones(x.size, x.dtype) if isinstance(x, Ghost) else x

    def from_host(self, x: np.ndarray) -> np.ndarray:
        return x

    def concatenate(self, arrays: list[Any], dtype: Any) -> Ghost:
        head = arrays[0] if arrays and isinstance(arrays[0], np.ndarray) else None
        return self.copied(Ghost(self, sum(one.size for one in arrays), dtype, head))

    def positions_of(self, indices: Any, bounds: list[int]) -> list[int]:
        return [min(indices.size, indices.size * bound // self.n) for bound in bounds]

    # -- what is chosen

    def chunk_max_spans(self, memory: Any, grad: Any, spans: list[tuple[int, int, int]], positions: Any) -> None:
        self.work("chunk_max", grad.size)

    def chunk_indices_spans(self, positions: Any, spans: list[tuple[int, int, int]], n: int, indices: Any) -> None:
        self.work("chunk_indices", positions.size)

    # -- many arrays, one after the other

    def pack(self, arrays: list[Any], flat: Any) -> None:
        self.work("copy", flat.size)

    def unpack(self, flat: Any, arrays: list[Any]) -> None:
        self.work("copy", flat.size)

    def project_all(self, memory: Any, grad: Any, matrices: Matrices, q: Any, p: Any) -> None:
        project_each(self.project, memory, grad, matrices, q, p)

    def project_back_all(self, memory: Any, grad: Any, matrices: Matrices, p: Any, q: Any) -> None:
        project_back_each(self.project_back, memory, grad, matrices, p, q)

    def low_rank_product_all(self, p: Any, q: Any, matrices: Matrices, out: Any) -> None:
        low_rank_product_each(self.low_rank_product, p, q, matrices, out)

    def orthogonalise_all(self, p: Any, matrices: Matrices) -> None:
        orthogonalise_each(self.orthogonalise, p, matrices)

    # -- what is chosen by values

    def threshold(self, memory: Any, grad: Any, lam: float) -> Ghost:
        self.work("threshold", grad.size)
        return Ghost(self, min(grad.size, max(1, round(self.passing * grad.size))), index_dtype(grad.size))

    def top_k(self, memory: Any, grad: Any, k: int) -> Ghost:
        self.work("top_k", grad.size)
        return Ghost(self, k, index_dtype(grad.size))

    def top_k_spans(self, memory: Any, grad: Any, spans: list[tuple[int, int]], counts: list[int]) -> Ghost:
        return top_k_in(self.top_k, self.concatenate, memory, grad, spans, counts)

    def random_strata(self, n: int, k: int, key: Key) -> Ghost:
        self.work("random_strata", k)
        return Ghost(self, k, index_dtype(n))

    def union(self, lists: list[Any], n: int) -> Ghost:
        self.work("union", sum(one.size for one in lists))
        missing = math.prod(1 - one.size / n for one in lists)
        return Ghost(self, round(n * (1 - missing)), index_dtype(n))

    # -- what is measured

    def ascends(self, indices: Any, n: int) -> bool:
        self.work("largest_gap", indices.size)  # one pass over the list, too
        return True

    def largest_gap(self, indices: Any) -> int:
        self.work("largest_gap", indices.size)
        return max(1, min(self.n, round(self.n / max(1, indices.size) * math.log(max(2, indices.size)))))

    def count_nonfinite(self, x: Any) -> tuple[int, int]:
        self.work("count_nonfinite", x.size)
        return 0, -1

    def squared_norm(self, x: Any) -> float:
        self.work("squared_norm", x.size)
        return 1.0

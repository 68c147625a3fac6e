"""Types of the arguments and results of operations, and the checks of arguments: shared by all array modules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import index
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from .._util.partition import chunk_count
from ..errors import InvalidArgument

Array: TypeAlias = npt.NDArray[Any]  # a NumPy array, or a CuPy array, which has the same methods
Spans = list[tuple[int, int, int]]  # of each tensor: start, stop, elements a chunk
Bounds = list[tuple[int, int]]  # of each tensor: start, stop
Samples = list[tuple[int, int, int]]  # of each tensor: the first element that is read, the step to the next, how many
Matrices = Sequence[tuple[int, int, int, int]]  # of each matrix in a vector: start, stop, rows, rank
Moments = tuple[int, float, float, float]  # how many; sums of u, of |u|, of u squared

NORMS = ("l2", "max", "mean", "capped")
WIDTHS = (2, 4, 8, 16)  # bits of a level
HEAD = np.dtype(np.int32)  # of a message of powers of two; its four bytes keep runs of four codes aligned
MOST_ROWS = 15  # of a count sketch
NOT_FINITE = int(np.iinfo(HEAD).max)  # as a head: there was NaN or infinity


class Found(NamedTuple):
    """Ascending indices of all that reach their span's threshold; how many of each span, and the threshold."""

    indices: Array
    counts: list[int]
    lams: list[float]


class Coded(Protocol):
    """Values that an operation reads from codes, once they are used; see `Ops.coded`."""

    @property
    def size(self) -> int:
        """Number of values."""


class Key(NamedTuple):
    """Whose random numbers: ``seed`` below 2^64, ``step`` and ``worker`` below 2^32."""

    seed: int
    step: int
    worker: int


@lru_cache(64)
def dtype_name(dtype: np.dtype) -> str:
    """Name of a dtype, which NumPy works out anew at every use."""
    return dtype.name


def require_memory(memory: Array | None, grad: Array) -> None:
    """Refuse a memory of another length than the gradient's, which their parts would not show."""
    if memory is not None and memory.size != grad.size:
        raise InvalidArgument(f"memory must have {grad.size} elements, got {memory.size}")


def require_sketch(rows: int, columns: int) -> None:
    """Refuse a count sketch of other than 1 to MOST_ROWS rows and a power of two of columns."""
    if not 1 <= rows <= MOST_ROWS or columns < 1 or columns & (columns - 1):
        raise InvalidArgument(f"a sketch must have 1 to {MOST_ROWS} rows and 2^m columns, got {rows} and {columns}")


def require_limit(limit: float) -> None:
    """Refuse a bound of magnitudes that is not above zero."""
    if not limit > 0:
        raise InvalidArgument(f"limit must be a number above 0, got {limit}")


def require_in_range(indices: Array, n: int, name: str = "indices") -> None:
    """Refuse indices outside ``[0, n)``."""
    if len(indices) and not (indices.min() >= 0 and indices.max() < n):
        outside = indices[(indices < 0) | (indices >= n)][0]
        raise InvalidArgument(f"{name} must be in [0, {n}), got {outside}")


def require_ascending(indices: Array, name: str = "indices") -> None:
    """Refuse a list in which an index is not above the one before it."""
    if np.any(indices[1:] <= indices[:-1]):
        raise InvalidArgument(f"{name} must be strictly ascending")


def require_chunk(chunk: int) -> None:
    """Refuse chunks of which a position would not fit its type."""
    if not 1 <= chunk <= 65536:
        raise InvalidArgument(f"chunk must be in [1, 65536], got {chunk}")


def require_total(total: int, flat: Array) -> None:
    """Refuse a vector that is not as long as all arrays together."""
    if total != flat.size:
        raise InvalidArgument(f"flat must have {total} elements, got {flat.size}")


def require_spans(spans: Bounds, n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``."""
    for start, stop in spans:
        if not 0 <= start <= stop <= n:
            raise InvalidArgument(f"spans must lie in [0, {n}), got {start} to {stop}")


def chunk_counts(spans: Spans, n: int) -> list[int]:
    """Number of chunks in each span; refuses spans outside a vector of ``n`` and chunks of an invalid size."""
    require_spans([span[:2] for span in spans], n)
    for *_, chunk in spans:
        require_chunk(chunk)
    return [chunk_count(stop - start, chunk) for start, stop, chunk in spans]


def is_whole(spans: Bounds | Spans, n: int) -> bool:
    """Return True for one span that is the whole vector of ``n`` elements."""
    return len(spans) == 1 and tuple(spans[0][:2]) == (0, n)


def position_dtype(spans: Spans) -> np.dtype:
    """Type of positions inside chunks: one byte if no chunk is above 256 elements, else two."""
    return np.dtype(np.uint8 if max((chunk for *_, chunk in spans), default=1) <= 256 else np.uint16)


def require_counts(spans: Bounds, counts: list[int], n: int, least: int = 0) -> None:
    """Refuse spans that do not lie in a vector of ``n``, or of which more is wanted than there is."""
    if len(spans) != len(counts):
        raise InvalidArgument(f"there must be a count for each of {len(spans)} spans, got {len(counts)}")
    require_spans(spans, n)
    for (start, stop), k in zip(spans, counts, strict=True):
        if not least <= k <= stop - start:
            raise InvalidArgument(f"k must be in [{least}, {stop - start}], got {k}")


def require_lams(spans: Bounds, lams: list[float], n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``, and thresholds that are none."""
    if len(spans) != len(lams):
        raise InvalidArgument(f"there must be a threshold for each of {len(spans)} spans, got {len(lams)}")
    require_spans(spans, n)
    for lam in lams:
        if not lam >= 0:
            raise InvalidArgument(f"lam must be a number >= 0, got {lam}")


def require_samples(samples: Samples, n: int, room: int) -> None:
    """Refuse samples that reach outside a vector of ``n``, or do not fill ``room`` elements."""
    for first, stride, count in samples:
        if stride < 1 or min(first, count) < 0 or (count and first + (count - 1) * stride >= n):
            raise InvalidArgument(f"a sample must lie in [0, {n}), got {count} elements from {first} in steps of "
                                  f"{stride}")
    if (total := sum(count for *_, count in samples)) != room:
        raise InvalidArgument(f"values must have {total} elements, got {room}")


def require_targets(memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> None:
    """Refuse spans that do not ascend in a vector, or of which more or less is wanted than there can be."""
    require_memory(memory, grad)
    require_counts(spans, targets, grad.size)
    require_ascending_spans(spans)
    for (start, stop), target in zip(spans, targets, strict=True):
        if target == 0 and start < stop:
            raise InvalidArgument(f"a target must be at least 1, got 0 of {stop - start} elements")


def require_ascending_spans(spans: Bounds) -> None:
    """Refuse spans that overlap, or stand in another order."""
    for (_, end), (start, _) in pairwise(spans):
        if start < end:
            raise InvalidArgument(f"spans must ascend, got one from {start} behind one up to {end}")


def require_sampled(memory: Array | None, grad: Array, spans: Bounds, samples: Samples, counts: list[int]) -> Bounds:
    """Bounds of the spans' samples, one behind another; refuses any other number of samples than one per span, and
    counts that a sample does not have.
    """
    require_memory(memory, grad)
    if not len(spans) == len(samples) == len(counts):
        raise InvalidArgument(f"there must be a sample and a count for each of {len(spans)} spans, got {len(samples)} "
                              f"and {len(counts)}")
    require_counts(spans, [0] * len(spans), grad.size)
    require_ascending_spans(spans)
    places = list(pairwise(accumulate((size for *_, size in samples), initial=0)))
    require_counts(places, counts, places[-1][1] if places else 0, least=1)
    return places


def require_floor(floor: float) -> None:
    """Refuse a floor that is no magnitude."""
    if not floor >= 0:
        raise InvalidArgument(f"floor must be a number >= 0, got {floor}")


def require_projection(row: int, width: int) -> None:
    """Refuse rows of no elements, or more columns than a hash has bits."""
    if not 1 <= width <= 64 or row < 1:
        raise InvalidArgument(f"row must be at least 1 and width in [1, 64], got {row} and {width}")


def require_rows(row: int, n: int) -> None:
    """Refuse rows of no elements, and a vector of fewer than none."""
    if row < 1 or n < 0:
        raise InvalidArgument(f"row must be at least 1 and n at least 0, got {row} and {n}")


def require_rows_of_spans(rows: Array, row: int, spans: Bounds, n: int) -> None:
    """Refuse spans that do not lie in a vector of ``n``, and rows that are not ascending numbers of theirs."""
    require_rows(row, n)
    require_spans(spans, n)
    require_in_range(rows, rows_until(spans, row)[-1], "rows")
    require_ascending(rows, "rows")


def rows_until(spans: Bounds, row: int) -> list[int]:
    """Number of rows before each span, and in all."""
    return [0, *accumulate(-(-(stop - start) // row) for start, stop in spans)]


def require_packed(matrices: Matrices, n: int, **packed: Array) -> None:
    """Refuse matrices that do not lie in a vector of ``n``, and packed ``p`` or ``q`` of another length than theirs."""
    extent = _extent(tuple(matrices))
    if extent.wrong is not None or extent.stop > n:
        start, stop, rows, rank = extent.wrong or max(matrices, key=lambda one: one[1])
        raise InvalidArgument(f"matrices must lie in [0, {n}), with whole rows and at least one column of p, got "
                              f"{start} to {stop} with {rows} rows and {rank} columns of p")
    for name, array in packed.items():
        total = extent.p if name == "p" else extent.q
        if array.size != total:
            raise InvalidArgument(f"{name} must have {total} elements, got {array.size}")


class _Extent(NamedTuple):
    """End of the last of several matrices, lengths of their packed ``p`` and ``q``, and the first invalid one."""

    stop: int
    p: int
    q: int
    wrong: tuple[int, int, int, int] | None


@lru_cache(maxsize=64)  # a step asks five times for the same matrices
def _extent(matrices: tuple[tuple[int, int, int, int], ...]) -> _Extent:
    stop = p = q = 0
    for one in matrices:
        start, end, rows, rank = one
        if not (0 <= start <= end and rows >= 1 and rank >= 1 and (end - start) % rows == 0):
            return _Extent(0, 0, 0, one)
        stop, p, q = max(stop, end), p + rows * rank, q + (end - start) // rows * rank
    return _Extent(stop, p, q, None)


def refused_lists(n: int, filled: bool) -> InvalidArgument:
    """The error for lists of which one does not ascend."""
    return InvalidArgument(f"lists must ascend within [0, {n}){' and be filled up at their ends' if filled else ''}")


def checked_key(key: Key) -> Key:
    """``key``, a sequence of three numbers within their bounds, or InvalidArgument."""
    try:
        seed, step, worker = (index(part) for part in key)
    except (TypeError, ValueError):
        pass
    else:
        if 0 <= seed < 2**64 and 0 <= step < 2**32 and 0 <= worker < 2**32:
            return Key(seed, step, worker)
    raise InvalidArgument(f"key must be (seed below 2^64, step below 2^32, worker below 2^32), got {key!r}")


def require_range(n: int, first: int) -> None:
    for name, value in (("n", n), ("first", first)):
        if value < 0:
            raise InvalidArgument(f"{name} must be >= 0, got {value}")


def checked_streams(key: Key, count: int) -> Key:
    """``key``, where ``count`` workers from its own on have numbers, or InvalidArgument."""
    key = checked_key(key)
    checked_key(key._replace(worker=key.worker + max(0, count - 1)))
    return key


def require_norm(kind: str) -> None:
    if kind not in NORMS:
        raise InvalidArgument(f"kind must be one of {', '.join(NORMS)}, got {kind}")


def require_levels(levels: int, width: int) -> None:
    if width not in WIDTHS or not 1 <= levels < 2 ** (width - 1):
        raise InvalidArgument(
            f"levels must be in [1, 2^(width-1) - 1] for a width of 2, 4, 8 or 16, got {levels} and {width}"
        )


def require_unit(unit: float) -> None:
    if not 0 < unit < float("inf"):
        raise InvalidArgument(f"unit must be a positive number, got {unit}")


def require_top(top: int, x: Array) -> None:
    bias = np.finfo(x.dtype).maxexp - 1
    if not 127 - bias <= top <= bias:
        raise InvalidArgument(f"top must be in [{127 - bias}, {bias}] for {x.dtype}, got {top}")


def require_codes(fit: bool, codes: Array, unit: float) -> None:
    if not fit:
        limit = np.iinfo(codes.dtype).max
        raise InvalidArgument(f"codes must be at most {limit} in magnitude: take a larger unit than {unit}")


def require_magnitudes(fit: bool, top: int) -> None:
    if not fit:
        raise InvalidArgument(f"magnitudes must be at most 2^{top}")

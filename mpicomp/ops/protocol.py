"""The operations that every array module provides: the one list of their names, arguments and units.

The modules :mod:`.oracle`, :mod:`.cpu` and :mod:`.gpu` satisfy `Ops`; ``tests/ops/test_protocol.py`` and mypy check it.

Arrays are one-dimensional and contiguous, and all arguments of a call live on one device. Sizes, counts and positions
are elements. ``u`` is the compensated gradient: ``memory + grad``, or ``grad`` if ``memory`` is None; only the oracle
stores it. Selections order elements by magnitude: the bits of ``|u|`` read as an integer, so that NaN is largest, then
infinity; among equals the lowest index comes first. Spans are ``(start, stop)`` in elements; ``[(0, n)]`` is the whole
vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .arguments import Array, Bounds, Coded, Found, Key, Matrices, Moments, Samples, Spans


class Ops(Protocol):
    """Operations on the arrays of one device. The oracle's docstrings define the results bit by bit."""

    __name__: str

    @property
    def PIECE(self) -> int:
        """Elements per piece of a long pass that makes room for other work in between."""

    # ---- arrays on this device

    def empty(self, n: int, dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array of ``n`` elements."""

    def zeros(self, n: int, dtype: npt.DTypeLike) -> Array:
        """Return ``n`` zeros."""

    def arange(self, n: int) -> Array:
        """Return the indices of ``n`` elements."""

    def index_dtype(self, n: int) -> np.dtype:
        """Return the integer type of indices into ``n`` elements: int32, or int64 above 2^31 - 1."""

    def to_host(self, x: Array) -> np.ndarray:
        """Return the array in host memory; waits for the device."""

    def from_host(self, x: np.ndarray) -> Array:
        """Return a host array on this device."""

    def concatenate(self, arrays: list[Array], dtype: npt.DTypeLike) -> Array:
        """Return all arrays one after another."""

    def pack(self, arrays: list[Array], flat: Array) -> None:
        """Copy all arrays, of any shapes, one after another into ``flat``, in ``flat``'s dtype."""

    def unpack(self, flat: Array, arrays: list[Array]) -> None:
        """Copy the parts of ``flat`` into the arrays, each in its own dtype: the inverse of ``pack``."""

    def unpack_sparse(self, indices: Array, values: Array, arrays: list[Array]) -> None:
        """``unpack`` a vector that has ``values`` at ascending ``indices`` and is zero elsewhere."""

    # ---- element-wise

    def add(self, dst: Array, src: Array) -> None:
        """``dst += src``; integers wrap around."""

    def multiply(self, dst: Array, src: Array) -> None:
        """``dst *= src``; integers wrap around."""

    def minimum(self, dst: Array, src: Array) -> None:
        """``dst = min(dst, src)``; NaN wins."""

    def maximum(self, dst: Array, src: Array) -> None:
        """``dst = max(dst, src)``; NaN wins."""

    def scale(self, x: Array, factor: float) -> None:
        """``x *= factor``, the factor rounded to x's precision first."""

    def axpby(self, out: Array, a: float, x: Array, b: float, y: Array) -> None:
        """``out = a * x + b * y``; ``out`` may be ``x`` or ``y``."""

    def divide_by_root(self, x: Array, y: Array, eps: float) -> None:
        """``x /= sqrt(y) + eps``."""

    def widen(self, dst: Array, src: Array, kind: str, factor: float = 1.0) -> None:
        """``dst`` (float32) ``= src`` (uint16 bits of ``kind``: float16 or bfloat16) ``* factor``."""

    def narrow(self, dst: Array, src: Array, kind: str) -> None:
        """``dst`` (uint16 bits of ``kind``) ``= src`` (float32), rounded to nearest even."""

    def add_widened(self, dst: Array, src: Array, kind: str) -> None:
        """``dst`` (float32) ``+= src`` (uint16 bits of ``kind``)."""

    # ---- error memory

    def masked_update(self, memory: Array, grad: Array, indices: Array, sent: Array, beta: float) -> None:
        """``memory += beta * grad``; at ascending ``indices`` ``(1 - beta) * memory + beta * (u - sent)`` instead."""

    def dense_update(self, memory: Array, grad: Array, sent: Array, beta: float) -> None:
        """``memory = (1 - beta) * memory + beta * (u - sent)`` everywhere."""

    # ---- measures

    def count_nonfinite(self, x: Array) -> tuple[int, int]:
        """Count the elements that are NaN or infinite; also return the index of the first, or -1."""

    def count_beyond(self, memory: Array | None, grad: Array, limit: float) -> int:
        """Count ``|u|`` that are not below ``limit``, NaN included."""

    def squared_norm(self, x: Array) -> float:
        """Return the sum of squares, accumulated in float64."""

    def moments(self, memory: Array | None, grad: Array, spans: Bounds, floor: float) -> list[Moments]:
        """Per span, count ``|u| >= floor`` and sum their u, ``|u|`` and u squared, in float64."""

    def sample(self, memory: Array | None, grad: Array, samples: Samples, values: Array) -> None:
        """``values`` = u at every ``stride``-th element of each sample ``(first, stride, count)``."""

    def kth_largest(self, x: Array, spans: Bounds, counts: list[int]) -> list[float]:
        """Return, per span, the magnitude of its ``counts``-th largest element; counts are at least 1."""

    def sorted_magnitudes(self, x: Array, spans: Bounds) -> list[np.ndarray]:
        """Return, per span, the bits of all its magnitudes, ascending: integers in host memory."""

    # ---- selection

    def top_k(self, memory: Array | None, grad: Array, spans: Bounds, counts: list[int]) -> Array:
        """Return the indices of the ``counts`` largest ``|u|`` of each span."""

    def threshold(self, memory: Array | None, grad: Array, spans: Bounds,
                        lams: list[float]) -> tuple[Array, list[int]]:
        """Return the indices of ``|u| >= lam`` in each span, NaN included, and their number per span."""

    def bin_select(self, memory: Array | None, grad: Array, spans: Bounds, length: int,
                         zeros: bool = True) -> Array:
        """Return the indices of ``|u + grad| >= max |u|`` of their bin of ``length`` elements (AdaComp)."""

    def random_strata(self, n: int, spans: Bounds, counts: list[int], key: Key) -> Array:
        """Return ``counts`` random indices per span, one from each of so many nearly equal parts.

        Span s draws from the key's worker + s.
        """

    def chunk_max(self, memory: Array | None, grad: Array, spans: Spans, positions: Array) -> None:
        """``positions`` = position of the largest ``|u|`` in each chunk: uint8 for chunks up to 256, else uint16."""

    def chunk_indices(self, positions: Array, spans: Spans, n: int, indices: Array, known: bool = False) -> None:
        """``indices`` = index of each chunk's position; refuses positions outside their chunk, unless they are
        ``known`` to come from ``chunk_max``.
        """

    def select_normal(self, memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
        """Select about ``targets`` elements per span by Gaussian-k's threshold."""

    def select_exponential(self, memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
        """Select about ``targets`` elements per span by SIDCo's threshold."""

    def select_sampled(self, memory: Array | None, grad: Array, spans: Bounds, samples: Samples,
                      counts: list[int]) -> Found:
        """Select by DGC's threshold: per span, the ``counts``-th largest magnitude of its sample."""

    # ---- reading and writing at indices

    def gather(self, memory: Array | None, grad: Array, indices: Array, values: Array) -> None:
        """``values[j] = u[indices[j]]``."""

    def gather_counted(self, memory: Array | None, grad: Array, indices: Array, values: Array,
                       limit: float = np.inf) -> int:
        """``gather``; return the number of values not below ``limit`` in magnitude, NaN included."""

    def scatter(self, dst: Array, indices: Array, values: Array) -> None:
        """``dst[indices] = values``."""

    def scatter_add(self, dst: Array, indices: Array, values: Array) -> None:
        """``dst[indices] += values``; indices are distinct."""

    def clear(self, dst: Array, indices: Array) -> None:
        """``dst[indices] = 0``."""

    # ---- ascending index lists

    def ascends(self, indices: Array, n: int) -> bool:
        """Return True if ``indices`` ascend strictly within ``[0, n)``."""

    def filled_length(self, indices: Array, n: int) -> int:
        """Return the number of ``indices`` that ascend within ``[0, n)`` before the filling ``n``; -1 if invalid."""

    def vouch(self, indices: Array, n: int, of: Array | None = None) -> Array:
        """Return the list, which the caller knows to ascend within ``[0, n)``, or to be a part ``of`` another list."""

    def positions_of(self, indices: Array, bounds: list[int]) -> list[int]:
        """Count the ``indices`` below each of ``bounds``."""

    def union(self, lists: list[Array], n: int) -> Array:
        """Return the ascending indices that are in any of ``lists``."""

    def add_lists(self, lists: list[Array], values: list[Array], n: int, filled: bool = False) -> tuple[Array, Array]:
        """Return the union of ``lists`` and the sums of their ``values``; ``filled``: lists may end in fillings n."""

    def restrict(self, lists: list[Array], values: list[Array], whole: Array,
                 nonzero: list[bool]) -> tuple[tuple[Array, Array], ...]:
        """Return, per list, the entries that ``whole`` also has, and their values; if ``nonzero``, without zeros."""

    def common(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the positions in ``a`` and in ``b`` of the entries that both have, int64."""

    def largest_gap(self, indices: Array) -> int:
        """Return the largest number of indices left out before any of ``indices``."""

    def pack_gaps(self, indices: Array, width: int, out: Array) -> None:
        """Write the gaps before ``indices`` as a little-endian stream of ``width`` bits each."""

    def unpack_gaps(self, packed: Array, width: int, n: int, indices: Array, wait: bool = True) -> None:
        """Read ``pack_gaps``; refuses a list that runs past ``n``.

        Without ``wait`` a device does not refuse it: ``indices`` then do not ascend within ``[0, n)``.
        """

    def pack_bitmap(self, indices: Array, n: int, out: Array) -> None:
        """Write ``out`` (ceil(n/8) bytes): bit i mod 8 of byte i div 8 is set for each of ``indices``."""

    def unpack_bitmap(self, bitmap: Array, n: int, indices: Array, wait: bool = True) -> None:
        """Read ``pack_bitmap``; refuses any other number of indices than ``indices`` holds, if it is to ``wait``."""

    # ---- few bits per value; ``bounds`` (int64) cut a vector into groups that share a scale

    def group_bounds(self, bounds: np.ndarray) -> Array:
        """Return the host's ``bounds`` on the device, for reading only."""

    def group_norms(self, x: Array, bounds: Array, kind: str, out: Array) -> None:
        """``out`` = one number per group: its l2, capped (l2 up to the largest number), max or mean magnitude."""

    def limit_norms(self, x: Array, bounds: Array, factor: float, out: Array) -> None:
        """Lower each group's ``out`` to ``factor`` times the root mean square of its elements."""

    def group_means(self, x: Array, bounds: Array, negative: Array, positive: Array) -> None:
        """Compute the mean of each group's elements with the sign bit set, and of the others."""

    def pack_signs(self, x: Array, out: Array) -> None:
        """Write one bit per element: 1 if its sign bit is not set."""

    def unpack_signs(self, packed: Array, bounds: Array, negative: Array | None, positive: Array, out: Array) -> None:
        """Decode each bit as its group's ``positive`` or ``negative`` (None: minus ``positive``)."""

    def pack_levels(self, x: Array, bounds: Array, scales: Array, levels: int, width: int, first: int, key: Key,
                    out: Array) -> None:
        """Round ``|x|`` stochastically to multiples of scale/levels; ``width`` bits per code."""

    def unpack_levels(self, packed: Array, bounds: Array, scales: Array, levels: int, width: int, out: Array) -> None:
        """``out = (code - levels) * (scale / levels)``."""

    def quantise(self, x: Array, unit: float, first: int, key: Key | None, codes: Array,
                 largest: float | None = None) -> None:
        """``codes`` = x / unit, rounded stochastically, or to nearest without a key; ``largest`` bounds all ``|x|``."""

    def dequantise(self, codes: Array, unit: float, out: Array) -> None:
        """``out = codes * unit``."""

    def pack_natural(self, x: Array, top: int, first: int, key: Key, out: Array) -> None:
        """Round ``|x|`` stochastically to a power of two, 2^top at most; one byte per element."""

    def unpack_natural(self, packed: Array, top: int, out: Array) -> None:
        """Read ``pack_natural``."""

    def encode_natural(self, x: Array, bounds: Array, first: int, key: Key, message: Array) -> None:
        """Write the exponent of the largest power of two as int32, then the codes of ``pack_natural``."""

    def decode_natural(self, message: Array, out: Array, known: bool = False) -> None:
        """Read ``encode_natural``; refuses invalid heads, unless the message is ``known`` to come from it."""

    # ---- error-bounded codes: integers on a grid, which add without error; error_bound.py has their sizes

    def encode_bounded(self, x: Array, bound: float, terms: int, codes: Array) -> tuple[int, int]:
        """Write the stream of x to ``codes`` (``bounded_capacity`` bytes); return its bytes and the escaped blocks.

        Every decoded value is within ``bound`` of its own; up to ``terms`` streams are added without overflow.
        """

    def sum_bounded(self, streams: list[Array], n: int, dtype: npt.DTypeLike, bound: float,
                    codes: Array) -> tuple[int, int]:
        """Write the sum of ``streams`` of n elements to ``codes``; return its bytes and the escaped blocks.

        A stream is the slice of exactly its bytes; any others are refused. Integers are added in any order to the same
        bits; blocks that are escaped in any stream are added in float64, in the order of the streams.
        """

    def decode_bounded(self, codes: Array, bound: float, divisor: int, out: Array) -> None:
        """``out`` = the stream's values / ``divisor``; refuses any bytes but exactly those of a stream."""

    # ---- block codes: a scale and 8 or 4 bits per element in blocks of 256; block_codes.py has their sizes and errors

    def encode_blocks(self, x: Array, format: str, codes: Array, key: Key | None = None, first: int = 0) -> None:
        """Write the scales and codes of x; nearest without a key, else stochastic, x[0] being element ``first``."""

    def decode_blocks(self, codes: Array, format: str, out: Array) -> None:
        """``out = code * scale``; NaN in blocks that held a number that was not finite."""

    # ---- coded values, which these operations decode on the way

    def coded(self, operation: str, arguments: dict[str, object], n: int, dtype: np.dtype) -> Coded:
        """Return the ``n`` values that ``operation(**arguments, out=out)`` of this list would write."""

    def coded_mean(self, coded: Iterable[Array | Coded], factor: float, plus: Array | None, out: Array) -> None:
        """``out = (0 + all coded values, one after the other) * factor + plus``."""

    def coded_update(self, memory: Array, grad: Array, sent: Array | Coded, first: int, beta: float) -> None:
        """``dense_update`` with the elements of ``sent`` from ``first`` on, a multiple of 8."""

    # ---- random numbers: element e of the stream of a key is the same on every device

    def random_words(self, n: int, first: int, key: Key) -> Array:
        """Return elements ``[first, first + n)`` of the key's stream, uint32."""

    def uniform(self, n: int, first: int, key: Key) -> Array:
        """Return the same elements as float32 in [0, 1), multiples of 2^-24."""

    # ---- sketches

    def count_sketch(self, memory: Array | None, grad: Array, rows: int, columns: int, seed: int, table: Array) -> None:
        """``table`` (rows x columns) = the count sketch of u."""

    def sketch_estimate(self, table: Array, rows: int, columns: int, seed: int, out: Array) -> None:
        """``out[i]`` = the median over rows of the table's estimates of u[i]."""

    def project_rows(self, memory: Array | None, grad: Array, spans: Bounds, row: int, width: int, seed: int,
                           out: Array) -> None:
        """Multiply every ``row`` elements of each span with ``width`` columns of random signs."""

    def expand_rows(self, rows: Array, row: int, spans: Bounds, n: int) -> Array:
        """Return the indices of all elements of the given rows, which ascend and are counted through all spans."""

    # ---- low rank; matrices are (start, stop, rows, rank) in one vector, their p and q are packed one after another

    def project(self, memory: Array | None, grad: Array, matrices: Matrices, q: Array, p: Array) -> None:
        """``p`` (rows x rank) ``= U q`` per matrix."""

    def project_back(self, memory: Array | None, grad: Array, matrices: Matrices, p: Array, q: Array) -> None:
        """``q`` (columns x rank) ``= U^T p`` per matrix."""

    def low_rank_product(self, p: Array, q: Array, matrices: Matrices, out: Array) -> None:
        """``out = p q^T`` per matrix."""

    def orthogonalise(self, p: Array, matrices: Matrices) -> None:
        """Replace the columns of each p by orthonormal ones that span at least the same space."""


NAMES = tuple(name for name, member in vars(Ops).items() if callable(member) and not name.startswith("_"))

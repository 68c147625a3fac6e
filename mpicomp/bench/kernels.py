"""The array operations of compression, each as a call and the number of elements that its cost is divided by."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from ..ops import ops_for
from ..ops.arguments import Key
from ..ops.block_codes import block_codes_nbytes
from ..ops.error_bound import bounded_capacity
from ..ops.protocol import Ops
from ..types import Array

CHUNK = 112
FAR = 4  # factor of length of a vector for scattered access, so that no cache holds it
SHORT, SAMPLED = 1 << 16, 4 << 16  # elements: of fewer than SAMPLED top_k's sample grows with the vector
MATRIX_RANK = 4
BUCKET = 512
BIN = 500
ROW, WIDTH, SKETCH_ROWS = 64, 4, 5
Case = tuple[str, Callable[[], object], int]  # name, call, elements


def themes(n: int) -> list[Callable[[], list[Case]]]:
    """Operations on float32 vectors of about ``n`` elements, as schemes call them with their defaults.

    The cases of one theme hold hundreds of megabytes if n is millions: make them, call them, drop them.
    """
    n -= n % (CHUNK * BUCKET)
    generator = np.random.default_rng(n)
    memory, gradient = generator.standard_normal((2, n), dtype=np.float32)
    ops = ops_for(gradient)
    both = [partial(theme, ops, memory, gradient) for theme in (passes, selections, products, sketches)]
    return [*both, partial(places, ops, n), partial(lists, ops, n, generator), partial(codes, ops, gradient),
            partial(bounded_codes, ops, n)]


def passes(ops: Ops, memory: Array, gradient: Array) -> list[Case]:
    """Operations over the whole vector."""
    n, other, half = gradient.size, gradient.copy(), np.empty(gradient.size, np.uint16)
    return [
        ("copy", lambda: np.copyto(other, gradient), n),
        ("add", lambda: ops.add(other, gradient), n),
        ("minimum", lambda: ops.minimum(other, gradient), n),
        ("scale", lambda: ops.scale(other, 1.0), n),
        ("axpby", lambda: ops.axpby(other, 0.5, memory, 0.5, gradient), n),
        ("dense_update", lambda: ops.dense_update(other, gradient, gradient, 0.1), n),
        ("count_nonfinite", lambda: ops.count_nonfinite(gradient), n),
        ("squared_norm", lambda: ops.squared_norm(gradient), n),
        ("moments", lambda: ops.moments(memory, gradient, [(0, n)], 0.0), n),
        ("narrow", lambda: ops.narrow(half, gradient, "float16"), n),
        ("widen", lambda: ops.widen(other, half, "float16"), n),
        ("add_widened", lambda: ops.add_widened(other, half, "float16"), n),
    ]


def selections(ops: Ops, memory: Array, gradient: Array) -> list[Case]:
    """Selection of coordinates, and operations at the selected ones."""
    n, kept = gradient.size, memory.copy()
    whole, chunks, short, least = [(0, n)], [(0, n, CHUNK)], min(n, SHORT), min(n, SAMPLED)
    positions, indices = np.empty(n // CHUNK, np.uint8), np.empty(n // CHUNK, np.int32)
    values, sampled = np.empty(n // CHUNK, np.float32), np.empty(n // 101 + 1, np.float32)

    def top_k_of(length: int) -> Callable[[], object]:
        """Calls on other elements each time, as in a step: branches are not predicted from the last call."""
        starts = itertools.cycle(range(0, n - length + 1, length))

        def call() -> object:
            start = next(starts)
            part = slice(start, start + length)
            return ops.top_k(memory[part], gradient[part], [(0, length)], [length // 100])

        return call

    ops.chunk_max(memory, gradient, chunks, positions)
    ops.chunk_indices(positions, chunks, n, indices)
    ops.gather(memory, gradient, indices, values)
    return [
        ("chunk_max", lambda: ops.chunk_max(memory, gradient, chunks, positions), n),
        ("chunk_indices", lambda: ops.chunk_indices(positions, chunks, n, indices), n // CHUNK),
        ("threshold", lambda: ops.threshold(memory, gradient, whole, [3.64]), n),  # passed by 1 % of a variance of 2
        ("top_k", lambda: ops.top_k(memory, gradient, whole, [n // 100]), n),
        ("top_k_short", top_k_of(short), short),
        ("top_k_least", top_k_of(least), 1),
        ("bin_select", lambda: ops.bin_select(memory, gradient, whole, BIN), n),
        ("sample", lambda: ops.sample(memory, gradient, [(0, 101, sampled.size)], sampled), sampled.size),
        ("random_strata", lambda: ops.random_strata(n, whole, [n // 100], Key(1, 1, 1)), n // 100),
        ("masked_update", lambda: ops.masked_update(kept, gradient, indices, values, 0.1), n),
    ]


def places(ops: Ops, n: int) -> list[Case]:
    """Access at one place per chunk, each a cache miss: a step passes over whole vectors between two of these."""
    dense = np.ones(FAR * n, np.float32)
    memory, gradient = np.split(dense, 2)
    indices = np.arange(0, dense.size, CHUNK, dtype=np.int32)
    near = indices[: indices.size // 2]
    values = np.empty(indices.size, np.float32)
    return [
        ("gather", lambda: ops.gather(memory, gradient, near, values[: near.size]), near.size),
        ("scatter", lambda: ops.scatter(dense, indices, values), indices.size),
        ("scatter_add", lambda: ops.scatter_add(dense, indices, values), indices.size),
        ("clear", lambda: ops.clear(dense, indices), indices.size),
    ]


def lists(ops: Ops, n: int, generator: np.random.Generator) -> list[Case]:
    """Operations on index lists of a hundredth of the elements."""
    few = np.flatnonzero(generator.random(n) < 0.01).astype(np.int32)
    other = np.flatnonzero(generator.random(n) < 0.01).astype(np.int32)
    width = ops.largest_gap(few).bit_length()
    packed, bitmap = np.empty(-(-few.size * width // 8), np.uint8), np.empty(-(-n // 8), np.uint8)
    back = np.empty_like(few)
    ops.pack_gaps(few, width, packed)
    ops.pack_bitmap(few, n, bitmap)
    terms = [few.astype(np.float32), other.astype(np.float32)]
    return [
        ("add_lists", lambda: ops.add_lists([few, other], terms, n), few.size + other.size),
        ("union", lambda: ops.union([few, other], n), few.size + other.size),
        ("common", lambda: ops.common(few, other), few.size + other.size),
        ("largest_gap", lambda: ops.largest_gap(few), few.size),
        ("pack_gaps", lambda: ops.pack_gaps(few, width, packed), few.size),
        ("unpack_gaps", lambda: ops.unpack_gaps(packed, width, n, back), few.size),
        ("pack_bitmap", lambda: ops.pack_bitmap(few, n, bitmap), few.size),
        ("unpack_bitmap", lambda: ops.unpack_bitmap(bitmap, n, back), bitmap.size),
    ]


def codes(ops: Ops, gradient: Array) -> list[Case]:
    """Encoding values in few bits and decoding them."""
    n, key = gradient.size, Key(1, 1, 1)
    bounds = np.arange(0, n + 1, BUCKET)
    scales, negative, positive = (np.ones(bounds.size - 1, np.float32) for _ in range(3))
    bits, levels, out = np.empty(n // 8, np.uint8), np.empty(n // 2, np.uint8), np.empty_like(gradient)
    whole, blocks = np.empty(n, np.int8), np.empty(block_codes_nbytes(n, "int8"), np.uint8)
    return [
        ("group_norms", lambda: ops.group_norms(gradient, bounds, "l2", scales), n),
        ("group_means", lambda: ops.group_means(gradient, bounds, negative, positive), n),
        ("pack_signs", lambda: ops.pack_signs(gradient, bits), n),
        ("unpack_signs", lambda: ops.unpack_signs(bits, bounds, negative, positive, out), n),
        ("pack_levels", lambda: ops.pack_levels(gradient, bounds, scales, 7, 4, 0, key, levels), n),
        ("unpack_levels", lambda: ops.unpack_levels(levels, bounds, scales, 7, 4, out), n),
        ("quantise", lambda: ops.quantise(gradient, 0.1, 0, key, whole), n),
        ("dequantise", lambda: ops.dequantise(whole, 0.1, out), n),
        ("encode_blocks", lambda: ops.encode_blocks(gradient, "int8", blocks), n),
        ("decode_blocks", lambda: ops.decode_blocks(blocks, "int8", out), n),
    ]


def bounded_codes(ops: Ops, n: int) -> list[Case]:
    """Error-bounded codes of a smooth field, about six times shorter than the values."""
    x, bound = np.sin(np.arange(n) / 20).astype(np.float32), 1e-4
    codes, total = np.empty((2, bounded_capacity(n, x.dtype)), np.uint8)
    stream = codes[: ops.encode_bounded(x, bound, 2, codes)[0]]
    return [
        ("encode_bounded", lambda: ops.encode_bounded(x, bound, 2, total), n),
        ("sum_bounded", lambda: ops.sum_bounded([stream] * 2, n, x.dtype, bound, total), 2 * n),
        ("decode_bounded", lambda: ops.decode_bounded(stream, bound, 1, x), n),
    ]


def products(ops: Ops, memory: Array, gradient: Array) -> list[Case]:
    """Products of PowerSGD, for a square matrix and MATRIX_RANK columns."""
    rows = int(gradient.size**0.5)
    n = rows * rows
    memory, gradient, out = memory[:n], gradient[:n], np.empty(n, np.float32)
    p, q = (np.ones(rows * MATRIX_RANK, np.float32) for _ in range(2))
    matrices = [(0, n, rows, MATRIX_RANK)]
    ops.project(memory, gradient, matrices, q, p)
    return [
        ("project", lambda: ops.project(memory, gradient, matrices, q, p), n),
        ("project_back", lambda: ops.project_back(memory, gradient, matrices, p, q), n),
        ("low_rank_product", lambda: ops.low_rank_product(p, q, matrices, out), n),
        ("orthogonalise", lambda: ops.orthogonalise(p, matrices), p.size),
    ]


def sketches(ops: Ops, memory: Array, gradient: Array) -> list[Case]:
    """Sketches; the cost is divided by the elements times the passes of a straightforward loop. These take long."""
    memory, gradient = memory[: memory.size // 8], gradient[: gradient.size // 8]
    n, columns = gradient.size, 1 << (gradient.size // 1000 * 8).bit_length()
    table, out = np.zeros(SKETCH_ROWS * columns, np.float32), np.empty(n, np.float32)
    rows = -(-n // ROW)
    products, few = np.empty(rows * WIDTH, np.float32), np.arange(0, rows, 100, dtype=np.int32)
    return [
        ("count_sketch", lambda: ops.count_sketch(memory, gradient, SKETCH_ROWS, columns, 1, table), SKETCH_ROWS * n),
        ("sketch_estimate", lambda: ops.sketch_estimate(table, SKETCH_ROWS, columns, 1, out), SKETCH_ROWS * n),
        ("project_rows", lambda: ops.project_rows(memory, gradient, [(0, n)], ROW, WIDTH, 1, products), WIDTH * n),
        ("expand_rows", lambda: ops.expand_rows(few, ROW, [(0, n)], n), ROW * few.size),
    ]

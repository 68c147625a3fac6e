"""Codecs, conversions, random numbers, sketches and products on a team of threads: the bits of one thread."""

from __future__ import annotations

import numpy as np
import pytest
from test_threads import LENGTHS, PART, same_for_every_team, team  # noqa: F401

from mpicomp.errors import InvalidArgument
from mpicomp.ops import cpu
from mpicomp.ops.arguments import HEAD, Key
from mpicomp.ops.block_codes import FORMATS, block_codes_nbytes

KEY = Key(2**40 + 1, 2, 3)
WIDTHS = ((2, 1), (4, 7), (8, 127), (16, 200))  # width, levels


@pytest.fixture(params=[np.float32, np.float64])
def x(request, rng):
    return rng.standard_normal(int(rng.choice(LENGTHS))).astype(request.param)


def groupings(rng, n: int):
    """Groups of 512, a few long ones, one, and any, empty ones among them."""
    yield np.int64([*range(0, n, 512), n])
    yield np.int64([0, n // 3, n // 3 + 5, n])
    yield np.int64([0, n])
    yield np.sort(np.int64([0, 0, n, n, *[min(n, PART)] * 2, *rng.integers(n + 1, size=99)]))


def test_groups(team, rng, x):  # noqa: F811
    for bounds in groupings(rng, x.size):
        def call(bounds=bounds):
            for kind in ("l2", "max", "mean"):
                out = np.empty(bounds.size - 1, x.dtype)
                cpu.group_norms(x, bounds, kind, out)
                yield out
            low, high = np.empty((2, bounds.size - 1), x.dtype)
            cpu.group_means(x, bounds, low, high)
            yield from (low, high)

        same_for_every_team(team, lambda call=call: list(call()))


def test_codes(team, rng, x):  # noqa: F811
    n, dtype = x.size, x.dtype
    for bounds in groupings(rng, n):
        scales = rng.random(bounds.size - 1).astype(dtype) + 3

        def call(bounds=bounds, scales=scales):
            coded, out = [], np.empty_like(x)
            signs, message, natural = (np.empty(size, np.uint8) for size in ((n + 7) // 8, n + HEAD.itemsize, n))
            cpu.pack_signs(x, signs)
            coded.append(("unpack_signs", {"packed": signs, "bounds": bounds, "negative": None, "positive": scales}))
            for width, levels in WIDTHS:
                packed = np.empty((n * width + 7) // 8, np.uint8)
                cpu.pack_levels(x, bounds, scales, levels, width, 7, KEY, packed)
                coded.append(("unpack_levels", {"packed": packed, "bounds": bounds, "scales": scales,
                                                "levels": levels, "width": width}))
            cpu.encode_natural(x, np.int64([0, n]), 7, KEY, message)
            coded.append(("decode_natural", {"message": message, "known": True}))
            cpu.pack_natural(x, 5, 7, KEY, natural)
            coded.append(("unpack_natural", {"packed": natural, "top": 5}))
            for key in (None, KEY):
                codes = np.empty(n, np.int16)
                cpu.quantise(x, 0.01, 7, key, codes)
                coded.append(("dequantise", {"codes": codes, "unit": 0.01}))
                for format in FORMATS:
                    blocks = np.empty(block_codes_nbytes(n, format), np.uint8)
                    cpu.encode_blocks(x, format, blocks, key, 512)
                    coded.append(("decode_blocks", {"codes": blocks, "format": format}))
            for operation, arguments in coded:
                yield from (one for one in arguments.values() if isinstance(one, np.ndarray))
                getattr(cpu, operation)(**arguments, out=out)
                yield out.copy()
            values = [cpu.coded(*one, n, np.dtype(dtype)) for one in coded]
            cpu.coded_mean([*values, x], 1 / 3, x, out)
            yield out
            for one in values:
                memory, first = x[: n // 2].copy(), n // 16 * 8
                cpu.coded_update(memory, x[n // 2 : 2 * (n // 2)].copy(), one, min(first, n - n // 2) // 8 * 8, 0.3)
                yield memory

        same_for_every_team(team, lambda call=call: list(call()))


def test_codes_that_do_not_fit(team, rng):  # noqa: F811
    x = rng.standard_normal(9 * PART).astype(np.float32)
    x[rng.integers(x.size)] = 1e9
    for threads in (1, 3):
        team(threads)
        with pytest.raises(InvalidArgument, match="codes must be at most 127"):
            cpu.quantise(x, 1.0, 0, KEY, np.empty(x.size, np.int8))
        with pytest.raises(InvalidArgument, match="magnitudes must be at most"):
            cpu.pack_natural(x, 3, 0, KEY, np.empty(x.size, np.uint8))


def test_halves_and_random_numbers(team, rng):  # noqa: F811
    x = rng.standard_normal(LENGTHS[-1]).astype(np.float32)

    def call():
        for kind in ("float16", "bfloat16"):
            half, back = np.empty(x.size, np.uint16), np.ones_like(x)
            cpu.narrow(half, x, kind)
            yield half
            cpu.add_widened(back, half, kind)
            yield back.copy()
            cpu.widen(back, half, kind)
            yield back
        yield cpu.random_words(x.size, 3, KEY)
        yield cpu.uniform(x.size, 2, KEY)

    same_for_every_team(team, lambda: list(call()))


@pytest.mark.parametrize("has_memory", [True, False])
def test_sketches(team, x, has_memory):  # noqa: F811
    memory = x[::-1].copy() if has_memory else None

    def call():
        for rows, columns in ((1, 1024), (5, 4096), (15, 64)):
            table, out = np.empty(rows * columns, x.dtype), np.empty_like(x)
            cpu.count_sketch(memory, x, rows, columns, 9, table)
            cpu.sketch_estimate(table, rows, columns, 9, out)
            yield from (table, out)
        for row, width in ((1000, 4), (33, 7), (x.size + 1, 1)):
            out = np.empty(-(-x.size // row) * width, x.dtype)
            cpu.project_rows(memory, x, [(0, x.size)], row, width, 9, out)
            yield out

    same_for_every_team(team, lambda: list(call()))


@pytest.mark.parametrize("rows", [1, 67, 512, 4097])
@pytest.mark.parametrize("rank", [1, 4, 7])
def test_products(team, rng, rows, rank):  # noqa: F811
    columns = 5 * PART // rows + 3
    memory, grad = rng.standard_normal((2, rows * columns)).astype(np.float32)
    p, q = rng.standard_normal(rows * rank).astype(np.float32), rng.standard_normal(columns * rank).astype(np.float32)
    matrices = [(0, grad.size, rows, rank)]

    def call():
        left, right, out = np.empty_like(p), np.empty_like(q), np.empty_like(grad)
        cpu.project(memory, grad, matrices, q, left)
        cpu.project_back(memory, grad, matrices, p, right)
        cpu.low_rank_product(p, q, matrices, out)
        yield from (left, right, out)

    same_for_every_team(team, lambda: list(call()))

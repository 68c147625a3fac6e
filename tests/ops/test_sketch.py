"""Count sketches, medians of what they say, random projections of rows, and the elements of rows."""

import numpy as np
import pytest
from arrays import INDICES, REALS, SIZES, assert_same, vector, with_specials
from hypothesis import given, settings
from hypothesis import strategies as st
from test_refusals import refuse

from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.ops import _cpu, cpu, oracle

SEEDS = (0, 7, -1, 2**63 + 11, 2**64 + 5)


def integers(rng, n, dtype):
    """Whose sums are exact in any order."""
    return rng.integers(-9, 10, n).astype(dtype)


def both(name, shape, dtype, *before):
    """A function of an ops module that fills an output array of `shape`, which holds rubbish before."""

    def run(ops, *after):
        out = np.full(shape, 7, dtype)
        getattr(ops, name)(*before, *after, out)
        return out

    return run


# ---- count sketch

@pytest.mark.parametrize("dtype", REALS)
def test_count_sketch_of_integers(ops, rng, dtype):
    for n in SIZES:
        memory, grad, seed = integers(rng, n, dtype), integers(rng, n, dtype), int(rng.choice(SEEDS[:3]))
        for rows, columns in ((1, 1), (3, 64), (5, 1024), (15, 2)):
            for m in (None, memory):
                run = both("count_sketch", rows * columns, dtype, m, grad, rows, columns, seed)
                assert_same(run(ops), run(oracle))


@pytest.mark.parametrize("dtype", REALS)
def test_count_sketch_of_any_numbers(ops, rng, dtype):
    memory, grad = rng.standard_normal((2, 4099)).astype(dtype)
    run = both("count_sketch", 5 * 128, dtype, memory, grad, 5, 128, 3)
    np.testing.assert_allclose(run(ops), run(oracle), rtol=0, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", REALS)
def test_count_sketch_keeps_what_is_not_finite(ops, rng, dtype):
    grad = np.where(np.arange(1025) % 100 == 0, np.inf, integers(rng, 1025, dtype)).astype(dtype)
    grad[7] = np.nan
    run = both("count_sketch", 3 * 256, dtype, None, grad, 3, 256, 1)
    with np.errstate(invalid="ignore"):
        assert_same(run(ops), run(oracle))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_is_any_integer_modulo_2_to_the_64(ops, rng, seed):
    grad = integers(rng, 100, np.float32)
    run = both("count_sketch", 3 * 64, np.float32, None, grad, 3, 64)
    assert_same(run(ops, seed), run(oracle, seed))
    assert_same(run(ops, seed), run(ops, seed % 2**64))


def test_count_sketch_gives_the_same_bits_on_every_instruction_set(cpu_ops, rng):
    run = both("count_sketch", 5 * 256, np.float32, None, rng.standard_normal(10_007, np.float32), 5, 256, 1)
    here = run(cpu)
    _cpu.force_isa("baseline")
    assert_same(here, run(cpu))


# ---- estimates

@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("rows", range(1, 16))
def test_sketch_estimate(ops, rng, dtype, rows):
    for n, columns in ((0, 4), (1, 1), (255, 64), (257, 1024), (1025, 16)):
        table = vector(rng, rows * columns, dtype)
        for cells in (table, with_specials(rng, table), np.zeros_like(table)):
            run = both("sketch_estimate", n, dtype, cells, rows, columns, 5)
            with np.errstate(invalid="ignore"):
                assert_same(run(ops), run(oracle))


def test_sums_of_sketches_find_the_heaviest(ops, rng):
    """The sum of two ranks' tables gives the largest elements of the sum of their vectors.

    Another element appears as large if it shares five of its nine cells with heavy ones: in one of 10^8 runs.
    """
    n, rows, columns = 5000, 9, 4096
    grads = 0.01 * rng.standard_normal((2, n)).astype(np.float32)
    heavy = np.sort(rng.choice(n, 10, replace=False))
    grads[:, heavy] += 5
    tables = [both("count_sketch", rows * columns, np.float32, None, g, rows, columns, 9)(ops) for g in grads]
    estimate = both("sketch_estimate", n, np.float32, sum(tables), rows, columns, 9)(ops)
    np.testing.assert_array_equal(np.sort(np.argsort(-np.abs(estimate))[:10]), heavy)
    np.testing.assert_allclose(estimate[heavy], grads.sum(0)[heavy], atol=0.5)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (16, 4), (-1, 4), (3, 0), (3, 6), (3, -4)])
def test_sketch_shapes(ops, rows, columns):
    match = rf"a sketch must have 1 to 15 rows and 2\^m columns, got {rows} and {columns}"
    vectors = np.ones(10, np.float32), np.ones(12, np.float32)
    refuse(lambda g, t: ops.count_sketch(None, g, rows, columns, 0, t), *vectors, match=match)
    refuse(lambda g, t: ops.sketch_estimate(t, rows, columns, 0, g), *vectors, match=match)


def test_tables_of_another_size_or_kind(ops):
    grad, out = np.ones(10, np.float32), np.ones(10, np.float32)
    for size in (0, 11, 13, 16):
        match = f"table must have 3 x 4 elements, got {size}"
        refuse(lambda t: ops.count_sketch(None, grad, 3, 4, 0, t), np.ones(size, np.float32), match=match)
        refuse(lambda t: ops.sketch_estimate(t, 3, 4, 0, out), np.ones(size, np.float32), match=match)
    huge = 2**62  # times 4 is 2^64: nothing must wrap around to a table of no elements
    refuse(lambda t: ops.count_sketch(None, grad, 4, huge, 0, t), np.ones(0, np.float32), match="table must have 4 x")
    match = "table must be of dtype float32, got float64"
    refuse(lambda t: ops.count_sketch(None, grad, 3, 4, 0, t), np.ones(12), match=match)
    match = "out must be of dtype float32, got float64"
    refuse(lambda o: ops.sketch_estimate(np.ones(12, np.float32), 3, 4, 0, o), np.ones(10), match=match)
    match = "memory must have 10 elements, got 9"
    arrays = np.ones(9, np.float32), np.ones(12, np.float32)
    refuse(lambda m, t: ops.count_sketch(m, grad, 3, 4, 0, t), *arrays, match=match)


def test_a_seed_that_is_no_integer(cpu_ops):
    with pytest.raises(TypeError):
        cpu_ops.count_sketch(None, np.ones(3, np.float32), 1, 4, 0.5, np.ones(4, np.float32))


# ---- rows

@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("width", [1, 3, 8, 13, 64])
def test_project_rows_of_integers(ops, rng, dtype, width):
    for n in (0, 1, 15, 16, 17, 113, 1025):
        memory, grad = integers(rng, n, dtype), integers(rng, n, dtype)
        for row in (1, 7, 16, 33, 112, 1024, 5000):
            if row < 16 and n > 120:
                continue  # the emulator takes a warp a row
            for m in (None, memory):
                run = both("project_rows", -(-n // row) * width, dtype, m, grad, [(0, n)], row, width,
                           int(rng.choice(SEEDS[:3])))
                assert_same(run(ops), run(oracle))


@pytest.mark.parametrize("dtype", REALS)
def test_project_rows_of_any_numbers(ops, rng, dtype):
    memory, grad = rng.standard_normal((2, 20_000)).astype(dtype)
    for row in (100, 20_000):
        run = both("project_rows", 20_000 // row * 4, dtype, memory, grad, [(0, 20_000)], row, 4, 1)
        tolerance = 8 * row**0.5 * np.finfo(dtype).eps * row**0.5
        np.testing.assert_allclose(run(ops), run(oracle), rtol=0, atol=tolerance)


def test_project_rows_of_very_long_rows(cpu_ops, rng):
    """More columns of signs than are kept at a time."""
    grad, whole = integers(rng, 150_001, np.float32), [(0, 150_001)]
    for row, width in ((60_000, 3), (150_001, 1), (1 << 62, 2)):
        run = both("project_rows", -(-len(grad) // row) * width, np.float32, None, grad, whole, row, width, 1)
        if row < len(grad) * 2:
            assert_same(run(cpu_ops), run(oracle))
        else:
            same = both("project_rows", width, np.float32, None, grad, whole, len(grad), width, 1)
            assert_same(run(cpu_ops), same(oracle))


@pytest.mark.parametrize(("row", "width"), [(0, 4), (-3, 4), (4, 0), (4, 65), (4, -1)])
def test_project_rows_refuses(ops, row, width):
    match = rf"row must be at least 1 and width in \[1, 64\], got {row} and {width}"
    refuse(lambda g, o: ops.project_rows(None, g, [(0, g.size)], row, width, 0, o), *np.ones((2, 8), np.float32),
           match=match)


def test_project_rows_needs_a_fitting_array(ops):
    grad = np.ones(9, np.float32)
    refuse(lambda o: ops.project_rows(None, grad, [(0, grad.size)], 4, 2, 0, o), np.ones(5, np.float32),
           match="out must have 6 elements")
    strided = np.ones(12, np.float32)[::2]
    refuse(lambda o: ops.project_rows(None, grad, [(0, grad.size)], 4, 2, 0, o), strided, match="out must be contig",
           error=BufferRefused)


@pytest.mark.parametrize("dtype", INDICES)
def test_expand_rows(ops, rng, dtype):
    for n in (0, 1, 16, 100, 1025):
        for row in (1, 3, 16, 100, 2000):
            count = -(-n // row)
            every, some = np.arange(count, dtype=dtype), np.flatnonzero(rng.random(count) < 0.3).astype(dtype)
            for rows in (every, some, every[:0], every[-1:]):
                assert_same(ops.expand_rows(rows, row, [(0, n)], n), oracle.expand_rows(rows, row, [(0, n)], n))


def test_expand_rows_with_wide_indices(ops, wide_indices):
    found = ops.expand_rows(np.int32([0, 2]), 4, [(0, 10)], 10)
    assert_same(found, np.int64([0, 1, 2, 3, 8, 9]))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 300), row=st.integers(1, 400), data=st.data())
def test_expand_rows_is_the_definition(n, row, data):
    rows = sorted(data.draw(st.sets(st.integers(0, -(-n // row) - 1)) if n else st.just(set())))
    expected = [i for i in range(n) if i // row in rows]
    assert cpu.expand_rows(np.int32(rows), row, [(0, n)], n).tolist() == expected


@pytest.mark.parametrize("dtype", INDICES)
@pytest.mark.parametrize("bad", [-1, 3, 2**31 - 1, -(2**31)])
def test_rows_outside(ops, dtype, bad):
    refuse(lambda r: ops.expand_rows(r, 4, [(0, 10)], 10), np.array([bad], dtype),
           match=rf"rows must be in \[0, 3\), got {bad}")


def test_expand_rows_refuses(ops):
    refuse(lambda r: ops.expand_rows(r, 4, [(0, 10)], 10), np.int32([1, 1]), match="rows must be strictly ascending")
    refuse(lambda r: ops.expand_rows(r, 4, [(0, 10)], 10), np.int32([2, 1]), match="rows must be strictly ascending")
    refuse(lambda r: ops.expand_rows(r, 4, [(0, 0)], 0), np.int32([0]), match=r"rows must be in \[0, 0\), got 0")
    refuse(lambda r: ops.expand_rows(r, 0, [(0, 10)], 10), np.int32([0]),
           match="row must be at least 1 and n at least 0, got 0")
    refuse(lambda r: ops.expand_rows(r, 1, [(0, -1)], -1), np.int32([0]), match="n at least 0, got 1 and -1")
    refuse(lambda r: ops.expand_rows(r, 4, [(0, 10)], 10), np.float32([0]), match="rows must be of dtype int32, int64")
    with pytest.raises(InvalidArgument):
        oracle.expand_rows(np.int32([3]), 4, [(0, 10)], 10)

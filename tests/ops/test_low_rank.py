"""Products with matrices of few columns, and orthonormal columns."""

import numpy as np
import pytest
from arrays import REALS, assert_same
from on_gpu import OnGPU
from test_refusals import refuse

from mpicomp.errors import BufferRefused
from mpicomp.ops import _cpu, cpu, oracle
from mpicomp.ops.gpu.cuda_runtime import RANKS as RANKS_OF_KERNELS

# rows, columns: around registers, cache lines and groups of rows; then more columns than are kept at a time
WHOLE = [(0, 12, 3, 2)]  # one matrix of 12 elements
SHAPES = ((1, 1), (1, 16), (2, 15), (3, 17), (4, 64), (5, 147), (7, 33), (33, 7), (64, 0), (130, 100))
WIDE = ((5, 33_000), (3, 9001))
RANKS = (1, 2, 3, 4, 5, 7, 8, 33)


def integers(rng, n, dtype):
    """Whose products add up exactly in any order."""
    return rng.integers(-5, 6, n).astype(dtype)


def normal(rng, n, dtype):
    return rng.standard_normal(n).astype(dtype)


def products(ops, memory, grad, rows, p, q):
    """Results of the three products, in arrays that hold rubbish before."""
    left, right, out = np.full_like(p, 7), np.full_like(q, 7), np.full_like(grad, 7)
    ops.project(memory, grad, [(0, grad.size, rows, left.size // rows)], q, left)
    ops.project_back(memory, grad, [(0, grad.size, rows, p.size // rows)], p, right)
    ops.low_rank_product(p, q, [(0, out.size, rows, p.size // rows)], out)
    return left, right, out


def matrices(rng, kind, rows, columns, rank, dtype):
    return (kind(rng, n, dtype) for n in (rows * columns, rows * columns, rows * rank, columns * rank))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("rank", RANKS)
def test_products_of_integers(ops, rng, dtype, rank):
    for rows, columns in (*SHAPES, *WIDE):
        memory, grad, p, q = matrices(rng, integers, rows, columns, rank, dtype)
        for m in (None, memory):
            for actual, expected in zip(
                products(ops, m, grad, rows, p, q), products(oracle, m, grad, rows, p, q), strict=True
            ):
                np.testing.assert_array_equal(actual, expected)  # cuBLAS gives zeros of either sign


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("rank", [1, 4, 32])
def test_products_of_any_numbers(ops, rng, dtype, rank):
    for rows, columns in (*SHAPES, *WIDE):
        arrays = list(matrices(rng, normal, rows, columns, rank, dtype))
        memory, grad, p, q = arrays
        exact = products(oracle, *(x.astype(np.float64) for x in arrays[:2]), rows, *map(np.float64, arrays[2:]))
        terms = columns, rows, rank
        for actual, expected, count in zip(products(ops, memory, grad, rows, p, q), exact, terms, strict=True):
            eps = np.finfo(dtype).eps  # the sum of memory and gradient is rounded, and so is the result
            np.testing.assert_allclose(actual, expected, rtol=eps, atol=8 * eps * (1 + count))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row_and_column(ops, rng, bad):
    rows, columns, rank = 9, 37, 3
    _, grad, p, q = matrices(rng, integers, rows, columns, rank, np.float32)
    p, q = np.abs(p) + 1, np.abs(q) + 1
    grad[4 * columns + 36] = bad
    left, right, _ = products(ops, None, grad, rows, p, q)
    assert np.flatnonzero(~np.isfinite(left.reshape(rows, rank)).all(axis=1)).tolist() == [4]
    assert np.flatnonzero(~np.isfinite(right.reshape(columns, rank)).all(axis=1)).tolist() == [36]


@pytest.mark.parametrize("dtype", REALS)
def test_every_instruction_set_gives_the_same_bits(cpu_ops, rng, dtype):
    for rows, columns, rank in ((9, 147, 7), (5, 33_000, 4), (40, 40, 32)):
        memory, grad, p, q = matrices(rng, normal, rows, columns, rank, dtype)
        here = products(cpu, memory, grad, rows, p, q)
        orthonormal = p.copy()
        if rank <= rows:
            cpu.orthogonalise(orthonormal, [(0, 0, rows, orthonormal.size // rows)])
        isa = cpu.isa()
        _cpu.force_isa("baseline")
        for actual, expected in zip(here, products(cpu, memory, grad, rows, p, q), strict=True):
            assert_same(actual, expected)
        again = p.copy()
        if rank <= rows:
            cpu.orthogonalise(again, [(0, 0, rows, again.size // rows)])
        assert_same(orthonormal, again)
        _cpu.force_isa(isa)


def test_products_refuse(ops):
    grad, p, q = np.ones(12, np.float32), np.ones(6, np.float32), np.ones(8, np.float32)
    for call in (ops.project, ops.project_back):

        def run(g, p, q, matrices, call=call):
            call(None, g, matrices, *((q, p) if call is ops.project else (p, q)))

        wrong = "matrices must lie in"
        refuse(lambda *a: run(*a, [(0, 12, 0, 2)]), grad, p, q, match=wrong)
        refuse(lambda *a: run(*a, [(0, 12, -3, 2)]), grad, p, q, match=wrong)
        refuse(lambda *a: run(*a, [(0, 12, 4, 2)]), grad, p, q, match="p must have 8 elements, got 6")
        refuse(lambda *a: run(*a, [(0, 12, 3, 0)]), grad, p[:0], q, match=wrong)
        refuse(lambda *a: run(*a, [(0, 11, 3, 2)]), grad[:11], p, q, match=wrong)
        refuse(lambda *a: run(*a, WHOLE), grad, p, q[:7], match="q must have 8 elements, got 7")
        refuse(lambda *a: run(*a, WHOLE), grad, p.astype(np.float64), q,
               match="p must be of dtype float32, got float64")
        refuse(lambda *a: run(*a, WHOLE), grad, p, q.astype(np.int32), match="q must be of dtype float32, got int32")
        strided = np.ones(12, np.float32)[::2]
        refuse(lambda *a: run(*a, WHOLE), grad, strided, q, match="p must be contiguous", error=BufferRefused)
    refuse(lambda m: ops.project(m, grad, WHOLE, q, p), grad[:5], match="memory must have 12 elements, got 5")


def test_low_rank_product_refuses(ops):
    out, p, q = np.ones(12, np.float32), np.ones(6, np.float32), np.ones(8, np.float32)
    refuse(lambda *a: ops.low_rank_product(*a[:2], [(0, 12, 0, 2)], a[2]), p, q, out, match="matrices must lie in")
    refuse(lambda *a: ops.low_rank_product(*a[:2], [(0, 11, 3, 2)], a[2]), p, q, out[:11], match="matrices must lie in")
    refuse(lambda *a: ops.low_rank_product(*a[:2], WHOLE, a[2]), p, q[:6], out, match="q must have 8 elements, got 6")
    refuse(lambda *a: ops.low_rank_product(*a[:2], [(0, 12, 6, 2)], a[2]), p, q, out, match="p must have 12 elements")


# ---- many matrices in one vector

def some_matrices(rng, most):
    """Matrices with gaps between them, of ranks up to ``most``; how long the vector is, and all p and q."""
    found, at = [], int(rng.integers(3))
    for rows, columns in (*SHAPES, (600, 20), (40, 130), (1, 9001)):
        rank = int(rng.integers(1, min(most, rows) + 1))
        found.append((at, at + rows * columns, rows, rank))
        at += rows * columns + int(rng.integers(3)) * 4 + int(rng.integers(2))
    sizes = [sum(rows * rank for *_, rows, rank in found), sum((stop - start) // rows * rank
                                                                for start, stop, rows, rank in found)]
    return found, at, *sizes


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("most", [1, 3, 8, 16, 20])
def test_products_of_many_matrices(ops, rng, dtype, most):
    found, n, of_p, of_q = some_matrices(rng, most)
    grad, memory, p, q = (integers(rng, size, dtype) for size in (n, n, of_p, of_q))
    for m in (None, memory):
        results = []
        for one in (ops, oracle):
            left, right, out = np.full_like(p, 7), np.full_like(q, 7), np.full_like(grad, 7)
            one.project(m, grad, found, q, left)
            one.project_back(m, grad, found, p, right)
            one.low_rank_product(p, q, found, out)  # between the matrices it stays 7
            results.append((left, right, out))
        for actual, expected in zip(*results, strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("most", [2, 16, 20])
def test_many_matrices_become_orthonormal_as_each_alone(ops, rng, most):
    found, _, of_p, _ = some_matrices(rng, most)
    p = rng.standard_normal(of_p)
    together, at = p.copy(), 0
    ops.orthogonalise(together, found)
    for *_, rows, rank in found:
        here = slice(at, at + rows * rank)
        np.testing.assert_allclose(together[here].reshape(rows, rank), orthonormal(ops, p[here].reshape(rows, rank)),
                                   rtol=0, atol=1e-12 * np.linalg.cond(p[here].reshape(rows, rank)) ** 2)
        assert_orthonormal(together[here].reshape(rows, rank))
        at += rows * rank


def test_many_matrices_refuse(ops):
    grad, p, q = (np.ones(n, np.float32) for n in (12, 6, 8))
    for matrix in ((0, 13, 1, 1), (5, 4, 1, 1), (-1, 11, 3, 2), (0, 12, 0, 2), (0, 12, 3, 0), (0, 11, 3, 2)):
        refuse(lambda g, p, q, m=matrix: ops.project(None, g, [m], q, p), grad, p, q, match="matrices must lie in")
    whole = [(0, 12, 3, 2)]
    for call in (lambda g, p, q: ops.project(None, g, whole, q, p),
                 lambda g, p, q: ops.project_back(None, g, whole, p, q),
                 lambda g, p, q: ops.low_rank_product(p, q, whole, g)):
        refuse(call, grad, p[:5], q, match="p must have 6 elements, got 5")
        refuse(call, grad, p, q[:7], match="q must have 8 elements, got 7")
    refuse(lambda p: ops.orthogonalise(p, whole), p[:5], match="p must have 6 elements, got 5")
    refuse(lambda p: ops.orthogonalise(p, [(0, 3, 1, 2)]), p[:2], match="at most as many columns as rows")
    ops.orthogonalise(p[:0], [])  # no matrices, nothing to do


# ---- orthonormal columns

ROWS = (1, 2, 15, 16, 17, 64, 333)
COLUMNS = (1, 2, 3, 4, 5, 8, 16, 31, 32)


def orthonormal(ops, matrix):
    p = matrix.ravel().copy()
    ops.orthogonalise(p, [(0, 0, len(matrix), p.size // len(matrix))])
    assert p.dtype == matrix.dtype
    return p.reshape(matrix.shape)


def assert_orthonormal(q):
    q = q.astype(np.float64)
    np.testing.assert_allclose(q.T @ q, np.eye(q.shape[1]), rtol=0, atol=1e-6)


def assert_spans(q, matrix, tolerance):
    """Every column of the matrix, brought to length 1, lies in the space of q."""
    matrix = matrix.astype(np.float64)
    largest = np.abs(matrix).max(axis=0)
    matrix = matrix / np.where(largest > 0, largest, 1)
    matrix /= np.maximum(np.linalg.norm(matrix, axis=0), 0.5)
    q = q.astype(np.float64)
    np.testing.assert_allclose(q @ (q.T @ matrix), matrix, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", REALS)
def test_orthogonalise_agrees_with_the_oracle(ops, rng, dtype):
    for rows in ROWS:
        for rank in (r for r in COLUMNS if r <= rows):
            matrix = rng.standard_normal((rows, rank)).astype(dtype)
            actual, expected = orthonormal(ops, matrix), orthonormal(oracle, matrix)
            # The last columns of a nearly square matrix may be nearly dependent: rounding moves them by its condition.
            tolerance = np.finfo(dtype).eps * 4 + 1e-15 * np.linalg.cond(matrix.astype(np.float64)) ** 2 * rows
            np.testing.assert_allclose(actual, expected, rtol=0, atol=min(tolerance, 1e-3))
            assert_orthonormal(actual)
            assert_spans(actual, matrix, 1e-5)
            diagonal = np.diag(actual.astype(np.float64).T @ matrix)
            assert (diagonal > -1e-5 * np.abs(matrix).max()).all()


def hard_matrices(rng, rows, rank):
    """Matrices whose columns depend on each other, are zero, or have scales far apart; tolerance of their span."""
    plain = rng.standard_normal((rows, rank))
    first, noise = plain[:, :1], rng.standard_normal((rows, rank))
    zeros = plain.copy()
    zeros[:, rank // 2] = 0
    return {
        "zero": (np.zeros((rows, rank)), 1e-6),
        "zero column": (zeros, 1e-6),
        "one direction": (first * np.arange(1, rank + 1), 1e-6),
        "half of the rank": (plain[:, : -(-rank // 2)] @ rng.standard_normal((-(-rank // 2), rank)), 1e-5),
        "nearly one direction": (first + 1e-6 * noise, 1e-5),
        "huge": (1e37 * np.clip(plain, -3, 3), 1e-6),
        "tiny": (1e-40 * plain, 1e-6),
        "scales far apart": (plain * 10.0 ** np.linspace(-35, 35, rank), 1e-6),
        "small integers": (rng.integers(-1, 2, (rows, rank)), 1e-6),
        "unit columns": (np.eye(rows, rank)[:, ::-1] * -1, 1e-6),
        "graded rows": (plain * 10.0 ** -np.linspace(0, 30, rows)[:, None], 1e-6),
    }


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("rank", [1, 2, 4, 7, 16, 32])
def test_hard_matrices_become_orthonormal(ops, rng, dtype, rank):
    for rows in (rank, rank + 1, 100):
        for name, (matrix, tolerance) in hard_matrices(rng, rows, rank).items():
            matrix = matrix.astype(dtype)
            if isinstance(ops, OnGPU) and rank > max(RANKS_OF_KERNELS):  # CuPy's kernels make denormal numbers zero
                matrix[np.abs(matrix) < np.finfo(dtype).tiny] = 0
            q = orthonormal(ops, matrix)
            print(name, rows)
            assert_orthonormal(q)
            assert_spans(q, matrix, tolerance)
            assert_same(q, orthonormal(ops, matrix))


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e-320])
def test_scales_whose_squares_no_double_holds(ops, rng, scale):
    matrix = np.clip(rng.standard_normal((50, 6)), -3, 3)
    scaled = matrix * np.array([1, scale, scale, 1, scale, 1])
    q = orthonormal(ops, scaled)
    assert_orthonormal(q)
    rounded = scaled / np.abs(scaled).max(axis=0)  # denormal numbers keep few digits
    np.testing.assert_allclose(q, orthonormal(oracle, rounded), rtol=0, atol=1e-12)


def test_zero_matrix_becomes_unit_columns(ops):
    np.testing.assert_array_equal(orthonormal(ops, np.zeros((5, 3), np.float32)), np.eye(5, 3))


def test_nan_stays_visible(cpu_ops, rng):
    matrix = rng.standard_normal((20, 3)).astype(np.float32)
    matrix[4, 1] = np.nan
    assert np.isnan(orthonormal(cpu_ops, matrix)).any()


def test_orthogonalise_refuses(ops):
    p = np.ones(12, np.float32)
    refuse(lambda p: ops.orthogonalise(p, [(0, 0, 3, p.size // 3)]), p,
           match=r"at most as many columns as rows \(3\) can be .* got 4")
    refuse(lambda p: ops.orthogonalise(p, [(0, 0, 5, 2)]), p, match="p must have 10 elements, got 12")
    refuse(lambda p: ops.orthogonalise(p, [(0, 0, 0, 2)]), p, match="matrices must lie in")
    refuse(lambda p: ops.orthogonalise(p, [(0, 0, 4, 0)]), p[:0], match="matrices must lie in")
    refuse(lambda p: ops.orthogonalise(p, [(0, 0, 4, 3)]), np.ones(12, np.int32),
           match="p must be of dtype float32, float64")

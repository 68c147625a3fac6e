"""Selections that begin anew in each of many tensors, made in as many launches as for one."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import INDICES, REALS, assert_same, vector, with_specials
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.arguments import Key
from mpicomp.ops.gpu import cuda_runtime

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
LENGTHS = (0, 17, 9000)


def cut(rng, n, count=12):
    """Neighbouring spans of fresh lengths, some of them empty; they need not cover the vector."""
    cuts = np.sort(rng.integers(0, n + 1, count))
    cuts[5] = cuts[4]
    return [(int(a), int(b)) for a, b in pairwise(cuts)]


def fresh(rng, n, dtype, has_memory):
    return vector(rng, n, dtype) if has_memory else None, with_specials(rng, vector(rng, n, dtype))


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_thresholds(ops, rng, dtype, has_memory):
    """From none that pass to all, with NaN, infinities and ties."""
    for n in LENGTHS:
        memory, grad = fresh(rng, n, dtype, has_memory)
        spans = cut(rng, n)
        lams = rng.choice([0.0, 0.1, 1.0, 2.5, np.inf], len(spans)).tolist()
        found, counts = ops.threshold(memory, grad, spans, lams)
        expected, of_each = oracle.threshold(memory, grad, spans, lams)
        assert_same(found, expected)
        assert counts == of_each
    found, counts = ops.threshold(memory, grad, [(0, n)], [1.0])
    assert_same(found, oracle.threshold(memory, grad, [(0, grad.size)], [1.0])[0])
    assert counts == [found.size]


def test_thresholds_over_many_tiles(ops, rng):
    """Tiles look back over the spans before theirs; few pass, or more than there is room for at first."""
    n = 12 * cuda_runtime.TILE_BYTES // 4
    grad = vector(rng, n, np.float32)
    spans = [(3, 9), (9, n // 2 + 1), (n // 2 + 1, n // 2 + 1), (n // 2 + 1, n - 1)]
    for lams in ([0.0, 3.5, 0.0, 3.0], [9.0, 0.0, 1.0, 0.5], [9.0] * 4):
        found, counts = ops.threshold(None, grad, spans, lams)
        expected, of_each = oracle.threshold(None, grad, spans, lams)
        assert_same(found, expected)
        assert counts == of_each


@pytest.mark.parametrize("dtype", REALS)
def test_kth_largest(ops, rng, dtype):
    for n in (12, 3000):
        x = with_specials(rng, vector(rng, n, dtype))
        spans = [(start, stop) for start, stop in cut(rng, n) if stop > start]
        counts = [int(rng.integers(1, stop - start + 1)) for start, stop in spans]
        found, expected = ops.kth_largest(x, spans, counts), oracle.kth_largest(x, spans, counts)
        np.testing.assert_array_equal(found, expected)
        for (start, stop), k, size in zip(spans, counts, found, strict=True):
            least = np.abs(x[start:stop][oracle.top_k(None, x[start:stop], [(0, x[start:stop].size)], [k])])
            assert size == np.fmin.reduce(least) or np.isnan(least).all()
    assert ops.kth_largest(x, [], []) == []


@pytest.mark.parametrize("dtype", REALS)
def test_sorted_magnitudes(ops, rng, dtype):
    for n in (0, 12, 3000):
        x = with_specials(rng, vector(rng, n, dtype))
        spans = cut(rng, n)
        found, expected = ops.sorted_magnitudes(x, spans), oracle.sorted_magnitudes(x, spans)
        for some, others, (start, stop) in zip(found, expected, spans, strict=True):
            assert_same(some, others)
            finite = np.abs(x[start:stop][np.isfinite(x[start:stop])])
            np.testing.assert_array_equal(some.view(dtype)[: finite.size], np.sort(finite))


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_samples(ops, rng, dtype, has_memory):
    for n in LENGTHS:
        memory, grad = fresh(rng, n, dtype, has_memory)
        samples = []
        for start, stop in cut(rng, n):
            stride, first = int(rng.integers(1, 50)), int(rng.integers(start, stop + 1))
            samples.append((first, stride, -(-(stop - first) // stride)))
        values, expected = np.full((2, sum(count for *_, count in samples)), 7, dtype)
        ops.sample(memory, grad, samples, values)
        oracle.sample(memory, grad, samples, expected)
        assert_same(values, expected)


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_bins(ops, rng, dtype, has_memory):
    """They begin anew in each span, whose last may be short."""
    for n in (0, 17, 3000):
        memory, grad = fresh(rng, n, dtype, has_memory)
        spans = cut(rng, n)
        for length in (5, 50, 2**40):
            found = ops.bin_select(memory, grad, spans, length)
            assert_same(found, oracle.bin_select(memory, grad, spans, length))


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_moments(ops, rng, dtype, has_memory):
    """Integers give exactly the oracle's result; any numbers give the same bits as each span alone."""
    for n in LENGTHS:
        spans = cut(rng, n)
        memory, grad = rng.integers(-9, 10, (2, n)).astype(dtype)
        memory = memory if has_memory else None
        for floor in (0.0, 4.0):
            assert ops.moments(memory, grad, spans, floor) == oracle.moments(memory, grad, spans, floor)
        memory, grad = vector(rng, n, dtype) if has_memory else None, vector(rng, n, dtype)
        for floor in (0.0, 1.0):
            found = ops.moments(memory, grad, spans, floor)
            each = [ops.moments(None if memory is None else memory[start:stop].copy(), grad[start:stop].copy(),
                                [(0, grad[start:stop].copy().size)], floor)[0]
                    for start, stop in spans]
            assert found == each
            expected = oracle.moments(memory, grad, spans, floor)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)
    assert ops.moments(memory, grad, [], 0.0) == []


def test_moments_of_spans_longer_than_a_piece(ops, rng):
    """Sums are added in the order of the pieces; a non-finite value affects only its own span."""
    n = 3 * cuda_runtime.MOMENTS_PIECE
    spans = [(0, 1), (1, n - 7), (n - 7, n - 7), (n - 7, n)]
    grad = vector(rng, n, np.float32)
    found = ops.moments(None, grad, spans, 0.0)
    np.testing.assert_allclose(found, oracle.moments(None, grad, spans, 0.0), rtol=1e-12, atol=1e-9)
    grad[n // 2] = rng.choice([np.nan, np.inf, -np.inf])
    spoilt = ops.moments(None, grad, spans, 0.0)
    np.testing.assert_array_equal(spoilt[1], oracle.moments(None, grad, spans, 0.0)[1])
    assert [spoilt[0], *spoilt[2:]] == [found[0], *found[2:]]


@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("dtype", REALS)
def test_projections_of_rows(ops, rng, dtype, has_memory):
    """Rows restart at each span; of any numbers the bits that each span gives by itself."""
    for n in (0, 17, 2000):
        spans = cut(rng, n)
        for row, width in ((7, 3), (64, 4), (5000, 9)):
            rows, seed = sum(-(-(stop - start) // row) for start, stop in spans), int(rng.integers(2**63))
            memory, grad = rng.integers(-9, 10, (2, n)).astype(dtype)
            memory = memory if has_memory else None
            found, expected = np.full((2, rows * width), 7, dtype)
            ops.project_rows(memory, grad, spans, row, width, seed, found)
            oracle.project_rows(memory, grad, spans, row, width, seed, expected)
            assert_same(found, expected)
            memory, grad = fresh(rng, n, dtype, has_memory)
            ops.project_rows(memory, grad, spans, row, width, seed, found)
            at = 0
            for start, stop in spans:
                own = np.full(-(-(stop - start) // row) * width, 7, dtype)
                part = None if memory is None else memory[start:stop].copy()
                ops.project_rows(part, grad[start:stop].copy(), [(0, grad[start:stop].copy().size)], row, width, seed,
                                 own)
                assert_same(found[at : at + own.size], own)
                at += own.size
            assert at == found.size


@pytest.mark.parametrize("index", INDICES)
def test_elements_of_rows(ops, rng, index):
    """Rows are counted through all spans; whichever are wanted, with and without those that are short."""
    for n in (0, 17, 2000):
        spans = cut(rng, n)
        for row in (1, 7, 64, 5000):
            count = sum(-(-(stop - start) // row) for start, stop in spans)
            every = np.arange(count, dtype=index)
            for rows in (every, every[rng.random(count) < 0.3], every[:0], every[-1:]):
                found = ops.expand_rows(rows, row, spans, n)
                assert_same(found, oracle.expand_rows(rows, row, spans, n))
            covered = np.concatenate([np.arange(*span) for span in spans])
            np.testing.assert_array_equal(ops.expand_rows(every, row, spans, n), covered)


def test_strata(ops, rng):
    """A stream a span, as each would be drawn by itself."""
    for n in (20, 5000, 2**33):
        spans = cut(rng, n)
        counts = [int(rng.integers(0, min(stop - start, 600) + 1)) for start, stop in spans]
        key = Key(int(rng.integers(2**63)), int(rng.integers(2**32)), int(rng.integers(2**32 - 20)))
        found = ops.random_strata(n, spans, counts, key)
        assert_same(found, oracle.random_strata(n, spans, counts, key))
        each = [start + np.int64(oracle.random_strata(stop - start, [(0, stop - start)], [k],
                                                      key._replace(worker=key.worker + number)))
                for number, ((start, stop), k) in enumerate(zip(spans, counts, strict=True))]
        np.testing.assert_array_equal(found, np.concatenate(each))


def test_what_is_refused(ops):
    grad, key = np.ones(10, np.float32), Key(1, 2, 2**32 - 1)
    for module in (ops, oracle):
        for call, match in (
            (lambda m: m.threshold(None, grad, [(0, 11)], [1.0]), r"spans must lie in \[0, 10\), got 0 to 11"),
            (lambda m: m.threshold(None, grad, [(0, 4)], []), "a threshold for each of 1 spans, got 0"),
            (lambda m: m.threshold(None, grad, [(0, 4)], [float("nan")]), "lam must be a number >= 0, got nan"),
            (lambda m: m.kth_largest(grad, [(0, 4)], [0]), r"k must be in \[1, 4\], got 0"),
            (lambda m: m.kth_largest(grad, [(0, 4)], [5]), r"k must be in \[1, 4\], got 5"),
            (lambda m: m.sample(None, grad, [(0, 3, 5)], np.zeros(5, np.float32)), "a sample must lie in"),
            (lambda m: m.sample(None, grad, [(0, 3, 2)], np.zeros(5, np.float32)), "values must have 2 elem"),
            (lambda m: m.bin_select(None, grad, [(5, 4)], 3), r"spans must lie in \[0, 10\), got 5 to 4"),
            (lambda m: m.bin_select(None, grad, [(0, 4)], 0), "length must be at least 1, got 0"),
            (lambda m: m.moments(None, grad, [(0, 11)], 0.0), r"spans must lie in \[0, 10\), got 0 to 11"),
            (lambda m: m.moments(None, grad, [(0, 4)], -1.0), r"floor must be a number >= 0, got -1"),
            (lambda m: m.random_strata(10, [(0, 4)], [5], key), r"k must be in \[0, 4\], got 5"),
            (lambda m: m.random_strata(10, [(0, 4), (4, 5)], [1, 1], key), r"worker below 2\^32\), got"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                call(module)
    refuse(lambda g: ops.threshold(None, g, [(0, 1)], [1.0]), np.int32([1]), match="grad must be of dtype float")


@pytest.mark.parametrize("n", [9, 11])
@pytest.mark.parametrize(("name", "arguments"), [
    ("chunk_max", ([(0, 4, 2), (4, 8, 2)], np.zeros(4, np.uint8))),
    ("top_k", ([(0, 4), (4, 8)], [1, 1])),
    ("threshold", ([(0, 4), (4, 8)], [1.0, 1.0])),
    ("bin_select", ([(0, 4), (4, 8)], 2)),
    ("moments", ([(0, 4), (4, 8)], 0.0)),
    ("sample", ([(0, 1, 4)], np.zeros(4, np.float32))),
    ("project_rows", ([(0, 4), (4, 8)], 2, 3, 0, np.zeros(12, np.float32))),
    ("project", ([(0, 4, 2, 1), (4, 8, 2, 1)], np.ones(4, np.float32), np.ones(4, np.float32))),
    ("project_back", ([(0, 4, 2, 1), (4, 8, 2, 1)], np.ones(4, np.float32), np.ones(4, np.float32))),
])  # fmt: skip
def test_a_memory_of_another_length_is_refused(ops, name, arguments, n):
    """Even where every span lies in both."""
    refuse(lambda memory, grad: getattr(ops, name)(memory, grad, *arguments),
           np.ones(n, np.float32), np.ones(10, np.float32), match=f"memory must have 10 elements, got {n}")


@pytest.mark.parametrize(
    ("spans", "row", "width", "match"),
    [
        ([(3, 2)], 4, 2, r"spans must lie in \[0, 10\), got 3 to 2"),
        ([(0, 4)], 0, 2, r"row must be at least 1 and width in \[1, 64\], got 0 and 2"),
        ([(0, 4)], 4, 65, r"row must be at least 1 and width in \[1, 64\], got 4 and 65"),
        ([(0, 4), (4, 9)], 4, 2, "out must have 6 elements, got 4"),
    ],
)
def test_projections_that_are_refused(ops, spans, row, width, match):
    grad, out = np.ones(10, np.float32), np.ones(4, np.float32)
    for module in (ops, oracle):
        refuse(lambda g, o, m=module: m.project_rows(None, g, spans, row, width, 0, o), grad, out, match=match)


@pytest.mark.parametrize(
    ("rows", "row", "spans", "match"),
    [
        ([0], 0, [(0, 4)], "row must be at least 1 and n at least 0, got 0 and 10"),
        ([0], 4, [(0, 11)], r"spans must lie in \[0, 10\), got 0 to 11"),
        ([3], 4, [(0, 5), (5, 9)], r"rows must be in \[0, 3\), got 3"),
        ([-1], 4, [(0, 5)], r"rows must be in \[0, 2\), got -1"),
        ([1, 1], 4, [(0, 5)], "rows must be strictly ascending"),
    ],
)
def test_rows_that_are_refused(ops, rows, row, spans, match):
    for module in (ops, oracle):
        refuse(lambda r, m=module: m.expand_rows(r, row, spans, 10), np.int32(rows), match=match)

"""Several index lists at once, against the oracle: their union, sums of their values, what another list has of them."""

import numpy as np
import pytest
from arrays import REALS, assert_same, with_specials
from test_refusals import refuse

from mpicomp.errors import BufferRefused
from mpicomp.ops import cpu, oracle

LENGTHS = (1, 2, 63, 64, 65, 8191, 8192, 8193, 40_000)
DENSITIES = (0.0, 0.001, 0.2, 1.0)
WRONG = ([3, 3], [4, 3], [-1, 3], [0, 10], [10], [-(2**31)], [2**31 - 1], [10, 3], [0, 1, 2, 1])


def drawn(rng, n, density, dtype=np.int32):
    return np.flatnonzero(rng.random(n) < density).astype(dtype)


def families(rng, n, dtype=np.int32):
    """Lists that are none, one, empty, equal, disjoint, of one element, or drawn."""
    some, ends = drawn(rng, n, 0.2, dtype), np.array([0, n - 1] if n > 1 else [0], dtype)
    nothing = some[:0]
    yield from ([some], [nothing], [nothing, nothing], [nothing, some, nothing], [some, some.copy(), some.copy()])
    yield from ([some[::2].copy(), some[1::2].copy()], [ends, ends[:1], ends[-1:]], [ends[-1:], some, ends[:1]])
    yield [drawn(rng, n, density, dtype) for density in DENSITIES]
    yield [drawn(rng, n, 0.05, dtype) for _ in range(7)]


def valued(rng, lists, dtype):
    return [with_specials(rng, rng.standard_normal(one.size).astype(dtype)) for one in lists]


def assert_all_same(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert_same(np.asarray(one), other)


def test_union(ops, rng):
    assert_same(np.asarray(ops.union([], 9)), np.empty(0, np.int32))
    for n in LENGTHS:
        for lists in families(rng, n):
            assert_same(np.asarray(ops.union(lists, n)), np.unique(np.concatenate(lists)))


@pytest.mark.parametrize("dtype", REALS)
def test_sums(ops, rng, dtype):
    """Bit for bit, for values are added in the order of the lists."""
    for n in LENGTHS:
        for lists in families(rng, n):
            values = valued(rng, lists, dtype)
            with np.errstate(invalid="ignore"):
                assert_all_same(ops.add_lists(lists, values, n), oracle.add_lists(lists, values, n))


def test_sums_by_a_dense_vector(ops, rng):
    """The oracle is right, too."""
    n, lists = 3000, [drawn(rng, 3000, 0.1) for _ in range(4)]
    values, dense = [rng.integers(-9, 10, one.size).astype(np.float32) for one in lists], np.zeros(3000, np.float32)
    for one, of in zip(lists, values, strict=True):
        dense[one] += of
    for module in (ops, oracle):
        indices, sums = module.add_lists(lists, values, n)
        assert_same(np.asarray(sums), dense[np.asarray(indices)])
        assert np.count_nonzero(dense) == np.count_nonzero(sums)


@pytest.mark.parametrize("dtype", REALS)
def test_sums_with_wide_indices(ops, rng, dtype, wide_indices, monkeypatch):
    for home in ("oracle.lists", *(["cpu.composed"] if ops is cpu else [])):  # which a GPU's machine may lack
        monkeypatch.setattr(f"mpicomp.ops.{home}.index_dtype", lambda n: np.dtype(np.int64))
    for lists in families(rng, 20_000, np.int64):
        values = valued(rng, lists, dtype)
        with np.errstate(invalid="ignore"):
            assert_all_same(ops.add_lists(lists, values, 20_000), oracle.add_lists(lists, values, 20_000))
        assert_same(np.asarray(ops.union(lists, 20_000)), np.unique(np.concatenate(lists)))


def test_sums_of_more_lists_than_a_block_looks_for_at_once(ops, rng):
    lists = [drawn(rng, 30_000, 0.002) for _ in range(300)]
    values = valued(rng, lists, np.float32)
    with np.errstate(invalid="ignore"):
        assert_all_same(ops.add_lists(lists, values, 30_000), oracle.add_lists(lists, values, 30_000))


def test_a_vector_of_more_tiles_than_the_host_is_told_of(ops, rng):
    """So that a tile is several pieces (8192 bits, 1024 tiles)."""
    n = 3 * 1024 * 8192 + 5
    lists = [np.unique(rng.integers(0, n, 3000)).astype(np.int32) for _ in range(3)]
    lists[0][0], lists[2][-1] = 0, n - 1
    values = valued(rng, lists, np.float32)
    with np.errstate(invalid="ignore"):
        assert_all_same(ops.add_lists(lists, values, n), oracle.add_lists(lists, values, n))


def test_lists_that_are_filled_up(ops, rng):
    for n in LENGTHS:
        own = [drawn(rng, n, density) for density in DENSITIES]
        lists = [np.append(one, np.full(int(rng.integers(0, 300)), n, np.int32)) for one in own]
        values = valued(rng, lists, np.float32)
        with np.errstate(invalid="ignore"):
            found = ops.add_lists(lists, values, n, True)
            assert_all_same(found, oracle.add_lists(lists, values, n, True))
            values = [of[: one.size] for of, one in zip(values, own, strict=True)]
            assert_all_same(found, oracle.add_lists(own, values, n))


@pytest.mark.parametrize("bad", WRONG)
def test_lists_that_are_none(ops, bad):
    bad, good = np.int32(bad), np.int32([1, 5, 9])
    for module in (ops, oracle):
        for lists in ([bad], [good, bad], [bad, good, good]):
            values = [np.ones(one.size, np.float32) for one in lists]
            match = r"lists must ascend within \[0, 10\)$"
            refuse(lambda *all, m=module: m.union(list(all), 10), *lists, match=match)
            refuse(lambda *all, m=module, v=values: m.add_lists(list(all), v, 10), *lists, match=match)


@pytest.mark.parametrize("bad", [[0, 10, 3], [10, 3], [3, 3, 10], [4, 3, 10], [-1, 3, 10], [3, 11], [11, 10],
                                 [10, 11, 10]])
def test_lists_that_are_wrongly_filled_up(ops, bad):
    bad, good = np.int32(bad), np.int32([1, 5, 10, 10])
    for module in (ops, oracle):
        values = [np.ones(good.size, np.float32), np.ones(bad.size, np.float32)]
        refuse(lambda a, b, m=module, v=values: m.add_lists([a, b], v, 10, True), good, bad,
               match=r"lists must ascend within \[0, 10\) and be filled up at their ends")


@pytest.mark.parametrize("dtype", REALS)
def test_restrict(ops, rng, dtype):
    for n in LENGTHS:
        for lists in families(rng, n):
            values = valued(rng, lists, dtype)
            nonzero = [bool(rng.integers(0, 2)) for _ in lists]
            for whole in (drawn(rng, n, 0.3), lists[0], lists[-1], lists[0][:0]):
                found = ops.restrict(lists, values, whole, nonzero)
                expected = oracle.restrict(lists, values, whole, nonzero)
                assert len(found) == len(expected)
                for one, other in zip(found, expected, strict=True):
                    assert_all_same(one, other)


def test_restrict_leaves_out_zeros(ops):
    """If requested, restrict omits zeros of either sign; it keeps denormal numbers and NaN."""
    indices, tiny = np.int32([1, 2, 3, 5, 8]), np.finfo(np.float32).smallest_subnormal
    values = np.array([0.0, -0.0, tiny, np.nan, 7.0], np.float32)
    for module in (ops, oracle):
        both = module.restrict([indices, indices], [values, values], np.int32([2, 3, 5]), [False, True])
        assert_all_same(both[0], (indices[1:4], values[1:4]))
        assert_all_same(both[1], (indices[2:4], values[2:4]))


def test_restrict_with_wide_indices(ops, rng):
    lists = [drawn(rng, 5000, 0.2, np.int64), np.int64([5, 2**40])]
    values, whole = valued(rng, lists, np.float64), np.append(drawn(rng, 5000, 0.3, np.int64), 2**40)
    for one, other in zip(ops.restrict(lists, values, whole, [False, False]),
                          oracle.restrict(lists, values, whole, [False, False]), strict=True):
        assert_all_same(one, other)


def test_arguments(ops):
    indices, values = np.int32([1, 5, 9]), np.ones(3, np.float32)
    add = lambda i, v: ops.add_lists([i], [v], 10)  # noqa: E731
    refuse(add, indices, values[:2], match="values must have 3 elements, got 2")
    refuse(add, indices.astype(np.int64), values, match="lists must be of dtype int32")
    refuse(add, indices, np.ones(3, np.int32), match="must be of dtype float32, float64")
    refuse(add, np.arange(6, dtype=np.int32)[::2], values, match="lists must be contiguous", error=BufferRefused)
    for module in (ops, oracle):
        refuse(lambda i, v, m=module: m.add_lists([i, i], [v], 10), indices, values,
               match="values must be as many as lists, 2, got 1")
        refuse(lambda i, w, v, m=module: m.restrict([i], [v], w, [False]), indices, np.int32([2, 1]), values,
               match="strictly ascending")

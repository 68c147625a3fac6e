"""Ascending index lists: what two have in common, and writing them in few bytes, against the oracle and back."""

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from arrays import INDICES, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import cpu, oracle

LENGTHS = (0, 1, 7, 8, 9, 63, 64, 65, 255, 1021, 4099)
DENSITIES = (0.0, 0.01, 0.2, 0.9, 1.0)


def drawn(rng, n, density, dtype=np.int32):
    return np.flatnonzero(rng.random(n) < density).astype(dtype)


def packed_gaps(ops, indices, width):
    out = np.full(-(-len(indices) * width // 8), 0xAA, np.uint8)
    ops.pack_gaps(indices, width, out)
    return out


def packed_bitmap(ops, indices, n):
    out = np.full(-(-n // 8), 0xAA, np.uint8)
    ops.pack_bitmap(indices, n, out)
    return out


def assert_common(ops, a, b):
    for actual, expected in zip(ops.common(a, b), oracle.common(a, b), strict=True):
        assert_same(np.asarray(actual), expected)


@pytest.mark.parametrize("dtype", INDICES)
def test_common(ops, rng, dtype):
    for n in LENGTHS:
        for left in DENSITIES:
            for right in DENSITIES:
                assert_common(ops, drawn(rng, n, left, dtype), drawn(rng, n, right, dtype))


def test_common_of_lists_far_apart(ops):
    low, high = np.arange(100, dtype=np.int64), np.arange(2**62, 2**62 + 100)
    assert_common(ops, low, high)
    assert_common(ops, np.concatenate([low, high]), high)


@pytest.mark.parametrize("bad", [[1, 1], [2, 1]])
def test_common_refuses_lists_that_do_not_ascend(ops, bad):
    bad, good = np.int32(bad), np.int32([1, 2, 3])
    for pair in ((bad, good), (good, bad)):
        refuse(ops.common, *pair, match="indices must be strictly ascending")
        with pytest.raises(InvalidArgument):
            oracle.common(*pair)
    refuse(ops.common, good, np.int64([1]), match="b must be of dtype int32, got int64")


@pytest.mark.parametrize("dtype", INDICES)
def test_largest_gap(ops, rng, dtype):
    for n in LENGTHS:
        for density in DENSITIES:
            indices = drawn(rng, n, density, dtype)
            assert ops.largest_gap(indices) == oracle.largest_gap(indices)
    limit = np.iinfo(dtype).max
    assert ops.largest_gap(np.array([5, limit], dtype)) == limit - 6
    assert ops.largest_gap(np.array([limit], dtype)) == limit


@pytest.mark.parametrize("dtype", INDICES)
def test_ascends(ops, rng, dtype):
    for n in LENGTHS:
        for density in DENSITIES:
            assert ops.ascends(drawn(rng, n, density, dtype), n)
    good = np.array([0, 3, 4, 9], dtype)
    assert ops.ascends(good, 10)
    assert not ops.ascends(good, 9)
    assert not ops.ascends(good - 1, 10)
    assert not ops.ascends(good[::-1].copy(), 10)
    assert not ops.ascends(np.array([0, 3, 3], dtype), 10)


@pytest.mark.parametrize("dtype", INDICES)
def test_filled_length(ops, rng, dtype):
    for n in LENGTHS:
        for density in DENSITIES:
            own, missing = drawn(rng, n, density, dtype), int(rng.integers(0, 400))
            assert ops.filled_length(np.concatenate([own, np.full(missing, n, dtype)]), n) == own.size
    for bad in ([0, 10, 3], [10, 3], [3, 3, 10], [4, 3, 10], [-1, 3, 10], [3, 11], [11, 10], [-1, 10], [5, 10, 11, 10]):
        for module in (ops, oracle):
            assert module.filled_length(np.array(bad, dtype), 10) == -1, bad


def test_a_list_that_is_vouched_for(ops):
    indices = np.int32([1, 5, 9])
    assert ops.vouch(indices, 10) is indices
    assert oracle.vouch(indices, 10) is indices
    assert ops.ascends(indices, 10)
    bad = np.int32([9, 1, 5])
    refuse(lambda m, part: ops.masked_update(m, m, part, np.zeros(2, np.float32), 1.0), np.ones(10, np.float32),
           ops.vouch(bad[:2], 10, bad), match="strictly ascending")


@pytest.mark.parametrize("dtype", INDICES)
def test_the_gap_of_a_list_that_was_read_at(ops, rng, dtype):
    """Reading the values at a list measures it by the way; so does not what is no list."""
    for n in LENGTHS:
        for indices in (drawn(rng, n, 0.2, dtype), rng.permutation(drawn(rng, n, 0.2, dtype))):
            ops.gather_counted(None, np.ones(n, np.float32), indices, np.empty(indices.size, np.float32))
            if oracle.ascends(indices, n):
                assert ops.largest_gap(indices) == oracle.largest_gap(indices)
            else:
                refuse(lambda i: ops.pack_gaps(i, 13, np.empty(-(-i.size * 13 // 8), np.uint8)), indices,
                       match="indices must ascend")


@pytest.mark.parametrize("dtype", INDICES)
def test_gaps_there_and_back(ops, rng, dtype):
    for n in LENGTHS:
        for density in DENSITIES:
            indices = drawn(rng, n, density, dtype)
            least = oracle.largest_gap(indices).bit_length()
            for width in {least, 8, 13, 16, 31, 32, 33, 57, 58, 63} - set(range(least)):
                packed = packed_gaps(ops, indices, width)
                assert_same(packed, packed_gaps(oracle, indices, width))
                back = np.full(len(indices), -1, dtype)
                ops.unpack_gaps(packed, width, n, back)
                assert_same(back, indices)


def test_the_widest_gaps(ops):
    indices = np.array([2**61, 2**61 + 1, 2**62 + 7, 2**63 - 2])
    for width in (62, 63):
        back, packed = np.zeros(4, np.int64), packed_gaps(ops, indices, width)
        assert_same(packed, packed_gaps(oracle, indices, width))
        ops.unpack_gaps(packed, width, 2**63 - 1, back)
        assert_same(back, indices)


def test_bits_beyond_the_last_gap_do_not_matter(ops):
    back = np.zeros(3, np.int32)
    ops.unpack_gaps(np.uint8([0b10_000_001, 0b1111111_0]), 3, 10, back)  # gaps 1, 0, 2
    assert_same(back, np.int32([1, 2, 5]))


@pytest.mark.parametrize("indices", [[0, 9], [300], [5, 5], [5, 3], [-1], [-(2**31), 2**31 - 1]])
def test_gaps_that_cannot_be_packed(ops, indices):
    for module in (ops, oracle):
        call = lambda i, out, module=module: module.pack_gaps(i, 3, out)  # noqa: E731
        refuse(call, np.int32(indices), np.zeros(len(indices) * 3 // 8 + 1, np.uint8),
               match=r"indices must ascend with gaps below 2\^3")


def test_gaps_past_the_end(ops):
    packed = packed_gaps(oracle, np.int32([1, 5, 9]), 4)
    for module in (ops, oracle):
        module.unpack_gaps(packed, 4, 10, np.zeros(3, np.int32))
        for n in (0, 1, 2, 9):
            with pytest.raises(InvalidArgument, match=rf"indices must be in \[0, {n}\), got"):
                module.unpack_gaps(packed, 4, n, np.zeros(3, np.int32))


def test_gaps_that_overflow(ops):
    """A sum of gaps that comes round to a small number again."""
    packed = np.full(-(-63 * 5 // 8), 0xFF, np.uint8)
    for module in (ops, oracle):
        with pytest.raises(InvalidArgument, match=r"indices must be in \[0, 1000\)"):
            module.unpack_gaps(packed, 63, 1000, np.zeros(5, np.int64))


@pytest.mark.parametrize("width", [-1, 64])
def test_width(ops, width):
    nothing, bytes_ = np.zeros(0, np.int32), np.zeros(0, np.uint8)
    for module in (ops, oracle):
        for call in (lambda m: m.pack_gaps(nothing, width, bytes_), lambda m: m.unpack_gaps(bytes_, width, 9, nothing)):
            with pytest.raises(InvalidArgument, match=rf"width must be in \[0, 63\], got {width}"):
                call(module)


@pytest.mark.parametrize("dtype", INDICES)
def test_bitmap_there_and_back(ops, rng, dtype):
    for n in LENGTHS:
        for density in DENSITIES:
            indices = drawn(rng, n, density, dtype)
            bitmap = packed_bitmap(ops, rng.permutation(indices), n)
            assert_same(bitmap, packed_bitmap(oracle, indices, n))
            back = np.full(len(indices), -1, dtype)
            ops.unpack_bitmap(bitmap, n, back)
            assert_same(back, indices)


@pytest.mark.parametrize("dtype", INDICES)
def test_bitmap_of_a_list_that_ascends(ops, rng, dtype):
    """Which kernels write piece by piece."""
    for n in (1, 7, 16_383, 16_384, 16_385, 50_001):
        for density in DENSITIES:
            indices = drawn(rng, n, density, dtype)
            assert_same(packed_bitmap(ops, ops.vouch(indices, n), n), packed_bitmap(oracle, indices, n))


def test_bits_beyond_n_do_not_count(ops):
    back = np.zeros(2, np.int32)
    ops.unpack_bitmap(np.uint8([0b11111001]), 4, back)
    assert_same(back, np.int32([0, 3]))


def test_bitmap_of_another_number_of_indices(ops):
    bitmap = np.uint8([0xFF, 0x03])
    for module in (ops, oracle):
        for k in (0, 9, 11, 1000):
            refuse(lambda i, m=module: m.unpack_bitmap(bitmap, 16, i), np.zeros(k, np.int32),
                   match=f"the bitmap must hold {k} indices, got 10")
        refuse(lambda i, m=module: m.unpack_bitmap(bitmap[:0], 0, i), np.zeros(3, np.int32),
               match="the bitmap must hold 3 indices, got 0")


def test_what_is_refused_is_no_longer_known_to_ascend(ops):
    """It has been overwritten."""
    packed, positions = packed_gaps(oracle, np.int32([5, 30]), 8), np.uint8([9, 1])
    for write in (lambda i: ops.unpack_gaps(packed, 8, 20, i),
                  lambda i: ops.chunk_indices(positions, [(0, 8, 4)], 8, i)):
        back = ops.vouch(np.int32([0, 1]), 8)
        with pytest.raises(InvalidArgument):
            write(back)
        assert ops.ascends(back, 8) == (back[0] < back[1] < 8 and back[0] >= 0)


def without_waiting(ops, unpack, k, n, dtype):
    """Indices from ``unpack(indices, False)``; None if it raises, or if they do not ascend within [0, n)."""
    back = np.full(k, 7, dtype)
    with suppress(InvalidArgument):
        unpack(back, False)
        if ops.ascends(back, n):
            return back
    return None


@pytest.mark.parametrize("dtype", INDICES)
def test_what_is_unpacked_without_waiting(ops, rng, dtype):
    for n in (1, 64, 1021, 40_000):
        indices = np.append(drawn(rng, n - 1, 0.3, dtype), dtype(n - 1))
        gaps, bitmap = packed_gaps(oracle, indices, 16), packed_bitmap(oracle, indices, n)
        for module in (ops, oracle):
            for end, right in ((n, True), (n - 1, False), (int(rng.integers(0, n)), False)):
                found = without_waiting(module, partial(module.unpack_gaps, gaps, 16, end), indices.size, end, dtype)
                assert (found is not None) == right
                assert_same(found if right else indices, indices)
            for k in (indices.size, indices.size - 1, indices.size + 1, 0):
                found = without_waiting(module, partial(module.unpack_bitmap, bitmap, n), k, n, dtype)
                assert (found is not None) == (k == indices.size)
                assert_same(indices if found is None else found, indices)


def test_gaps_past_32_bits_that_would_look_well_in_these(ops):
    packed = packed_gaps(oracle, np.int64([2**32 + 3, 2**32 + 8]), 40)
    for module in (ops, oracle):
        assert without_waiting(module, partial(module.unpack_gaps, packed, 40, 1000), 2, 1000, np.int32) is None


@pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1])
def test_bitmap_of_indices_outside(ops, bad):
    for module in (ops, oracle):
        refuse(lambda i, o, m=module: m.pack_bitmap(i, 20, o), np.int32([3, bad]), np.zeros(3, np.uint8),
               match=rf"indices must be in \[0, 20\), got {bad}")


def test_arguments(ops):
    indices, out = np.int32([1, 5, 9]), np.zeros(2, np.uint8)
    one = out[:1].copy()
    refuse(lambda i, o: ops.pack_gaps(i, 4, o), indices, one, match="out must have 2 elements, got 1")
    refuse(lambda p, i: ops.unpack_gaps(p, 4, 99, i), one, indices, match="packed must have 2 elements, got 1")
    refuse(lambda i, o: ops.pack_bitmap(i, 20, o), indices, out, match="out must have 3 elements, got 2")
    refuse(lambda b, i: ops.unpack_bitmap(b, 20, i), out, indices, match="bitmap must have 3 elements, got 2")
    refuse(lambda p, i: ops.unpack_gaps(p, 4, 2**31, i), out, indices, match="indices must be int64 for n = 2147483648")
    refuse(lambda p, i: ops.unpack_gaps(p, 4, -1, i), out, indices, match="n must be at least 0, got -1")
    refuse(lambda i, o: ops.pack_bitmap(i, 20, o), np.float32([1]), out, match="indices must be of dtype int32, int64")
    refuse(lambda i, o: ops.pack_bitmap(i, 16, o), indices, np.zeros(2, np.int8), match="out must be of dtype uint8")
    refuse(ops.largest_gap, np.float32([1]), match="indices must be of dtype int32, int64")
    refuse(ops.common, np.float32([1]), indices, match="a must be of dtype int32, int64")


@settings(max_examples=200, deadline=None)
@given(gaps=st.lists(st.integers(0, 2**20), max_size=70), dtype=st.sampled_from(INDICES))
def test_any_list_there_and_back(gaps, dtype):
    indices = (np.cumsum(np.int64([gap + 1 for gap in gaps])) - 1).astype(dtype)
    width, n = max(gaps, default=0).bit_length(), int(indices[-1]) + 1 if gaps else 0
    back = np.zeros(len(indices), dtype)
    cpu.unpack_gaps(packed_gaps(cpu, indices, width), width, n, back)
    assert_same(back, indices)
    back[:] = 0
    cpu.unpack_bitmap(packed_bitmap(cpu, indices, n), n, back)
    assert_same(back, indices)


@settings(max_examples=200, deadline=None)
@given(packed=st.binary(max_size=40), width=st.integers(0, 63), n=st.integers(0, 2000), data=st.data())
def test_any_bytes_are_unpacked_or_refused(packed, width, n, data):
    """Any bytes received give the oracle's result: the same list, or an error."""
    k = data.draw(st.integers(0, 8 * len(packed) // width if width else 20))
    packed = np.frombuffer(packed, np.uint8)[: -(-k * width // 8)]
    actual, expected = np.zeros((2, k), np.int64)
    try:
        oracle.unpack_gaps(packed, width, n, expected)
    except InvalidArgument:
        with pytest.raises(InvalidArgument, match="indices must be in"):
            cpu.unpack_gaps(packed, width, n, actual)
        return
    cpu.unpack_gaps(packed, width, n, actual)
    assert_same(actual, expected)

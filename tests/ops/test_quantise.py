"""Few bits per value: the oracle's bits for any groups, rounding without bias, and refusals."""

import numpy as np
import pytest
from arrays import REALS, SIZES, assert_same, vector, with_specials
from cuda_on_cpu import EmulatedRuntime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.ops import _cpu, cpu, oracle
from mpicomp.ops.arguments import HEAD, NORMS, Key
from mpicomp.ops.gpu import cuda_runtime

KEY = Key(2**40 + 1, 2, 3)
LEVELS = ((2, 1), (4, 1), (4, 7), (8, 1), (8, 127), (16, 200), (16, 32767))  # width, levels
TOPS = {np.float32: (0, 3, 64, 127), np.float64: (-896, -3, 0, 1023)}
CODES = (np.int8, np.int16, np.int32)
LONG = 40_000  # more than a block, and than a piece of the CUDA kernels


def groupings(rng, n):
    """Bounds: one group, groups of 5, of 512, of anything (empty ones among them), of one, no group of nothing.

    Of a long vector only few groups: the oracle takes them one by one.
    """
    yield np.int64([0, n])
    for length in (5, 512) if n < 200 else (512,):
        yield np.int64([*range(0, max(1, n), length), n])
    yield np.sort(np.int64([0, 0, n, n, *rng.integers(n + 1, size=1 + min(n // 20, 20))]))
    if n < 200:
        yield np.arange(n + 1)
    if n == 0:
        yield np.int64([0])


def tolerance(n, dtype):
    """Sums are float64 in any order: each of n additions of numbers of one sign is off by at most half a unit."""
    return 4 * np.finfo(dtype).eps + n * np.finfo(np.float64).eps


def bytes_of(n, width):
    return np.full((n * width + 7) // 8, 0xAA, np.uint8)


def of_groups(bounds, dtype, count=1):
    out = np.full((count, len(bounds) - 1), -7, dtype)
    return out[0] if count == 1 else out


# ---- one number a group

@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", REALS)
def test_group_norms(ops, rng, dtype, kind):
    for n in (*SIZES, LONG):
        x = vector(rng, n, dtype)
        for bounds in groupings(rng, n):
            out, expected = of_groups(bounds, dtype, 2)
            ops.group_norms(x, bounds, kind, out)
            oracle.group_norms(x, bounds, kind, expected)
            if kind == "max":
                assert_same(out, expected)
            else:
                np.testing.assert_allclose(out, expected, rtol=tolerance(len(x), dtype))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", NORMS)
def test_group_norms_of_whole_numbers(ops, rng, dtype, kind):
    """Sums are exact in any order, so the bits are the oracle's."""
    for n in (17, 1025, LONG):
        x = rng.integers(-9, 10, n).astype(dtype)
        for bounds in groupings(rng, n):
            out, expected = of_groups(bounds, dtype, 2)
            ops.group_norms(x, bounds, kind, out)
            oracle.group_norms(x, bounds, kind, expected)
            assert_same(out, expected)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_group_norms_of_specials(ops, rng, dtype, kind):
    x = with_specials(rng, rng.integers(-9, 10, 1025).astype(dtype))
    for bounds in groupings(rng, len(x)):
        out, expected = of_groups(bounds, dtype, 2)
        ops.group_norms(x, bounds, kind, out)
        oracle.group_norms(x, bounds, kind, expected)
        np.testing.assert_allclose(out, expected, rtol=tolerance(len(x), dtype))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_group_means(ops, rng, dtype):
    for n in (*SIZES, LONG):
        whole = rng.integers(-9, 10, n).astype(dtype)
        for x, exact in ((whole, True), (with_specials(rng, whole), False), (vector(rng, n, dtype), False)):
            for bounds in groupings(rng, n):
                out, expected = of_groups(bounds, dtype, 2), of_groups(bounds, dtype, 2)
                ops.group_means(x, bounds, *out)
                oracle.group_means(x, bounds, *expected)
                if exact:
                    np.testing.assert_array_equal(out, expected)
                else:
                    np.testing.assert_allclose(out, expected, rtol=tolerance(n, dtype), atol=1e-12)


def lengths_of_groups(rng):
    """Groups of one length, and mixtures: who sums a group on a GPU depends on its length and on the mean."""
    for length in (0, 1, 2, 4, 31, 32, 33, 255, 256, 257, 512):
        yield np.full(600 if length < 31 else 50, length)
    yield np.full(2, 100_000)
    lengths = [0, 1, 2, 4, 31, 32, 33, 255, 256, 257, 512]
    yield rng.choice(lengths, 300)
    yield rng.permutation([*rng.choice(lengths, 30), 2048, 2049, 100_000])
    yield rng.permutation([*rng.choice(lengths[:4], 900), 64, 65])  # 65 are too many for one thread
    yield np.array([*[1] * 600, 400, 500, 0, *[1] * 100])  # neighbours that are too long
    yield np.array([2048, 2049, 18_432, 18_433])  # a piece takes up to 2048 that are left over


@pytest.mark.parametrize("dtype", REALS)
def test_groups_short_and_long(ops, rng, dtype):
    """Whole numbers, so that sums are exact in any order; and any."""
    for lengths in lengths_of_groups(rng):
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        groups_agree(ops, rng.integers(-9, 10, bounds[-1]).astype(dtype), bounds, 0)
        groups_agree(ops, vector(rng, bounds[-1], dtype), bounds, tolerance(lengths.max(), dtype))


@pytest.mark.parametrize("dtype", REALS)
def test_groups_and_pieces_beyond_the_grid(emulated_cuda, rng, dtype, monkeypatch):
    """Blocks go on to further groups and pieces, as where there are more than blocks to a grid."""
    for most in ("MAX_BLOCKS", "MAX_PIECES"):
        monkeypatch.setattr(cuda_runtime, most, 2)
    for lengths in ([3] * 2000, [*[3] * 9000, 20_000, 70, 80_000, 90, *[1] * 9000], [40] * 200, [300, 70_000] * 9):
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        groups_agree(emulated_cuda, rng.integers(-9, 10, bounds[-1]).astype(dtype), bounds, 0)


def groups_agree(ops, x, bounds, rtol):
    out, expected = of_groups(bounds, x.dtype, 7), of_groups(bounds, x.dtype, 7)
    for implementation, to in ((ops, out), (oracle, expected)):
        for kind, one in zip(NORMS, to, strict=False):
            implementation.group_norms(x, bounds, kind, one)
        to[4] = to[NORMS.index("max")]
        implementation.limit_norms(x, bounds, 1.5, to[4])
        implementation.group_means(x, bounds, to[5], to[6])
    np.testing.assert_allclose(out, expected, rtol=rtol, atol=0)
    assert_same(out[NORMS.index("max")], expected[NORMS.index("max")])


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_norms_beyond_the_largest_number(ops, dtype):
    """Capped at it, and with them only what is infinite; NaN stays."""
    largest = np.finfo(dtype).max
    x = np.array([largest, largest, 3, 4, np.inf, np.nan, 0], dtype)
    bounds = np.int64([0, 2, 4, 5, 6, 6, 7])
    for implementation in (ops, oracle):
        out = of_groups(bounds, dtype)
        implementation.group_norms(x, bounds, "capped", out)
        np.testing.assert_array_equal(out, np.array([largest, 5, largest, np.nan, 0, 0], dtype))


@pytest.mark.parametrize("dtype", REALS)
def test_limits_of_specials(ops, dtype):
    """NaN on either side gives NaN; an infinite limit cuts nothing; an empty group's is 0."""
    x, bounds = np.array([np.nan, np.inf, 2, 2], dtype), np.int64([0, 1, 2, 2, 4, 4])
    for implementation in (ops, oracle):
        out = np.array([1, 7, 3, np.nan, -1], dtype)
        implementation.limit_norms(x, bounds, 2.0, out)
        np.testing.assert_array_equal(out, np.array([np.nan, 7, 0, np.nan, -1], dtype))


@pytest.mark.emulation
def test_bounds_that_are_known_are_not_asked_for(emulated_cuda, rng, monkeypatch):
    """Nor what no operation has to look for, as the largest magnitude is given."""
    x, host = vector(rng, 1000, np.float32), np.int64([0, 300, 1000])
    bounds = emulated_cuda.group_bounds(host)
    assert_same(bounds.array, host)
    scales, expected, packed = of_groups(host, x.dtype), of_groups(host, x.dtype), np.zeros(125, np.uint8)
    out, codes, natural = np.empty_like(x), np.zeros(1000, np.int8), np.zeros(1000 + HEAD.itemsize, np.uint8)
    emulated_cuda.group_norms(x, host.copy(), "mean", expected)

    def refuse(runtime, array):
        raise AssertionError("the host waits")

    monkeypatch.setattr(cuda_runtime.Runtime, "to_host", refuse)
    monkeypatch.setattr(EmulatedRuntime, "to_host", refuse)
    emulated_cuda.group_norms(x, bounds, "mean", scales)
    assert_same(scales, expected)
    emulated_cuda.unpack_signs(packed, bounds, None, scales, out)
    emulated_cuda.quantise(x, 0.1, 0, None, codes, 10.0)
    emulated_cuda.encode_natural(x, emulated_cuda.group_bounds(np.int64([0, 1000])), 0, KEY, natural)
    emulated_cuda.decode_natural(natural, out, True)
    for call in (lambda: emulated_cuda.group_norms(x[:999].copy(), bounds, "mean", scales),
                 lambda: emulated_cuda.quantise(x, 0.1, 0, None, codes, 12.8)):
        with pytest.raises(InvalidArgument, match="must"):
            call()


def test_sums_of_groups_are_the_same_on_every_instruction_set(cpu_ops, rng):
    x, bounds = vector(rng, 100_003, np.float64), np.int64([0, 3, 70_000, 100_003])
    here, baseline = of_groups(bounds, np.float64, 4), of_groups(bounds, np.float64, 4)
    for isa, out in ((None, here), ("baseline", baseline)):
        if isa:
            _cpu.force_isa(isa)
        cpu.group_norms(x, bounds, "l2", out[0])
        cpu.group_norms(x, bounds, "mean", out[1])
        cpu.group_means(x, bounds, out[2], out[3])
    assert_same(here, baseline)


# ---- one bit an entry

@pytest.mark.parametrize("dtype", REALS)
def test_signs(ops, rng, dtype):
    for n in (*SIZES, 7, 8, 9, 63, 64, 65):
        x = with_specials(rng, vector(rng, n, dtype))
        packed, expected = bytes_of(n, 1), bytes_of(n, 1)
        ops.pack_signs(x, packed)
        oracle.pack_signs(x, expected)
        assert_same(packed, expected)
        for bounds in groupings(rng, n):
            negative, positive = (with_specials(rng, vector(rng, len(bounds) - 1, dtype)) for _ in range(2))
            out, expected = np.full((2, n), -7, dtype)
            ops.unpack_signs(packed, bounds, negative, positive, out)
            oracle.unpack_signs(packed, bounds, negative, positive, expected)
            assert_same(out, expected)
            ops.unpack_signs(packed, bounds, None, positive, out)
            oracle.unpack_signs(packed, bounds, -positive, positive, expected)
            assert_same(out, expected)


# ---- levels of a group's scale

def some_scales(rng, bounds, dtype):
    """Mostly around the entries' size; some zero, and a few that are no scale at all."""
    count = len(bounds) - 1
    scales = np.abs(rng.standard_normal(count)).astype(dtype)
    special = np.array([0, -1, np.inf, np.nan, np.finfo(dtype).smallest_subnormal], dtype)
    return np.where(rng.random(count) < 0.2, rng.choice(special, count), scales)


@pytest.mark.parametrize(("width", "levels"), LEVELS)
@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_levels(ops, rng, dtype, width, levels):
    for n in (*SIZES, 5, 2050):
        x = with_specials(rng, vector(rng, n, dtype))
        for bounds in groupings(rng, n):
            scales, first = some_scales(rng, bounds, dtype), int(rng.integers(2**40))
            packed, expected = bytes_of(n, width), bytes_of(n, width)
            ops.pack_levels(x, bounds, scales, levels, width, first, KEY, packed)
            oracle.pack_levels(x, bounds, scales, levels, width, first, KEY, expected)
            assert_same(packed, expected)
            out, expected = np.full((2, n), -7, dtype)
            ops.unpack_levels(packed, bounds, scales, levels, width, out)
            oracle.unpack_levels(packed, bounds, scales, levels, width, expected)
            assert_same(out, expected)


@pytest.mark.parametrize("lengths", [[3] * 3500, [1, 0] * 4500, [0, 2, 1, 0, 0, 0, 0, 0, 6] * 999, [4200, *[5] * 900]],
                         ids=["three", "one", "mixed", "long"])
def test_codes_of_groups_much_shorter_than_a_piece(ops, rng, lengths):
    """CUDA kernels go from group to group: some steps, then by bisection."""
    bounds = np.cumsum([0, *lengths])
    n, scales = bounds[-1], np.float32(rng.random((2, len(lengths))))
    x, (packed, expected), width = vector(rng, n, np.float32), (bytes_of(n, 4) for _ in range(2)), 4
    for first in (0, 1, 2, 3):  # where blocks of random words begin
        ops.pack_levels(x, bounds, scales[0], 7, width, first, KEY, packed)
        oracle.pack_levels(x, bounds, scales[0], 7, width, first, KEY, expected)
        assert_same(packed, expected)
    out, wanted = np.full((2, n), -7, np.float32)
    ops.unpack_levels(packed, bounds, scales[0], 7, width, out)
    oracle.unpack_levels(packed, bounds, scales[0], 7, width, wanted)
    assert_same(out, wanted)
    signs = bytes_of(n, 1)
    oracle.pack_signs(x, signs)
    ops.unpack_signs(signs, bounds, *scales, out)
    oracle.unpack_signs(signs, bounds, *scales, wanted)
    assert_same(out, wanted)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_unpack_levels_of_any_bytes(ops, rng, width):
    """Also codes that pack_levels never writes: they come over the wire."""
    n, bounds = 1025, np.int64([0, 100, 1025])
    packed, scales = rng.integers(256, size=len(bytes_of(n, width)), dtype=np.uint8), np.float32([0.5, 3])
    out, expected = np.empty((2, n), np.float32)
    ops.unpack_levels(packed, bounds, scales, 1, width, out)
    oracle.unpack_levels(packed, bounds, scales, 1, width, expected)
    assert_same(out, expected)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_levels_of_any_groups(ops, data):
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 8, 511, 1023, 1024, 1025]), max_size=8))
    width, levels = data.draw(st.sampled_from(LEVELS))
    first, step = data.draw(st.integers(0, 2**63 - 2**20)), data.draw(st.integers(0, 2**32 - 1))
    bounds = np.cumsum([0, *lengths])
    x = np.float32(np.linspace(-2, 2, bounds[-1]))
    scales = np.float32(np.arange(len(lengths)) % 4)
    packed, expected = bytes_of(len(x), width), bytes_of(len(x), width)
    ops.pack_levels(x, bounds, scales, levels, width, first, Key(7, step, 1), packed)
    oracle.pack_levels(x, bounds, scales, levels, width, first, Key(7, step, 1), expected)
    assert_same(packed, expected)


def average(encode_and_decode, rounds=400):
    return np.mean([encode_and_decode(Key(11, step, 0)) for step in range(rounds)], axis=0)


def test_levels_are_unbiased(ops):
    """Fixed numbers, hence fixed bounds: the mean of 400 differs by less than 5 standard deviations."""
    n, levels, width = 1000, 3, 4
    x, bounds, scales = np.linspace(-1, 1, n, dtype=np.float64), np.int64([0, 300, n]), np.array([1.0, 1.5])

    def through(key):
        packed, out = bytes_of(n, width), np.empty(n)
        ops.pack_levels(x, bounds, scales, levels, width, 0, key, packed)
        ops.unpack_levels(packed, bounds, scales, levels, width, out)
        assert np.all(np.abs(out - x) < 1.5 / levels + 1e-12)
        return out

    assert np.abs(average(through) - x).max() < 5 * 1.5 / levels / 2 / 400**0.5


# ---- multiples of one unit

@pytest.mark.parametrize("key", [None, KEY], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", REALS)
def test_quantise(ops, rng, dtype, code, key):
    limit = np.iinfo(code).max
    for n in (*SIZES, 2050):
        x = rng.uniform(-limit + 1, limit - 1, n).astype(dtype)
        if code == np.int32:
            x = np.where(np.abs(x) < limit - 200, x, 1)  # float32 has no fractions at 2^31, and numbers 128 apart
        x[::3] = np.round(2 * x[::3]) / 2  # halves: to nearest even
        x[::7] = rng.choice(np.array([0, -0.0, 1e-30, -1e-30, 0.5, -0.5], dtype), len(x[::7]))
        for unit in (1.0, 0.3, 3.0):
            first, scaled = int(rng.integers(2**40)), (x * dtype(unit) * dtype(0.99)).astype(dtype)
            codes, expected = np.full((2, n), 99, code)
            ops.quantise(scaled, unit, first, key, codes)
            oracle.quantise(scaled, unit, first, key, expected)
            assert_same(codes, expected)
            out, expected = np.full((2, n), -7, dtype)
            ops.dequantise(codes, unit, out)
            oracle.dequantise(codes, unit, expected)
            assert_same(out, expected)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", REALS)
def test_quantise_at_the_limit(ops, dtype, code):
    """The largest code of either sign, and the values just beyond it."""
    limit = np.iinfo(code).max
    most = np.nextafter(dtype(limit + 0.5), dtype(0)) if limit < 2**23 or dtype == np.float64 else dtype(2**31 - 128)
    for x in (most, -most):
        codes, expected = np.zeros((2, 5), code)
        ops.quantise(np.array([0, x, 0, 0, 0], dtype), 1.0, 0, None, codes)
        oracle.quantise(np.array([0, x, 0, 0, 0], dtype), 1.0, 0, None, expected)
        assert_same(codes, expected)
    beyond = np.nextafter(dtype(limit + 0.5), dtype(np.inf))
    for x in (beyond, -beyond, -dtype(limit + 1), np.inf, -np.inf, np.nan, 1e30):
        for key in (None, KEY) if not abs(x) < limit + 1 else (None,):  # with a key, some below are rounded down
            for implementation in (ops, oracle):
                with pytest.raises(InvalidArgument, match=f"codes must be at most {limit} in magnitude: take a larger"):
                    implementation.quantise(np.array([0, x, 0], dtype), 1.0, 0, key, np.zeros(3, code))


def test_quantise_is_unbiased(ops):
    n, unit = 1000, 0.25
    x = np.linspace(-3, 3, n)

    def through(key):
        codes, out = np.empty(n, np.int8), np.empty(n)
        ops.quantise(x, unit, 0, key, codes)
        ops.dequantise(codes, unit, out)
        return out

    assert np.abs(average(through) - x).max() < 5 * unit / 2 / 400**0.5


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_units_beyond_the_precision(ops):
    """1e-50 is 0 and 1e300 infinite in float32; zeros over 0 are no numbers."""
    codes, out, expected = np.zeros(2, np.int8), *np.zeros((2, 2), np.float32)
    with pytest.raises(InvalidArgument, match="codes must be at most 127"):
        ops.quantise(np.zeros(2, np.float32), 1e-50, 0, None, codes)
    ops.quantise(np.float32([1, -2]), 1e300, 0, None, codes)
    np.testing.assert_array_equal(codes, 0)
    ops.dequantise(np.int8([1, 0]), 1e300, out)
    oracle.dequantise(np.int8([1, 0]), 1e300, expected)
    assert_same(out, expected)


# ---- powers of two

@pytest.mark.parametrize("dtype", REALS)
def test_natural(ops, rng, dtype):
    for top in TOPS[dtype]:
        for n in (*SIZES, 2050):
            x = np.ldexp(rng.uniform(-1, 1, n), rng.integers(top - 140, top + 1, n)).astype(dtype)
            x[::5] = np.ldexp(rng.choice([-1.0, 1.0], len(x[::5])), rng.integers(top - 140, top + 1, len(x[::5])))
            x[::11] = rng.choice(np.array([0, -0.0, *np.ldexp([1.0, -1.0], top)], dtype), len(x[::11]))
            first = int(rng.integers(2**40))
            packed, expected = np.full((2, n), 0xAA, np.uint8)
            ops.pack_natural(x, top, first, KEY, packed)
            oracle.pack_natural(x, top, first, KEY, expected)
            assert_same(packed, expected)
            out, expected = np.full((2, n), -7, dtype)
            ops.unpack_natural(packed, top, out)
            oracle.unpack_natural(packed, top, expected)
            assert_same(out, expected)


@pytest.mark.parametrize("dtype", REALS)
def test_natural_of_every_byte(ops, dtype):
    every = np.arange(256, dtype=np.uint8)
    for top in TOPS[dtype]:
        out, expected = np.empty((2, 256), dtype)
        ops.unpack_natural(every, top, out)
        oracle.unpack_natural(every, top, expected)
        assert_same(out, expected)
        assert np.isfinite(out).all()


def test_natural_is_unbiased(ops):
    n, top = 1000, 1
    x = np.linspace(-2, 2, n)

    def through(key):
        packed, out = np.empty(n, np.uint8), np.empty(n)
        ops.pack_natural(x, top, 0, key, packed)
        ops.unpack_natural(packed, top, out)
        assert np.all((out == 0) | (np.abs(np.frexp(out)[0]) == 0.5))
        return out

    assert np.all(np.abs(average(through) - x) <= 5 * np.abs(x) / 2 / 400**0.5)


@pytest.mark.parametrize("dtype", REALS)
def test_messages_of_powers(ops, rng, dtype):
    """Vectors with magnitudes of every size, zeros only, no elements, clipped values, or non-finite values."""
    real, some = np.finfo(dtype), vector(rng, 1030, dtype)
    largest = [0.0, real.smallest_subnormal, real.tiny, 0.5, 1.0, np.nextafter(dtype(1), dtype(2)), 3.0, real.max / 4,
               np.ldexp(dtype(1), real.maxexp - 1), real.max, np.inf, -np.inf, np.nan]  # fmt: skip
    for x in (some[:0], some[:1], *(np.array([*some / 8 * size, -size], dtype) for size in largest[:8]),
              *(np.array([1.5, size, -1], dtype) for size in largest)):
        first, bounds = int(rng.integers(2**40)), np.int64([0, len(x)])
        message, expected = np.full((2, len(x) + HEAD.itemsize), 0xAA, np.uint8)
        ops.encode_natural(x, bounds, first, KEY, message)
        oracle.encode_natural(x, bounds, first, KEY, expected)
        assert_same(message, expected)
        for known in (False, True):
            out, expected = np.full((2, len(x)), -7, dtype)
            ops.decode_natural(message, out, known)
            oracle.decode_natural(message, expected)
            np.testing.assert_array_equal(out, expected)
            assert np.isnan(out).all() == (not np.isfinite(x).all()) or not len(x)


def test_codes_behind_a_head_are_aligned_to_their_runs():
    """A thread of the CUDA kernels reads and writes a run in one access."""
    assert HEAD.itemsize % cuda_runtime.UNIT == 0


@pytest.mark.parametrize("dtype", REALS)
def test_heads_that_no_message_has_are_refused(ops, dtype):
    lowest, highest = min(TOPS[dtype]), max(TOPS[dtype])
    for top in (lowest - 1, highest + 1, -(2**31), 2**31 - 2):
        message = np.append(np.int32([top]).view(np.uint8), np.zeros(3, np.uint8))
        for implementation in (ops, oracle):
            with pytest.raises(InvalidArgument, match=rf"top must be in \[{lowest}, {highest}\] for float"):
                implementation.decode_natural(message, np.zeros(3, dtype))


@pytest.mark.parametrize("dtype", REALS)
def test_natural_refuses(ops, dtype):
    for top in TOPS[dtype]:
        beyond = np.nextafter(np.ldexp(dtype(1), top), dtype(np.inf))
        for bad in (beyond, -beyond, np.inf, -np.inf, np.nan):
            for implementation in (ops, oracle):
                with pytest.raises(InvalidArgument, match=rf"magnitudes must be at most 2\^{top}"):
                    implementation.pack_natural(np.array([0, bad, 0], dtype), top, 0, KEY, np.zeros(3, np.uint8))
    lowest, highest = min(TOPS[dtype]), max(TOPS[dtype])
    for top in (lowest - 1, highest + 1):
        for implementation in (ops, oracle):
            with pytest.raises(InvalidArgument, match=rf"top must be in \[{lowest}, {highest}\] for float"):
                implementation.pack_natural(np.zeros(3, dtype), top, 0, KEY, np.zeros(3, np.uint8))
            with pytest.raises(InvalidArgument, match=rf"top must be in \[{lowest}, {highest}\] for float"):
                implementation.unpack_natural(np.zeros(3, np.uint8), top, np.zeros(3, dtype))


# ---- refusals

X, OUT, SCALES = np.ones(10, np.float32), np.zeros(5, np.uint8), np.ones(2, np.float32)
BOUNDS = np.int64([0, 3, 10])


def with_bounds(ops, bounds):
    """Every operation on groups."""
    scales = np.ones(max(0, len(bounds) - 1), np.float32)
    yield lambda: ops.group_norms(X, bounds, "max", scales.copy())
    yield lambda: ops.group_means(X, bounds, scales.copy(), scales.copy())
    yield lambda: ops.limit_norms(X, bounds, 2.5, scales.copy())
    yield lambda: ops.unpack_signs(OUT[:2], bounds, scales, scales, X.copy())
    yield lambda: ops.pack_levels(X, bounds, scales, 7, 4, 0, KEY, OUT.copy())
    yield lambda: ops.unpack_levels(OUT, bounds, scales, 7, 4, X.copy())


@pytest.mark.parametrize("bad", [[], [0], [0, 9], [0, 11], [1, 10], [0, 5, 4, 10], [0, 11, 10], [0, -1, 10], [10, 0]])
def test_bounds(ops, bad):
    for call in (*with_bounds(ops, np.int64(bad)), *with_bounds(oracle, np.int64(bad))):
        with pytest.raises(InvalidArgument, match="bounds must ascend from 0 to 10"):
            call()


def test_bounds_of_another_kind(ops):
    for call in with_bounds(ops, np.int32(BOUNDS)):
        with pytest.raises(InvalidArgument, match="bounds must be of dtype int64, got int32"):
            call()
    for call in with_bounds(ops, np.repeat(BOUNDS, 2)[::2]):
        with pytest.raises(BufferRefused, match="bounds must be contiguous"):
            call()


@pytest.mark.parametrize(("levels", "width"), [(0, 4), (8, 4), (-1, 4), (1, 3), (2, 2), (128, 8), (32768, 16), (1, 32)])
def test_levels_that_do_not_fit(ops, levels, width):
    match = rf"levels must be in \[1, 2\^\(width-1\) - 1\] .* got {levels} and {width}"
    for implementation in (ops, oracle):
        with pytest.raises(InvalidArgument, match=match):
            implementation.pack_levels(X, BOUNDS, SCALES, levels, width, 0, KEY, OUT.copy())
        with pytest.raises(InvalidArgument, match=match):
            implementation.unpack_levels(OUT, BOUNDS, SCALES, levels, width, X.copy())


@pytest.mark.parametrize("unit", [0.0, -1.0, float("inf"), float("nan")])
def test_units(ops, unit):
    codes = np.zeros(10, np.int8)
    for implementation in (ops, oracle):
        for call in (lambda o: o.quantise(X, unit, 0, None, codes), lambda o: o.dequantise(codes, unit, X.copy())):
            with pytest.raises(InvalidArgument, match=f"unit must be a positive number, got {unit}"):
                call(implementation)


def coded_values(ops, n, dtype):
    """Every kind of coded values, and an array."""
    rng = np.random.default_rng(n)
    bounds = ops.group_bounds(np.unique(np.int64([0, *rng.integers(n + 1, size=7), n])) if n else np.int64([0, 0]))
    low, high = rng.random((2, bounds.size - 1)).astype(dtype)
    bits, message = rng.integers(256, size=(n + 7) // 8).astype(np.uint8), np.zeros(n + HEAD.itemsize, np.uint8)
    packed, x = np.zeros((n + 1) // 2, np.uint8), rng.standard_normal(n).astype(dtype)
    oracle.pack_levels(x, np.int64([0, n]), np.ones(1, dtype), 7, 4, 0, KEY, packed)
    oracle.encode_natural(x, np.int64([0, n]), 0, KEY, message)
    for operation, arguments in (
        ("unpack_signs", {"packed": bits, "bounds": bounds, "negative": -low, "positive": high}),
        ("unpack_signs", {"packed": bits, "bounds": bounds, "negative": None, "positive": high}),
        ("unpack_levels", {"packed": packed, "bounds": bounds, "scales": high, "levels": 7, "width": 4}),
        ("decode_natural", {"message": message, "known": True}),
        ("unpack_natural", {"packed": message[HEAD.itemsize :], "top": 3}),
        ("dequantise", {"codes": rng.integers(-99, 99, n).astype(np.int16), "unit": 0.3}),
    ):
        yield ops.coded(operation, arguments, n, np.dtype(dtype))
    yield x


@pytest.mark.parametrize("n", (*SIZES, LONG))
@pytest.mark.parametrize("dtype", REALS)
def test_coded_values(ops, rng, dtype, n):
    grad, memory, start = vector(rng, n, dtype), vector(rng, n, dtype), n // 16 * 8
    for plus in (None, grad):
        out, expected = np.full(n, 7, dtype), np.zeros(n, dtype)
        ops.coded_mean(iter(list(coded_values(ops, n, dtype))), 1 / 3, plus, out)
        oracle.coded_mean(coded_values(oracle, n, dtype), 1 / 3, plus, expected)
        assert_same(out, expected)
    for one, other in zip(coded_values(ops, n, dtype), coded_values(oracle, n, dtype), strict=True):
        out, expected = memory[start:].copy(), memory[start:].copy()
        ops.coded_update(out, grad[start:].copy(), one, start, 0.3)
        oracle.coded_update(expected, grad[start:], other, start, 0.3)
        assert_same(out, expected)


def test_coded_mean_begins_with_zero(ops):
    out = np.ones(3, np.float32)
    ops.coded_mean([np.float32([-0.0] * 3)], 1.0, None, out)
    assert not np.signbit(out).any()


def test_coded_update_begins_at_a_whole_byte(ops):
    with pytest.raises(InvalidArgument, match="first must be a multiple of 8, got 3"):
        ops.coded_update(X.copy(), X, np.zeros(20, np.float32), 3, 1.0)


def test_lengths_and_dtypes(ops):
    one, codes, wide = SCALES[:1], np.zeros(9, np.int8), np.ones(2)
    for call, match in (
        (lambda: ops.group_norms(X, BOUNDS, "max", one.copy()), "out must have 2 elements, got 1"),
        (lambda: ops.group_norms(X, BOUNDS, "max", wide.copy()), "out must be of dtype float32, got float64"),
        (lambda: ops.group_norms(X, BOUNDS, "l1", SCALES.copy()), "kind must be one of l2, max, mean, capped, got l1"),
        (lambda: ops.group_means(X, BOUNDS, SCALES.copy(), one.copy()), "positive must have 2 elements, got 1"),
        (lambda: ops.pack_signs(X, OUT.copy()), "out must have 2 elements, got 5"),
        (lambda: ops.unpack_signs(OUT, BOUNDS, SCALES, SCALES, X.copy()), "packed must have 2 elements, got 5"),
        (lambda: ops.unpack_signs(OUT[:2], BOUNDS, one, SCALES, X.copy()), "negative must have 2 elements, got 1"),
        (lambda: ops.pack_levels(X, BOUNDS, SCALES, 1, 2, 0, KEY, OUT.copy()), "out must have 3 elements, got 5"),
        (lambda: ops.pack_levels(X, BOUNDS, wide, 7, 4, 0, KEY, OUT.copy()), "scales must be of dtype float32, got"),
        (lambda: ops.pack_levels(X, BOUNDS, SCALES, 7, 4, -1, KEY, OUT.copy()), "first must be >= 0, got -1"),
        (lambda: ops.pack_levels(X, BOUNDS, SCALES, 7, 4, 0, (1, 2), OUT.copy()), r"key must be \(seed below"),
        (lambda: ops.unpack_levels(OUT[:4], BOUNDS, SCALES, 7, 4, X.copy()), "packed must have 5 elements, got 4"),
        (lambda: ops.quantise(X, 1.0, 0, None, codes), "codes must have 10 elements, got 9"),
        (lambda: ops.quantise(X, 1.0, 0, None, OUT), "codes must be of dtype int8, int16, int32, got uint8"),
        (lambda: ops.dequantise(codes, 1.0, X.copy()), "codes must have 10 elements, got 9"),
        (lambda: ops.pack_natural(X, 0, 0, KEY, OUT.copy()), "out must have 10 elements, got 5"),
        (lambda: ops.unpack_natural(OUT, 0, X.copy()), "packed must have 10 elements, got 5"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            call()

"""Block codes: the oracle's bytes, the documented errors, cuts at whole blocks, coded values, refusals."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from arrays import REALS, assert_same, with_specials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.arguments import Key
from mpicomp.ops.block_codes import BLOCK, FORMATS, LARGEST, block_codes_nbytes, largest_error

SIZES = (0, 1, 7, 255, 256, 257, 1025)
LONG = 70_001  # several blocks of threads
KEYS = (None, Key(2**40 + 1, 2, 3))
HYPOTHESIS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

all_formats = pytest.mark.parametrize("format", FORMATS)
all_reals = pytest.mark.parametrize("dtype", REALS)


def encoded(ops, x, format, key=None, first=0):
    codes = np.full(block_codes_nbytes(x.size, format), 0xAA, np.uint8)
    ops.encode_blocks(x, format, codes, key, first)
    return codes


def decoded(ops, codes, format, n, dtype):
    out = np.full(n, -7, dtype)
    ops.decode_blocks(codes, format, out)
    return out


def vectors(rng, n, dtype):
    """Noise, wide ranges, zeros, ties, the largest and the smallest numbers, and numbers that are not finite."""
    noise, kind = rng.standard_normal(n), np.finfo(dtype)
    yield noise.astype(dtype)
    yield (10.0 ** rng.integers(-36, 36, n) * noise).astype(dtype)
    yield np.zeros(n, dtype)
    yield (-0.0 * noise).astype(dtype)
    yield (np.resize([127, 0.5, 1.5, -2.5, 3.5, 0.25], n) * np.exp2(rng.integers(-9, 9))).astype(dtype)
    yield (np.resize([7, 0.5, 448, -27, 25, 0.0009765625], n)).astype(dtype)
    yield (kind.max * np.sign(noise)).astype(dtype)
    yield (kind.smallest_subnormal * rng.integers(-300, 300, n)).astype(dtype)
    yield (kind.tiny * noise).astype(dtype)
    yield with_specials(rng, noise.astype(dtype))
    yield np.where(rng.random(n) < 3 / max(n, 1), np.inf, noise).astype(dtype)


def largest_of_blocks(x):
    """Largest magnitude of the block of each element."""
    starts = np.arange(0, x.size, BLOCK)
    return np.repeat(np.maximum.reduceat(np.abs(x), starts) if x.size else x, BLOCK)[: x.size]


def assert_within(out, x, format, stochastic):
    """Decoded values are as far from x as documented, and no larger than the block's largest value; NaN blocks."""
    largest = largest_of_blocks(x)
    finite = np.isfinite(largest)
    assert np.isnan(out[~finite]).all()
    bounds = largest_error(largest[finite], format, x.dtype, stochastic)
    for got, value, bound, most in zip(out[finite].tolist(), x[finite].tolist(), bounds.tolist(),
                                       largest[finite].tolist(), strict=True):
        assert abs(Fraction(got) - Fraction(value)) <= Fraction(bound)
        assert abs(got) <= max(most, LARGEST[format] * float(np.finfo(x.dtype).tiny))


@all_reals
@all_formats
def test_codes_are_the_oracles(ops, rng, format, dtype):
    for n in (*SIZES, LONG):
        for x in [*vectors(rng, n, dtype)][: 2 if n == LONG else None]:
            for key in KEYS:
                first = int(rng.integers(2**34)) * BLOCK
                codes = encoded(ops, x, format, key, first)
                assert_same(codes, encoded(oracle, x, format, key, first))
                assert_same(decoded(ops, codes, format, n, dtype), decoded(oracle, codes, format, n, dtype))


@all_reals
@all_formats
def test_any_bytes_are_decoded_as_by_the_oracle(ops, rng, format, dtype):
    for n in SIZES:
        codes = rng.integers(0, 256, block_codes_nbytes(n, format)).astype(np.uint8)
        assert_same(decoded(ops, codes, format, n, dtype), decoded(oracle, codes, format, n, dtype))


@all_formats
def test_a_long_result_is_that_of_its_parts(ops, rng, format):
    """It is written past the caches, and the lines at its ends are shared with others."""
    n, part = 2**18 + 300, 100 * BLOCK
    codes = rng.integers(0, 256, block_codes_nbytes(n, format)).astype(np.uint8)
    whole, parts = np.full((2, n + 2), 7, np.float32)
    ops.decode_blocks(codes, format, whole[1:-1])
    for begin in range(0, n, part):
        end = min(n, begin + part)
        ops.decode_blocks(codes[block_codes_nbytes(begin, format) : block_codes_nbytes(end, format)], format,
                          parts[1 + begin : 1 + end])
    assert_same(whole, parts)


@all_reals
@all_formats
def test_errors_are_as_documented(format, dtype, rng):
    for x in vectors(rng, 600, dtype):
        for key in KEYS:
            assert_within(decoded(oracle, encoded(oracle, x, format, key), format, x.size, dtype), x, format, key)


@all_reals
@all_formats
def test_no_value_exceeds_the_largest_of_its_block(ops, rng, format, dtype):
    x = np.zeros((1000, BLOCK), dtype)
    x[:, 0] = rng.uniform(127 / 64, 2, len(x))  # one in 32 has a quotient that float32 rounds up to the bits of a scale
    out = decoded(ops, encoded(ops, x.ravel(), format), format, x.size, dtype)
    assert (np.abs(out) <= np.repeat(x[:, 0], BLOCK)).all()


@HYPOTHESIS
@given(data=st.data())
def test_any_values_are_within_the_documented_error(data):
    dtype, format = data.draw(st.sampled_from(REALS)), data.draw(st.sampled_from(FORMATS))
    finite = data.draw(st.booleans())
    elements = st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=not finite, allow_infinity=not finite)
    x = data.draw(arrays(dtype, st.integers(0, 300), elements=elements))
    key = data.draw(st.sampled_from(KEYS))
    assert_within(decoded(oracle, encoded(oracle, x, format, key), format, x.size, dtype), x, format, key)


@all_reals
def test_fp8_is_that_of_ml_dtypes(ops, rng, dtype):
    """With a scale of 1; the error is relative, or that of subnormal numbers.

    The values are float32 ones, since ml_dtypes rounds float64 twice: 19 - 1e-9 to 19 and then to 20.
    """
    x = (rng.uniform(-448, 448, 50 * BLOCK) * 2.0 ** rng.integers(-20, 1, 50 * BLOCK)).astype(np.float32)
    x[::BLOCK] = 448
    x[1::BLOCK] = rng.choice([0.0009765625, -0.0029296875, 17, 19, -464 / 2], 50)  # ties
    x = x.astype(dtype)
    codes = encoded(ops, x, "fp8").reshape(50, -1)
    expected = x.astype(ml_dtypes.float8_e4m3fn)
    assert_same(codes[:, 4:].ravel(), expected.view(np.uint8))
    out = decoded(ops, codes.ravel(), "fp8", x.size, dtype)
    assert_same(out, expected.astype(dtype))
    assert np.all(np.abs(out - x) <= np.maximum(np.abs(x) / 16, 2.0**-10))


def test_fp8_rounds_float64_once(ops):
    x = np.array([448, 19 - 1e-9, 19 + 1e-9, 17 - 1e-9, 17 + 1e-9])
    assert_same(decoded(ops, encoded(ops, x, "fp8"), "fp8", x.size, x.dtype), np.array([448, 18, 20, 16, 18.0]))


@all_reals
@all_formats
def test_stochastic_rounding_is_unbiased(format, dtype, rng):
    """The mean of 4096 roundings of a value is within 6 standard errors of it."""
    value, count = dtype(rng.uniform(0.1, 0.9)), 4096
    x = np.full(count, value)
    x[::BLOCK] = 1  # sets the scale
    out = decoded(oracle, encoded(oracle, x, format, Key(int(rng.integers(2**60)), 0, 0)), format, count, dtype)
    kept = np.delete(out.astype(np.float64), np.arange(0, count, BLOCK))
    step = largest_error(1, format, np.float64, stochastic=True)
    assert len(np.unique(kept)) <= 2
    assert abs(kept.mean() - value) <= 6 * (step / 2) / np.sqrt(kept.size) + 2e-6


@all_formats
def test_parts_of_whole_blocks_have_the_same_bytes(ops, rng, format):
    x = rng.standard_normal(1000).astype(np.float32)
    for key in KEYS:
        whole = encoded(ops, x, format, key, 7 * BLOCK)
        for cut in (0, 256, 768):
            parts = [encoded(ops, x[:cut], format, key, 7 * BLOCK),
                     encoded(ops, x[cut:], format, key, 7 * BLOCK + cut)]
            assert_same(np.concatenate(parts), whole)
            at = block_codes_nbytes(cut, format)
            out = decoded(ops, whole, format, x.size, x.dtype)
            assert_same(decoded(ops, whole[at:].copy(), format, x.size - cut, x.dtype), out[cut:])


@all_reals
@all_formats
def test_coded_values(ops, rng, format, dtype):
    """Means and updates of codes have the bits of those of values; parts begin within blocks."""
    n = 5000
    xs = rng.standard_normal((3, n)).astype(dtype)
    codes = [encoded(ops, x, format) for x in xs]
    values = [decoded(ops, one, format, n, dtype) for one in codes]
    coded = [ops.coded("decode_blocks", {"codes": one, "format": format}, n, np.dtype(dtype)) for one in codes]
    out, expected = np.empty((2, n), dtype)
    ops.coded_mean(coded, 1 / 3, None, out)
    oracle.coded_mean(values, 1 / 3, None, expected)
    assert_same(out, expected)
    for first, length in ((0, n), (256, 1000), (8, 100), (1000, n - 1000)):
        memory, grad = rng.standard_normal((2, length)).astype(dtype)
        again = memory.copy()
        ops.coded_update(memory, grad, coded[0], first, 0.5)
        oracle.coded_update(again, grad, values[0], first, 0.5)
        assert_same(memory, again)


@pytest.mark.parametrize("sent, problem", [(np.float16(1), "dtype"), (np.int32(1), "dtype")])
def test_values_of_other_types_are_refused(ops, sent, problem):
    with pytest.raises(InvalidArgument, match=problem):
        ops.encode_blocks(np.array([sent]), "int8", np.empty(5, np.uint8))


def test_bad_arguments_are_refused(ops):
    x, codes = np.ones(3, np.float32), np.empty(7, np.uint8)
    with pytest.raises(InvalidArgument, match="format must be one of int8, int4, fp8, got 'int2'"):
        ops.encode_blocks(x, "int2", codes)
    with pytest.raises(InvalidArgument, match="format must be one of"):
        ops.decode_blocks(codes, "", x)
    with pytest.raises(InvalidArgument, match="format must be one of"):
        block_codes_nbytes(3, "fp16")
    for nbytes in (0, 6, 8):
        with pytest.raises(InvalidArgument, match="codes must have 7 elements"):
            ops.encode_blocks(x, "int8", np.empty(nbytes, np.uint8))
        with pytest.raises(InvalidArgument, match="codes must have 7 elements"):
            ops.decode_blocks(np.empty(nbytes, np.uint8), "fp8", x)
    with pytest.raises(InvalidArgument, match="codes must"):
        ops.encode_blocks(x, "int8", codes.view(np.int8))
    with pytest.raises(InvalidArgument, match="key must be"):
        ops.encode_blocks(x, "int8", codes, (1, 2, 2**32))
    with pytest.raises(InvalidArgument, match="first must be"):
        ops.encode_blocks(x, "int8", codes, KEYS[1], -256)

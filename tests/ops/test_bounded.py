"""Error-bounded codes: the oracle's bytes, the bound in exact arithmetic, sums of integers, refusals of bad bytes."""

from fractions import Fraction

import numpy as np
import pytest
from arrays import REALS, assert_same, with_specials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.ops import oracle
from mpicomp.ops.error_bound import (
    BLOCK,
    BYTES_OF_HEADER,
    ESCAPED,
    GROUP,
    LARGEST,
    WIDEST,
    Header,
    block_sizes,
    bounded_capacity,
    grid_of,
    headers_of,
    largest_integer,
)

SIZES = (0, 1, 2, 63, 127, 128, 129, 1000, 1025)
LONG = 20_000  # several blocks of threads
HYPOTHESIS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encoded(ops, x, bound, terms=1):
    codes = np.full(bounded_capacity(x.size, x.dtype) + 3, 0xAA, np.uint8)
    nbytes, escaped = ops.encode_bounded(x, bound, terms, codes)
    assert np.all(codes[nbytes:] == 0xAA)
    return codes[:nbytes].copy(), escaped


def summed(ops, streams, n, dtype, bound):
    codes = np.full(bounded_capacity(n, dtype) + 3, 0xAA, np.uint8)
    nbytes, escaped = ops.sum_bounded(streams, n, dtype, bound, codes)
    assert np.all(codes[nbytes:] == 0xAA)
    return codes[:nbytes].copy(), escaped


def decoded(ops, codes, n, dtype, bound, divisor=1):
    out = np.full(n, -7, dtype)
    ops.decode_bounded(codes, bound, divisor, out)
    return out


def fields(rng, n, dtype):
    """Smooth, noisy, constant, alternating, steep and special values, with a bound for each."""
    t = np.arange(n)
    smooth, noise = np.sin(t / 50), rng.standard_normal(n)
    large = np.finfo(dtype).max
    yield smooth.astype(dtype), 1e-3
    yield smooth.astype(dtype), 1e-6  # third differences
    yield (t / 8).astype(dtype), 0.05  # second differences of 0
    yield noise.astype(dtype), 10.0 ** rng.integers(-7, 1)
    yield noise.astype(dtype), 1e-12
    yield np.zeros(n, dtype), 1e-3
    yield np.full(n, -12.345, dtype), 1e-2
    yield (1e4 * (-1.0) ** t).astype(dtype), 2e-5
    yield (smooth + np.repeat(noise, GROUP)[:n]).astype(dtype), 1e-6  # groups begin anew
    yield (10.0 ** rng.integers(-30, 30, n) * noise).astype(dtype), 1e-6
    yield np.full(n, np.finfo(dtype).smallest_subnormal), 5e-324
    yield (large * np.sign(noise)).astype(dtype), 1e300
    yield np.round(noise).astype(dtype), 0.5  # ties
    yield with_specials(rng, smooth.astype(dtype)), 1e-4
    yield np.where(rng.random(n) < 3 / max(n, 1), np.nan, smooth).astype(dtype), 1e-2
    yield np.repeat(noise[: n // 40 + 1], 40)[:n].astype(dtype), 1e-3


def assert_bounded(out, x, bound, divisor=1):
    """|out - x / divisor| <= bound / divisor, and half a unit in the last place of the result for its rounding."""
    for got, value in zip(out.tolist(), x.tolist(), strict=True):
        if np.isfinite(value):
            rounding = Fraction(float(np.spacing(out.dtype.type(abs(got))))) / 2
            assert abs(Fraction(got) - Fraction(value) / divisor) <= Fraction(bound) / divisor + rounding
        else:
            assert str(got) == str(value)


def test_more_headers_than_a_block_of_threads_reads(ops, rng):
    """Escaped blocks are counted, and a wrong header is found, in the last block as in the first."""
    x, bound = rng.standard_normal(300 * BLOCK + 5).astype(np.float32), 1e-3
    x[[0, -1]] = np.nan
    stream, escaped = encoded(ops, x, bound)
    expected, _ = encoded(oracle, x, bound)
    assert_same(stream, expected)
    assert escaped == 2
    assert_same(decoded(ops, stream, x.size, x.dtype, bound), decoded(oracle, stream, x.size, x.dtype, bound))
    for block in (0, 300):
        wrong = stream.copy()
        wrong[4 * block : 4 * block + 4] = 0xFE, 0xFF, 0xFF, 0xFF
        with pytest.raises(InvalidArgument, match="codes must hold one whole stream"):
            decoded(ops, wrong, x.size, x.dtype, bound)


@pytest.mark.parametrize("dtype", REALS)
def test_streams_are_the_oracles(ops, rng, dtype):
    for n in (*SIZES, LONG):
        for x, bound in fields(rng, n, dtype):
            terms = int(rng.integers(1, 9))
            codes, escaped = encoded(ops, x, bound, terms)
            expected, expected_escaped = encoded(oracle, x, bound, terms)
            assert_same(codes, expected)
            assert escaped == expected_escaped
            assert_same(decoded(ops, codes, n, dtype, bound), decoded(oracle, codes, n, dtype, bound))


@pytest.mark.parametrize("dtype", REALS)
def test_sums_are_the_oracles(ops, rng, dtype):
    for n in (*SIZES, LONG):
        chosen = [*zip(fields(rng, n, dtype), fields(rng, n, dtype), strict=True)]
        if n == LONG:  # of which the oracle takes a second each
            chosen = [chosen[i] for i in rng.choice(len(chosen), 4, replace=False)]
        for kinds in chosen:
            bound = kinds[0][1]
            streams = [encoded(ops, x, bound, 3)[0] for x, _ in kinds]
            streams.append(encoded(ops, np.cos(np.arange(n) / 9).astype(dtype), bound, 3)[0])
            for parts in (streams, streams[:1]):
                codes, escaped = summed(ops, parts, n, dtype, bound)
                expected, expected_escaped = summed(oracle, parts, n, dtype, bound)
                assert_same(codes, expected) if not escaped else assert_same_values(codes, expected, n, dtype, bound)
                assert escaped == expected_escaped
            out = decoded(ops, codes, n, dtype, bound, 3)
            assert_same(out, decoded(oracle, expected, n, dtype, bound, 3))


def assert_same_values(codes, expected, n, dtype, bound):
    """Bytes of escaped blocks may hold another NaN."""
    assert len(codes) == len(expected)
    assert_same(*(decoded(oracle, one, n, dtype, bound) for one in (codes, expected)))


@pytest.mark.parametrize("dtype", REALS)
def test_values_are_within_the_bound(dtype, rng):
    for x, bound in fields(rng, 200, dtype):
        codes, _ = encoded(oracle, x, bound)
        assert_bounded(decoded(oracle, codes, x.size, dtype, bound), x, bound)


@HYPOTHESIS
@given(data=st.data())
@pytest.mark.parametrize("dtype", REALS)
def test_sums_in_exact_arithmetic(dtype, data):
    """Blocks on the grid: the mean is within the bound of the exact one, and one rounding."""
    real = st.floats(-1e6, 1e6, width=8 * np.dtype(dtype).itemsize)
    terms = data.draw(st.integers(1, 16))
    n = data.draw(st.integers(1, 80))
    bound = data.draw(st.sampled_from([1e-3, 0.1, 0.3, 7.0, 1e5]) | st.floats(0.05, 1e6))
    few = [np.array(data.draw(st.lists(real, min_size=n, max_size=n)), dtype) for _ in range(min(terms, 3))]
    xs = [few[k % len(few)] for k in range(terms)]
    made = [encoded(oracle, x, bound, terms) for x in xs]
    codes, escaped = summed(oracle, [stream for stream, _ in made], n, dtype, bound)
    if escaped:
        assert sum(count for _, count in made)
        return
    step = Fraction(grid_of(bound).step)
    out = decoded(oracle, codes, n, dtype, bound, terms)
    for i, got in enumerate(out.tolist()):
        exact = sum(Fraction(float(x[i])) for x in xs) / terms
        rounding = Fraction(float(np.spacing(dtype(abs(got))))) * Fraction(51, 100)  # float64 is rounded to float32
        assert abs(Fraction(got) - exact) <= Fraction(bound) + rounding
        assert (Fraction(got) * terms / step - round(Fraction(got) * terms / step)) * step <= rounding * terms


@pytest.mark.parametrize("dtype", REALS)
def test_sums_do_not_depend_on_the_order(ops, rng, dtype):
    n, bound = 777, 1e-3
    streams = [encoded(ops, np.cumsum(rng.standard_normal(n)).astype(dtype), bound, 4)[0] for _ in range(4)]
    at_once, _ = summed(ops, streams, n, dtype, bound)
    halves = [summed(ops, pair, n, dtype, bound)[0] for pair in (streams[2:], streams[:2])]
    assert_same(summed(ops, halves, n, dtype, bound)[0], at_once)
    assert_same(summed(ops, streams[::-1], n, dtype, bound)[0], at_once)


@pytest.mark.parametrize("dtype", REALS)
def test_the_largest_integers_add_up(ops, dtype):
    for terms in (1, 3, 16):
        x = np.full(100, float(largest_integer(dtype, terms, grid_of(0.5))) // 2**8 * 2**8, dtype)
        x[::2] *= -1
        x -= np.fmod(x, dtype(2.0**30))  # whole in float32
        x = x if x.any() else np.full(100, 2.0**20, dtype)
        stream, escaped = encoded(ops, x, 0.5, terms)
        assert escaped == 0
        codes, escaped = summed(ops, [stream] * terms, 100, dtype, 0.5)
        assert escaped == 0
        assert_same(decoded(ops, codes, 100, dtype, 0.5, terms), x)


@pytest.mark.parametrize("dtype", REALS)
def test_finite_values_stay_finite(ops, dtype):
    """A value whose grid point is beyond the type's largest number escapes, a fill value for example."""
    most, whole = np.finfo(dtype).max, np.longdouble
    x = np.concatenate([np.full(9, most), np.linspace(-whole(most), most, 2 * BLOCK), np.linspace(0, most / 2, BLOCK)])
    x = x.astype(dtype)
    for share in (1e-7, 1e-4, 1e-3, 0.01, 0.015, 0.1, 0.3, 0.5, 0.7, 1.0):
        bound = float(most) * share
        stream, escaped = encoded(ops, x, bound)
        assert_same(stream, encoded(oracle, x, bound)[0])
        out = decoded(ops, stream, x.size, dtype, bound)
        assert (abs(out.astype(whole) - x) <= whole(bound) + np.spacing(most / 2)).all(), bound
        assert escaped < 4 or not 1e-6 < share < 0.5


@pytest.mark.parametrize("dtype", REALS)
def test_order_of_differences(ops, dtype):
    """The order that makes blocks short; of a sum the lowest of its streams that are not constant."""
    t, itemsize = np.arange(10 * BLOCK), np.dtype(dtype).itemsize
    streams = {}
    for expected, x in enumerate(((-1.0) ** t * t, t**2 / 50.0, 1e4 * np.sin(t / 50)), start=1):
        streams[expected], _ = encoded(ops, x.astype(dtype), 0.05, 4)
        assert orders_of(streams[expected], itemsize) == {expected}
    streams[0], _ = encoded(ops, np.ones(t.size, dtype), 0.05, 4)  # constant
    for those, expected in (((3, 0, 3), 3), ((2, 3), 2), ((3, 1, 2), 1), ((0, 0), 1)):
        total, _ = summed(ops, [streams[order] for order in those], t.size, dtype, 0.05)
        assert orders_of(total, itemsize) == {expected}


def orders_of(stream, itemsize):
    """Orders of the differences in a stream of ten blocks."""
    return {header.order for header in read_headers(stream, 10 * BLOCK, itemsize)}


def read_headers(stream, n, itemsize):
    return [Header.read(int(header), itemsize) for header in headers_of(stream, n)]


@pytest.mark.parametrize("dtype", REALS)
def test_groups_behind_a_jump_begin_anew(ops, dtype):
    """Rows of 64 and 96 smooth elements; of a sum, groups begin anew if one of its streams' do."""
    t, itemsize, bound = np.arange(12 * BLOCK), np.dtype(dtype).itemsize, 0.05
    begun = {}
    for row in (64, 96):
        x = 1e4 * np.sin(t % row / 50)
        begun[row], _ = encoded(ops, x.astype(dtype), bound, 2)
        headers = read_headers(begun[row], t.size, itemsize)
        assert [first for header in headers for first in header.begun] == [
            begin % row == 0 or begin % BLOCK == 0 for begin in range(0, t.size, GROUP)]
        assert max(width for header in headers for width in header.widths) < 6
    total, _ = summed(ops, list(begun.values()), t.size, dtype, bound)
    for one, *others in zip(*(read_headers(made, t.size, itemsize) for made in (total, *begun.values())), strict=True):
        assert one.begun == [any(choices) for choices in zip(*(other.begun for other in others), strict=True)]
    constant, _ = encoded(ops, np.ones(t.size, dtype), bound, 2)
    total, _ = summed(ops, [begun[64], constant], t.size, dtype, bound)
    assert read_headers(total, t.size, itemsize)[0].widths == read_headers(begun[64], t.size, itemsize)[0].widths


def test_sizes_of_constant_blocks(ops):
    for dtype, largest in ((np.float32, 4), (np.float64, 8)):
        for value, size in ((0.0, 0), (-0.0, 0), (1.0, largest // 4), (10.0 ** (1.5 * largest), largest)):
            codes, escaped = encoded(ops, np.full(10 * BLOCK, value, dtype), 0.5)
            assert (codes.size, escaped) == (10 * (BYTES_OF_HEADER + size), 0)
    assert encoded(ops, np.full(BLOCK + 3, np.inf, np.float32), 0.5)[1] == 2


@pytest.mark.parametrize("dtype", REALS)
def test_bytes_that_are_no_stream_are_refused(ops, rng, dtype):
    n, bound = 300, 1e-3
    x = np.cumsum(rng.standard_normal(n)).astype(dtype)
    x[n - 1] = np.nan
    stream, _ = encoded(ops, x, bound)
    longer = np.append(stream, np.uint8(0))
    unknown = []
    for order, top, width in ((3, 0, 0), (0, 1, 0), (0, 0, WIDEST[np.dtype(dtype).itemsize] + 1)):
        bad = stream.copy()
        bad[: 2 * BYTES_OF_HEADER].view("<u4")[1] = order | top << 31 | width << 25
        unknown.append(bad)
    match = f"codes must hold one whole stream of {n} elements of {np.dtype(dtype)}"
    for bad in (stream[:-1], stream[:3], stream[:0], longer, *unknown):
        for implementation in (ops, oracle):
            with pytest.raises(InvalidArgument, match=match):
                decoded(implementation, bad, n, dtype, bound)
            with pytest.raises(InvalidArgument, match=match):
                summed(implementation, [stream, bad], n, dtype, bound)


@pytest.mark.parametrize("dtype", REALS)
def test_bent_streams_are_read_alike_or_refused(ops, rng, dtype):
    """Each byte of a stream bent."""
    n, bound = 150, 0.5
    x = (np.sin(np.arange(n) / 9) * 100).astype(dtype)
    x[n - 1] = np.nan
    stream, _ = encoded(ops, x, bound)
    for at in range(stream.size):
        bent = stream.copy()
        bent[at] ^= rng.integers(1, 256)
        compare_read_and_added(ops, bent, n, dtype)


@HYPOTHESIS
@given(data=st.data())
def test_any_bytes_are_read_alike_or_refused(ops, data):
    dtype, n = data.draw(st.sampled_from(REALS)), data.draw(st.integers(0, 200))
    itemsize, count = np.dtype(dtype).itemsize, -(-n // BLOCK)
    sizes = st.sampled_from([0, itemsize // 4, itemsize // 2, itemsize])
    widths, flags = st.integers(0, WIDEST[itemsize]), st.booleans()
    header = st.builds(lambda *given: Header(*given).value(itemsize), st.integers(1, 3), sizes,
                       st.tuples(st.just(True), flags, flags, flags), st.tuples(widths, widths, widths, widths))
    header |= st.sampled_from([0, ESCAPED]) | st.integers(0, ESCAPED)
    headers = np.array(data.draw(st.lists(header, min_size=count, max_size=count)), "<u4")
    seed = data.draw(st.integers(0, 2**32 - 1))
    body = np.random.default_rng(seed).integers(0, 256, 3000, np.uint8)
    length = int(block_sizes(headers.astype(np.int64), n, dtype).sum())
    stream = np.append(headers.view(np.uint8), body[: max(0, length)])
    compare_read_and_added(ops, stream, n, dtype)


def compare_read_and_added(ops, stream, n, dtype):
    """The values or the refusals are the oracle's."""
    outcomes = [read_and_added(implementation, stream, n, dtype) for implementation in (ops, oracle)]
    assert [isinstance(out, str) for out, _ in outcomes] in ([True, True], [False, False])
    for got, expected in zip(*outcomes, strict=True):
        if isinstance(got, str) or isinstance(expected, str):  # too wide sums that no encoder causes may be refused
            continue
        known = ~(np.abs(expected) > 2.0**48)  # integers that no encoder writes have no defined value
        assert_same(np.where(known, got, 0), np.where(known, expected, 0))


def read_and_added(implementation, stream, n, dtype):
    """The values of a stream and of its sum with itself; the error message of a refused one."""
    found = []
    with np.errstate(all="ignore"):
        for read in (lambda: decoded(implementation, stream, n, dtype, 0.5, 3),
                     lambda: decoded(oracle, summed(implementation, [stream] * 2, n, dtype, 0.5)[0], n, dtype, 0.5)):
            try:
                found.append(read())
            except InvalidArgument as error:
                found.append(str(error))
    return found


def test_arguments(ops):
    x, room = np.ones(100, np.float32), np.zeros(bounded_capacity(100, np.float32), np.uint8)
    stream, _ = encoded(ops, x, 0.5)
    for bound in (0.0, -1.0, np.nan, np.inf):
        for call in (lambda o, b: o.encode_bounded(x, b, 1, room),
                     lambda o, b: o.decode_bounded(stream, b, 1, x.copy()),
                     lambda o, b: o.sum_bounded([stream], 100, np.float32, b, room)):
            for implementation in (ops, oracle):
                with pytest.raises(InvalidArgument, match=f"bound must be a positive number, got {bound}"):
                    call(implementation, bound)
    for call, match in (
        (lambda o: o.encode_bounded(x, 0.5, 0, room), r"terms must be in \[1, 65536\], got 0"),
        (lambda o: o.encode_bounded(x, 0.5, 2**17, room), r"terms must be in \[1, 65536\], got 131072"),
        (lambda o: o.encode_bounded(x, 0.5, 1, room[1:].copy()), "codes must have at least 564 elements for 100 of"),
        (lambda o: o.encode_bounded(np.int32([1]), 0.5, 1, room), "float32"),
        (lambda o: o.sum_bounded([stream], 100, np.float32, 0.5, room[1:].copy()), "codes must have at least 564"),
        (lambda o: o.sum_bounded([], 100, np.float32, 0.5, room), "streams must be at least one"),
        (lambda o: o.sum_bounded([stream], -1, np.float32, 0.5, room), "n at least 0, got 1 and -1"),
        (lambda o: o.sum_bounded([stream], 100, np.int8, 0.5, room), "dtype must be float32 or float64, got int8"),
        (lambda o: o.decode_bounded(stream, 0.5, 0, x.copy()), r"divisor must be in \[1, 2\^53\], got 0"),
    ):
        for implementation in (ops, oracle):
            with pytest.raises(InvalidArgument, match=match):
                call(implementation)
    for call in (lambda: ops.encode_bounded(np.ones(200, np.float32)[::2], 0.5, 1, room),
                 lambda: ops.decode_bounded(np.repeat(stream, 2)[::2], 0.5, 1, x.copy()),
                 lambda: ops.sum_bounded([np.repeat(stream, 2)[::2]], 100, np.float32, 0.5, room)):
        with pytest.raises(BufferRefused, match="must be contiguous"):
            call()


def test_the_step_is_at_most_twice_the_bound():
    for bound in (5e-324, 3e-308, 1e-3, 0.5, 1 / 3, 1e300, np.finfo(float).max):
        grid = grid_of(bound)
        assert 0 < grid.step <= 2 * Fraction(bound)
        assert grid.step >= 2 * Fraction(bound) * Fraction(127, 128) or bound > 1e308
        assert np.isfinite(grid.inverse)
        assert np.ldexp(np.frexp(grid.step)[0], 8) % 1 == 0


def test_sums_leave_room_for_differences():
    for itemsize, largest in LARGEST.items():
        assert largest_integer(f"f{itemsize}", 2**16, grid_of(0.5)) * 2**16 <= largest

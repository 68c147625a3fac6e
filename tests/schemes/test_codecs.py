"""Codecs by themselves: sizes on the wire, error bounds, expectation, groups, and what has gone wrong elsewhere."""

import math

import numpy as np
import pytest

from mpicomp.errors import InvalidArgument
from mpicomp.ops import ops_for
from mpicomp.ops.arguments import Key
from mpicomp.schemes import Scheme
from mpicomp.schemes.codecs import CODECS, _groups
from mpicomp.schemes.options import resolve
from mpicomp.schemes.values import Once, Place
from mpicomp.schemes.workers import Workers

TENSORS = [(0, 60, (6, 10)), (60, 60, (0, 4)), (60, 61, ()), (61, 91, (30,)), (91, 300, (11, 19))]
N = 300
ROUNDS = 600


class FakeStep:
    """Stand-in for a step, with the attributes that codecs use, without ranks."""

    def __init__(self, dtype=np.float32, number=0, tensors=TENSORS, workers=1, lam=0.25):
        self.ops, self.dtype, self.number = ops_for(np.empty(0)), np.dtype(dtype), number
        self.tensors, self.n, self.workers = tensors, tensors[-1][1], Workers.equal(workers, 1)
        self.selector, self._lam, self.of_layout = self, lam, Once()

    def threshold(self, step):
        return self._lam

    def density(self, target, span):
        return target

    def key(self, worker):
        return Key(7, self.number, worker)


def codec(text):
    """A codec as its schemes make it: ``name,option=value``."""
    name, *given = text.split(",")
    part = CODECS[name]
    return part(**resolve(part.options, dict(one.split("=") for one in given), name))


def whole(worker=0, n=N):
    return Place(worker, None, 0, n)


def listed(indices, worker=0, n=N):
    return Place(worker, np.array(indices, np.int32), 0, n)


def values_of(n=N, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


def encode(part, values, place, step):
    if part.shares_scale:
        part.share(part.peak([values], step), step)
    return part.encode(values, place, step)


def through(part, values, place, step):
    """Values that a receiver decodes from the bytes, into memory that held other values."""
    codes = np.array(encode(part, values, place, step).view(np.uint8))
    decoded = part.decode(codes, place, step)
    assert decoded.dtype == step.dtype
    assert decoded.shape == (place.size,)
    return decoded


ALL = ["one-bit", "one-bit,column=7", "sign", "levels", "levels,levels=1,bucket=9", "levels,levels=127,norm=max",
       "levels,levels=32767", "ternary", "ternary,sigmas=0", "stochastic", "stochastic,unit=0.1", "natural",
       "scaled-integer", "scaled-integer,bits=8,rounding=stochastic", "scaled-integer,bits=32", "fixed",
       "fixed,lam=0.5", "induced,density=0.1", "induced,k=1,bucket=32", "float", "blocks", "blocks,format=int4",
       "blocks,format=fp8,rounding=stochastic"]
UNBIASED = ["levels", "levels,levels=1,bucket=9", "levels,levels=7,norm=max,bucket=64", "ternary,sigmas=0",
            "stochastic,unit=0.5", "natural", "scaled-integer,bits=8,rounding=stochastic",
            "induced,density=0.05,bucket=64", "blocks,rounding=stochastic", "blocks,format=int4,rounding=stochastic",
            "blocks,format=fp8,rounding=stochastic"]


# ---- groups

def test_columns_are_output_units_and_long_ones_are_cut():
    starts = _groups.column_starts(TENSORS, 8)
    expected = [*(10 * unit + cut for unit in range(6) for cut in (0, 8)), 60, *range(61, 91, 8),
                *(91 + 19 * unit + cut for unit in range(11) for cut in (0, 8, 16))]
    np.testing.assert_array_equal(starts, expected)
    assert _groups.column_starts([(0, 0, (0,))], 8).size == 0


def test_bounds_within_a_piece():
    starts = _groups.tensor_starts(TENSORS)
    np.testing.assert_array_equal(_groups.within(starts, 0, N), [0, 60, 61, 91, 300])
    np.testing.assert_array_equal(_groups.within(starts, 60, 91), [0, 1, 31])
    np.testing.assert_array_equal(_groups.within(starts, 62, 90), [0, 28])
    np.testing.assert_array_equal(_groups.within(starts, 5, 5), [0, 0])
    np.testing.assert_array_equal(_groups.by_length(10, 4), [0, 4, 8, 10])
    np.testing.assert_array_equal(_groups.by_length(0, 4), [0, 0])


def test_bounds_of_a_list_name_only_tensors_that_are_in_it():
    ops = ops_for(np.empty(0))
    indices = np.array([3, 59, 61, 90, 91, 299], np.int32)
    np.testing.assert_array_equal(_groups.of_list(indices, TENSORS, ops), [0, 2, 4, 6])
    np.testing.assert_array_equal(_groups.of_list(indices[2:4], TENSORS, ops), [0, 2])
    np.testing.assert_array_equal(_groups.of_list(indices[:0], TENSORS, ops), [0, 0])


def test_bounds_are_right_above_2_to_the_24():
    base = 2**24
    tensors = [(0, base + 1, (base + 1,)), (base + 1, base + 3, (2,)), (base + 3, 2**31 + 5, (2**31 + 2 - base,))]
    indices = np.array([base - 1, base, base + 1, base + 2, base + 3, 2**31 + 4], np.int64)
    np.testing.assert_array_equal(_groups.of_list(indices, tensors, ops_for(indices)), [0, 2, 4, 6])
    starts = _groups.column_starts(tensors[:2], 2**23)
    np.testing.assert_array_equal(_groups.within(starts, 5, base + 3), [0, 2**23 - 5, base - 5, base - 4, base - 2])


# ---- the wire

def columns_of(longest):
    return sum(-(-length // longest) * count for length, count in ((10, 6), (1, 1), (30, 1), (19, 11)))


SIZES = {
    "one-bit": 38 + 8 * columns_of(4096), "one-bit,column=7": 38 + 8 * columns_of(7),
    "sign": 38 + 4 * 4,
    "levels": 150 + 4, "levels,bucket=100": 150 + 12, "levels,levels=1": 75 + 4, "levels,levels=8": 300 + 4,
    "levels,levels=127": 300 + 4, "levels,levels=128": 600 + 4,
    "ternary": 75 + 16,
    "natural": 304,
    "stochastic,unit=0.1": 300, "stochastic,unit=0.001": 600, "stochastic,unit=1e-6": 1200,
    "scaled-integer,bits=8": 300, "scaled-integer": 600, "scaled-integer,bits=32": 1200,
    "fixed": 38,
}


@pytest.mark.parametrize("text", SIZES)
def test_bytes_on_the_wire(text):
    assert encode(codec(text), values_of(), whole(), FakeStep()).nbytes == SIZES[text]


def test_induced_bytes_on_the_wire():
    values, step = values_of(), FakeStep()
    chosen = np.sort(np.argsort(-np.abs(values))[:30])
    width = int((np.diff(chosen, prepend=-1) - 1).max()).bit_length()
    nbytes = encode(codec("induced,density=0.1"), values, whole(), step).nbytes
    assert nbytes == 30 * 4 + math.ceil(30 * width / 8) + SIZES["levels"]


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [whole(3), Place(1, None, 57, 200), Place(0, None, 60, 61), Place(0, None, 9, 9),
                                   listed([0, 5, 60, 299]), listed([]), listed(range(N))],
                         ids=["whole", "piece", "one", "none", "list", "empty list", "full list"])
def test_codes_stand_by_themselves(text, dtype, place):
    """In every place; a value is never decoded to the other sign, nor to more than its group allows."""
    step = FakeStep(dtype)
    values = values_of(place.size, dtype)
    decoded = through(codec(text), values, place, step)
    assert np.isfinite(decoded).all()
    assert (decoded * values >= 0).all()
    assert np.abs(decoded).max(initial=0) <= max(0.5, 2 * np.linalg.norm(values))


@pytest.mark.parametrize("text", [text for text in ALL if not text.startswith("fixed")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_stay_zeros(text, dtype):
    step = FakeStep(dtype)
    np.testing.assert_array_equal(through(codec(text), np.zeros(N, dtype), whole(), step), 0)


# ---- reconstruction values

@pytest.mark.parametrize("number", [0, 1, 9])
def test_one_bit_decodes_to_the_means_of_its_column(number):
    """The scale is the mean itself, in step 0 too."""
    values = values_of()
    decoded = through(codec("one-bit"), values, whole(), FakeStep(number=number))
    for begin, end, shape in TENSORS:
        rows = shape[0] if len(shape) > 1 else 1
        for row, got in zip(values[begin:end].reshape(max(1, rows), -1) if end > begin else [],
                            decoded[begin:end].reshape(max(1, rows), -1), strict=False):
            for part in (row < 0, row >= 0):
                if part.any():
                    np.testing.assert_allclose(got[part], row[part].astype(float).mean(), rtol=1e-6)


@pytest.mark.parametrize("number", [0, 1, 9])
def test_sign_decodes_to_the_mean_magnitude_of_its_tensor(number):
    values = values_of()
    decoded = through(codec("sign"), values, whole(), FakeStep(number=number))
    for begin, end, _ in TENSORS:
        if end > begin:
            expected = np.sign(values[begin:end]) * np.abs(values[begin:end]).astype(float).mean()
            np.testing.assert_allclose(decoded[begin:end], expected, rtol=1e-6)


def test_sparse_lists_have_one_scale_a_tensor():
    place = listed([1, 2, 61, 70, 299])
    values = np.array([1, -3, 4, -8, 5], np.float32)
    np.testing.assert_array_equal(through(codec("sign"), values, place, FakeStep()), [2, -2, 6, -6, 5])
    np.testing.assert_array_equal(through(codec("one-bit"), values, place, FakeStep()), values)


def test_fixed_sends_the_threshold_with_the_sign():
    values, place = np.array([0.3, -0.25, 7], np.float32), listed([0, 1, 2])
    np.testing.assert_array_equal(through(codec("fixed"), values, place, FakeStep()), [0.25, -0.25, 0.25])
    np.testing.assert_array_equal(through(codec("fixed,lam=0.2"), values, place, FakeStep()),
                                  np.array([0.2, -0.2, 0.2], np.float32))


def test_the_largest_values_are_exact():
    values = values_of()
    decoded = through(codec("induced,k=20"), values, whole(), FakeStep())
    largest = np.argsort(-np.abs(values))[:20]
    np.testing.assert_array_equal(decoded[largest], values[largest])


def test_ternary_clips_outliers_but_no_tensor_away():
    values = np.ones(N, np.float32)
    values[100] = 1000
    decoded = through(codec("ternary"), values, whole(), FakeStep())
    np.testing.assert_array_equal(decoded[:91], 1)  # equal values, and a tensor of one
    limit = 2.5 * np.sqrt(np.mean(np.square(values[91:], dtype=float)))
    np.testing.assert_allclose(decoded[100], limit, rtol=1e-6)
    np.testing.assert_array_equal(through(codec("ternary,sigmas=0"), values, whole(), FakeStep())[100], 1000)


# ---- expectation and error

def deviation(text, values):
    """A bound on the standard deviation of each decoded value."""
    name, options = text.split(",")[0], dict(one.split("=") for one in text.split(",")[1:])
    if name == "natural":
        return np.abs(values) / np.sqrt(8)
    if name == "stochastic":
        return float(options["unit"]) / 2
    if name == "scaled-integer":
        return np.abs(values).max() / 125 / 2
    if name == "ternary":
        return np.abs(values).max() / 2
    bucket = int(options.get("bucket", 512))
    norms = [np.linalg.norm(values[at : at + bucket]) for at in range(0, values.size, bucket)]
    return max(norms) / int(options.get("levels", 7)) / 2


@pytest.mark.parametrize("text", UNBIASED)
def test_the_mean_of_many_steps_is_the_value(text):
    """Fixed keys: within six standard errors for each value, and the errors together within six of theirs."""
    values = values_of(seed=3)
    part, total = codec(text), np.zeros(N)
    for number in range(ROUNDS):
        total += through(part, values, whole(number % 3), FakeStep(number=number))
    error = total / ROUNDS - values
    allowed = 6 * deviation(text, values) / np.sqrt(ROUNDS) + 1e-5 * np.abs(values)
    assert (np.abs(error) <= allowed).all()
    assert abs(error.mean()) <= np.mean(allowed) / np.sqrt(N)


@pytest.mark.parametrize("text", [text for text in UNBIASED if not text.startswith("levels,levels=7")])
def test_draws_differ_between_steps_and_workers_and_repeat(text):
    values, part = values_of(), codec(text)
    first = through(part, values, whole(0), FakeStep(number=1))
    assert np.array_equal(first, through(part, values, whole(0), FakeStep(number=1)))
    assert not np.array_equal(first, through(part, values, whole(1), FakeStep(number=1)))
    assert not np.array_equal(first, through(part, values, whole(0), FakeStep(number=2)))


@pytest.mark.parametrize("text", ["levels,bucket=50", "stochastic,unit=0.5", "scaled-integer,rounding=stochastic",
                                  "ternary,sigmas=0"])
def test_pieces_draw_what_the_whole_would(text):
    step, part, values = FakeStep(tensors=[(0, 150, (150,)), (150, 300, (150,))]), codec(text), values_of()
    together = through(part, values, whole(), step)
    halves = []
    for start in (0, 150):  # where a scale is shared, it is the whole's
        place = Place(0, None, start, start + 150)
        halves.append(part.decode(part.encode(values[start : start + 150], place, step), place, step))
    np.testing.assert_array_equal(np.concatenate(halves), together)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("unit", [1e-6, 1e-3, 0.3, 10])
def test_stochastic_rounding_is_off_by_less_than_a_unit(dtype, unit):
    values = values_of(dtype=dtype) * dtype(5)
    decoded = through(codec(f"stochastic,unit={unit}"), values, whole(), FakeStep(dtype))
    assert np.abs(decoded.astype(float) - values).max() < unit * 1.01


def test_stochastic_rounding_takes_the_narrowest_integers():
    part = codec("stochastic,unit=1")
    for peak, single, double in ((125, 1, 1), (126, 2, 2), (32765, 2, 2), (32766, 4, 4), (2**31 - 3, 4, 4),
                                 (2**31, 4, 8), (1e30, 4, 8), (np.nan, 4, 8), (np.inf, 4, 8)):
        for dtype, width in ((np.float32, single), (np.float64, double)):
            values = np.array([peak, 1, -peak], dtype)
            place = whole(n=3)
            assert encode(part, values, place, FakeStep(dtype)).nbytes == 3 * width
            if width == values.itemsize or peak < 2**24:
                np.testing.assert_array_equal(through(part, values, place, FakeStep(dtype)), values)


def test_levels_are_multiples_of_the_scale_below_one_step_off():
    values = values_of()
    for levels in (1, 7, 100, 32767):
        decoded = through(codec(f"levels,levels={levels},norm=max,bucket=300"), values, whole(), FakeStep())
        unit = np.abs(values).max() / levels
        np.testing.assert_allclose(decoded / unit, np.round(decoded / unit), atol=4e-3)
        assert np.abs(decoded - values).max() < unit * 1.01
        assert np.abs(decoded).max() == np.abs(values).max()


def test_a_norm_beyond_the_largest_number_is_held_within_it():
    values = np.full(N, 3e38, np.float32)
    with np.errstate(over="ignore"):
        decoded = through(codec("levels"), values, whole(), FakeStep())
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded.mean(dtype=float), 3e38, rtol=0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [-1070, -1000, -320, -140, -120, -1, 0, 1, 100, 127, 128, 1000, 1024])
def test_natural_holds_every_range_of_the_type(dtype, exponent):
    with np.errstate(over="ignore", under="ignore"):
        largest = np.nextafter(np.ldexp(1.0, exponent), 0).astype(dtype) if exponent == 1024 else \
            np.ldexp(1.0, exponent).astype(dtype)
    if not 0 < largest < np.inf:
        largest = np.finfo(dtype).max if exponent > 0 else dtype(0)
    values = largest * np.random.default_rng(5).uniform(-1, 1, N).astype(dtype)
    values[17] = largest
    decoded = through(codec("natural"), values, whole(), FakeStep(dtype))
    assert np.isfinite(decoded).all()
    floor = np.finfo(dtype).tiny  # smaller magnitudes become this or zero
    big = np.abs(values) >= floor
    assert (np.abs(decoded[big]) <= 2 * np.abs(values[big].astype(np.longdouble))).all()
    assert (np.abs(decoded[big]) >= np.abs(values[big]) / 2).all()
    assert (np.abs(decoded[~big]) <= floor).all()
    mantissas = np.frexp(decoded[decoded != 0])[0]
    assert (np.abs(mantissas) == 0.5).all()


@pytest.mark.parametrize("text", ["natural", "scaled-integer", "stochastic", "levels", "one-bit", "sign"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(text, bad):
    """If the caller allows such gradients, they spread; encoding them raises nothing on one rank alone."""
    values = values_of()
    values[100] = bad
    with np.errstate(invalid="ignore"):
        decoded = through(codec(text), values, whole(), FakeStep())
    assert not (np.abs(decoded) < 3e38).all()


# ---- integers that are added

@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 20, 63])
def test_sums_of_integers_do_not_overflow(dtype, rounding, bits, workers):
    """Every worker holds the largest magnitude, of one sign: the worst case."""
    part = codec(f"scaled-integer,bits={bits},rounding={rounding}")
    step = FakeStep(dtype, workers=workers)
    for peak in (1.0, 3.14159e-5, 8.7e20):
        for sign in (1, -1):
            values = np.full(N, sign * peak, dtype)
            part.share(part.peak([values], step), step)
            total, exact = np.zeros(N, f"int{bits}"), np.zeros(N, np.int64)
            for worker in range(workers):
                codes = part.encode(values, whole(worker), step)
                assert codes.dtype == total.dtype
                total += codes
                exact += codes
            np.testing.assert_array_equal(total, exact)
            mean = part.decode(total, whole(), step).astype(float) / workers
            allowed = part._unit * (0.51 if rounding == "nearest" else 1.01) + 4 * np.finfo(dtype).eps * peak
            assert np.abs(mean - sign * peak).max() <= allowed


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_error_of_a_scaled_integer_is_at_most_half_a_unit(bits):
    values, step = values_of(dtype=np.float64), FakeStep(np.float64, workers=5)
    part = codec(f"scaled-integer,bits={bits}")
    decoded = through(part, values, whole(), step)
    assert np.abs(decoded - values).max() <= 0.51 * np.abs(values).max() / ((2 ** (bits - 1) - 1) // 5 - 1)


def test_scales_at_the_ends_of_the_range():
    for peak in (0.0, 1e-45, 1e-40, 1e-38, 3.4e38):
        part, step = codec("scaled-integer,bits=8"), FakeStep(workers=3)
        values = np.full(N, peak, np.float32)
        decoded = through(part, values, whole(), step)
        np.testing.assert_allclose(decoded, values, rtol=0.02, atol=1.2e-38)


def test_too_many_workers_for_the_bits_are_refused():
    part, step = codec("scaled-integer,bits=8"), FakeStep(workers=64)
    with pytest.raises(InvalidArgument, match="64 workers need wider integers than bits=8: take bits=16"):
        part.share(1.0, step)
    assert codec("scaled-integer").share(1.0, step) is None


# ---- options

@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qsgd:levels=0", r"levels must be in \[1, 32767\], got 0"),
        ("qsgd:levels=32768", r"levels must be in \[1, 32767\], got 32768"),
        ("qsgd:norm=l1", "norm must be one of l2, max, got l1"),
        ("qsgd:bucket=0", r"bucket must be in \[1, inf\), got 0"),
        ("onebit:column=0", r"column must be in \[1, inf\), got 0"),
        ("onebit:second=perhaps", "second must be one of yes, no, got perhaps"),
        ("onebit:selector=top-k", "exchange pieces takes as selector all, got top-k"),
        ("terngrad:sigmas=-1", r"sigmas must be in \[0, inf\), got -1"),
        ("stochastic-rounding:unit=0", r"unit must be in \[1e-30, 1e\+30\], got 0"),
        ("scaled-integer:bits=12", "bits must be one of 8, 16, 32, got 12"),
        ("strom:selector=top-k", "codec fixed sends the selector's threshold, which top-k does not have: give lam"),
        ("scalecom:codec=levels", "exchange leader adds codes up, which levels does not allow"),
        ("dense:codec=one-bit", "exchange dense adds codes up, which one-bit does not allow"),
    ],
)
def test_bad_options_say_what_was_expected(text, message):
    with pytest.raises(InvalidArgument, match=message):
        Scheme.parse(text)


def test_the_threshold_is_one_option_of_selector_and_codec():
    scheme = Scheme.parse("strom:lam=0.5")
    parts = scheme.parts(1)
    assert parts.selector.lam == parts.codec.lam == 0.5
    assert Scheme.parse("strom:selector=top-k,lam=0.5").options["lam"] == 0.5

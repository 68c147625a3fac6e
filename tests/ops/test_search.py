"""Searches for thresholds return the oracle's list: exactly the elements that reach the returned threshold."""

from itertools import pairwise
from math import isfinite, log

import numpy as np
import pytest
from arrays import REALS, assert_same
from test_refusals import refuse

from mpicomp.errors import InvalidArgument
from mpicomp.ops import gpu, oracle
from mpicomp.ops.gpu import cuda_runtime
from mpicomp.ops.search import HIGH, LOW, MANY, STAGES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SEARCHES = ("select_normal", "select_exponential")
PIECE = cuda_runtime.MOMENTS_PIECE
KINDS = {  # finite sums of these are exact, so that they do not depend on the order
    "normal": lambda rng, n: exact(rng.standard_normal(n)),
    "laplace": lambda rng, n: exact(rng.laplace(size=n)),
    "cauchy": lambda rng, n: exact(rng.standard_cauchy(n)),
    "uniform": lambda rng, n: exact(rng.random(n)),
    "sorted": lambda rng, n: exact(np.sort(rng.random(n))),  # in some places all pass, in others nothing
    "few values": lambda rng, n: rng.integers(-3, 4, n),
    "mostly zero": lambda rng, n: exact(rng.standard_normal(n) * (rng.random(n) < 0.01)),
    "all equal": lambda rng, n: np.full(n, 0.375),
    "zero": lambda rng, n: np.zeros(n),
    "one huge": lambda rng, n: with_one(rng, n, 1e30),
    "squares overflow": lambda rng, n: with_one(rng, n, 1e200),
    "sums overflow": lambda rng, n: rng.uniform(0.5, 1, n) * 1e308,  # in any order
    "NaN": lambda rng, n: with_one(rng, n, np.nan),
    "infinity": lambda rng, n: with_one(rng, n, -np.inf),
    "denormal": lambda rng, n: rng.integers(-99, 100, n) * 1e-320,
}


def exact(x):
    return np.round(x * 1024) / 1024


def with_one(rng, n, value):
    x = exact(rng.standard_normal(n))
    x[rng.integers(0, max(1, n), min(1, n))] = value
    return x


def cut(rng, n, count):
    ends = [0, *np.sort(rng.integers(0, n + 1, count)).tolist(), n]
    return list(pairwise(ends))


def some_targets(rng, spans):
    """From one element to all; of no elements none."""
    densities = rng.choice([1e-9, 0.001, 0.01, 0.1, 0.5, 0.9, 1], len(spans))
    return [min(stop - start, max(1, round(density * (stop - start))))
            for (start, stop), density in zip(spans, densities, strict=True)]


def assert_found(found, expected):
    """The same list; its thresholds within what an order of sums or a logarithm may do."""
    lams = [[lam if isfinite(lam) else np.nan for lam in one.lams] for one in (found, expected)]
    np.testing.assert_allclose(*lams, rtol=1e-12)
    assert found.counts == expected.counts
    assert_same(found.indices, expected.indices)


def assert_reached(found, memory, grad, spans):
    """The list holds all that reach the thresholds told, and no others."""
    lams = [lam if isfinite(lam) else np.inf for lam in found.lams]
    indices, counts = oracle.threshold(memory, grad, spans, lams)
    nothing = [isfinite(lam) and count == 0 for lam, count in zip(found.lams, found.counts, strict=True)]
    assert found.counts == [0 if none else count for none, count in zip(nothing, counts, strict=True)]
    assert_same(found.indices, indices.astype(found.indices.dtype))


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_found(ops, rng, search, kind, dtype):
    for n in (0, 1, 2, 17, 3000, 2 * PIECE + 1001):
        grad = KINDS[kind](rng, n).astype(dtype)
        for memory in (None, rng.integers(-5, 6, n).astype(dtype)):
            for spans in ([(0, n)], cut(rng, n, 9)):
                targets = some_targets(rng, spans)
                found = getattr(ops, search)(memory, grad, spans, targets)
                assert_found(found, getattr(oracle, search)(memory, grad, spans, targets))
                assert_reached(found, memory, grad, spans)


@pytest.mark.parametrize("search", SEARCHES)
def test_how_many_are_found(ops, rng, search):
    """The count reaches the lower limit, and exceeds the upper limit exactly if the oracle's count does."""
    n = 3 * PIECE
    grad = rng.laplace(size=n)
    for target in (5, 50, 1000, n // 3):
        (count,) = getattr(ops, search)(None, grad, [(0, n)], [target]).counts
        least, most = (2 / 3, MANY) if search == "select_normal" else (LOW, HIGH)
        assert least * target <= count
        found = getattr(oracle, search)(None, grad, [(0, n)], [target])
        assert (count <= most * target) == (found.counts[0] <= most * target)


@pytest.mark.parametrize("search", SEARCHES)
def test_no_elements_at_all(ops, search):
    grad = np.ones(5, np.float32)
    for spans in ([], [(2, 2)], [(0, 0), (5, 5)]):
        found = getattr(ops, search)(None, grad, spans, [0] * len(spans))
        assert (found.indices.size, found.counts) == (0, [0] * len(spans))


def test_the_normal_threshold_by_hand(ops):
    """Thresholds for two of 0, 1, ..., 9, whose mean is 4.5 and whose variance is 8.25.

    One element is above the first threshold, 8.2, and five are above half of it. Three are above 1.5 times that
    half; none are above a further 1.5 times, so that the search returns the three.
    """
    found = ops.select_normal(None, np.arange(10.0), [(0, 10)], [2])
    assert found.lams == pytest.approx([0.75 * (4.5 + 1.2815515655446004 * 8.25**0.5)], rel=1e-12)
    assert found.indices.tolist() == [7, 8, 9]


def test_the_exponential_threshold_by_hand(ops):
    """Thresholds for three of 0, 1, ..., 15, whose mean is 7.5: three stages leave five, four and three elements.

    The first threshold is log(4) times the mean; the others are fitted to keep 3/5 and 3/4 of the elements left.
    """
    found = ops.select_exponential(None, np.arange(16.0), [(0, 16)], [3])
    first = log(4) * 7.5
    second = first + log(5 / 3) * (13 - first)
    assert found.lams == pytest.approx([second + log(4 / 3) * (13.5 - second)], rel=1e-12)
    assert found.indices.tolist() == [13, 14, 15]


def halving(innermost):
    """Magnitudes of which each stage leaves one half, until so many are left; more stages than there may be."""
    share, low = 0.5, 0.05
    values, lam = 1 + np.arange(innermost) / innermost, 1.0
    for _ in range(STAGES + 1):
        gain = log(4)
        mean = values.mean()
        before = (lam - gain * (share * mean + (1 - share) * low * lam)) / (1 - gain * (share + (1 - share) * low))
        values, lam = np.append(values, np.full(values.size, before + low * (lam - before))), before
    return values - lam


def test_a_search_that_stops_at_the_limit(ops, rng):
    """The last stage's candidates are found, more than were asked for; a device needs more stages than were queued."""
    grad = rng.permutation(halving(8)) * rng.choice([-1, 1], 8 << STAGES + 1)
    expected = oracle.select_exponential(None, grad, [(0, grad.size)], [1])
    assert expected.counts == [16]
    found = ops.select_exponential(None, grad, [(0, grad.size)], [1])
    assert_found(found, expected)


@pytest.mark.parametrize("dtype", REALS)
def test_thresholds_of_samples(ops, rng, dtype):
    """Also where a sample says 0, infinity or NaN; in more spans than a block has threads."""
    for n, count in ((4000, 1), (4000, 7), (60_000, 400)):
        grad = rng.standard_normal(n).astype(dtype)
        spans = [span for span in cut(rng, n, count) if span[1] - span[0] >= 20]
        for at, (start, stop) in enumerate(spans):
            if at % 3:
                grad[start:stop:2] = rng.choice([0, np.inf, np.nan])
        for memory in (None, np.zeros(n, dtype)):
            samples = [(start, 2, (stop - start + 1) // 2) for start, stop in spans]
            counts = [max(1, size // 7) for *_, size in samples]
            found = ops.select_sampled(memory, grad, spans, samples, counts)
            expected = oracle.select_sampled(memory, grad, spans, samples, counts)
            assert_found(found, expected)
            assert {lam > 0 for lam, size in zip(found.lams, found.counts, strict=True) if size} <= {True}
    assert ops.select_sampled(None, grad, [], [], []).counts == []


@pytest.mark.parametrize("search", SEARCHES)
def test_lists_longer_than_there_is_room_for(ops, rng, search):
    """A device guesses their length."""
    n = 12 * cuda_runtime.TILE_BYTES // 4
    grad = np.where(rng.random(n) < 0.7, 1, rng.random(n) / 4).astype(np.float32)
    spans, targets = [(0, n // 2), (n // 2, n)], [n // 50, n // 60]
    expected = getattr(oracle, search)(None, grad, spans, targets)
    assert_found(getattr(ops, search)(None, grad, spans, targets), expected)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_device_finds_the_same_again(emulated_cuda, rng, search):
    """To the last bit, in whatever order blocks run."""
    grad, spans = rng.standard_normal(4 * PIECE), [(0, 3 * PIECE + 7), (3 * PIECE + 7, 4 * PIECE)]
    first, second = (getattr(emulated_cuda, search)(None, grad, spans, [99, 500]) for _ in range(2))
    assert first.lams == second.lams
    assert_same(first.indices, second.indices)


@pytest.mark.emulation
@pytest.mark.parametrize("search", SEARCHES)
def test_indices_of_64_bits(emulated_cuda, wide_indices, rng, search):
    grad = rng.standard_normal(9000).astype(np.float32)
    found = getattr(gpu, search)(None, grad, [(0, 9000)], [90])
    assert found.indices.dtype == np.int64
    np.testing.assert_array_equal(found.indices, getattr(oracle, search)(None, grad, [(0, 9000)], [90]).indices)


def test_what_is_refused(ops):
    grad, memory = np.ones(10, np.float32), np.ones(9, np.float32)
    for module in (ops, oracle):
        for call, match in (
            (lambda m: m.select_normal(None, grad, [(0, 11)], [1]), r"spans must lie in \[0, 10\), got 0 to 11"),
            (lambda m: m.select_exponential(None, grad, [(0, 4)], [5]), r"k must be in \[0, 4\], got 5"),
            (lambda m: m.select_normal(None, grad, [(0, 4)], [1, 2]), "a count for each of 1 spans, got 2"),
            (lambda m: m.select_exponential(None, grad, [(0, 4)], [0]), "at least 1, got 0 of 4 elements"),
            (lambda m: m.select_normal(None, grad, [(0, 5), (4, 9)], [1, 1]), "spans must ascend, got one from 4 b"),
            (lambda m: m.select_sampled(None, grad, [(0, 5)], [], [1]), "a sample and a count for each of 1 spans"),
            (lambda m: m.select_sampled(None, grad, [(0, 5)], [(0, 3, 5)], [1]), "a sample must lie in"),
            (lambda m: m.select_sampled(None, grad, [(0, 5)], [(0, 1, 5)], [6]), r"k must be in \[1, 5\], got 6"),
            (lambda m: m.select_sampled(None, grad, [(0, 5)], [(0, 1, 5)], [0]), r"k must be in \[1, 5\], got 0"),
            (lambda m: m.select_sampled(None, grad, [(5, 6), (0, 5)], [(0, 3, 1)] * 2, [1, 1]), "spans must ascend"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                call(module)
    refuse(lambda m, g: ops.select_normal(m, g, [(0, 10)], [1]), memory, grad, match="memory must have 10 elements")
    refuse(lambda g: ops.select_normal(None, g, [(0, 9)], [1]), np.ones(9, np.int32), match="grad must be of dtype")

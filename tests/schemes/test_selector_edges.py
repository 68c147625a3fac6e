"""Edge cases of selectors: spans, lengths, numbers that are not finite, long vectors, wrong options."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
from selecting import AGREED, BOTH, ESTIMATED, KINDS, PAST_FLOAT32, WITH_A_TARGET, draw, fake_step, make, select

from mpicomp.errors import InvalidArgument
from mpicomp.schemes import Scheme
from mpicomp.schemes.selectors import SELECTORS
from mpicomp.schemes.values import Compensated

# ---- spans

@pytest.mark.parametrize("name", [*WITH_A_TARGET, "bins", "rows"])
def test_spans_are_treated_by_themselves(name):
    x, cuts = draw("laplace", 3000), (0, 1, 1000, 1000)
    found = select(name, x, cuts=cuts, density=0.05, bin=50, row=8, width=64)
    ends = [0, *cuts, 3000]
    parts = [start + select(name, x[start:stop], density=0.05, bin=50, row=8, width=64)
             for start, stop in pairwise(ends)]
    np.testing.assert_array_equal(found, np.concatenate(parts))


@BOTH
def test_a_sample_estimates_for_every_span(ops):
    """Spans that keep their threshold, lower it, let too many pass, or are selected exactly: as each by itself."""
    rng, lengths = np.random.default_rng(), [5000, 1, 800, 9000, 2000, 0, 7000, 3, 12_000]
    kinds = [rng.choice(KINDS) for _ in lengths]
    parts = [draw(kind, n, int(rng.integers(2**31))) for kind, n in zip(kinds, lengths, strict=True)]
    x, ends = np.concatenate(parts), np.cumsum(lengths)
    for density, number in ((0.1, 0), (0.03, int(rng.integers(100))), (1.0, 5), (0.3, 1)):
        found = select("sampled", x, ops, cuts=ends[:-1].tolist(), number=number, density=density)
        each = [end - n + select("sampled", part, ops, number=number, density=density)
                for part, end, n in zip(parts, ends, lengths, strict=True)]
        np.testing.assert_array_equal(found, np.concatenate(each), err_msg=f"{kinds}")


@BOTH
@pytest.mark.parametrize("name", ["gaussian", "sidco", "rows"])
def test_estimates_for_every_span(ops, name):
    """Spans that take any number of corrections or stages, hold NaN, or whose sums overflow: as each by itself."""
    rng, lengths = np.random.default_rng(), [4000, 1, 700, 9000, 0, 2000, 3, 3000, 3000, 500]
    kinds, seeds = rng.choice(KINDS, len(lengths)), rng.integers(2**31, size=len(lengths))
    parts = [draw(kind, n, int(seed)).astype(np.float64) for kind, n, seed in zip(kinds, lengths, seeds, strict=True)]
    parts[3][rng.integers(9000, size=2)] = rng.choice([np.nan, np.inf, -np.inf])
    parts[7][::2], parts[9][:] = 1.7e308, 3.0
    x, ends = np.concatenate(parts), np.cumsum(lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        for density in (0.3, 0.1, 0.01, 1.0):
            found = select(name, x, ops, cuts=ends[:-1].tolist(), density=density, row=16)
            each = [end - n + select(name, part, ops, density=density, row=16)
                    for part, end, n in zip(parts, ends, lengths, strict=True)]
            np.testing.assert_array_equal(found, np.concatenate(each), err_msg=f"{kinds}, {seeds}")


def test_random_k_draws_anew_in_every_span_and_step():
    x = np.zeros(2000)
    found = select("random-k", x, cuts=(1000,), density=0.1)
    assert not np.array_equal(found[:100], found[100:] - 1000)
    assert not np.array_equal(found, select("random-k", x, cuts=(1000,), density=0.1, number=1))
    np.testing.assert_array_equal(found, select("random-k", x + 7, cuts=(1000,), density=0.1))


# ---- what must not trip a selector

@BOTH
@pytest.mark.parametrize("name", [*WITH_A_TARGET, "bins", *AGREED])
@pytest.mark.parametrize("n", [0, 1, 2, 65, 500])
def test_edges(ops, name, n):
    for x in (np.zeros(n, np.float32), np.full(n, -3, np.float32), draw("normal", n)):
        for density in (1.0, 0.5, 1e-6):
            found = select(name, x, ops, density=density)
            assert found.dtype == np.int32
            assert np.all(np.diff(found) > 0)
            assert found.size == 0 or (found[0] >= 0 and found[-1] < n)
            if name != "bins" and density == 1:
                assert found.size == n
            if name in ("top-k", "sampled", "sidco", "random-k"):
                assert found.size >= min(n, max(1, math.ceil(0.8 * density * n)))


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ESTIMATED)
def test_exactly_what_is_not_finite_is_found(ops, name, value):
    x = draw("normal", 20_000)
    x[[5, 1024, 19_999]] = value
    assert SELECTORS[name].finds_nonfinite
    found = select(name, x, ops, density=0.1)
    assert {5, 1024, 19_999} <= set(found.tolist())
    if name != "sampled":  # a sample may miss them all
        assert found.size == 3
    x[:] = value
    assert select(name, x, ops, density=0.1).size > 0


def test_bins_find_what_is_not_finite():
    for value in (np.nan, np.inf):
        x = draw("normal", 1000)
        x[77] = value
        assert 77 in select("bins", x, bin=50)


@pytest.mark.parametrize("name", ESTIMATED)
def test_sums_that_overflow(name):
    """Finite float64 gradients whose squares, or sums, are not."""
    x = draw("normal", 20_000).astype(np.float64) * 1e306
    x[::2] = 1.7e308
    with np.errstate(over="ignore"):
        assert 0 < select(name, x, density=0.1).size <= 4 / 3 * 2000


@pytest.mark.parametrize("name", ["sampled", "sidco", "gaussian", "rows"])
def test_indices_past_2_to_the_24(name):
    x = np.zeros(PAST_FLOAT32, np.float32)
    x[-3:] = 9, -8, 7
    x[:PAST_FLOAT32 - 64 : 64] = 1
    found = select(name, x, k=200, row=64)
    assert {PAST_FLOAT32 - 3, PAST_FLOAT32 - 2, PAST_FLOAT32 - 1} <= set(found.tolist())


def test_random_indices_past_2_to_the_24():
    found = select("random-k", np.zeros(PAST_FLOAT32, np.float32), k=PAST_FLOAT32 // 2)
    assert np.all(np.diff(found) > 0)
    assert np.any(found[-100:] % 2)  # float32 would hold even ones only


@BOTH
def test_the_sum_of_sketches_is_the_sketch_of_the_sum(ops):
    a, b = np.random.default_rng(2).integers(-50, 50, (2, 500)).astype(np.float32)
    selector, step = make("rows", row=16), fake_step(500, ops, number=3)
    one, other, both = (selector.sketch(Compensated(None, x), step) for x in (a, b, a + b))
    assert len(both) == 4 * 32
    np.testing.assert_array_equal(one + other, both)
    np.testing.assert_array_equal(both, selector.sketch(Compensated(a, b), step))
    assert not np.array_equal(both, selector.sketch(Compensated(a, b), fake_step(500, ops, number=4)))


def test_the_norm_of_a_sketch_is_unbiased():
    """Over 4000 steps the squared norm of a sketch of 4 columns is 4 times the row's; within 5 standard errors."""
    x, steps = draw("normal", 64), 4000
    selector = make("rows")
    norms = [np.sum(selector.sketch(Compensated(None, x), fake_step(64, number=step)).astype(float) ** 2) / 4
             for step in range(steps)]
    truth = np.sum(x.astype(float) ** 2)
    assert abs(np.mean(norms) - truth) < 5 * truth * math.sqrt(2 / 4 / steps)


# ---- options and parts that do not fit

@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:selector=sampled,sample=0", "sample must be in (0, 1], got 0"),
        ("adacomp:bin=0", "bin must be in [1, inf), got 0"),
        ("arctopk:row=0", "row must be in [1, inf), got 0"),
        ("arctopk:width=65", "width must be in [1, 64], got 65"),
        ("gaussiank:density=2", "density must be in (0, 1], got 2"),
        ("topk:selector=random-k", "exchange gather takes as selector one that chooses by itself, got random-k"),
        ("scalecom:selector=rows", "exchange leader takes as selector one that chooses some, got rows"),
        ("randomk:selector=top-k", "exchange agreed takes as selector one that can be agreed on, got top-k"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Scheme.parse(text)

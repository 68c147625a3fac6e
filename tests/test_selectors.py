"""Selectors by themselves: published algorithms the obvious way, bounds they promise, and what must not trip them."""

import math
import re
from itertools import pairwise
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from mpicomp.errors import InvalidArgument
from mpicomp.ops import cpu, reference
from mpicomp.schemes import Scheme
from mpicomp.selectors import SELECTORS
from mpicomp.values import Compensated

ESTIMATED = ["sampled", "gaussian", "sidco"]
AGREED = ["random-k", "rows"]
WITH_A_TARGET = ["top-k", *ESTIMATED]
BOTH = pytest.mark.parametrize("ops", [reference, cpu], ids=["reference", "cpu"])
PAST_FLOAT32 = 2**24 + 3


def fake_step(n, ops=cpu, number=0, cuts=(), seed=0):
    """What selectors ask of a step; ``cuts`` are the inner ends of the spans."""
    ends = [0, *cuts, n]
    return SimpleNamespace(
        ops=ops, number=number, n=n, spans=list(pairwise(ends)),
        density=lambda target, span: target, key=lambda worker: ops.Key(seed, number, worker),
        kept=lambda key, make: make(),
    )


def make(name, **given):
    """A selector with its defaults, and the options that it has among those given."""
    options = {option.name: option.default for option in SELECTORS[name].options}
    return SELECTORS[name](**{**options, **{key: value for key, value in given.items() if key in options}})


def select(name, x, ops=cpu, memory=None, number=0, cuts=(), **given):
    """Indices a selector gives, by whichever verbs it has."""
    selector, step = make(name, **given), fake_step(len(x), ops, number, cuts)
    u = Compensated(memory, x)
    if name in AGREED:
        return selector.pick(selector.sketch(u, step), step)
    return selector.expand(selector.select(u, step), step)


def draw(kind, n, seed=1):
    rng = np.random.default_rng(seed)
    x = {"normal": rng.standard_normal, "laplace": lambda n: rng.laplace(size=n),
         "student": lambda n: rng.standard_t(3, n), "cauchy": rng.standard_cauchy, "uniform": rng.random,
         "few values": lambda n: rng.integers(-3, 4, n),
         "mostly zero": lambda n: rng.standard_normal(n) * (rng.random(n) < 0.003)}[kind](n)
    return x.astype(np.float32)


KINDS = ["normal", "laplace", "student", "cauchy", "uniform", "few values", "mostly zero"]


def largest(x, k):
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


# ---- the published algorithms, the obvious way

def sampled(x, k, sample, number):
    stride = max(1, int(min(1 / sample, k / 32)) - 1 | 1)
    if stride == 1:
        return largest(x, k)
    part = np.sort(np.abs(x[number % stride :: stride]))[::-1]
    lam = part[max(1, round(len(part) * k / len(x))) - 1]
    while np.count_nonzero(np.abs(x) >= lam) < 0.8 * k:
        lam *= np.float32(0.8)
    passed = np.flatnonzero(np.abs(x) >= lam)
    return passed if len(passed) <= 1.3 * k else largest(x, k)


def gaussian(x, k):
    x = x.astype(float)
    lam = abs(x.mean()) + NormalDist().inv_cdf(1 - 0.5 * k / len(x)) * x.std()
    counts = []
    for _ in range(3):
        counts.append(np.count_nonzero(np.abs(x) >= lam))
        if counts[-1] < 2 * k / 3:
            lam *= 0.5
        elif counts[-1] > 4 * k / 3:
            lam *= 1.5
    passed = np.flatnonzero(np.abs(x) >= lam)
    too_few_of_too_many = len(passed) < 2 * k / 3 and max(counts) > 4 * k / 3  # where the published code stays with few
    return largest(x, k) if len(passed) > 4 * k / 3 or too_few_of_too_many else passed


def sidco(x, k):
    size, lam, ratio = np.abs(x.astype(float)), 0.0, 1.0
    while ratio * len(x) > 1.2 * k:
        left = size[size >= lam]
        lam += (left.mean() - lam) * math.log(1 / max(0.25, k / len(left)))
        ratio = np.mean(size >= lam)
    return np.flatnonzero(size >= lam)


def bins(memory, grad, length):
    u, chosen = memory + grad, []
    for at in range(0, len(u), length):
        peak = np.abs(u[at : at + length]).max()
        chosen += [i for i in range(at, min(len(u), at + length)) if abs(u[i] + grad[i]) >= peak and u[i]]
    return chosen


@BOTH
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("kind", ["normal", "laplace", "cauchy"])
def test_sampled_is_the_published_selection(ops, kind, number):
    x = draw(kind, 20_000)
    for density, sample in ((0.02, 0.01), (0.2, 0.1), (0.001, 0.01)):
        found = select("sampled", x, ops, number=number, density=density, sample=sample)
        np.testing.assert_array_equal(found, sampled(x, round(density * len(x)), sample, number))


@BOTH
@pytest.mark.parametrize("kind", ["normal", "laplace", "student"])
def test_gaussian_is_the_published_selection(ops, kind):
    x = draw(kind, 20_000)
    for density in (0.1, 0.01, 0.001):
        np.testing.assert_array_equal(select("gaussian", x, ops, density=density), gaussian(x, round(density * len(x))))


@BOTH
@pytest.mark.parametrize("kind", ["normal", "laplace", "student", "cauchy"])
def test_sidco_is_the_published_selection(ops, kind):
    x = draw(kind, 20_000)
    for density in (0.3, 0.01, 0.002):
        k = round(density * len(x))
        expected = sidco(x, k)
        expected = expected if len(expected) >= 0.8 * k else largest(x, k)  # a stage that overshoots is taken back
        np.testing.assert_array_equal(select("sidco", x, ops, density=density), expected)


def test_one_stage_of_sidco_is_the_exponential_quantile():
    x = draw("laplace", 5000)
    lam = np.abs(x.astype(float)).mean() * math.log(1 / 0.3)
    np.testing.assert_array_equal(select("sidco", x, density=0.3), np.flatnonzero(np.abs(x) >= lam))


@BOTH
@pytest.mark.parametrize("length", [1, 7, 500, 5000])
def test_bins_are_those_of_adacomp(ops, length):
    rng = np.random.default_rng(5)
    memory, grad = rng.integers(-9, 10, (2, 1234)).astype(np.float32)
    found = select("bins", grad, ops, memory, bin=length)
    np.testing.assert_array_equal(found, bins(memory, grad, length))


def test_bins_look_one_gradient_ahead():
    memory, grad = np.array([[5, 4, -4, 1], [0, 1, 1, 0]], np.float32)
    found = select("bins", grad, memory=memory, bin=4)
    np.testing.assert_array_equal(found, [0, 1])  # 4 + 1 + 1 >= 5, |-4 + 1 + 1| < 5


def test_bins_of_zeros_send_nothing():
    x = np.zeros(1000, np.float32)
    assert select("bins", x, bin=10).size == 0
    x[123] = 1e-45  # the smallest there is
    np.testing.assert_array_equal(select("bins", x, bin=10), [123])


# ---- how many are sent

@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("kind", KINDS)
def test_achieved_density(kind, density):
    """Bounds always kept: sampled 0.8 .. 1.3, SIDCo 0.8 .. 1.2, Gaussian-k at most 4/3."""
    n = 100_000
    x, target = draw(kind, n), density * n
    assert 0.8 * target <= select("sampled", x, density=density).size <= 1.3 * target
    assert 0.8 * target <= select("sidco", x, density=density).size <= 1.2 * target
    assert select("gaussian", x, density=density).size <= 4 / 3 * target


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
@pytest.mark.parametrize(("kind", "low"), [("normal", 0.85), ("laplace", 0.66), ("student", 0.66), ("uniform", 0.66)])
def test_achieved_density_of_gaussian(kind, low, density):
    x = draw(kind, 100_000)
    assert select("gaussian", x, density=density).size >= low * density * len(x)


@pytest.mark.parametrize("name", WITH_A_TARGET)
def test_what_is_sent_is_the_largest(name):
    """Thresholds and exact selections alike: nothing sent is smaller than anything kept."""
    for kind in KINDS:
        x = np.abs(draw(kind, 5000))
        found = select(name, x, density=0.05)
        assert np.all(np.diff(found) > 0)
        if found.size:
            assert x[found].min() >= np.delete(x, found).max()


# ---- contraction

def error(x, indices):
    kept = x.astype(float)
    kept[indices] = 0
    return kept


@pytest.mark.parametrize("kind", [*KINDS, "equal"])
def test_top_k_contracts(kind):
    """||u - C(u)||^2 <= (1 - k/d) ||u||^2, with equality where all are equal."""
    x = np.ones(1000, np.float32) if kind == "equal" else draw(kind, 1000)
    norm = np.sum(x.astype(float) ** 2)
    for k in (1, 10, 999, 1000):
        left = np.sum(error(x, select("top-k", x, k=k)) ** 2)
        assert left <= (1 - k / 1000) * norm * (1 + 1e-12) + 1e-12
        if kind == "equal":
            assert left == pytest.approx((1 - k / 1000) * norm)


@pytest.mark.parametrize("kind", ["normal", "cauchy"])
def test_random_k_contracts_in_expectation(kind):
    """Over 2000 steps the mean of ||u - C(u)||^2 / ||u||^2 is 1 - k/n, within 5 standard errors."""
    n, k, steps = 300, 30, 2000
    x = draw(kind, n).astype(float)
    share = x**2 / np.sum(x**2)
    left = np.mean([1 - share[select("random-k", x, k=k, number=step)].sum() for step in range(steps)])
    bound = 5 * math.sqrt(np.sum(share**2) * 0.1 * 0.9 / steps)
    assert abs(left - (1 - k / n)) < bound


def test_every_coordinate_is_drawn_equally_often():
    n, k, steps = 103, 10, 4000
    counts = np.zeros(n)
    for step in range(steps):
        found = select("random-k", np.zeros(n), k=k, number=step)
        assert len(found) == k
        counts[found] += 1
    parts = np.diff(np.arange(k + 1) * n // k)
    expected = np.repeat(steps / parts, parts)
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected.max())


@pytest.mark.parametrize("kind", KINDS)
def test_threshold_bounds_every_error(kind):
    x = draw(kind, 3000)
    for lam in (0.01, 0.5, 2.0):
        assert np.abs(error(x, select("threshold", x, lam=lam))).max() < lam


def test_threshold_is_the_same_by_layers():
    x = draw("student", 3000)
    whole = select("threshold", x, lam=1.0)
    by_layers = [start + select("threshold", x[start:stop], lam=1.0) for start, stop in ((0, 7), (7, 7), (7, 3000))]
    np.testing.assert_array_equal(whole, np.concatenate(by_layers))


# ---- spans

@pytest.mark.parametrize("name", [*WITH_A_TARGET, "bins", "rows"])
def test_spans_are_treated_by_themselves(name):
    x, cuts = draw("laplace", 3000), (0, 1, 1000, 1000)
    found = select(name, x, cuts=cuts, density=0.05, bin=50, row=8, width=64)
    ends = [0, *cuts, 3000]
    parts = [start + select(name, x[start:stop], density=0.05, bin=50, row=8, width=64)
             for start, stop in pairwise(ends)]
    np.testing.assert_array_equal(found, np.concatenate(parts))


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

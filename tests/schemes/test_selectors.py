"""Selectors by themselves: published algorithms the obvious way, how many are sent, and the bounds they promise."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from selecting import BOTH, KINDS, WITH_A_TARGET, draw, largest, select

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


@pytest.mark.parametrize(("n", "expected"), [(20, 1), (130, 1), (150, 2), (170, 2), (250, 2), (251, 3)])
def test_density_is_rounded_to_the_nearest_number_of_elements(n, expected):
    """At least 1; halves go to the even number, as docs/schemes.md says."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert len(select("top-k", x, density=0.01)) == expected

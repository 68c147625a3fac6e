"""The objective, its smoothness and its minimum."""

import numpy as np
import pytest

from mpicomp.apps import data, logistic


@pytest.fixture(scope="module")
def problem():
    made = data.load("synthetic:n=300,d=20,seed=5")
    return made.features, made.labels, 1e-3


def test_gradient_is_the_slope_of_the_objective(problem):
    x = np.linspace(-1, 1, 20)
    slope = logistic.gradient(*problem, x)
    for i in range(20):
        step = np.zeros(20)
        step[i] = 1e-6
        ahead, behind = logistic.objective(*problem, x + step), logistic.objective(*problem, x - step)
        assert slope[i] == pytest.approx((ahead - behind) / 2e-6, rel=1e-6, abs=1e-6)


def test_extreme_margins_do_not_overflow():
    margins = np.array([-1e6, -800.0, 0.0, 800.0, 1e6])
    with np.errstate(all="raise", under="ignore"):
        assert np.array_equal(logistic.losses(margins), [1e6, 800, np.log(2), 0, 0])
        assert np.allclose(logistic.slopes(margins), [1, 1, 0.5, 0, 0])


@pytest.mark.parametrize("direct", [5000, 5])
def test_minimum(problem, monkeypatch, direct):
    """Factorised or by products alone: the gradient vanishes at the minimum."""
    monkeypatch.setattr(logistic, "DIRECT", direct)
    optimum = logistic.minimise(*problem)
    rounding = np.finfo(float).eps * np.linalg.norm(np.abs(problem[0].values).mean(axis=0))  # of a sum over rows
    assert np.linalg.norm(logistic.gradient(*problem, optimum.x)) < 16 * rounding
    assert optimum.value < logistic.objective(*problem, optimum.x + 1e-3)


def test_smoothness_by_products_alone(problem, monkeypatch):
    features = problem[0]
    exact = logistic.smoothness(features)
    monkeypatch.setattr(logistic, "DIRECT", 5)
    assert logistic.smoothness(features) == pytest.approx(exact, rel=1e-8)
    assert exact == pytest.approx(np.linalg.norm(features.values, 2) ** 2 / 1200)


def test_madelon_has_the_published_constants(real_data):
    """f* and f(x0) of the table differ from the exact ones by the tolerance of the solver they were found with."""
    madelon = data.load(real_data("madelon/madelon.mat"))
    smoothness = logistic.smoothness(madelon.features)
    assert f"{smoothness:.6f}" == "29790805.649335"
    l2 = smoothness / 1e4
    assert f"{1 / (smoothness + l2):.7e}" == "3.3564047e-08"
    optimum = logistic.minimise(madelon.features, madelon.labels, l2)
    assert optimum.value == pytest.approx(0.667919554, abs=1e-9)
    assert optimum.value == pytest.approx(0.667919553429517, abs=1e-14)  # as the paper's own notebook prints it
    start = logistic.objective(madelon.features, madelon.labels, l2, optimum.x + 1e-4)
    assert start == pytest.approx(12.170929144, abs=1e-7)

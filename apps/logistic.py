"""Regularised logistic regression: the objective, its smoothness, and its minimum to high precision.

    f(x) = 1/m sum_j log(1 + exp(-y_j a_j.x)) + l2/2 |x|^2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .matrix import Matrix

DIRECT = 5000  # features up to which Newton's systems are solved by factorisation, beyond by conjugate gradients
_MAX_NEWTON = 100
_MAX_PRODUCTS = 1000  # of conjugate gradients or power iteration


class Optimum(NamedTuple):
    """The minimiser x* and the minimum f*."""

    x: np.ndarray
    value: float


def losses(margins: np.ndarray) -> np.ndarray:
    """log(1 + exp(-margin)) without overflow."""
    return np.logaddexp(0.0, -margins)


def slopes(margins: np.ndarray) -> np.ndarray:
    """Minus the derivative of ``losses``: 1 / (1 + exp(margin)) without overflow."""
    return np.exp(-np.logaddexp(0.0, margins))


def objective(features: Matrix, labels: np.ndarray, l2: float, x: np.ndarray) -> float:
    """f(x)."""
    return float(losses(labels * features.times(x)).mean() + 0.5 * l2 * (x @ x))


def gradient(features: Matrix, labels: np.ndarray, l2: float, x: np.ndarray) -> np.ndarray:
    """The gradient of f at x."""
    weights = labels * slopes(labels * features.times(x)) / labels.size
    return l2 * x - features.transposed_times(weights)


def smoothness(features: Matrix) -> float:
    """The Lipschitz constant of the loss's gradient, lambda_max(A^T A) / (4 m); without the l2 term.

    It is infinite or NaN if squares of features overflow.
    """
    m, d = features.shape
    with np.errstate(over="ignore", invalid="ignore"):
        if d <= DIRECT:
            gram = features.gram(np.ones(m))
            largest = np.linalg.eigvalsh(gram)[-1] if np.isfinite(gram).all() else np.inf
        else:
            largest = _power_iteration(lambda v: features.transposed_times(features.times(v)), d)
    return float(largest) / (4 * m)


def minimise(features: Matrix, labels: np.ndarray, l2: float) -> Optimum:
    """x* and f* by Newton's method, steps halved until f falls.

    Stops when the predicted decrease is at the rounding error of f, which leaves x* far more precise than f*.
    """
    x = np.zeros(features.shape[1])
    value = objective(features, labels, l2, x)
    for _ in range(_MAX_NEWTON):
        descent = gradient(features, labels, l2, x)
        direction = -_newton_step(features, labels, l2, x, descent)
        decrease = -(descent @ direction)  # twice what the quadratic model promises
        if decrease <= 1e-20 * max(1.0, abs(value)):
            break
        x = _line_search(features, labels, l2, x, value, direction, decrease)
        value = objective(features, labels, l2, x)
    return Optimum(x, value)


def _line_search(features: Matrix, labels: np.ndarray, l2: float, x: np.ndarray, value: float,
                 direction: np.ndarray, decrease: float) -> np.ndarray:
    """Armijo's rule, with room for the rounding of f near its minimum."""
    length = 1.0
    while objective(features, labels, l2, x + length * direction) > (
        value - 1e-4 * length * decrease + 1e-15 * abs(value)
    ) and length > 1e-10:
        length /= 2
    return x + length * direction


def _newton_step(features: Matrix, labels: np.ndarray, l2: float, x: np.ndarray, descent: np.ndarray) -> np.ndarray:
    """H^-1 descent, H = A^T diag(s (1 - s)) A / m + l2."""
    s = slopes(labels * features.times(x))
    weights = s * (1 - s) / labels.size
    if x.size <= DIRECT:
        hessian = features.gram(weights)
        hessian[np.diag_indices(x.size)] += l2
        return np.linalg.solve(hessian, descent)
    return _conjugate_gradients(
        lambda v: features.transposed_times(weights * features.times(v)) + l2 * v, descent
    )


def _conjugate_gradients(product: Callable[[np.ndarray], np.ndarray], b: np.ndarray) -> np.ndarray:
    """Solve H x = b for a positive definite H known by its products, to 1e-10 of |b|."""
    x, residual = np.zeros_like(b), b.copy()
    direction, squared = residual.copy(), residual @ residual
    goal = 1e-20 * squared
    for _ in range(_MAX_PRODUCTS):
        if squared <= goal:
            break
        image = product(direction)
        length = squared / (direction @ image)
        x += length * direction
        residual -= length * image
        squared, before = residual @ residual, squared
        direction = residual + squared / before * direction
    return x


def _power_iteration(product: Callable[[np.ndarray], np.ndarray], n: int) -> float:
    """The largest eigenvalue of a positive semi-definite matrix known by its products."""
    vector = np.random.default_rng(0).random(n)  # positive: real features are, mostly, and so their first eigenvector
    value = 0.0
    for _ in range(_MAX_PRODUCTS):
        vector /= np.linalg.norm(vector)
        image = product(vector)
        value, before = float(vector @ image), value
        vector = image
        if abs(value - before) <= 1e-13 * value:
            break
    return value

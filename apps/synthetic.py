"""A made-up two-class problem for those who have no copy of a data set: ``synthetic:n=2000,d=500,seed=1``.

Made after madelon: whole numbers around 480 in every feature, and classes that overlap. A hyperplane is planted,
and labels are drawn with the probability it gives them.
"""

from __future__ import annotations

import numpy as np

from mpicomp.errors import InvalidArgument

from . import generator_options
from .matrix import Dense

_DEFAULTS = {"n": 2000, "d": 500, "seed": 0}
_CENTRE, _SPREAD = 480.0, 30.0  # of every feature
_MOST = 1 << 32  # numbers in all rows
_MARGIN = 2.0  # standard deviation of the planted margin: labels are right in about four of five rows


def generate(source: str) -> tuple[Dense, np.ndarray]:
    """Features and labels for ``synthetic:n=...,d=...,seed=...``; equal text, equal data."""
    options = generator_options.options(source, _DEFAULTS, most=_MOST)
    n, d = options["n"], options["d"]
    if n < 2 or n * d > _MOST:
        raise InvalidArgument(f"synthetic data needs n of at least 2, and n times d of at most {_MOST}, got {source!r}")
    rng = np.random.default_rng(options["seed"])
    features = np.rint(rng.normal(_CENTRE, _SPREAD, (n, d)))
    separator = rng.standard_normal(d)
    separator *= _MARGIN / (_SPREAD * np.linalg.norm(separator))
    margins = (features - _CENTRE) @ separator
    labels = np.where(rng.random(n) < 1 / (1 + np.exp(-margins)), 1.0, -1.0)
    labels[:2] = 1.0, -1.0  # both classes are there, however few rows
    return Dense(features), labels

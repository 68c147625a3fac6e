"""Helpers of the selectors' tests: a step without ranks, one call for every selector, vectors of many kinds."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from mpicomp.ops import cpu, oracle
from mpicomp.schemes.selectors import SELECTORS
from mpicomp.schemes.values import Compensated, Once

ESTIMATED = ["sampled", "gaussian", "sidco"]
AGREED = ["random-k", "rows"]
WITH_A_TARGET = ["top-k", *ESTIMATED]
BOTH = pytest.mark.parametrize("ops", [oracle, cpu], ids=["reference", "cpu"])
PAST_FLOAT32 = 2**24 + 3


def fake_step(n, ops=cpu, number=0, cuts=(), seed=0):
    """Stand-in for a step, with the attributes that selectors use; ``cuts`` are the inner ends of the spans."""
    ends = [0, *cuts, n]
    return SimpleNamespace(
        ops=ops, number=number, n=n, spans=list(pairwise(ends)),
        density=lambda target, span: target, key=lambda worker: ops.Key(seed, number, worker),
        of_layout=Once(), seed=seed, once=lambda key, make: make(),
        schedule=SimpleNamespace(settled_from=float("inf")),
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
    wire = selector.select(u, step)
    return None if wire is None else selector.expand(wire, step)


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

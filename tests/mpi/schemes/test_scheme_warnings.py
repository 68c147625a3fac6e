"""Warnings about rarely wanted schemes: printed once, on one rank, and true."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mpicomp
from mpicomp.errors import SchemeWarning

N, STEPS = 2048, 60


def said_by(comm, scheme):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            reducer = mpicomp.Reducer(comm, scheme)
    return reducer, [one for one in caught if one.category is SchemeWarning]


@pytest.mark.parametrize(
    ("scheme", "grows"),
    [("qsgd:memory=residual", True), ("qsgd:memory=residual,levels=23", False),
     ("qsgd:memory=residual,norm=max", False), ("qsgd:memory=residual,beta=0.1", False),
     ("terngrad:memory=residual,sigmas=2", False)],
)  # fmt: skip
def test_memories_grow_where_it_is_said(comm, seed, scheme, grows):
    reducer, said = said_by(comm, scheme)
    assert len(said) == (grows and comm.rank == 0)
    assert all(one.filename == __file__ for one in said)  # it points at who made the reducer
    rng = np.random.default_rng([seed, comm.rank])
    for _ in range(STEPS):
        reducer.reduce(rng.standard_normal(N).astype(np.float32))
    norm = reducer.memory_norm() / N**0.5
    assert norm > 50 if grows else norm < 5, norm


def test_sketches_as_long_as_the_gradient_are_said_and_sent(comm):
    reducer, said = said_by(comm, "arctopk:row=4,width=4,density=0.01")
    assert len(said) == (comm.rank == 0)
    x, dense = np.ones(N, np.float32), mpicomp.Reducer(comm, "dense")
    reducer.reduce(x)
    dense.reduce(x)
    assert reducer.stats.bytes_sent >= dense.stats.bytes_sent

"""Equalities and bounds that the papers state, and training: every scheme brings gradient descent to the optimum."""

import numpy as np
import pytest
from mpi4py import MPI
from scheme_sets import each, memory_of
from test_every_scheme import ALL

import mpicomp

N = 240


def gradient(seed, worker, step, n=N):
    return np.random.default_rng([seed, worker, step]).standard_normal(n).astype(np.float32)


def means_of(comm, text, seed, steps=5):
    reducer = mpicomp.Reducer(comm, text)
    return [reducer.reduce({"a": (g := gradient(seed, comm.rank, step))[:100], "b": g[100:]}) for step in range(steps)]


@pytest.mark.parametrize(("text", "other"), [
    ("scalecom:chunk=7,beta=1", "scalecom:chunk=7,beta=1.0"),  # the control: two runs are alike at all
    ("threshold:lam=1.5,layers=per-tensor", "threshold:lam=1.5,layers=whole"),
    ("topk:density=1,layers=whole", "topk:density=1,layers=per-tensor"),
    ("topk-global:k=9", "topk:k=9,layers=whole"),
])
def test_two_names_of_the_same(comm, seed, text, other):
    for one, two in zip(means_of(comm, text, seed), means_of(comm, other, seed), strict=True):
        assert all(one[name].tobytes() == two[name].tobytes() for name in one)


@pytest.mark.parametrize("text", ["scalecom:chunk=1", "topk:density=1", "threshold:lam=1e-30", "randomk:density=1"])
def test_sending_everything_is_dense(comm, seed, text):
    for sparse, dense in zip(means_of(comm, text, seed), means_of(comm, "dense", seed), strict=True):
        for name in dense:
            np.testing.assert_allclose(sparse[name], dense[name], rtol=1e-5, atol=1e-6)


def test_beta_of_one_is_plain_error_feedback(comm, seed):
    """Chen et al., ScaleCom, equation 5 with beta = 1: unsent elements are kept unchanged."""
    reducer, kept = mpicomp.Reducer(comm, "scalecom:chunk=8,beta=1"), np.zeros(N, np.float32)
    for step in range(5):
        u = kept + gradient(seed, comm.rank, step)
        mean = reducer.reduce(gradient(seed, comm.rank, step))
        leader = comm.bcast(u if comm.rank == step % comm.size else None, root=step % comm.size)
        chosen = np.abs(leader.reshape(-1, 8)).argmax(axis=1) + np.arange(0, N, 8)
        assert set(np.flatnonzero(mean)) <= set(chosen)
        kept = u.copy()
        kept[chosen] = 0
        np.testing.assert_array_equal(reducer.state_dict()["memory/0/residual"], kept)


@pytest.mark.parametrize("k", [1, 24, N])
def test_top_k_contracts(comm, seed, k):
    """Stich et al. 2018: ||u - top-k(u)||^2 <= (1 - k/d) ||u||^2."""
    reducer = mpicomp.Reducer(comm, f"topk-global:k={k}", measures=1)
    for step in range(4):
        reducer.reduce(gradient(seed, comm.rank, step))
        assert reducer.stats.measures["contraction"] <= 1 - k / N + 1e-6


def test_errors_of_a_threshold_are_below_it(comm, seed):
    """Sahu et al. 2021: ||error||_inf < lambda in every step."""
    reducer = mpicomp.Reducer(comm, "threshold:lam=2.5")
    for step in range(6):
        reducer.reduce(gradient(seed, comm.rank, step))
        assert np.abs(reducer.state_dict()["memory/0/residual"]).max() < 2.5


@pytest.mark.parametrize("text", each(ALL))
def test_gradient_descent_reaches_the_optimum(comm, seed, text):
    """Workers pull a common x to points of their own; only the mean of all is the optimum. An element may wait for tens
    of steps until it is sent, so steps are small: smaller still with momentum. The noise of unbiased codecs keeps a
    distance that is a small part of the first one.
    """
    if comm.size != 3:
        pytest.skip("three ranks show it, and it takes hundreds of steps")
    n = 64
    target = 3 + np.random.default_rng([seed, comm.rank]).standard_normal(n).astype(np.float32)
    optimum = comm.allreduce(target, MPI.SUM) / comm.size
    rate = {"momentum-corrected": 0.005}.get(memory_of(text).name, 0.025)
    reducer, x = mpicomp.Reducer(comm, text), np.zeros(n, np.float32)
    first = np.linalg.norm(optimum)
    for _ in range(200):
        x -= reducer.reduce(rate * (x - target))
    x = comm.allreduce(x, MPI.SUM) / comm.size  # local models of local SGD differ between two exchanges
    assert np.linalg.norm(x - optimum) < 0.1 * first

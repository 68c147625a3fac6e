"""Selectors and the exchange ``agreed`` on every number of ranks, against a one-process simulation of all workers.

Gradients are small integers stored as floats, so every order of summation gives the same bits.
"""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp._util.partition import partition
from mpicomp.ops import oracle
from mpicomp.schemes.selectors.random_k import SHARED

STEPS = 4
# Sketches longer than what they stand for, of which users are warned: test_scheme_warnings.py.
LONG = pytest.param("arctopk:k=9,row=5,width=64,seed=3",
                    marks=pytest.mark.filterwarnings("ignore::mpicomp.errors.SchemeWarning"))
AGREED = ["randomk:density=0.1", "randomk:k=3,seed=7,beta=0.5", "arctopk:density=0.1,row=8",
          LONG, "arctopk:k=1,row=1000,memory=none"]
OWN = ["adacomp:bin=20,codec=float", "gaussiank:density=0.1", "sidco:density=0.1",
       "topk:selector=sampled,k=200,sample=0.2"]


def gradient(seed, worker, step, n):
    return np.random.default_rng([seed, worker, step]).integers(-48, 49, n).astype(np.float32)


def largest(x, k):
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


def target(options, n):
    return min(n, options["k"] or max(1, round(options["density"] * n)))


def agreed_indices(scheme, number, u):
    """Indices that all ranks agree on, from the vectors of all workers."""
    options, n = scheme.options, u.shape[1]
    k, seed = target(options, n), options["seed"]
    if scheme.name == "randomk":
        return oracle.random_strata(n, [(0, n)], [k], oracle.Key(seed, number, SHARED))
    row, width = options["row"], options["width"]
    sketch = np.empty(-(-n // row) * width)
    oracle.project_rows(None, u.sum(axis=0), [(0, u.shape[1])], row, width, seed * 2**32 + number, sketch)
    norms = np.sqrt(np.sum(sketch.reshape(-1, width) ** 2, axis=1)).astype(np.float32)
    chosen = largest(norms, min(len(norms), -(-k // row)))
    return np.array([i for i in range(n) if i // row in chosen])


class Simulation:
    """All workers in one process, in float64."""

    def __init__(self, text, workers, n):
        self.scheme = mpicomp.Scheme.parse(text)
        self.memory = np.zeros((workers, n))
        self.keeps = self.scheme.options["memory"] != "none"

    def step(self, number, gradients):
        u = self.memory + gradients
        indices = agreed_indices(self.scheme, number, u)
        mean, kept = np.zeros(u.shape[1]), u.copy()
        mean[indices] = u.sum(axis=0)[indices]
        kept[:, indices] = 0
        if self.keeps:
            beta = self.scheme.options["beta"]
            self.memory = (1 - beta) * self.memory + beta * kept
        return mean.astype(np.float32) * np.float32(1 / len(u))


def residual(reducer, worker=0):
    return reducer.state_dict().get(f"memory/{worker}/residual")


@pytest.mark.parametrize("n", [1, 29, 1000])
@pytest.mark.parametrize("text", AGREED)
def test_agreed_equals_the_simulation(comm, seed, text, n):
    reducer, simulation = mpicomp.Reducer(comm, text), Simulation(text, comm.size, n)
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step, n) for worker in range(comm.size)])
        np.testing.assert_array_equal(reducer.reduce(everyone[comm.rank]), simulation.step(step, everyone))
        if simulation.keeps:
            np.testing.assert_array_equal(residual(reducer), simulation.memory[comm.rank])


@pytest.mark.parametrize("text", AGREED)
def test_virtual_workers_are_independent_of_the_ranks(comm, seed, text):
    total, n = 2 * comm.size + 1, 64
    counts, displs = partition(total, comm.size)
    mine = range(displs[comm.rank], displs[comm.rank] + counts[comm.rank])
    reducer, simulation = mpicomp.Reducer(comm, text, workers=len(mine)), Simulation(text, total, n)
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step, n) for worker in range(total)])
        rows = everyone[mine.start : mine.stop]
        mean = reducer.reduce(rows if len(mine) > 1 else rows[0])
        np.testing.assert_array_equal(mean, simulation.step(step, everyone))
    if simulation.keeps:
        for place, worker in enumerate(mine):
            np.testing.assert_array_equal(residual(reducer, place), simulation.memory[worker])


@pytest.mark.parametrize("text", OWN)
def test_what_is_not_sent_is_kept(comm, seed, text):
    """With integers exactly: a coordinate is either in the sum or in the memory of each worker."""
    reducer, n = mpicomp.Reducer(comm, text), 1000
    kept = np.zeros(n)
    for step in range(STEPS):
        u = kept + gradient(seed, comm.rank, step, n)
        mean = reducer.reduce(gradient(seed, comm.rank, step, n))
        kept = residual(reducer).astype(float)
        sent = np.where(kept == 0, u, 0)
        np.testing.assert_array_equal(kept[kept != 0], u[kept != 0])
        if step == 0 and "adacomp" not in text:
            assert np.abs(sent).max() == np.abs(u).max()
        comm.Allreduce(MPI.IN_PLACE, sent)
        np.testing.assert_array_equal(mean, sent.astype(np.float32) * np.float32(1 / comm.size))


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", ["randomk:density=0.2", "arctopk:density=0.2,row=8", "sidco:density=0.2"])
def test_rounding_errors_stay_in_the_memory(comm, seed, text, values):
    """The bound is that of rounding the sum on its way, not the values: those errors are in the memory."""
    reducer = mpicomp.Reducer(comm, f"{text},values={values}")
    grad = np.random.default_rng([seed, comm.rank]).standard_normal(500).astype(np.float32)
    sent = reducer.reduce(grad).astype(float) * comm.size
    total = grad.astype(float) - residual(reducer)
    comm.Allreduce(MPI.IN_PLACE, total)
    bound = 0 if comm.size == 1 else 2.0 ** (-8 if values == "bfloat16" else -11) * comm.size
    np.testing.assert_allclose(sent, total, atol=1e-5 + bound * 6 * comm.size)


def bytes_of_all(comm, reducer):
    counts = np.array([reducer.stats.bytes_sent, reducer.stats.bytes_received])
    comm.Allreduce(MPI.IN_PLACE, counts)
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("randomk:density=0.01", 64),  # k values, no index
        ("randomk:density=0.01,values=float16", 32),
        ("arctopk:density=0.01", 64 + 400),  # one row of 64, and 4 numbers for each of 100 rows
        ("arctopk:density=0.05,row=16,width=2", 320 + 800),
    ],
)
def test_bytes_of_agreed(comm, text, numbers):
    reducer = mpicomp.Reducer(comm, text, algorithm="ring")
    rng = np.random.default_rng(comm.rank)
    for _ in range(2):
        reducer.reduce(rng.standard_normal(6400).astype(np.float32))
        expected = 2 * (comm.size - 1) * 4 * numbers
        assert expected <= bytes_of_all(comm, reducer) <= expected + 512 * comm.size  # and the agreement
    assert reducer.stats.payload_bits == 32 * numbers
    assert reducer.stats.leader is None


@pytest.mark.parametrize("name", ["adacomp:codec=float", "gaussiank:density=0.01", "sidco:density=0.01",
                                  "topk:selector=sampled,density=0.01"])
def test_bytes_of_gathered_pairs(comm, seed, name):
    """(p-1) k (v + i) bytes per rank: 4 + 4 for plain indices, a header of 32 bytes per worker, and the lengths."""
    separator = "," if ":" in name else ":"
    reducer = mpicomp.Reducer(comm, f"{name}{separator}indices=plain")
    grad = np.random.default_rng([seed, comm.rank]).standard_normal(20_000).astype(np.float32)
    reducer.reduce(grad)
    k = np.array([round(reducer.stats.density * grad.size)])
    assert reducer.stats.payload_bits == 64 * k[0]
    comm.Allreduce(MPI.IN_PLACE, k)
    expected = (comm.size - 1) * (8 * k[0] + 32 * comm.size)
    assert expected <= bytes_of_all(comm, reducer) <= expected + (512 + 8 * comm.size) * comm.size
    if "density" in name:
        assert 0.66 * 200 * comm.size <= k[0] <= 4 / 3 * 200 * comm.size


def test_rows_of_aligned_gradients_are_nearly_the_global_top_k(comm, seed):
    """Workers with a common part as large as their noise; rows differ in size as layers' do.

    No rank sees the sum, yet of its largest tenth of rows at least 0.65 are chosen, and those chosen hold at least
    0.9 of what the best rows would: seven standard deviations below what is usual, 0.83 and 0.985.
    """
    rows, row = 1600, 64
    rng = np.random.default_rng(seed)
    sizes = np.exp(1.5 * rng.standard_normal(rows))[:, None]
    common = rng.standard_normal((rows, row))
    noise = np.random.default_rng([seed, comm.rank]).standard_normal((rows, row))
    grad = (sizes * (common + noise)).astype(np.float32).ravel()
    indices = mpicomp.Reducer(comm, "arctopk:density=0.1").reduce_sparse(grad).indices
    total = grad.astype(float)
    comm.Allreduce(MPI.IN_PLACE, total)
    energy = np.sum(total.reshape(rows, row) ** 2, axis=1)
    chosen, best = np.unique(indices // row), largest(energy, rows // 10)
    assert indices.size == rows * row // 10
    assert len(np.intersect1d(chosen, best)) >= 0.65 * len(best)
    assert energy[chosen].sum() >= 0.9 * energy[best].sum()


@pytest.mark.parametrize("text", ["randomk:density=0.1", "arctopk:density=0.1,row=8"])
def test_overflowing_memory_is_told(comm, text):
    reducer = mpicomp.Reducer(comm, text)
    with pytest.raises(mpicomp.errors.NonFiniteGradient, match="overflowed in step 0: magnitudes must stay below"):
        reducer.reduce(np.full(100, 2e38, np.float32))
    reducer.reduce(np.full(100, 1e28, np.float32))
    assert np.isfinite(residual(reducer)).all()

"""Ok-Topk and SketchedSGD against one-process simulations of all workers, and what their papers promise.

Gradients are small integers stored as floats, so that every order of summation gives the same bits and ``array_equal``
is the check.
"""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp._util.partition import partition
from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle

STEPS = 7


def integers(seed, worker, step, n):
    return np.random.default_rng([seed, worker, step]).integers(-4800, 4801, n).astype(np.float32)


def floats(seed, worker, step, n):
    return np.random.default_rng([seed, worker, step]).standard_normal(n).astype(np.float32)


def residual(reducer, worker=0):
    return reducer.state_dict()[f"memory/{worker}/residual"]


def total(comm, x, op=MPI.SUM):
    x = np.array(x)
    comm.Allreduce(MPI.IN_PLACE, x, op)
    return x


def largest(values, k):
    """Which k are largest; lowest index first among equals."""
    kept = np.zeros(values.size, bool)
    kept[np.argsort(-np.abs(values), kind="stable")[:k]] = True
    return kept


# ---- Ok-Topk

class Threshold:
    """A threshold that is reused for ``period`` steps, unless it lets pass too few or too many of k."""

    def __init__(self, k, period):
        self.k, self.period, self.lam = k, period, None

    def passing(self, magnitude, number):
        """Which of the magnitudes (-1: not there) pass; whether the threshold was taken anew."""
        wanted = min(self.k, np.count_nonzero(magnitude >= 0))
        if number % self.period and self.lam is not None:
            passed = np.count_nonzero(magnitude >= self.lam)
            if 2 / 3 * wanted <= passed <= 3 / 2 * wanted:
                return magnitude >= self.lam, False
        self.lam = np.sort(magnitude)[-wanted] if wanted == self.k else 0
        return magnitude >= self.lam, True


class OkTopk:
    """All workers of Ok-Topk in one process; which rank adds what changes nothing."""

    def __init__(self, workers, n, k, period):
        self.k, self.memory = k, np.zeros((workers, n))
        self.local, self.all = [Threshold(k, period) for _ in range(workers)], Threshold(k, period)

    def step(self, number, gradients):
        u = self.memory + gradients
        chosen = np.zeros(u.shape, bool)
        for one, mine, threshold in zip(u, chosen, self.local, strict=True):
            passed, exact = threshold.passing(np.abs(one), number)
            mine[:] = largest(one if exact else np.where(passed, one, 0), self.k) & passed
        sums = np.where(chosen, u, 0).sum(axis=0)
        final, _ = self.all.passing(np.where(chosen.any(axis=0), np.abs(sums), -1), number)
        self.memory = np.where(chosen & final, 0, u)
        return np.where(final, sums, 0).astype(np.float32) * np.float32(1 / len(u))


def assert_equals(comm, seed, n, text, simulation):
    """Means and memories are those of ``simulation``, which has one worker more than there are ranks: two on rank 0."""
    counts, displs = partition(comm.size + 1, comm.size)
    mine, workers = counts[comm.rank], sum(counts)
    reducer = mpicomp.Reducer(comm, text, workers=mine)
    for step in range(STEPS):
        everyone = np.array([integers(seed, worker, step, n) for worker in range(workers)])
        own = everyone[displs[comm.rank] :][:mine]
        expected = simulation.step(step, everyone)
        np.testing.assert_array_equal(reducer.reduce(own if mine > 1 else own[0]), expected)
        for worker in range(mine):
            np.testing.assert_array_equal(residual(reducer, worker), simulation.memory[displs[comm.rank] + worker])


@pytest.mark.parametrize("period", [1, 3, 32])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (40, 40), (300, 7), (5000, 200)])
def test_oktopk_equals_the_simulation(comm, seed, n, k, period):
    assert_equals(comm, seed, n, f"oktopk:k={k},period={period}", OkTopk(comm.size + 1, n, k, period))


def test_oktopk_reuses_thresholds_and_regions(comm, seed):
    """Between estimates they stay; where the count leaves the band, thresholds do not."""
    n, k = 20_000, 500
    weight = np.where(np.arange(n) < n // 2, 1.5, 1).astype(np.float32)  # the second estimate finds other regions
    reducer = mpicomp.Reducer(comm, f"oktopk:k={k},period=4,memory=none")
    states = []
    for step in range(6):
        factor = {4: weight, 5: 100 * weight}.get(step, np.float32(1))
        reducer.reduce(floats(seed, comm.rank, step, n) * factor)
        states.append(reducer.state_dict())
    for name in ("exchange/local", "exchange/global", "exchange/bounds"):
        first, *reused, second, last = (state[name] for state in states)
        for later in reused:
            np.testing.assert_array_equal(later, first)
        if name == "exchange/bounds":
            assert comm.size == 1 or np.any(second != first)
            np.testing.assert_array_equal(last, second)
        else:
            assert np.all(second != first)
            if name == "exchange/local" or comm.size > 1:  # of one rank's k all survive any lower threshold
                assert np.all(last > 50 * second)


@pytest.mark.parametrize("skewed", [False, True])
def test_oktopk_sends_at_most_6k_words(comm, seed, skewed):
    """Averaged over steps, on every rank, wherever in the vector the large elements are."""
    n, k, steps = 50_000, 1000, 16
    weight = np.exp(-np.arange(n) / (n / 20)).astype(np.float32) if skewed else np.float32(1)
    reducer = mpicomp.Reducer(comm, f"oktopk:k={k},period=8", algorithm="ring")
    used = np.zeros(2)
    for step in range(steps):
        reducer.reduce(floats(seed, comm.rank, step, n) * weight)
        used += reducer.stats.bytes_sent, reducer.stats.bytes_received
    words = total(comm, used, MPI.MAX) / steps / 4
    assert np.all(words <= 6 * k * (comm.size - 1) / comm.size)
    assert reducer.stats.payload_bits <= 8 * k * 8


def test_oktopk_regions_share_the_work(comm, seed):
    """All large elements lie in the first tenth: every rank still owns its part of them."""
    n, k = 50_000, 1000
    grad = floats(seed, comm.rank, 0, n)
    grad[n // 10 :] *= np.float32(1e-3)
    reducer = mpicomp.Reducer(comm, f"oktopk:k={k}")
    mean = reducer.reduce(grad)
    bounds = reducer.state_dict()["exchange/bounds"]
    owned = np.histogram(np.flatnonzero(mean), [0, *bounds.tolist(), n])[0]
    assert owned.max() < 1.5 * owned.sum() / comm.size


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_oktopk_keeps_rounding_errors(comm, seed, values):
    n, workers, came_in, sent = 400, 2, 0, 0
    reducer = mpicomp.Reducer(comm, f"oktopk:k=20,values={values}", workers=workers)
    for step in range(STEPS):
        grad = floats(seed, comm.rank, step, (workers, n))
        came_in = came_in + grad.sum(axis=0)
        sent = sent + reducer.reduce(grad).astype(float) * comm.size * workers
    kept = sum(residual(reducer, worker).astype(float) for worker in range(workers))
    np.testing.assert_allclose(sent + total(comm, kept), total(comm, came_in), atol=4e-5 * comm.size)


def test_oktopk_has_thresholds_of_every_tensor(comm, seed):
    reducer = mpicomp.Reducer(comm, "oktopk:density=0.1,layers=per-tensor")
    for step in range(4):
        rng = np.random.default_rng([seed, comm.rank, step])
        mean = reducer.reduce({"big": 100 * rng.standard_normal(900), "none": np.zeros(0),
                               "small": rng.standard_normal(100)})
        assert 60 <= np.count_nonzero(mean["big"]) <= 135
        assert 6 <= np.count_nonzero(mean["small"]) <= 15


def test_oktopk_keeps_places_past_2_to_the_24(comm):
    n = 2**24 + 3
    grad = np.zeros(n, np.float32)
    grad[[n - 1, n - 2]] = comm.rank + 1, 0.5
    grad[comm.rank] = 0.25
    indices, values, _ = mpicomp.Reducer(comm, "oktopk:k=2").reduce_sparse(grad)
    assert indices.tolist() == [n - 2, n - 1]
    np.testing.assert_allclose(values, [0.5, (comm.size + 1) / 2])


# ---- SketchedSGD

class Sketched:
    """All workers of SketchedSGD in one process."""

    def __init__(self, workers, n, k, rows, columns):
        self.n, self.k, self.shape, self.memory = n, k, (rows, columns), np.zeros((workers, n), np.float32)

    def step(self, number, gradients):
        u = self.memory + gradients
        estimates = np.empty(self.n, np.float32)
        table = sum(self.table(one, number) for one in u)
        oracle.sketch_estimate(table, *self.shape, number * self.shape[0], estimates)
        sums = np.where(largest(estimates, 4 * self.k), u.sum(axis=0), 0)
        final = largest(sums, self.k)
        self.memory = np.where(final, 0, u)
        return np.where(final, sums, 0) * np.float32(1 / len(u))

    def table(self, one, number):
        table = np.empty(self.shape[0] * self.shape[1], np.float32)
        oracle.count_sketch(None, one, *self.shape, number * self.shape[0], table)
        return table


@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (5, 128), (4, 256)])
def test_sketchsgd_equals_the_simulation(comm, seed, rows, columns):
    n, k = 3000, 20
    simulation = Sketched(comm.size + 1, n, k, rows, columns)
    assert_equals(comm, seed, n, f"sketchsgd:k={k},rows={rows},columns={columns}", simulation)


def test_sketchsgd_finds_the_heavy_elements(comm, seed):
    """Every worker alone has larger elements than the common ones, but their sum has not.

    With the default sketch, 5 rows of 256, three rows hide one heavy element behind another once in 2500 runs.
    """
    n, k = 20_000, 20
    places = np.sort(np.random.default_rng(seed).choice(n, k, replace=False))
    grad = floats(seed, comm.rank, 0, n) * np.float32(0.1)
    grad[places] = 10 + np.arange(k)
    indices, _, _ = mpicomp.Reducer(comm, f"sketchsgd:k={k},rows=9,columns=1024").reduce_sparse(grad)
    np.testing.assert_array_equal(indices, places)


def test_sketchsgd_of_short_vectors_is_the_top_k_of_the_sum(comm, seed):
    n, k = 500, 30
    everyone = np.array([integers(seed, rank, 0, n) for rank in range(comm.size)])
    sums = everyone.sum(axis=0)
    reducer = mpicomp.Reducer(comm, f"sketchsgd:k={k}")
    mean = reducer.reduce(everyone[comm.rank])
    np.testing.assert_array_equal(mean, np.where(largest(sums, k), sums, 0) * np.float32(1 / comm.size))
    assert reducer.stats.payload_bits == 32 * n


@pytest.mark.parametrize(("values", "nbytes"), [("same", 4), ("float16", 2)])
def test_sketchsgd_sends_the_sketch_and_the_candidates(comm, seed, values, nbytes):
    n, k, columns = 30_000, 50, 1024
    reducer = mpicomp.Reducer(comm, f"sketchsgd:k={k},columns={columns},values={values}", algorithm="ring")
    reducer.reduce(floats(seed, comm.rank, 0, n))
    sent, nbytes = total(comm, [reducer.stats.bytes_sent])[0], 5 * columns * 4 + 4 * k * nbytes
    assert 2 * (comm.size - 1) * nbytes <= sent <= 2 * (comm.size - 1) * nbytes + 512 * comm.size
    assert reducer.stats.payload_bits == 8 * nbytes
    assert reducer.stats.density == k / n


def test_sketchsgd_refuses_columns_that_are_no_power_of_two():
    with pytest.raises(InvalidArgument, match="columns must be a power of two, got 100: take 64 or 128"):
        mpicomp.Scheme.parse("sketchsgd:columns=100")

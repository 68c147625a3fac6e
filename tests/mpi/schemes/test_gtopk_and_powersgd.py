"""gTop-k and PowerSGD against one-process simulations of all workers, and what their papers promise.

Gradients of the list exchanges are small integers stored as floats, so that every order of summation gives the same
bits and ``array_equal`` is the check.
"""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp._util.partition import partition

STEPS = 5


def integers(seed, worker, step, n):
    return np.random.default_rng([seed, worker, step]).integers(-48, 49, n).astype(np.float32)


def residual(reducer, worker=0):
    return reducer.state_dict()[f"memory/{worker}/residual"]


def total(comm, x):
    x = np.array(x)
    comm.Allreduce(MPI.IN_PLACE, x)
    return x


# ---- gTop-k

def cut(values, member, k):
    """Which members of a list, held as a dense vector, are its k largest; lowest index first among equals."""
    order = np.argsort(-np.where(member, np.abs(values), -1), kind="stable")[:k]
    kept = np.zeros(values.size, bool)
    kept[order] = True
    return kept & member


class Tree:
    """All workers of gTop-k in one process: workers of a rank merge at once, ranks in a binomial tree."""

    def __init__(self, workers, n, k):
        self.k, self.starts = k, np.concatenate([[0], np.cumsum(workers)])
        self.memory = np.zeros((sum(workers), n))

    def merge(self, lists, rank):
        values, member = sum(v for v, _ in lists), np.any([m for _, m in lists], axis=0)
        kept = cut(values, member, self.k)
        self.dropped[rank] += np.where(kept, 0, values)
        return np.where(kept, values, 0), kept

    def step(self, gradients):
        u = self.memory + gradients
        ranks, n = self.starts.size - 1, u.shape[1]
        chosen = [cut(one, np.ones(n, bool), self.k) for one in u]
        own = [(np.where(mask, one, 0), mask) for one, mask in zip(u, chosen, strict=True)]
        self.dropped = np.zeros((ranks, n))
        lists = [self.merge(own[a:b], r) for r, (a, b) in enumerate(zip(self.starts, self.starts[1:], strict=False))]
        distance = 1
        while distance < ranks:
            for rank in range(0, ranks - distance, 2 * distance):
                lists[rank] = self.merge([lists[rank], lists[rank + distance]], rank)
            distance *= 2
        values, final = lists[0]
        self.memory = u - np.array([np.where(final, v, 0) for v, _ in own])
        self.memory[self.starts[:-1]] += np.where(final, self.dropped, 0)
        return values.astype(np.float32) * np.float32(1 / len(u))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (40, 40), (300, 7), (5000, 200)])
def test_gtopk_equals_the_simulation(comm, seed, n, k):
    reducer, simulation = mpicomp.Reducer(comm, f"gtopk:k={k}"), Tree([1] * comm.size, n, k)
    for step in range(STEPS):
        everyone = np.array([integers(seed, rank, step, n) for rank in range(comm.size)])
        np.testing.assert_array_equal(reducer.reduce(everyone[comm.rank]), simulation.step(everyone))
        np.testing.assert_array_equal(residual(reducer), simulation.memory[comm.rank])


def test_gtopk_with_uneven_workers_equals_the_simulation(comm, seed):
    counts, displs = partition(2 * comm.size + 1, comm.size)
    mine, n, k = counts[comm.rank], 200, 9
    reducer, simulation = mpicomp.Reducer(comm, f"gtopk:k={k}", workers=mine), Tree(counts, n, k)
    for step in range(STEPS):
        everyone = np.array([integers(seed, worker, step, n) for worker in range(sum(counts))])
        own = everyone[displs[comm.rank] :][:mine]
        np.testing.assert_array_equal(reducer.reduce(own if mine > 1 else own[0]), simulation.step(everyone))
        for worker in range(mine):
            np.testing.assert_array_equal(residual(reducer, worker), simulation.memory[displs[comm.rank] + worker])


def test_gtopk_of_two_is_the_top_k_of_the_sum_of_both_lists(comm, seed):
    if comm.size != 2:
        pytest.skip("for two ranks")
    n, k = 1000, 30
    both = [integers(seed, rank, 0, n) for rank in range(2)]
    lists = [np.where(cut(x, np.ones(n, bool), k), x, 0) for x in both]
    expected = np.where(cut(sum(lists), np.logical_or(*(x != 0 for x in lists)), k), sum(lists), 0) / 2
    np.testing.assert_array_equal(mpicomp.Reducer(comm, f"gtopk:k={k}").reduce(both[comm.rank]), expected)


def test_gtopk_keeps_what_a_branch_dropped_but_another_brought_through(comm):
    """Rank 0 cuts rank 1's index 0, which comes through by rank 2: rank 0 keeps what rank 1 counts as sent."""
    if comm.size < 3:
        pytest.skip("needs two branches")
    grads = np.zeros((comm.size, 4), np.float32)
    grads[0, 2], grads[1, 0], grads[2, 0] = 6, 5, 9
    reducer = mpicomp.Reducer(comm, "gtopk:k=1")
    mean = reducer.reduce(grads[comm.rank])
    np.testing.assert_array_equal(mean, np.array([9, 0, 0, 0], np.float32) * np.float32(1 / comm.size))
    expected = {0: [5, 0, 6, 0]}.get(comm.rank, [0, 0, 0, 0])
    np.testing.assert_array_equal(residual(reducer), expected)


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
@pytest.mark.parametrize("workers", [1, 3])
def test_gtopk_keeps_rounding_errors(comm, seed, values, workers):
    """However coarse the wire: sent and kept make up what came in, to the precision of the memory."""
    n, came_in, sent = 400, 0, 0
    reducer = mpicomp.Reducer(comm, f"gtopk:k=20,values={values}", workers=workers)
    for step in range(STEPS):
        grad = np.random.default_rng([seed, comm.rank, step]).standard_normal((workers, n)).astype(np.float32)
        came_in = came_in + grad.sum(axis=0)
        sent = sent + reducer.reduce(grad if workers > 1 else grad[0]).astype(float) * comm.size * workers
    kept = sum(residual(reducer, worker).astype(float) for worker in range(workers))
    np.testing.assert_allclose(sent + total(comm, kept), total(comm, came_in), atol=2e-5 * comm.size)


def test_gtopk_keeps_the_largest_of_every_tensor(comm, seed):
    grads = {"big": integers(seed, comm.rank, 0, 90) * 100, "none": np.zeros(0, np.float32),
             "small": integers(seed, comm.rank, 1, 10)}
    mean = mpicomp.Reducer(comm, "gtopk:density=0.1,layers=per-tensor").reduce(grads)
    assert np.count_nonzero(mean["big"]) <= 9
    assert np.count_nonzero(mean["small"]) <= 1
    positive = np.abs(grads["small"]) + 1  # what cannot cancel
    assert mpicomp.Reducer(comm, "gtopk:density=0.1").reduce({"a": positive})["a"].any()


def test_gtopk_keeps_places_past_2_to_the_24(comm):
    n = 2**24 + 3
    grad = np.zeros(n, np.float32)
    grad[[n - 1, n - 2]] = comm.rank + 1, 0.5
    grad[comm.rank] = 0.25
    indices, values, _ = mpicomp.Reducer(comm, "gtopk:k=2").reduce_sparse(grad)
    assert indices.tolist() == [n - 2, n - 1]
    np.testing.assert_allclose(values, [0.5, (comm.size + 1) / 2])


@pytest.mark.parametrize(("values", "nbytes"), [("same", 4), ("float16", 2)])
def test_gtopk_sends_k_pairs_up_the_tree_and_down(comm, seed, values, nbytes):
    n, k = 50_000, 500
    reducer = mpicomp.Reducer(comm, f"gtopk:k={k},values={values}")
    for step in range(2):
        reducer.reduce(integers(seed, comm.rank, step, n))
    sent, formula = total(comm, [reducer.stats.bytes_sent])[0], 2 * (comm.size - 1) * k * (4 + nbytes)
    assert formula <= sent <= formula + 512 * comm.size  # and the agreement
    assert reducer.stats.payload_bits == 8 * k * (4 + nbytes)


# ---- PowerSGD

SHAPES = {"w": (30, 20), "bias": (30,), "kernel": (16, 4, 3, 2), "thin": (2, 3)}


def low_rank(rng, shape, rank, dtype=np.float32):
    """A random tensor which is a matrix of the given rank."""
    rows, columns = shape[0], int(np.prod(shape[1:]))
    product = rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))
    return product.astype(dtype).reshape(shape)


def floats(seed, worker, step, shapes=SHAPES):
    rng = np.random.default_rng([seed, worker, step])
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class Power:
    """PowerSGD after the paper, all workers of one matrix in one process, in float64."""

    def __init__(self, workers, shape, rank, tensor, warm=True):
        self.shape, self.rank, self.tensor, self.warm = (shape[0], int(np.prod(shape[1:]))), rank, tensor, warm
        self.memory, self.q = np.zeros((workers, *self.shape)), None

    def step(self, number, gradients):
        u = self.memory + np.array(gradients).reshape(self.memory.shape)
        if self.q is None or not self.warm:
            rng = np.random.default_rng([0, self.tensor] if self.warm else [0, number, self.tensor])
            self.q = rng.standard_normal((self.shape[1], self.rank)).astype(np.float32)
        p = np.linalg.qr(np.mean(u @ self.q, axis=0))[0]
        self.q = np.mean(u.transpose(0, 2, 1) @ p, axis=0)
        self.memory = u - p @ self.q.T
        return p @ self.q.T

    def kept(self, worker):
        return self.memory[worker]


class Transposed(Power):
    """The same of every matrix' transpose."""

    def __init__(self, workers, shape, *others):
        super().__init__(workers, (int(np.prod(shape[1:])), shape[0]), *others)

    def step(self, number, gradients):
        return super().step(number, [one.reshape(len(one), -1).T for one in gradients]).T

    def kept(self, worker):
        return self.memory[worker].T


@pytest.mark.parametrize(("warm", "orthogonal"), [("yes", "rows"), ("no", "rows"), ("yes", "columns")])
def test_powersgd_equals_the_simulation(comm, seed, warm, orthogonal):
    counts, displs = partition(comm.size + 1, comm.size)
    mine, workers = counts[comm.rank], sum(counts)
    reducer = mpicomp.Reducer(comm, f"powersgd:rank=2,warm={warm},orthogonal={orthogonal}", workers=mine)
    power = Power if orthogonal == "rows" else Transposed
    simulations = {name: power(workers, SHAPES[name], 2, i, warm == "yes") for i, name in enumerate(["w", "kernel"])}
    for step in range(3):
        everyone = [floats(seed, worker, step) for worker in range(workers)]
        own = everyone[displs[comm.rank] :][:mine]
        stacked = {name: np.stack([one[name] for one in own]) for name in SHAPES}
        mean = reducer.reduce(stacked if mine > 1 else own[0])
        for name, simulation in simulations.items():
            expected = simulation.step(step, [one[name] for one in everyone]).reshape(SHAPES[name])
            np.testing.assert_allclose(mean[name], expected, atol=2e-3)
        for name in ("bias", "thin"):
            np.testing.assert_allclose(mean[name], np.mean([one[name] for one in everyone], axis=0), atol=1e-6)
    for worker in range(mine):
        kept = residual(reducer, worker)[: 30 * 20].reshape(30, 20)
        np.testing.assert_allclose(kept, simulations["w"].kept(displs[comm.rank] + worker), atol=5e-3)
        assert not residual(reducer, worker)[600:630].any()  # vectors are sent exactly


def test_powersgd_recovers_a_mean_of_its_rank(comm, seed):
    shape = (40, 5, 6)
    same = low_rank(np.random.default_rng([seed, 7]), shape, 3, np.float64)
    one = [same * (rank + 1) for rank in range(comm.size)]
    mean = mpicomp.Reducer(comm, "powersgd:rank=3").reduce(one[comm.rank])
    expected = np.mean(one, axis=0)
    # Rounding by the condition of a random product, which has no limit: float32 was off by 1 % in 1e-5 of all runs.
    assert np.linalg.norm(mean - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("rank", [5, 100])
def test_powersgd_of_full_rank_is_exact(comm, seed, rank):
    mine = [floats(seed, worker, 0, {"w": (9, 5), "b": (4,), "none": (0, 3)}) for worker in range(comm.size)]
    reducer = mpicomp.Reducer(comm, f"powersgd:rank={rank}")
    mean = reducer.reduce(mine[comm.rank])
    for name in mean:
        np.testing.assert_allclose(mean[name], np.mean([one[name] for one in mine], axis=0), atol=1e-6)
    assert reducer.memory_norm() < 1e-5


def test_powersgd_converges_on_a_constant_gradient(comm, seed):
    """The warm start is a power iteration: with a memory the means make up a gradient of any rank."""
    grad = floats(seed, comm.rank, 0, {"w": (24, 24)})["w"]
    expected = total(comm, grad) / comm.size
    reducer, got = mpicomp.Reducer(comm, "powersgd:rank=4"), 0
    for steps in (10, 40):
        got = sum((reducer.reduce(grad) for _ in range(steps)), start=got)
    error = np.linalg.norm(got / 50 - expected) / np.linalg.norm(expected)
    assert error < 0.2


@pytest.mark.parametrize(("values", "nbytes"), [("same", 4), ("float16", 2)])
def test_powersgd_sends_the_factors_and_the_vectors(comm, seed, values, nbytes):
    shapes = {"w": (300, 200), "bias": (1000,), "kernel": (64, 8, 3, 3)}
    reducer = mpicomp.Reducer(comm, f"powersgd:rank=2,values={values}", algorithm="ring")
    for step in range(2):
        reducer.reduce(floats(seed, comm.rank, step, shapes))
    elements = 2 * (300 + 200 + 64 + 72) + 1000
    sent, formula = total(comm, [reducer.stats.bytes_sent])[0], 2 * (comm.size - 1) * elements * nbytes
    assert formula <= sent <= formula + 512 * comm.size
    assert reducer.stats.payload_bits == 8 * elements * nbytes


def test_powersgd_of_half_precision_keeps_the_guess_of_a_refused_step(comm, seed):
    reducer = mpicomp.Reducer(comm, "powersgd:rank=2,values=float16")
    reducer.reduce(floats(seed, comm.rank, 0))
    before = reducer.state_dict()
    with pytest.raises(mpicomp.errors.NonFiniteGradient, match="overflowed in step 1"):
        reducer.reduce({name: np.full(shape, 1e5, np.float32) for name, shape in SHAPES.items()})
    after = reducer.state_dict()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])

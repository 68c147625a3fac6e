"""The memories adam-update and ef21, against simulations of all workers in one process, written from the papers."""

import numpy as np
import pytest

import mpicomp
from mpicomp import optim
from mpicomp._util.partition import partition
from mpicomp.checkpoint.redistribute import Keepers, redistribute
from mpicomp.errors import InvalidArgument

STEPS, N, K = 7, 90, 6
BETAS = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6}
ADAM = f"topk-global:memory=adam-update,k={K},beta1=0.8,beta2=0.95,eps=1e-6"


def whole(seed, worker, step, n=N):
    """Small integers: with weights that are powers of two, sums are exact in any order."""
    return np.random.default_rng([seed, worker, step]).integers(-48, 49, n).astype(np.float32)


def real(seed, worker, step, n=N):
    return np.random.default_rng([seed, worker, step]).standard_normal(n)


def spread(comm, total):
    """Which of ``total`` workers are this rank's."""
    counts, displs = partition(total, comm.size)
    return slice(displs[comm.rank], displs[comm.rank] + counts[comm.rank])


def rows(array):
    return array if len(array) > 1 else array[0]


def compressed(u):
    """The K elements of largest magnitude in each row of u; among equals those of lowest index."""
    sent = np.zeros_like(u)
    for one, from_u in zip(sent, u, strict=True):
        chosen = np.argsort(-np.abs(from_u), kind="stable")[:K]
        one[chosen] = from_u[chosen]
    return sent


class EF21:
    """EF21-SGDM, algorithm 1 of the paper, with all h_i and their mean."""

    def __init__(self, workers, eta):
        self.eta = np.float32(eta)
        self.v, self.h = np.zeros((2, workers, N), np.float32)
        self.mean = np.zeros(N, np.float32)

    def step(self, g):
        self.v = (1 - self.eta) * self.v + self.eta * g
        c = compressed(self.v - self.h)
        self.h = self.h + c
        self.mean = self.mean + c.sum(axis=0).astype(np.float32) * np.float32(1 / len(c))
        return self.mean


@pytest.mark.parametrize("extra", [0, 1])  # workers a rank: one, or one and two
@pytest.mark.parametrize("eta", [1, 0.5])
def test_ef21_equals_the_paper(comm, seed, eta, extra):
    total = comm.size + extra
    mine = spread(comm, total)
    reducer = mpicomp.Reducer(comm, f"topk-global:k={K},memory=ef21,eta={eta}", workers=mine.stop - mine.start)
    paper = EF21(total, eta)
    for step in range(STEPS):
        g = np.array([whole(seed, worker, step) for worker in range(total)])
        np.testing.assert_array_equal(reducer.reduce(rows(g[mine])), paper.step(g))
        state = reducer.state_dict()
        for place, worker in enumerate(range(mine.start, mine.stop)):
            np.testing.assert_array_equal(state[f"memory/{place}/residual"], (paper.v - paper.h)[worker])
            np.testing.assert_array_equal(state[f"memory/{place}/estimate"], paper.v[worker])
            np.testing.assert_array_equal(state[f"memory/{place}/common"], paper.mean)


@pytest.mark.parametrize("text", ["topk-global:k=5", "powersgd:rank=1", "onebit:column=9", "scalecom:chunk=4",
                                  "randomk:k=9"])
def test_what_ef21_sends_and_keeps_adds_up_to_the_estimate(comm, seed, text):
    """The mean of the estimates is the result and the mean of what was kept, by workers and owners of pieces."""
    reducer = mpicomp.Reducer(comm, f"{text},memory=ef21,eta=0.5")
    estimate, shape = np.zeros(N), (9, 10)
    for step in range(STEPS):
        g = real(seed, comm.rank, step)
        estimate += 0.5 * (g - estimate)
        result = reducer.reduce(g.reshape(shape)).reshape(-1)
        state = reducer.state_dict()
        kept = comm.allreduce(state["memory/0/residual"]) / comm.size
        if "exchange/start" in state:
            pieces = comm.allgather((int(state["exchange/start"]), state["exchange/residual"]))
            for start, piece in pieces:
                kept[start : start + piece.size] += piece
        np.testing.assert_allclose(result + kept, comm.allreduce(estimate) / comm.size, atol=1e-12)


def test_a_steady_gradient_becomes_the_result(comm, seed):
    """Without noise the result of EF21 goes to the mean gradient itself; that of error feedback never settles."""
    g = real(seed, comm.rank, 0)
    mean = comm.allreduce(g) / comm.size
    reducer = mpicomp.Reducer(comm, f"topk-global:k={K},memory=ef21,eta=1")
    for _ in range(2 * N // K):
        result = reducer.reduce(g)
    np.testing.assert_allclose(result, mean, atol=1e-12)
    assert reducer.memory_norm() < 1e-12


class AdamUpdate:
    """Adam on every worker by the paper's formulas, and error feedback on what each would subtract."""

    def __init__(self, workers):
        self.m, self.s, self.e = np.zeros((3, workers, N))
        self.t = 0

    def step(self, g):
        b1, b2, eps = BETAS.values()
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.s = b2 * self.s + (1 - b2) * g**2
        u = self.e + self.m / (1 - b1**self.t) / (np.sqrt(self.s / (1 - b2**self.t)) + eps)
        sent = compressed(u)
        self.e = u - sent
        return sent.mean(axis=0)


@pytest.mark.parametrize("extra", [0, 1])
def test_adam_update_equals_the_simulation(comm, seed, extra):
    total = comm.size + extra
    mine = spread(comm, total)
    reducer, simulation = mpicomp.Reducer(comm, ADAM, workers=mine.stop - mine.start), AdamUpdate(total)
    for step in range(STEPS):
        g = np.array([real(seed, worker, step) for worker in range(total)])
        np.testing.assert_allclose(reducer.reduce(rows(g[mine])), simulation.step(g), atol=1e-9)
        state = reducer.state_dict()
        for place, worker in enumerate(range(mine.start, mine.stop)):
            for name, expected in (("residual", simulation.e), ("first", simulation.m), ("second", simulation.s)):
                np.testing.assert_allclose(state[f"memory/{place}/{name}"], expected[worker], atol=1e-9)


def test_arrays_that_go_dense_have_adam_of_their_mean(comm, seed):
    """Also a worker of its own, whose gradient is the mean of all."""
    reducer = mpicomp.Reducer(comm, f"{ADAM},dense=1d")
    weights = {"bias": np.ones(8)}
    adam = optim.Adam(weights, **BETAS)
    expected = np.ones(8)
    for step in range(STEPS):
        grads = {"weight": real(seed, comm.rank, step).reshape(9, 10), "bias": real(seed, comm.rank, step, 8)}
        expected -= 0.1 * reducer.reduce(grads)["bias"]
        adam.step({"bias": comm.allreduce(grads["bias"]) / comm.size}, lr=0.1)
        np.testing.assert_allclose(expected, weights["bias"], rtol=1e-9)


def test_everything_sent_is_the_mean_of_the_workers_adam(comm, seed):
    reducer = mpicomp.Reducer(comm, "dense:memory=adam-update")
    own = {"w": np.zeros(N)}
    adam, x = optim.Adam(own), np.zeros(N)
    for step in range(STEPS):
        g = real(seed, comm.rank, step)
        x -= 0.1 * reducer.reduce(g)
        adam.step({"w": g}, lr=0.1)
        np.testing.assert_allclose(x, comm.allreduce(own["w"]) / comm.size, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", [ADAM, f"topk-global:memory=ef21,k={K}", f"{ADAM},dense=1d"])
def test_a_skipped_step_leaves_everything(comm, seed, text):
    reducer, other = (mpicomp.Reducer(comm, text, nonfinite="skip") for _ in range(2))
    shape = (9, 10)
    for one in (reducer, other):
        one.reduce(whole(seed, comm.rank, 0).reshape(shape))
    bad = whole(seed, comm.rank, 1).reshape(shape)
    bad[3] = np.nan if comm.rank == 0 else 0
    np.testing.assert_array_equal(reducer.reduce(bad), np.zeros(shape))
    for key, value in other.state_dict().items():
        assert key == "step" or np.array_equal(value, reducer.state_dict()[key])


@pytest.mark.parametrize("text", [f"{ADAM},dense=1d", f"topk-global:memory=ef21,k={K},dense=1d", "onebit:memory=ef21",
                                  "powersgd:rank=1,memory=adam-update", "topk:memory=ef21,density=0.1,nodes=yes"])
def test_resume_is_bit_exact(comm, seed, text):
    def grads(step):
        return {"w": whole(seed, comm.rank, step).reshape(9, 10), "b": whole(seed, comm.rank, step, 5)}

    through = mpicomp.Reducer(comm, text)
    for step in range(STEPS):
        if step == 3:
            state = through.state_dict()
        expected = through.reduce(grads(step))
    resumed = mpicomp.Reducer(comm, text)
    resumed.load_state_dict(state)
    for step in range(3, STEPS):
        result = resumed.reduce(grads(step))
    assert all(result[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize(("memory", "name"), [("adam-update", "first"), ("ef21", "residual")])
def test_states_of_other_workers_are_refused(comm, seed, memory, name):
    reducer = mpicomp.Reducer(comm, f"topk:memory={memory}")
    reducer.reduce(real(seed, comm.rank, 0))
    states = comm.allgather(reducer.state_dict())
    with pytest.raises(InvalidArgument, match=f"the {name} of a worker cannot be given to others"):
        redistribute(states.__getitem__, Keepers([1] * comm.size), Keepers([1] * (comm.size + 1)), 0, {})

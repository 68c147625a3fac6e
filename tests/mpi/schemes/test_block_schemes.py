"""int8, int4 and fp8: two hops of block codes, against the oracle's operations in one process."""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp._util.partition import partition
from mpicomp.errors import NonFiniteGradient
from mpicomp.ops import oracle
from mpicomp.ops.arguments import Key
from mpicomp.ops.block_codes import BLOCK, FORMATS, block_codes_nbytes, largest_error
from mpicomp.schemes.exchanges import hops

STEPS = 3


def gradient(seed, worker, step, n, dtype=np.float32):
    return np.random.default_rng([seed, worker, step]).standard_normal(n).astype(dtype)


class TwoHops:
    """Quantise, average piece by piece, quantise again; the owners' and the workers' memories.

    Each rank takes its own workers and its own piece; vectors and means travel by MPI as they are.
    """

    def __init__(self, comm, workers, mine, n, format, stochastic, memory, dtype=np.float32):
        self.comm, self.workers, self.mine = comm, workers, range(workers)[mine]
        self.kept, (counts, displs) = np.zeros((len(self.mine), n), dtype), partition(n, comm.size)
        self.format, self.stochastic, self.memory = format, stochastic, memory
        self.pieces = [slice(at, at + count) for count, at in zip(counts, displs, strict=True)]
        self.owner = np.zeros(counts[comm.rank], dtype)
        self.step_number = 0

    def quantised(self, x, worker, start):
        codes, out = np.empty(block_codes_nbytes(x.size, self.format), np.uint8), np.empty_like(x)
        key = Key(0, self.step_number, worker) if self.stochastic else None
        oracle.encode_blocks(x, self.format, codes, key, start)
        oracle.decode_blocks(codes, self.format, out)
        return out

    def step(self, gradients):
        u = self.kept + gradients if self.memory else gradients
        sent = np.empty_like(u)
        for piece in self.pieces:
            for row, worker in enumerate(self.mine):
                sent[row, piece] = self.quantised(u[row, piece], worker, piece.start)
        everyone = np.concatenate(self.comm.allgather(sent))
        own = self.pieces[self.comm.rank]
        total = np.zeros_like(self.owner)
        oracle.coded_mean(list(everyone[:, own]), 1 / self.workers, self.owner, total)
        mean = self.quantised(total, self.workers + self.comm.rank, own.start)
        if self.memory:
            self.owner, self.kept = total - mean, u - sent
        self.step_number += 1
        return np.concatenate(self.comm.allgather(mean))


def uneven(comm):
    """One or two workers on each rank; how many in all, and this rank's."""
    counts = [1 + rank % 2 for rank in range(comm.size)]
    first = sum(counts[: comm.rank])
    return sum(counts), slice(first, first + counts[comm.rank])


@pytest.mark.parametrize("n", [1, 2, 7, 256, 3000])
@pytest.mark.parametrize("memory", ["none", "residual"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("format", FORMATS)
def test_equals_two_hops_of_the_oracle(comm, seed, format, rounding, memory, n):
    """To the last bit; also of fewer elements than ranks, and counts that no block divides."""
    total, mine = uneven(comm)
    workers = mine.stop - mine.start
    reducer = mpicomp.Reducer(comm, f"{format}:rounding={rounding},memory={memory}", workers=workers)
    simulation = TwoHops(comm, total, mine, n, format, rounding == "stochastic", memory == "residual")
    for step in range(STEPS):
        gradients = np.array([gradient(seed, worker, step, n) for worker in simulation.mine])
        mean = reducer.reduce(gradients if workers > 1 else gradients[0])
        np.testing.assert_array_equal(mean, simulation.step(gradients))
    if memory == "residual":
        state = reducer.state_dict()
        for local in range(workers):
            np.testing.assert_array_equal(state[f"memory/{local}/residual"], simulation.kept[local])
        np.testing.assert_array_equal(state["exchange/residual"], simulation.owner)


@pytest.mark.parametrize("format", FORMATS)
def test_sent_and_kept_are_what_came_in(comm, seed, format):
    """With memory on both hops nothing is lost: the means, both memories and the gradients add up."""
    n = 5000
    reducer = mpicomp.Reducer(comm, f"{format}:memory=residual")
    came_in, out = np.zeros((2, n))
    for step in range(STEPS):
        grad = gradient(seed, comm.rank, step, n)
        came_in += grad
        out += reducer.reduce(grad)
    state = reducer.state_dict()
    kept, second = state["memory/0/residual"].astype(float), np.zeros(n)
    start = int(state["exchange/start"])
    second[start : start + state["exchange/residual"].size] = state["exchange/residual"]
    for array in (came_in, kept, second):
        comm.Allreduce(MPI.IN_PLACE, array)
    np.testing.assert_allclose(comm.size * (out + second) + kept, came_in, atol=1e-4 * comm.size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("format", FORMATS)
def test_the_error_is_within_that_of_two_roundings(comm, seed, format, dtype):
    """In place, too: each rounding is off by at most a share of the largest value of its block."""
    n = 4000
    everyone = np.array([gradient(seed, worker, 0, n, dtype) for worker in range(comm.size)])
    x = everyone[comm.rank].copy()
    mpicomp.Reducer(comm, format).reduce(x, out=x)
    exact = everyone.astype(float).mean(axis=0)
    once = largest_error(np.abs(everyone).max(), format, dtype)
    twice = once + largest_error(np.abs(exact).max() + once, format, dtype)
    assert np.abs(x - exact).max() <= twice * (1 + 1e-6)
    assert comm.bcast(x.tobytes()) == x.tobytes()


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_and_denormal_numbers(comm, format):
    tiny = np.finfo(np.float32).smallest_subnormal
    x = np.zeros(3 * BLOCK, np.float32)
    x[BLOCK:] = tiny
    mean = mpicomp.Reducer(comm, f"{format}:memory=residual").reduce(x)
    assert not mean[:BLOCK].any() and np.abs(mean).max() <= np.finfo(np.float32).tiny


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("memory", ["none", "residual"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_number_that_is_not_finite_is_refused_and_leaves_no_trace(comm, seed, monkeypatch, format, memory, bad):
    """In one of several segments of one piece, and in place: all ranks know before any writes."""
    monkeypatch.setattr(hops, "SEGMENT_BYTES", 600)
    monkeypatch.setattr(hops, "LEAST_BYTES", 0)
    n, text = 2000 * comm.size, f"{format}:memory={memory}"
    reducer, untouched = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    for one in (reducer, untouched):
        one.reduce(gradient(seed, comm.rank, 0, n))
    x = gradient(seed, comm.rank, 1, n)
    if comm.rank == comm.size - 1:
        x[n // 2] = bad
    with pytest.raises(NonFiniteGradient, match=rf"rank {comm.size - 1}: gradient\[{n // 2}\] is"):
        reducer.reduce(x, out=x)
    given = gradient(seed, comm.rank, 1, n)
    given[n // 2] = x[n // 2]
    np.testing.assert_array_equal(x, given)
    assert comm.rank < comm.size - 1 or not np.isfinite(x[n // 2])
    x = gradient(seed, comm.rank, 2, n)
    np.testing.assert_array_equal(reducer.reduce(x), untouched.reduce(x))


def test_a_number_that_is_allowed_makes_its_block_nan(comm, seed):
    n, at = 2000 * comm.size, 2000 * comm.size - 1
    x = gradient(seed, comm.rank, 0, n)
    x[at] = np.nan if comm.rank == 0 else 1
    mean = mpicomp.Reducer(comm, "int8", nonfinite="allow").reduce(x)
    inside = np.isnan(mean)
    assert inside[at] and 0 < inside.sum() <= BLOCK and inside[at - inside.sum() + 1 :].all()

"""1-bit SGD's exchange against a simulation of all workers in one process; what quantised schemes put on the wire."""

from itertools import pairwise

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import checkpoint
from mpicomp._util.partition import partition, pieces
from mpicomp.allreduce import segments
from mpicomp.errors import InvalidArgument, NonFiniteGradient
from mpicomp.ops.block_codes import BLOCK, block_codes_nbytes
from mpicomp.schemes.codecs import _groups
from mpicomp.schemes.exchanges import hops

STEPS = 4
SHAPES = {"w": (6, 10), "b": (7,), "none": (3, 0), "kernel": (5, 3, 2, 2)}
TENSORS = [(0, 60, (6, 10)), (60, 67, (7,)), (67, 67, (3, 0)), (67, 127, (5, 3, 2, 2))]
N = 127
# Errors that may be larger than the values, of which users are warned: test_scheme_warnings.py.
warned = pytest.mark.filterwarnings("ignore::mpicomp.errors.SchemeWarning")


def gradient(seed, worker, step, n=N, dtype=np.float32):
    return np.random.default_rng([seed, worker, step]).integers(-9, 10, n).astype(dtype)


def shaped(flat):
    return {name: flat[start:stop].reshape(shape) for (name, shape), (start, stop, _) in
            zip(SHAPES.items(), TENSORS, strict=True)}


def flat(arrays):
    return np.concatenate([array.ravel() for array in arrays.values()])


def one_bit(x, bounds):
    """Every value becomes the mean of its column's values of the same sign."""
    out = np.empty_like(x)
    for start, stop in pairwise(bounds):
        column, got = x[start:stop], out[start:stop]
        for side in (np.signbit(column), ~np.signbit(column)):
            got[side] = column[side].astype(float).sum() / max(1, side.sum())
    return out


class OneBitSGD:
    """Seide et al., all workers in one process: quantise, average piece by piece, quantise again; two memories."""

    def __init__(self, workers, ranks, n, tensors, column, second=True):
        self.kept, self.owners = np.zeros((workers, n), np.float32), np.zeros(n, np.float32)
        self.second = second
        starts = _groups.column_starts(tensors, column)
        counts, displs = partition(n, ranks)
        self.pieces = [(at, at + count, _groups.within(starts, at, at + count))
                       for at, count in zip(displs, counts, strict=True) if count]

    def quantise(self, x):
        return np.concatenate([one_bit(x[start:stop], bounds) for start, stop, bounds in self.pieces])

    def step(self, gradients):
        u = self.kept + gradients
        sent = np.array([self.quantise(one) for one in u])
        self.kept = u - sent
        total = np.zeros_like(self.owners)
        for one in sent:
            total += one
        mean = total * np.float32(1 / len(u)) + self.owners
        out = self.quantise(mean)
        if self.second:
            self.owners = mean - out
        return out


def owners(reducer, comm, n):
    """The second memory, put together from all ranks."""
    state = reducer.state_dict()
    mine = np.zeros(n, np.float32)
    start = int(state["exchange/start"])
    mine[start : start + state["exchange/residual"].size] = state["exchange/residual"]
    comm.Allreduce(MPI.IN_PLACE, mine)
    return mine


@pytest.mark.parametrize("second", ["yes", "no"])
@pytest.mark.parametrize("column", [4096, 4])
def test_equals_1_bit_sgd(comm, seed, column, second):
    reducer = mpicomp.Reducer(comm, f"onebit:column={column},second={second}")
    simulation = OneBitSGD(comm.size, comm.size, N, TENSORS, column, second == "yes")
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step) for worker in range(comm.size)])
        mean = flat(reducer.reduce(shaped(everyone[comm.rank])))
        np.testing.assert_allclose(mean, simulation.step(everyone), rtol=1e-5, atol=1e-5)
        kept = reducer.state_dict()["memory/0/residual"]
        np.testing.assert_allclose(kept, simulation.kept[comm.rank], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(owners(reducer, comm, N), simulation.owners, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_short_vectors_and_uneven_workers(comm, seed, n):
    """Also fewer elements than ranks: some own nothing."""
    total = 2 * comm.size + 1
    counts, displs = partition(total, comm.size)
    mine = slice(displs[comm.rank], displs[comm.rank] + counts[comm.rank])
    reducer = mpicomp.Reducer(comm, "onebit", workers=counts[comm.rank])
    simulation = OneBitSGD(total, comm.size, n, [(0, n, (n,))], 4096)
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step, n) for worker in range(total)])
        mean = reducer.reduce(everyone[mine] if counts[comm.rank] > 1 else everyone[mine][0])
        np.testing.assert_allclose(mean, simulation.step(everyone), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(owners(reducer, comm, n), simulation.owners, rtol=1e-5, atol=1e-5)


def test_plain_floats_travel_unchanged(comm, seed):
    """The exchange with a codec that loses nothing is an all-reduce, and its memory stays zero."""
    reducer = mpicomp.Reducer(comm, "dense:exchange=pieces")
    for step in range(2):
        everyone = np.array([gradient(seed, worker, step) for worker in range(comm.size)])
        mean = reducer.reduce(everyone[comm.rank])
        np.testing.assert_array_equal(mean, everyone.sum(axis=0) * np.float32(1 / comm.size))
        assert not owners(reducer, comm, N).any()


@pytest.mark.parametrize("codec", ["one-bit", "sign", "levels,norm=max", "ternary", "stochastic,unit=0.1", "natural",
                                   "scaled-integer,bits=8", pytest.param("induced,k=9", marks=warned), "blocks",
                                   "blocks,format=int4,rounding=stochastic", "float,values=bfloat16"])
@pytest.mark.parametrize("memory", ["residual", "none"])
def test_any_codec_keeps_what_it_does_not_send(comm, seed, codec, memory):
    """The owners' errors too: sums of means and of both memories are the gradients'."""
    reducer = mpicomp.Reducer(comm, f"onebit:memory={memory},codec={codec}")
    came_in, out = np.zeros((2, N))
    for step in range(3):
        grad = gradient(seed, comm.rank, step)
        came_in += grad
        mean = reducer.reduce(grad)
        out += mean
        reference = comm.bcast(mean.tobytes())
        assert mean.tobytes() == reference
    second = owners(reducer, comm, N)
    if memory == "none":
        return
    kept = reducer.state_dict()["memory/0/residual"].astype(float)
    comm.Allreduce(MPI.IN_PLACE, came_in)
    comm.Allreduce(MPI.IN_PLACE, kept)
    np.testing.assert_allclose(comm.size * (out + second) + kept, came_in, atol=1e-3 * comm.size)


def test_an_overflow_leaves_both_memories(comm, seed):
    reducer = mpicomp.Reducer(comm, "onebit:codec=float,values=float16")
    reducer.reduce(gradient(seed, comm.rank, 0) + np.float32(0.001))
    before = reducer.state_dict()
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed in step 1"), np.errstate(invalid="ignore"):
        reducer.reduce(np.full(N, 1e5, np.float32))
    for name, value in reducer.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_state_of_other_pieces_is_refused_on_every_rank(comm, seed):
    reducer = mpicomp.Reducer(comm, "onebit")
    reducer.reduce(gradient(seed, comm.rank, 0))
    state = reducer.state_dict()
    state["exchange/start"] = state["exchange/start"] + (comm.rank == comm.size - 1)
    other = mpicomp.Reducer(comm, "onebit")
    other.load_state_dict(state)
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: the state must be of the piece"):
        other.reduce(gradient(seed, comm.rank, 1))


def test_a_state_goes_through_a_reducer_that_has_not_stepped(comm, seed):
    reducer = mpicomp.Reducer(comm, "onebit")
    reducer.reduce(gradient(seed, comm.rank, 0))
    through = mpicomp.Reducer(comm, "onebit")
    through.load_state_dict(reducer.state_dict())
    again = mpicomp.Reducer(comm, "onebit")
    again.load_state_dict(through.state_dict())
    expected = reducer.reduce(gradient(seed, comm.rank, 1))
    np.testing.assert_array_equal(again.reduce(gradient(seed, comm.rank, 1)), expected)


def test_a_state_from_before_anything_was_sent(comm, seed, folder):
    """A first step that all ranks leave out; through a file, too."""
    reducer, resumed = (mpicomp.Reducer(comm, "onebit", nonfinite="skip") for _ in range(2))
    reducer.reduce(np.full(N, np.nan, np.float32))
    checkpoint.save(comm, folder, 1, common={}, reducers={"reducer": reducer})
    checkpoint.load(comm, folder).restore(resumed)
    for step in range(2):
        expected = reducer.reduce(gradient(seed, comm.rank, step))
        np.testing.assert_array_equal(resumed.reduce(gradient(seed, comm.rank, step)), expected)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("text", ["codec=levels,bucket=16,norm=max", "codec=float,values=bfloat16", "codec=float"])
@pytest.mark.parametrize("memory", ["residual", "none"])
def test_segments_do_not_change_bits(comm, seed, monkeypatch, memory, text, workers):
    """Steps of pieces in one segment and in many, in place and not, with both memories."""
    n = 300 * comm.size + 13
    whole, cut = (mpicomp.Reducer(comm, f"onebit:{text},memory={memory}", workers=workers) for _ in range(2))
    for step in range(3):
        mine = np.concatenate([gradient(seed, comm.rank * workers + local, step, n) for local in range(workers)])
        mine = np.squeeze(mine.reshape(workers, n)) / np.float32(7)
        expected = whole.reduce(mine).copy()
        with monkeypatch.context() as patch:
            patch.setattr(hops, "SEGMENT_BYTES", 100 + 50 * step)
            patch.setattr(hops, "LEAST_BYTES", 0)
            out = mine if workers == 1 else None
            np.testing.assert_array_equal(cut.reduce(mine, out=out), expected)
        for (name, value), other in zip(whole.state_dict().items(), cut.state_dict().values(), strict=True):
            np.testing.assert_array_equal(value, other, name)


@pytest.mark.parametrize("workers", [1, 2])
def test_segments_for_a_slow_network_need_no_answer(comm, world, seed, monkeypatch, workers):
    """Codes of a piece go in messages of at most EAGER_BYTES; the bits are those of one node."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    monkeypatch.setattr(segments, "SLOW", np.inf)
    far = mpicomp.Comm(world)
    n = 100_000 * comm.size
    mine = np.squeeze(gradient(seed, comm.rank, 0, workers * n).reshape(workers, n))
    near, cut = (mpicomp.Reducer(one, "int8", workers=workers) for one in (comm, far))
    np.testing.assert_array_equal(cut.reduce(mine), near.reduce(mine))
    before = far.traffic.messages
    cut.reduce(mine)
    counts = []
    for of_each in (workers, 1):  # in the first hop, and in the second
        block = block_codes_nbytes(BLOCK, "int8")
        length = max(1, hops.LEAST_BYTES // (workers * block)) * block
        cut = pieces(0, block_codes_nbytes(100_000, "int8"), length)
        counts.append(sum(-(-(end - begin) * of_each // segments.EAGER_BYTES) for begin, end in cut))
    assert min(counts) > 1 and far.traffic.messages - before == (comm.size - 1) * sum(counts)
    far.Free()


# ---- the wire

def sent_by_all(comm, reducer):
    total = np.array([reducer.stats.bytes_sent])
    comm.Allreduce(MPI.IN_PLACE, total)
    return int(total[0])


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_of_1_bit_sgd(comm, seed, workers):
    """One bit per value each way and two floats per column, not a byte per sign; no padding."""
    n, p, column = 10_000, comm.size, 1000
    reducer = mpicomp.Reducer(comm, f"onebit:column={column}", workers=workers)
    reducer.reduce(np.squeeze(gradient(seed, comm.rank, 0, workers * n).reshape(workers, n)))
    counts, displs = partition(n, p)
    starts = _groups.column_starts([(0, n, (n,))], column)
    codes = sum(-(-count // 8) + 8 * (_groups.within(starts, at, at + count).size - 1)
                for count, at in zip(counts, displs, strict=True))
    messages = p * (p - 1)  # each way; each worker's code and each message has its length beside it
    assert sent_by_all(comm, reducer) == (workers + 1) * (p - 1) * codes + 8 * messages * (workers + 2)
    assert reducer.stats.payload_bits == 8 * codes


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_of_codes_of_known_length(comm, seed, workers):
    """Segments add no byte, and no length travels."""
    n, p = 100_000, comm.size
    reducer = mpicomp.Reducer(comm, "qsgd:exchange=pieces,second=no", workers=workers)
    reducer.reduce(np.squeeze(gradient(seed, comm.rank, 0, workers * n).reshape(workers, n)))
    codes = sum(-(-count // 2) + 4 * -(-count // 512) for count in partition(n, p)[0])
    assert sent_by_all(comm, reducer) == (workers + 1) * (p - 1) * codes
    assert reducer.stats.payload_bits == 8 * codes


CODES = {  # bytes of the codes of 10 000 values, in two arrays
    "signsgd": 1250 + 2 * 4, "qsgd": 5000 + 20 * 4, "qsgd:levels=127,bucket=100": 10_000 + 100 * 4,
    "terngrad": 2500 + 2 * 4, "natural:exchange=gather": 10_000 + 4,
    "stochastic-rounding:exchange=gather,unit=0.5": 10_000, "stochastic-rounding:exchange=gather": 20_000,
}


@pytest.mark.parametrize("text", CODES)
def test_bytes_of_gathered_codes(comm, seed, text):
    reducer = mpicomp.Reducer(comm, text + ("," if ":" in text else ":") + "switch=never")
    grad = gradient(seed, comm.rank, 0, 10_000)
    reducer.reduce([grad[:4000].reshape(40, 100), grad[4000:]])
    messages = comm.size * (comm.size - 1)
    assert sent_by_all(comm, reducer) == messages * (CODES[text] + 32 + 8)
    assert reducer.stats.payload_bits == 8 * CODES[text]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_bytes_of_scaled_integers(comm, seed, bits):
    """8 bits are a byte on the wire."""
    n, p = 8 * 3 * 5 * 70, comm.size
    reducer = mpicomp.Reducer(comm, f"scaled-integer:bits={bits}", algorithm="ring")
    reducer.reduce(gradient(seed, comm.rank, 0, n))
    peak = 2 * (p - 1) * 8 // p  # a rank, by MPI's own all-reduce
    assert sent_by_all(comm, reducer) == 2 * (p - 1) * n * bits // 8 + p * peak


# ---- schemes of integers and of sparse lists

@pytest.mark.parametrize("text", ["scaled-integer:bits=8", "onebit:codec=scaled-integer,bits=8"])
def test_too_many_workers_are_refused_before_the_first_step(comm, text):
    with pytest.raises(InvalidArgument, match=f"^{64 * comm.size} workers need wider integers than bits=8"):
        mpicomp.Reducer(comm, text, workers=64)


@pytest.mark.parametrize("algorithm", ["native", "ring", "halving_doubling", "auto"])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_the_sum_of_all_ranks_integers_fits(comm, bits, algorithm):
    """Every worker holds the largest magnitude; ranks hold different numbers of workers."""
    workers = comm.rank % 3 + 1
    reducer = mpicomp.Reducer(comm, f"scaled-integer:bits={bits}", workers=workers, algorithm=algorithm)
    grad = np.tile(np.linspace(-7, 7, N, dtype=np.float32), (workers, 1))
    total = sum(rank % 3 + 1 for rank in range(comm.size))
    unit = 7 / ((2 ** (bits - 1) - 1) // total - 1)
    mean = reducer.reduce(grad if workers > 1 else grad[0])
    np.testing.assert_allclose(mean, grad[0], atol=0.51 * unit + 1e-6)


@pytest.mark.parametrize("codec", [pytest.param("levels", marks=warned), "levels,norm=max,bucket=8", "sign", "one-bit",
                                   "ternary", "natural", "stochastic,unit=0.5", "scaled-integer,bits=8", "fixed,lam=2"])
@pytest.mark.parametrize("selector", ["topk:k=20", "threshold:lam=2", "scalecom:chunk=6,exchange=gather"])
def test_sparse_lists_in_few_bits(comm, seed, selector, codec):
    """Sent + kept = came in, with any codec behind any selector."""
    if "lam" in selector and "lam" in codec:
        codec = "fixed"
    reducer = mpicomp.Reducer(comm, f"{selector},codec={codec}")
    came_in, out = np.zeros((2, N))
    for step in range(3):
        grad = gradient(seed, comm.rank, step)
        came_in += grad
        out += flat(reducer.reduce(shaped(grad)))
    kept = reducer.state_dict()["memory/0/residual"].astype(float)
    comm.Allreduce(MPI.IN_PLACE, came_in)
    comm.Allreduce(MPI.IN_PLACE, kept)
    np.testing.assert_allclose(comm.size * out + kept, came_in, atol=1e-3 * comm.size)


def test_strom_sends_the_threshold(comm, seed):
    """One step by the obvious route: +-lam where |u| >= lam, the rest is kept."""
    reducer = mpicomp.Reducer(comm, "strom:lam=4")
    kept = np.zeros((comm.size, N), np.float32)
    for step in range(STEPS):
        u = kept + np.array([gradient(seed, worker, step) for worker in range(comm.size)])
        sent = np.where(np.abs(u) >= 4, np.copysign(np.float32(4), u), np.float32(0))
        kept = u - sent
        mean = reducer.reduce(gradient(seed, comm.rank, step))
        np.testing.assert_array_equal(mean, sent.sum(axis=0) * np.float32(1 / comm.size))
        np.testing.assert_array_equal(reducer.state_dict()["memory/0/residual"], kept[comm.rank])


def test_ef_signsgd(comm, seed):
    """Karimireddy et al., algorithm 2, with one scale an array."""
    reducer = mpicomp.Reducer(comm, "signsgd")
    kept = np.zeros((comm.size, N), np.float32)
    for step in range(STEPS):
        u = kept + np.array([gradient(seed, worker, step) for worker in range(comm.size)])
        sent = np.empty_like(u)
        for start, stop, _ in TENSORS:
            if stop > start:
                scale = np.abs(u[:, start:stop]).astype(float).mean(axis=1).astype(np.float32)[:, None]
                sent[:, start:stop] = np.where(np.signbit(u[:, start:stop]), -scale, scale)
        kept = u - sent
        mean = flat(reducer.reduce(shaped(gradient(seed, comm.rank, step))))
        np.testing.assert_allclose(mean, sent.mean(axis=0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(reducer.state_dict()["memory/0/residual"], kept[comm.rank], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["qsgd:bucket=32", "terngrad:sigmas=0", "natural", "stochastic-rounding:unit=4",
                                  "int8:rounding=stochastic", "int4:rounding=stochastic", "fp8:rounding=stochastic",
                                  "induced:k=4,bucket=32", "scaled-integer:bits=8,rounding=stochastic"])
def test_the_mean_is_unbiased_over_steps(comm, text):
    """Fixed gradients, fixed keys: six standard errors of the largest deviation any of these codecs has."""
    rounds = 100
    everyone = [gradient(11, worker, 0) for worker in range(comm.size)]
    reducer = mpicomp.Reducer(comm, text)
    total = sum(reducer.reduce(everyone[comm.rank]).astype(float) for _ in range(rounds))
    allowed = 6 * (9 / 2) / np.sqrt(rounds * comm.size)
    assert np.abs(total / rounds - np.mean(everyone, axis=0)).max() <= allowed

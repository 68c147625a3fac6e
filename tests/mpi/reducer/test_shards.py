"""Reduce-scatter by a scheme: each rank's piece against the sum of all ranks' decoded codes."""

import numpy as np
import pytest

from mpicomp._util.partition import partition
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.ops import ops_for
from mpicomp.ops.block_codes import block_codes_nbytes
from mpicomp.reducer.shards import ReplicaReducer, ShardReducer

STEPS = 3


def gradient(seed, rank, step, n, dtype=np.float32):
    return np.random.default_rng([seed, rank, step]).standard_normal(n).astype(dtype)


def piece_of(comm, n):
    counts, displs = partition(n, comm.size)
    return slice(displs[comm.rank], displs[comm.rank] + counts[comm.rank])


def rounded(x, format, pieces):
    """Return a vector as receivers read it, each piece coded by itself."""
    ops, out = ops_for(x), np.empty_like(x)
    for start, stop in pieces:
        codes = np.empty(block_codes_nbytes(stop - start, format), np.uint8)
        ops.encode_blocks(x[start:stop], format, codes)
        ops.decode_blocks(codes, format, out[start:stop])
    return out


def scattered(reducer, comm, vector):
    own = np.full(piece_of(comm, vector.size).stop - piece_of(comm, vector.size).start, np.nan, vector.dtype)
    reducer.reduce_scatter(vector, own)
    return own


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 1000, 600_000])
@pytest.mark.parametrize("scheme", ["dense", "dense:memory=residual"])
def test_dense_pieces_are_those_of_the_exact_mean(comm, seed, scheme, n, dtype):
    reducer = ShardReducer(comm, scheme)
    for step in range(2):
        vectors = [comm.size * np.random.default_rng([seed, rank, step]).integers(-50, 50, n).astype(dtype)
                   for rank in range(comm.size)]
        kept = vectors[comm.rank].copy()
        own = scattered(reducer, comm, vectors[comm.rank])
        assert np.array_equal(own, (sum(vectors) / comm.size)[piece_of(comm, n)])
        assert np.array_equal(vectors[comm.rank], kept)
    assert reducer.memory_norm() == 0


@pytest.mark.parametrize("memory", ["none", "residual"])
@pytest.mark.parametrize("n", [5, 3000, 1_200_001])
@pytest.mark.parametrize("format", ["int8", "int4", "fp8"])
def test_codes_are_decoded_added_in_float32_and_not_coded_again(comm, seed, format, n, memory):
    reducer = ShardReducer(comm, f"{format}:memory={memory}")
    counts, displs = partition(n, comm.size)
    pieces = [(at, at + count) for at, count in zip(displs, counts, strict=True) if count]
    kept, everyone = np.zeros(n, np.float32), np.empty((comm.size, n), np.float32)
    for step in range(STEPS if n < 10_000 else 2):
        mine = gradient(seed, comm.rank, step, n)
        u = kept + mine
        sent = rounded(u, format, pieces)
        comm.Allgather(sent, everyone)
        if memory == "residual":
            kept = u - sent
        total = np.zeros(n, np.float32)
        for row in everyone:
            total += row
        own = scattered(reducer, comm, mine)
        assert np.array_equal(own, (total * np.float32(1 / comm.size))[piece_of(comm, n)]), step
    assert np.isclose(reducer.memory_norm(), np.linalg.norm(kept.astype(float)), rtol=1e-4)


@pytest.mark.filterwarnings("ignore::mpicomp.errors.SchemeWarning")
@pytest.mark.parametrize("scheme", ["onebit", "half", "half:values=bfloat16,memory=residual",
                                    "natural:exchange=pieces", "scaled-integer", "int4:rounding=stochastic"])
def test_other_codecs(comm, seed, scheme):
    """The pieces are those of the two-hop mean but for its second coding: within what a coding may change."""
    n = 4 * 256
    reducer = ShardReducer(comm, scheme)
    mine = np.full(n, 1.0, np.float32)
    mine[::2] = -1.0
    own = scattered(reducer, comm, mine)
    assert np.allclose(own, mine[piece_of(comm, n)], atol=0.3)
    assert reducer.stats.skipped is False


@pytest.mark.parametrize(("scheme", "share"), [("int8", 0.26), ("int4", 0.135), ("fp8", 0.26)])
def test_bytes_on_the_wire(comm, seed, scheme, share):
    """Shares of what a reduce-scatter of float32 sends, with the agreement."""
    n = 100_000 * comm.size
    reducer, x = ShardReducer(comm, scheme), gradient(seed, comm.rank, 0, n)
    scattered(reducer, comm, x)
    assert reducer.stats.bytes_sent <= share * 4 * n * (comm.size - 1) / comm.size + 0.001
    exact = (comm.size - 1) * block_codes_nbytes(n // comm.size, scheme)
    assert exact <= reducer.stats.bytes_sent <= exact + 1000


def test_a_resumed_reducer_has_the_same_bits(comm, seed):
    n, first = 3001, ShardReducer(comm, "int4:memory=residual")
    for step in range(2):
        scattered(first, comm, gradient(seed, comm.rank, step, n))
    second = ShardReducer(comm, "int4:memory=residual")
    second.load_state_dict(first.state_dict())
    for step in range(2, 4):
        one, other = (scattered(reducer, comm, gradient(seed, comm.rank, step, n)) for reducer in (first, second))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("scheme", ["dense", "int8", "int8:memory=residual"])
def test_nonfinite_gradients_are_refused_by_all_ranks(comm, seed, scheme):
    n = 600
    bad = gradient(seed, comm.rank, 1, n)
    if comm.rank == comm.size - 1:
        bad[3] = np.inf
    raising, skipping = ShardReducer(comm, scheme), ShardReducer(comm, scheme, nonfinite="skip")
    for reducer in (raising, skipping):
        scattered(reducer, comm, gradient(seed, comm.rank, 0, n))
    before = raising.memory_norm()
    with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}: .*error memory is untouched"):
        scattered(raising, comm, bad)
    assert not scattered(skipping, comm, bad).any()
    assert skipping.stats.skipped
    assert raising.memory_norm() == skipping.memory_norm() == before


@pytest.mark.parametrize("reducer_class", [ShardReducer, ReplicaReducer])
def test_an_overflow_of_one_piece_is_refused_by_all_ranks(comm, reducer_class):
    """The piece of the last rank alone overflows float16."""
    if reducer_class is ReplicaReducer and comm.size == 1:
        pytest.skip("nothing is sent by one rank")
    mine = np.ones(64 * comm.size, np.float32)
    mine[-1] = 1e5
    reducer = reducer_class(comm, "half:memory=residual")
    step = (lambda: scattered(reducer, comm, mine)) if reducer_class is ShardReducer else lambda: reducer.reduce(mine)
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed"):
        step()
    assert reducer.memory_norm() == 0
    skipping = ShardReducer(comm, "half:memory=residual", nonfinite="skip")
    assert not scattered(skipping, comm, mine).any()


@pytest.mark.parametrize(("scheme", "said"), [
    ("topk", "sends all elements by exchange=pieces"), ("powersgd", "or a mesh of replicas and shards"),
    ("qsgd", "qsgd:exchange=pieces"), ("localsgd", "memory=none or residual"), ("int8:dense=1d", "need dense=none"),
    ("int8:nodes=yes", "need nodes=no"), ("auto", "sends all elements"), ("int9", "unknown scheme"),
])  # fmt: skip
def test_schemes_that_cannot(comm, scheme, said):
    with pytest.raises(InvalidArgument, match=said):
        ShardReducer(comm, scheme)


def test_a_scheme_refused_on_one_rank(comm):
    with pytest.raises((InvalidArgument, Disagreement)):
        ShardReducer(comm, "topk" if comm.rank == comm.size - 1 else "int8")

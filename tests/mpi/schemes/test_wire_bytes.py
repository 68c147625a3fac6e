"""Bytes on the wire of every scheme, by formula. Vectors are tiny, so that it also runs in many ranks:

    python tests/run_mpi.py --sizes 2,3,4,8,16 tests/mpi/schemes/test_wire_bytes.py
"""

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import schemes
from mpicomp._util.partition import partition
from mpicomp.schemes.codecs import _groups

SHAPES = {"w": (64, 48), "v": (1024,)}
N = 4096
PLAIN = "indices=plain,switch=never"
PAIR, HEADER = 4 + 4, 32 + 8  # of a float32 and its index; of a gathered message: its own, and its length beside it
SLACK = 64  # bytes per rank: numbers that ranks compare


def gradient(seed, rank):
    rng = np.random.default_rng([seed, rank])
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def reduced(elements, itemsize=4):
    """All-reduced: so many bytes over all ranks."""
    return lambda p, sent: 2 * (p - 1) * elements * itemsize


def gathered(code):
    """Each rank's message reaches all others; ``code`` gives its bytes for k values."""
    return lambda p, sent: (p - 1) * sum(HEADER + code(k) for k in sent)


def one_bit(p, sent):
    """Each piece's bits and the means of its columns, there and back, each with the lengths beside it."""
    starts = _groups.column_starts([(0, 3072, (64, 48)), (3072, N, (1024,))], 4096)
    pieces = zip(*partition(N, p), strict=True)
    codes = sum(-(-count // 8) + 8 * (_groups.within(starts, at, at + count).size - 1) for count, at in pieces)
    return 2 * (p - 1) * codes + 24 * p * (p - 1)


def coded_pieces(code):
    """Each piece's code, there and back, with its lengths beside it; ``code`` gives its bytes for k values."""
    return lambda p, sent: 2 * (p - 1) * sum(map(code, partition(N, p)[0])) + 24 * p * (p - 1)


def blocks(bits):
    """Each piece's codes and a scale of 4 bytes per 256 values, there and back; no lengths."""
    def total(p, sent):
        return 2 * (p - 1) * sum(-(-count * bits // 8) + 4 * -(-count // 256) for count in partition(N, p)[0])

    return total


def pairs(k):
    return PAIR * k


# Scheme -> its options, and the bytes that all ranks send, from their number and how many elements each sent.
EXPECTED = {
    "dense": ("", reduced(N)),
    "half": ("", reduced(N, 2)),
    "scalecom": ("chunk=16", lambda p, sent: reduced(256)(p, sent) + (p - 1) * 256),
    "topk": (f"density=0.02,{PLAIN}", gathered(pairs)),
    "topk-global": (f"density=0.02,{PLAIN}", gathered(pairs)),
    "randomk": ("k=80", reduced(80)),
    "threshold": (f"lam=2,{PLAIN}", gathered(pairs)),
    "strom": (f"lam=2,{PLAIN}", gathered(lambda k: 4 * k + -(-k // 8))),
    "dgc": (f"density=0.02,{PLAIN}", gathered(pairs)),
    "adacomp": (f"bin=50,{PLAIN}", gathered(lambda k: 4 * k + -(-k // 8) + 2 * 4)),
    "gaussiank": (f"density=0.02,{PLAIN}", gathered(pairs)),
    "sidco": (f"density=0.02,{PLAIN}", gathered(pairs)),
    "accordion": (f"density=0.02,high=0.05,{PLAIN}", gathered(pairs)),
    "gtopk": ("k=80", lambda p, sent: 2 * (p - 1) * PAIR * 80),
    "arctopk": ("k=128,row=32,width=2", reduced(128 + 2 * 128)),
    "powersgd": ("rank=2", reduced(2 * (64 + 48) + 1024)),
    "sketchsgd": ("k=20,columns=256", reduced(5 * 256 + 4 * 20)),
    "onebit": ("", one_bit),
    "signsgd": (PLAIN, gathered(lambda k: N // 8 + 2 * 4)),
    "qsgd": (PLAIN, gathered(lambda k: N // 2 + 8 * 4)),
    "terngrad": (PLAIN, gathered(lambda k: N // 4 + 2 * 4)),
    "stochastic-rounding": ("unit=0.1", coded_pieces(lambda k: k)),
    "natural": ("", coded_pieces(lambda k: k + 4)),
    "int8": ("", blocks(8)),
    "int4": ("", blocks(4)),
    "fp8": ("", blocks(8)),
    "scaled-integer": ("", reduced(N, 2)),
    "error-reset": ("k=80", reduced(80)),
    "auto": ("candidates=dense+half", reduced(N)),  # as long as the first is tried
    "localsgd": ("period=1", reduced(N)),
}
BOUNDED = {"oktopk": "k=400,period=1", "induced": f"k=80,{PLAIN}"}  # their bytes depend on the values


def test_wire_bytes_of_every_scheme_are_known():
    assert {*EXPECTED, *BOUNDED} == set(schemes.names())


def bytes_of_all(comm, seed, text, steps=2):
    """Bytes that all ranks passed to MPI in the last step, and the number of elements each sent."""
    reducer = mpicomp.Reducer(comm, text, algorithm="ring")
    for _ in range(steps):
        reducer.reduce(gradient(seed, comm.rank))
    return comm.allreduce(reducer.stats.bytes_sent), comm.allgather(round(reducer.stats.density * N))


@pytest.mark.parametrize("name", EXPECTED)
def test_wire_bytes_of_a_scheme(comm, seed, name):
    options, formula = EXPECTED[name]
    total, sent = bytes_of_all(comm, seed, f"{name}:{options}".rstrip(":"))
    expected = formula(comm.size, sent)
    assert expected <= total <= expected + SLACK * comm.size * (comm.size > 1)


def test_wire_bytes_of_oktopk(comm, seed):
    """At most 6 k words a rank but for (p-1)/p, however many there are; and the counts of the bisection."""
    total, _ = bytes_of_all(comm, seed, f"oktopk:{BOUNDED['oktopk']}")
    others = comm.size - 1
    assert 400 * PAIR * others <= total <= 3 * 400 * PAIR * others + (1000 + 32 * comm.size) * others


def test_wire_bytes_of_induced(comm, seed):
    """The exact values with gaps of at most 12 bits, and QSGD's code of all."""
    total, _ = bytes_of_all(comm, seed, f"induced:{BOUNDED['induced']}")
    messages, code = comm.size * (comm.size - 1), N // 2 + 8 * 4 + 80 * 4
    assert messages * (HEADER + code) <= total <= messages * (HEADER + code + 80 * 12 // 8)


def most_of_a_rank(comm, seed, name):
    reducer = mpicomp.Reducer(comm, f"{name}:{EXPECTED[name][0]}".rstrip(":"), algorithm="ring")
    reducer.reduce(gradient(seed, comm.rank))
    return comm.allreduce(reducer.stats.bytes_sent, MPI.MAX)


@pytest.mark.parametrize("name", ["dense", "randomk", "arctopk", "powersgd", "sketchsgd", "scaled-integer"])
def test_wire_bytes_of_a_rank_do_not_grow(comm, seed, name):
    """A rank of p sends (p-1)/p of the bytes that two ranks send in sum; blocks of the ring differ by an element."""
    expected = EXPECTED[name][1](2, [N, N]) * (comm.size - 1) / comm.size
    assert most_of_a_rank(comm, seed, name) <= expected + 4 * 4 + SLACK


def test_wire_bytes_of_a_leader(comm, seed):
    """It hands its selection to at most log2(p) others, who pass it on."""
    selection = 256 * (comm.size - 1).bit_length()
    assert most_of_a_rank(comm, seed, "scalecom") <= 2 * 256 * 4 * (comm.size - 1) / comm.size + selection + SLACK

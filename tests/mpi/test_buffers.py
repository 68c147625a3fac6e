"""Everything mpi4py takes as a buffer, what is for MPI's own call, and what is refused."""

from __future__ import annotations

import array

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.errors import BufferRefused, InvalidArgument

N = 12


class Interface:
    """Only ``__array_interface__``: neither the buffer protocol nor an array."""

    def __init__(self, data):
        self.data = data

    @property
    def __array_interface__(self):
        return self.data.__array_interface__


class OnlyDLPack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def floats():
    return np.arange(N, dtype=np.float32)


FORMS = {
    "array": lambda x: x,
    "two dimensions": lambda x: x.reshape(3, 4),
    "datatype": lambda x: [x, MPI.FLOAT],
    "letter": lambda x: [x, "f"],
    "count": lambda x: [x, N],
    "count and datatype": lambda x: [x, N, MPI.FLOAT],
    "tuple": lambda x: (x, N, MPI.FLOAT),
    "count and displacement": lambda x: [x, (N, 0), MPI.FLOAT],
    "four": lambda x: [x, N, 0, MPI.FLOAT],
    "no count": lambda x: [x, None, MPI.FLOAT],
    "memoryview": lambda x: memoryview(x),
    "bytes of floats": lambda x: [x.view(np.uint8), MPI.FLOAT],
    "array interface": lambda x: Interface(x),
    "dlpack": lambda x: OnlyDLPack(x),
    "subclass": lambda x: x.view(type("Sub", (np.ndarray,), {})),
}


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_forms(comm, algorithm):
    want = floats() * comm.size
    for name, form in FORMS.items():
        target = np.zeros(N, np.float32)
        comm.Allreduce(form(floats()), form(target), algorithm=algorithm)
        np.testing.assert_array_equal(target, want, name)
        target = floats()
        comm.Allreduce(MPI.IN_PLACE, form(target), algorithm=algorithm)
        np.testing.assert_array_equal(target, want, name)


def test_part_of_a_buffer(comm):
    for algorithm in ("auto", "ring"):
        x = floats()
        comm.Allreduce(MPI.IN_PLACE, [x, (4, 2), MPI.FLOAT], algorithm=algorithm)
        want = floats()
        want[2:6] *= comm.size
        np.testing.assert_array_equal(x, want)


def test_buffer_protocol(comm):
    for algorithm in ("auto", "ring"):
        values = array.array("d", range(N))
        comm.Allreduce(MPI.IN_PLACE, values, algorithm=algorithm)
        assert values.tolist() == [comm.size * i for i in range(N)]
        raw = bytearray(range(N))
        comm.Allreduce(MPI.IN_PLACE, [raw, MPI.UNSIGNED_CHAR], op=MPI.MAX, algorithm=algorithm)
        assert raw == bytearray(range(N))


def test_scalars_and_nothing(comm):
    x = np.array(2.0)
    comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
    assert x == 2 * comm.size
    for algorithm in ("auto", "ring", "native"):
        comm.Allreduce(np.empty(0), np.empty(0), algorithm=algorithm)
        comm.Allreduce(None, np.ones(2), algorithm=algorithm)


def two_a_plus_b(a, b, _):
    """Neither commutative nor one of ours."""
    b = np.frombuffer(b, "d")
    b += 2 * np.frombuffer(a, "d")


def test_operations_of_the_user(comm):
    op = MPI.Op.Create(two_a_plus_b, commute=False)
    try:
        x, y = np.full(5, comm.rank + 1.0), np.full(5, comm.rank + 1.0)
        comm.Allreduce(MPI.IN_PLACE, x, op, algorithm="ring")
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, y, op)
        np.testing.assert_array_equal(x, y)
    finally:
        op.Free()


def test_what_only_mpi_covers(comm):
    for algorithm in ("auto", "ring"):
        z = np.full(4, 1 + 2j)
        comm.Allreduce(MPI.IN_PLACE, z, algorithm=algorithm)
        np.testing.assert_array_equal(z, np.full(4, (1 + 2j) * comm.size))
        flag = np.array([comm.rank == 0, False])
        comm.Allreduce(MPI.IN_PLACE, flag, MPI.LOR, algorithm)
        assert flag.tolist() == [True, False]
        bits = np.array([1 << comm.rank], np.int32)
        comm.Allreduce(MPI.IN_PLACE, bits, MPI.BOR, algorithm)
        assert bits[0] == (1 << comm.size) - 1
        pair = np.array([(comm.rank + 1.5, comm.rank)], np.dtype("f8,i4", align=True))
        comm.Allreduce(MPI.IN_PLACE, [pair, MPI.DOUBLE_INT], MPI.MAXLOC, algorithm)
        assert pair[0].tolist() == (comm.size + 0.5, comm.size - 1)


def test_derived_datatypes_go_to_mpi(comm):
    pair = MPI.FLOAT.Create_contiguous(2).Commit()
    add = MPI.Op.Create(
        lambda a, b, _: np.add(np.frombuffer(a, "f"), np.frombuffer(b, "f"), out=np.frombuffer(b, "f")), commute=True
    )
    try:
        x = floats()
        comm.Allreduce(MPI.IN_PLACE, [x, 6, pair], add, algorithm="ring")
        np.testing.assert_array_equal(x, floats() * comm.size)
    finally:
        pair.Free()
        add.Free()


def read_only():
    x = floats()
    x.flags.writeable = False
    return x


def refused_cases():
    x = floats()
    square = np.ones((3, 4), np.float32)
    return {
        "strided": (MPI.IN_PLACE, np.ones(20, np.float32)[::2], "must be contiguous"),
        "strided send": (np.ones(20, np.float32)[::2], np.ones(10, np.float32), "sendbuf must be contiguous"),
        "Fortran order": (MPI.IN_PLACE, np.asfortranarray(square), "Fortran-ordered"),
        "transposed": (square.T, square.reshape(4, 3).copy(), "Fortran-ordered"),
        "read-only": (MPI.IN_PLACE, read_only(), "read-only"),
        "byte order": (MPI.IN_PLACE, np.ones(4, ">f4"), "byte order"),
        "byte order hidden": (MPI.IN_PLACE, [np.ones(4, ">f4"), MPI.FLOAT], "byte order"),
        "objects": (MPI.IN_PLACE, np.array([1, None]), "Python objects"),
        "same array": (x, x, "overlap"),
        "overlapping": (x[:8], x[4:], "overlap"),
        "lengths": (np.ones(3), np.ones(4), "3 and 4"),
        "dtypes": (np.ones(3, np.float32), np.ones(3), "float32 and float64"),
    }


def test_refused(comm):
    for name, (send, receive, text) in refused_cases().items():
        for algorithm in ("auto", "ring"):
            with pytest.raises(BufferRefused, match=text):
                comm.Allreduce(send, receive, algorithm=algorithm)
                pytest.fail(f"{name} was accepted")


def test_refused_on_every_rank_when_one_is_wrong(comm):
    good, last = floats(), comm.rank == comm.size - 1
    where = f"rank {comm.size - 1}: " if comm.size > 1 else ""
    with pytest.raises(BufferRefused, match=f"^{where}recvbuf must be writable"):
        comm.Allreduce(MPI.IN_PLACE, read_only() if last else good)
    np.testing.assert_array_equal(good, floats())


def test_flat_arrays_only(comm):
    for x in (np.ones((2, 2)), np.ones(8)[::2], [1.0, 2.0]):
        with pytest.raises(BufferRefused):
            comm.broadcast(x, 0)
    with pytest.raises(InvalidArgument, match="root must be a rank"):
        comm.broadcast(np.ones(3), comm.size)
    with pytest.raises(BufferRefused, match="complex128"):
        comm.allreduce_in_place(np.ones(3, complex))


def test_children_are_comms_too(comm):
    part = comm.Split(comm.rank % 2, comm.rank)
    half = Comm(part)
    double = half.Dup()
    try:
        for child in (half, double):
            assert isinstance(child, Comm)
            x = np.ones(1000, np.float32)
            child.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
            assert x[0] == child.size
            flat, _ = child.gather_to_all(np.array([comm.rank]))
            assert flat.tolist() == list(range(comm.rank % 2, comm.size, 2))
    finally:
        double.Free()
        half.Free()
        part.Free()


def test_inter_communicators_are_refused(comm, world):
    if comm.size < 2:
        pytest.skip("needs two groups")
    local = world.Split(comm.rank % 2, comm.rank)
    inter = local.Create_intercomm(0, world, 1 - comm.rank % 2)
    try:
        with pytest.raises(InvalidArgument, match="Merge"):
            Comm(inter)
    finally:
        inter.Free()
        local.Free()


def test_many_communicators(world):
    """Freeing gives everything back: MPI libraries hold a few thousand communicators."""
    for _ in range(20):
        comm = Comm(world)
        comm.Allreduce(MPI.IN_PLACE, np.ones(10), algorithm="ring")
        comm.Free()

"""Everything mpi4py takes as a buffer; arguments passed on to MPI's own call, and refused ones."""

from __future__ import annotations

import array

import numpy as np
import pytest
from exporter import FLOAT8, Exporter, bfloat16
from exporter import floats as values_of
from mpi4py import MPI

from mpicomp import Comm
from mpicomp.comm.inherited import REDUCTIONS
from mpicomp.errors import BufferRefused, InvalidArgument

N = 12
pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass")


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
    "matrix": np.asmatrix,
    "two-dimensional matrix": lambda x: np.asmatrix(x.reshape(3, 4)),
    "records": lambda x: x.view(np.recarray),
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


@pytest.mark.parametrize("algorithm", ["halving_doubling", "direct", "ring", "node_shared"])
def test_long_matrices(comm, algorithm):
    """A matrix stays two-dimensional when it is reshaped: its slices would be rows."""
    target = np.asmatrix(np.zeros((3, 20_000), np.float32))
    comm.Allreduce(np.asmatrix(np.full((3, 20_000), comm.rank + 1, np.float32)), target, algorithm=algorithm)
    np.testing.assert_array_equal(target, np.full((3, 20_000), comm.size * (comm.size + 1) // 2))


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring", "halving_doubling", "direct", "node_shared"])
def test_bfloat16_of_other_libraries(comm, algorithm):
    """Its type is as wide as float16, for which mpi4py takes it."""
    mine, total = np.arange(N) + comm.rank, comm.size * np.arange(N) + comm.size * (comm.size - 1) // 2
    for form in (lambda x: x, lambda x: [x, N], lambda x: (x, None)):
        target = bfloat16(np.zeros(N))
        comm.Allreduce(form(bfloat16(mine)), form(target), algorithm=algorithm)
        np.testing.assert_array_equal(values_of(target), total)
        target = bfloat16(mine)
        comm.Allreduce(MPI.IN_PLACE, form(target), MPI.MAX, algorithm=algorithm)
        np.testing.assert_array_equal(values_of(target), np.arange(N) + comm.size - 1)
        target = bfloat16(mine)
        comm.Iallreduce(MPI.IN_PLACE, form(target), algorithm=algorithm).Wait()
        np.testing.assert_array_equal(values_of(target), total)
    target = bfloat16(mine)
    comm.Allreduce(MPI.IN_PLACE, [target, (4, 2)], algorithm=algorithm)
    np.testing.assert_array_equal(values_of(target), [*mine[:2], *total[2:6], *mine[6:]])
    comm.Allreduce(bfloat16(mine, old=True), bfloat16(mine), algorithm=algorithm)  # the old form cannot receive
    with pytest.raises(BufferRefused, match="recvbuf must be writable"):
        comm.Allreduce(bfloat16(mine), bfloat16(mine, old=True), algorithm=algorithm)


def test_a_type_that_the_caller_names_counts(comm):
    """Not that of the array: these are sums of the bits."""
    for letter in (MPI.UINT16_T, "H"):
        target = bfloat16(np.zeros(N))
        target.data[:] = 3  # so that no sum overflows, which MPI libraries treat in their own ways
        comm.Allreduce(MPI.IN_PLACE, [target, letter])
        np.testing.assert_array_equal(target.data, 3 * comm.size)
    odd = Exporter(np.ones(N, np.uint8), FLOAT8, 8)
    comm.Allreduce(MPI.IN_PLACE, [odd, MPI.UINT8_T])
    np.testing.assert_array_equal(odd.data, comm.size)


def test_bfloat16_is_moved_as_it_is(comm):
    """MPI takes it for float16, whose bits it leaves alone; so do our verbs of NumPy's arrays."""
    x = bfloat16(np.full(N, comm.rank + 1))
    comm.Bcast(x, root=comm.size - 1)
    np.testing.assert_array_equal(values_of(x), comm.size)
    everyone = bfloat16(np.zeros((comm.size, N)))
    comm.Allgather(bfloat16(np.full(N, comm.rank + 1)), everyone)
    np.testing.assert_array_equal(values_of(everyone), np.repeat(np.arange(comm.size) + 1, N).reshape(comm.size, N))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_mpi_refuse_types_it_lacks(comm, name):
    call = getattr(comm, name)
    for make in (lambda: bfloat16(np.ones(comm.size)), lambda: Exporter(np.ones(comm.size, np.uint8), FLOAT8, 8)):
        target = make()
        before = target.data.copy()
        for send, receive in ((make(), target), (MPI.IN_PLACE, target), ([make(), comm.size], [target, None])):
            with pytest.raises(BufferRefused, match="must hold numbers of an MPI datatype, got "):
                call(send, receive)
        np.testing.assert_array_equal(target.data, before)
    if not name.startswith(("I", "Allreduce_i")) and not name.endswith("_init"):
        x, y = np.full(comm.size, 2.0), np.zeros(comm.size)
        call(sendbuf=x, recvbuf=y[:1] if "scatter" in name else y)  # others pass, also by name


def test_types_and_operations_that_nobody_adds(comm):
    for algorithm in ("auto", "ring", "native"):
        with pytest.raises(BufferRefused, match="type code 10, 8 bits, 1 lanes: convert it to float32"):
            comm.Allreduce(MPI.IN_PLACE, Exporter(np.ones(N, np.uint8), FLOAT8, 8), algorithm=algorithm)
        with pytest.raises(InvalidArgument, match="MPI has no bfloat16: use SUM"):
            comm.Allreduce(MPI.IN_PLACE, bfloat16(np.ones(N)), MPI.LAND, algorithm)
    with pytest.raises(BufferRefused, match="one dtype, got bfloat16 and float16"):
        comm.Allreduce(bfloat16(np.ones(N)), np.ones(N, np.float16))
    op = MPI.Op.Create(two_a_plus_b, commute=False)
    try:
        with pytest.raises(BufferRefused, match="must hold numbers of an MPI datatype, got bfloat16"):
            comm.Allreduce(MPI.IN_PLACE, bfloat16(np.ones(N)), op)
    finally:
        op.Free()


def test_dtypes_with_the_letter_of_another(comm):
    """This one has that of an unsigned integer."""
    float8 = pytest.importorskip("ml_dtypes").float8_e4m3b11fnuz
    assert np.dtype(float8).char in "fdbBhHiIlLqQ"
    for algorithm in ("auto", "ring"):
        with pytest.raises(BufferError):  # mpi4py's own
            comm.Allreduce(MPI.IN_PLACE, np.ones(N, float8), algorithm=algorithm)


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
    comm.Allreduce(np.float64(3), x)  # a scalar can be sent, not received in
    assert x == 3 * comm.size
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


@pytest.mark.parametrize("name", [name for name in ("LOGICAL", "LOGICAL4") if hasattr(MPI, name)])
def test_fortran_s_logicals_are_no_numbers(comm, name):
    """Their sum is an error of MPI's, as it is without this library."""
    flags = np.ones(1, np.int32)
    if getattr(MPI, name) == MPI.DATATYPE_NULL or getattr(MPI, name).Get_size() != flags.nbytes:
        pytest.skip("this MPI was built without Fortran's types")
    for algorithm in ("auto", "ring"):
        with pytest.raises(MPI.Exception):
            comm.Allreduce(MPI.IN_PLACE, [flags, getattr(MPI, name)], algorithm=algorithm)


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


def unaligned(dtype):
    """N contiguous elements, one byte off."""
    return np.zeros(N * np.dtype(dtype).itemsize + 1, np.uint8)[1:].view(dtype)


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
        "unaligned": (MPI.IN_PLACE, unaligned(np.float32), "recvbuf must be aligned, got float32"),
        "unaligned send": (unaligned(np.float64), np.ones(N), "sendbuf must be aligned, got float64"),
        "unaligned complex": (MPI.IN_PLACE, unaligned(np.complex128), "recvbuf must be aligned"),
        "unaligned bytes": (MPI.IN_PLACE, [unaligned(np.uint8), N // 4, MPI.FLOAT], "recvbuf must be aligned"),
        "objects": (MPI.IN_PLACE, np.array([1, None]), "Python objects"),
        "same array": (x, x, "overlap"),
        "overlapping": (x[:8], x[4:], "overlap"),
        "scalar": (np.float32(1), np.float32(0), "recvbuf must be writable, got a read-only array or a scalar"),
        "scalar in place": (MPI.IN_PLACE, np.float64(0), "a scalar"),
        "scalar of a named type": (MPI.IN_PLACE, [np.float64(0), MPI.DOUBLE], "a scalar"),
        "masked": (MPI.IN_PLACE, np.ma.array(x, mask=x > 3), "masked array, whose mask would be ignored"),
        "masked send": (np.ma.array(x), floats(), "pass a.filled"),
        "count": (MPI.IN_PLACE, [floats(), N + 1], rf"recvbuf must hold {N + 1} elements of float32 .* got {N}: pass"),
        "count send": ([floats(), N + 1, MPI.FLOAT], floats(), f"sendbuf must hold {N + 1} elements"),
        "displacement": (MPI.IN_PLACE, [floats(), (N, 1), MPI.FLOAT], f"displacement 1, count {N}"),
        "complex count": (MPI.IN_PLACE, [np.ones(3, np.complex128), 4], "must hold 4 elements of complex128"),
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


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring", "halving_doubling", "direct", "node_shared"])
def test_an_unaligned_buffer_on_one_rank(comm, algorithm):
    """Every rank gets the error, and the next call is as usual."""
    x = unaligned(np.float32) if comm.rank == comm.size - 1 else floats()
    with pytest.raises(BufferRefused, match="recvbuf must be aligned"):
        comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    x = floats()
    comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
    np.testing.assert_array_equal(x, floats() * comm.size)


def test_flat_arrays_only(comm):
    matrix, masked = np.asmatrix(np.ones(3)), np.ma.ones(3)
    for x in (np.ones((2, 2)), np.ones(8)[::2], [1.0, 2.0], masked, matrix, unaligned(np.float32)):
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


def test_disconnecting_frees_the_private_side_too(world, made):
    comm = Comm(world)
    comm.Iallreduce(MPI.IN_PLACE, np.ones(10))
    comm.Disconnect()
    assert len(made) > 2
    assert all(one == MPI.COMM_NULL for one in made)


def test_a_refused_communicator_is_freed(world, made, monkeypatch):
    monkeypatch.setenv("MPICOMP_CHECK", "perhaps")
    with pytest.raises(InvalidArgument, match="MPICOMP_CHECK"):
        Comm(world)
    assert [one == MPI.COMM_NULL for one in made] == [True]

"""Device arrays: staged through the host, or given to an MPI that says it takes them, or refused."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import FakeArray, FakeDevice
from mpi4py import MPI

import mpicomp
from mpicomp import Comm, ops
from mpicomp.allreduce import LOSSY
from mpicomp.allreduce.choice import schedule
from mpicomp.comm import gpu_probe, inherited, job, nonblocking, staging
from mpicomp.comm.buffers import Vector
from mpicomp.comm.safety import call_log
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument
from mpicomp.ops import device as device_module


@pytest.fixture
def device(world, monkeypatch):
    fake = FakeDevice()
    device_module.register(fake)
    monkeypatch.setenv("MPICOMP_GPU_PATH", "staged")
    yield fake
    device_module.unregister(fake)
    assert fake.pending == 0


@pytest.fixture
def make(world, device, monkeypatch):
    """Makes a communicator in an environment, which counts from then on; the pinned buffers belong to one, too."""
    made = []

    def comm(reproducible=None, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        made.append(Comm(world, reproducible))
        return made[-1]

    yield comm
    for one in made:
        one.Free()


@pytest.fixture
def own(make):
    return make()


def on_device(n, rank, dtype=np.float32):
    return FakeArray((np.arange(n) % 7 + rank).astype(dtype))


def total(n, size, dtype=np.float32):
    return sum((np.arange(n) % 7 + rank).astype(dtype) for rank in range(size))


@pytest.mark.parametrize("piece", [1, 16, 1000, 1 << 20])
def test_staged_allreduce(make, device, piece):
    own = make(MPICOMP_STAGE_BYTES=str(piece))
    for algorithm in ("auto", "ring", "native", "direct"):
        for n in (0, 1, 100, 501):
            x = on_device(n, own.rank)
            own.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
            np.testing.assert_array_equal(x.memory, total(n, own.size))
    y = FakeArray(np.zeros((5, 20), np.float32))
    own.Allreduce(on_device(100, own.rank), y)
    np.testing.assert_array_equal(y.memory.reshape(-1), total(100, own.size))
    if own.size > 1:
        assert device.log.count("pinned") <= staging.DEPTH
        assert device.most_pending <= staging.DEPTH


def test_the_device_is_waited_for_before_anything_is_copied_and_in_the_end(own, device):
    x = on_device(100, own.rank)
    own.Allreduce(MPI.IN_PLACE, x)
    copies = [entry for entry in device.log if entry != "pinned"]
    assert copies == [*(["synchronize", "to_host", "to_device"] if own.size > 1 else []), "synchronize"]


def test_copies_overlap_the_reduction(device):
    """Piece i+1 is on its way to the host, and piece i-1 on its way back, while piece i is reduced."""
    pending = []
    stage = staging.Stage(device, 400)
    stage.run(on_device(1000, 0), lambda host, begin: pending.append(device.pending))
    assert len(pending) == 10
    assert pending[0] == 1
    assert set(pending[1:-1]) == {2}


def test_no_copy_is_left_where_the_work_fails(device):
    """The next vector gets the same buffers: nothing may still be written to them, or read."""
    stage, calls = staging.Stage(device, 400), []

    def work(host, begin):
        calls.append(begin)
        if len(calls) == 2:
            raise ValueError("work failed")

    with pytest.raises(ValueError, match="work failed"):
        stage.run(on_device(1000, 0), work)
    assert calls == [0, 100]
    assert device.most_pending == 3
    assert device.pending == 0


def test_gathered_messages_are_copied_once_each_way(own, device):
    """Through pinned memory that is kept: no copy in pieces, none to pageable memory."""
    if own.size == 1:
        return
    for n in (1000, 1000, 10, 900):
        device.log.clear()
        flat, counts = own.gather_to_all(FakeArray(np.full(n + own.rank, own.rank, np.int32)))
        np.testing.assert_array_equal(flat.memory, np.repeat(np.arange(own.size), counts))
        copies = [one for one in device.log if one != "pinned"]
        assert copies == ["synchronize", "to_host", "to_device"]
    assert "pinned" not in device.log


def test_exchanged_messages_are_copied_together(own, device):
    """All copies of one direction are queued before the first is waited for."""
    size, rank = own.size, own.rank
    others = [one for one in range(size) if one != rank]
    for _ in range(2):
        device.log.clear()
        device.most_pending = 0
        outgoing = {one: FakeArray(np.full(100 + one, rank, np.uint8)) for one in others}
        got = own.send_and_receive(outgoing, dict.fromkeys(others, 100 + rank), FakeArray(np.zeros(1, np.float32)))
        assert all((got[one].memory == one).all() and got[one].size == 100 + rank for one in others)
    assert device.log == ["synchronize", *["to_host"] * len(others), *["to_device"] * len(others)]
    assert device.most_pending == len(others)


@pytest.mark.parametrize(("ranks", "wanted", "expected"), [
    (1, 4 << 20, 4 << 20), (8, 4 << 20, 4 << 20), (9, 4 << 20, 8 << 20), (64, 4 << 20, 32 << 20),
    (1000, 4 << 20, 32 << 20), (1000, 64 << 20, 64 << 20), (16, 400, 800)])  # fmt: skip
def test_pieces_grow_with_the_ranks(ranks, wanted, expected):
    """A message is one rank's part of a piece."""
    assert staging.piece_bytes(wanted, ranks) == expected


def test_half_precision_on_the_device(own, device):
    x = FakeArray(np.full(100, 2048 if own.rank == 0 else 1, np.float16))
    own.Allreduce(MPI.IN_PLACE, x)
    np.testing.assert_array_equal(x.memory, np.full(100, 2048 + own.size - 1, np.float32).astype(np.float16))


@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_verbs_on_the_device(make, device, piece):
    own = make(MPICOMP_STAGE_BYTES=str(piece))
    x = on_device(300, own.rank)
    own.broadcast(x, own.size - 1)
    np.testing.assert_array_equal(x.memory, on_device(300, own.size - 1).memory)
    flat, counts = own.gather_to_all(FakeArray(np.full(own.rank + 5, own.rank, np.int32)))
    assert isinstance(flat, FakeArray)
    assert counts == [rank + 5 for rank in range(own.size)]
    np.testing.assert_array_equal(flat.memory, np.repeat(np.arange(own.size, dtype=np.int32), counts))
    x = on_device(10, own.rank)
    own.allreduce_in_place(x)
    np.testing.assert_array_equal(x.memory, total(10, own.size))


def test_bounded_collectives_on_the_device(own):
    """The same bits as in host memory."""
    size, rank, n = own.size, own.rank, 130
    x = np.sin(np.arange(n * size) / 40 + rank).astype(np.float32)
    options = {"bound": 1e-3, "algorithm": "two_hops"}
    for path in ("two_hops", "auto"):
        options["algorithm"] = path
        for call, source, length in (
            (own.Allreduce, x, n * size), (own.Reduce_scatter_block, x, n), (own.Allgather, x[:n], n * size),
        ):  # fmt: skip
            out, there = np.zeros(length, np.float32), FakeArray(np.zeros(length, np.float32))
            call(source, out, **options)
            call(FakeArray(source.copy()), there, **options)
            np.testing.assert_array_equal(there.memory, out)
        here, there = x.copy(), FakeArray(x.copy())
        own.Bcast(here, size - 1, **options)
        own.Bcast(there, size - 1, **options)
        np.testing.assert_array_equal(there.memory, here)
        own.Allreduce(MPI.IN_PLACE, here, mpicomp.AVG, relative=True, **options)
        own.Allreduce(MPI.IN_PLACE, there, mpicomp.AVG, relative=True, **options)
        np.testing.assert_array_equal(there.memory, here)


@pytest.mark.parametrize("format", LOSSY)
def test_block_codes_on_the_device(own, format):
    """The same bits as in host memory."""
    x = np.sin(np.arange(1000) / 40 + own.rank).astype(np.float32)
    for op in (MPI.SUM, mpicomp.AVG):
        out, there = np.zeros_like(x), FakeArray(np.zeros_like(x))
        own.Allreduce(x, out, op, format)
        own.Allreduce(FakeArray(x.copy()), there, op, format)
        np.testing.assert_array_equal(there.memory, out)


def test_bounded_collectives_refuse_devices_without_a_path(make, monkeypatch):
    monkeypatch.setattr(job, "cuda_aware", lambda: (False, "this MPI says no"))
    own = make(MPICOMP_GPU_PATH="direct")
    with pytest.raises(BufferRefused):
        own.Allreduce(MPI.IN_PLACE, on_device(10, own.rank), bound=1e-3)


def test_direct_waits_for_the_device_each_time(make, device, monkeypatch):
    monkeypatch.setattr(job, "cuda_aware", lambda: (True, "pretended"))
    own = make(MPICOMP_GPU_PATH="direct")
    assert own.gpu_path == job.gpu_path() == ("direct", "pretended")
    x = on_device(100, own.rank)
    own.Allreduce(MPI.IN_PLACE, x, algorithm="native")
    np.testing.assert_array_equal(x.memory, total(100, own.size))
    before = own.traffic
    own.broadcast(x, 0)
    messages = own.traffic.messages - before.messages
    assert device.log.count("synchronize") >= 1 + messages or own.size == 1
    assert "to_host" not in device.log


@pytest.fixture
def direct(device, monkeypatch):
    """An MPI that says that it takes the device's memory."""
    monkeypatch.setenv("MPICOMP_GPU_PATH", "direct")
    monkeypatch.setattr(job, "cuda_aware", lambda: (True, "pretended"))
    return device


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_memory_that_a_node_shares_is_the_hosts(direct, make, dtype):
    """Even if MPI takes device memory: no rank could read another's on the device."""
    own = make()
    x = FakeArray(np.full(1000, own.rank + 1, dtype))
    own.Allreduce(MPI.IN_PLACE, x, algorithm="node_shared")
    np.testing.assert_array_equal(x.memory, np.full(1000, own.size * (own.size + 1) / 2, dtype))
    assert ("to_host" in direct.log) == (own.size > 1)


def test_sums_in_rank_order_of_memory_that_mpi_takes(direct, make):
    own = make(reproducible=True)
    x = FakeArray(np.array([2.0**24 if own.rank == 0 else 1.0], np.float32))
    own.Allreduce(MPI.IN_PLACE, x)
    assert x.memory[0] == 2.0**24  # each 1 is rounded away; added among themselves first they would not be


class Cards:
    """Two GPUs, and the operations on their arrays: no kernel reaches the other GPU's memory."""

    def __init__(self):
        self.current, self.made = 0, []

    def empty(self, n, dtype):
        self.made.append((np.zeros(n, dtype), self.current))
        return FakeArray(self.made[-1][0])

    def of(self, array):
        return next(card for memory, card in self.made if np.may_share_memory(memory, array.memory))

    @contextmanager
    def home(self, array):
        before, self.current = self.current, self.of(array)
        yield
        self.current = before

    def add(self, dst, src):
        assert self.of(dst) == self.of(src)
        dst.memory += src.memory


def test_work_memory_is_on_the_gpu_of_the_array(direct, make, monkeypatch):
    """Also after all ranks have changed to another GPU."""
    own, cards = make(), Cards()
    monkeypatch.setattr(ops, "_HOMES", {**ops._HOMES, "fake_device": cards})
    monkeypatch.setattr(ops, "_FOUND", {})

    def home(array):
        block = cards.home(array)
        block.id = cards.of(array)
        return block

    monkeypatch.setattr(direct, "home", home)
    for cards.current in (0, 1):
        x = cards.empty(100, np.float32)
        x.memory[:] = own.rank + 1
        own.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        np.testing.assert_array_equal(x.memory, np.full(100, own.size * (own.size + 1) / 2, np.float32))


@pytest.mark.parametrize("kind", [None, "float16"])
def test_auto_leaves_memory_that_mpi_takes_on_the_device(world, direct, make, monkeypatch, kind):
    """If MPI takes device memory, the vector does not go through the host unless the caller asks for it."""
    if world.size == 1:
        pytest.skip("nothing is sent")
    x = FakeArray(np.zeros((64 << 20) // 4, np.uint16 if kind else np.float32))
    for path, expected in (("direct", "direct" if kind else "ring"), ("staged", "node_shared")):
        link = make(MPICOMP_GPU_PATH=path)._engine.link
        monkeypatch.setattr(link, "one_node", True)
        assert schedule(Vector(x, kind, direct), "sum", "auto", link) == expected


def test_a_thread_reduces_what_its_caller_has_queued_and_leaves_nothing_queued(direct, make, monkeypatch):
    """Streams are each thread's own; one that is read or written by the other is waited for."""
    waiting = []
    monkeypatch.setattr(direct, "synchronize", lambda array: waiting.append(threading.current_thread()))
    own, x, y = make(), on_device(100, 0), on_device(100, 0)
    own.Iallreduce(x, y, algorithm="native").Wait()
    caller, threaded = threading.current_thread(), own._in_flight.threaded
    assert waiting[:2] == [caller] * 2 if threaded else waiting[0] is caller
    assert (waiting[-1] is not caller) == threaded
    direct.log.clear()
    own.Allreduce(x, y)
    assert waiting[-1] is caller


class Blocking(MPI.Intracomm):
    """Stands in for an MPI whose non-blocking collectives crash on device memory, as Open MPI's do."""

    def Iallreduce(self, sendbuf, recvbuf, op=MPI.SUM):
        assert not any(isinstance(one, FakeArray) for one in (sendbuf, recvbuf)), "device memory in MPI_Iallreduce"
        return MPI.Intracomm.Iallreduce(self, sendbuf, recvbuf, op)


def test_a_patient_rank_gives_device_memory_to_blocking_calls_only(direct, make):
    own = make()
    own.wait_patiently()
    own._engine.link.comm = Blocking(own._engine.link.comm)
    for dtype in (np.float32, np.int64):
        x = on_device(100, own.rank, dtype)
        own.allreduce_in_place(x, "native")
        np.testing.assert_array_equal(x.memory, total(100, own.size, dtype))
        source, x = on_device(100, own.rank, dtype), FakeArray(np.zeros(100, dtype))
        own.allreduce_from(source, x, "native")
        np.testing.assert_array_equal(x.memory, total(100, own.size, dtype))


def test_without_a_thread_device_memory_is_reduced_by_blocking_calls_only(direct, make, monkeypatch):
    """Also what only MPI reduces, as complex numbers."""
    monkeypatch.setattr(nonblocking, "threads_allowed", lambda comm: False)
    monkeypatch.setattr(nonblocking, "MPI", SimpleNamespace(**{**vars(MPI), "Intracomm": Blocking}))
    own = make()
    for dtype in (np.float32, np.complex128):
        source, x = on_device(100, own.rank, dtype), on_device(100, own.rank, dtype)
        own.Iallreduce(MPI.IN_PLACE, x).Wait()
        np.testing.assert_array_equal(x.memory, total(100, own.size, dtype))
        own.Iallreduce(source, x).Wait()
        np.testing.assert_array_equal(x.memory, total(100, own.size, dtype))


class Crashing(MPI.Intracomm):
    """Stands in for an MPI that crashes on device memory in any collective that returns before it is complete."""

    def _crash(self, *buffers, **options):
        assert not any(isinstance(one, FakeArray) for one in (*buffers, *options.values())), "a crash"
        raise NotImplementedError

    locals().update(dict.fromkeys((*inherited.BACKGROUND, "Iallreduce", "Allreduce_init"), _crash))


@pytest.mark.parametrize("name", inherited.BACKGROUND)
def test_no_background_collective_of_mpi_gets_device_memory(direct, make, name):
    """Even if MPI takes it in blocking calls; arrays in host memory go to MPI."""
    own, host = make(), np.zeros(10, np.float32)
    call = inherited.on_host(getattr(Crashing, name))
    for buffers in ((on_device(10, 0), host), (host, [on_device(10, 0), MPI.FLOAT]), (on_device(10, 0), None)):
        with pytest.raises(BufferRefused, match=f"{name} takes arrays in host memory, got one on a device.*call [A-Z]"):
            getattr(own, name)(*buffers)
    with pytest.raises(NotImplementedError):
        call(own, host)


def test_every_background_collective_of_mpi4py_is_known():
    """Beside our own Iallreduce, those without buffers, and neighbours', which need a topology."""
    known = {"Iallreduce", "Ibarrier", "Barrier_init"}
    names = {*call_log.NAMES, "Allreduce"}
    collectives = {name for name in dir(MPI.Intracomm) if name[0] == "I" and name[1:].capitalize() in names}
    persistent = {f"{name}_init" for name in names if hasattr(MPI.Intracomm, f"{name}_init")}
    assert collectives | persistent <= {*inherited.BACKGROUND, *known}


@pytest.mark.parametrize(("right", "path"), [(True, "direct"), (False, "none"), (None, "none")])
def test_direct_is_forced_by_a_probe(world, device, make, monkeypatch, right, path):
    """The first rank whose MPI does not report support runs it; the others learn the result."""
    asked, first = [], world.size // 2
    monkeypatch.setattr(job, "cuda_aware", lambda: (world.rank < first, "this MPI says no"))
    monkeypatch.setattr(gpu_probe, "probe_once", lambda: asked.append(world.rank) or (right, "as seen"))
    own = make(MPICOMP_GPU_PATH="direct")
    assert own.gpu_path[0] == path and "as seen" in own.gpu_path[1]
    assert asked == ([first] if world.rank == first else [])
    asked.clear()
    assert make(MPICOMP_GPU_PATH="auto").gpu_path[0] == "staged" and not asked


def test_direct_is_refused_when_mpi_does_not_say_it_can(make, device, monkeypatch):
    monkeypatch.setattr(job, "cuda_aware", lambda: (False, "this MPI says no"))
    own = make(MPICOMP_GPU_PATH="direct")
    assert own.gpu_path[0] == job.gpu_path()[0] == "none"
    if own.size == 1:
        return
    for call in (lambda x: own.Allreduce(MPI.IN_PLACE, x), lambda x: own.broadcast(x, 0), own.gather_to_all):
        with pytest.raises(BufferRefused, match="this MPI says no: start with a CUDA-aware MPI, or set MPICOMP_GPU"):
            call(on_device(10, own.rank))


def test_what_only_mpi_reduces_never_sees_device_memory(own, device):
    with pytest.raises(BufferRefused, match="copy the array to the host"):
        own.Allreduce(MPI.IN_PLACE, FakeArray(np.ones(4, complex)))
    with pytest.raises(BufferRefused, match=r"MAXLOC.*copy the array to the host"):
        own.Allreduce(MPI.IN_PLACE, on_device(4, 0), MPI.MAXLOC)


def test_unusable_device_arrays_are_refused(own, device):
    with pytest.raises(BufferRefused, match="contiguous"):
        own.Allreduce(MPI.IN_PLACE, FakeArray(np.ones(10)[::2]))
    with pytest.raises(BufferRefused, match="one device"):
        own.Allreduce(np.ones(3), FakeArray(np.ones(3)))
    frozen = np.ones(3)
    frozen.flags.writeable = False
    with pytest.raises(BufferRefused, match="writable"):
        own.Allreduce(MPI.IN_PLACE, FakeArray(frozen))


def test_this_mpi_says_whether_it_takes_cuda_memory(monkeypatch):
    monkeypatch.delenv("MPICOMP_GPU_PATH", raising=False)
    path, reason = job.gpu_path()
    assert path in ("direct", "staged")
    assert MPI.get_vendor()[0] in reason
    monkeypatch.setenv("MPICOMP_GPU_PATH", "fast")
    with pytest.raises(InvalidArgument, match="one of auto, direct, staged, got 'fast'"):
        job.gpu_path()


class Library:
    """Stands in for an MPI library: ``answers`` maps its queries to what they return."""

    def __init__(self, **answers):
        for name, answer in answers.items():
            setattr(self, name, self.query(answer))

    def query(self, answer):
        def ask(*arguments):
            if answer == "abort":
                raise AssertionError("this query aborts in MPICH before 4.0")
            if not arguments:
                return answer
            error, supported = answer
            ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_int))[0] = supported
            return error

        return ask


@pytest.mark.parametrize(("driver", "answers", "expected"), [
    (True, {"MPIX_GPU_query_support": (0, 1), "MPIX_Query_cuda_support": "abort"}, True),  # MPICH
    (True, {"MPIX_GPU_query_support": (0, 0), "MPIX_Query_cuda_support": "abort"}, False),
    (True, {"MPIX_GPU_query_support": (16, 1), "MPIX_Query_cuda_support": "abort"}, False),
    (True, {"MPIX_Query_cuda_support": 1}, True),  # Open MPI
    (True, {"MPIX_Query_cuda_support": 0}, False),
    (True, {}, False),
    (False, {"MPIX_GPU_query_support": "abort", "MPIX_Query_cuda_support": "abort"}, False),
])  # fmt: skip
def test_mpi_is_asked_by_a_query_that_does_not_abort(monkeypatch, driver, answers, expected):
    """And by none if no process here can have device arrays."""

    aware, reason = asked(monkeypatch, driver, answers)
    assert aware == expected
    assert MPI.get_vendor()[0] in reason
    assert ("no CUDA driver" in reason) == (not driver)


def asked(monkeypatch, driver, answers, cupy=True):
    """Return the answer of `job.cuda_aware` of a process with this MPI library."""

    def load(path):
        if path == job.DRIVER and not driver:
            raise OSError
        return Library(**answers)

    monkeypatch.setattr(job.ctypes, "CDLL", load)
    monkeypatch.setattr(job, "find_spec", lambda name: cupy or None)
    job.cuda_aware.cache_clear()
    try:
        return job.cuda_aware()
    finally:
        job.cuda_aware.cache_clear()


ABORTS = {"MPIX_GPU_query_support": "abort", "MPIX_Query_cuda_support": "abort"}


def test_mpi_is_not_asked_without_cupy(monkeypatch):
    aware, reason = asked(monkeypatch, True, ABORTS, cupy=False)
    assert not aware and "CuPy, which device arrays need, is not installed" in reason


def pretend(monkeypatch, vendor, text):
    stand_in = SimpleNamespace(get_vendor=lambda: vendor, Get_library_version=lambda: text, __file__=MPI.__file__,
                               COMM_WORLD=MPI.COMM_WORLD)
    monkeypatch.setattr(job, "MPI", stand_in)
    monkeypatch.setattr(job, "world", lambda: SimpleNamespace(Get_info=MPI.Info.Create))


@pytest.mark.parametrize("version", [(3, 3, 2), (3, 4, 3)])
def test_mpich_before_4_is_not_asked(monkeypatch, version):
    """Its query for CUDA support fails an assertion."""
    pretend(monkeypatch, ("MPICH", version), "MPICH Version: 3.4.3")
    aware, reason = asked(monkeypatch, True, ABORTS)
    assert not aware and "was not asked" in reason


@pytest.mark.parametrize(("variable", "expected"), [("1", True), ("0", False), (None, False)])
def test_cray_mpich_says_by_a_variable_whether_it_takes_cuda_memory(monkeypatch, variable, expected):
    pretend(monkeypatch, ("MPICH", (3, 4, 0)), "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)")
    monkeypatch.delenv(job.CRAY_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(job.CRAY_VARIABLE, variable)
    aware, reason = asked(monkeypatch, True, ABORTS)
    assert aware == expected and "MPICH_GPU_SUPPORT_ENABLED=" in reason


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_a_device_array_on_one_rank_alone(make, algorithm):
    """It would travel in pieces, which the others do not expect: all ranks hear where the others' arrays are."""
    comm = make(MPICOMP_CHECK="1", MPICOMP_STAGE_BYTES="400")
    if comm.size == 1:
        return
    x, last = np.ones(1000, np.float32), comm.rank == comm.size - 1
    array = FakeArray(x) if last else x
    for call in (
        lambda: comm.Allreduce(MPI.IN_PLACE, array, algorithm=algorithm),
        lambda: comm.allreduce_in_place(array, algorithm),
        lambda: comm.broadcast(array, 0),
    ):
        with pytest.raises(Disagreement, match=rf"rank {comm.size - 1}: [^;]*, on a device"):
            call()
    np.testing.assert_array_equal(x, 1)


def test_the_first_device_array_of_a_length_is_compared(make, monkeypatch):
    """Although host arrays of this length need no comparison any more."""
    comm = make()
    if comm.size == 1:
        return
    for _ in range(70):
        comm.Allreduce(MPI.IN_PLACE, np.ones(1000, np.float32), algorithm="ring")
    checks, compared = comm._engine.checks, []
    compare = checks.compare
    monkeypatch.setattr(checks, "compare", lambda text, *rest: compared.append(text) or compare(text, *rest))
    comm.Allreduce(MPI.IN_PLACE, FakeArray(np.ones(1000, np.float32)), algorithm="ring")
    assert [text.endswith("algorithm=ring, on a device") for text in compared] == [True]

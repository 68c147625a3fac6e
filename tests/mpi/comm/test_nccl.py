"""NCCL: refused on every rank where it cannot be, else what NCCL is asked, for which MPI stands in."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import CountingRuntime, DeviceFunctions, EmulatedGPU, counts, on_device, on_host
from mpi4py import MPI

import mpicomp
from mpicomp import ops
from mpicomp.comm import nccl
from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.ops import device as device_module
from mpicomp.ops import gpu
from mpicomp.ops.gpu import cuda_runtime
from mpicomp.schemes import averaging

TYPES = {code: np.dtype(name) for name, code in nccl.TYPES.items() if name != "bfloat16"}
OPS = {"NCCL_SUM": MPI.SUM, "NCCL_PROD": MPI.PROD, "NCCL_MIN": MPI.MIN, "NCCL_MAX": MPI.MAX}
NUMBERS = itertools.count(1)  # of communicators whose first rank is this one


class Communicator:
    """NcclCommunicator: the same calls, by MPI on the memory behind the pointers. Those of a group run at its end."""

    made, calls, fails = 0, [], False
    group = None  # the calls of the open group

    def __init__(self, size, unique, rank):
        self.comm = meet(size, unique, rank)
        if Communicator.fails:
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
        Communicator.made += 1

    def _run(self, name, stream, call):
        assert stream == 77
        Communicator.calls.append(name)
        if Communicator.group is None:
            call()
        else:
            Communicator.group.append(call)

    def allReduce(self, send, receive, count, kind, op, stream):
        self._run("allReduce", stream, lambda: self.comm.Allreduce(
            memory(send, count, TYPES[kind]).copy(), memory(receive, count, TYPES[kind]), OPS[op]))

    def reduce(self, send, receive, count, kind, op, root, stream):
        def call():
            here = self.comm.rank == root
            result = memory(receive, count, TYPES[kind]) if here else None
            self.comm.Reduce(memory(send, count, TYPES[kind]).copy(), result, OPS[op], root)

        self._run("reduce", stream, call)

    def broadcast(self, send, receive, count, kind, root, stream):
        def call():
            if self.comm.rank == root:
                memory(receive, count, TYPES[kind])[...] = memory(send, count, TYPES[kind]).copy()
            self.comm.Bcast(memory(receive, count, TYPES[kind]), root)

        self._run("broadcast", stream, call)

    def allGather(self, send, receive, count, kind, stream):
        self._run("allGather", stream, lambda: self.comm.Allgather(
            memory(send, count, TYPES[kind]).copy(), memory(receive, count * self.comm.size, TYPES[kind])))

    def send(self, send, count, kind, peer, stream):
        self._run("send", stream, lambda: self.comm.Isend(memory(send, count, TYPES[kind]), peer))

    def recv(self, receive, count, kind, peer, stream):
        self._run("recv", stream, lambda: self.comm.Irecv(memory(receive, count, TYPES[kind]), peer))

    @staticmethod
    def start():
        assert Communicator.group is None
        Communicator.group = []

    @staticmethod
    def end():
        calls, Communicator.group = Communicator.group, None
        for request in [call() for call in calls]:
            if request is not None:
                request.Wait()


def meet(size, unique, rank):
    """Return MPI's communicator of the ranks that give the same ``unique``, which names their first rank."""
    first, number = unique
    tag, world = 1000 + number, MPI.COMM_WORLD
    if rank == 0:
        ranks = dict([(0, first), *(world.recv(tag=tag) for _ in range(size - 1))])
        for one in range(1, size):
            world.send(ranks, ranks[one], tag)
    else:
        world.send((rank, world.rank), first, tag)
        ranks = world.recv(source=first, tag=tag)
    return world.Create_group(world.group.Incl([ranks[one] for one in range(size)]), tag)


def memory(address, count, dtype):
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address), dtype)


class Library:
    """cupy.cuda, as far as NCCL needs it."""

    def __init__(self, log):
        self.nccl = SimpleNamespace(
            available=True, get_unique_id=lambda: (MPI.COMM_WORLD.rank, next(NUMBERS)), NcclCommunicator=Communicator,
            groupStart=Communicator.start, groupEnd=Communicator.end,
            **{name: name for name in (*nccl.TYPES.values(), *nccl.OPS.values())},
        )
        self.own = MPI.COMM_WORLD.rank  # whose GPU
        self.device = 0
        self.runtime = SimpleNamespace(getDevice=lambda: self.device,
                                       deviceGetPCIBusId=lambda number: f"0000:{self.own:02x}:0{number}.0")
        stream = SimpleNamespace(ptr=77, synchronize=lambda: log.append("waited"))
        self.get_current_stream = lambda: stream


@pytest.fixture
def cuda(monkeypatch):
    log = []
    library, functions = Library(log), DeviceFunctions()
    functions.cuda = library
    runtime = CountingRuntime()
    runtime.xp, runtime.nccl = functions, lambda: library.nccl
    monkeypatch.setattr(ops, "_HOMES", {**ops._HOMES, "emulatedgpu": gpu})
    previous, fake = cuda_runtime.use(runtime), EmulatedGPU()
    device_module.register(fake)
    library.log, library.gpu = log, fake
    monkeypatch.delenv("MPICOMP_GPU_PATH", raising=False)
    monkeypatch.setattr(Communicator, "fails", False)
    Communicator.calls.clear()
    yield library
    device_module.unregister(fake)
    cuda_runtime.use(previous)
    ops._FOUND.clear()


@pytest.fixture
def own(world):
    comm = mpicomp.Comm(world)
    yield comm
    comm.Free()


def test_every_rank_with_a_gpu_of_its_own(own, cuda):
    before = Communicator.made
    for dtype in (np.float32, np.float64, np.int32):
        for op, expected in ((MPI.SUM, sum), (MPI.MAX, max)):
            mine = [np.arange(50, dtype=dtype) % 7 + rank for rank in range(own.size)]
            x, y = on_device(mine[own.rank]), on_device(np.zeros(50, dtype))
            own.Allreduce(x, y, op, algorithm="nccl")
            own.Allreduce(MPI.IN_PLACE, x, op, algorithm="nccl")
            wanted = sum(mine) if expected is sum else mine[-1]
            np.testing.assert_array_equal(on_host(y), wanted)
            np.testing.assert_array_equal(on_host(x), wanted)
    assert Communicator.made - before == (own.size > 1)  # kept from call to call
    assert cuda.log == []  # queued: the one wait of an Allreduce is for readers on other streams
    assert cuda.gpu.log == ["synchronize"] * 12
    assert own.traffic.bytes_sent >= 2 * (own.size - 1) * 50 * 4 // own.size


def test_a_reducer_may_use_it(own, cuda):
    reducer = mpicomp.Reducer(own, "dense", algorithm="nccl")
    mean = reducer.reduce(on_device(np.full(30, own.rank, np.float32)))
    np.testing.assert_array_equal(on_host(mean), np.full(30, (own.size - 1) / 2, np.float32))


def test_a_reducer_of_host_arrays_refuses_it_before_anything_changes(own, cuda):
    reducer = mpicomp.Reducer(own, "topk:k=2", algorithm="nccl")
    with pytest.raises(InvalidArgument, match="adds arrays in CUDA memory, got arrays in host memory"):
        reducer.reduce(np.ones(30, np.float32))
    assert reducer.step == 0
    assert reducer.memory_norm() == 0


def test_ranks_that_share_a_gpu_are_refused(own, cuda):
    if own.size == 1:
        pytest.skip("needs two ranks")
    cuda.own = 0
    with pytest.raises(InvalidArgument, match=rf"{own.size} ranks share GPU .*0000:00:00.0: start one rank per GPU"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.float32)), algorithm="nccl")


def test_nccl_missing_on_one_rank_is_told_to_all(own, cuda):
    if own.size == 1:
        pytest.skip("needs two ranks")
    cuda.nccl.available = own.rank != own.size - 1
    with pytest.raises(InvalidArgument, match=f"not possible: rank {own.size - 1}: CuPy here finds no NCCL"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.float32)), algorithm="nccl")


def test_an_nccl_that_fails_on_one_rank_is_told_to_all(own, cuda, monkeypatch):
    if own.size == 1:
        pytest.skip("needs two ranks")
    monkeypatch.setattr(Communicator, "fails", own.rank == own.size - 1)
    with pytest.raises(InvalidArgument, match=f"rank {own.size - 1}: RuntimeError: NCCL_ERROR_SYSTEM_ERROR"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.float32)), algorithm="nccl")
    x = on_device(np.ones(3, np.float32))
    own.Allreduce(MPI.IN_PLACE, x)  # `auto` goes on without it
    np.testing.assert_array_equal(on_host(x), own.size)


def several(own):
    """Skip a test of what ranks send each other if there is one rank."""
    if own.size == 1:
        pytest.skip("needs two ranks")


def summed(own, dtype=np.float32, op="sum"):
    """Reduce an array in place by ``auto``; its result is looked at."""
    x = on_device(np.full(20, own.rank + 1, dtype))
    own.allreduce_in_place(x, op=op)
    expected = own.size * (own.size + 1) // 2 if op == "sum" else own.size
    np.testing.assert_array_equal(on_host(x), np.full(20, expected, dtype))


def test_auto_takes_it_and_the_host_does_not_wait(own, cuda):
    several(own)
    for dtype in map(np.dtype, nccl.BY_ITSELF):
        summed(own, dtype)
        summed(own, dtype, "max")
    assert Communicator.calls == ["allReduce"] * 2 * len(nccl.BY_ITSELF)
    assert cuda.log == cuda.gpu.log == []  # no wait, no copy


def test_auto_leaves_out_what_nccl_adds_in_another_way(own, cuda):
    """Half precision is added in float32; short integers overflow as in MPI; the host's arrays are MPI's."""
    for dtype in (np.float16, np.int8, np.uint8):
        summed(own, dtype)
    x = np.ones(20, np.float32)
    own.allreduce_in_place(x)
    assert x[0] == own.size and not Communicator.calls


@pytest.mark.parametrize("environment", [{"MPICOMP_GPU_PATH": "staged"}, {"MPICOMP_REPRODUCIBLE": "1"},
                                         {"MPICOMP_ALGORITHM": "ring"}])
def test_a_path_a_mode_or_a_schedule_that_is_requested_leaves_it_out(world, cuda, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own = mpicomp.Comm(world)
    summed(own)
    assert not Communicator.calls
    own.Free()


@pytest.mark.parametrize("lacking", ["a GPU each", "NCCL"])
def test_auto_stages_if_one_rank_cannot_take_part(own, cuda, monkeypatch, lacking):
    """All ranks ask once."""
    several(own)
    if lacking == "NCCL":
        cuda.nccl.available = own.rank != own.size - 1
    else:
        cuda.own = 0
    asked = []
    monkeypatch.setattr(nccl, "why_not", lambda reports, ask=nccl.why_not: asked.append(1) or ask(reports))
    for _ in range(3):
        summed(own)
    assert len(asked) == 1 and not Communicator.calls and "to_host" in cuda.gpu.log


def test_each_device_has_a_communicator_of_its_own(own, cuda):
    several(own)
    before = Communicator.made
    for cuda.device in (0, 1, 0, 1):
        summed(own)
    assert Communicator.made - before == 2


def test_all_reduces_in_flight_leave_it_to_the_callers_thread(own, cuda):
    """Two communicators at once may block a GPU."""
    x = on_device(np.ones(20, np.float32))
    own.Iallreduce(MPI.IN_PLACE, x).Wait()
    np.testing.assert_array_equal(on_host(x), own.size)
    assert not Communicator.calls


def test_a_reducers_buckets_are_queued_beside_its_stream(own, cuda, monkeypatch):
    """No wait of the host: each bucket follows the work before it, and what reads its mean follows the bucket."""
    several(own)
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 4096)
    gradient = np.arange(5003, dtype=np.float64) % 9 + own.rank
    means = [mpicomp.Reducer(own, "dense:values=float32").reduce(place(gradient)) for place in (np.array, on_device)]
    np.testing.assert_array_equal(on_host(means[1]), means[0])
    buckets = Communicator.calls.count("allReduce")
    assert buckets >= 9
    assert cuda.gpu.log == [*["record", "beside", "follow", "record", "back"] * buckets, *["follow"] * buckets]


def test_a_queued_all_reduce_keeps_its_arrays_until_its_caller_waits(own, cuda):
    """Memory that is given up goes to the caller's stream, which does not wait for the one beside it before."""
    several(own)
    source, result = (on_device(np.full(20, own.rank, np.float32)) for _ in range(2))
    kept = [weakref.ref(source), weakref.ref(result)]
    request = own.start_allreduce(result, source=source)
    del source, result
    assert all(one() is not None for one in kept)
    request.Wait()
    assert all(one() is None for one in kept)


@pytest.mark.parametrize("in_place", [True, False])
def test_an_error_of_a_queued_all_reduce_leaves_nothing_queued(own, cuda, in_place, monkeypatch):
    several(own)
    x, y = (on_device(np.full(20, own.rank, np.float32)) for _ in range(2))

    def failing(*arguments):
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR")

    monkeypatch.setattr(nccl.Nccl, "allreduce", failing)
    with pytest.raises(RuntimeError, match="NCCL_ERROR"):
        own.start_allreduce(x, source=None if in_place else y)
    assert cuda.gpu.log == ["record", "beside", "follow", "synchronize"]


def test_verbs_queue_their_messages(own, cuda):
    """The same results and bytes as arrays in host memory; no wait, no copy."""
    several(own)
    summed(own)  # messages between two ranks need a communicator that all have made
    size, rank = own.size, own.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    Communicator.calls.clear()
    for place, back in ((on_device, on_host), (np.array, np.array)):
        before = own.traffic
        x = place(np.full(40_000, rank, np.float32))
        own.broadcast(x, size - 1)
        assert (back(x) == size - 1).all()
        for lengths in ([20_000] * size, [10_000 * one for one in range(size)]):
            flat, counts = own.gather_to_all(place(np.full(lengths[rank], rank, np.int32)))
            np.testing.assert_array_equal(back(flat), np.repeat(np.arange(size), lengths))
            assert counts == lengths
        got = own.send_and_receive({right: place(np.full(9, rank, np.uint8))}, {left: 9}, place(np.ones(1, np.float32)))
        assert list(got) == [left] and (back(got[left]) == left).all()
        used = own.traffic - before
        if place is on_device:
            queued = used
    assert Communicator.calls == ["broadcast", "allGather", *["broadcast"] * (size - 1), "recv", "send"]
    assert cuda.log == cuda.gpu.log == []
    assert own.allreduce(queued.bytes_received) == own.allreduce(used.bytes_received)
    assert own.allreduce(queued.bytes_sent) == own.allreduce(used.bytes_sent)


@pytest.mark.parametrize("scheme", ["dense", "topk:k=20", "scalecom:chunk=10", "oktopk:k=20", "gtopk:k=20", "onebit"])
def test_schemes_give_the_same_means_by_nccl(own, cuda, scheme):
    several(own)
    rng = np.random.default_rng(own.rank)
    gradients = [rng.integers(-48, 49, 1000).astype(np.float32) for _ in range(2)]
    here, there = mpicomp.Reducer(own, scheme), mpicomp.Reducer(own, scheme)
    for gradient in gradients:
        mean = there.reduce(on_device(gradient))
        np.testing.assert_allclose(on_host(mean), here.reduce(gradient), rtol=1e-6, atol=1e-6)
    assert Communicator.calls


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def nodes(request, world, cuda, monkeypatch):
    """Nodes of two or three ranks; the last has fewer if the number of ranks is no multiple."""
    if world.size <= request.param:
        pytest.skip("needs two nodes")
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", str(request.param))
    comm = mpicomp.Comm(world)
    yield comm
    comm.Free()


def within_nodes(comm, place):
    """Run the verbs of a node on slices and lists that are equal, unequal and empty; return their results."""
    levels, results = comm.levels, []
    for dtype, n in itertools.product((np.float32, np.float64), (0, 1, 17, 64, 1000)):
        x, total = place((np.arange(n) % 7 + comm.rank).astype(dtype)), place(np.zeros(n, dtype))
        levels.reduce_scatter(x, total, 0.25)
        results.append(on_host(total))
        levels.all_gather(total)
        results.append(on_host(total))
    for length in (0, 5, levels.place, 2 * (levels.slices - levels.place)):
        x = place(np.arange(length if levels.place < levels.slices else 0, dtype=np.int32) + 100 * levels.place)
        results.append(on_host(levels.gather(x, levels.largest([x.size])[0])))
    return results


def same(found, expected):
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("lacking", [False, True], ids=["everywhere", "not on the last node"])
def test_ranks_of_a_node_use_it(nodes, cuda, lacking):
    """No copy and no wait where all ranks of the node can; through the node's memory on others, also of one rank."""
    cuda.nccl.available = not lacking or nodes.rank < nodes.size - 1
    here = nodes._engine.link.node.comm.allgather(nodes.rank)
    expected = within_nodes(nodes, np.array)
    sent, Communicator.calls[:] = nodes.traffic.bytes_sent, []
    counts.clear()
    found = within_nodes(nodes, on_device)
    calls, staged = set(Communicator.calls), counts["waits"]
    sent = nodes.traffic.bytes_sent - sent
    assert same(found, expected) and sent == 0
    if len(here) > 1 and not (lacking and nodes.size - 1 in here):
        assert calls >= {"reduce", "broadcast"} and cuda.log == cuda.gpu.log == []
        assert ("allGather" in calls) == (nodes.levels.slices == len(here))
        assert staged == 5 + (nodes.levels.slices == 1)  # calls without elements
    else:
        assert not calls and staged > 20


@pytest.mark.parametrize("environment", [{"MPICOMP_GPU_PATH": "staged"}, {"MPICOMP_REPRODUCIBLE": "1"}])
def test_ranks_of_a_node_leave_it_out_on_request(nodes, world, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    other = mpicomp.Comm(world)
    right = same(within_nodes(other, on_device), within_nodes(nodes, np.array))
    other.Free()
    assert right and not Communicator.calls


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.1", "topk:density=0.1,dense=last", "powersgd"])
def test_schemes_give_the_same_means_on_nodes(nodes, scheme):
    """The same bits, but for sums of more than two nodes and matrix products, which are added in another order."""
    two_levels = f"{scheme}{',' if ':' in scheme else ':'}nodes=yes"
    reducers = [mpicomp.Reducer(nodes, two_levels) for _ in range(2)]
    rng, pairs, shapes = np.random.default_rng(nodes.rank), [], {"w": (40, 25), "b": (77,)}
    for _ in range(3):
        gradients = {name: rng.integers(-48, 49, shape).astype(np.float32) for name, shape in shapes.items()}
        here = reducers[0].reduce(gradients)
        there = reducers[1].reduce({name: on_device(one) for name, one in gradients.items()})
        pairs += [(on_host(there[name]), here[name]) for name in shapes]
    for found, expected in pairs:
        if scheme == "powersgd" or nodes.levels.nodes > 2:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
        else:
            np.testing.assert_array_equal(found, expected)
    assert ("reduce" in Communicator.calls) == (nodes._engine.link.node.size > 1)


def test_host_arrays_and_other_operations_are_refused(own, cuda):
    with pytest.raises(BufferRefused, match="arrays of numbers in CUDA memory"):
        own.Allreduce(MPI.IN_PLACE, np.ones(3, np.float32), algorithm="nccl")
    with pytest.raises(InvalidArgument, match="got op=land of int32"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.int32)), MPI.LAND, algorithm="nccl")
    with pytest.raises(InvalidArgument, match="of int16"):
        own.Allreduce(MPI.IN_PLACE, on_device(np.ones(3, np.int16)), algorithm="nccl")

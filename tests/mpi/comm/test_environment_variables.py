"""Ranks whose environments differ, variable by variable: launchers do not pass each on to every host."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from fake_device import FakeArray, FakeDevice
from mpi4py import MPI

import mpicomp
from mpicomp import Comm, ops
from mpicomp.allreduce.table import FORMAT, VERSION
from mpicomp.cli import info
from mpicomp.comm import job
from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, oracle
from mpicomp.ops import device as device_module

TABLE, NONSENSE = "a table of its own", ("nonsense", "none")
# Variable, rank 0's value, that of the others; None: not set.
CASES = [
    ("MPICOMP_ALGORITHM", "ring", "native"),
    ("MPICOMP_ALGORITHM", None, "node_shared"),
    ("MPICOMP_CHECK", "1", "0"),
    ("MPICOMP_CHECK", "0", "1"),
    ("MPICOMP_GPU_PATH", "staged", "direct"),
    ("MPICOMP_GPU_PATH", "direct", "staged"),
    ("MPICOMP_GPU_PATH", "auto", "nonsense"),
    ("MPICOMP_RANKS_PER_NODE", "2", "1"),
    ("MPICOMP_RANKS_PER_NODE", "1", "none"),
    ("MPICOMP_REPRODUCIBLE", "1", "0"),
    ("MPICOMP_REPRODUCIBLE", "0", "1"),
    ("MPICOMP_STAGE_BYTES", "400", "1000"),
    ("MPICOMP_STAGE_BYTES", None, "24"),
    ("MPICOMP_TIMEOUT", "0", "600"),
    ("MPICOMP_TIMEOUT", "600", "0"),
    ("MPICOMP_TUNING", TABLE, None),
    ("MPICOMP_TUNING", None, TABLE),
    ("MPICOMP_FAULT", "slow:rank=0,seconds=0", None),
    ("MPICOMP_FAULT", None, "slow:rank=1,seconds=0"),
]


@pytest.fixture
def device(world, monkeypatch):
    """A device whose memory this MPI claims to take; it is the host's, so it can."""
    fake = FakeDevice()
    device_module.register(fake)
    monkeypatch.setattr(job, "cuda_aware", lambda: (True, "pretended"))
    yield fake
    device_module.unregister(fake)
    assert fake.pending == 0


@pytest.fixture
def table(world, shared_tmp):
    choices = [{"max_bytes": None, "algorithm": "halving_doubling"}]
    rows = [{"ranks_per_node": world.size, "nodes": 1, "device": place, "choices": choices} for place in ("cpu", "gpu")]
    if world.rank == 0:
        text = json.dumps({"format": FORMAT, "version": VERSION, "measured": {}, "rows": rows})
        (shared_tmp / "table.json").write_text(text)
    world.Barrier()
    return str(shared_tmp / "table.json")


def exercise(comm):
    """Calls that a setting may change the messages of, on the host and on the device; every result is looked at."""
    ranks = comm.size * (comm.size - 1) // 2
    for n in (1, 300, 5000):
        x, on_device = (place(np.full(n, comm.rank, np.float32)) for place in (np.array, FakeArray))
        algorithm = "auto" if comm.gpu_path[0] == "staged" else "native"  # others add on a device, which this is not
        comm.Allreduce(MPI.IN_PLACE, x)
        comm.Iallreduce(MPI.IN_PLACE, x).Wait()
        comm.Allreduce(MPI.IN_PLACE, on_device, algorithm=algorithm)
        comm.allreduce_in_place(on_device, algorithm)
        assert (x == ranks * comm.size).all() and (on_device.memory == ranks * comm.size).all(), n
        on_device = FakeArray(np.full(n, comm.rank, np.float32))
        if algorithm == "auto":
            gathered, counts = comm.gather_to_all(on_device)
            assert counts == [n] * comm.size and (gathered.memory == np.repeat(np.arange(comm.size), n)).all()
            to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            got = comm.send_and_receive({to: on_device}, {source: 4 * n}, on_device)
            assert (got[source].memory.view(np.float32) == source).all()
        comm.broadcast(on_device, comm.size - 1)
        assert (on_device.memory == comm.size - 1).all()
    mine = comm.gpu_path, comm.layout, comm.reproducible, comm._engine.default
    assert len(set(MPI.Intracomm.allgather(comm, mine))) == 1


@pytest.mark.parametrize(("name", "first", "others"), CASES)
def test_ranks_do_the_same_whatever_the_others_environment(world, device, table, monkeypatch, name, first, others):
    """That of rank 0 counts, also where that of another could not be."""
    monkeypatch.setenv("MPICOMP_GPU_PATH", "staged")
    value = first if world.rank == 0 else others
    if value is None:
        monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setenv(name, table if value == TABLE else value)
    comm = Comm(world)
    exercise(comm)
    comm.Free()
    if others in NONSENSE:
        return
    half = MPI.Intracomm.Split(world, world.rank % 2, world.rank)  # of which one has another rank 0
    part = Comm(half)
    exercise(part)
    part.Free()
    half.Free()


@pytest.mark.parametrize(("name", "value", "text"), [
    ("MPICOMP_STAGE_BYTES", "4M", "MPICOMP_STAGE_BYTES must be a number of bytes, 1 or more, got '4M'"),
    ("MPICOMP_STAGE_BYTES", "-1", "got '-1'"),
    ("MPICOMP_STAGE_BYTES", "0", "got '0'"),
    ("MPICOMP_STAGE_BYTES", "", "got ''"),
    ("MPICOMP_STAGE_BYTES", "9" * 5000, "MPICOMP_STAGE_BYTES must be a number of bytes"),
    ("MPICOMP_RANKS_PER_NODE", "two", "MPICOMP_RANKS_PER_NODE must be a number of ranks, 1 or more, got 'two'"),
    ("MPICOMP_GPU_PATH", "fast", "MPICOMP_GPU_PATH must be one of auto, direct, staged, got 'fast'"),
    ("MPICOMP_REPRODUCIBLE", "yes", "MPICOMP_REPRODUCIBLE must be 0 or 1, got 'yes'"),
    ("MPICOMP_ALGORITHM", "rnig", "unknown algorithm 'rnig'"),
    ("MPICOMP_CHECK", "2", "MPICOMP_CHECK must be 0, 1 or auto, got '2'"),
])  # fmt: skip
def test_nonsense_in_rank_0s_environment_is_refused_by_all(world, monkeypatch, name, value, text):
    if world.rank == 0:
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgument, match=text):
        Comm(world)
    (kind, _), wrong = info._gpu_path(world)
    assert kind == "none" and text in wrong


@pytest.mark.parametrize(("name", "value", "text"), [
    ("MPICOMP_TIMEOUT", "soon", "MPICOMP_TIMEOUT must be a number of seconds"),
    ("MPICOMP_FAULT", "flood:rank=0,call=1", "MPICOMP_FAULT must be KIND:rank=R"),
    ("MPICOMP_NUM_THREADS", "two", "MPICOMP_NUM_THREADS must be a number of threads, 1 or more, got 'two'"),
    ("MPICOMP_NUM_THREADS", "0", "MPICOMP_NUM_THREADS must be a number of threads, 1 or more, got '0'"),
    ("MPICOMP_OPS", "refrence", "MPICOMP_OPS must be reference, or not set, got 'refrence'"),
])  # fmt: skip
def test_nonsense_in_what_is_each_ranks_own_is_refused_by_all(world, monkeypatch, name, value, text):
    last = world.size - 1
    if world.rank == last:
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgument, match=f"rank {last}: {text}"):
        Comm(world)
    assert f"rank {last}: {text}" in info._gpu_path(world)[1]


@pytest.mark.parametrize(("wanted", "path"), [("auto", "staged"), ("direct", "none")])
def test_device_memory_goes_to_mpi_only_where_every_ranks_mpi_takes_it(world, device, monkeypatch, wanted, path):
    """Such as on a cluster with two builds of MPI."""
    monkeypatch.setattr(job, "cuda_aware", lambda: (world.rank != world.size - 1, "so it says"))
    monkeypatch.setenv("MPICOMP_GPU_PATH", wanted)
    comm = Comm(world)
    assert comm.gpu_path[0] == path and "so it says" in comm.gpu_path[1]
    assert info._gpu_path(world) == (comm.gpu_path, "")
    assert (f"on rank {world.size - 1}" in comm.gpu_path[1]) == (world.size > 1)
    if path == "staged":
        exercise(comm)
    comm.Free()


def test_ranks_with_other_operations_are_refused(world, monkeypatch):
    """MPICOMP_OPS=reference on some: sums of squares would differ in their last bits, and so would models."""
    monkeypatch.setattr(ops, "_FOUND", {})
    if world.rank == 0:
        monkeypatch.setitem(ops._HOMES, "numpy", oracle)
    if world.size == 1:
        return Comm(world).Free()
    with pytest.raises(InvalidArgument, match=r"operations must be the same on all ranks.*: mpicomp\.ops\.oracle"):
        Comm(world)
    return None


def test_a_rank_has_its_share_of_the_cpus(world, monkeypatch):
    """None has more threads than the ranks leave it; the number in the environment counts up to the CPUs."""
    monkeypatch.delenv("MPICOMP_NUM_THREADS", raising=False)
    Comm(world).Free()
    cpus = os.sched_getaffinity(0)
    every = set().union(*MPI.Intracomm.allgather(world, cpus))
    everyone = MPI.Intracomm.allgather(world, _cpu.threads())
    assert min(everyone) >= 1 and sum(everyone) <= max(len(every), world.size)
    Comm(MPI.COMM_SELF).Free()  # knows less of the node, and changes nothing
    assert MPI.Intracomm.allgather(world, _cpu.threads()) == everyone
    monkeypatch.setenv("MPICOMP_NUM_THREADS", "2")
    try:
        Comm(world).Free()
        assert _cpu.threads() == min(2, len(cpus))
    finally:
        _cpu.set_threads("")


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.1", "scalecom", "sidco:density=0.01", "gtopk"])
def test_numbers_of_threads_may_differ(world, comm, seed, scheme):
    """MPICOMP_NUM_THREADS, and nodes of several sizes: every rank gets the same bits."""
    reducer = mpicomp.Reducer(comm, scheme)
    _cpu.force_threads(1 + comm.rank)
    try:
        for step in range(2):
            gradient = np.random.default_rng([seed, comm.rank, step]).standard_normal(300_000).astype(np.float32)
            mean = reducer.reduce({"w": gradient})["w"]
            assert len(set(MPI.Intracomm.allgather(comm, mean.tobytes()))) == 1
    finally:
        _cpu.force_threads(0)


@pytest.mark.parametrize("scheme", ["powersgd:rank=2", "topk:density=0.1", "qsgd", "sketchsgd:columns=64"])
def test_instruction_sets_may_differ(world, comm, seed, scheme):
    """MPICOMP_ISA, and nodes of several kinds: every rank gets the same bits."""
    best = _cpu.isa()
    _cpu.force_isa(best if world.rank == 0 else "baseline")
    try:
        reducer = mpicomp.Reducer(comm, scheme)
        for step in range(3):
            rng = np.random.default_rng([seed, comm.rank, step])
            mean = reducer.reduce({"w": rng.standard_normal((40, 50)).astype(np.float32),
                                   "b": rng.standard_normal(7).astype(np.float32)})  # fmt: skip
            assert len(set(MPI.Intracomm.allgather(comm, tuple(one.tobytes() for one in mean.values())))) == 1
    finally:
        _cpu.force_isa("")

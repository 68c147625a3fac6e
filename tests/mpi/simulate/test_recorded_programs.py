"""The simulation records the messages that real ranks send; the probe, the checks and the adviser's own runs."""

from functools import partial

import numpy as np
import pytest

from mpicomp import Comm, Reducer
from mpicomp.allreduce import ring, segments
from mpicomp.bench import check, kernels, probe
from mpicomp.cli.machine import SCHEMES, SHORT, this_machine
from mpicomp.schemes import Scheme
from mpicomp.schemes.exchanges import balanced
from mpicomp.schemes.wire import index_lists
from mpicomp.simulate import Place, program_of, replay
from mpicomp.simulate import machine as machines
from mpicomp.simulate.ghost_ops import KERNELS
from mpicomp.simulate.models import Model, named
from mpicomp.simulate.steps import kinds

MODEL = Model("two", (("matrix", (60, 50), 0.0), ("vector", (1077,), 0.0)))


def place(comm):
    """These ranks, which share one node."""
    return Place(0, comm.size, comm.size)


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "direct"])
def test_recorded_all_reduces_send_what_real_ones_do(comm, name):
    for n in (1, 1000, 700_001):
        before = comm.traffic
        comm.allreduce_in_place(np.ones(n, np.float32), name)
        used, program = comm.traffic - before, program_of(name, named(str(n)), place(comm))
        assert (used.bytes_sent, used.messages) == (program.bytes_sent[comm.rank], program.messages[comm.rank])


def test_what_crosses_shared_memory_is_counted_apart(comm):
    """A dense step's statistics, the communicator's count and the simulation's prediction agree."""
    if comm.size == 1:
        pytest.skip("one rank shares nothing")
    n = 700_001
    program = program_of("node_shared", named(str(n)), place(comm))
    reducer, x = Reducer(comm, "dense", algorithm="node_shared"), np.ones(n, np.float32)
    reducer.reduce(x)
    before = comm.traffic
    comm.Allreduce(x, np.empty_like(x), algorithm="node_shared")
    used = comm.traffic - before
    assert used.bytes_shared == reducer.stats.bytes_shared >= x.nbytes
    assert used.bytes_shared == program.bytes_shared[comm.rank]
    assert program.bytes_shared.sum() == (comm.size + 1) * x.nbytes
    assert used.bytes_sent == program.bytes_sent[comm.rank] == 0
    reducer = Reducer(comm, "dense", algorithm="ring")
    reducer.reduce(x)
    assert reducer.stats.bytes_shared == 0 and reducer.stats.bytes_sent > 0


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "direct"])
def test_recorded_all_reduces_are_cut_as_real_ones_on_a_slow_network(world, name, monkeypatch):
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    monkeypatch.setattr(segments, "bandwidth", lambda link, barrier: 1.0)  # bytes per second
    comm, n = Comm(world), 1_000_001
    before = comm.traffic
    comm.allreduce_in_place(np.ones(n, np.float32), name)
    used, program = comm.traffic - before, program_of(name, named(str(n)), Place(0, comm.size, 1, 1.0))
    assert (used.bytes_sent, used.messages) == (program.bytes_sent[comm.rank], program.messages[comm.rank])
    fast = program_of(name, named(str(n)), Place(0, comm.size, 1))
    assert comm.size == 1 or used.messages > 3 * fast.messages[comm.rank]
    comm.Free()


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(probe, "ROUND_S", 0.005)
    monkeypatch.setattr(probe, "LONG_S", 1e-9)
    monkeypatch.setattr(probe, "KERNEL_ELEMENTS", kernels.CHUNK * kernels.BUCKET)
    monkeypatch.setattr(check, "NATIVE_S", 1e-3)


@pytest.mark.parametrize(("per_node", "slow"), [(1, np.inf), (2, 0.0)])
def test_the_probe_describes_a_machine(world, hasty, monkeypatch, per_node, slow):
    if world.size == 1:
        return
    shifts, shift = [], probe.shift
    monkeypatch.setattr(probe, "shift", lambda *given: shifts.append(given[2:]) or shift(*given))
    monkeypatch.setattr(probe, "SLOW", slow)
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", str(per_node))
    comm = Comm(world)
    measure = probe.kernels
    monkeypatch.setattr(probe, "kernels", lambda comm, say: measure(comm, say, kernels.CHUNK * kernels.BUCKET))
    document = probe.machine(comm)
    machine = machines.load(document, "measured")
    assert set(machine.kernels) <= set(KERNELS) and len(machine.kernels) > 30
    assert min(machine.kernels.values()) > 0 < machine.within.bandwidth
    assert machine.ranks_per_node == per_node == comm.layout[0]
    assert len(set(map(repr, comm.allgather(document)))) == 1
    between = slow and comm.layout[1] > 1  # cut as dense schedules cut messages on a slow network
    assert set(shifts) == {(ring.SEGMENT_BYTES, ring.WINDOW)} | ({segments.on_network(True, ())} if between else set())
    comm.Free()


def test_checks_time_what_they_are_asked_to(comm, hasty):
    seconds, note = check.native(comm, 10**7)
    assert seconds > 0 and ("taken to grow" in note or comm.size == 1)  # alone nothing is sent: any length is short
    names = ["ring", "scalecom", "signsgd"]
    taken = check.steps(comm, names, MODEL.layers)
    assert list(taken) == names and all(value > 0 for value in taken.values())


def mean_of_checks(comm, monkeypatch, text, counted):
    """Growth of `counted()` in a step, in place of the seconds that a check gives."""
    def each(call, comm):
        before = counted()
        for _ in range(6):
            call()
        return (counted() - before) / 6

    monkeypatch.setattr(check, "typical", each)
    return check.steps(comm, [text], MODEL.layers, kinds)[text]


@pytest.mark.parametrize("text", ["oktopk:k=300,period=8", "oktopk:k=300,period=8,beta=0.5", "oktopk:k=90,period=1"])
def test_checks_estimate_thresholds_as_often_as_is_predicted(comm, monkeypatch, text):
    """Once a period, however much of the same gradient would wait in the memory by then."""
    estimated = []
    for owner, name in ((index_lists, "choose"), (balanced, "_estimate")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, real=real: estimated.append(real) or real(*given))
    once = 2 / Scheme.parse(text).options["period"]  # here and by all
    assert mean_of_checks(comm, monkeypatch, text, lambda: len(estimated)) == pytest.approx(once)


@pytest.mark.parametrize("text", ["localsgd:period=5", "error-reset:k=100,period=3", "scalecom:chunk=8"])
def test_checks_mean_over_the_kinds_of_steps_that_are_predicted(comm, monkeypatch, text):
    """Values are added by a ring: of what MPI's own all-reduce sends, `traffic` and the simulation have two notions."""
    monkeypatch.setattr(check, "Reducer", partial(Reducer, algorithm="ring"))
    program, agreement = program_of(text, MODEL, place(comm), "ring"), 16 * (comm.size - 1).bit_length()
    predicted = sum(one.share * (one.bytes_sent - agreement * bool(one.messages[0])).sum()
                    for one in (program, *program.mixed))
    taken = mean_of_checks(comm, monkeypatch, text, lambda: comm.allreduce(comm.traffic.bytes_sent))
    assert taken == pytest.approx(predicted, rel=1e-3)  # MPI's own are counted in whole bytes


def test_the_machine_explains_short_steps_of_few_and_many_calls(world, hasty, monkeypatch):
    if world.size == 1:
        return
    comm = Comm(world)
    programs = {text: program_of(text, named(str(SHORT)), Place(0, comm.size, comm.size)) for text in SCHEMES}
    wire = machines.Wire(0, 1e15)
    only_calls = machines.Machine(wire, wire, comm.size, {"copy": 0.0, "call": 1.0})
    # So long that latencies, which are measured, and on a busy machine are milliseconds, do not count.
    seconds = {text: 5e3 + 100 * replay(program, only_calls).finish.max() for text, program in programs.items()}
    measure = probe.kernels
    monkeypatch.setattr(probe, "kernels", lambda comm, say: measure(comm, say, kernels.CHUNK * kernels.BUCKET))
    monkeypatch.setattr(check, "steps", lambda comm, whats, layers: {text: seconds[text] for text in whats})
    machine = this_machine(comm, lambda *_: None, "measured")
    assert machine.kernels["call"] == pytest.approx(100, rel=0.02)
    assert max(seconds.values()) > min(seconds.values()) + 500
    for text, program in programs.items():
        assert replay(program, machine).finish.max() == pytest.approx(seconds[text], rel=0.01)
    comm.Free()

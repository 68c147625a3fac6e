"""Recorded steps, bytes and additions of the real schedules are those of the cost formulas."""

import random

import costs
import numpy as np
import pytest

from mpicomp.allreduce import ring, segments
from mpicomp.errors import InvalidArgument
from mpicomp.simulate import Machine, Place, Wire, program_of, replay
from mpicomp.simulate import program as programs
from mpicomp.simulate.comm import RecordingComm, Script
from mpicomp.simulate.ghost import Ghost
from mpicomp.simulate.ghost_ops import GhostOps
from mpicomp.simulate.link import RecordingLink
from mpicomp.simulate.models import named
from mpicomp.simulate.tape import Tape

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 33)
SCHEDULES = ("ring", "halving_doubling", "direct")
FAST = 1e30  # bytes per second


def machine(latency=0.0, bandwidth=FAST, ranks_per_node=1, **kernels):
    return Machine(Wire(latency, bandwidth), Wire(latency, bandwidth), ranks_per_node, kernels)


def seconds(program, **given):
    return replay(program, machine(**given)).finish.max()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*SCHEDULES, "node_shared"])
def test_every_rank_sends_what_the_formula_says(name, size):
    n = random.randint(1, 5000)
    per_node = size if name == "node_shared" else 1
    program = program_of(name, named(str(n)), Place(0, size, per_node))
    expected = [costs.allreduce_bytes(name, n, 4, size, rank)[0] for rank in range(size)]
    assert program.bytes_sent.tolist() == expected


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("name", SCHEDULES)
def test_steps_bytes_and_additions_take_the_time_of_the_formula(name, size):
    pof2 = 1 << (size.bit_length() - 1)
    n = size * pof2 * random.randint(1, 100)  # blocks of one length, one segment each
    program, formula = program_of(name, named(str(n)), Place(0, size, 1)), costs.ALLREDUCE[name](4 * n, size)
    assert seconds(program, latency=1.0) == pytest.approx(formula.steps)
    assert seconds(program, bandwidth=1.0) == pytest.approx(formula.nbytes)
    assert seconds(program, add=0.25, copy=0.0) == pytest.approx(formula.reduced / 16)
    together = seconds(program, latency=3.0, bandwidth=0.5, add=0.25 / 4)
    assert together <= formula.time(3.0, 2.0, 1 / 64) * (1 + 1e-9)
    if name != "direct":  # which adds one segment while the others are still coming
        assert together == pytest.approx(formula.time(3.0, 2.0, 1 / 64))


@pytest.mark.parametrize("per_tape", [True, False])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_within_a_node_the_receiver_copies_and_adds_one_after_the_other(size, per_tape, monkeypatch):
    """Through a link the cut ring's bytes and additions overlap; in memory each rank's core does both."""
    monkeypatch.setattr(programs, "FEW", 64 if per_tape else 1)
    n = 40 * size * (ring.SEGMENT_BYTES // 4)
    pace = {"bandwidth": 1.0, "add": 4.0}
    moved = 2 * (size - 1) * 40 * ring.SEGMENT_BYTES
    node = replay(program_of("ring", named(str(n)), Place(0, size, size)), machine(ranks_per_node=size, **pace))
    np.testing.assert_allclose(node.finish, 1.5 * moved)
    np.testing.assert_allclose(node.local, 1.5 * moved)
    assert seconds(program_of("ring", named(str(n)), Place(0, size, 1)), **pace) < 1.1 * moved


@pytest.mark.parametrize("size", SIZES[1:])
def test_collectives_of_the_exchanges_take_the_time_of_their_formulas(size):
    def run(what, nbytes):
        script = Script()
        what(RecordingComm(script, 0, size), Ghost(GhostOps(script.tape.work, nbytes), nbytes, np.uint8))
        return programs.record(lambda place, tape: script.play(RecordingLink(tape, place, GhostOps(tape.work, nbytes))),
                               Place(0, size, 1))

    segment = 32 << 10
    root = random.randrange(size)
    tree = run(lambda comm, x: comm.broadcast(x, root), 1000)
    formula = costs.broadcast_binomial(1000, size)
    assert seconds(tree, bandwidth=1.0) == pytest.approx(formula.nbytes)
    assert seconds(tree, latency=1.0) == max(bin(rank).count("1") for rank in range(size)) <= formula.steps
    assert tree.bytes_sent.sum() == 1000 * (size - 1)
    chain = run(lambda comm, x: comm.broadcast(x, root), 7 * segment)
    assert seconds(chain, bandwidth=1.0) == pytest.approx(costs.broadcast_chain(7 * segment, size, 7).nbytes)
    each = 1 << 16
    ring = run(lambda comm, x: comm.gather_to_all(x, [each] * size), each)
    formula = costs.gather_ring(each, size)
    assert seconds(ring, latency=1.0) == pytest.approx(formula.steps)
    assert seconds(ring, bandwidth=1.0) == pytest.approx(formula.nbytes)


@pytest.mark.parametrize("what", ["ring", "halving_doubling", "topk", "topk-global:codec=sign"])
@pytest.mark.parametrize(("size", "per_node"), [(8, 1), (16, 4), (12, 4), (9, 3), (10, 4)])
def test_one_tape_for_all_ranks_gives_the_times_of_all_tapes(what, size, per_node, monkeypatch):
    if size & (size - 1) and what != "ring":
        return  # ranks of halving-doubling, which the agreement of a scheme is, too, are alike for powers of two only
    n, started = size * 30_000, np.random.default_rng(size).random(size)
    place, pace = Place(0, size, per_node), machine(1e-3, 1e6, per_node, copy=1e-7, add=2e-7)
    each = program_of(what, named(str(n)), place)
    monkeypatch.setattr(programs, "FEW", 2)
    uniform = program_of(what, named(str(n)), place)
    assert uniform.uniform and not each.uniform
    for start in (None, started):
        wanted, got = replay(each, pace, start), replay(uniform, pace, start)
        if per_node == 1 or start is None:
            np.testing.assert_allclose(got.finish, wanted.finish)
        else:  # which of a node's messages goes first may differ
            assert got.finish.max() == pytest.approx(wanted.finish.max(), rel=0.05)
        np.testing.assert_allclose(got.local, wanted.local)


@pytest.mark.parametrize("start", [[0.0] * 8, np.zeros(1), np.full(16, np.nan)])
def test_starts_are_a_time_for_each_rank(start):
    for schedule in ("ring", "native"):
        with pytest.raises(InvalidArgument, match="start must be 16 finite numbers, a time for each rank"):
            replay(program_of(schedule, named("1000"), Place(0, 16, 1)), machine(1e-3, 1e6, 1), start)


def test_ranks_that_are_not_alike_are_never_taken_for_it():
    place = Place(0, 128, 1)
    assert program_of("halving_doubling", named("12800"), place).uniform
    assert program_of("halving_doubling", named("12800"), Place(0, 128, 4)).uniform
    assert program_of("halving_doubling", named("12800"), Place(0, 128, 192)).uniform
    assert not program_of("halving_doubling", named("12800"), Place(0, 128, 3)).uniform  # some partners are on the node
    assert not program_of("halving_doubling", named("12700"), Place(0, 127, 1)).uniform
    assert not programs.of_scheme("scalecom:chunk=8", named("12800"), place).uniform
    assert program_of("ring", named("12800"), place).uniform
    padded = program_of("ring", named("12790"), place)
    assert padded.uniform and "12800 elements instead of 12790" in padded.notes[0]
    assert program_of("topk", named("128000"), place).uniform
    assert not program_of("ring", named("129"), place).uniform


def test_what_ranks_do_between_messages_is_recorded_once_only_where_it_is_the_same(monkeypatch):
    model, place = named("112000"), Place(0, 16, 4)
    each = programs.of_scheme("scalecom", model, place)
    monkeypatch.setattr(programs, "FEW", 2)
    shared = programs.of_scheme("scalecom", model, place)
    assert not shared.uniform and shared.bytes_sent.tolist() == each.bytes_sent.tolist()
    assert all(np.array_equal(a, b) for a, b in zip(each.tables, shared.tables, strict=True))


def test_what_cannot_be_recorded_is_refused(monkeypatch):
    monkeypatch.setattr(programs, "MOST_EVENTS", 1000)
    with pytest.raises(InvalidArgument, match=r"million events of 128 ranks .* take fewer ranks"):
        program_of("scalecom", named("12800"), Place(0, 128, 1))


def test_a_leader_sends_its_selection_and_everyone_the_values():
    n, chunk, size = 112_000, 112, 4
    program = programs.of_scheme(f"scalecom:chunk={chunk}", named(str(n)), Place(0, size, 1), "ring")
    agreement = 16 * (size - 1).bit_length()
    values = np.array([costs.allreduce_bytes("ring", n // chunk, 4, size, rank)[0] for rank in range(size)])
    assert (program.bytes_sent - agreement - values).sum() == (size - 1) * n // chunk  # one byte a position


@pytest.mark.parametrize("per_tape", [True, False])
@pytest.mark.parametrize("algorithm", ["ring", "native"])
def test_waiting_is_filled_with_the_update(algorithm, per_tape, monkeypatch):
    """The memory's pass costs time only where the exchange leaves none, or waits inside MPI's own call."""
    model, place = named("1000000"), Place(0, 4, 1)
    monkeypatch.setattr(programs, "FEW", 64 if per_tape else 2)
    program = programs.of_scheme("randomk:memory=residual", model, place, algorithm)
    assert program.uniform != per_tape
    slow, quick = {"latency": 1.0}, {"latency": 1e-9}
    for pace, hidden in ((slow, algorithm != "native"), (quick, False)):
        without, with_update = (seconds(program, **pace, copy=0.0, masked_update=rate) for rate in (0.0, 1e-6))
        assert (with_update - without < 1e-3) == hidden


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_slow_network_cuts_long_messages_on_the_ranks_that_use_it_only(per_node):
    """Ranks of a node that send at once each have a share of its link, and measure that."""
    size, n, share = 4 * per_node, 4 * per_node * 100_000, 1.5  # of what is slow
    rate = share * segments.SLOW
    cut, whole = (program_of("ring", named(str(n)), Machine(Wire(0, bandwidth), Wire(0, 1), per_node).place(size))
                  for bandwidth in (rate / 2, rate))
    assert cut.bytes_sent.tolist() == whole.bytes_sent.tolist()
    assert (cut.messages == 7 * whole.messages).all()  # of 400 kB in 60
    native = [program_of("native", named(str(n)), Place(0, 4, 1, bandwidth)) for bandwidth in (1.0, rate)]
    assert native[0].messages.tolist() == native[1].messages.tolist()  # MPI goes its own ways
    tape = Tape()
    link = RecordingLink(tape, Machine(Wire(0, rate), Wire(0, 1), per_node).place(size), GhostOps(tape.work, n))
    assert (link.slow, link.across.slow) == (False, per_node == 2)
    for short in (program_of("ring", named("1000"), Place(0, size, per_node, bandwidth)) for bandwidth in (1.0, rate)):
        assert short.messages[0] == whole.messages[0]


@pytest.mark.parametrize("name", ["auto", "node_shared"])
@pytest.mark.parametrize("size", [3, 5])
def test_long_vectors_on_nodes_of_unequal_numbers_of_ranks(name, size):
    """A rank without a slice sends nothing; the others send a ring's messages between the nodes."""
    n, per_node = 25_000_000, 2  # more than one part
    program = program_of(name, named(str(n)), Place(0, size, per_node))
    nodes = -(-size // per_node)
    assert program.bytes_sent[0] == pytest.approx(2 * (nodes - 1) / nodes * 4 * n, rel=1e-6)
    assert not program.bytes_sent[1::2].any()
    took = seconds(program, bandwidth=1e9, ranks_per_node=per_node)
    assert took == pytest.approx(program.bytes_sent[0] / 1e9, rel=1e-6)


def test_long_messages_wait_for_a_handshake():
    program = program_of("halving_doubling", named("65536"), Place(0, 2, 1))  # 128 KiB each way, twice
    short = program_of("halving_doubling", named("1024"), Place(0, 2, 1))
    wire = Wire(1.0, FAST, handshake=10.0)
    on = Machine(wire, wire)
    assert replay(program, on).finish.max() == pytest.approx(22.0)
    assert replay(short, on).finish.max() == pytest.approx(2.0)


@pytest.mark.parametrize("per_tape", [True, False])
def test_bytes_cost_the_ranks_own_time_in_waits_before_the_update(per_tape, monkeypatch):
    monkeypatch.setattr(programs, "FEW", 64 if per_tape else 1)
    program = program_of("ring", named("1024"), Place(0, 4, 1))
    sent = 1024 * 4 * 6 / 4
    free, hidden, bound = (replay(program, Machine(Wire(0.0, 1.0, processor=cost), Wire(0.0, 1.0)))
                           for cost in (0.0, 0.5, 2.0))
    assert free.finish.max() == pytest.approx(sent)
    assert hidden.finish.max() == pytest.approx(sent + 1024 / 4)  # half the cost of the last message comes after it
    np.testing.assert_allclose(hidden.local, sent / 2)
    assert bound.finish.max() == pytest.approx(2 * sent)

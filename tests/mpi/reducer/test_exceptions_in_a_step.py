"""An exception anywhere in a step: nothing stays open, and from the state before it the step can be done again."""

from __future__ import annotations

import numpy as np
import pytest

import mpicomp
from mpicomp.errors import InjectedFault, NonFiniteGradient
from mpicomp.schemes import COMPOSITIONS
from mpicomp.schemes.exchanges import EXCHANGES

SCHEMES = {
    "dense": "half", "leader": "scalecom:chunk=7", "gather": "topk:density=0.1", "merge": "gtopk:density=0.1",
    "balanced": "oktopk:density=0.1", "agreed": "arctopk:density=0.1,row=8,width=2", "low-rank": "powersgd:rank=2",
    "pieces": "onebit:column=16", "sketch": "sketchsgd:density=0.01,columns=64",
    "fastest": "auto:candidates=dense+scalecom/chunk=7,error=0.001",
}  # fmt: skip
SHAPES = ((12, 9), (31,), (2048,))
FAR = 10**9


def test_every_exchange_is_here():
    assert {name: COMPOSITIONS[text.partition(":")[0]].exchange for name, text in SCHEMES.items()} == {
        name: name for name in EXCHANGES
    }


def gradients(seed, rank, step):
    rng = np.random.default_rng([seed, rank, step])
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def faulty_reducer(world, monkeypatch, text):
    """A reducer on a communicator of its own, and the fault that is to strike on every rank."""
    monkeypatch.setenv("MPICOMP_FAULT", f"raise:rank={world.rank},call={FAR}")
    comm = mpicomp.Comm(world)
    fault = comm.log._fault
    monkeypatch.setattr(fault, "call", FAR)  # it counts on from test to test
    return mpicomp.Reducer(comm, text), fault


def common_calls(world, fault, do):
    """Number of collectives that all ranks begin in the same order in ``do``; later some ranks skip messages."""
    names, begun = [], fault.begun
    fault.begun = lambda name: (names.append(name), begun(name))
    try:
        do()
    finally:
        del fault.begun
    everyone = world.allgather(names)
    alike = [len(set(one)) == 1 for one in zip(*everyone, strict=False)]
    return alike.index(False) if False in alike else len(alike)


@pytest.mark.parametrize("exchange", SCHEMES)
def test_the_step_can_be_done_again(world, comm, seed, monkeypatch, exchange):
    expected = mpicomp.Reducer(comm, SCHEMES[exchange])
    reducer, fault = faulty_reducer(world, monkeypatch, SCHEMES[exchange])
    for step in range(2):
        for one in (expected, reducer):
            one.reduce(gradients(seed, comm.rank, step))
    want = expected.reduce(gradients(seed, comm.rank, 2))
    state = reducer.state_dict()
    # Of this very step: how many collectives there are may depend on the data.
    calls = common_calls(world, fault, lambda: reducer.reduce(gradients(seed, comm.rank, 2)))
    assert calls >= 1
    reducer.load_state_dict(state)
    for call in range(1, calls + 1):
        fault.call = fault.calls + call
        with pytest.raises(InjectedFault, match=f"raise on rank {comm.rank} in call {fault.call}"):
            reducer.reduce(gradients(seed, comm.rank, 2))
        fault.call = FAR
        assert not reducer.comm.log.open  # no call seems to go on, which the watchdog would report
        assert reducer.step == 2
        reducer.load_state_dict(state)
    got = reducer.reduce(gradients(seed, comm.rank, 2))
    for one, other in zip(got, want, strict=True):
        assert one.tobytes() == other.tobytes()
    for name, value in expected.state_dict().items():
        if (exchange, name.partition("/")[0]) != ("fastest", "exchange"):  # seconds
            np.testing.assert_array_equal(reducer.state_dict()[name], value, name)
    reducer.comm.Free()


def test_an_error_of_one_rank_where_a_step_is_tried_again_is_one_of_all(comm, seed, monkeypatch):
    reducer, last = mpicomp.Reducer(comm, "topk:k=9"), comm.size - 1
    reducer.reduce(gradients(seed, comm.rank, 0))
    pipeline = reducer._pipeline

    def fail(*given):
        raise MemoryError("no room")

    def overflow(prepared, ctx):
        if comm.rank == last:
            monkeypatch.setattr(pipeline, "prepare", fail)
        raise NonFiniteGradient("codes overflowed")

    monkeypatch.setattr(pipeline, "run", overflow)
    monkeypatch.setattr(pipeline.exchange, "instead", lambda ctx: ctx)
    with pytest.raises(MemoryError, match=f"rank {last}: no room"):
        reducer.reduce(gradients(seed, comm.rank, 1))

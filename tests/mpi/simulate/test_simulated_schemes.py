"""Bytes and messages that real ranks count in steady steps are the simulation's: exactly where data has no say."""

import numpy as np
import pytest

from mpicomp import Comm, Reducer, schemes
from mpicomp.schemes import Scheme
from mpicomp.simulate import Place, program_of
from mpicomp.simulate.models import Model

MODEL = Model("three", (("matrix", (600, 50), 0.0), ("norm", (77,), 0.0), ("vector", (10_000,), 0.0)))
FIFTH = "lam=1.28155,density=0.2,memory=none,switch=never"  # so many of independent normal deviates pass
# Of these, every message is counted; of others, not those of MPI's own collectives.
MESSAGES = ("dense", "half", "int8", "int4", "fp8", "scalecom:chunk=16",
            "scalecom:layers=per-tensor,values=float16", "randomk", "gtopk", "gtopk:layers=per-tensor,values=float16",
            "arctopk", "powersgd:rank=2", "sketchsgd", "error-reset:period=2",
            "randomk:dense=norm+last", "randomk:memory=shifted")  # fmt: skip
EXACT = (*MESSAGES, "topk:indices=plain", "topk-global:density=0.3", "qsgd", "terngrad", "natural", "signsgd", "onebit",
         "onebit:exchange=gather", "stochastic-rounding", "localsgd:period=3", "gtopk:memory=update")  # fmt: skip
NEARLY = {  # how far off over all ranks
    "topk-global": 0.03, "scaled-integer": 1e-3, "induced": 0.01, "dgc:density=0.2": 0.3,
    f"threshold:{FIFTH}": 0.05, f"strom:{FIFTH}": 0.05, "gaussiank:density=0.2,memory=none": 0.05,
    "sidco:density=0.2": 0.2, "oktopk:density=0.2,memory=none,period=2": 0.05, "oktopk:density=0.1,period=1": 0.02,
}  # fmt: skip
UNLIKE = {"adacomp", "accordion"}  # in their first steps, which last longer than a test
BY_CLOCK = {"auto"}


def test_every_scheme_is_compared_or_known_to_settle_late():
    assert {text.partition(":")[0] for text in (*EXACT, *NEARLY)} | UNLIKE | BY_CLOCK == set(schemes.names())


def counted(comm, text, periods=1, model=MODEL):
    """This rank's mean bytes, messages and shared bytes of some periods of steps, the first of which rank 0 leads."""
    reducer, generator = Reducer(comm, text, algorithm="ring"), np.random.default_rng()
    period = Scheme.parse(text).options.get("period", 1)
    for number in range(period * (comm.size + periods)):
        if number == period * comm.size:
            before = comm.traffic
        reducer.reduce({name: generator.standard_normal(shape, np.float32) for name, shape, _ in model.layers})
    used = comm.traffic - before
    return tuple(amount / (period * periods) for amount in (used.bytes_sent, used.messages, used.bytes_shared))


def rounds(size):
    """Messages of a rank in an agreement."""
    return (size - 1).bit_length()


def recorded(comm, text, per_node=None, model=MODEL):
    """The same of the simulation, without the agreements of each step that sends, which MPI's counters leave out."""
    place, agreement = Place(0, comm.size, per_node or comm.size), rounds(comm.size)
    if text.startswith(("half", "int8", "int4", "fp8")):  # also on the sum; with slices the whole node on it
        agreement += rounds(comm.size) if per_node is None else rounds(comm.size) + rounds(comm.size // per_node)
    program = program_of(text, model, place, "ring")
    kinds = [one for one in (program, *program.mixed) if one.bytes_sent.any()]
    return (sum(one.share * (one.bytes_sent[comm.rank] - 16 * agreement) for one in kinds),
            sum(one.share * (one.messages[comm.rank] - agreement) for one in kinds),
            sum(one.share * one.bytes_shared[comm.rank] for one in (program, *program.mixed)))


@pytest.mark.parametrize("text", EXACT)
def test_steps_send_what_the_simulation_says(comm, text):
    real, simulated = counted(comm, text), recorded(comm, text)
    assert real[0] == pytest.approx(simulated[0], rel=1e-12)
    assert text not in MESSAGES or real[1] == pytest.approx(simulated[1], rel=1e-12)


@pytest.mark.parametrize("text", NEARLY)
def test_steps_send_about_what_the_simulation_says_where_data_decides(comm, text):
    """Four periods together are at least seven standard deviations within the limits."""
    real, simulated = comm.allreduce(counted(comm, text, 4)[0]), comm.allreduce(recorded(comm, text)[0])
    assert real == pytest.approx(simulated, rel=NEARLY[text])


@pytest.mark.parametrize("text", ["int8", "fp8", "natural", "onebit", "topk:indices=plain", "scalecom", "half"])
def test_steps_of_fewer_elements_than_ranks_send_what_the_simulation_says(comm, text):
    model = Model("vector", (("vector", (2,), 0.0),))
    assert counted(comm, text, model=model)[0] == pytest.approx(recorded(comm, text, model=model)[0], rel=1e-12)


@pytest.mark.parametrize("text", ["dense", "half", "scalecom:chunk=16", "topk:indices=plain", "powersgd:rank=2",
                                  "qsgd", "onebit", "localsgd:period=3"])  # fmt: skip
@pytest.mark.parametrize("n", [40_077, 17, 7])
def test_slices_of_nodes_send_what_the_simulation_says(world, monkeypatch, text, n):
    """Slices are whole cache lines, so unlike ones; of 7 elements, the second is empty."""
    if world.size % 2 or world.size == 2 or (text, n) == ("half", 7):  # whose second slices agree on no sum
        return
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    comm = Comm(world)
    model = MODEL if n == MODEL.n else Model("vector", (("vector", (n,), 0.0),))
    text += f"{',' if ':' in text else ':'}nodes=yes"
    real, simulated = counted(comm, text, model=model), recorded(comm, text, 2, model)
    assert real[0] == pytest.approx(simulated[0], rel=1e-12)
    # Nodes' lists have as many indices in common as chance gives them.
    assert real[2] == pytest.approx(simulated[2], rel=0.01 if text.startswith("topk") else 1e-12)
    assert text.startswith(("topk", "qsgd", "onebit")) or real[1] == pytest.approx(simulated[1], rel=1e-12)
    comm.Free()

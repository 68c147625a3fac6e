"""A recorded run, explained: the analysis finds the slowed rank and holds the measures, and explains a hanging run
while it hangs. Rank 0 forms the verdicts and shares them."""

import time

import numpy as np
import pytest

import mpicomp
from mpicomp import trace
from mpicomp.cli.console import plain
from mpicomp.trace import Recorder, messages

STEPS, SLOW_S = 12, 0.05


def train(comm, recorder, slow):
    reducer = mpicomp.Reducer(comm, "topk:density=0.05", measures=3, trace=recorder)
    rng = np.random.default_rng(comm.rank)
    for step in range(STEPS):
        with recorder.step(step):
            with recorder.region("compute"):
                gradient = rng.standard_normal(20_000).astype(np.float32)
                time.sleep(SLOW_S if comm.rank == slow else 0)
            reducer.reduce(gradient)


def answers(path):
    late, codec, measures = trace.stragglers(path), trace.codec(path), trace.measures(path)
    shares, efficiency = trace.breakdown(path)["classes"]["share"], trace.efficiency(path)
    return plain({
        "worst": late["ranks"]["rank"][np.argmax(late["ranks"]["lateness"])] if late["kind"] else -1,
        "most": np.max(late["ranks"]["lateness"]) if late["kind"] else 0,
        "shares": shares.sum(),
        "steps": codec["schemes"]["steps"],
        "density": codec["schemes"]["density"],
        "measured": {name: np.count_nonzero(~np.isnan(column)) for name, column in measures["steps"].items()},
        "efficiency": efficiency["parallel_efficiency"],
        "finished": trace.hang(path)["finished"],
        "steps_of": [len(trace.heatmap(path, "communication")["step"]), trace.diff(path, path)["steps_a"]],
    })  # fmt: skip


def test_a_real_run_is_explained(comm, folder):
    slow = comm.size - 1
    with Recorder(comm, folder / "run.h5") as recorder:
        train(comm, recorder, slow)
    got = messages.broadcast_json(comm, answers(folder / "run.h5") if comm.rank == 0 else None)
    assert got["shares"] == pytest.approx(1) and got["finished"] and got["steps"] == [STEPS]
    assert got["density"] == [pytest.approx(0.05, rel=0.05)] and got["measured"]["memory_norm"] == STEPS // 3
    assert {"density", "total_error", "memory_cosine", "hamming"} <= got["measured"].keys()
    assert 0 < got["efficiency"] <= 1 and got["steps_of"] == [STEPS, STEPS - 1]
    if comm.size > 2:  # of two ranks, one is as late as the other is early
        assert got["worst"] == slow and got["most"] > SLOW_S / 2 * 1e9


def test_a_reducer_is_in_the_step_around_it(comm, folder):
    with Recorder(comm, folder / "run.h5") as recorder:
        reducer = mpicomp.Reducer(comm, "topk:k=1", measures=1, trace=recorder)
        reducer.reduce(np.ones(4, np.float32))  # step 0 by its own count
        for step in (1, 7):
            with recorder.step(step):
                reducer.reduce(np.ones(4, np.float32))
                reducer.reduce(np.ones(4, np.float32))
    if comm.rank == 0:
        with trace.open_trace(folder / "run.h5") as file:
            assert np.unique(file.events("step")["step"]).tolist() == [0, 1, 7]
            assert np.unique(file.metrics()["density"]["step"]).tolist() == [0, 1, 7]
            table = file.table("steps")
            begin, end = (table[name].reshape(comm.size, 3) for name in ("t_start", "t_end"))
        assert (begin[:, 1:] > end[:, :-1]).all()
        schemes = trace.codec(folder / "run.h5")["schemes"]
        assert schemes["steps"] == [5] and schemes["n_ranks"] == [comm.size]


@pytest.mark.long("ranks wait for five seconds")
def test_a_run_that_stands_still_is_explained_while_it_does(comm, folder):
    found = None
    with Recorder(comm, folder / "run.h5") as recorder:
        comm.recorder, last = recorder, comm.size - 1
        with recorder.step(0):
            comm.Barrier()
        with recorder.step(1):
            if comm.rank == last:
                with recorder.region("compute"):
                    time.sleep(4.5)  # the others have been waiting for longer than two intervals of the recorder
                    found = plain(trace.hang(recorder.spool))
            comm.Allreduce(np.ones(4), np.empty(4))  # the first calls begin with an agreement
        comm.recorder = None
    everyone = messages.gather_json(comm, found)
    got = messages.broadcast_json(comm, everyone[last] if comm.rank == 0 else None)
    assert got["last_step"] == 0 and not got["finished"]
    assert got["ranks"]["in"] == ["agree"] * last + ["compute"] and set(got["ranks"]["in_step"]) == {1}
    if comm.size > 1:
        assert got["suspects"] == [last] and "wait in agree" in got["why"]

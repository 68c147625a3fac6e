"""Recording on every number of ranks. Verdicts are formed on rank 0 and shared, so that no rank is left waiting."""

import os

import numpy as np
import pytest
from mpi4py import MPI

from mpicomp import AVG, Reducer
from mpicomp.errors import NonFiniteGradient, RefusedOverwrite
from mpicomp.trace import Recorder, clock, gather_journals, messages, metrics, open_trace, summary, validate

STEPS = 20


def same(comm, value):
    """The value of rank 0, on every rank: an assertion on it fails everywhere or nowhere."""
    return messages.broadcast_json(comm, value)


def on_all_ranks(comm, error):
    """Class and text of an error, of every rank."""
    return same(comm, messages.gather_json(comm, [type(error).__name__, str(error)]))


def train(comm, recorder):
    x = np.ones(1000, np.float32)
    for step in range(STEPS):
        with recorder.step(step):
            with recorder.region("compute"):
                x *= 1
            start = recorder.now()
            comm.Allreduce(MPI.IN_PLACE, x)
            recorder.event("exchange", start, nbytes_dense=x.nbytes, nbytes_sent=100 * (comm.rank + 1))
        recorder.metric("rank", step, comm.rank)


def check_file(comm, path):
    faults, counts, values = None, None, None
    if comm.rank == 0:
        faults = validate(path)
        with open_trace(path) as trace:
            events = trace.events("rank", "kind", "nbytes_sent", "seq")
            rows = events["kind"] == trace.code("kind", "exchange")
            counts = [events["nbytes_sent"][rows & (events["rank"] == rank)].tolist() for rank in range(comm.size)]
            values = trace.metrics()["rank"]["value"].tolist()
            if not trace.attributes["complete"]:
                faults.append("not complete")
    assert same(comm, faults) == []
    assert same(comm, counts) == [[100 * (rank + 1)] * STEPS for rank in range(comm.size)]
    assert same(comm, values) == [rank for rank in range(comm.size) for _ in range(STEPS)]


def test_one_file_of_all_ranks(comm, folder):
    with Recorder(comm, folder / "run.h5") as recorder:
        train(comm, recorder)
    check_file(comm, folder / "run.h5")
    assert same(comm, os.listdir(folder)) == ["run.h5"]


def test_a_rank_is_in_nothing_after_an_error(comm, folder, monkeypatch):
    """`trace hang` would name the phase of the refused step for whatever the rank waits in later."""
    with Recorder(comm, folder / "run.h5") as recorder:
        with pytest.raises(NonFiniteGradient):
            Reducer(comm, "topk:density=0.5", trace=recorder).reduce(np.full(10, np.nan))
        assert recorder.doing is None
        comm.recorder = recorder
        monkeypatch.setattr(comm._engine.reduction, "run", lambda *_: 1 / 0)
        try:
            with pytest.raises(ZeroDivisionError):
                comm.Allreduce(MPI.IN_PLACE, np.ones(10), algorithm="ring")
        finally:
            comm.recorder = None
        assert recorder.doing is None


def test_collectives_with_an_error_bound(comm, folder):
    """Bound, path and reason in the event; ratio and largest error as metrics of the step."""
    x = np.sin(np.arange(5000) / 100)
    with Recorder(comm, folder / "run.h5") as recorder:
        comm.recorder = recorder
        try:
            for step in range(3):
                with recorder.step(step):
                    comm.Allreduce(x * (step + 1), x.copy(), AVG, bound=1e-3, relative=True, algorithm="two_hops")
                    comm.Bcast(x, bound=0.5)
        finally:
            comm.recorder = None
    found = None
    if comm.rank == 0:
        rows, kept = summary(folder / "run.h5", ("scheme", "algo")), metrics(folder / "run.h5")
        found = {
            "rows": sorted([row["scheme"], row["algo"], row["count"]] for row in rows if "bound" in row["scheme"]),
            "errors": kept["largest error (bound=0.001 relative)"]["values"],
            "ratios": kept["ratio (bound=0.001 relative)"]["values"] + kept["ratio (bound=0.5)"]["values"],
            "steps": kept["ratio (bound=0.5)"]["steps"],
        }  # fmt: skip
    found = same(comm, found)
    reason = "there is one rank" if comm.size == 1 else "the ranks share memory"
    assert found["rows"] == [["bound=0.001 relative", "two_hops", 3 * comm.size],
                             ["bound=0.5", f"exact, {reason}", 3 * comm.size]]
    assert found["errors"] == pytest.approx([0.001 * (step + 1) * (x.max() - x.min()) for step in range(3)])
    assert min(found["ratios"][:3]) > 3 and found["ratios"][3:] == [1, 1, 1]
    assert found["steps"] == [0, 1, 2]


@pytest.mark.parametrize("piece", [1 << 22, 1000])
def test_journals_on_disks_that_rank_0_cannot_see(comm, folder, monkeypatch, piece):
    monkeypatch.setattr(gather_journals, "is_visible", lambda facts, run_id: False)
    monkeypatch.setattr(messages, "_PIECE", piece)
    with Recorder(comm, folder / "run.h5", spool=folder / f"host{comm.rank}") as recorder:
        train(comm, recorder)
    check_file(comm, folder / "run.h5")
    comm.Barrier()
    assert same(comm, os.listdir(folder)) == ["run.h5"]


def test_an_unreadable_journal_fails_everywhere_and_hangs_nowhere(comm, folder, monkeypatch):
    monkeypatch.setattr(gather_journals, "is_visible", lambda facts, run_id: False)
    recorder = Recorder(comm, folder / "run.h5")
    train(comm, recorder)
    recorder.flush()
    victim = comm.size - 1
    comm.Barrier()
    if comm.rank == victim:
        recorder._buffer.writer.path.unlink()
    with pytest.raises(ValueError if comm.size > 1 else OSError) as caught:
        recorder.close()
    said = on_all_ranks(comm, caught.value)
    assert said == [said[0]] * comm.size


def test_refused_on_one_rank_is_refused_on_all(comm, folder):
    if comm.rank == 0:
        (folder / "run.h5").write_bytes(b"precious")
    comm.Barrier()
    with pytest.raises(RefusedOverwrite) as caught:
        Recorder(comm, folder / "run.h5")
    said = on_all_ranks(comm, caught.value)
    assert said == [said[0]] * comm.size and "run.h5" in said[0][1]
    comm.Barrier()
    assert same(comm, os.listdir(folder)) == ["run.h5"]
    with Recorder(comm, folder / "run.h5", force=True) as recorder:
        train(comm, recorder)
    check_file(comm, folder / "run.h5")


def test_a_journal_that_one_rank_cannot_create(comm, folder):
    last = comm.size - 1
    if comm.rank == 0:
        (folder / "run.h5.spool" / f"rank{last:05d}.mpcj").mkdir(parents=True)
    comm.Barrier()
    with pytest.raises((RefusedOverwrite, OSError)) as caught:
        Recorder(comm, folder / "run.h5")
    said = on_all_ranks(comm, caught.value)
    assert said == [said[0]] * comm.size
    comm.Barrier()
    assert same(comm, sorted(os.listdir(folder / "run.h5.spool"))) == [f"rank{last:05d}.mpcj"]


def test_missing_folder(comm, folder):
    with pytest.raises(FileNotFoundError) as caught:
        Recorder(comm, folder / "nowhere" / "run.h5")
    said = on_all_ranks(comm, caught.value)
    assert said == [said[0]] * comm.size and "nowhere" in said[0][1]


def test_clocks_of_one_kernel_agree_within_the_measured_bound(comm):
    comparison = clock.measure(comm)
    everyone = same(comm, messages.gather_json(comm, comparison))
    identities = same(comm, messages.gather_json(comm, clock.identity()))
    for rank, own in enumerate(everyone):
        if identities[rank] and identities[rank] == identities[0]:
            assert abs(own["offset"]) <= own["rtt"] // 2 + 1


def test_facts_between_ranks(comm):
    assert messages.broadcast_json(comm, {"rank": comm.rank}) == {"rank": 0}
    gathered = messages.gather_json(comm, "r" * comm.rank)
    assert same(comm, gathered) == ["r" * rank for rank in range(comm.size)]

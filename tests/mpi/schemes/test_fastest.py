"""The scheme auto: candidates take turns over one memory, and nothing is lost; what cannot take turns is refused."""

import itertools
import time

import numpy as np
import pytest
from mpi4py import MPI
from refusals import assert_nan_is_refused

import mpicomp
from mpicomp.errors import InvalidArgument, NonFiniteGradient

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="four ranks show it")
N = 600
# Every exchange and codec that may take turns, first those that send the least.
TURNS = ("auto:error=1,candidates=topk-global/density=0.05+randomk/k=20+scalecom/chunk=16+gtopk/k=20+signsgd+"
         "sketchsgd/density=0.05/columns=64+adacomp/bin=20+arctopk/density=0.05/row=8/width=2+"
         "natural/memory=residual/exchange=gather+half/memory=residual+dense,"
         "layers=per-tensor")
ALTERNATE = "auto:error=1,every=5,candidates=scalecom/chunk=16+dense"


@pytest.fixture
def clock(monkeypatch):
    """Seconds of a step by candidate, in place of the clock; `None`: any other."""
    from mpicomp.schemes.exchanges.fastest import Fastest
    from mpicomp.schemes.timing import PhaseTimer

    seconds, running = {None: 0.1}, []
    monkeypatch.setattr(PhaseTimer, "busy_ns", lambda timer: round(1e9 * seconds.get(running[-1], seconds[None])))
    observe = Fastest.observe

    def observed(self, mean, ctx):
        running.append(self._now.text)
        observe(self, mean, ctx)

    monkeypatch.setattr(Fastest, "observe", observed)
    return seconds


def gradient(seed, rank, step, n=N):
    return np.random.default_rng([seed, rank, step]).standard_normal(n).astype(np.float32)


def whole_numbers(seed, rank, step, n=N):
    return np.random.default_rng([seed, rank, step]).integers(-8, 9, n).astype(np.float32)


def total(comm, mine):
    everyone = np.array(mine, np.float64)
    comm.Allreduce(MPI.IN_PLACE, everyone)
    return everyone


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_lost_whichever_candidate_runs(comm, seed, workers):
    """Through a trial of every kind of candidate: all means, and what is kept in the end, make up all gradients."""
    reducer = mpicomp.Reducer(comm, TURNS, workers=workers)
    came_in, sent, ran = np.zeros(N), np.zeros(N), []
    for step in range(60):
        rows = np.stack([gradient(seed, comm.rank * workers + worker, step) for worker in range(workers)])
        sent += reducer.reduce(rows if workers > 1 else rows[0])
        came_in += rows.sum(axis=0)
        ran.append(reducer.stats.chosen)
        state = reducer.state_dict()
        kept = sum(state[f"memory/{worker}/residual"].astype(float) for worker in range(workers))
        np.testing.assert_allclose(workers * comm.size * sent + total(comm, kept), total(comm, came_in),
                                   atol=2e-2 * comm.size * workers)  # half adds in float16
    assert len(set(ran)) == 11 and comm.allgather(ran) == [ran] * comm.size


def test_whole_numbers_are_exact_across_switches_and_dense_sends_what_was_kept(comm, seed, clock):
    """The oracle: error feedback written out, with the candidate that `stats.chosen` reports."""
    reducer = mpicomp.Reducer(comm, ALTERNATE)
    memories = np.zeros((comm.size, N), np.float32)
    seen = []
    for step in range(60):
        clock.update({"dense": 0.02, "scalecom/chunk=16": 0.1} if step % 40 < 20 else
                     {"dense": 0.3, "scalecom/chunk=16": 0.05})
        everyone = np.stack([whole_numbers(seed, rank, step) for rank in range(comm.size)])
        got = reducer.reduce(everyone[comm.rank])
        u = memories + everyone
        sent = u.copy()
        if reducer.stats.chosen != "dense":
            leader = np.abs(u[step % comm.size])
            chosen = [start + int(leader[start : start + 16].argmax()) for start in range(0, N, 16)]
            mask = np.ones(N, bool)
            mask[chosen] = False
            sent[:, mask] = 0
        np.testing.assert_array_equal(got, sent.sum(axis=0) * np.float32(1 / comm.size))
        memories = u - sent
        np.testing.assert_array_equal(reducer.state_dict()["memory/0/residual"], memories[comm.rank])
        seen.append(reducer.stats.chosen)
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes >= 3 and {"dense", "scalecom/chunk=16"} == set(seen)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("text", ["dense", "half", "int8", "natural", "qsgd/levels=127", "scaled-integer/bits=8",
                                  "qsgd/levels=127/exchange=pieces/second=no"])
def test_a_scheme_without_memory_empties_the_common_one_and_is_then_what_it_is_alone(comm, seed, clock, text, workers,
                                                                                     dtype):
    """To the last bit, in place; a float16 mean that is not exact leaves its error to the memory."""
    clock.update({text: 0.03})
    reducer = mpicomp.Reducer(comm, f"auto:error=1,candidates=scalecom/chunk=16+{text}", workers=workers)
    alone = mpicomp.Reducer(comm, text.replace("/", ":", 1).replace("/", ","), workers=workers)
    for step in range(14):
        rows = np.stack([gradient(seed, comm.rank * workers + one, step) for one in range(workers)]).astype(dtype)
        grads = rows if workers > 1 else rows[0]
        want = alone.reduce(grads.copy())
        got = reducer.reduce(grads) if workers > 1 else reducer.reduce(grads, out=grads)
        residual = reducer.state_dict()["memory/0/residual"]
        if reducer.stats.chosen.startswith("scalecom"):
            assert residual.any()
        elif dtype == "float32" or text == "dense":
            assert not residual.any()
            assert step == 4 or got.tobytes() == want.tobytes(), step  # step 4 also sends what scalecom has kept
    assert reducer.stats.chosen == text


def test_a_selection_without_memory_does_not_lose_what_others_have_kept(comm, seed):
    reducer = mpicomp.Reducer(comm, "auto:error=1,candidates=scalecom/chunk=16+topk-global/memory=none")
    came_in, sent = np.zeros(N), np.zeros(N)
    for step in range(8):
        came_in += gradient(seed, comm.rank, step)
        sent += reducer.reduce(gradient(seed, comm.rank, step))
    kept = reducer.state_dict()["memory/0/residual"].astype(float)
    np.testing.assert_allclose(comm.size * sent + total(comm, kept), total(comm, came_in), atol=1e-4 * comm.size)


def test_choice_and_reason_are_in_the_statistics(comm, seed, clock):
    reducer = mpicomp.Reducer(comm, "auto:error=0.5,candidates=dense+half+scalecom/chunk=16")
    clock.update({"half": 0.02})
    for step in range(12):
        reducer.reduce(gradient(seed, comm.rank, step))
    assert reducer.stats.chosen == "half"
    assert reducer.stats.reason.startswith("the fastest within the error (dense: 100 ms, error 0; half: 20 ms, error")
    other = mpicomp.Reducer(comm, "dense")
    other.reduce(gradient(seed, comm.rank, 0))
    assert (other.stats.chosen, other.stats.reason) == ("", "")


def test_choices_are_in_the_trace(comm, seed, clock, tmp_path):
    path = comm.bcast(str(tmp_path / "run.h5"))
    clock.update({"half": 0.02})
    with mpicomp.trace.Recorder(comm, path) as recorder:
        reducer = mpicomp.Reducer(comm, "auto:error=0.5,candidates=dense+half+scalecom/chunk=16", trace=recorder)
        for step in range(12):
            reducer.reduce(gradient(seed, comm.rank, step))
    if comm.rank == 0:
        with mpicomp.trace.open_trace(path) as trace:
            events = trace.events("kind", "algo", "scheme", "step", "rank")
            kind, algo, scheme = (trace.vocabulary(name) for name in ("kind", "algo", "scheme"))
            chosen = [(int(step), scheme[s], algo[a]) for k, a, s, step, rank in zip(
                *(events[name].tolist() for name in ("kind", "algo", "scheme", "step", "rank")), strict=True)
                if kind[k] == "choose" and rank == 0]
            assert chosen == [(3, "half", "trial"), (7, "scalecom/chunk=16", "trial"), (8, "half", "fastest")]
            assert "seconds of half" in trace.metrics()


@pytest.mark.parametrize("at", [3, 7, 17, 30])
def test_a_resumed_run_makes_the_choices_of_one_without_interruption(comm, seed, clock, at):
    """With the same seconds, and the same bits."""
    def run(reducer, steps):
        found = []
        for step in steps:
            mean = reducer.reduce(gradient(seed, comm.rank, step))
            found.append((reducer.stats.chosen, mean.tobytes()))
        return found

    clock.update({"dense": 0.03, "half": 0.02})
    straight = run(mpicomp.Reducer(comm, "auto:error=0.99"), range(60))
    first, second = (mpicomp.Reducer(comm, "auto:error=0.99") for _ in range(2))
    run(first, range(at))
    second.load_state_dict(first.state_dict())
    assert run(second, range(at, 60)) == straight[at:]


def test_the_memory_of_a_checkpoint_on_fewer_ranks_is_kept_and_a_trial_begins(comm, seed, tmp_path):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    root = comm.bcast(str(tmp_path))
    reducer = mpicomp.Reducer(comm, ALTERNATE)
    for step in range(7):
        reducer.reduce(gradient(seed, comm.rank, step))
    mpicomp.checkpoint.save(comm, root, 7, common={}, reducers={"reducer": reducer})
    kept = total(comm, reducer.state_dict()["memory/0/residual"])
    fewer = comm.Split(0 if comm.rank < comm.size - 1 else MPI.UNDEFINED, comm.rank)
    if fewer != MPI.COMM_NULL:
        part = mpicomp.Comm(fewer)
        other = mpicomp.Reducer(part, ALTERNATE)
        found = mpicomp.checkpoint.load(part, root)
        found.restore(other)
        assert any("estimated anew" in note and "seconds" in note for note in found.notes)
        np.testing.assert_allclose(total(part, other.state_dict()["memory/0/residual"]), kept, atol=1e-4)
        other.reduce(gradient(seed, part.rank, 7))
        assert other.stats.reason == "tried for a few steps (nothing is measured yet)"
    comm.Barrier()


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_step_that_overflows_float16_is_done_again_by_another(comm, seed, clock, nonfinite):
    """Nothing is lost, no step is skipped, and the one that overflowed does not run on."""
    clock.update({"half": 0.02})
    reducer = mpicomp.Reducer(comm, "auto:error=0.5,candidates=scalecom/chunk=2/values=float16+half+dense",
                              nonfinite=nonfinite)
    scale, ran = np.float32(1), []
    for step in range(20):
        if step == 14:
            scale = np.float32(2**20)
        everyone = [whole_numbers(seed, rank, step) * scale for rank in range(comm.size)]
        before = total(comm, reducer.state_dict().get("memory/0/residual", np.zeros(N)))
        mean = reducer.reduce(everyone[comm.rank])
        after = total(comm, reducer.state_dict()["memory/0/residual"])
        np.testing.assert_allclose(comm.size * mean.astype(float) + after, before + sum(everyone),
                                   atol=0.05 * comm.size * float(scale))
        assert not reducer.stats.skipped
        ran.append(reducer.stats.chosen)
    assert ran[13:] == ["half", *["dense"] * 6]
    with pytest.raises(NonFiniteGradient, match="overflowed in step 0"):
        mpicomp.Reducer(comm, "auto:candidates=half+topk-global/values=float16").reduce(np.full(N, 1e6, np.float32))


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("scheme", [ALTERNATE, "auto:error=0.5,every=5,candidates=half+dense",
                                    "auto:error=0.5,every=5,candidates=int8+half+scalecom/chunk=16"])  # fmt: skip
def test_gradients_of_nan_and_infinity_reach_no_memory(comm, seed, scheme, nonfinite):
    reducer = mpicomp.Reducer(comm, scheme, nonfinite=nonfinite)
    for step in range(12):
        assert np.isfinite(reducer.reduce(gradient(seed, comm.rank, step))).all()
        before = reducer.state_dict()
        assert_nan_is_refused(reducer, N)
        before["step"] += nonfinite == "skip"
        np.testing.assert_equal(reducer.state_dict(), before)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_vectors_of_any_length(comm, seed, n):
    reducer = mpicomp.Reducer(comm, "auto:error=1")
    for step in range(50):
        assert reducer.reduce(gradient(seed, comm.rank, step, n), out=np.empty(n, np.float32)).shape == (n,)


@pytest.mark.parametrize("options", ["", ",layers=per-tensor", ",dense=1d+last", ",beta=0.1", ",memory=shifted",
                                     ",schedule=accordion", ",warmup=7"])  # fmt: skip
def test_options_that_candidates_share(comm, seed, options):
    shapes = {"w": (20, 30), "b": (20,), "last": (3, 5)}
    reducer = mpicomp.Reducer(comm, f"auto:error=1,candidates=dense+half+scalecom/chunk=7+randomk{options}")
    for step in range(25):
        rng = np.random.default_rng([seed, comm.rank, step])
        grads = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        mean = reducer.reduce(grads, out=grads)
        crc = sum(float(np.abs(value).sum(dtype=np.float64)) for value in mean.values())
        assert comm.allgather(crc) == [crc] * comm.size


def test_no_bytes_but_those_of_the_candidate_are_counted(comm, seed):
    """In a look and a trial ranks compare 16 bytes, which no statistics count."""
    here, alone = (mpicomp.Reducer(comm, text, algorithm="ring") for text in (
        "auto:candidates=dense+scalecom/chunk=16,error=0.001,every=4", "dense"))
    for step in range(20):
        for reducer in (here, alone):
            reducer.reduce(gradient(seed, comm.rank, step))
        if here.stats.chosen == "dense":
            assert here.stats.bytes_sent == alone.stats.bytes_sent


BAD = [
    ("auto:candidates=dense+elephant", "unknown scheme 'elephant'"),
    ("auto:candidates=dense", "candidates must be at least two different schemes joined by \\+, got dense"),
    ("auto:candidates=dense+dense", "at least two different schemes"),
    ("auto:candidates=dense+half+", "unknown scheme ''"),
    ("auto:candidates=dense+scalecom/chunk", "options are written name=value, got 'chunk'"),
    ("auto:candidates=dense+scalecom/chunk=0", "chunk must be in"),
    ("auto:candidates=dense+auto", "candidate auto has candidates itself"),
    ("auto:candidates=dense+scalecom/beta=0.1", "beta must be the same of all candidates; give it to the scheme"),
    ("auto:candidates=dense+scalecom/seed=3/dense=1d", "dense, seed must be the same"),
    ("auto:candidates=dense+topk", "topk has layers=per-tensor, all candidates share layers=whole"),
    ("auto:candidates=dense+dgc/layers=whole", "layers must be the same"),
    ("auto:candidates=dense+dgc,layers=per-tensor", "dgc has memory=momentum-corrected, all candidates share memory"),
    ("auto:candidates=dense+localsgd", "localsgd has memory=error-reset, all candidates share"),
    ("auto:candidates=dense+topk,memory=error-reset,layers=per-tensor", "memory error-reset gives ranks results of"),
    ("auto:candidates=dense+accordion,layers=per-tensor", "accordion has schedule=accordion, all candidates share"),
    ("auto:candidates=dense+powersgd", "exchange low-rank has a state of its own"),
    ("auto:candidates=dense+oktopk", "exchange balanced has a state of its own"),
    ("auto:candidates=dense+onebit", "exchange pieces has a state of its own"),
    ("auto:error=0", "error must be in \\(0, 1\\], got 0"),
    ("auto:error=1.5", "error must be in \\(0, 1\\], got 1.5"),
    ("auto:error=nan", "error must be in \\(0, 1\\], got nan"),
    ("auto:every=0", "every must be in \\[1, inf\\), got 0"),
    ("auto:every=-3", "every must be in"),
    ("auto:hysteresis=-1", "hysteresis must be in \\[0, 1\\], got -1"),
    ("auto:values=float16", "values must be one of same, got float16"),
    ("auto:codec=sign", "exchange fastest adds codes up|takes"),
    ("auto:selector=top-k", "exchange fastest takes as selector all, got top-k"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_input_is_refused_on_every_rank(comm, text, message):
    with pytest.raises(InvalidArgument, match=message):
        mpicomp.Reducer(comm, text)


def test_a_bad_text_on_one_rank_is_refused_on_all(comm):
    text = "auto:every=0" if comm.rank == comm.size - 1 else "auto"
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: every must be in"):
        mpicomp.Reducer(comm, text)


def test_a_communicator_that_promises_the_same_bits_refuses_it(comm):
    again = mpicomp.Comm(comm, reproducible=True)
    with pytest.raises(InvalidArgument, match=r"chooses by measured seconds.*reproducible=True"):
        mpicomp.Reducer(again, "auto")
    again.Free()


def test_more_workers_than_a_candidate_serves_are_refused(comm):
    reducer = mpicomp.Reducer(comm, "auto:candidates=dense+scaled-integer/bits=8", workers=64)
    with pytest.raises(InvalidArgument, match="workers"):
        reducer.reduce(np.ones((64, 5), np.float32))


def test_ranks_with_unequal_clocks_choose_alike(comm, seed):
    """The slowest rank's seconds count: noise of each clock makes no two ranks differ."""
    reducer = mpicomp.Reducer(comm, "auto:error=1,every=3")
    rng, ran = np.random.default_rng([seed, comm.rank]), []
    for step in range(60):
        reducer.reduce(gradient(seed, comm.rank, step, 2000))
        if rng.random() < 0.1:
            time.sleep(0.002)  # it arrives late at the next step
        ran.append(reducer.stats.chosen)
    assert comm.allgather(ran) == [ran] * comm.size
    assert set(ran) <= {"dense", "half", "int8", "scalecom/chunk=16", "scalecom/chunk=112"}

"""Mistakes of published implementations that no other test of ours looks for; docs/algorithms.md lists them all."""

import functools

import numpy as np
import pytest
from mpi4py import MPI
from scheme_sets import each, small

import mpicomp
from mpicomp import schemes
from mpicomp.errors import CorruptMessage
from mpicomp.schemes.wire import index_lists

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="four ranks show it; codes gathered by many go dense")
SMALL = {"density": "0.05", "chunk": "16", "bin": "20", "columns": "64", "row": "16", "period": "1", "lam": "2",
         "unit": "0.1", "candidates": "dense+scalecom/chunk=7", "error": "0.001"}


ALL = [small(name, SMALL) for name in schemes.names()]
ROUNDS_UP = [text for text in ALL if text.startswith("stochastic-rounding")]  # towards plus infinity, or below, by draw


def gradient(seed, rank, step, n):
    return np.random.default_rng([seed, rank, step]).standard_normal(n).astype(np.float32)


@pytest.mark.parametrize("text", each(ALL))
def test_reducers_share_no_memory(comm, seed, text):
    """Two models trained in turn are what each is alone: residuals do not belong to a class."""
    n = 300

    def alone(model):
        reducer = mpicomp.Reducer(comm, text)
        return [reducer.reduce(gradient(seed + model, comm.rank, step, n)).tobytes() for step in range(3)]

    models = [mpicomp.Reducer(comm, text) for _ in range(2)]
    in_turn = [[one.reduce(gradient(seed + model, comm.rank, step, n)).tobytes() for model, one in enumerate(models)]
               for step in range(3)]
    assert [list(one) for one in zip(*in_turn, strict=True)] == [alone(0), alone(1)]


@pytest.mark.parametrize("text", each(text for text in ALL if text not in ROUNDS_UP))
def test_signs_do_not_matter(comm, seed, text):
    """Magnitudes are compared: the opposite gradients have the opposite mean."""
    one, other = (mpicomp.Reducer(comm, text) for _ in range(2))
    for step in range(3):
        grad = gradient(seed, comm.rank, step, 300)
        np.testing.assert_array_equal(one.reduce(grad), -other.reduce(-grad))


COMPRESSES = [text for text in ALL if text.partition(":")[0] not in ("auto", "dense", "localsgd")]


@pytest.mark.parametrize("text", each(COMPRESSES))
def test_the_first_step_is_compressed(comm, seed, text):
    """By default no scheme sends dense steps first: what it says it does, it does."""
    n = 20_000
    reducer = mpicomp.Reducer(comm, text, algorithm="ring")
    for step in range(2):
        reducer.reduce(gradient(seed, comm.rank, step, n).reshape(100, 200))
        assert comm.allreduce(reducer.stats.bytes_sent) <= 0.76 * 2 * (comm.size - 1) * 4 * n


def test_lists_of_different_lengths_are_not_padded(comm):
    """One rank sends a thousand values, the others one."""
    n, count = 5000, 1000 if comm.rank == comm.size - 1 else 1
    grad = np.zeros(n, np.float32)
    grad[:count] = 1
    reducer = mpicomp.Reducer(comm, "threshold:lam=0.5,indices=plain,switch=never")
    reducer.reduce(grad)
    messages = comm.size * (32 + 8) + 8 * (1000 + comm.size - 1)
    assert comm.allreduce(reducer.stats.bytes_sent) == (comm.size - 1) * messages


KINDS = {
    "matrices": {"a": (40, 30), "b": (7, 60)},
    "vectors": {"a": (40,), "b": (9,)},
    "empty": {"a": (0,), "b": (0, 3)},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", each(ALL))
def test_arrays_of_one_kind(comm, seed, text, kind):
    """Nothing is left for the other branch of a scheme: no compressed arrays, or no others."""
    reducer = mpicomp.Reducer(comm, text)
    for step in range(2):
        rng = np.random.default_rng([seed, comm.rank, step])
        grads = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in KINDS[kind].items()}
        mean = reducer.reduce(grads)
        assert {name: value.shape for name, value in mean.items()} == KINDS[kind]
        assert all(np.isfinite(value).all() for value in mean.values())


@pytest.mark.parametrize("text", each(text for text in ALL if not text.startswith("localsgd")))
def test_everything_may_go_dense(comm, text):
    """Then no list is left to put together."""
    separator = "," if ":" in text else ":"
    grads = {"a": np.full(5, comm.rank, np.float32), "b": np.full((), 2, np.float32)}
    mean = mpicomp.Reducer(comm, f"{text}{separator}dense=1d").reduce(grads)
    total = comm.allreduce(comm.rank, MPI.SUM)
    np.testing.assert_allclose(mean["a"], np.full(5, total / comm.size), rtol=1e-6)
    assert mean["b"] == 2


WITH_MEMORY = [text for text in ALL if mpicomp.Scheme.parse(text).part_names["memory"] != "none"]
SWAPPED = ["topk:codec=levels,levels=127", "topk:codec=sign", "natural:memory=residual", "gtopk:schedule=accordion",
           "qsgd:memory=residual,levels=127", "localsgd:codec=sign,exchange=gather"]


@pytest.mark.parametrize("text", each([*WITH_MEMORY, *SWAPPED]))
def test_memories_stay_bounded(comm, seed, text):
    """A code whose error is larger than the value would let its memory grow from step to step."""
    if comm.size > 1:
        pytest.skip("one rank shows it")
    n, reducer, norms = 2000, mpicomp.Reducer(comm, text), []
    for step in range(120):
        reducer.reduce(gradient(seed, comm.rank, step, n))
        norms.append(reducer.memory_norm())
    assert max(norms[80:]) <= 2 * max(norms[:40])


def bent(write, pairs, step, length=None):
    """A message with negative indices."""
    return write(pairs._replace(indices=-1 - pairs.indices), step, length)


@pytest.mark.parametrize("text", ["gtopk:k=20", "gtopk:k=20,values=float16", "oktopk:k=20", "oktopk:k=20,period=1"])
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_damaged_list_of_one_rank_is_refused_by_all(comm, seed, monkeypatch, text, when):
    """Also by ranks that never read it, and by its sender: no rank waits for another, and no memory changes."""
    if comm.size == 1:
        pytest.skip("no other rank gets it")
    reducer, spared, steps = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text), 3 if when == "later" else 0
    for step in range(steps):
        for one in (reducer, spared):
            one.reduce(gradient(seed, comm.rank, step, 999))
    before = reducer.state_dict()
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(index_lists, "write", functools.partial(bent, index_lists.write))
        with pytest.raises(CorruptMessage, match="another rank's message is damaged"):
            reducer.reduce(gradient(seed, comm.rank, steps, 999))
    assert comm.allgather(reducer.step) == [steps] * comm.size
    after = reducer.state_dict()
    for name in [name for name in before if name.startswith("memory")]:
        np.testing.assert_array_equal(after[name], before[name])
    spared.reduce(gradient(seed, comm.rank, steps, 999))
    if text.startswith("gtopk"):  # the other has thresholds, too, which it has estimated
        mean = spared.reduce(gradient(seed, comm.rank, steps + 1, 999))
        reducer.reduce(gradient(seed, comm.rank, steps, 999))
        assert reducer.reduce(gradient(seed, comm.rank, steps + 1, 999)).tobytes() == mean.tobytes()


@pytest.mark.parametrize("name", ["exchange/global", "exchange/bounds"])
@pytest.mark.parametrize("how", ["missing", "longer"])
def test_what_oktopk_knows_must_be_known_on_all_ranks(comm, seed, name, how):
    """A rank that estimates alone would wait for the others for ever."""
    reducer, resumed = (mpicomp.Reducer(comm, "oktopk:k=20") for _ in range(2))
    for step in range(30):  # crowded regions are forgotten, on all ranks, and cut again in the next step
        reducer.reduce(gradient(seed, comm.rank, step, 999))
        if step > 1 and name in reducer.state_dict():
            break
    state, last = reducer.state_dict(), comm.rank == comm.size - 1
    if last:
        value = state.pop(name)
        if how == "longer":
            state[name] = np.concatenate([value, [0]])
    if how == "missing":
        if comm.size > 1:
            with pytest.raises(mpicomp.errors.Disagreement, match=name):
                resumed.load_state_dict(state)
        return
    resumed.load_state_dict(state)
    with pytest.raises(mpicomp.errors.InvalidArgument, match=f"rank {comm.size - 1}: the saved {name[9:]} must have"):
        resumed.reduce(gradient(seed, comm.rank, 3, 999))


def test_too_many_workers_for_an_integer_are_refused_before_any_step(comm):
    """On every rank: in the middle of a step there would be something in flight."""
    with pytest.raises(mpicomp.errors.InvalidArgument, match=f"{100 * comm.size} workers need wider integers than"):
        mpicomp.Reducer(comm, "scaled-integer:bits=8", workers=100)

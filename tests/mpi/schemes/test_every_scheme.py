"""Promises of every scheme of the registry, on every number of ranks."""

import numpy as np
import pytest
from mpi4py import MPI
from scheme_sets import each, memory_of, small

import mpicomp
from mpicomp import bench, schemes
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.ops.block_codes import HALF_STEP

STEPS = 6
LARGEST_SUMMAND = {"sketchsgd": 4800, "oktopk": 4800, "arctopk": 48}  # so that sums, and squares of them, are exact
SHAPES = {"w": (4, 5), "none": (0,), "b": (1,), "kernel": (3, 2, 2, 2), "v": (31,)}
# Options sized for a few hundred elements and a few steps.
SMALL = {"density": "0.1", "chunk": "7", "bin": "9", "columns": "64", "row": "5", "period": "2",
         "candidates": "dense+scalecom/chunk=7", "error": "0.001"}  # of which the clock never chooses the second


ALL = [small(name, SMALL) for name in schemes.names()]
COMMON_MEAN = [text for text in ALL if memory_of(text).name != "error-reset"]  # others add a rank's own share


def gradients(seed, rank, step, workers=1, dtype=np.float32):
    rng = np.random.default_rng([seed, rank, step])
    rows = (workers,) if workers > 1 else ()
    return {name: rng.standard_normal(rows + shape).astype(dtype) for name, shape in SHAPES.items()}


def assert_equal_on_all_ranks(comm, mean):
    """Every rank holds the same bits."""
    for value in mean.values():
        reference = value.copy()
        comm.Bcast(reference.view(np.uint8) if reference.size else reference.astype(np.uint8))
        assert value.tobytes() == reference.tobytes()


@pytest.mark.parametrize("text", each(COMMON_MEAN))
@pytest.mark.parametrize("workers", [1, 2])
def test_every_rank_has_the_same_mean(comm, seed, text, workers):
    reducer = mpicomp.Reducer(comm, text, workers=workers)
    for step in range(3):
        mean = reducer.reduce(gradients(seed, comm.rank, step, workers))
        assert {name: value.shape for name, value in mean.items()} == SHAPES
        assert_equal_on_all_ranks(comm, mean)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("text", each(ALL))
def test_dtypes(comm, seed, text, dtype):
    reducer = mpicomp.Reducer(comm, text)
    for step in range(2):
        mean = reducer.reduce(gradients(seed, comm.rank, step, dtype=dtype))
        assert all(value.dtype == dtype and np.isfinite(value).all() for value in mean.values())


@pytest.mark.parametrize("n", [0, 1, 2, 127, 257])
@pytest.mark.parametrize("text", each(ALL))
def test_any_length(comm, seed, text, n):
    reducer = mpicomp.Reducer(comm, text)
    for _ in range(2):
        grad = np.random.default_rng([seed, comm.rank]).standard_normal(n).astype(np.float32)
        assert reducer.reduce(grad).shape == (n,)


@pytest.mark.parametrize("text", each(ALL))
def test_resume_is_bit_exact(comm, seed, text):
    def run(reducer, steps):
        return [reducer.reduce(gradients(seed, comm.rank, step)) for step in steps]

    straight = run(mpicomp.Reducer(comm, text), range(2 * STEPS))
    first = mpicomp.Reducer(comm, text)
    run(first, range(STEPS))
    second = mpicomp.Reducer(comm, text)
    second.load_state_dict(first.state_dict())
    for a, b in zip(straight[STEPS:], run(second, range(STEPS, 2 * STEPS)), strict=True):
        for name in a:
            assert a[name].tobytes() == b[name].tobytes()
    assert second.step == 2 * STEPS


@pytest.mark.parametrize("text", each(ALL))
def test_a_state_that_lacks_anything_on_one_rank_is_refused_on_all(comm, seed, text):
    """If one rank alone began anew, the next step would hang, or use other memories."""
    first, second = (mpicomp.Reducer(comm, text, measures=1) for _ in range(2))
    for step in range(3):
        first.reduce(gradients(seed, comm.rank, step))
    whole = first.state_dict()
    for key in whole if comm.size > 1 else ("scheme", "step", "workers"):
        state = dict(whole)
        if comm.rank == comm.size - 1:
            del state[key]
        with pytest.raises((InvalidArgument, Disagreement), match=key.replace("memory/0", "memory(/0)?")):
            second.load_state_dict(state)
    assert second.state_dict().keys() == mpicomp.Reducer(comm, text, measures=1).state_dict().keys()
    second.load_state_dict(whole)
    grads = gradients(seed, comm.rank, 3)
    for a, b in zip(first.reduce(grads).values(), second.reduce(grads).values(), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("text", each([*ALL, "onebit:memory=none", "topk:memory=update"]))
def test_a_state_whose_memories_are_missing_on_all_ranks_is_refused(comm, seed, text):
    """They would be taken for zero. Other state begins anew; before the first step there is none."""
    first, second = (mpicomp.Reducer(comm, text) for _ in range(2))
    second.load_state_dict({key: value for key, value in second.state_dict().items() if "/" not in key})
    for step in range(2):
        first.reduce(gradients(seed, comm.rank, step))
    whole = first.state_dict()
    memories = [key for key in whole if key.startswith("memory/") or key.endswith("/residual")]
    if memory_of(text).remembers:
        assert "memory/0/residual" in memories
    for key in memories:
        with pytest.raises(InvalidArgument, match=f"the state of step 2 of .* must have its error memories, .*{key}"):
            second.load_state_dict({name: value for name, value in whole.items() if name != key})
    second.load_state_dict({name: value for name, value in whole.items() if not name.startswith("schedule/")})


@pytest.mark.parametrize("text", each(text for text in ALL if not memory_of(text).local_steps))
@pytest.mark.parametrize("resumes", [False, True])
def test_a_first_step_that_is_refused_leaves_nothing_of_its_layout(comm, seed, text, resumes):
    """Not even in parts that took it before ranks agreed; a loaded state stays."""
    reducer, other = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    if resumes:
        other.reduce(gradients(seed, comm.rank, 0))
        reducer.load_state_dict(other.state_dict())
        bad = gradients(seed, comm.rank, 1)
        bad["v"][3] = np.nan
    else:
        bad = {"other": np.full((9, 3), np.nan)}
    with pytest.raises(NonFiniteGradient):
        reducer.reduce(bad)
    for step in range(1, 4):
        grads = gradients(seed, comm.rank, step)
        for a, b in zip(reducer.reduce(grads).values(), other.reduce(grads).values(), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("text", each(text for text in ALL if memory_of(text).name in ("residual", "error-reset")))
def test_sent_plus_kept_is_what_came_in(comm, seed, text):
    """Random floats: what all memories hold and the sum of all means make up all gradients."""
    reducer = mpicomp.Reducer(comm, text)
    came_in, sent = np.zeros((2, 333))
    for step in range(STEPS):
        grad = np.random.default_rng([seed, comm.rank, step]).standard_normal(333).astype(np.float32)
        came_in += grad
        sent += reducer.reduce(grad)
    state = reducer.state_dict()
    kept = state["memory/0/residual"].astype(float)
    comm.Allreduce(MPI.IN_PLACE, came_in)
    if memory_of(text).name == "error-reset":  # what a rank got holds its own error, not yet shared
        comm.Allreduce(MPI.IN_PLACE, sent)
        np.testing.assert_allclose(sent, came_in, atol=1e-4 * comm.size)
        return
    if "exchange/residual" in state:  # what the owner of a piece kept back of the mean
        second = np.zeros(333)
        mine = state["exchange/residual"]
        start = int(state["exchange/start"])
        second[start : start + mine.size] = mine
        kept += second * comm.size
    comm.Allreduce(MPI.IN_PLACE, kept)
    np.testing.assert_allclose(sent * comm.size + kept, came_in, atol=1e-4 * comm.size)


@pytest.mark.parametrize("text", each(ALL))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_non_finite_gradient_is_raised_everywhere_and_not_remembered(comm, seed, text, value):
    if memory_of(text).local_steps:
        pytest.skip("is found at the next step that sends")
    reducer = mpicomp.Reducer(comm, text)
    reducer.reduce(gradients(seed, comm.rank, 0))
    before = reducer.state_dict()
    bad = gradients(seed, comm.rank, 1)
    if comm.rank == comm.size - 1:
        bad["v"][3] = value
    with pytest.raises(NonFiniteGradient, match=rf"rank {comm.size - 1}\b.*v\[3\] is {value}"):
        reducer.reduce(bad)
    after = reducer.state_dict()
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])


@pytest.mark.parametrize("text", each(ALL))
def test_dense_arrays_are_averaged_exactly(comm, seed, text):
    if memory_of(text).local_steps:
        pytest.skip("refused: a silent step sends nothing")
    rng = [np.random.default_rng([seed, rank]) for rank in range(comm.size)]
    everyone = [{"a.weight": r.integers(-9, 9, (6, 7)).astype(np.float32),
                 "a.bias": r.integers(-9, 9, 6).astype(np.float32),
                 "norm": r.integers(-9, 9, (2, 2)).astype(np.float32)} for r in rng]
    separator = "," if ":" in text else ":"
    mean = mpicomp.Reducer(comm, f"{text}{separator}dense=1d+norm").reduce(everyone[comm.rank])
    for name in ("a.bias", "norm"):
        total = sum(one[name] for one in everyone)
        np.testing.assert_array_equal(mean[name], total * np.float32(1 / comm.size))


@pytest.mark.parametrize("text", each(ALL))
def test_statistics(comm, seed, text):
    reducer = mpicomp.Reducer(comm, text, algorithm="ring")  # memory that ranks share has no messages to count
    for step in range(2):
        reducer.reduce(gradients(seed, comm.rank, step))
        assert 0 <= reducer.stats.density <= 1
        assert reducer.stats.step == step
        counts = np.array([reducer.stats.bytes_sent, reducer.stats.bytes_received])
        comm.Allreduce(MPI.IN_PLACE, counts)
        assert counts[0] == counts[1]
        assert (counts[0] > 0) == (comm.size > 1 and not memory_of(text).is_local(step))


@pytest.mark.parametrize("text", each(ALL))
def test_the_bench_takes_it_and_finds_it_right(comm, text):
    plan = bench.Plan(sizes=(4096,), algorithms=("native",), schemes=(text,), iters=3, warmup=1)
    rows = next(iter(bench.run(comm, plan)))
    assert [row["scheme"] for row in rows] == [None, text]
    assert all(row["ok"] for row in rows)


@pytest.mark.parametrize("text", each(ALL))
def test_ranks_do_what_virtual_workers_of_one_rank_do_but_for_trees_and_pieces(comm, seed, text):
    """docs/development/fidelity.md trains in one process: of a tree of ranks, or a piece per rank, it shows nothing."""
    if comm.size == 1:
        pytest.skip("compares several ranks with one")
    spread = mpicomp.Reducer(comm, text)
    together = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), text, workers=comm.size)
    different = 0.0
    for step in range(STEPS):
        rngs = [np.random.default_rng([seed, step, rank]) for rank in range(comm.size)]
        most = LARGEST_SUMMAND.get(spread.scheme.name)  # of integers; else the order of a sum could choose elements
        everyone = np.stack([rng.integers(-most, most, 600).astype(np.float32) if most
                             else rng.standard_normal(600, np.float32) for rng in rngs])  # fmt: skip
        mean, expected = spread.reduce(everyone[comm.rank]).astype(float), together.reduce(everyone)
        if spread.scheme.diverges:  # each rank has its own share besides
            mean = comm.allreduce(mean) / comm.size
        different = max(different, np.linalg.norm(mean - expected) / max(1e-30, np.linalg.norm(expected)))
    if spread.scheme.name == "onebit" or (spread.scheme.name == "gtopk" and comm.size > 2):
        assert 0.1 < different < 2
    elif spread.scheme.part_names["codec"] == "blocks":  # which lie otherwise in other pieces
        assert different < 8 * HALF_STEP[spread.scheme.options["format"]]
    elif spread.scheme.name == "natural":  # draws otherwise in other pieces
        assert 0 < different < 0.75
    else:
        assert different < 2e-3  # `half` rounds in float16

"""Schemes with ``nodes=yes`` on nodes made of neighbouring ranks of this one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scheme_sets import each, memory_of, small

import mpicomp
from mpicomp import Comm, checkpoint, schemes
from mpicomp.errors import InvalidArgument, NonFiniteGradient, RankLeft
from mpicomp.reducer.levels import SLICE_SEED, TwoLevels
from mpicomp.schemes.timing import PhaseTimer

SMALL = {"density": "0.1", "lam": "5", "chunk": "7", "bin": "9", "columns": "64", "row": "5", "period": "2"}
SHAPES = {"w": (14, 5), "none": (0,), "b": (1,), "kernel": (3, 2, 2, 2), "v": (31,)}
N = 333


def on_nodes(text: str, asked: str = "yes") -> str:
    return f"{text}{',' if ':' in text else ':'}nodes={asked}"


ALL = [small(name, SMALL) for name in schemes.names() if not mpicomp.Scheme.parse(name).chooses]


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def nodes(request, world, monkeypatch):
    """Nodes of two or three ranks; the last may have fewer."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", str(request.param))
    monkeypatch.setenv("MPICOMP_CHECK", "1")
    comm = Comm(world)
    yield comm
    comm.Free()


def per_node(comm: Comm) -> int:
    return comm._engine.link.settings.node_limit


def vector(seed, rank, step, n=N, dtype=np.float32):
    """Multiples of 1/64: sums of a node's ranks are exact."""
    return (np.random.default_rng([seed, rank, step]).integers(-640, 641, n) / 64).astype(dtype)


def gradients(seed, rank, step, workers=1, dtype=np.float32):
    rows = (workers,) if workers > 1 else ()
    rng = np.random.default_rng([seed, rank, step])
    return {name: rng.standard_normal(rows + shape).astype(dtype) for name, shape in SHAPES.items()}


def no_room(*given):
    raise MemoryError("no room")


def test_a_rank_that_cannot_prepare_its_slice_fails_on_all(nodes, seed, monkeypatch):
    reducer, last = mpicomp.Reducer(nodes, on_nodes("topk:density=0.1")), nodes.size - 1
    with monkeypatch.context() as patch:
        if nodes.rank == last:
            patch.setattr(reducer._pipeline.memories[0], "compensate", no_room)
        with pytest.raises(MemoryError, match=f"rank {last}: no room"):
            reducer.reduce(vector(seed, nodes.rank, 0))
    means = nodes.allgather(reducer.reduce(vector(seed, nodes.rank, 0)).tobytes())
    assert len(set(means)) == 1 and reducer.step == 1


def test_a_ranks_workers_are_summed_without_new_memory(nodes, seed, monkeypatch):
    """If a rank had no memory for the sum, the others of its node would wait for it."""
    reducer = mpicomp.Reducer(nodes, on_nodes("topk:density=0.1"), workers=2)
    pair = [vector(seed, nodes.rank, step) for step in range(2)]
    reducer.reduce(np.stack(pair))
    levels, ctx = reducer._levels, reducer._laid_out.ctx
    if not isinstance(levels, TwoLevels):
        return
    monkeypatch.setattr(ctx.ops, "empty", no_room)
    (own,) = levels.vectors(pair, ctx)
    node = nodes.rank // per_node(nodes)
    total = (node_sums(nodes, seed, 0)[node] + node_sums(nodes, seed, 1)[node]) / np.float32(2)
    np.testing.assert_allclose(own, total[levels.own(total)], rtol=1e-6, atol=1e-5)


def test_a_rank_without_memory_for_a_copy_leaves_its_node(nodes, monkeypatch):
    levels, x = nodes.levels, np.ones(N)
    if levels is None:
        return
    monkeypatch.setattr(levels, "_library", lambda x, n: None)
    monkeypatch.setattr("mpicomp.comm.levels.device_of", lambda x: "device")
    monkeypatch.setattr("mpicomp.comm.levels.ops_for", lambda x: SimpleNamespace(
        to_host=np.copy if nodes.rank else no_room, from_host=np.copy))  # fmt: skip
    if nodes.rank < per_node(nodes):
        with pytest.raises(RankLeft if nodes.rank else MemoryError, match="no room"):
            levels.reduce_scatter(x, x, 1.0)
    nodes.Barrier()


def node_sums(comm, seed, step):
    """The share of each node in the mean: its sum, times nodes over ranks."""
    each_node = [range(first, min(first + per_node(comm), comm.size)) for first in range(0, comm.size, per_node(comm))]
    factor = len(each_node) / comm.size
    sums = [sum(vector(seed, rank, step) for rank in ranks) for ranks in each_node]
    return [total * np.float32(factor) if factor != 1 else total for total in sums]


@pytest.mark.parametrize("text", each(ALL))
def test_nodes_are_the_workers(nodes, world, seed, text, monkeypatch):
    """Slice by slice the same bits as the scheme with one rank per node, on the nodes' means."""
    levels, reducer = nodes.levels, mpicomp.Reducer(nodes, on_nodes(text))
    if levels is None:
        other = mpicomp.Reducer(nodes, text)
        for step in range(4):
            own = vector(seed, nodes.rank, step)
            assert reducer.reduce(own).tobytes() == other.reduce(own).tobytes()
        return
    own = levels.slice_of(np.empty(N, np.float32))
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")  # as among the ranks of a slice: half precision rounds alike
    alone = Comm(world.Split(levels.place, world.rank))
    scheme = mpicomp.Scheme.parse(text)
    scheme = scheme.replace(seed=scheme.options["seed"] + SLICE_SEED * levels.place)
    oracle = mpicomp.Reducer(alone, scheme)
    for step in range(4):
        got = reducer.reduce(vector(seed, nodes.rank, step))
        if levels.place < levels.slices:
            want = oracle.reduce(node_sums(nodes, seed, step)[levels.across.rank][own])
            assert got[own].tobytes() == want.tobytes()
        if not scheme.diverges:
            assert world.bcast(got.tobytes()) == got.tobytes()
    alone.Free()


def residual_of(nodes, reducer, size):
    """Sum of all ranks' error memories, each at its place."""
    kept = np.zeros(size)
    own = reducer.kept(np.empty(size, np.float32))
    kept[own] = sum(value for name, value in reducer.state_dict().items() if name.endswith("/residual")
                    and name.startswith("memory/"))
    nodes.allreduce_in_place(kept)
    return kept


@pytest.mark.parametrize("text", ["topk:density=0.1", "scalecom:chunk=7", "randomk:density=0.1", "gtopk:density=0.1"])
@pytest.mark.parametrize("workers", [1, 2])
def test_sent_and_kept_is_what_came_in(nodes, seed, text, workers):
    reducer = mpicomp.Reducer(nodes, on_nodes(text), workers=workers)
    count = nodes.size * workers if nodes.levels is None else nodes.levels.nodes
    came_in, sent = np.zeros(N), np.zeros(N)
    for step in range(5):
        grad = np.stack([vector(seed, nodes.rank * workers + i, step) for i in range(workers)])
        sent += reducer.reduce(grad if workers > 1 else grad[0])
        came_in += grad.sum(0)
    nodes.allreduce_in_place(came_in)
    kept = residual_of(nodes, reducer, N)
    np.testing.assert_allclose(sent + kept / count, came_in / nodes.size / workers, atol=1e-4)


@pytest.mark.parametrize("text", each(ALL))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arrays_of_any_shape(nodes, world, seed, text, dtype):
    """Dense arrays beside compressed ones, several workers, a state saved and loaded, all ranks with the same bits."""
    text = on_nodes(text)
    if not memory_of(text).local_steps:
        text += ",dense=last"
    straight, first = (mpicomp.Reducer(nodes, text, workers=2) for _ in range(2))
    for step in range(4):
        grads = gradients(seed, nodes.rank, step, 2, dtype)
        out = {name: np.empty(shape, dtype) for name, shape in SHAPES.items()}
        means = [straight.reduce(grads), first.reduce(grads, out)]
        for name, value in means[0].items():
            assert value.shape == SHAPES[name] and value.dtype == dtype and np.isfinite(value).all()
            assert value.tobytes() == means[1][name].tobytes()
            if not straight.scheme.diverges:
                assert world.bcast(value.tobytes()) == value.tobytes()
        if step == 1:
            state, first = first.state_dict(), mpicomp.Reducer(nodes, text, workers=2)
            first.load_state_dict(state)


@pytest.mark.parametrize("n", [0, 1, 17, N])
def test_slices_choose_alike(nodes, world, seed, monkeypatch, n):
    """By the clock of all ranks, and after an overflow in one slice; the mean is that of the chosen candidates."""
    rng = np.random.default_rng([seed, nodes.rank])
    monkeypatch.setattr(PhaseTimer, "busy_ns", lambda timer: int(rng.integers(1, 10**8)))
    text = "auto:error=1,every=3,candidates=topk-global/density=0.1+scalecom/chunk=7+half/memory=residual+int8+dense"
    reducer, ran = mpicomp.Reducer(nodes, on_nodes(text)), []
    for step in range(50):
        mine = vector(seed, nodes.rank, step, n)
        if step in (9, 40) and n and nodes.rank == nodes.size - 1:
            mine[n // 2] = 1e6  # more than float16 holds
        got = reducer.reduce(mine)
        assert np.isfinite(got).all() and world.bcast(got.tobytes()) == got.tobytes()
        ran.append(reducer.stats.chosen)
    levels = nodes.levels
    idle = n == 0 or (levels is not None and not np.empty(n)[levels.slice_of(np.empty(n, np.float32))].size)
    everyone = [one for one, without in nodes.allgather((ran, idle)) if not without]
    assert all(one == everyone[0] for one in everyone) and (n == 0 or len(set(everyone[0])) == 5)


def test_nothing_is_lost_whichever_candidate_runs(nodes, seed):
    candidates = "topk-global/density=0.1+scalecom/chunk=7+signsgd+randomk/density=0.1+dense"
    reducer = mpicomp.Reducer(nodes, f"auto:error=1,every=3,candidates={candidates},nodes=yes")
    count = nodes.size if nodes.levels is None else nodes.levels.nodes
    came_in, sent = np.zeros(N), np.zeros(N)
    for step in range(25):
        mine = vector(seed, nodes.rank, step)
        sent += reducer.reduce(mine)
        came_in += mine
        total = came_in.copy()
        nodes.allreduce_in_place(total)
        np.testing.assert_allclose(sent + residual_of(nodes, reducer, N) / count, total / nodes.size, atol=1e-3)


@pytest.mark.parametrize("n", [0, 1, 17])
@pytest.mark.parametrize("text", each(ALL))
def test_any_length(nodes, seed, text, n):
    """Also of fewer elements than the nodes have slices."""
    reducer = mpicomp.Reducer(nodes, on_nodes(text))
    for step in range(2):
        assert reducer.reduce(vector(seed, nodes.rank, step, n)).shape == (n,)
    second = mpicomp.Reducer(nodes, on_nodes(text))
    second.load_state_dict(reducer.state_dict())
    own = vector(seed, nodes.rank, 2, n)
    assert second.reduce(own).tobytes() == reducer.reduce(own).tobytes()


@pytest.mark.parametrize("text", ["topk:density=0.1", "half", "dense", "powersgd"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_nan_of_one_rank_is_that_ranks_error(nodes, seed, text, policy):
    last, reducer = nodes.size - 1, mpicomp.Reducer(nodes, on_nodes(text), nonfinite=policy)
    reducer.reduce(vector(seed, nodes.rank, 0))
    before = reducer.state_dict()
    for place in (0, N // 2, N - 1):
        bad = vector(seed, nodes.rank, 1)
        if nodes.rank == last:
            bad[place] = np.nan
        if policy == "raise":
            with pytest.raises(NonFiniteGradient, match=rf"^rank {last}: gradient\[{place}\] is nan"):
                reducer.reduce(bad)
        else:
            assert not reducer.reduce(bad).any() and reducer.stats.skipped
        after = reducer.state_dict()
        assert all(np.array_equal(after[name], before[name]) for name in before if name.startswith("memory/"))
    reducer.reduce(vector(seed, nodes.rank, 2))


def test_a_state_is_for_the_nodes_that_saved_it(nodes, seed):
    text = on_nodes("topk:density=0.1")
    reducer = mpicomp.Reducer(nodes, text)
    reducer.reduce(vector(seed, nodes.rank, 0))
    state = reducer.state_dict()
    if nodes.levels is None:
        assert "slice" not in state
        return
    kept = nodes.levels.slice_of(np.empty(N, np.float32))
    assert state["memory/0/residual"].size == kept.stop - kept.start
    for other in ({**state, "slices": 7}, {name: state[name] for name in state if name not in ("node", "slice")}):
        with pytest.raises(InvalidArgument, match=r"the state must be of slice \d of \d on node \d of \d, got that of"):
            mpicomp.Reducer(nodes, text).load_state_dict(other)


@pytest.mark.parametrize("text", ["topk:density=0.1", "powersgd", "onebit", "accordion", "dgc:density=0.1"])
def test_a_checkpoint_is_resumed_on_the_same_nodes(nodes, seed, folder, text):
    text = on_nodes(text)
    reducer = mpicomp.Reducer(nodes, text)
    for step in range(2):
        reducer.reduce(vector(seed, nodes.rank, step))
    checkpoint.save(nodes, folder, 2, common={}, reducers={"reducer": reducer})
    again, saved = mpicomp.Reducer(nodes, text), checkpoint.load(nodes, folder)
    saved.restore(again)
    own = vector(seed, nodes.rank, 2)
    assert again.reduce(own).tobytes() == reducer.reduce(own).tobytes() and saved.notes == []


def second_memory_of(nodes, reducer):
    """The owners' errors, each at its place: in the unit of the mean."""
    kept, state = np.zeros(N), reducer.state_dict()
    if state.get("exchange/start", -1) >= 0:
        start = reducer.kept(kept.astype(np.float32)).start + int(state["exchange/start"])
        kept[start : start + state["exchange/residual"].size] = state["exchange/residual"]
    nodes.allreduce_in_place(kept)
    return kept


@pytest.mark.parametrize("text", ["topk:density=0.1", "scalecom:chunk=7", "onebit", "powersgd", "accordion"])
def test_a_checkpoint_goes_to_other_nodes(nodes, world, seed, folder, monkeypatch, text):
    """From slices to whole vectors, to slices of other nodes, and back: no part of a gradient is lost."""
    workers = 2
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", str(5 - per_node(nodes)))
    other = Comm(world)
    jobs = [(nodes, "yes"), (other, "no"), (other, "yes"), (nodes, "yes")]
    came_in, sent, step = np.zeros(N), np.zeros(N), 0
    for number, (comm, asked) in enumerate(jobs):
        reducer = mpicomp.Reducer(comm, on_nodes(text, asked), workers=workers)
        if number:
            checkpoint.load(comm, folder).restore(reducer)
        for _ in range(3):
            grad = np.stack([vector(seed, comm.rank * workers + i, step) for i in range(workers)])
            sent += reducer.reduce(grad)
            came_in += grad.sum(0)
            step += 1
        total = came_in.copy()
        comm.allreduce_in_place(total)
        slices = asked == "yes" and comm.levels is not None
        count = comm.levels.nodes if slices else comm.size * workers
        kept = residual_of(comm, reducer, N) / count + second_memory_of(comm, reducer)
        np.testing.assert_allclose(sent + kept, total / comm.size / workers, atol=2e-3)
        checkpoint.save(comm, folder, step, common={}, reducers={"reducer": reducer})
    other.Free()


def test_only_messages_between_nodes_count_as_sent(nodes, world, seed):
    """A host sends what one rank per host does; a rank leaves its vector in shared memory once, and the result."""
    text = "scalecom:chunk=16,layers=whole"
    reducer = mpicomp.Reducer(nodes, on_nodes(text))
    if nodes.levels is None or nodes.size % per_node(nodes):
        return
    alone = Comm(world.Split(nodes.levels.place, world.rank))
    n = 64 * per_node(nodes) * 100
    oracle = mpicomp.Reducer(alone, f"{text},nodes=no")
    sent = np.zeros(2)
    for step in range(2 * nodes.levels.nodes):
        own = vector(seed, nodes.rank, step, n)
        reducer.reduce(own)
        oracle.reduce(own)
        sent += reducer.stats.bytes_sent, oracle.stats.bytes_sent / per_node(nodes)
        assert own.nbytes <= reducer.stats.bytes_shared < 1.3 * own.nbytes
    nodes.allreduce_in_place(sent)
    assert sent[0] == pytest.approx(sent[1], rel=0.02)
    alone.Free()


def test_arrays_that_are_left_out_keep_their_memory(nodes, seed):
    reducer = mpicomp.Reducer(nodes, on_nodes("topk:density=0.1"))
    reducer.reduce(gradients(seed, nodes.rank, 0))
    before = residual_of(nodes, reducer, sum(int(np.prod(shape)) for shape in SHAPES.values()))
    grads = gradients(seed, nodes.rank, 1)
    grads["w"][:] = 0
    with reducer.leaving_out(["w"]):
        reducer.reduce(grads)
    after = residual_of(nodes, reducer, before.size)
    assert np.array_equal(before[:70], after[:70]) and not np.array_equal(before[70:], after[70:])


def test_densities_hold_for_the_parts_of_an_array(nodes, seed):
    reducer = mpicomp.Reducer(nodes, on_nodes("topk:layers=per-tensor,density=0.01"), densities={"b": 1, "v": 0.99})
    mean = reducer.reduce(gradients(seed, nodes.rank, 0))
    assert np.count_nonzero(mean["b"]) == 1 and np.count_nonzero(mean["v"]) >= 29


@pytest.mark.parametrize("name", ["threshold", "strom"])
def test_a_threshold_by_density_is_that_of_the_whole_vector(nodes, seed, name):
    """It is absolute: one that grew as slices shrink would send less the more ranks a node has."""
    given = mpicomp.Reducer(nodes, on_nodes(f"{name}:density=0.1"))
    known = mpicomp.Reducer(nodes, on_nodes(f"{name}:lam={0.5 * (0.1 * N) ** -0.5!r}"))
    grad = vector(seed, nodes.rank, 0) / 64
    for _ in range(3):
        assert np.array_equal(given.reduce(grad), known.reduce(grad))


def test_an_error_of_one_rank_is_raised_on_all(nodes, seed):
    for text in ("topk:density=0.1", "localsgd:period=3"):
        reducer = mpicomp.Reducer(nodes, on_nodes(text))
        reducer.reduce(vector(seed, nodes.rank, 0))
        last = nodes.size - 1
        with pytest.raises(InvalidArgument, match=rf"^rank {last}: this reducer's error memory is for"):
            for _ in range(3):
                reducer.reduce(vector(seed, nodes.rank, 1, N + (nodes.rank == last)))


@pytest.mark.parametrize(("text", "measures", "like"), [
    ("topk:density=0.1", 0, "yes"), ("int8", 0, "yes"), ("auto:error=1,candidates=topk-global+int8", 0, "yes"),
    ("topk:density=0.1", 2, "no"), ("topk:k=9", 0, "no"), ("dgc:density=0.1,clip=1", 0, "no"), ("half", 0, "no"),
    ("localsgd:period=2", 0, "no"),
])  # fmt: skip
def test_by_default_nodes_are_the_workers_where_they_can_be(nodes, text, measures, like):
    reducer = mpicomp.Reducer(nodes, text, measures=measures)
    assert ("slice" in reducer.place) == (like == "yes" and nodes.levels is not None)
    assert "slice" not in mpicomp.Reducer(nodes, on_nodes(text, "no")).place


def test_whole_vectors_stay_where_ranks_may_be_lost(nodes, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    assert "slice" not in mpicomp.Reducer(nodes, "topk").place
    assert ("slice" in mpicomp.Reducer(nodes, "topk:nodes=yes").place) == (nodes.levels is not None)


def test_options_about_whole_vectors_are_refused(nodes):
    for text, words in (("topk:k=3,nodes=yes", "needs a density, got k=3"), ("dgc:clip=1,nodes=yes", "clip=1")):
        with pytest.raises(InvalidArgument, match=words):
            mpicomp.Scheme.parse(text)
    with pytest.raises(InvalidArgument, match="measures of whole vectors need nodes=no"):
        mpicomp.Reducer(nodes, "topk:nodes=yes", measures=2)

"""The bench inside every rank: rows, checks and byte counts."""

import numpy as np
import pytest

from mpicomp import allreduce, bench
from mpicomp.bench import Plan
from mpicomp.bench.compressed import Compressed, gaussian
from mpicomp.bench.data import PERIOD
from mpicomp.bench.dense import AllReduce, Dense
from mpicomp.bench.environment import Noise, binding, oversubscribed, ranks
from mpicomp.bench.timing import MIN_ROUNDS, Timer, _enough

SCHEMES = ("dense", "scalecom:chunk=16,beta=0.25", "scalecom:values=float16", "topk:density=0.05", "topk:memory=none",
           "threshold:lam=2")  # fmt: skip


def plan(**given):
    return Plan(**{"sizes": (4096,), "algorithms": ("native", "ring"), "iters": 3, "warmup": 2, **given})


def rows_of(comm, **given):
    return [row for rows in bench.run(comm, plan(**given)) for row in rows]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("place", ["in", "out"])
def test_dense_algorithms_are_right(comm, dtype, place):
    algorithms = ("native", *(name for name in allreduce.names() if name != "native"))
    rows = rows_of(comm, algorithms=algorithms, dtype=dtype, place=place, sizes=(1, 1000, 300_000))
    assert [row["ok"] for row in rows] == [True] * len(rows)
    assert [row["algorithm"] for row in rows] == [*algorithms] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_schemes_are_right(comm, dtype):
    rows = rows_of(comm, algorithms=(), schemes=SCHEMES, dtype=dtype, sizes=(8, 4096, 100_000))
    assert [(row["scheme"], row["ok"]) for row in rows] == [(scheme, True) for scheme in SCHEMES] * 3
    for row in rows:
        assert 0 <= row["density"] <= 1
        assert set(row["t_phase_us"]) >= {"compress", "exchange", "update"}
        assert row["busbw_gbs"] is None


def test_rows(comm):
    first, second = rows_of(comm)
    assert first["vs"] == 1
    assert second["vs"] == pytest.approx(first["t_med_us"] / second["t_med_us"])
    assert (first["nbytes"], first["count"], first["n_ranks"]) == (4096, 1024, comm.size)
    assert first["algbw_gbs"] == pytest.approx(4096 / first["t_med_us"] / 1e3)
    assert first["t_min_us"] <= first["t_med_us"] <= first["t_p99_us"] <= first["t_max_us"]
    if comm.size == 1:
        assert first["busbw_gbs"] is None
    else:
        assert first["busbw_gbs"] == pytest.approx(first["algbw_gbs"] * 2 * (comm.size - 1) / comm.size)
    others = comm.allgather((first["t_med_us"], second["t_med_us"]))
    assert len(set(others)) == 1  # every rank has the same rows


def test_wire_bytes_are_those_of_a_step(comm):
    n = 1024 * comm.size
    (row,) = rows_of(comm, algorithms=("ring",), sizes=(4 * n,))
    assert row["wire_bytes"] == 2 * (comm.size - 1) * 4 * n // comm.size
    assert not row["wire_modelled"]


def test_a_wrong_element_is_seen(comm):
    vectors = AllReduce(comm, plan(), 3 * PERIOD + 5)
    dense = Dense("native", vectors, "out")
    assert dense.check() == 0
    for index in (0, PERIOD, 3 * PERIOD + 4):
        vectors.receive[index] += 1
    assert vectors.wrong() == 3


def test_a_lost_element_is_seen(comm, monkeypatch):
    """A memory that forgets what was not sent makes the mean differ from what was sent."""
    compressed = Compressed(comm, "topk:density=0.1", gaussian(comm.rank, plan(), 1000))
    assert compressed.check() == 0
    state_dict = type(compressed.reducer).state_dict

    def forgetful(reducer):
        state = state_dict(reducer)
        if "memory/0/residual" in state:  # a reducer that has not begun keeps nothing
            state["memory/0/residual"][:10] += 1
        return state

    monkeypatch.setattr(type(compressed.reducer), "state_dict", forgetful)
    assert compressed.check() == 10


def test_phases_are_those_of_the_slowest_rank_of_each_round(comm):
    """The leader, another rank in every round, takes 9 s to select, others 1 s."""
    compressed = Compressed(comm, "dense", gaussian(comm.rank, plan(), 8))
    compressed._phases = [{"select": 9.0 if number % comm.size == comm.rank else 1.0} for number in range(6)]
    compressed._phases[1]["exchange"] = 1.0
    if comm.rank == comm.size - 1:  # ranks beyond the slices of the smallest node have fewer phases
        for one in compressed._phases:
            one["update"] = 2.0
    compressed._density = [1.0] * 6
    assert compressed.facts(6).t_phase_us == {"select": 9e6, "exchange": 0.0, "update": 2e6}


class Fake:
    """An implementation that does nothing, but notes its turns in ``order``."""

    modelled = 0

    def __init__(self, name, order, one_way=1.0):
        self.name, self.order, self.one_way = name, order, one_way

    def begin(self):
        self.order.append(self.name)

    def step(self):
        pass

    end = step


def test_the_average_is_that_of_the_ranks_that_take_part(comm):
    timer = Timer(comm, [Fake("pair", [], 0.5 if comm.rank == 0 else 0.0)], lambda name: None)
    timer.block(2)
    (mine,), own = timer._samples(np.ones((2, 1))), timer._local[0] / 2
    assert mine.mean_seconds == comm.bcast(own) > 0


def test_implementations_take_turns(comm):
    order = []
    timer = Timer(comm, [Fake(name, order) for name in "abc"], lambda name: None)
    seconds, _ = timer.block(3)
    assert "".join(order) == "abcbcacab"
    assert seconds.shape == (3, 3)


def test_time_limits_hold_on_all_ranks(comm):
    rows = rows_of(comm, iters=None, min_time=0.01, max_time=0.2)
    iterations = {row["iters"] for row in rows}
    assert len(iterations) == 1 and iterations.pop() >= MIN_ROUNDS
    assert len(set(comm.allgather(rows[0]["iters"]))) == 1


def test_every_step_behind_a_barrier_counts_as_timed():
    seconds = np.full((10, 2), 1e-3)
    assert _enough(plan(iters=None, min_time=0.2, agg_iters=20), seconds)
    assert not _enough(plan(iters=None, min_time=0.2), seconds)


def test_noise_is_a_share(comm):
    share = Noise().share(comm)
    assert share >= 0


def test_environment_of_the_ranks(comm):
    table = ranks(comm)
    assert [one["rank"] for one in table] == list(range(comm.size))
    assert len({(one["host"], one["local_rank"]) for one in table}) == comm.size
    assert binding(table) in ("none", "overlapping", "disjoint")
    crowded = [{"host": "a", "cpus": [0]}, {"host": "a", "cpus": [0]}, {"host": "b", "cpus": [0, 1]}]
    assert oversubscribed(crowded) == "2 ranks on 1 CPUs of a"
    assert oversubscribed(crowded[1:]) is None
    assert binding(crowded[:2]) == "none"
    assert binding([{"host": "a", "cpus": [0]}, {"host": "a", "cpus": [1]}]) == "disjoint"
    assert binding([{"host": "a", "cpus": [0, 1]}, {"host": "a", "cpus": [1]}]) == "overlapping"


def test_data_differ_between_ranks_and_not_between_runs(comm):
    vectors = AllReduce(comm, plan(), 1000)
    again = AllReduce(comm, plan(), 1000)
    assert np.array_equal(vectors.send, again.send)
    assert len({piece.tobytes() for piece in comm.allgather(vectors.send)}) == comm.size

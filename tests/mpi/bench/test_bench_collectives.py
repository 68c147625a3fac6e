"""The bench's collectives inside every rank: right results pass, planted errors are seen, rows say what was done."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpicomp import bench
from mpicomp.allreduce import LOSSY
from mpicomp.bench import Plan
from mpicomp.bench.data import PERIOD, Periods
from mpicomp.bench.dense import VECTORS, Dense
from mpicomp.bench.devices import choose_device
from mpicomp.bench.plan import DTYPES
from mpicomp.bench.schema import FIELDS
from mpicomp.bench.timing import Timer
from mpicomp.errors import InvalidArgument
from mpicomp.ops.gpu import cuda_runtime
from mpicomp.schemes import names

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "bcast", "pingpong")


def plan(collective, **given):
    algorithms = bench.COLLECTIVES[collective].algorithms()
    return Plan(**{"sizes": (4096,), "algorithms": algorithms, "collective": collective, "iters": 2, "warmup": 2,
                   **given})  # fmt: skip


def rows_of(comm, collective, **given):
    return [row for rows in bench.run(comm, plan(collective, **given)) for row in rows]


def enough(comm, collective):
    if comm.size < bench.COLLECTIVES[collective].least_ranks:
        pytest.skip("needs two ranks")


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right(comm, collective, dtype, seed):
    enough(comm, collective)
    place = "both" if bench.COLLECTIVES[collective].in_place else "out"
    root = comm.size - 1 if bench.COLLECTIVES[collective].rooted else 0
    rows = rows_of(comm, collective, dtype=dtype, place=place, root=root, seed=seed, sizes=(1, 4000, 600_000))
    assert rows and all(row["ok"] is True and row["n_wrong"] == 0 for row in rows)
    assert {row["place"] for row in rows} == ({"out", "in"} if place == "both" else {"out"})
    assert all(list(row) == list(FIELDS) and row["collective"] == collective for row in rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_lossy_algorithms_are_as_exact_as_documented(comm, op, dtype, seed):
    given = {"algorithms": LOSSY, "dtype": dtype, "op": op, "place": "both", "seed": seed, "sizes": (1, 4000, 600_000)}
    rows = rows_of(comm, "allreduce", **given)
    assert {row["algorithm"] for row in rows} == set(LOSSY)
    assert all(row["ok"] is True and row["n_wrong"] == 0 for row in rows)


def test_lossy_algorithms_take_sums_of_real_numbers():
    for given in ({"dtype": "int32"}, {"op": "max"}):
        with pytest.raises(InvalidArgument, match="int8 add or average floating-point numbers, got"):
            plan("allreduce", algorithms=("int8",), **given)
    with pytest.raises(InvalidArgument, match="unknown algorithm 'int8'"):
        plan("bcast", algorithms=("int8",))


@pytest.mark.parametrize("op", ["prod", "min", "max", "avg"])
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter"])
def test_other_operations_are_right(comm, collective, op, seed):
    rows = rows_of(comm, collective, op=op, dtype="float16", place="both", seed=seed, sizes=(3000,))
    assert all(row["ok"] is True and row["op"] == op for row in rows)


def test_all_dtypes_in_cycles(comm, seed):
    rows = rows_of(comm, "allreduce", algorithms=("native",), dtype="all", cycles=2, seed=seed, sizes=(1000, 3000))
    wanted = [(cycle, dtype, size) for cycle in (1, 2) for dtype in DTYPES for size in (1000, 3000)]
    assert [(row["cycle"], row["dtype"], row["nbytes"]) for row in rows] == wanted
    assert all(row["ok"] is True for row in rows)
    assert [row["cycle"] for row in rows_of(comm, "bcast", seed=seed)] == [None, None]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_wrong_element_is_seen(comm, collective, seed):
    """On the last rank one element of the result is changed after each step."""
    enough(comm, collective)
    n = 2 * PERIOD + 7
    vectors = VECTORS[collective](comm, plan(collective, seed=seed), n)
    dense = Dense("native", vectors, "out")
    assert comm.allgather(dense.check()) == [0] * comm.size
    there = sorted({*vectors.pair}) if collective == "pingpong" else range(comm.size)
    index = np.random.default_rng([seed, comm.rank]).integers(n)
    vectors.receive[index] += 1
    assert vectors.wrong() == (comm.rank in there)


def test_what_was_left_there_is_no_result(comm):
    """A step that does nothing must not pass because another implementation left the right result."""
    vectors = VECTORS["allreduce"](comm, plan("allreduce"), 100)
    Dense("native", vectors, "out").check()
    idle = Dense("native", vectors, "out")
    idle.step = lambda: None
    assert idle.check() == 100


def test_bandwidths_follow_nccl_tests(comm):
    p = comm.size
    factors = {"allreduce": 2 * (p - 1) / p, "reduce_scatter": (p - 1) / p, "allgather": (p - 1) / p,
               "alltoall": (p - 1) / p, "bcast": 1.0, "pingpong": 1.0}  # fmt: skip
    for collective, factor in factors.items():
        if collective == "pingpong" and p == 1:
            continue
        row = rows_of(comm, collective, algorithms=("native",), sizes=(4096 * p,))[0]
        assert row["nbytes"] == 4096 * p
        assert row["count"] == (1024 if collective in ("reduce_scatter", "allgather", "alltoall") else 1024 * p)
        assert row["algbw_gbs"] == pytest.approx(row["nbytes"] / row["t_med_us"] / 1e3)
        assert row["busbw_gbs"] == (pytest.approx(factor * row["algbw_gbs"]) if p > 1 else None)
        assert row["wire_modelled"] == (p > 1)


def test_wire_bytes_of_our_own_verbs_are_counted(comm):
    if comm.size == 1:
        return
    n = 4096 * comm.size
    gathered, cast, sent = (
        rows_of(comm, name, algorithms=("auto",), sizes=(n,))[0] for name in ("allgather", "bcast", "pingpong")
    )
    assert not any(row["wire_modelled"] for row in (gathered, cast, sent))
    assert gathered["wire_bytes"] == (comm.size - 1) * 4096
    assert sent["wire_bytes"] == n
    assert cast["wire_bytes"] == n * (comm.size - 1).bit_length()  # the root of a binomial tree, on one node


def test_products_stay_exact(comm):
    for dtype in ("float16", "int32"):
        reduced = Periods(plan("allreduce", op="prod", dtype=dtype), 4 * comm.size).reduced()
        assert np.isfinite(reduced).all() and (reduced != 0).all()


def test_sums_of_many_ranks_stay_exact(comm):
    many = Periods(plan("allreduce", dtype="float16"), 3000)
    assert many.of(2047).any() and not many.of(2048).any()  # float16 holds the integers up to 2048


def test_every_scheme_alone_and_over_all_ranks(comm, seed):
    rows = rows_of(comm, "schemes", algorithms=("native",), schemes=tuple(names()), seed=seed, sizes=(20_000,))
    assert [(row["scheme"], row["part"]) for row in rows[1:]] == [
        (scheme, part) for scheme in names() for part in ("local", "step")
    ]
    assert all(row["ok"] is True for row in rows)
    for local, step in zip(rows[1::2], rows[2::2], strict=True):
        assert local["wire_bytes"] == 0 and local["vs"] is None and local["t_decompress_us"] >= 0
        assert step["t_local_us"] == local["t_local_us"] == local["t_med_us"]
        if not step["wire_bytes"]:  # one rank, or memory that the ranks share
            assert step["break_even_gbs"] is None
        else:
            saved = max(0, 2 * (comm.size - 1) * step["nbytes"] // comm.size - step["wire_bytes"])
            assert step["break_even_gbs"] == pytest.approx(saved / local["t_med_us"] / 1e3)


def test_order_is_shuffled_the_same_way_everywhere(comm, seed):
    orders = [Timer(comm, [None] * 8, lambda name: None, shuffle=[seed, n])._order(0) for n in (1, 1, 2)]
    assert orders[0] == orders[1] and sorted(orders[0]) == list(range(8))
    assert len({str(one) for one in comm.allgather(orders)}) == 1
    timer = Timer(comm, [None] * 8, lambda name: None, shuffle=[seed])
    assert len({str(timer._order(i)) for i in range(10)}) > 1


def test_confidence_ends_the_rounds(comm):
    wide = rows_of(comm, "allreduce", iters=None, target_ci=1e6, algorithms=("native",), max_time=5.0)
    assert wide[0]["iters"] < 20  # known well enough as soon as an interval exists
    assert wide[0]["ci_low_us"] <= wide[0]["t_med_us"] <= wide[0]["ci_high_us"]
    narrow = rows_of(comm, "allreduce", iters=None, target_ci=0.0, algorithms=("native",))
    assert narrow[0]["iters"] > wide[0]["iters"]


@pytest.mark.parametrize(
    ("collective", "given", "text"),
    [
        ("bcast", {"root": 99}, "root must be a rank"),
        ("bcast", {"op": "max"}, "does not reduce"),
        ("bcast", {"place": "in"}, "no choice of place"),
        ("bcast", {"algorithms": ("ring",)}, "unknown algorithm 'ring': choose one of native, auto for bcast"),
        ("allgather", {"schemes": ("topk",)}, "only allreduce and schemes take --scheme"),
        ("allreduce", {"device": "tpu"}, "device must be one of cpu, gpu"),
    ],
)
def test_plans_that_cannot_be(comm, collective, given, text):
    with pytest.raises(InvalidArgument, match=text):
        rows_of(comm, collective, **given)


def test_pingpong_needs_two_ranks(comm):
    if comm.size == 1:
        with pytest.raises(InvalidArgument, match="needs at least 2 ranks, got 1"):
            rows_of(comm, "pingpong")


@pytest.fixture
def pretended_gpus():
    """CuPy as far as the bench knows it: two GPUs whose memory is NumPy's."""
    runtime = SimpleNamespace(getDeviceCount=lambda: 2, setDevice=lambda number: chosen.append(number))
    pretended, chosen = cuda_runtime.Runtime(), []
    pretended.xp = SimpleNamespace(asarray=np.array, empty=np.empty, cuda=SimpleNamespace(runtime=runtime))
    before = cuda_runtime.use(pretended)
    yield chosen
    cuda_runtime.use(before)


def test_ranks_take_the_gpus_in_turn(comm, pretended_gpus):
    assert choose_device(comm) == comm.rank % 2  # all ranks of this test are on one node
    rows = rows_of(comm, "allreduce", device="gpu", sizes=(4096,), bounds=(1e-3,), place="both")
    assert {row["ran"] for row in rows if row["bound"]} == {"exact", "two_hops"}
    assert pretended_gpus == [comm.rank % 2] * 2
    assert all(row["device"] == "gpu" and row["ok"] is True for row in rows)


def test_no_gpu_is_one_clear_error(comm):
    class Failed(Exception):
        pass

    def fail():
        raise Failed("no driver")

    pretended = cuda_runtime.Runtime()
    runtime = SimpleNamespace(getDeviceCount=fail, CUDARuntimeError=Failed)
    pretended.xp = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    before = cuda_runtime.use(pretended)
    try:
        with pytest.raises(InvalidArgument, match="--device gpu: CUDA says no driver"):
            choose_device(comm)
        with pytest.raises(InvalidArgument, match="no driver"):
            bench.run(comm, plan("allreduce", device="gpu"))  # before rows are asked for, and a table's head printed
    finally:
        cuda_runtime.use(before)

"""The Reducer on every number of ranks, against a one-process simulation of all workers.

Gradients are small integers stored as floats and beta is a power of two, so every order of summation gives the same
bits and ``array_equal`` is the check.
"""

import math
import os
import resource

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp._util.partition import partition
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.ops.host import PIECE

STEPS = 5
SCHEMES = [
    "dense",
    "dense:values=float16",
    "scalecom:chunk=7",
    "scalecom:chunk=7,beta=0.5",
    "scalecom:chunk=300,values=float16",
    "scalecom:chunk=1",
    "topk:density=0.1",
    "topk:k=3,beta=0.5",
    "topk:k=3,memory=none",
    "threshold:lam=40",
    "threshold:lam=1e9",
]


def gradient(seed, worker, step, n, dtype=np.float32):
    """Integers, larger where few: ties are rare and sums stay exact in float32 and float16."""
    rng = np.random.default_rng([seed, worker, step])
    return rng.integers(-48, 49, n).astype(dtype)


def pick(scheme, u):
    """Indices one worker selects, by the obvious route."""
    options = scheme.options
    magnitude = np.abs(u)
    if scheme.name == "dense":
        return np.arange(u.size)
    if scheme.name == "scalecom":
        chunk = options["chunk"]
        return np.array([at + np.argmax(magnitude[at : at + chunk]) for at in range(0, u.size, chunk)], int)
    if scheme.name == "topk":
        k = options["k"] or max(1, round(options["density"] * u.size))
        return np.sort(np.argsort(-magnitude, kind="stable")[: min(k, u.size)])
    return np.flatnonzero(magnitude >= options["lam"])


class Simulation:
    """All workers of a scheme in one process, in float64."""

    def __init__(self, text, workers, n):
        self.scheme = mpicomp.Scheme.parse(text)
        self.memory = np.zeros((workers, n))
        keeps = self.scheme.name != "dense" and self.scheme.options["memory"] != "none"
        self.beta = self.scheme.options.get("beta", 1.0) if keeps else None

    def step(self, number, gradients):
        u = self.memory + gradients
        workers = len(u)
        if self.scheme.name == "scalecom":
            chosen = [pick(self.scheme, u[number % workers])] * workers
        else:
            chosen = [pick(self.scheme, one) for one in u]
        total = np.zeros(u.shape[1])
        for one, indices in zip(u, chosen, strict=True):
            total[indices] += one[indices]
        if self.beta is not None:
            kept = u.copy()
            for one, indices in zip(kept, chosen, strict=True):
                one[indices] = 0
            self.memory = (1 - self.beta) * self.memory + self.beta * kept
        return (total.astype(np.float32) * np.float32(1 / workers)).astype(np.float32)


def residual(reducer, worker=0):
    return reducer.state_dict().get(f"memory/{worker}/residual")


@pytest.mark.parametrize("n", [1, 29, 1000])
@pytest.mark.parametrize("text", SCHEMES)
def test_equals_the_simulation(comm, seed, text, n):
    reducer = mpicomp.Reducer(comm, text)
    simulation = Simulation(text, comm.size, n)
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step, n) for worker in range(comm.size)])
        mean = reducer.reduce(everyone[comm.rank])
        expected = simulation.step(step, everyone)
        if "float16" in text:  # the sum is rounded once to float16: exact here up to 2048
            np.testing.assert_allclose(mean, expected, rtol=2**-10)
        else:
            np.testing.assert_array_equal(mean, expected)
        if simulation.beta is not None:
            np.testing.assert_array_equal(residual(reducer), simulation.memory[comm.rank])


@pytest.mark.parametrize("text", SCHEMES)
def test_sparse_mean_is_the_dense_mean(comm, seed, text):
    grad = gradient(seed, comm.rank, 0, 500)
    dense = mpicomp.Reducer(comm, text).reduce(grad)
    indices, values, n = mpicomp.Reducer(comm, text).reduce_sparse(grad)
    rebuilt = np.zeros(n, values.dtype)
    rebuilt[slice(None) if indices is None else indices] = values
    np.testing.assert_array_equal(rebuilt, dense)
    assert indices is None or np.all(np.diff(indices) > 0)


@pytest.mark.parametrize(
    "text", ["scalecom:chunk=16", "scalecom:chunk=16,values=float16", "topk:k=9", "threshold:lam=1.5"]
)
def test_sent_plus_kept_is_what_came_in(comm, seed, text):
    """Random floats: what all ranks' memories gained and the sum that was sent make up all gradients."""
    n = 777
    reducer = mpicomp.Reducer(comm, text)
    rng = np.random.default_rng([seed, comm.rank])
    came_in = np.zeros(n)
    sent = np.zeros(n)
    for _ in range(STEPS):
        grad = rng.standard_normal(n).astype(np.float32)
        came_in += grad
        sent += reducer.reduce(grad).astype(float) * comm.size
    kept = residual(reducer).astype(float)
    comm.Allreduce(MPI.IN_PLACE, came_in)
    comm.Allreduce(MPI.IN_PLACE, kept)
    tolerance = 2e-3 if "float16" in text else 1e-5
    np.testing.assert_allclose(sent + kept, came_in, atol=tolerance * STEPS * comm.size)


@pytest.mark.parametrize("text", SCHEMES[:-1])
def test_every_rank_has_the_same_bits(comm, seed, text):
    rng = np.random.default_rng([seed, comm.rank])
    reducer = mpicomp.Reducer(comm, text)
    for _ in range(3):
        mean = reducer.reduce(rng.standard_normal(4321).astype(np.float32))
    reference = mean.copy()
    comm.Bcast(reference)
    assert mean.tobytes() == reference.tobytes()


@pytest.mark.parametrize("form", ["dict", "list", "shaped"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layers", ["whole", "per-tensor"])
def test_structures_and_dtypes(comm, seed, form, dtype, layers):
    shapes = [(4, 5), (0,), (1,), (31,)]
    arrays = [gradient(seed, comm.rank, i, int(np.prod(s)), dtype).reshape(s) for i, s in enumerate(shapes)]
    grads = {"dict": dict(zip("wxyz", arrays, strict=True)), "list": arrays, "shaped": arrays[0]}[form]
    reducer = mpicomp.Reducer(comm, f"scalecom:chunk=1,layers={layers}")
    mean = reducer.reduce(grads)
    values = {"dict": lambda: list(mean.values()), "list": lambda: mean, "shaped": lambda: [mean]}[form]()
    for i, (value, shape) in enumerate(zip(values, shapes, strict=False)):
        n = int(np.prod(shape))
        total = sum(gradient(seed, rank, i, n, np.float64) for rank in range(comm.size))
        assert value.dtype == dtype
        assert value.shape == shape
        np.testing.assert_allclose(value.ravel(), total / comm.size, rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("text", ["scalecom:chunk=112", "topk:k=1000", "dense"])
def test_long_vectors_are_updated_while_values_travel(comm, text):
    n = 2 * PIECE + 77
    reducer = mpicomp.Reducer(comm, text, algorithm="ring")
    grad = np.arange(n, dtype=np.float32) % 1009 + comm.rank
    mean = reducer.reduce(grad)
    kept = residual(reducer)
    kept = np.zeros(n, np.float32) if kept is None else kept
    total = grad.astype(float) - kept
    comm.Allreduce(MPI.IN_PLACE, total)
    np.testing.assert_array_equal(mean, (total.astype(np.float32) * np.float32(1 / comm.size)))


def test_per_tensor_selects_in_every_tensor(comm):
    grads = {"big": np.full(100, 9, np.float32), "small": np.full(10, 1, np.float32)}
    whole = mpicomp.Reducer(comm, "topk-global:density=0.1").reduce(grads)
    each = mpicomp.Reducer(comm, "topk:density=0.1").reduce(grads)
    assert np.count_nonzero(whole["small"]) == 0
    assert np.count_nonzero(each["small"]) == 1
    assert np.count_nonzero(each["big"]) == 10


def test_out_may_be_the_gradient_itself(comm, seed):
    for text in ["dense", "scalecom:chunk=5"]:
        grad = gradient(seed, comm.rank, 0, 123)
        expected = mpicomp.Reducer(comm, text).reduce(grad)
        result = mpicomp.Reducer(comm, text).reduce(grad, out=grad)
        assert result is grad
        np.testing.assert_array_equal(grad, expected)


@pytest.mark.parametrize("text", ["dense", "scalecom:chunk=7,beta=0.5", "topk:k=3", "threshold:lam=40"])
def test_virtual_workers_are_independent_of_the_ranks(comm, seed, text):
    total, n = 2 * comm.size + 1, 64
    counts, displs = partition(total, comm.size)
    mine = range(displs[comm.rank], displs[comm.rank] + counts[comm.rank])
    reducer = mpicomp.Reducer(comm, text, workers=len(mine))
    simulation = Simulation(text, total, n)
    for step in range(STEPS):
        everyone = np.array([gradient(seed, worker, step, n) for worker in range(total)])
        rows = everyone[mine.start : mine.stop]
        mean = reducer.reduce(rows if len(mine) > 1 else rows[0])
        np.testing.assert_array_equal(mean, simulation.step(step, everyone))
    if simulation.beta is not None:
        for place, worker in enumerate(mine):
            np.testing.assert_array_equal(residual(reducer, place), simulation.memory[worker])
        norm = np.linalg.norm(simulation.memory[mine.start : mine.stop])
        np.testing.assert_allclose(reducer.memory_norm(), norm, rtol=1e-6)


@pytest.mark.parametrize("text", [
    "half", "dense:values=bfloat16", "dense:values=float16,memory=residual", "scalecom:chunk=7,values=float16",
    "randomk:k=9,values=bfloat16", "arctopk:row=4,width=2,k=9,values=float16", "sketchsgd:k=2,rows=3,values=float16",
    "powersgd:values=float16",
])  # fmt: skip
def test_ranks_of_one_and_of_several_workers_speak_the_same_on_a_narrow_wire(comm, seed, text):
    total, n, mine = 2 * comm.size - 1, 300, 1 if comm.rank == 0 else 2
    first = max(0, 2 * comm.rank - 1)
    everyone = np.array([gradient(seed, worker, 0, n) for worker in range(total)])
    rows = everyone[first : first + mine]
    mean = mpicomp.Reducer(comm, text, workers=mine).reduce(rows if mine > 1 else rows[0])
    alone = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), text, workers=total)
    np.testing.assert_array_equal(mean, alone.reduce(everyone if total > 1 else everyone[0]))


def test_a_foreign_state_is_refused_on_every_rank(comm):
    state = mpicomp.Reducer(comm, "topk:k=3").state_dict()
    reducer = mpicomp.Reducer(comm, "topk:k=4")
    with pytest.raises(InvalidArgument, match="the state must have scheme=topk:k=4, got topk:k=3"):
        reducer.load_state_dict(state)
    with pytest.raises(InvalidArgument, match="must be of a Reducer's state_dict, got NoneType"):
        reducer.load_state_dict(None)


def test_a_state_is_of_the_same_scheme_however_that_is_written(comm, seed):
    first = mpicomp.Reducer(comm, "topk:k=3,beta=0.5")
    first.reduce(gradient(seed, comm.rank, 0, 50))
    second = mpicomp.Reducer(comm, "topk:beta=5e-1,k=3,layers=per-tensor")
    second.load_state_dict(first.state_dict())
    grad = gradient(seed, comm.rank, 1, 50)
    assert first.reduce(grad).tobytes() == second.reduce(grad).tobytes()


@pytest.mark.parametrize("text", ["topk-global:k=3", "topk:k=2,memory=none,schedule=accordion,interval=2"])
@pytest.mark.parametrize("names", ["ba", "ac", "a"])
def test_a_state_of_other_arrays_is_refused(comm, text, names):
    """Error memory is one vector: in another order it would be that of other arrays."""
    arrays, others = ({name: np.arange(6.0) for name in of} for of in ("ab", names))
    first, second, third = (mpicomp.Reducer(comm, text) for _ in range(3))
    third.reduce(others)
    for _ in range(3):
        first.reduce(arrays)
    with pytest.raises(InvalidArgument, match=r"those of the state, .*a\[6\], b\[6\], got |vectors must have 6"):
        third.load_state_dict(first.state_dict())
    assert third.step == 1
    second.load_state_dict(first.state_dict())
    second.load_state_dict(second.state_dict())
    with pytest.raises(InvalidArgument, match=r"those of the state, |residual has 12"):
        second.reduce(others)
    expected, mean = first.reduce(arrays), second.reduce(arrays)
    assert all(mean[name].tobytes() == expected[name].tobytes() for name in arrays)


@pytest.mark.parametrize(("damage", "kind", "said"), [
    (lambda state: state.pop("step"), InvalidArgument, "state_dict, it lacks step"),
    (lambda state: state.update(step="x"), ValueError, "invalid literal"),
    (lambda state: state.update({"exchange/q": np.zeros(3)}), InvalidArgument, "saved Q has 3 elements"),
])  # fmt: skip
def test_a_state_that_is_damaged_on_one_rank_is_refused_on_all(comm, damage, kind, said):
    matrix, last = np.ones((9, 9)), comm.size - 1
    first, second = (mpicomp.Reducer(comm, "powersgd:rank=2") for _ in range(2))
    first.reduce(matrix)
    state = first.state_dict()
    if comm.rank == last:
        damage(state)
    with pytest.raises(kind, match=f"rank {last}: .*{said}"):
        second.load_state_dict(state)
        second.reduce(matrix)
    second.load_state_dict(first.state_dict())
    assert second.reduce(matrix).tobytes() == first.reduce(matrix).tobytes()


def test_a_first_step_on_which_ranks_disagree_leaves_no_layout(comm, seed):
    reducer = mpicomp.Reducer(comm, "topk:k=3")
    if comm.size > 1:
        with pytest.raises(Disagreement, match=r"float32 gradient\[5[01]\].*float32 gradient\[5[01]\]"):
            reducer.reduce(gradient(seed, comm.rank, 0, 51 if comm.rank == 0 else 50))
    with pytest.raises(InvalidArgument, match="a shift needs a scheme with memory=shifted"):
        reducer.set_shift(np.ones(7))
    mean = reducer.reduce(gradient(seed, comm.rank, 0, 50))
    np.testing.assert_array_equal(mean, mpicomp.Reducer(comm, "topk:k=3").reduce(gradient(seed, comm.rank, 0, 50)))


def test_a_first_step_that_is_refused_leaves_a_drop_of_the_learning_rate(comm):
    reducer = mpicomp.Reducer(comm, "accordion:density=0.1")
    reducer.learning_rate_dropped()
    with pytest.raises(NonFiniteGradient):
        reducer.reduce(np.full(9, np.nan))
    assert reducer.state_dict()["schedule/dropped"]


def test_a_refused_shift_leaves_no_layout(comm):
    reducer = mpicomp.Reducer(comm, "topk:k=3,memory=shifted")
    with pytest.raises(BufferRefused, match="must be one of float16"):
        reducer.set_shift([np.ones(7), np.ones(7, np.int32)])
    if comm.size > 1:
        with pytest.raises(Disagreement, match="shift of step 0"):
            reducer.set_shift(np.ones(8 + comm.rank))
    reducer.set_shift(np.ones(9))
    np.testing.assert_array_equal(reducer.reduce(np.ones(9)), np.ones(9))


@pytest.mark.parametrize("text", ["dense", "scalecom:chunk=7", "topk:k=3", "threshold:lam=1"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_non_finite_gradient_is_raised_everywhere_and_not_remembered(comm, seed, text, value):
    reducer = mpicomp.Reducer(comm, text)
    good = {"weight": gradient(seed, comm.rank, 0, 50), "bias": gradient(seed, comm.rank, 1, 5)}
    reducer.reduce(good)
    before = reducer.state_dict()
    bad = {name: array.copy() for name, array in good.items()}
    if comm.rank == comm.size - 1:
        bad["bias"][3] = value
    with pytest.raises(NonFiniteGradient, match=rf"rank {comm.size - 1}\b.*bias\[3\] is {value}"):
        reducer.reduce(bad)
    after = reducer.state_dict()
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])


@pytest.mark.parametrize("text", ["dense", "scalecom:chunk=7", "topk:k=3"])
def test_skip_leaves_out_the_step_on_all_ranks(comm, seed, text):
    reducer = mpicomp.Reducer(comm, text, nonfinite="skip")
    grad = gradient(seed, comm.rank, 0, 50)
    if comm.rank == 0:
        grad[7] = np.nan
    np.testing.assert_array_equal(reducer.reduce(grad), np.zeros(50))
    assert reducer.stats.skipped
    assert reducer.step == 1
    assert reducer.memory_norm() == 0
    reducer.reduce(gradient(seed, comm.rank, 1, 50))
    assert not reducer.stats.skipped


@pytest.mark.parametrize(("values", "gradient"), [("float16", np.float32(1e5)), ("float32", 1e39)])
def test_overflow_of_narrow_values_is_raised_with_those_to_use(comm, values, gradient):
    reducer = mpicomp.Reducer(comm, f"scalecom:chunk=2,values={values}")
    with pytest.raises(NonFiniteGradient, match=f"values={values} overflowed in step 0: use values=same"):
        reducer.reduce(np.full(4, gradient))
    reducer = mpicomp.Reducer(comm, "scalecom:chunk=2,values=same")
    np.testing.assert_array_equal(reducer.reduce(np.full(4, gradient)), np.array([1, 0, 1, 0]) * gradient)


@pytest.mark.parametrize("bucket_bytes", [1024, 1 << 20])
@pytest.mark.parametrize("text", ["dense", "half", "dense:values=bfloat16", "dense:dense=first", "scaled-integer",
                                  "topk"])
def test_a_mean_in_the_place_of_the_gradients_has_the_same_bits(comm, seed, text, bucket_bytes, monkeypatch):
    monkeypatch.setattr("mpicomp.schemes.averaging.BUCKET_BYTES", bucket_bytes)
    one, other = (mpicomp.Reducer(comm, text) for _ in range(2))
    for step in range(3):
        whole = np.random.default_rng([seed, comm.rank, step]).standard_normal(1500).astype(np.float32)
        views = {"a": whole[:700].reshape(7, 100), "b": whole[700:]}
        copies = {name: array.copy() for name, array in views.items()}
        expected = one.reduce(copies, out={name: np.empty_like(array) for name, array in views.items()})
        for name, array in other.reduce(views, out=views).items():
            assert array is views[name]
            np.testing.assert_array_equal(array, expected[name])
        alone, kept = whole.copy(), whole.copy()
        mpicomp.Reducer(comm, text).reduce(alone, out=alone)
        np.testing.assert_array_equal(alone, mpicomp.Reducer(comm, text).reduce(whole))
        np.testing.assert_array_equal(whole, kept)  # no input is overwritten unless the caller allows it


def test_a_refused_step_leaves_the_gradients_whose_place_the_mean_was_to_take(comm, seed):
    whole = gradient(seed, comm.rank, 0, 900) + 1.5
    for text, wrong, error in (("half", 1e5, "overflowed"), ("half", np.nan, r"gradient\[899\] is nan"),
                               ("half", -np.inf, r"gradient\[899\] is -inf"),
                               ("dense:values=bfloat16", np.nan, r"gradient\[899\] is nan"),
                               ("dense", np.nan, r"gradient\[899\] is nan")):  # fmt: skip
        x = whole.copy()
        if comm.rank == comm.size - 1:
            x[-1] = wrong
        kept = x.copy()
        with pytest.raises(NonFiniteGradient, match=error):
            mpicomp.Reducer(comm, text).reduce(x, out=x)
        np.testing.assert_array_equal(x, kept)


def test_allow_lets_it_through(comm):
    reducer = mpicomp.Reducer(comm, "dense", nonfinite="allow")
    assert np.isnan(reducer.reduce(np.full(3, np.nan, np.float32))).all()


@pytest.mark.parametrize(
    ("last", "error", "text"),
    [
        (np.zeros(9, np.float32), Disagreement, r"9"),
        (np.zeros(8, np.float64), Disagreement, "float64"),
        (np.zeros(16, np.float32)[::2], BufferRefused, "must be C-contiguous"),
        (np.zeros(8, int), BufferRefused, "must be one of float16"),
        (None, BufferRefused, "must be an array of NumPy, CuPy or a library that speaks DLPack, got NoneType"),
    ],
)
def test_one_wrong_rank_is_told_to_all(comm, last, error, text):
    grad = last if comm.rank == comm.size - 1 else np.zeros(8, np.float32)
    reducer = mpicomp.Reducer(comm, "scalecom:chunk=2")
    if comm.size == 1 and error is Disagreement:
        return
    with pytest.raises(error, match=text):
        reducer.reduce(grad)


def test_different_schemes_or_steps_are_told_to_all(comm):
    if comm.size == 1:
        return
    with pytest.raises(Disagreement, match="topk:k=2"):
        mpicomp.Reducer(comm, "topk:k=2" if comm.rank == 0 else "topk:k=1")
    with pytest.raises(InvalidArgument, match="unknown scheme"):
        mpicomp.Reducer(comm, "nonsense" if comm.rank == 0 else "topk:k=1")
    reducer = mpicomp.Reducer(comm, "topk:k=1")
    reducer.step = comm.rank
    with pytest.raises(Disagreement, match="step 1"):
        reducer.reduce(np.zeros(4))


def test_other_arrays_need_another_reducer(comm):
    reducer = mpicomp.Reducer(comm, "topk:k=1")
    reducer.reduce(np.zeros(4))
    with pytest.raises(InvalidArgument, match="make another Reducer"):
        reducer.reduce(np.zeros(5))
    with pytest.raises(BufferRefused, match="out must have the gradients' shapes"):
        reducer.reduce(np.zeros(4), out=np.zeros(3))


@pytest.mark.parametrize("scheme", ["threshold", "adacomp", "induced"])
def test_densities_that_no_selector_asks_for_are_refused(comm, scheme):
    with pytest.raises(InvalidArgument, match="densities below 1 of single arrays need a selector"):
        mpicomp.Reducer(comm, f"{scheme}:layers=per-tensor", densities={"a": 0.5, "b": 1.0})
    assert mpicomp.Reducer(comm, f"{scheme}:layers=per-tensor", densities={"b": 1.0}).step == 0


def test_statistics_count_what_was_sent(comm, seed):
    n, chunk = 6400, 64
    reducer = mpicomp.Reducer(comm, f"scalecom:chunk={chunk}", algorithm="ring")
    for step in range(comm.size + 1):
        reducer.reduce(gradient(seed, comm.rank, step, n))
        assert reducer.stats.step == step
        assert reducer.stats.leader == step % comm.size
    k = n // chunk
    assert reducer.stats.density == k / n
    assert reducer.stats.payload_bits == 32 * k + 8 * k / comm.size
    assert set(reducer.stats.seconds) >= {"compress", "exchange", "update"}
    counts = np.array([reducer.stats.bytes_sent, reducer.stats.bytes_received])
    comm.Allreduce(MPI.IN_PLACE, counts)
    assert counts[0] == counts[1]
    values, selection = 2 * (comm.size - 1) * 4 * k, (comm.size - 1) * k
    assert values + selection <= counts[0] <= values + selection + 512 * comm.size  # and the agreements


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="nothing is kept under the sanitizer")
@pytest.mark.parametrize("scheme", ["int8", "topk:density=0.01"])
def test_a_mean_that_nobody_holds_leaves_its_memory_to_the_next(comm, scheme):
    """The system gives few pages in a step: the fewest of eight steps count, since the first fill what is kept."""
    reducer, vector = mpicomp.Reducer(comm, scheme), np.random.default_rng(comm.rank).random(1 << 22, np.float32)
    fewest = math.inf
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        reducer.reduce(vector)
        fewest = min(fewest, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert comm.allreduce(fewest, max) < vector.nbytes // resource.getpagesize() // 8

"""Finite gradients that are too large or too small: nothing infinite is handed out or remembered, and nothing is lost.

The result's dtype may be narrower than that of computation: what a float16 mean cannot hold stays in the memories, and
a scheme without any refuses the step.
"""

import numpy as np
import pytest
from mpi4py import MPI
from scheme_sets import each, small

import mpicomp
from mpicomp import schemes
from mpicomp.errors import NonFiniteGradient

pytestmark = [
    pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="four ranks show it; codes gathered by many go dense"),
    pytest.mark.filterwarnings("ignore::mpicomp.errors.SchemeWarning"),  # memories that coarse codes let grow
]
SMALL = {"density": "0.05", "chunk": "16", "bin": "20", "columns": "64", "row": "16", "period": "2", "unit": "0.1",
         "candidates": "dense+scalecom/chunk=7", "error": "0.001"}
SHAPES = {"w": (20, 30), "b": (40,)}
OTHERS = ["topk:codec=levels,k=20", "topk:codec=natural,k=20", "qsgd:exchange=pieces", "onebit:codec=levels",
          "powersgd:rank=2,memory=none", "randomk:k=20,dense=1d,memory=momentum-corrected", "topk:memory=shifted,k=20",
          "scalecom:chunk=16,beta=0.1", "onebit:second=no", "dgc:density=0.05,nesterov=yes,dense=1d"]


ALL = [*(small(name, SMALL) for name in schemes.names() if name != "strom"), "strom:lam=2", *OTHERS]
PLAIN = [text for text in ALL if text.partition(":")[0] in ("dense", "half")]


def gradients(seed, rank, step, size, dtype):
    """Gradients with magnitudes from half of ``size`` up to ``size``."""
    rng = np.random.default_rng([seed, rank, step])
    return {name: (rng.choice([-1, 1], shape) * rng.uniform(0.5, 1, shape) * size).astype(dtype)
            for name, shape in SHAPES.items()}


def arrays(state):
    return {name: value for name, value in state.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}


def residuals(reducer):
    return [value for name, value in reducer.state_dict().items() if name.endswith("/residual")]


@pytest.mark.parametrize("text", ["int8:memory=update,second=yes,dense=1d", "powersgd:rank=1,memory=update,dense=1d"])
def test_what_an_exchange_keeps_stays_if_dense_arrays_refuse_the_step(comm, seed, text):
    reducer = mpicomp.Reducer(comm, text, nonfinite="skip")
    rng = np.random.default_rng([seed, comm.rank])
    kept = []
    for _ in range(3):
        reducer.reduce({"w": rng.standard_normal((40, 40)).astype(np.float16), "b": np.full(8, 6e4, np.float16)})
        kept.append((reducer.stats.skipped, arrays(reducer.state_dict())))
    assert [skipped for skipped, _ in kept] == [False, True, True]
    if comm.size > 1:  # the second coding of one rank codes what is coded already, which may leave nothing
        assert any(value.any() for name, value in kept[0][1].items() if name.startswith("exchange/"))
    np.testing.assert_equal(kept[2][1], kept[0][1])


# -- in the precision of computation

@pytest.mark.parametrize("size", [1e26, 3e38])
@pytest.mark.parametrize("text", each(text for text in ALL if text not in PLAIN))
def test_large_gradients_are_averaged_or_refused_and_never_remembered_as_infinity(comm, seed, text, size):
    """A step that raises does so on all ranks, and leaves every memory as it was."""
    reducer = mpicomp.Reducer(comm, text)
    for step in range(3):
        before = arrays(reducer.state_dict())
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                mean = reducer.reduce(gradients(seed, comm.rank, step, size, np.float32))
            raised = False
            assert all(np.isfinite(value).all() for value in mean.values())
        except NonFiniteGradient:
            raised = True
            np.testing.assert_equal(arrays(reducer.state_dict()), before)
        assert comm.allgather(raised) == [raised] * comm.size
        assert raised == (size > 1e30 and (step > 0 or not text.startswith("localsgd")))  # whose first step is silent
        for name, value in arrays(reducer.state_dict()).items():
            assert np.isfinite(value).all(), (name, step)


def test_memories_that_add_up_to_too_much_are_refused(comm):
    """No gradient of the first steps is too large."""
    for text in ("randomk:k=5", "sketchsgd:k=5,columns=16", "scalecom:chunk=10", "onebit", "powersgd", "dgc:k=5",
                 "randomk:k=5,memory=momentum-corrected", "error-reset:k=5,period=1", "signsgd"):
        reducer, slowly = mpicomp.Reducer(comm, text), text in ("onebit", "powersgd", "signsgd")
        grad = {"w": np.random.default_rng(comm.rank).uniform(3e29, 4e29, (20, 30)).astype(np.float32)}
        with pytest.raises(NonFiniteGradient, match=r"error memory and gradient overflowed in step \d+: magnitudes"):
            for _ in range(500):
                reducer.reduce(grad)
                grad["w"] *= np.float32(1.05 if slowly else 1)  # these keep little of equal gradients
        assert all(np.isfinite(value).all() for value in arrays(reducer.state_dict()).values())
        assert comm.allgather(reducer.step) == [reducer.step] * comm.size


@pytest.mark.parametrize("memory", ["residual", "none"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powersgd_of_any_size_is_that_of_one_scaled(comm, seed, dtype, memory):
    """A power of two changes no digit: P has the gradient's size, not its square, which would overflow or vanish."""
    # Error memories grow to some 13: times 2^96 that would be above the largest magnitude that is not refused.
    powers = [-100, -80, 60, 95] if dtype == np.float32 else [-900, -600, 400, 460]
    rngs = [np.random.default_rng([seed, comm.rank, step]) for step in range(5)]
    grads = [rng.standard_normal((30, 20)).astype(dtype) for rng in rngs]
    plain = mpicomp.Reducer(comm, f"powersgd:rank=2,memory={memory}")
    means = [plain.reduce(grad) for grad in grads]
    for power in powers:
        scaled = mpicomp.Reducer(comm, f"powersgd:rank=2,memory={memory}")
        for grad, mean in zip(grads, means, strict=True):
            np.testing.assert_array_equal(np.ldexp(scaled.reduce(np.ldexp(grad, power)), -power), mean)


def test_powersgd_goes_on_after_gradients_that_are_zero(comm, seed):
    reducer = mpicomp.Reducer(comm, "powersgd:rank=2,memory=none")
    reducer.reduce(np.zeros((30, 20), np.float32))
    rng = np.random.default_rng(seed)
    one = rng.standard_normal((30, 1)) @ rng.standard_normal((1, 20))
    for _ in range(3):
        mean = reducer.reduce(one.astype(np.float32))
    np.testing.assert_allclose(mean, one, rtol=1e-4, atol=1e-4)


def test_a_second_memory_that_has_grown_too_large_is_refused(comm, seed):
    """A code whose error may exceed the value makes the memory grow from step to step."""
    reducer = mpicomp.Reducer(comm, "qsgd:exchange=pieces")
    reducer.reduce(gradients(seed, comm.rank, 0, 1, np.float32))
    state = reducer.state_dict()
    state["exchange/residual"] += np.float32(1e34 if comm.rank == comm.size - 1 else 0)
    reducer.load_state_dict(state)
    reducer.reduce(gradients(seed, comm.rank, 1, 1, np.float32))
    with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}: error memory and gradient overflowed"):
        reducer.reduce(gradients(seed, comm.rank, 2, 1, np.float32))
    assert np.isfinite(reducer.state_dict()["exchange/residual"]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 2e38])
def test_a_shift_whose_mean_would_not_be_finite_is_refused(comm, wrong):
    reducer = mpicomp.Reducer(comm, "topk:k=5,memory=shifted")
    shift = np.full(50, wrong if comm.rank == comm.size - 1 else 1, np.float32)
    with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}: a shift must hold magnitudes below 1e.30"):
        reducer.set_shift(shift)
    assert not arrays(reducer.state_dict())
    assert np.isfinite(reducer.reduce(np.ones(50, np.float32))).all()


# -- in float16

@pytest.mark.parametrize("text", each(ALL))
def test_a_float16_mean_is_finite_or_refused_on_every_rank(comm, seed, text):
    """And what it does not hold is kept: sent + kept = came in, or nothing has changed."""
    reducer = mpicomp.Reducer(comm, text)
    for step in range(6):
        before = arrays(reducer.state_dict())
        try:
            mean, raised = reducer.reduce(gradients(seed, comm.rank, step % 2, 30_000, np.float16)), False
            assert all(np.isfinite(value).all() for value in mean.values())
        except NonFiniteGradient as error:
            raised = True
            assert "overflowed in step" in str(error)
            np.testing.assert_equal(arrays(reducer.state_dict()), before)
        assert comm.allgather(raised) == [raised] * comm.size
        for name, value in arrays(reducer.state_dict()).items():
            assert np.isfinite(value).all(), (name, step)


KEEPS_ALL = ["topk:density=0.01", "topk:density=0.01,beta=1", "topk-global:density=0.01", "randomk:density=0.01",
             "threshold:lam=150000", "scalecom:chunk=100", "gtopk:density=0.01", "oktopk:density=0.01",
             "sketchsgd:density=0.01", "arctopk:density=0.01,row=8", "powersgd:rank=1", "onebit", "signsgd",
             "topk:k=5,codec=levels,levels=127", "dgc:density=0.01,momentum=0", "topk:density=0.01,memory=shifted",
             "sidco:density=0.02", "adacomp:bin=100"]


@pytest.mark.parametrize("text", KEEPS_ALL)
def test_what_float16_cannot_hold_comes_later(comm, seed, text):
    """Gradients near 1000 gather to more than 65504 before their turn comes; training goes on, and nothing is lost."""
    reducer = mpicomp.Reducer(comm, text)
    shape, rng = (30, 20), np.random.default_rng([seed, comm.rank])
    base = rng.uniform(900, 1100, shape).astype(np.float16)
    came_in, sent, largest = np.zeros(shape), np.zeros(shape), 0.0
    for _ in range(75):
        mean = reducer.reduce(base)
        assert np.isfinite(mean).all()
        largest = max(largest, float(np.abs(mean.astype(float)).max()))
        sent += mean.astype(float)
        came_in += base.astype(float)
    kept = np.zeros(shape)
    for value in residuals(reducer):
        if value.size == kept.size:
            kept += value.reshape(shape)
    second = np.zeros(600)
    if "exchange/residual" in (state := reducer.state_dict()):
        start = int(state["exchange/start"])
        kept = state["memory/0/residual"].astype(float).reshape(shape)
        second[start : start + state["exchange/residual"].size] = state["exchange/residual"] * comm.size
        kept += second.reshape(shape)
    for total in (came_in, kept):
        comm.Allreduce(MPI.IN_PLACE, total)
    # the mean itself is rounded to float16 in every step
    np.testing.assert_allclose(comm.size * sent + kept, came_in, rtol=2**-10, atol=0.05)
    if text.startswith(("randomk", "scalecom")):  # all ranks send the same coordinates
        assert largest == 65504


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_scheme_without_memory_refuses_what_float16_cannot_hold(comm, nonfinite):
    """Natural compression rounds up to a power of two: 65536 of many values above 49152."""
    reducer = mpicomp.Reducer(comm, "natural", nonfinite=nonfinite)
    grad = np.full(400, 60_000, np.float16)
    if nonfinite == "skip":
        assert not reducer.reduce(grad).any()
        assert reducer.stats.skipped and reducer.step == 1
        reducer.reduce(np.ones(400, np.float16))
        assert not reducer.stats.skipped
        return
    with pytest.raises(NonFiniteGradient, match=r"the mean overflowed in step 0: .* whose largest number is 65504"):
        reducer.reduce(grad)
    assert reducer.step == 0


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_result_of_one_rank_alone_that_does_not_fit_is_refused_on_all(comm, seed, nonfinite):
    """With error reset every rank adds a part of its own; the error memory is left."""
    if comm.size == 1:
        pytest.skip("one rank's own part is what the mean lacks")
    reducer = mpicomp.Reducer(comm, "error-reset:period=8,density=0.05,selector=top-k,exchange=gather",
                              nonfinite=nonfinite)
    grad = np.full(400, 20_000 if comm.rank == comm.size - 1 else 1, np.float16)
    grad[0] += 1
    for _ in range(7):
        reducer.reduce(grad)
    before = arrays(reducer.state_dict())
    if nonfinite == "skip":
        assert not reducer.reduce(grad).any() and reducer.stats.skipped
    else:
        with pytest.raises(NonFiniteGradient, match=r"rank \d+: the mean overflowed in step 7"):
            reducer.reduce(grad)
    np.testing.assert_equal(arrays(reducer.state_dict()), before)


def test_a_velocity_of_dense_arrays_that_does_not_fit_changes_no_memory(comm):
    reducer = mpicomp.Reducer(comm, "dgc:density=0.05,dense=1d,momentum=0.9")
    grads = {"w": np.full((30, 20), 10, np.float16), "b": np.full(40, 20_000, np.float16)}
    with pytest.raises(NonFiniteGradient, match=r"the mean overflowed in step \d+: 40 of its elements"):
        for _ in range(10):
            before = arrays(reducer.state_dict())
            reducer.reduce(grads)
    assert reducer.step >= 3
    np.testing.assert_equal(arrays(reducer.state_dict()), before)
    grads["b"][:] = 0
    assert np.isfinite(reducer.reduce(grads)["b"]).all()


def test_sparse_and_dense_results_of_float16_are_the_same(comm, seed):
    dense, sparse = (mpicomp.Reducer(comm, "topk:density=0.01") for _ in range(2))
    for step in range(80):
        grad = np.random.default_rng([seed, comm.rank, step]).uniform(900, 1100, 500).astype(np.float16)
        indices, values, n = sparse.reduce_sparse(grad)
        mean = np.zeros(n, np.float16)
        mean[slice(None) if indices is None else indices] = values
        assert mean.tobytes() == dense.reduce(grad).tobytes()

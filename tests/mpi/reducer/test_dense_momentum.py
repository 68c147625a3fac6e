"""The momentum of arrays that go dense beside a memory that takes it, against the rule of DGC's authors in plain NumPy.

Gradients are small integers and factors powers of two, so that every order of operations gives the same bits.
"""

import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import checkpoint
from mpicomp._util.partition import partition
from mpicomp.errors import InvalidArgument, NonFiniteGradient, SchemeWarning

STEPS = 6
SHAPES = {"b": (7,), "w": (8, 9), "norm": (3,), "v": (4, 6)}  # dense=1d: the first and the third
DENSE = ["b", "norm"]
TEXTS = ["dgc:k=5,dense=1d,momentum=0.5", "dgc:k=5,dense=1d,momentum=0.5,nesterov=yes,layers=whole",
         "dgc:k=5,dense=1d,momentum=0.25,clip=4,masking=no", "topk:k=5,dense=1d,memory=update,momentum=0.5",
         "gtopk:k=5,dense=1d,memory=update,momentum=0.5,nesterov=yes"]  # fmt: skip


def gradients(seed, worker, step, dtype=np.float32):
    rng = np.random.default_rng([seed, worker, step])
    return {name: rng.integers(-48, 49, shape).astype(dtype) for name, shape in SHAPES.items()}


def mine(comm, total):
    """Which of ``total`` workers are this rank's."""
    counts, displs = partition(total, comm.size)
    return range(displs[comm.rank], displs[comm.rank] + counts[comm.rank])


def of_workers(seed, workers, step):
    """Their gradients as a reducer takes them."""
    own = [gradients(seed, worker, step) for worker in workers]
    return own[0] if len(own) == 1 else {name: np.stack([one[name] for one in own]) for name in SHAPES}


class Published:
    """The authors' memory for an array that was all-reduced: ``compensate(..., accumulate=False)``."""

    def __init__(self, scheme):
        self.mu, self.nesterov = scheme.options["momentum"], scheme.options["nesterov"] == "yes"
        self.m = {name: np.zeros(SHAPES[name], np.float32) for name in DENSE}

    def step(self, seed, workers, number):
        everyone = [gradients(seed, worker, number) for worker in range(workers)]
        return {name: self._one(name, sum(one[name] for one in everyone) * np.float32(1 / workers)) for name in DENSE}

    def _one(self, name, mean):
        mu, m = np.float32(self.mu), self.m
        if self.nesterov:
            m[name] = (m[name] + mean) * mu
            return m[name] + mean
        m[name] = m[name] * mu + mean
        return m[name]

    @property
    def velocity(self):
        return np.concatenate([self.m[name] for name in DENSE])


@pytest.mark.parametrize("extra", [0, 1])  # workers a rank: one, or one and two
@pytest.mark.parametrize("text", TEXTS)
def test_equals_the_published_rule(comm, seed, text, extra):
    total = comm.size + extra
    workers = mine(comm, total)
    reducer, published = mpicomp.Reducer(comm, text, workers=len(workers)), Published(mpicomp.Scheme.parse(text))
    for step in range(STEPS):
        mean, expected = reducer.reduce(of_workers(seed, workers, step)), published.step(seed, total, step)
        for name in DENSE:
            np.testing.assert_array_equal(mean[name], expected[name])
        np.testing.assert_array_equal(reducer.state_dict()["dense/velocity"], published.velocity)


@pytest.mark.parametrize("text", TEXTS)
def test_compressed_arrays_know_nothing_of_the_others(comm, seed, text):
    """And *sent + kept = came in* is theirs alone: of the dense ones everything is sent, before their momentum."""
    both, alone = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    for step in range(STEPS):
        grads = gradients(seed, comm.rank, step)
        mean, expected = both.reduce(grads), alone.reduce({name: grads[name] for name in ("w", "v")})
        for name, value in expected.items():
            assert mean[name].tobytes() == value.tobytes()
    kept, expected = both.state_dict(), alone.state_dict()
    arrays = "b[7], w[8, 9], norm[3], v[4, 6]", "w[8, 9], v[4, 6]"
    assert (kept.pop("arrays"), expected.pop("arrays")) == arrays
    assert kept.pop("dense/velocity").size == 10 and kept.keys() == expected.keys()
    np.testing.assert_equal(kept, expected)


@pytest.mark.parametrize("nesterov", ["yes", "no"])
@pytest.mark.parametrize("text", ["dgc:density=1,masking=no", "topk:density=1,memory=update"])
def test_with_everything_sent_all_arrays_have_sgds_momentum(comm, seed, text, nesterov):
    """Whichever way an array goes, taken before or after the mean; random floats."""
    reducers = [mpicomp.Reducer(comm, f"{text},nesterov={nesterov},dense={rule}") for rule in ("1d", "none")]
    for step in range(STEPS):
        rng = np.random.default_rng([seed, comm.rank, step])
        grads = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        some, none = (reducer.reduce(grads) for reducer in reducers)
        for name in SHAPES:
            np.testing.assert_allclose(some[name], none[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", TEXTS)
def test_the_sparse_mean_has_it(comm, seed, text):
    dense, sparse = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    for step in range(3):
        grads = gradients(seed, comm.rank, step)
        mean, expected = sparse.reduce_sparse(grads), dense.reduce(grads)
        whole = np.zeros(mean.n, np.float32)
        whole[slice(None) if mean.indices is None else mean.indices] = mean.values
        np.testing.assert_array_equal(whole[-10:], np.concatenate([expected[name] for name in DENSE]))
        mean.values[:] = 7  # the caller's, until the next step


@pytest.mark.parametrize("text", ["dgc:k=5,dense=1d,momentum=0", "topk:k=5,dense=1d,memory=update,momentum=0",
                                  "topk:k=5,dense=1d"])
def test_without_momentum_the_mean_is_the_result(comm, seed, text):
    reducer, dense = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, "dense")
    for step in range(3):
        grads = gradients(seed, comm.rank, step)
        mean, expected = reducer.reduce(grads), dense.reduce(grads)
        for name in DENSE:
            assert mean[name].tobytes() == expected[name].tobytes()
    assert "dense/velocity" not in reducer.state_dict()


def test_arrays_of_density_1_and_everything_dense(comm, seed):
    """Whatever way an array came to go dense; also where nothing is left to compress."""
    text = "dgc:k=5,momentum=0.5"
    by_rule = mpicomp.Reducer(comm, f"{text},dense=1d")
    by_density = mpicomp.Reducer(comm, text, densities={"b": 1, "norm": 1})
    everything = mpicomp.Reducer(comm, text, densities=dict.fromkeys(SHAPES, 1))
    for step in range(STEPS):
        grads = gradients(seed, comm.rank, step)
        expected, same = by_rule.reduce(grads), by_density.reduce(grads)
        for name in SHAPES:
            assert same[name].tobytes() == expected[name].tobytes()
        values = everything.reduce_sparse(grads).values  # in the order of the arrays
        assert values[:7].tobytes() == expected["b"].tobytes()
        assert values[79:82].tobytes() == expected["norm"].tobytes()
        values[:] = 7  # the caller's, until the next step


@pytest.mark.parametrize("algorithm", ["ring", "auto"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_rank_has_the_same_bits(comm, seed, algorithm, dtype):
    reducer = mpicomp.Reducer(comm, "dgc:density=0.1,dense=1d", algorithm=algorithm)
    for step in range(3):
        rng = np.random.default_rng([seed, comm.rank, step])
        mean = reducer.reduce({name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()})
        velocity = reducer.state_dict()["dense/velocity"]
        assert velocity.dtype == ("float64" if dtype == "float64" else "float32")
        told = b"".join([velocity.tobytes(), *(mean[name].tobytes() for name in SHAPES)])
        assert len(set(comm.allgather(told))) == 1


# -- steps that do not count

@pytest.mark.parametrize("bad", ["b", "w"])
@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_a_step_that_does_not_count_leaves_the_velocity(comm, seed, nonfinite, bad):
    reducer, other = (mpicomp.Reducer(comm, TEXTS[1], nonfinite=nonfinite) for _ in range(2))
    for one in (reducer, other):
        one.reduce(gradients(seed, comm.rank, 0))
    grads = gradients(seed, comm.rank, 1)
    if comm.rank == comm.size - 1:
        grads[bad].flat[2] = np.nan
    if nonfinite == "raise":
        with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}"):
            reducer.reduce(grads)
    else:
        assert not any(value.any() for value in reducer.reduce(grads).values())
    np.testing.assert_array_equal(*(one.state_dict()["dense/velocity"] for one in (reducer, other)))
    grads = gradients(seed, comm.rank, 2)
    for a, b in zip(reducer.reduce(grads).values(), other.reduce(grads).values(), strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_narrow_wire_that_overflows_leaves_the_velocity(comm, seed):
    reducer = mpicomp.Reducer(comm, "dgc:k=5,dense=1d,values=float16")
    reducer.reduce(gradients(seed, comm.rank, 0))
    before, grads = reducer.state_dict(), gradients(seed, comm.rank, 1)
    grads["w"][0, 0] = 1e6
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed"):
        reducer.reduce(grads)
    np.testing.assert_equal(reducer.state_dict(), before)


# -- state

@pytest.mark.parametrize("text", TEXTS)
def test_resume_is_bit_exact(comm, seed, text):
    straight, first = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    for step in range(STEPS):
        straight.reduce(gradients(seed, comm.rank, step))
        first.reduce(gradients(seed, comm.rank, step))
    second, third, begun = (mpicomp.Reducer(comm, text) for _ in range(3))
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())  # a state handed on before it was used
    begun.reduce(gradients(seed, comm.rank, 99))
    begun.load_state_dict(first.state_dict())
    for step in range(STEPS, 2 * STEPS):
        grads = gradients(seed, comm.rank, step)
        expected = straight.reduce(grads)
        for one in (second, third, begun):
            for name, value in one.reduce(grads).items():
                assert value.tobytes() == expected[name].tobytes()


@pytest.mark.parametrize("begun", [False, True])
def test_a_state_without_velocity_begins_at_zero_and_says_so(comm, seed, begun):
    """A saved state may lack the velocity: rank 0 warns once the arrays' layout is known."""
    first, second = (mpicomp.Reducer(comm, TEXTS[0]) for _ in range(2))
    for step in range(STEPS):
        first.reduce(gradients(seed, comm.rank, step))
    old = first.state_dict()
    velocity = old.pop("dense/velocity")
    if begun:
        second.reduce(gradients(seed, comm.rank, 0))
    grads = gradients(seed, comm.rank, STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second.load_state_dict(old)
        mean = second.reduce(grads)
        second.reduce(grads)
    said = [str(one.message) for one in caught if one.category is SchemeWarning]
    assert said == [f"the state of step {STEPS} has no velocity of the arrays that go dense, as those saved before "
                    "there was one: it begins at zero"][: comm.rank == 0]  # fmt: skip
    expected, at = first.reduce(grads), 0
    for name in SHAPES:
        carried = np.zeros(SHAPES[name])
        if name in DENSE:
            carried, at = 0.5 * velocity[at : at + carried.size], at + carried.size
        np.testing.assert_allclose(mean[name] + carried, expected[name], rtol=1e-6, atol=1e-6)


def test_nothing_is_said_where_nothing_goes_dense(comm, seed):
    text = "dgc:k=5,momentum=0.5"
    first, second = mpicomp.Reducer(comm, text), mpicomp.Reducer(comm, text)
    first.reduce(gradients(seed, comm.rank, 0))
    second.load_state_dict(first.state_dict())  # pytest makes an error of such a warning
    second.reduce(gradients(seed, comm.rank, 1))


@pytest.mark.parametrize("begun", [False, True])
def test_a_velocity_of_other_arrays_is_refused_on_every_rank(comm, seed, begun):
    first, second = (mpicomp.Reducer(comm, TEXTS[0]) for _ in range(2))
    first.reduce(gradients(seed, comm.rank, 0))
    other = {**gradients(seed, comm.rank, 0), "b": np.ones(8, np.float32)}
    if begun:
        second.reduce(other)
        with pytest.raises(InvalidArgument, match=r"the state's dense vectors must have 11 elements, got \{10\}"):
            second.load_state_dict(first.state_dict())
        return
    second.load_state_dict(first.state_dict())
    with pytest.raises(InvalidArgument, match="the saved velocity has 10 elements, the dense arrays have 11"):
        second.reduce(other)


def test_other_ranks_take_the_velocity_as_it_is(world, comm, folder, seed):
    """It is of the mean, so it depends on no number of workers, and no sum is formed."""
    part = world.Split(0 if world.rank == 0 else 1, world.rank)
    if world.rank == 0:
        alone = mpicomp.Comm(part)
        reducer = mpicomp.Reducer(alone, TEXTS[0], workers=2)
        for step in range(3):
            reducer.reduce(of_workers(seed, range(2), step))
        checkpoint.save(alone, folder, 3, common={}, reducers={"reducer": reducer})
        alone.Free()
        saved = reducer.state_dict().get("dense/velocity")
    part.Free()
    expected = comm.bcast(saved if world.rank == 0 else None)
    again = mpicomp.Reducer(comm, TEXTS[0])
    checkpoint.load(comm, folder).restore(again)
    np.testing.assert_array_equal(again.state_dict()["dense/velocity"], expected)
    grads = gradients(seed, comm.rank, 9)
    mean = again.reduce(grads)
    total = np.concatenate([grads[name] for name in DENSE])
    comm.Allreduce(MPI.IN_PLACE, total)
    np.testing.assert_array_equal(np.concatenate([mean[name] for name in DENSE]),
                                  np.float32(0.5) * expected + total * np.float32(1 / comm.size))

"""Arrays that a Reducer takes as they are, or refuses on every rank before anything is sent or remembered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from exporter import FLOAT, FLOAT8, Exporter, bfloat16, floats

import mpicomp
from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass")  # NumPy warns about this odd array

N = 12
SCHEMES = ["dense", "half", "topk:density=0.5"]


class Foreign:
    """Looks like an array, as a tensor of another library that will not export it."""

    dtype, shape = np.dtype(np.float32), (N,)

    def reshape(self, *shape):
        return self

    def __dlpack__(self, **options):
        raise BufferError("detach me")


class Pair(NamedTuple):
    weights: object
    biases: object


def numbers():
    return np.arange(N, dtype=np.float32)


def read_only(x):
    x.flags.writeable = False
    return x


def unaligned(dtype=np.float32, n=N):
    """Contiguous, and one byte off."""
    return np.zeros(n * np.dtype(dtype).itemsize + 1, np.uint8)[1:].view(dtype)


GRADIENTS = {
    "Fortran order": (lambda: np.asfortranarray(numbers().reshape(3, 4)), "C-contiguous"),
    "strided": (lambda: np.ones(2 * N, np.float32)[::2], "C-contiguous"),
    "backwards": (lambda: numbers()[::-1], "C-contiguous"),
    "byte order": (lambda: numbers().astype(">f4"), "native byte order"),
    "unaligned": (unaligned, "gradient must be aligned, got float32 elements at an address"),
    "bool": (lambda: np.ones(N, bool), "got bool"),
    "integers": (lambda: np.ones(N, np.int32), "got int32"),
    "complex": (lambda: np.ones(N, np.complex64), "got complex64"),
    "long double": (lambda: np.ones(N, np.longdouble), "must be one of float16"),
    "objects": (lambda: np.array([1.0, None]), "got object"),
    "records": (lambda: np.zeros(N, "f4,i4"), "must be one of float16"),
    "masked": (lambda: np.ma.array(numbers(), mask=[1, *[0] * (N - 1)]), "plain array, got a masked array"),
    "bytes": (lambda: numbers().tobytes(), "got uint8"),
    "number": (lambda: 3.0, "got float"),
    "float8": (lambda: Exporter(np.ones(N, np.uint8), FLOAT8, 8), "type code 10, 8 bits"),
    "not exported": (Foreign, "cannot be read as a buffer: detach me"),
    "mixed": (lambda: [numbers(), np.ones(N)], "make another Reducer for other arrays"),
    "nothing": (list, "make another Reducer for other arrays"),
}  # fmt: skip
OUTPUTS = {
    "read-only": (lambda: read_only(numbers()), "writable, but gradient is read-only"),
    "byte order": (lambda: numbers().astype(">f4"), "shapes and dtype"),
    "unaligned": (unaligned, "out must be aligned, got float32 elements at an address"),
    "dtype": (lambda: np.zeros(N), "shapes and dtype"),
    "length": (lambda: np.zeros(N - 1, np.float32), "shapes and dtype"),
    "masked": (lambda: np.ma.array(numbers()), "plain array, got a masked array"),
    "scalar": (lambda: np.float32(0), "writable, but gradient is read-only"),
    "exported read-only": (lambda: Exporter(numbers(), FLOAT, 32, old=True), "writable, but gradient is read-only"),
    "another form": (lambda: [numbers()], "got list of gradient 0"),
    "no array": (lambda: 3.0, "got float"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_that_are_refused_when_one_rank_has_them(comm, name):
    """The others are right: they get the same error, and may go on."""
    make, said = GRADIENTS[name]
    for scheme in SCHEMES:
        reducer = mpicomp.Reducer(comm, scheme)
        reducer.reduce(numbers())
        norm = reducer.memory_norm()
        with pytest.raises((BufferRefused, InvalidArgument), match=said):
            reducer.reduce(make() if comm.rank == comm.size - 1 else numbers())
        assert (reducer.step, reducer.memory_norm()) == (1, norm)
        assert reducer.reduce(numbers()).shape == (N,)


def contents(out):
    first = out[0] if isinstance(out, list) else out
    return np.array(getattr(first, "data", first)) if isinstance(first, Exporter) else np.array(first)


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_are_refused_when_one_rank_has_them(comm, name):
    make, said = OUTPUTS[name]
    for scheme in SCHEMES:
        reducer, bad = mpicomp.Reducer(comm, scheme), make()
        kept = contents(bad).copy()
        with pytest.raises(BufferRefused, match=said):
            reducer.reduce(numbers(), out=bad if comm.rank == comm.size - 1 else numbers())
        np.testing.assert_array_equal(contents(bad), kept)
        assert (reducer.step, reducer.memory_norm()) == (0, 0.0)


def test_outputs_go_by_name(comm):
    """The same shapes in another order would be the wrong arrays."""
    reducer, out = mpicomp.Reducer(comm, "dense"), {"b": numbers(), "a": numbers()}
    with pytest.raises(BufferRefused, match="dict of a, b in this order; got dict of b, a"):
        reducer.reduce({"a": numbers(), "b": 2 * numbers()}, out=out)


@pytest.mark.parametrize("scheme", ["dense", "topk:density=1"])
def test_what_is_taken_as_it_is(comm, scheme):
    def mean_of(grads, out=None):
        return mpicomp.Reducer(comm, scheme).reduce(grads, out=out)

    assert mean_of(np.array(3, np.float32)) == 3
    assert mean_of(np.empty((0, 4), np.float32)).shape == (0, 4)
    np.testing.assert_array_equal(mean_of(read_only(numbers())), numbers())
    memory = np.arange(20, dtype=np.float32)
    for one, other in zip(mean_of([memory[:12], memory[4:16]]), (memory[:12], memory[4:16]), strict=True):
        np.testing.assert_array_equal(one, other)  # gradients that share memory
    want = memory[:12].copy()
    np.testing.assert_array_equal(mean_of(memory[:12], out=memory[4:16]), want)  # out that overlaps them
    for out in (np.zeros(2 * N, np.float32)[::2], np.zeros((4, 3), np.float32).T):
        got = mean_of(numbers().reshape(out.shape), out=out)
        np.testing.assert_array_equal(got, numbers().reshape(out.shape))
        assert got is out
    for out in (np.asmatrix(np.zeros(N, np.float32)), np.zeros(N, np.float32).view(np.recarray)):
        got = mean_of(numbers().view(type(out)).reshape(out.shape), out=out)  # a subclass is its memory
        assert got is out
        np.testing.assert_array_equal(np.asarray(out).reshape(-1), numbers())
        assert type(mean_of(out)) is np.ndarray


@pytest.mark.parametrize("scheme", ["dense", "topk:density=1"])
def test_structures_come_back_as_they_were(comm, scheme):
    arrays = [numbers(), np.ones((2, 3), np.float32)]
    for grads in (tuple(arrays), Pair(*arrays), arrays, {"a": arrays[0], "b": arrays[1]}):
        reducer = mpicomp.Reducer(comm, scheme)
        for out in (None, grads):
            mean = reducer.reduce(grads, out=out)
            assert type(mean) is type(grads)
            values = mean.values() if isinstance(mean, dict) else mean
            for before, after in zip(arrays, values, strict=True):
                np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("scheme", ["dense", "half", "topk:density=1", "topk:density=1,memory=none"])
def test_arrays_of_other_libraries_are_read_through_dlpack(comm, scheme, old):
    """Also such as must not be written, as JAX's."""
    reducer = mpicomp.Reducer(comm, scheme)
    for step in range(2):
        mine = Exporter(numbers() + 2 * comm.rank + step, FLOAT, 32, old=old)
        kept, mean = mine.data.copy(), reducer.reduce(mine)
        np.testing.assert_array_equal(mean, numbers() + comm.size - 1 + step)
        assert mean.flags.writeable and not np.shares_memory(mean, mine.data)
        np.testing.assert_array_equal(mine.data, kept)
    given = {"a": Exporter(numbers(), FLOAT, 32, old=old), "b": numbers()}
    for array in mpicomp.Reducer(comm, scheme).reduce(given).values():
        np.testing.assert_array_equal(array, numbers())


@pytest.mark.parametrize("scheme", ["dense", "topk:density=1"])
def test_bfloat16_of_other_libraries(comm, scheme):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    reducer = mpicomp.Reducer(comm, scheme)
    mine = bfloat16(numbers() + 2 * comm.rank)
    mean = reducer.reduce(mine)
    assert mean.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(mean, numbers() + comm.size - 1)
    out = bfloat16(np.zeros(N))
    assert reducer.reduce(mine, out=out) is out  # written where the library reads it
    np.testing.assert_array_equal(floats(out), numbers() + comm.size - 1)


class Surprise(dict):
    def items(self):
        raise AttributeError("unforeseen")


@pytest.mark.parametrize(("odd", "kind", "said"), [
    (lambda: Surprise(), AttributeError, "unforeseen"),
    (lambda: {7: numbers()}, InvalidArgument, "names of arrays must be texts, got 7"),
])  # fmt: skip
def test_what_nobody_foresaw_on_one_rank_is_an_error_on_all(comm, odd, kind, said):
    reducer, last = mpicomp.Reducer(comm, "topk:density=0.5"), comm.size - 1
    with pytest.raises(kind, match=f"rank {last}: .*{said}"):
        reducer.reduce(odd() if comm.rank == last else {"w": numbers()})
    with pytest.raises(InvalidArgument, match=f"rank {last}: a scheme is a text"):
        mpicomp.Reducer(comm, 5 if comm.rank == last else "dense")
    assert mpicomp.Reducer(comm, "dense").reduce(np.float32(comm.size)) == comm.size


def test_names_that_utf8_cannot_hold(comm):
    name = "w\udcff"
    np.testing.assert_array_equal(mpicomp.Reducer(comm, "dense").reduce({name: numbers()})[name], numbers())
    if comm.size > 1:
        with pytest.raises(Disagreement, match="w\udcff"):
            mpicomp.Reducer(comm, "dense").reduce({name if comm.rank == 0 else "w": numbers()})

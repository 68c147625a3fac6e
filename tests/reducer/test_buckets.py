"""Flattening arrays and giving them back; refusing what cannot be read as one run of numbers."""

import re
from typing import NamedTuple

import numpy as np
import pytest

from mpicomp import ops
from mpicomp.errors import BufferRefused, InvalidArgument
from mpicomp.reducer.layout import Bucket
from mpicomp.types import address, overlap


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("form", ["array", "dict", "list"])
def test_round_trip(form, dtype):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in [(3, 4), (0,), (), (5,)]]
    grads = {"array": arrays[0], "list": arrays, "dict": dict(zip("abcd", arrays, strict=True))}[form]
    bucket = Bucket(grads, 1)
    (flat,) = bucket.flatten(bucket.read(grads))
    assert flat.shape == (bucket.n,)
    back = bucket.unflatten(flat)
    assert type(back) is type(grads)
    values = {"array": lambda b: [b], "list": list, "dict": lambda b: list(b.values())}[form](back)
    for before, after in zip(arrays, values, strict=False):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(before, after)


class Pair(NamedTuple):
    weights: object
    biases: object


def test_tuples_stay_tuples():
    arrays = [np.zeros((2, 3)), np.ones(2)]
    for grads in (tuple(arrays), Pair(*arrays), arrays):
        bucket = Bucket(grads, 1)
        (flat,) = bucket.flatten(bucket.read(grads))
        back = bucket.unflatten(flat, grads)
        assert type(back) is type(grads)
        for before, after in zip(arrays, back, strict=True):
            np.testing.assert_array_equal(before, after)
        assert all(bucket.read(other) is not None for other in (tuple(arrays), arrays))


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_are_read_as_plain_arrays():
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    for one in (np.asmatrix(data), data.view(np.recarray), data.view(type("Own", (np.ndarray,), {}))):
        for grads in (one, [one], {"w": one, "b": one}):
            bucket = Bucket(grads, 1)
            (flat,) = bucket.flatten(bucket.read(grads))
            np.testing.assert_array_equal(flat[:6], data.reshape(-1))
            assert type(flat) is np.ndarray
        bucket = Bucket(one, 1)
        assert np.shares_memory(bucket.flat_view(bucket.read(one)), data)


def test_one_array_is_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (flat,) = Bucket(array, 1).flatten([array])
    assert np.shares_memory(flat, array)


def test_workers_are_rows():
    grads = {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3.0)}
    bucket = Bucket(grads, 3)
    flat = bucket.flatten(bucket.read(grads))
    np.testing.assert_array_equal(np.stack(flat), [[0, 1, 0], [2, 3, 1], [4, 5, 2]])
    assert bucket.where(2) == "b[]"


def test_where_names_array_and_place():
    bucket = Bucket({"w": np.zeros((2, 3)), "b": np.zeros(2)}, 1)
    assert bucket.where(5) == "w[1, 2]"
    assert bucket.where(7) == "b[1]"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 4), order="F"), "must be C-contiguous"),
        (np.zeros(8)[::2], "must be C-contiguous"),
        (np.zeros(3, ">f4"), "must be in native byte order"),
        (np.zeros(3, int), "must be one of float16, bfloat16, float32, float64, got int64"),
        (np.zeros(3, object), "must be one of float16"),
        ([1.0, 2.0], "must be an array of NumPy, CuPy or a library that speaks DLPack, got float"),
        ("text", "must be an array of NumPy, CuPy or a library that speaks DLPack, got str"),
    ],
)
def test_refused(array, message):
    with pytest.raises(BufferRefused, match=re.escape(message)):
        Bucket(array, 1)


def test_mixed_dtypes_and_nothing_are_refused():
    with pytest.raises(InvalidArgument, match="must share one dtype, got float32, float64"):
        Bucket([np.zeros(2), np.zeros(2, np.float32)], 1)
    with pytest.raises(InvalidArgument, match="got none"):
        Bucket([], 1)


class DeviceVector:
    """Stand-in for a CuPy array: it has no interface of the host's, and knows whose memory it views."""

    def __init__(self, held, base=None):
        self.held, self.base = held, base
        self.ndim, self.size, self.shape, self.nbytes = held.ndim, held.size, held.shape, held.nbytes
        self.dtype, self.itemsize, self.flags = held.dtype, held.itemsize, held.flags

    @property
    def __cuda_array_interface__(self):
        interface = dict(self.held.__array_interface__)
        return {**interface, "data": (interface["data"][0] if self.size else 0, False)}  # CuPy gives no other

    def __getitem__(self, key):
        return DeviceVector(self.held[key], self if self.base is None else self.base)

    def reshape(self, *shape):
        return DeviceVector(self.held.reshape(*shape), self if self.base is None else self.base)


@pytest.fixture
def on_device():
    homes = dict(ops._HOMES)
    ops.register(DeviceVector.__module__.partition(".")[0], ops.ops_for(np.empty(0)))
    yield DeviceVector
    ops._HOMES.clear()
    ops._HOMES.update(homes)
    ops._FOUND.clear()


def test_views_of_one_vector_on_a_device_are_taken_for_it(on_device):
    whole = on_device(np.arange(20, dtype=np.float32))
    views = {"a": whole[2:8].reshape(2, 3), "none": whole[8:8], "b": whole[8:17]}
    bucket = Bucket(views, 1)
    arrays = list(views.values())
    vector, = bucket.flatten(arrays)
    assert (address(vector), vector.size) == (address(whole[2:]), 15)
    assert address(bucket.flat_view(arrays)) == address(vector)
    assert address(bucket.target(arrays, [vector], bucket.flat_view(arrays))) == address(vector)
    elsewhere = on_device(np.empty(15, np.float32))
    out = {"a": elsewhere[:6].reshape(2, 3), "none": elsewhere[6:6], "b": elsewhere[6:]}
    assert address(bucket.target(arrays, [vector], bucket.read_out(out).vector)) == address(elsewhere)
    assert bucket.target(arrays, [vector], None) is None  # which is the gradients' own
    for wrong in ({**views, "b": whole[9:18]}, {**views, "b": on_device(np.empty(9, np.float32))}):
        assert bucket.flat_view(list(wrong.values())) is None
    shifted = {"a": whole[3:9].reshape(2, 3), "none": whole[9:9], "b": whole[9:18]}
    half = bucket.flat_view(list(shifted.values()))  # half of it in the gradients' memory
    assert bucket.target(arrays, [vector], half) is None


def test_memory_in_common():
    x = np.zeros(10, np.float32)
    assert overlap(x[:6], x[5:])
    assert not overlap(x[:5], x[5:])
    assert not overlap(x[:0], x)

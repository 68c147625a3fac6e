"""Reading host arrays of any library, with the element type that the library names."""

import array
import sys

import ml_dtypes
import numpy as np
import pytest
from exporter import BFLOAT, FLOAT, Exporter

from mpicomp.errors import BufferRefused, MissingExtra
from mpicomp.ops.host_arrays import check_named, host_array


class New:
    """Speaks DLPack alone, as NumPy does."""

    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)


NAMED = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
         "complex64", "complex128", "bool")  # fmt: skip


@pytest.mark.parametrize("dtype", NAMED)
def test_types_of_numpy(dtype):
    data = np.ones((2, 3), dtype)
    found = host_array(New(data), "x")
    assert (found.array.dtype, found.array.shape, found.kind) == (data.dtype, (2, 3), None)
    assert found.array.ctypes.data == data.ctypes.data
    assert found.array.flags.writeable


def test_shapes_strides_and_flags():
    data = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (data.T, data[1:3, 2:], data[::2, ::3], data[:0], data[0, 0, ...]):
        found = host_array(New(view), "x").array
        np.testing.assert_array_equal(found, view)
    data.flags.writeable = False
    assert not host_array(New(data), "x").array.flags.writeable


def test_memory_lives_as_long_as_the_array():
    found = host_array(New(np.arange(1000.0)), "x").array
    np.testing.assert_array_equal(found[1:], np.arange(1.0, 1000.0))
    assert found.base is not None


@pytest.mark.parametrize("old", [False, True])
def test_bfloat16_by_its_code_not_by_its_size(old):
    data = np.array([[1, -2], [3, 4]], ml_dtypes.bfloat16)
    bits = data.view(np.uint16)
    found = host_array(Exporter(bits, BFLOAT, old=old), "x")
    assert (found.kind, found.array.dtype, found.array.flags.writeable) == ("bfloat16", np.uint16, not old)
    np.testing.assert_array_equal(found.named(), data)
    turned = host_array(Exporter(bits, BFLOAT, strides=(1, 2), old=old), "x")
    np.testing.assert_array_equal(turned.named(), data.T)
    assert host_array(Exporter(bits, FLOAT, old=old), "x").array.dtype == np.float16


def test_newer_versions_of_dlpack_are_refused():
    new = Exporter(np.zeros(4, np.uint16), BFLOAT)
    new._managed.major = 2
    with pytest.raises(BufferRefused, match="x must export DLPack 1, got version 2"):
        host_array(new, "x")


@pytest.mark.parametrize(("code", "bits", "lanes"), [(10, 8, 1), (4, 32, 1), (2, 16, 4), (17, 4, 1), (2, 8, 1)])
def test_other_types_are_refused(code, bits, lanes):
    odd = Exporter(np.zeros(4, np.uint8), code, bits, lanes)
    text = f"x must hold numbers .*type code {code}, {bits} bits, {lanes} lanes: convert it to float32"
    with pytest.raises(BufferRefused, match=text):
        host_array(odd, "x")
    with pytest.raises(BufferRefused, match="numbers of an MPI datatype"):
        check_named(odd, "x")


def test_arrays_elsewhere_and_no_arrays_are_left_to_others():
    assert host_array(Exporter(np.zeros(4, np.float32), FLOAT, 32, device=10), "x") is None
    for nothing in (None, 3.0, "text", [1.0], object()):
        assert host_array(nothing, "x") is None


def test_libraries_that_refuse_to_export_are_quoted():
    class Refuses:
        def __dlpack__(self, **options):
            raise BufferError("detach me")

    class Wrong:
        def __dlpack__(self, **options):
            return 3

    with pytest.raises(BufferRefused, match="x cannot be read as a buffer: detach me"):
        host_array(Refuses(), "x")
    with pytest.raises(BufferRefused, match="x must export a DLPack tensor, got 3 from Wrong"):
        host_array(Wrong(), "x")


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_become_plain_arrays():
    data = np.arange(6.0).reshape(2, 3)
    for one in (np.asmatrix(data), data.view(np.recarray), data.view(type("Own", (np.ndarray,), {}))):
        found = host_array(one, "x").array
        assert type(found) is np.ndarray
        assert found.ctypes.data == data.ctypes.data
    assert host_array(np.asmatrix(data), "x").array.reshape(-1).shape == (6,)
    with pytest.raises(BufferRefused, match="masked array, whose mask would be ignored"):
        host_array(np.ma.array(data, mask=data > 2), "x")


def test_scalars_are_read_only_copies():
    for scalar in (np.float32(3), np.int8(3), np.float16(3), ml_dtypes.bfloat16(3)):
        found = host_array(scalar, "x").array
        assert found.shape == ()
        assert found == 3
        assert not found.flags.writeable
    assert host_array(array.array("d", [1, 2]), "x").array.tolist() == [1, 2]


def test_bfloat16_of_numpy_needs_ml_dtypes_and_its_bits_do_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    found = host_array(Exporter(np.zeros(3, np.uint16), BFLOAT), "x")
    assert found.kind == "bfloat16"
    with pytest.raises(MissingExtra, match="pip install ml_dtypes"):
        found.named()

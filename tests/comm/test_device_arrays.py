"""Whose an array is, and what is waited for before MPI touches it; a stand-in for CuPy notes what it is asked."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from exporter import BFLOAT, Exporter

from mpicomp.comm import nonblocking
from mpicomp.comm.buffers import check_device, check_flat, check_type, vector
from mpicomp.errors import BufferRefused
from mpicomp.ops import device as device_module
from mpicomp.ops.device import CuPy, at_home, device_of, finish_others, ready


class Noted:
    """Record of the calls to CuPy, in order."""

    def __init__(self):
        self.log = []


class Card:
    id = 0

    def __init__(self, noted):
        self.noted = noted

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def synchronize(self):
        self.noted.log.append("device")

    def use(self):
        self.noted.log.append(f"use, in {threading.current_thread().name}")


class Stream:
    def __init__(self, noted, name):
        self.noted, self.name = noted, name

    def synchronize(self):
        self.noted.log.append(f"stream {self.name}")


class Ours:
    """cupy.ndarray."""

    def __init__(self, noted, interface=None):
        self.device, self.interface = Card(noted), interface

    dtype, ndim, flags = np.dtype(np.float32), 1, SimpleNamespace(c_contiguous=True)
    __cuda_array_interface__ = property(lambda self: self.interface)

    def reshape(self, n):
        return self


Ours.__module__, Ours.__name__ = "cupy", "ndarray"


class ByInterface:
    """Another library's array: an interface of some version, with or without a stream."""

    def __init__(self, **interface):
        self.interface = {"shape": (4,), "typestr": "<f4", "data": (256, False), **interface}

    __cuda_array_interface__ = property(lambda self: self.interface)


class ByDLPack:
    """One that speaks DLPack alone, on a device of some type."""

    def __init__(self, kind):
        self.kind = kind

    def __dlpack__(self, **options):
        raise AssertionError("the stand-in for CuPy does not look inside")

    def __dlpack_device__(self):
        return self.kind, 0


class BFloat16(Exporter):
    """PyTorch's on a GPU: two bytes without a meaning by the interface, bfloat16 by DLPack."""

    def __init__(self):
        super().__init__(np.zeros(4, np.uint16), BFLOAT, device=2)

    __cuda_array_interface__ = property(lambda self: {
        "shape": (4,), "typestr": "<V2", "data": (256, False), "version": 2,
    })  # fmt: skip


@pytest.fixture
def cupy(monkeypatch):
    noted, module = Noted(), ModuleType("cupy")
    strided = {"shape": (4,), "typestr": "<f4", "data": (256, False), "strides": (8,)}
    module.ndarray, module.log = Ours, noted.log
    module.asarray = lambda array: noted.log.append("asarray") or Ours(noted)
    module.from_dlpack = lambda array: noted.log.append("from_dlpack") or Ours(noted, strided)
    module.cuda = SimpleNamespace(
        get_current_stream=lambda: Stream(noted, "current"), ExternalStream=lambda pointer: Stream(noted, pointer),
        Device=lambda number: noted.log.append(f"on {number}") or Card(noted),
        runtime=SimpleNamespace(pointerGetAttributes=lambda address: SimpleNamespace(device=address // 256)),
    )
    module.noted = noted
    monkeypatch.setitem(sys.modules, "cupy", module)
    assert any(isinstance(one, CuPy) for one in device_module._devices)
    return module


def test_our_own_arrays_wait_for_the_current_stream(cupy):
    ready(Ours(cupy.noted))
    assert cupy.log == ["stream current"]


def test_nothing_is_copied_to_the_current_device(cupy):
    """CuPy's `asarray` copies arrays of another device."""
    array = Ours(cupy.noted)
    assert CuPy().own(array) is array
    assert cupy.log == []
    CuPy().own(ByInterface(data=(512, False)))
    assert cupy.log == ["on 2", "asarray"]
    empty = ByInterface(data=(0, False), shape=(0,))  # is nowhere
    CuPy().own(empty)
    assert cupy.log[2:] == ["on None", "asarray"]


def test_the_device_of_arrays_becomes_the_current_one(cupy):
    array = Ours(cupy.noted)
    for arrays in (array, [array], {"a": array}, [[array], [array]]):
        with at_home(arrays) as device:
            assert device is array.device
    for arrays, number in ((ByInterface(data=(512, False)), 2), ({"a": ByDLPack(2)}, 0), ([BFloat16()], 0)):
        with at_home(arrays) as device:
            assert isinstance(device, Card)
        assert cupy.log.pop() == f"on {number}" and not cupy.log  # CuPy need not know the dtype
    for arrays in (np.ones(3), {}, [], None):
        with at_home(arrays) as device:
            assert device is None


@pytest.mark.parametrize("stream", [1, 2, 0x7F00])
def test_the_stream_of_version_3_is_waited_for(cupy, stream):
    ready(ByInterface(version=3, stream=stream))
    assert cupy.log == ["on 1", f"stream {stream}"]


def test_events_of_copies_are_kept(cupy):
    """One is made per copy in flight, not per copy."""
    made = []

    class Event:
        def __init__(self, disable_timing):
            assert disable_timing
            made.append(self)

        def synchronize(self):
            cupy.log.append("event")

    cupy.cuda.Event = Event
    cupy.cuda.Stream = lambda non_blocking: SimpleNamespace(ptr=5, record=lambda event: event)
    cupy.cuda.runtime.memcpyAsync = lambda *arguments: None
    cupy.cuda.runtime.memcpyDeviceToHost = cupy.cuda.runtime.memcpyHostToDevice = 0
    device, array, host = CuPy(), Ours(cupy.noted), np.zeros(4, np.float32)
    array.data, array.nbytes = SimpleNamespace(ptr=256), 16
    for _ in range(3):
        for copy in (device.start_to_host(host, array), device.start_to_device(array, host)):
            device.wait(copy)
    assert len(made) == 2 and cupy.log == ["event"] * 6


def test_a_helper_thread_chooses_the_callers_gpu_before_anything_else(cupy, monkeypatch):
    """A new thread's is GPU 0, on which every rank of the node would make a context."""
    monkeypatch.setattr(nonblocking, "atexit", SimpleNamespace(register=id, unregister=id))

    class Twin:
        def Allreduce(self, *arguments):
            cupy.log.append("Allreduce")

    helper = nonblocking.Helper(Twin(), None, None, threaded=True)
    for array, first in ((Ours(cupy.noted), True), (ByInterface(version=3, stream=1), True), (np.ones(3), False)):
        cupy.log.clear()
        helper.start(array, array, None, "auto").Wait()
        assert cupy.log[-2:] == ["use, in mpicomp", "Allreduce"] if first else cupy.log == ["Allreduce"]
    helper._worker.stop()


def test_arrays_that_cannot_be_read_are_nowhere():
    """The others would wait for a rank that fails before it has told them why."""
    class Broken(dict):
        def values(self):
            raise OSError

    with at_home((Broken(gradient=1), None)) as device:
        assert device is None


@pytest.mark.parametrize("interface", [{"version": 2}, {"version": 3, "stream": None}, {"version": 2, "stream": 5}])
def test_without_a_stream_the_device_is_waited_for(cupy, interface):
    ready(ByInterface(**interface))
    assert cupy.log == ["on 1", "device"]


@pytest.mark.parametrize("interface", [{"version": 2}, {"version": 3, "stream": None}])
def test_what_others_have_still_to_do_is_waited_for(cupy, interface):
    """CuPy's view of such an array would wait for CuPy's stream alone."""
    for array in (Ours(cupy.noted), ByInterface(version=3, stream=1), ByDLPack(2)):
        finish_others(array, CuPy())
    assert cupy.log == []
    finish_others(ByInterface(**interface), CuPy())
    assert cupy.log[-1] == "device"


@pytest.mark.parametrize("taken", [lambda x: vector(x, "sendbuf", None, None), lambda x: check_flat(x, "x")])
def test_what_another_library_has_queued_is_waited_for_before_cupy_reads_it(cupy, taken):
    """CuPy itself waits for streams that the interface names."""
    taken(ByInterface(version=2))
    assert cupy.log[-3:] == ["device", "on 1", "asarray"]
    cupy.log.clear()
    taken(Ours(cupy.noted, ByInterface().interface))
    assert "device" not in cupy.log


def test_bfloat16_on_a_device_is_read_as_bits_and_known_as_bfloat16(cupy):
    seen, asarray = [], cupy.asarray
    cupy.asarray = lambda array: seen.append(array.__cuda_array_interface__["typestr"]) or asarray(array)
    assert vector(BFloat16(), "recvbuf", None, None).kind == "bfloat16"
    assert seen and set(seen) == {"<u2"}
    named = vector([BFloat16(), "f"], "recvbuf", lambda letter: np.dtype(letter), None)
    assert (named.kind, named.name) == (None, "float32")  # as the caller says
    with pytest.raises(BufferRefused, match="must hold numbers of an MPI datatype, got bfloat16"):
        check_type(BFloat16(), "sendbuf")


@pytest.mark.parametrize(("kind", "ours"), [(1, False), (2, True), (13, True), (10, False)])
def test_dlpack_says_where_an_array_is(cupy, kind, ours):
    array = ByDLPack(kind)
    assert (device_of(array) is not None) == ours
    ready(array)
    assert cupy.log == (["on 0", "device"] if ours else [])


def test_a_strided_array_known_by_dlpack_is_refused(cupy):
    with pytest.raises(BufferRefused, match="contiguous in C order"):
        check_device(ByDLPack(2), "recvbuf")


def test_host_arrays_of_other_libraries_are_the_hosts():
    torch = pytest.importorskip("torch")
    assert device_of(torch.ones(3)) is None
    assert device_of(np.ones(3).view(np.memmap)) is None
    assert device_of(b"bytes") is None

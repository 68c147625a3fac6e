"""A device whose memory is host memory that NumPy cannot see: what staging does, observed without a GPU."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import numpy as np

RECORDED = object()  # an event behind queued work


class FakeArray:
    """Device memory: has the CUDA interface, refuses to become a NumPy array."""

    def __init__(self, memory):
        self.memory = memory

    dtype = property(lambda self: self.memory.dtype)
    size = property(lambda self: self.memory.size)
    nbytes = property(lambda self: self.memory.nbytes)
    itemsize = property(lambda self: self.memory.itemsize)
    shape = property(lambda self: self.memory.shape)

    @property
    def __cuda_array_interface__(self):
        return {**self.memory.__array_interface__, "version": 3, "stream": 1}

    def __array__(self, *arguments, **options):
        raise TypeError("implicit conversion of device memory to NumPy")

    def __getitem__(self, key):
        return FakeArray(self.memory[key])

    def __setitem__(self, key, value):
        self.memory[key] = value.memory

    def view(self, dtype):
        return FakeArray(self.memory.view(dtype))


class Home(nullcontext):
    """The one GPU there is."""

    id = 0

    def use(self):
        pass


class FakeDevice:
    """Counts what is asked of it; a copy takes effect only when it is waited for, as an asynchronous one may."""

    def __init__(self):
        self.log = []
        self.pending = 0
        self.most_pending = 0

    def matches(self, array):
        return isinstance(array, FakeArray)

    def flat(self, array):
        return FakeArray(array.memory.reshape(-1))

    def own(self, array):
        return array

    def home(self, array):
        return Home()

    def synchronize(self, array):
        self.log.append("synchronize")

    def pinned(self, nbytes):
        self.log.append("pinned")
        return np.full(nbytes, 255, np.uint8)

    def start_to_host(self, host, array):
        return self._start("to_host", host, array.memory)

    def start_to_device(self, array, host):
        return self._start("to_device", array.memory, host)

    def _start(self, name, target, origin):
        self.log.append(name)
        self.pending += 1
        self.most_pending = max(self.most_pending, self.pending)
        return target, origin

    def wait(self, event):
        if event is RECORDED:
            self.log.append("wait")
            return
        target, origin = event
        target[...] = origin
        self.pending -= 1

    def record(self, array):
        self.log.append("record")
        return RECORDED

    def follow(self, event):
        assert event is RECORDED
        self.log.append("follow")

    @contextmanager
    def beside(self, array):
        self.log.append("beside")
        yield
        self.log.append("back")

    @contextmanager
    def side_stream(self, array):
        with self.beside(array):
            yield
            self.synchronize(array)

    def empty(self, n, like):
        return FakeArray(np.zeros(n, like.dtype))

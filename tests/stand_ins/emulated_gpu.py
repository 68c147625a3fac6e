"""A GPU without one, whole: arrays that only kernels and CuPy's functions touch, kernels run on the CPU, and a count of
what a step queues on the device and how often the host waits for it.

What CuPy does by itself (element-wise arithmetic, assignments, fills) counts as one launch a call; CuPy may need more.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from fake_device import FakeDevice

from mpicomp import ops
from mpicomp.ops import device as device_module
from mpicomp.ops import gpu
from mpicomp.ops.gpu import cuda_runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))
from cuda_on_cpu import EmulatedRuntime

counts: Counter[str] = Counter()
WAITS = ("__int__", "__float__", "__bool__", "item", "tolist", "__index__")
MAKES_NOTHING = ("empty", "empty_like")
FROM_HOST = ("asarray", "array")
WAITING = ("flatnonzero", "unique")  # the length of what they give is known only then


class DeviceArray(np.ndarray):
    """Device memory, as far as launches and waits go."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        counts["cupy"] += 1
        plain = [_host(one) for one in inputs]
        if out is not None:
            options["out"] = tuple(map(_host, out))
        result = getattr(ufunc, method)(*plain, **options)
        return out[0] if out is not None else _device(result)

    def __setitem__(self, key, value):
        counts["cupy"] += 1
        _host(self)[key] = _host(value)

    def __getitem__(self, key):
        if isinstance(key, np.ndarray):
            counts["cupy"] += 1
            counts["waits"] += key.dtype == bool  # how many there are is the length of the result
        return _device(_host(self)[_host(key)])

    def copy(self, order="C"):
        counts["cupy"] += 1
        return _device(_host(self).copy(order))

    def astype(self, dtype, copy=True, **options):
        same = not copy and self.dtype == dtype
        counts["cupy"] += not same
        return self if same else _device(_host(self).astype(dtype, **options))

    def fill(self, value):
        self[...] = value

    @property
    def __cuda_array_interface__(self):
        return {**_host(self).__array_interface__, "version": 3, "stream": 1}


def _waiting(name):
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def wait(self, *arguments):
        counts["waits"] += 1
        return method(_host(self), *arguments)

    return wait


for _name in WAITS:
    setattr(DeviceArray, _name, _waiting(_name))
DeviceArray.__module__ = "emulatedgpu"  # what ops_for looks at


def _host(thing):
    return thing.view(np.ndarray) if isinstance(thing, DeviceArray) else thing


def _device(thing):
    """Arrays, also of no dimension, are the device's."""
    if isinstance(thing, np.ndarray | np.generic):
        return np.asarray(thing).view(DeviceArray)
    return tuple(map(_device, thing)) if isinstance(thing, tuple) else thing


class DeviceFunctions:
    """NumPy's functions in the place of CuPy's: counted, their results the device's."""

    def __getattr__(self, name):
        function = getattr(np, name)
        if not callable(function) or isinstance(function, type):
            return function

        @functools.wraps(function)
        def counted(*arguments, **options):
            if name not in MAKES_NOTHING:
                counts["copies" if name in FROM_HOST else "cupy"] += 1
                counts["waits"] += name in WAITING
            plain = [[_host(x) for x in one] if isinstance(one, list) else _host(one) for one in arguments]
            return _device(function(*plain, **{key: _host(value) for key, value in options.items()}))

        return counted


class CountingRuntime(EmulatedRuntime):
    xp = DeviceFunctions()

    def to_host(self, array):
        counts["waits"] += 1
        return np.array(_host(array))

    def kernel(self, family, name):
        run = super().kernel(family, name)

        def counted(grid, block, args):
            counts["kernels"] += 1
            counts[f"kernel {name.partition('<')[0]}"] += 1
            run(grid, block, tuple(map(_host, args)))

        return counted


class EmulatedGPU(FakeDevice):
    """Copies to and from `DeviceArray`s, which take effect when they are waited for."""

    def matches(self, array):
        return isinstance(array, DeviceArray)

    def flat(self, array):
        return array.reshape(-1)

    def start_to_host(self, host, array):
        return self._start("to_host", host, _host(array))

    def start_to_device(self, array, host):
        return self._start("to_device", _host(array), host)

    def empty(self, n, like):
        return _device(np.zeros(n, like.dtype))


def on_device(array):
    return _device(np.array(array))


def on_host(array):
    return np.array(_host(array))


@contextmanager
def emulate():
    """Within the block, kernels run on the CPU and `DeviceArray`s are a device's; gives that device."""
    homes, runtime, fake = dict(ops._HOMES), cuda_runtime.use(CountingRuntime()), EmulatedGPU()
    ops.register("emulatedgpu", gpu)
    device_module.register(fake)
    try:
        yield fake
    finally:
        device_module.unregister(fake)
        cuda_runtime.use(runtime)
        ops._HOMES.clear()
        ops._HOMES.update(homes)
        ops._FOUND.clear()

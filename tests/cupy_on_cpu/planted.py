"""Mistakes that the emulated device must show, so that its silence means something (check.py runs this)."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import cupy
import numpy as np

from mpicomp.ops import gpu


def a_copy_that_nobody_waits_for() -> None:
    x, runtime = cupy.full(1000, 5, "float32"), cupy.cuda.runtime
    host = np.frombuffer(cupy.cuda.alloc_pinned_memory(x.nbytes), "float32", x.size)
    stream = cupy.cuda.Stream(non_blocking=True)
    runtime.memcpyAsync(host.ctypes.data, x.data.ptr, x.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    assert not (host == 5).any(), "the copy ran before anybody waited for it"
    stream.synchronize()
    assert not (host == 5).any(), "the copy waited for another stream's kernel"
    cupy.cuda.Device().synchronize()
    assert bool((x == 5).all())


def a_kernel_on_another_device() -> None:
    with cupy.cuda.Device(1):
        there = cupy.zeros(10, "float32")
    try:
        gpu.add(cupy.zeros(10, "float32"), there)
    except cupy.cuda.driver.CUDADriverError:
        return
    raise AssertionError("a kernel read another device's memory")


def a_host_that_reads_device_memory() -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; import planted; planted.read()"
    ended = subprocess.run([sys.executable, "-c", code], check=False).returncode
    assert ended == -11, f"the host read device memory: it ended with {ended}, not by a signal"


def read() -> None:
    ctypes.string_at(cupy.zeros(10, "float32").data.ptr, 4)


def main() -> int:
    for planted in (a_copy_that_nobody_waits_for, a_kernel_on_another_device, a_host_that_reads_device_memory):
        planted()
        print(f"{planted.__name__}: shown", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

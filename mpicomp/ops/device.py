"""Arrays in device memory: whose they are, when MPI may touch them, how they are copied to and from the host.

A device is described by an object with the methods of `CuPy` below. Tests register one whose "device" is host
memory, so that everything above runs without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from ..errors import MissingExtra

CUDA = (2, 13)  # DLPack's kDLCUDA, kDLCUDAManaged


class Device(Protocol):
    """Copies, streams and array types of a device. A copy that is started here ends with ``wait``."""

    def matches(self, array: object) -> bool: ...

    def flat(self, array: object) -> Any:
        """The array as a contiguous 1-D array of the device's own type, sharing memory."""

    def own(self, array: object) -> Any:
        """The array in the device's own type, of its own shape, sharing memory."""

    def home(self, array: object) -> Any:
        """The GPU on which the array lies: the current one within a block, or by ``use()`` for good."""

    def synchronize(self, array: object) -> None:
        """Wait until everything queued on the array so far is done."""

    def pinned(self, nbytes: int) -> np.ndarray:
        """Host bytes the device copies to and from at full speed."""

    def start_to_host(self, host: np.ndarray, array: Any) -> Any: ...

    def start_to_device(self, array: Any, host: np.ndarray) -> Any: ...

    def wait(self, event: Any) -> None:
        """Let the host wait for a copy, or for an event of ``record``."""

    def empty(self, n: int, like: Any) -> Any: ...

    def record(self, array: Any) -> Any:
        """An event behind the work that is queued beside the array so far: for one ``wait`` or ``follow``."""

    def follow(self, event: Any) -> None:
        """Let work that is queued from now on come after an event; the host does not wait."""

    def beside(self, array: Any) -> AbstractContextManager[None]:
        """Within the block, work on the array is queued beside other work, in no order with it."""

    def side_stream(self, array: Any) -> AbstractContextManager[None]:
        """Within the block, work on the array is queued beside other work; at its end it is done."""


class CuPy:
    """CUDA arrays: CuPy's own, and other libraries' by ``__cuda_array_interface__`` or DLPack (no copy is made)."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[Any, Any]] = {}
        self._events: dict[int, list[Any]] = {}  # free ones, by device
        self._beside: dict[tuple[int, int], Any] = {}  # by device and thread: what kernels keep is a stream's own

    def matches(self, array: Any) -> bool:
        kind = type(array)
        known = hasattr(kind, "__cuda_array_interface__")
        if known and is_cupys(kind):
            return True
        if hasattr(kind, "__dlpack_device__"):  # PyTorch's and JAX' types have the interface wherever an array is
            return int(array.__dlpack_device__()[0]) in CUDA
        return known

    def flat(self, array: object) -> Any:
        return self.own(array).reshape(-1)

    def own(self, array: Any) -> Any:
        """The array in CuPy's type, sharing memory. What its library has still to do comes first: CuPy waits for the
        stream that the interface names, and DLPack passes ours to the library.
        """
        cupy = _cupy()
        if isinstance(array, cupy.ndarray):
            return array
        if not hasattr(type(array), "__cuda_array_interface__"):
            return cupy.from_dlpack(array)
        with self.home(array):  # `asarray` copies from others
            return cupy.asarray(array)

    def home(self, array: Any) -> Any:
        cupy = _cupy()
        if isinstance(array, cupy.ndarray):
            return array.device
        if hasattr(type(array), "__dlpack_device__"):
            return cupy.cuda.Device(array.__dlpack_device__()[1])
        address = array.__cuda_array_interface__["data"][0]  # 0 if there are no elements
        return cupy.cuda.Device(cupy.cuda.runtime.pointerGetAttributes(address).device if address else None)

    def synchronize(self, array: object) -> None:
        cupy = _cupy()
        ours, stream = isinstance(array, cupy.ndarray), _stream_of(array)
        with self.home(array) as device:
            if ours:
                cupy.cuda.get_current_stream().synchronize()
            elif stream is None:  # which stream another library works on is not known: wait for the whole device
                device.synchronize()
            else:
                cupy.cuda.ExternalStream(stream).synchronize()

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.frombuffer(_cupy().cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def start_to_host(self, host: np.ndarray, array: Any) -> Any:
        return self._start(array, host.ctypes.data, array.data.ptr, array.nbytes, outward=True)

    def start_to_device(self, array: Any, host: np.ndarray) -> Any:
        return self._start(array, array.data.ptr, host.ctypes.data, array.nbytes, outward=False)

    def wait(self, event: Any) -> None:
        number, one = event
        one.synchronize()
        self._events[number].append(one)

    def empty(self, n: int, like: Any) -> Any:
        with like.device:
            return _cupy().empty(n, like.dtype)

    def record(self, array: Any) -> Any:
        with array.device as device:
            return self._recorded(device.id, _cupy().cuda.get_current_stream())

    def follow(self, event: Any) -> None:
        number, one = event
        with _cupy().cuda.Device(number):
            _cupy().cuda.get_current_stream().wait_event(one)
        self._events[number].append(one)  # the stream waits for what was recorded, whatever is recorded next

    @contextmanager
    def beside(self, array: Any) -> Iterator[None]:
        with array.device as device:
            key = device.id, get_ident()
            if key not in self._beside:
                self._beside[key] = _cupy().cuda.Stream(non_blocking=True)
            with self._beside[key]:
                yield

    @contextmanager
    def side_stream(self, array: Any) -> Iterator[None]:
        """Within the block, work on CuPy arrays is queued beside that of other streams; at its end it is done."""
        with self.beside(array):
            try:
                yield
            finally:  # also after an error: other streams may use the array again
                self.synchronize(array)

    def _start(self, array: Any, dst: int, src: int, nbytes: int, *, outward: bool) -> Any:
        cupy = _cupy()
        kind = cupy.cuda.runtime.memcpyDeviceToHost if outward else cupy.cuda.runtime.memcpyHostToDevice
        with array.device as device:
            if device.id not in self._streams:  # one stream each way, so that the two directions overlap
                self._streams[device.id] = tuple(cupy.cuda.Stream(non_blocking=True) for _ in range(2))
            stream = self._streams[device.id][0 if outward else 1]
            cupy.cuda.runtime.memcpyAsync(dst, src, nbytes, kind, stream.ptr)
            return self._recorded(device.id, stream)

    def _recorded(self, number: int, stream: Any) -> Any:
        """An event behind what is queued on a stream of the current device, and the device's number."""
        free = self._events.setdefault(number, [])
        try:  # another thread may take the last one
            event = free.pop()
        except IndexError:
            event = _cupy().cuda.Event(disable_timing=True)
        return number, stream.record(event)


def is_cupys(kind: type) -> bool:
    """Return True for a type of CuPy, which need not be installed."""
    return kind.__module__.partition(".")[0] == "cupy"


def _stream_of(array: object) -> int | None:
    """The stream that version 3 of the interface names (1: the legacy default, 2: the thread's own), None if unknown.

    An interface that names none promises that nothing is pending, but libraries of version 2 leave it out, too.
    """
    interface = getattr(array, "__cuda_array_interface__", None) or {}
    return interface.get("stream") if interface.get("version", 0) >= 3 else None


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra(
            "arrays in CUDA memory need CuPy: pip install 'mpicomp[cuda12]' or 'mpicomp[cuda13]'"
        ) from error
    return cupy


_devices: list[Device] = [CuPy()]
ON_HOST = nullcontext()  # may be entered any number of times


def register(device: Device) -> None:
    """Ask ``device`` first which arrays are its own."""
    _devices.insert(0, device)


def unregister(device: Device) -> None:
    _devices.remove(device)


def device_of(array: object) -> Device | None:
    """The device that owns ``array``; None for host memory."""
    if type(array) is np.ndarray:
        return None
    return next((device for device in _devices if device.matches(array)), None)


def at_home(arrays: object) -> AbstractContextManager[object]:
    """Within the block, the device of the first of these arrays (or dicts or lists of some) is CuPy's current one: what
    is made anew lies beside them. Their reader refuses invalid ones, on all ranks.
    """
    if type(arrays) is np.ndarray:
        return ON_HOST
    try:
        for _ in range(2):  # lists of arguments, of arrays
            if isinstance(arrays, Mapping | list | tuple):
                arrays = next(iter(arrays.values() if isinstance(arrays, Mapping) else arrays), None)
        device = device_of(arrays)
        return ON_HOST if device is None else device.home(arrays)
    except Exception:
        return ON_HOST


def gpu_of(array: object) -> int:
    """Return the number of the GPU on which an array lies; -1 in host memory."""
    device = device_of(array)
    return -1 if device is None else device.home(array).id


def stay_on(array: Any) -> None:
    """Make the device of ``array`` the current one of this thread, for good.

    A new thread begins on GPU 0. Whatever it does there, and a block like that of `at_home` when it ends, would make a
    context, half a gigabyte of each process, on that GPU.
    """
    device = device_of(array)
    if device is not None:
        device.home(array).use()


def finish_others(array: object, device: Device) -> None:
    """Wait for what another library has still to do on its array, where the interface does not say on which stream:
    what CuPy makes of it waits for CuPy's own work alone.
    """
    kind = type(array)
    named = is_cupys(kind) or _stream_of(array) is not None
    if hasattr(kind, "__cuda_array_interface__") and not named:
        device.synchronize(array)


def ready(array: object) -> None:
    """Call before MPI touches ``array``: the one place where a device is waited for.

    MPI knows nothing of streams: without this it would send what a kernel has not written yet, or overwrite what one
    still reads.
    """
    if type(array) is not np.ndarray:
        device = device_of(array)
        if device is not None:
            device.synchronize(array)

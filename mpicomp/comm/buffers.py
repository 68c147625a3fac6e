"""Conversion of the buffers of ``Allreduce`` to flat typed vectors, and the reasons to refuse a buffer.

A message that our schedules do not cover (derived datatypes, complex numbers, ...) is None here: MPI's own call takes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ..errors import BufferRefused, InvalidArgument
from ..ops.device import Device, device_of, finish_others, is_cupys
from ..ops.host_arrays import Exported, Plain, check_named, host_array
from ..ops.node_shared import plain_nbytes
from ..types import Array, dtype_name

Buffer = Any  # whatever mpi4py takes: arrays, other objects with memory, [object, count, datatype] ...

# One letter per NumPy dtype that our schedules add: float32, float64 and the integers.
COVERED = frozenset("fdbBhHiIlLqQ")


class Vector(NamedTuple):
    """A flat contiguous view of a caller's buffer."""

    array: Array
    kind: str | None  # "float16" or "bfloat16": array is then a uint16 view
    device: Device | None

    @property
    def name(self) -> str:
        """Name of the dtype that the caller sees."""
        return self.kind or dtype_name(self.array.dtype)

    def plain(self) -> Array:
        """Return the array in the dtype for MPI."""
        if self.kind == "bfloat16":
            raise InvalidArgument("MPI has no bfloat16: use SUM, PROD, MIN or MAX, or convert the array to float32")
        return self.array.view(self.kind) if self.kind else self.array


def vector(
    message: Buffer, role: str, numpy_dtype: Callable[[Buffer], np.dtype | None],
    raw_bytes: Callable[[Buffer], memoryview],
) -> Vector | None:
    """Return ``message`` as a Vector; None if only MPI takes it; raise BufferRefused if neither does.

    Parameters
    ----------
    role : {"sendbuf", "recvbuf"}
        Its name in errors; a ``recvbuf`` must be writable.
    numpy_dtype : callable
        Returns the NumPy dtype of an MPI datatype or of its name; None if there is none.
    raw_bytes : callable
        Returns the memory of an object as bytes, by the protocols that mpi4py knows.
    """
    spec = unpack(message)
    if spec is None:
        return None
    obj, count, displ, datatype = spec
    dtype = None
    if datatype is not None:
        dtype = numpy_dtype(datatype)
        if dtype is None:
            return None
    device, kind = device_of(obj), None
    if device is not None:
        check_device(obj, role)
        own, kind = as_bits(obj, role)
        flat = flat_on(device, own)
    else:
        found = host_array(obj, role, None if dtype is None else bytes_reader(raw_bytes))
        if found is None:
            return None
        array, kind = found
        check_host(array, role)
        flat = array.reshape(-1)
    kind = kind if dtype is None else None
    if dtype is not None and dtype != flat.dtype:
        if flat.nbytes % dtype.itemsize or flat.itemsize > dtype.itemsize > 1:
            return None
        flat = flat.view(dtype)
        check_aligned(flat, role)
    if count is not None or displ:
        begin = displ or 0
        end = flat.size if count is None else begin + count
        if not 0 <= begin <= min(end, flat.size):
            return None  # mpi4py words the error
        if end > flat.size:  # mpi4py lets MPI read and write behind the buffer
            raise BufferRefused(f"{role} must hold {end} elements of {kind or dtype_name(flat.dtype)} (displacement "
                                f"{begin}, count {count}), got {flat.size}: pass a longer buffer or a smaller count")
        flat = flat[begin:end]
    return Vector(flat, kind, device) if kind else typed(flat, device)


def typed(flat: Array, device: Device | None) -> Vector | None:
    """Return a flat array as a Vector; None if our schedules do not add its dtype."""
    if flat.dtype.isbuiltin == 1 and flat.dtype.char in COVERED:  # other packages' dtypes may have the same letters
        return Vector(flat, None, device)
    name = dtype_name(flat.dtype)
    if name in ("float16", "bfloat16"):
        return Vector(flat.view(np.uint16), name, device)
    return None


def unpack(message: Buffer) -> tuple[Buffer, int | None, int | None, object] | None:
    """Return (object, count, displacement, datatype) of a buffer specification; None for the forms left to MPI."""
    if not isinstance(message, (list, tuple)):
        return message, None, None, None
    if not 2 <= len(message) <= 4:
        return None
    obj, *rest = message
    datatype = None
    if rest and not is_count(rest[-1]):
        datatype = rest.pop()
    if len(rest) == 1 and isinstance(rest[0], (list, tuple)):
        rest = list(rest[0])
    if len(rest) > 2 or not all(is_count(one) and not isinstance(one, (list, tuple)) for one in rest):
        return None
    count, displ = [*rest, None, None][:2]
    return obj, count, displ, datatype


def array_in(message: Buffer) -> Buffer:
    """Return the object of a message, which mpi4py also takes in a list with its count and datatype."""
    return message[0] if isinstance(message, (list, tuple)) and message else message


def is_count(item: object) -> bool:
    """Return True for a count, or counts with displacements; False for a datatype."""
    return item is None or isinstance(item, (int, np.integer, list, tuple))


def bytes_reader(raw_bytes: Callable[[Buffer], memoryview]) -> Callable[[Buffer, str], Plain | None]:
    """Return a reader for `host_array` of objects whose type the caller names: as bytes."""

    def read(obj: Buffer, name: str) -> Plain | None:
        try:
            return Plain(np.asarray(raw_bytes(obj)))
        except (TypeError, ValueError, BufferError, RuntimeError):
            return None  # MPI's own call words the error

    return read


def interface_of(array: object) -> dict[str, Any]:
    """The ``__cuda_array_interface__`` of an array, which NumPy's type has not."""
    interface: dict[str, Any] = getattr(array, "__cuda_array_interface__")  # noqa: B009
    return interface


class Bits:
    """Memory of a device array as uint16: CuPy has no dtype for raw two-byte elements."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {**interface_of(self._array), "typestr": np.dtype(np.uint16).str}


def as_bits(array: Array, role: str) -> tuple[Array, str | None]:
    """Return a device array, and "bfloat16" if its interface has raw two-byte elements, as PyTorch's has."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None or interface["typestr"][1:] != "V2" or not hasattr(array, "__dlpack__"):
        return array, None
    return (cast(Array, Bits(array)), "bfloat16") if Exported(array, role).type.is_bfloat16 else (array, None)


def check_type(message: Buffer, role: str) -> None:
    """Refuse a message for a reduction by MPI if the caller names no type and MPI lacks the array's type."""
    obj, *rest = message if isinstance(message, (list, tuple)) and message else (message,)
    if all(map(is_count, rest)):
        check_named(obj, role)


def check_host(array: np.ndarray, role: str) -> None:
    flags = array.flags
    if array.dtype.hasobject:
        raise BufferRefused(f"{role} holds Python objects (dtype {array.dtype}): convert it to a numeric dtype")
    if not flags.c_contiguous:
        layout = "Fortran-ordered" if flags.f_contiguous else "not contiguous"
        raise BufferRefused(
            f"{role} must be contiguous in C order, got shape {array.shape} with strides {array.strides} "
            f"({layout}): pass numpy.ascontiguousarray(...)"
        )
    if not array.dtype.isnative:
        raise BufferRefused(
            f"{role} must be in this machine's byte order, got dtype {array.dtype.str}: "
            "pass a.astype(a.dtype.newbyteorder('='))"
        )
    check_aligned(array, role)
    if role == "recvbuf" and not flags.writeable:
        raise BufferRefused("recvbuf must be writable, got a read-only array or a scalar: pass a writable array")


def check_aligned(array: Array, name: str) -> None:
    """Refuse a host array at an address that its dtype cannot have: mpi4py and the compiled operations reject it."""
    if not getattr(array.flags, "aligned", True):
        raise BufferRefused(
            f"{name} must be aligned, got {array.dtype} elements at an address that is not a multiple of "
            f"{array.dtype.alignment} bytes: pass a copy"
        )


def check_device(array: Array, role: str) -> None:
    device = None if hasattr(type(array), "__cuda_array_interface__") else device_of(array)
    if device is not None:
        array = device.own(array)  # known by DLPack alone
    interface = interface_of(array)
    strides, shape = interface.get("strides"), interface["shape"]
    itemsize = np.dtype(interface["typestr"]).itemsize
    contiguous = [itemsize * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    if strides is not None and 0 not in shape and tuple(strides) != tuple(contiguous):
        raise BufferRefused(
            f"{role} must be contiguous in C order, got shape {tuple(shape)} with strides {tuple(strides)}: "
            "pass cupy.ascontiguousarray(...)"
        )
    if role == "recvbuf" and interface["data"][1]:
        raise BufferRefused("recvbuf must be writable, got a read-only device array: pass a copy")


def flat_on(device: Device, array: Array) -> Array:
    """Return a device array as a flat one of its device's type, after its library's pending work."""
    finish_others(array, device)
    return device.flat(array)


def check_pair(source: Vector, target: Vector) -> None:
    """Refuse a send and a receive buffer that do not belong together."""
    if source.array.dtype != target.array.dtype or source.kind != target.kind:
        raise BufferRefused(
            f"sendbuf and recvbuf must have one dtype, got {source.name} and {target.name}: convert one of them"
        )
    if source.array.size != target.array.size:
        raise BufferRefused(
            f"sendbuf and recvbuf must have one length, got {source.array.size} and {target.array.size} elements"
        )
    if (source.device is None) != (target.device is None):
        raise BufferRefused("sendbuf and recvbuf must be on one device: copy one of them")
    if source.device is None and np.may_share_memory(source.array, target.array):
        raise BufferRefused("sendbuf and recvbuf overlap: pass MPI.IN_PLACE as sendbuf to reduce in place")


def bytes_of(shape: int | Sequence[int], dtype: npt.DTypeLike) -> int:
    """Return the bytes of an array of plain values; raise InvalidArgument for other shapes and dtypes."""
    try:
        dtype = np.dtype(dtype)
        lengths = tuple(map(index, shape)) if np.iterable(shape) else (index(shape),)
    except TypeError as error:
        raise InvalidArgument(f"expected a shape of whole numbers and a dtype, got {shape!r}, {dtype!r}") from error
    if min(lengths, default=0) < 0 or dtype.hasobject or dtype.itemsize == 0:
        raise InvalidArgument(f"expected lengths from 0 and a dtype of plain values, got {shape!r}, {dtype}")
    return prod(lengths) * dtype.itemsize


def check_flat(x: Array, name: str) -> Array:
    """Return ``x`` if it is a contiguous one-dimensional array, device arrays in their device's type."""
    if plain_nbytes(None, x) >= 0 and x.ndim == 1:  # usual arrays, known in a tenth of the time
        return x
    device = device_of(x)
    if device is not None:
        if is_cupys(type(x)) and x.ndim == 1 and x.flags.c_contiguous:
            return x
        check_device(x, name)
        return flat_on(device, x)
    found = host_array(x, name) if isinstance(x, np.ndarray) else None
    if found is None:
        raise BufferRefused(f"{name} must be an array, got {type(x).__name__}")
    check_host(found.array, name)
    if found.array.ndim != 1:
        raise BufferRefused(f"{name} must be one-dimensional, got shape {x.shape}: pass x.reshape(-1)")
    return found.array

"""What a caller hands to ``Allreduce``, turned into flat typed vectors, or refused with a reason.

A message our schedules do not cover (derived datatypes, complex numbers, ...) is None here: MPI's own call takes it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..errors import BufferRefused, InvalidArgument
from ..ops.device import Device, device_of, finish_others
from ..ops.host_arrays import Exported, Plain, check_named, host_array

# One letter per NumPy dtype that our schedules add: float32, float64 and the integers.
COVERED = frozenset("fdbBhHiIlLqQ")


class Vector(NamedTuple):
    """A flat contiguous view of a caller's buffer."""

    array: Any
    kind: str | None  # "float16" or "bfloat16": array is then a uint16 view
    device: Device | None

    @property
    def name(self) -> str:
        """The dtype as the caller sees it."""
        return self.kind or self.array.dtype.name

    def plain(self) -> Any:
        """The array in the dtype that MPI is to see."""
        if self.kind == "bfloat16":
            raise InvalidArgument("MPI has no bfloat16: use SUM, PROD, MIN or MAX, or convert the array to float32")
        return self.array.view(self.kind) if self.kind else self.array


def vector(
    message: Any, role: str, numpy_dtype: Callable[[Any], np.dtype | None], raw_bytes: Callable[[Any], Any]
) -> Vector | None:
    """``message`` as a Vector; None when it is for MPI alone; BufferRefused when it is for nobody.

    Parameters
    ----------
    role : {"sendbuf", "recvbuf"}
        What errors call it; a ``recvbuf`` must be writable.
    numpy_dtype : callable
        The NumPy dtype of an MPI datatype or of its name; None when there is none.
    raw_bytes : callable
        The memory of an object as bytes, by the protocols that MPI's side knows.
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
        if not 0 <= begin <= end <= flat.size:
            return None  # MPI's own call words the error
        flat = flat[begin:end]
    return Vector(flat, kind, device) if kind else typed(flat, device)


def typed(flat: Any, device: Device | None) -> Vector | None:
    if flat.dtype.isbuiltin == 1 and flat.dtype.char in COVERED:  # other packages' dtypes may have the same letters
        return Vector(flat, None, device)
    name = flat.dtype.name
    if name in ("float16", "bfloat16"):
        return Vector(flat.view(np.uint16), name, device)
    return None


def unpack(message: Any) -> tuple[Any, int | None, int | None, Any] | None:
    """(object, count, displacement, datatype) of mpi4py's buffer specifications; None for the forms left to MPI."""
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


def is_count(item: Any) -> bool:
    """A count, or counts with displacements: not a datatype."""
    return item is None or isinstance(item, (int, np.integer, list, tuple))


def bytes_reader(raw_bytes: Callable[[Any], Any]) -> Callable[[Any, str], Plain | None]:
    """How `host_array` reads an object of which the caller names the type: as bytes."""

    def read(obj: Any, name: str) -> Plain | None:
        try:
            return Plain(np.asarray(raw_bytes(obj)))
        except (TypeError, ValueError, BufferError, RuntimeError):
            return None  # MPI's own call words the error

    return read


class Bits:
    """A device array's memory as uint16: CuPy has no dtype for that of its interface."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self._array.__cuda_array_interface__, "typestr": np.dtype(np.uint16).str}


def as_bits(array: Any, role: str) -> tuple[Any, str | None]:
    """A device array, and "bfloat16" if its library writes its two bytes as raw memory, as PyTorch does."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None or interface["typestr"][1:] != "V2" or not hasattr(array, "__dlpack__"):
        return array, None
    return (Bits(array), "bfloat16") if Exported(array, role).type.is_bfloat16 else (array, None)


def check_type(message: Any, role: str) -> None:
    """Refuse a message to be added by MPI whose type the caller does not name and MPI lacks."""
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


def check_aligned(array: Any, name: str) -> None:
    """Refuse a host array at an address that its dtype cannot have: mpi4py and the compiled operations reject it."""
    if not getattr(array.flags, "aligned", True):
        raise BufferRefused(
            f"{name} must be aligned, got {array.dtype} elements at an address that is not a multiple of "
            f"{array.dtype.alignment} bytes: pass a copy"
        )


def check_device(array: Any, role: str) -> None:
    device = None if hasattr(type(array), "__cuda_array_interface__") else device_of(array)
    if device is not None:
        array = device.own(array)  # known by DLPack alone
    interface = array.__cuda_array_interface__
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


def flat_on(device: Device, array: Any) -> Any:
    """A device array in its device's type, another library's once it is there."""
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


def bytes_of(shape: Any, dtype: Any) -> int:
    """The length of an array of plain values; InvalidArgument where there is none."""
    try:
        dtype = np.dtype(dtype)
        lengths = tuple(map(index, shape)) if np.iterable(shape) else (index(shape),)
    except TypeError as error:
        raise InvalidArgument(f"expected a shape of whole numbers and a dtype, got {shape!r}, {dtype!r}") from error
    if min(lengths, default=0) < 0 or dtype.hasobject or dtype.itemsize == 0:
        raise InvalidArgument(f"expected lengths from 0 and a dtype of plain values, got {shape!r}, {dtype}")
    return prod(lengths) * dtype.itemsize


def check_flat(x: Any, name: str) -> Any:
    """``x`` if it is a contiguous one-dimensional array, writable or not; device arrays in their device's type."""
    device = device_of(x)
    if device is not None:
        check_device(x, name)
        return flat_on(device, x)
    found = host_array(x, name) if isinstance(x, np.ndarray) else None
    if found is None:
        raise BufferRefused(f"{name} must be an array, got {type(x).__name__}")
    check_host(found.array, name)
    if found.array.ndim != 1:
        raise BufferRefused(f"{name} must be one-dimensional, got shape {x.shape}: pass x.reshape(-1)")
    return found.array

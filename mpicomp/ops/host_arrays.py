"""Host memory of any library's arrays as plain NumPy arrays, with the element type that the library names."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from typing import Any, NamedTuple

import numpy as np

from ..errors import BufferRefused, MissingExtra

LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # NumPy's kinds, by DLPack's type code
BFLOAT = 4  # DLPack's kDLBfloat
HOST = (1, 3, 11)  # DLPack's kDLCPU, kDLCUDAHost, kDLROCMHost
READ_ONLY = 1  # flag of a DLPack tensor


class Plain(NamedTuple):
    """An array of the class ``numpy.ndarray`` itself. ``kind`` names a type NumPy lacks: "bfloat16", as uint16 bits."""

    array: np.ndarray
    kind: str | None = None

    def named(self) -> np.ndarray:
        """The array in its own dtype: bfloat16 is that of ml_dtypes."""
        return self.array if self.kind is None else self.array.view(bfloat16())


class ElementType(Structure):
    """DLPack's DLDataType."""

    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))

    @property
    def is_bfloat16(self) -> bool:
        return (self.code, self.bits, self.lanes) == (BFLOAT, 16, 1)

    def dtype(self) -> np.dtype | None:
        """The NumPy dtype of such elements; None if NumPy has none."""
        if self.lanes != 1 or self.bits % 8 or self.code not in LETTERS:
            return None
        try:
            return np.dtype(f"{LETTERS[self.code]}{self.bits // 8}")
        except TypeError:
            return None

    def __str__(self) -> str:
        if self.is_bfloat16:
            return "bfloat16"
        return str(self.dtype() or f"elements of DLPack's type code {self.code}, {self.bits} bits, {self.lanes} lanes")


class Tensor(Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("type", ElementType),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    )  # fmt: skip


class Managed(Structure):
    """DLPack's DLManagedTensor, of producers older than version 1.0."""

    _fields_ = (("tensor", Tensor), ("manager_ctx", c_void_p), ("deleter", c_void_p))
    major, flags = 0, READ_ONLY  # the flags are unknown, and JAX's arrays must not be written


class Versioned(Structure):
    """DLPack's DLManagedTensorVersioned."""

    _fields_ = (
        ("major", c_uint32), ("minor", c_uint32), ("manager_ctx", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", Tensor),
    )  # fmt: skip


FORMS = {b"dltensor_versioned": Versioned, b"dltensor": Managed}  # by the name of the capsule
_is_valid, _pointer = pythonapi.PyCapsule_IsValid, pythonapi.PyCapsule_GetPointer
_is_valid.restype, _is_valid.argtypes = c_int, (py_object, c_char_p)
_pointer.restype, _pointer.argtypes = c_void_p, (py_object, c_char_p)


class Exported:
    """An array's DLPack capsule; NumPy makes arrays of it, which keep it, and so the memory, alive."""

    def __init__(self, obj: Any, name: str) -> None:
        try:
            try:
                self._capsule = obj.__dlpack__(max_version=(1, 0))
            except TypeError:  # a producer older than version 1.0
                self._capsule = obj.__dlpack__()
        except Exception as error:  # such as PyTorch's of a tensor that requires a gradient, which names the remedy
            raise BufferRefused(f"{name} cannot be read as a buffer: {error}") from error
        form = next((form for form in FORMS if _is_valid(self._capsule, form)), None)
        if form is None:
            raise BufferRefused(f"{name} must export a DLPack tensor, got {self._capsule!r} from {type(obj).__name__}")
        managed = cast(_pointer(self._capsule, form), POINTER(FORMS[form])).contents
        if managed.major > 1:  # its layout is unknown
            raise BufferRefused(f"{name} must export DLPack 1, got version {managed.major}: convert it to NumPy's")
        self._tensor: Tensor = managed.tensor
        self._read_only = bool(managed.flags & READ_ONLY)

    @property
    def type(self) -> ElementType:
        return self._tensor.type

    @property
    def on_host(self) -> bool:
        return self._tensor.device_type in HOST

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The memory as an array of ``dtype``, which is as wide as the elements are."""
        tensor, ndim = self._tensor, self._tensor.ndim
        self.__array_interface__ = {
            "shape": tuple(tensor.shape[:ndim]), "typestr": dtype.str, "version": 3,
            "strides": tuple(dtype.itemsize * stride for stride in tensor.strides[:ndim]) if tensor.strides else None,
            "data": ((tensor.data or 0) + tensor.byte_offset, self._read_only),
        }  # fmt: skip
        return np.asarray(self)


def host_array(
    obj: Any, name: str, from_dlpack: Callable[[object, str], Plain | None] | None = None
) -> Plain | None:
    """``obj`` as a plain array on the same memory; None if it has no such view.

    Parameters
    ----------
    name : str
        What errors call it.
    from_dlpack : callable, optional
        Replaces the function of this name for an object that nothing else can read.

    Raises
    ------
    BufferRefused
        A masked array; a DLPack type that NumPy lacks; an array that its library does not export.
    """
    if type(obj) is np.ndarray:
        return Plain(obj)
    if isinstance(obj, np.ma.MaskedArray):
        raise BufferRefused(f"{name} must be a plain array, got a masked array, whose mask would be ignored: "
                            "pass a.filled(0), or a.data to include what is masked")  # fmt: skip
    if isinstance(obj, np.generic):
        array = np.array(obj)  # a copy: nothing can be received in it
        array.flags.writeable = False
        return Plain(array)
    try:
        if hasattr(obj, "__array_interface__"):
            return Plain(np.asarray(obj))  # of a subclass, too: a matrix would stay two-dimensional when reshaped
        return Plain(np.asarray(memoryview(obj)))
    except (TypeError, ValueError, BufferError, RuntimeError, AttributeError):
        return (from_dlpack or _from_dlpack)(obj, name) if hasattr(obj, "__dlpack__") else None


def _from_dlpack(obj: object, name: str) -> Plain | None:
    """A host array that its library exports by DLPack; None for one on a device that no code of ours knows."""
    exported = Exported(obj, name)
    found = exported.type
    dtype = np.dtype(np.uint16) if found.is_bfloat16 else found.dtype()
    if dtype is None:
        raise BufferRefused(f"{name} must hold numbers that NumPy or MPI can add, got {found}: convert it to float32")
    if not exported.on_host:
        return None
    return Plain(exported.view(dtype), "bfloat16" if found.is_bfloat16 else None)


def check_named(obj: object, name: str) -> None:
    """Refuse an array of a DLPack type that NumPy lacks: mpi4py takes it for another type of the same size."""
    if isinstance(obj, np.ndarray) or not hasattr(obj, "__dlpack__"):
        return
    found = Exported(obj, name).type
    if found.dtype() is None:
        raise BufferRefused(f"{name} must hold numbers of an MPI datatype, got {found}: convert it to float32, or use "
                            "Comm.Allreduce, which does SUM, PROD, MIN and MAX of bfloat16 in float32")  # fmt: skip


def bfloat16() -> np.dtype:
    """NumPy's dtype of this name, which ml_dtypes defines."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtra("bfloat16 arrays in NumPy need ml_dtypes: pip install ml_dtypes") from error
    return np.dtype(ml_dtypes.bfloat16)

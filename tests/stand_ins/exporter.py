"""Arrays that speak DLPack alone, with any type code: what PyTorch and JAX export, without either."""

from __future__ import annotations

import ctypes

from mpicomp.ops.host_arrays import READ_ONLY, ElementType, Managed, Tensor, Versioned

FLOAT, BFLOAT, FLOAT8 = 2, 4, 10  # type codes
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Exporter:
    """Exports ``data``, which it keeps, as elements of a type code; ``old``: in the form before DLPack 1.0."""

    def __init__(self, data, code, bits=16, lanes=1, device=1, strides=None, read_only=False, old=False):
        self.data, self.device = data, device
        self._shape = (ctypes.c_int64 * data.ndim)(*data.shape)
        self._strides = None if strides is None else (ctypes.c_int64 * data.ndim)(*strides)
        kind, address = ElementType(code, bits, lanes), data.ctypes.data
        tensor = Tensor(address, device, 0, data.ndim, kind, self._shape, self._strides, 0)
        flags = READ_ONLY if read_only else 0
        self._name = b"dltensor" if old else b"dltensor_versioned"
        self._managed = Managed(tensor, None, None) if old else Versioned(1, 0, None, None, flags, tensor)

    def __dlpack__(self, **options):
        if options and self._name == b"dltensor":
            raise TypeError("no such keyword")
        return _new(ctypes.addressof(self._managed), self._name, None)

    def __dlpack_device__(self):
        return self.device, 0


def bfloat16(values, **options):
    """Values as an exporter of bfloat16; ``data`` holds the bits, which the values' high halves are."""
    bits = (values.astype("f4").view("u4") >> 16).astype("u2")
    return Exporter(bits, BFLOAT, **options)


def floats(exporter):
    """The values of an exporter of bfloat16."""
    return (exporter.data.astype("u4") << 16).view("f4")

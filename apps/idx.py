"""IDX files as MNIST and Fashion-MNIST are published in: ``train-images-idx3-ubyte.gz`` and its three siblings.

Four bytes of magic (two zeros, 8 for unsigned bytes, the number of dimensions), each dimension as a big-endian 32-bit
integer, then the values. Reference: Y. LeCun, C. Cortes, C. Burges, The MNIST database, "file formats".
"""

from __future__ import annotations

import gzip
import math
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument

UNSIGNED_BYTE = 8
LARGEST = 1 << 30  # bytes of values; MNIST has 47 million


def read(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """The array in ``folder/name`` or ``folder/name.gz``, dtype uint8.

    Raises
    ------
    InvalidArgument
        There is no such file.
    CorruptFile
        It is not an IDX file of unsigned bytes with so many dimensions, or it is cut or too long.
    """
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise InvalidArgument(f"no {name} or {name}.gz in {folder}: expected the four IDX files of MNIST or "
                              "Fashion-MNIST there, or synthetic:train=2000,test=500,seed=1 to go without")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            return _array(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptFile(f"{path} cannot be read: {error}") from None


def _array(file: BufferedIOBase, path: Path, dimensions: int) -> np.ndarray:
    head = file.read(4 + 4 * dimensions)
    expected = bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if head[:4] != expected or len(head) < 4 + 4 * dimensions:
        raise CorruptFile(f"{path} must begin with {expected.hex()} (unsigned bytes in {dimensions} dimensions), "
                          f"got {head[:4].hex()}")
    shape = tuple(np.frombuffer(head, ">u4", offset=4).tolist())
    nbytes = math.prod(shape)
    if nbytes > LARGEST:
        raise CorruptFile(f"{path} claims {shape}, more than {LARGEST} bytes")
    data = file.read(nbytes + 1)
    if len(data) != nbytes:
        raise CorruptFile(f"{path} must hold {nbytes} values for its shape {shape}, got "
                          f"{'more' if len(data) > nbytes else len(data)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def write(path: Path, array: np.ndarray) -> None:
    """Write unsigned bytes in this format, compressed: what stand-ins and tests are made with."""
    head = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head + np.ascontiguousarray(array, np.uint8).tobytes())

"""CIFAR-10: the official binary version, and an archive of JPEG files in NumPy's .npz.

Binary version: six files of records of 3073 bytes, a class and 3 x 32 x 32 levels, red, green, blue. (The "python
version" is made of pickles, which run code when they are read: it is refused.) Archive: ``train_jpeg``, all JPEG files
one after the other, ``train_offsets``, where each begins and the last ends, ``train_labels``; the same for ``test``.

Reference: A. Krizhevsky, Learning multiple layers of features from tiny images, 2009; its page, "binary version".
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from mpicomp.errors import CorruptFile, InvalidArgument, MissingExtra, MpicompError

from . import compressed_files

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
PICKLED = "data_batch_1"  # of the python version
LARGEST = 1 << 28  # bytes of an array in an archive
_SPLITS = ("train", "test")

Arrays = list[np.ndarray]  # images and labels to train on, and to test on; images uint8, shape (n, 3, 32, 32)


def read_folder(folder: Path) -> Arrays:
    """The binary version, its files compressed or not.

    Raises
    ------
    InvalidArgument
        A file is missing, or this is the python version.
    CorruptFile
        A file does not consist of records, or is damaged.
    """
    parts = []
    for names in (TRAIN, TEST):
        records = np.concatenate([_records(folder, name) for name in names])
        parts += [records[:, 1:].reshape(-1, 3, SIDE, SIDE), records[:, 0]]
    return parts


def _records(folder: Path, name: str) -> np.ndarray:
    path = compressed_files.find(folder, (name,))
    if path is None:
        pickled = (folder / PICKLED).is_file()
        raise InvalidArgument(f"no {name} in {folder}: expected the binary version of CIFAR-10 "
                              f"(cifar-10-binary.tar.gz)" + ", got the python version" * pickled)
    content = compressed_files.read(path, LARGEST)
    if not content or len(content) % RECORD:
        raise CorruptFile(f"{path} must hold records of {RECORD} bytes, got {len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(-1, RECORD)


def read_archive(path: Path) -> Arrays:
    """An .npz file of JPEG files; needs Pillow.

    Raises
    ------
    MissingExtra
        There is no Pillow.
    CorruptFile
        The archive or an image of it is damaged, or is something else.
    """
    parts: Arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for split in _SPLITS:
                content, offsets, labels = (_array(archive, f"{split}_{name}", path)
                                            for name in ("jpeg", "offsets", "labels"))  # fmt: skip
                if labels.size and not 0 <= labels.min() <= labels.max() < 256:
                    raise CorruptFile(f"{path}: {split}_labels must be small whole numbers")
                parts += [_images(content, offsets, f"{path}, {split}"), labels.astype(np.uint8)]
    except MpicompError:
        raise
    except Exception as error:  # zipfile, NumPy and Pillow raise whatever their parsers run into
        raise CorruptFile(f"{path} is no .npz archive of JPEG images or is damaged: {error}") from None
    return parts


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """A vector of whole numbers, without trust in what the archive says of sizes."""
    with archive.open(f"{name}.npy") as file:
        content = io.BytesIO(file.read(LARGEST + 1))
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    read_header = readers.get(np.lib.format.read_magic(content))
    shape, _, dtype = read_header(content) if read_header else ((), False, np.dtype(object))
    if len(shape) != 1 or dtype.kind not in "iu":
        raise CorruptFile(f"{path}: {name} must be a vector of whole numbers, got {dtype} of shape {shape}")
    values = content.getbuffer()[content.tell() :]
    if len(values) != shape[0] * dtype.itemsize:
        raise CorruptFile(f"{path}: {name} must hold {shape[0]} numbers in at most {LARGEST} bytes, got {len(values)} "
                          "bytes")
    return np.frombuffer(values, dtype)


def _images(content: np.ndarray, offsets: np.ndarray, where: str) -> np.ndarray:
    """Decoded images, shape (n, 3, 32, 32)."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("JPEG images need Pillow: pip install 'mpicomp[data]'") from error
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != content.size or (offsets[1:] <= offsets[:-1]).any():
        raise CorruptFile(f"{where}: offsets must rise from 0 to {content.size}, the bytes of all images")
    out = np.empty((len(offsets) - 1, 3, SIDE, SIDE), np.uint8)
    for number, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        with Image.open(io.BytesIO(content[start:end].tobytes()), formats=["JPEG"]) as image:
            if image.size != (SIDE, SIDE):  # known from the head, before anything is decoded
                raise CorruptFile(f"{where}: images must have {SIDE} x {SIDE} points, number {number} has {image.size}")
            out[number] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    return out


def write_folder(folder: Path, arrays: Arrays) -> None:
    """Write the binary version: what stand-ins and tests are made with."""
    records = [np.column_stack([labels, images.reshape(len(images), -1)]).astype(np.uint8)
               for images, labels in (arrays[:2], arrays[2:])]  # fmt: skip
    for name, part in zip((*TRAIN, *TEST), (*np.array_split(records[0], len(TRAIN)), records[1]), strict=True):
        (folder / name).write_bytes(part.tobytes())

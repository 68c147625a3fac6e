"""Files that may be compressed: by gzip, bzip2 or xz, told by what they begin with and not by their name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from io import BufferedIOBase, BufferedReader
from pathlib import Path

from mpicomp.errors import CorruptFile, InvalidArgument

_OPENERS: dict[bytes, Callable[[BufferedReader], BufferedIOBase]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open,
}  # fmt: skip
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)  # what reading a damaged one raises
SUFFIXES = ("", ".xz", ".gz", ".bz2")
LARGEST = 1 << 30  # bytes of content; MovieLens 20M has half of it
_PIECE = 1 << 20


def unpacked(raw: BufferedReader) -> BufferedIOBase:
    """Return a reader of the uncompressed content of an open file."""
    head = raw.read(6)
    raw.seek(0)
    return next((opener(raw) for magic, opener in _OPENERS.items() if head.startswith(magic)), raw)


def read(path: Path, largest: int = LARGEST) -> bytes:
    """The whole content of a file.

    Raises
    ------
    InvalidArgument
        It may not be read.
    CorruptFile
        It is damaged or cut, or holds more than ``largest`` bytes.
    """
    pieces, size = [], 0
    try:
        with open(path, "rb") as raw, unpacked(raw) as file:
            while piece := file.read(_PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > largest:
                    raise CorruptFile(f"{path} must hold at most {largest} bytes, got more")
    except PermissionError as error:
        raise InvalidArgument(f"{path} may not be read: {error.strerror}") from error
    except BROKEN as error:
        raise CorruptFile(f"{path} breaks off or is damaged after {size} bytes: {error}; copy it again") from error
    return b"".join(pieces)


def find(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first file of these names in a folder, compressed or not."""
    paths = (folder / f"{name}{suffix}" for name in names for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)

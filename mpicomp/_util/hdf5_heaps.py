"""Whether HDF5 comes to an end with a file's heaps, where texts of variable length lie without a checksum.

HDF5 2.0 walks a heap from object to object; one that says it has no length has it stand still for ever, and nothing in
Python can interrupt it.

Reference: HDF5 file format specification, version 3.0, section III.E, "Disk format: level 1E - global heap".
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from ..errors import CorruptFile

_START = b"GCOL\1\0\0\0"
_LENGTH = struct.Struct("<8xQ")  # of a collection, behind its signature
_OBJECT = struct.Struct("<HHIQ")  # index, references, nothing, bytes


def check_heaps(path: Path, sizes: tuple[int, int] = (8, 8)) -> None:
    """Refuse a file that has a heap whose objects do not follow each other up to its end.

    ``sizes`` are the bytes of an address and of a length in it: 8 unless somebody chose others.

    Raises
    ------
    CorruptFile
        There is such a heap, or the sizes are others.
    """
    if sizes != (8, 8):
        raise CorruptFile("addresses and lengths must have 8 bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(_START)
        while at >= 0:
            _check(content, at)
            at = content.find(_START, at + len(_START))


def _check(content: mmap.mmap, begin: int) -> None:
    at = begin + _LENGTH.size
    end = begin + (_LENGTH.unpack_from(content, begin)[0] if at <= len(content) else 0)
    while at + _OBJECT.size <= end <= len(content):
        index, _, _, length = _OBJECT.unpack_from(content, at)
        step = _OBJECT.size + -(-length // 8) * 8 if index else length  # object 0 is the space that is left
        if step < _OBJECT.size or at + step > end:
            raise CorruptFile(f"the heap of texts at byte {begin} is damaged")
        at += step
    if not at <= end <= len(content):
        raise CorruptFile(f"the heap of texts at byte {begin} is cut off")

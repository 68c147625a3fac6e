"""What codecs share: the attributes of those whose codes stand by themselves, and parts of a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import CorruptMessage
from ...types import Array, Place

BYTE = np.dtype(np.uint8)


class SelfContained:
    """A codec whose codes hold all that a receiver needs, so that they cannot be added up."""

    addable = False
    shares_scale = False
    kind = None

    def may_overflow(self, dtype: np.dtype) -> bool:
        return False


class InPlace(SelfContained):
    """One that writes what a receiver reads where it is to lie, by ``decode_into(values, codes, place, step)``."""

    writes = True  # whether that gives what decode does: not where a class made from one has a decode of its own
    decode_into: Callable[..., None]

    def __init_subclass__(cls) -> None:
        if "decode" in vars(cls):
            cls.writes = False

    def decode(self, codes: Array, place: Place, step: Any) -> Array:
        values: Array = step.ops.empty(place.size, step.dtype)
        self.decode_into(values, codes, place, step)
        return values


def first_number(place: Place) -> int:
    """The random number of a place's first value: pieces of a vector draw what the whole would."""
    return place.start if place.indices is None else 0


def packed_bytes(count: int, width: int) -> int:
    """Bytes that ``count`` codes of ``width`` bits take."""
    return -(-count * width // 8)


def require_bytes(codes: Array, nbytes: int) -> None:
    """Refuse codes that do not take as many bytes as their values need."""
    if codes.nbytes != nbytes:
        raise CorruptMessage(f"codes must take {nbytes} bytes, got {codes.nbytes}: a rank's message is damaged")


def split(message: Array, counts: list[int], dtype: np.dtype) -> list[Array]:
    """So many values of ``dtype`` at the head of a message of bytes, as views, and the bytes that are left.

    Raises
    ------
    CorruptMessage
        The message is too short.
    """
    if message.nbytes < sum(counts) * dtype.itemsize:
        raise CorruptMessage(f"a message of {message.nbytes} bytes is too short for the {sum(counts)} {dtype} at its "
                             "head")
    parts, at = [], 0
    for count in counts:
        parts.append(message[at : at + count * dtype.itemsize].view(dtype))
        at += count * dtype.itemsize
    return [*parts, message[at:]]

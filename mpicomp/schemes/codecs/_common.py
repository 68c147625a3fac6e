"""Decoding in place, and the parts of a message."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import numpy as np

from ...errors import CorruptMessage
from ...ops.arguments import Coded
from ...types import Array
from ..interfaces import Codec, StepContext
from ..values import Place

BYTE = np.dtype(np.uint8)


class InPlace(Codec, Protocol):
    """A codec that writes decoded values to their place: ``decode`` follows from ``write``."""

    @abstractmethod
    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        """Write the values that a receiver reads into ``values``."""

    def decode(self, codes: Array, place: Place, ctx: StepContext) -> Array:
        values: Array = ctx.ops.empty(place.size, ctx.dtype)
        self.write(values, codes, place, ctx)
        return values

    def decode_into(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        if type(self).decode is InPlace.decode:
            self.write(values, codes, place, ctx)
        else:  # a class of one's own, made from one of these
            super().decode_into(values, codes, place, ctx)


class Streamed(InPlace, Protocol):
    """A codec whose values one operation reads: decoded in place, or at their use."""

    @abstractmethod
    def reading(self, codes: Array, place: Place, ctx: StepContext) -> tuple[str, dict[str, object]]:
        """The operation's name, and its arguments but for ``out``."""

    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        operation, arguments = self.reading(codes, place, ctx)
        getattr(ctx.ops, operation)(**arguments, out=values)

    def coded(self, codes: Array, place: Place, ctx: StepContext) -> Array | Coded:
        if type(self).decode is not InPlace.decode:
            return super().coded(codes, place, ctx)
        return ctx.ops.coded(*self.reading(codes, place, ctx), place.size, ctx.dtype)


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


def framed(counts: list[int], dtype: np.dtype, nbytes: int, ctx: StepContext) -> tuple[Array, list[Array]]:
    """An empty message of so many values of ``dtype`` and ``nbytes`` bytes behind them, and its parts as views."""
    message = ctx.ops.empty(sum(counts) * dtype.itemsize + nbytes, BYTE)
    return message, split(message, counts, dtype)


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

"""One rank's message of an all-gather: for each of its workers a header, indices in few bytes, codes.

Indices are written in the shortest form: ``plain`` (4 bytes each, 8 above 2^31 elements), ``gaps`` (bit-packed
differences, all as wide as the largest), ``bitmap`` (n bits), or the selector's ``own`` (positions inside chunks). A
worker that sends everything writes ``none``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...errors import CorruptMessage
from ...ops.protocol import Ops
from ...types import Array
from ..interfaces import StepContext
from . import validation

FORMS = ("none", "plain", "gaps", "bitmap", "own")
HEADER = 4  # int64: count, form and width, bytes of indices, bytes of codes
BYTE = np.dtype(np.uint8)
ALIGNED = 16  # bytes, of which numbers of any type begin at a multiple


class Part(NamedTuple):
    """One worker's indices and codes, as they are sent."""

    length: int  # of the values
    form: str
    width: int  # bits a gap
    indices: Array  # written in this form, as bytes
    codes: Array

    @property
    def bits(self) -> float:
        """The worker's own bits, without the header."""
        return 8.0 * (self.indices.nbytes + self.codes.nbytes)


def part(indices: Array | None, own: Array | None, codes: Array, count: int, wanted: str, ctx: StepContext) -> Part:
    """A worker's part; ``wanted`` is a form, or ``auto`` for the shortest.

    ``own`` is the selector's own compact form, if that is shorter than indices, else None.
    """
    ops, n = ctx.ops, ctx.n
    if indices is None:
        return Part(count, "none", 0, ops.empty(0, BYTE), codes)
    width = ops.largest_gap(indices).bit_length() if wanted in ("auto", "gaps") else 0
    sizes = _sizes(count, width, ctx)
    if own is not None and wanted == "auto":
        sizes["own"] = own.nbytes
    form = wanted if wanted != "auto" else min(sizes, key=lambda name: sizes[name])
    if form == "plain":
        return Part(count, form, 0, indices.view(BYTE), codes)
    if form == "own" and own is not None:
        return Part(count, form, 0, own.view(BYTE), codes)
    packed = ops.empty(sizes[form], BYTE)
    if form == "gaps":
        ops.pack_gaps(indices, width, packed)
        return Part(count, form, width, packed, codes)
    ops.pack_bitmap(indices, n, packed)
    return Part(count, form, 0, packed, codes)


def pack(parts: list[Part], ops: Ops) -> Array:
    """All of a rank's parts as one array of bytes."""
    headers = [(one.length, FORMS.index(one.form) + (one.width << 8), one.indices.nbytes, one.codes.nbytes)
               for one in parts]
    arrays = [ops.from_host(np.array(headers, np.int64).ravel().view(BYTE))]
    for one in parts:
        arrays += [one.indices, one.codes.view(BYTE)]
    return ops.concatenate(arrays, BYTE)


def heads(messages: dict[int, Array], ctx: StepContext) -> dict[int, list[list[int]]]:
    """The headers of each worker in messages by rank."""
    return validation.lengths_at_heads({rank: (message, ctx.workers.on(rank)) for rank, message in messages.items()},
                                     HEADER, ctx.ops)


def unpack(message: Array, headers: list[list[int]], ctx: StepContext) -> Iterator[tuple[Array | None, Array]]:
    """Each worker's indices (None: all) and its codes as bytes, as its one of ``headers`` tells.

    Whether indices ascend is still to be seen. Both may be the message's own memory.

    Raises
    ------
    CorruptMessage
        Before anything is written or much memory taken: lengths or forms that cannot be.
    """
    at = 8 * HEADER * len(headers)
    _check(headers, message.size - at, ctx)
    for count, kind, index_bytes, code_bytes in headers:
        written = message[at : at + index_bytes]
        codes = validation.aligned(message[at + index_bytes : at + index_bytes + code_bytes], ALIGNED)
        at += index_bytes + code_bytes
        with validation.RECEIVED:
            indices = _indices(FORMS[kind & 255], kind >> 8, count, written, ctx)
        yield indices, codes


def _check(headers: list[list[int]], nbytes: int, ctx: StepContext) -> None:
    """Refuse headers that do not describe the ``nbytes`` behind them."""
    for count, kind, index_bytes, code_bytes in headers:
        form, width = kind & 255, kind >> 8
        if not (0 <= count <= ctx.n and form < len(FORMS) and 0 <= width <= 63 and min(index_bytes, code_bytes) >= 0
                and index_bytes == _written_bytes(FORMS[form], width, count, ctx)):  # fmt: skip
            raise CorruptMessage(f"a message of {index_bytes} bytes of indices and {code_bytes} of codes cannot hold "
                                 f"{count} values of {ctx.n} in form {kind}")
    if sum(index_bytes + code_bytes for _, _, index_bytes, code_bytes in headers) != nbytes:
        raise CorruptMessage(f"a message says that it is longer or shorter than its {nbytes} bytes")


def _written_bytes(form: str, width: int, count: int, ctx: StepContext) -> int:
    """The bytes that so many indices take; -1 where they cannot be in this form."""
    if form == "none":
        return 0 if count == ctx.n else -1
    if form == "own":
        like = ctx.selector.wire_like(ctx)
        return -1 if like is None else like.nbytes
    return _sizes(count, width, ctx)[form]


def _sizes(count: int, width: int, ctx: StepContext) -> dict[str, int]:
    """Bytes of so many indices in each form that is not the selector's own."""
    return {"plain": count * ctx.ops.index_dtype(ctx.n).itemsize, "gaps": -(-count * width // 8),
            "bitmap": -(-ctx.n // 8)}


def _indices(form: str, width: int, count: int, written: Array, ctx: StepContext) -> Array | None:
    ops, n = ctx.ops, ctx.n
    if form == "none":
        return None
    dtype = ops.index_dtype(n)
    if form == "plain":
        return validation.aligned(written, ALIGNED).view(dtype)
    if form == "own":
        like = ctx.selector.wire_like(ctx)
        assert like is not None, "else the form was refused"
        indices = ctx.selector.expand(validation.aligned(written, ALIGNED).view(like.dtype), ctx)
        if indices.size != count:
            raise CorruptMessage(f"a message of {count} values came with {indices.size} indices")
        return indices
    indices = ops.empty(count, dtype)
    if form == "gaps":
        ops.unpack_gaps(written, width, n, indices, False)
    else:
        ops.unpack_bitmap(written, n, indices, False)
    return indices

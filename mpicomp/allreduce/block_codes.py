"""Quantised all-reduce: pieces travel as block codes of 8 or 4 bits to their owners, and their sums to all ranks.

Schedule      Two hops (`two_hops`). Every rank encodes its vector; the owner of a piece decodes it from all ranks, adds
              in rank order, in float32 or float64, multiplies by the factor, and encodes the result, which all ranks
              decode, the owner as well: the same bits everywhere.
Cost          2(p-1)/p n elements sent per rank, of 8.125 or 4.125 bits; n encoded twice, and decoded twice.
Restrictions  Lossy. With largest magnitude m of a block, of 256 elements, an element is rounded by at most m / 254
              (int8), m / 14 (int4) or m / 28 (fp8; also at most 1/16 of itself or m / 458752): once per rank, with the
              rank's m, and once with that of the result. One number that is not finite makes its block NaN.
              ``kind`` is "float16" or "bfloat16" if a uint16 vector holds the bits of half precision: float32 is
              encoded and added, and the result rounded.
Reference     EQuARX (arXiv 2506.17615); "ZeRO++" (arXiv 2306.10209), block quantisation.
"""

from __future__ import annotations

import numpy as np

from .._util.partition import chunk_count
from ..ops.block_codes import BLOCK, block_codes_nbytes
from ..ops.protocol import Ops
from ..types import Array
from .interfaces import Scratch
from .segments import segments
from .two_hops import StreamLink, TwoHops, all_reduce_pieces

SEGMENT_BYTES = 256 << 10  # of a stream
BUFFERED_BYTES = 512 << 10  # of the streams of all pieces' segments


def allreduce(
    link: StreamLink, work: Array, op: str, ops: Ops, scratch: Scratch, factor: float = 1.0,
    source: Array | None = None, kind: str | None = None, *, format: str,
) -> None:  # fmt: skip
    if link.size == 1 or work.size == 0:
        return
    assert op == "sum", "checked in Comm.Allreduce"
    pieces = all_reduce_pieces(link, work if source is None else source, work, BLOCK, by_nodes=False)
    dtype = np.dtype(np.float32) if kind else work.dtype
    codes = BlockCodes(ops, format, dtype, kind, factor, scratch)
    usual = min(SEGMENT_BYTES, BUFFERED_BYTES // link.size), 0
    nbytes, _ = segments(link, work, codes.capacity(pieces.counts[0]), usual)
    TwoHops(link, pieces, codes, scratch, nbytes // codes.capacity(BLOCK) * BLOCK).run()


class BlockCodes:
    """Block codes of ``dtype``, or of half precision of a ``kind``, whose sums are multiplied by ``factor``."""

    block = BLOCK

    def __init__(self, ops: Ops, format: str, dtype: np.dtype, kind: str | None, factor: float, scratch: Scratch
                 ) -> None:  # fmt: skip
        self.ops, self.format, self.dtype, self.kind, self.factor = ops, format, dtype, kind, factor
        self.scratch = scratch

    def capacity(self, n: int) -> int:
        return block_codes_nbytes(n, self.format)

    def encode(self, values: Array, out: Array) -> int:
        if self.kind:
            wide = self._values(values.size)
            self.ops.widen(wide, values, self.kind)
            values = wide
        nbytes = self.capacity(values.size)
        self.ops.encode_blocks(values, self.format, out[:nbytes])
        return nbytes

    def sum(self, streams: list[Array], n: int, out: Array) -> int:
        coded = [self.ops.coded("decode_blocks", {"codes": stream, "format": self.format}, n, self.dtype)
                 for stream in streams]
        total, nbytes = self._values(n), self.capacity(n)
        self.ops.coded_mean(coded, self.factor, None, total)
        self.ops.encode_blocks(total, self.format, out[:nbytes])
        return nbytes

    def decode(self, stream: Array, out: Array) -> None:
        if self.kind:
            wide = self._values(out.size)
            self.ops.decode_blocks(stream, self.format, wide)
            self.ops.narrow(out, wide, self.kind)
        else:
            self.ops.decode_blocks(stream, self.format, out)

    def in_order(self, stream: Array, n: int) -> int:
        return chunk_count(n, BLOCK)

    def _values(self, n: int) -> Array:
        return self.scratch(n, self.dtype, slot="values")[:n]

"""The largest values exactly, the rest by an unbiased code: an induced compressor."""

from __future__ import annotations

from ...types import Array
from ..interfaces import StepContext
from ..options import DENSITY, K
from ..values import Place
from ._common import BYTE, InPlace, packed_bytes, split
from .levels import OPTIONS, Levels


class Induced(InPlace):
    """C(x) + Q(x - C(x)): C sends the largest values exactly, Q is QSGD's code of what is left. Unbiased, as Q is.

    So a biased compressor is used without error memory, and with less variance than Q alone.
    Message: k exact values, QSGD's code of all others (zero at the exact ones), the gaps between the exact ones.
    Cost: k (v + i) bytes, i the bits of the largest gap, + those of ``levels`` for n values.
    Restrictions: none.
    Reference: Horvath and Richtarik, A better alternative to error feedback for communication-efficient distributed
    learning, ICLR 2021, definition 4.
    """

    name = "induced"
    options = (DENSITY, K, *OPTIONS)
    reference = "Horvath and Richtarik 2021"
    finer = Levels.finer

    def __init__(self, density: float, k: int | None, levels: int, bucket: int, norm: str) -> None:
        self.density, self.k, self._rest = density, k, Levels(levels, bucket, norm)

    @property
    def error_factor(self) -> float:
        """That of the code of what is left."""
        return self._rest.error_factor

    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        ops, k = ctx.ops, self._count(place, ctx)
        chosen = ops.top_k(None, values, [(0, values.size)], [k])
        exact, rest = ops.empty(k, values.dtype), values.copy()
        ops.gather(None, values, chosen, exact)
        ops.clear(rest, chosen)
        gap_bytes = packed_bytes(k, ops.largest_gap(chosen).bit_length())
        gaps = ops.empty(gap_bytes, BYTE)
        ops.pack_gaps(chosen, _width(gap_bytes, k), gaps)
        return ops.concatenate([exact.view(BYTE), self._rest.encode(rest, place, ctx), gaps], BYTE)

    def write(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        ops, k = ctx.ops, self._count(place, ctx)
        exact, others = split(codes, [k], ctx.dtype)
        length = self._rest.code_nbytes(place.size, ctx.dtype)
        self._rest.write(values, others[:length], place, ctx)
        gaps, chosen = others[length:], ops.empty(k, ops.index_dtype(place.size))
        ops.unpack_gaps(gaps, _width(gaps.size, k), place.size, chosen)
        ops.scatter(values, chosen, exact)

    def _count(self, place: Place, ctx: StepContext) -> int:
        """Number of a place's values that are sent exactly: at least one of any that there are."""
        target = self.density if self.k is None else min(1.0, self.k / max(1, ctx.n))
        return min(place.size, max(1, round(ctx.density(target, 0) * place.size)))


def _width(nbytes: int, k: int) -> int:
    """Bits a gap: as many as their bytes have room for, so that a message need not say it."""
    return 8 * nbytes // max(1, k)

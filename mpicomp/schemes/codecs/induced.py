"""The largest values exactly, the rest by an unbiased code: an induced compressor."""

from __future__ import annotations

from typing import Any

from ...types import Array, Place
from ..options import DENSITY, K
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
    def spread(self) -> float:
        """That of the code of what is left."""
        return self._rest.spread

    def encode(self, values: Array, place: Place, step: Any) -> Array:
        ops, k = step.ops, self._count(place, step)
        chosen = ops.top_k(None, values, k)
        exact, rest = ops.empty(k, values.dtype), values.copy()
        ops.gather(None, values, chosen, exact)
        ops.clear(rest, chosen)
        gap_bytes = packed_bytes(k, ops.largest_gap(chosen).bit_length())
        gaps = ops.empty(gap_bytes, BYTE)
        ops.pack_gaps(chosen, _width(gap_bytes, k), gaps)
        return ops.concatenate([exact.view(BYTE), self._rest.encode(rest, place, step), gaps], BYTE)

    def decode_into(self, values: Array, codes: Array, place: Place, step: Any) -> None:
        ops, k = step.ops, self._count(place, step)
        exact, others = split(codes, [k], step.dtype)
        length = self._rest.nbytes(place.size, step.dtype.itemsize)
        self._rest.decode_into(values, others[:length], place, step)
        gaps, chosen = others[length:], ops.empty(k, ops.index_dtype(place.size))
        ops.unpack_gaps(gaps, _width(gaps.size, k), place.size, chosen)
        ops.scatter(values, chosen, exact)

    def _count(self, place: Place, step: Any) -> int:
        """How many of a place's values are sent exactly: at least one of any that there are."""
        target = self.density if self.k is None else min(1.0, self.k / max(1, step.n))
        return min(place.size, max(1, round(step.density(target, 0) * place.size)))


def _width(nbytes: int, k: int) -> int:
    """Bits a gap: as many as their bytes have room for, so that a message need not say it."""
    return 8 * nbytes // max(1, k)

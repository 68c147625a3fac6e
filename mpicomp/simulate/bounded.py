"""All-reduce with an error bound on arrays without elements: the real two hops, on streams of one compression ratio."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

import numpy as np
import numpy.typing as npt

from ..allreduce.two_hops import HEAD, Pieces, TwoHops, alone, owned_by_places
from ..errors import InvalidArgument
from ..ops.error_bound import BLOCK, bounded_capacity
from ..types import Array
from .ghost import Ghost, as_array
from .ghost_ops import GhostOps
from .link import RecordingLink

PREFIX = "two_hops:ratio="
ASSUMED = ("codes of sums are taken to be as short as those of the ranks, and no block escapes; auto would run the "
           "exact all-reduce if it were faster")


def ratio_in(what: str) -> float:
    """Return the compression ratio in a name such as ``two_hops:ratio=6``."""
    try:
        ratio = float(what.removeprefix(PREFIX))
    except ValueError:
        ratio = 0.0
    if not (isfinite(ratio) and ratio >= 1):
        raise InvalidArgument(f"the compression ratio of an all-reduce with an error bound must be a number from 1, "
                              f"got {what.removeprefix(PREFIX)!r}")
    return ratio


class GhostCodes:
    """Error-bounded streams of one compression ratio, of which the cost alone is written down."""

    block = BLOCK

    def __init__(self, work: Callable[[str, int], None], dtype: np.dtype, ratio: float) -> None:
        self.work, self.dtype, self.ratio = work, dtype, ratio

    def capacity(self, n: int) -> int:
        return bounded_capacity(n, self.dtype)

    def encode(self, values: Array, out: Array) -> int:
        self.work("encode_bounded", values.size)
        return self._nbytes(values.size)

    def sum(self, streams: list[Array], n: int, out: Array) -> int:
        self.work("sum_bounded", n * len(streams))
        return self._nbytes(n)

    def decode(self, stream: Array, out: Array) -> None:
        self.work("decode_bounded", out.size)

    def in_order(self, stream: Array, n: int) -> int:
        return 0

    def _nbytes(self, n: int) -> int:
        return ceil(n * self.dtype.itemsize / self.ratio)


def play(link: RecordingLink, ops: GhostOps, n: int, dtype: np.dtype, ratio: float) -> None:
    """Run the all-reduce of ``n`` elements as the rank of ``link``."""
    size, per_node = link.size, link.ranks_per_node
    nodes = alone(size)
    if not link.one_node and per_node > 1:
        nodes = [list(range(first, min(size, first + per_node))) for first in range(0, size, per_node)]
    counts, begins = owned_by_places(n, nodes, BLOCK)
    vector = as_array(Ghost(ops, n, dtype))
    pieces = Pieces(counts, [range(size)] * size, vector, begins, vector, begins, True, nodes)
    buffers: dict[str, Ghost] = {}

    def scratch(n: int, dtype: npt.DTypeLike = np.uint8, slot: str = "") -> Array:
        if slot not in buffers:  # with the length of a stream, which a received message brings
            head = np.array([n / ratio], np.int64).view(np.uint8)
            buffers[slot] = Ghost(ops, n, dtype, head)
        return as_array(buffers[slot])

    assert np.dtype(np.int64).itemsize == HEAD, "a head is what scratch gives"
    TwoHops(link, pieces, GhostCodes(ops.work, dtype, ratio), scratch).run()

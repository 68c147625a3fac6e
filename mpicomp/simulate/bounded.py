"""All-reduce with an error bound on arrays without elements: real schedules, streams of one compression ratio."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

import numpy as np
import numpy.typing as npt

from ..allreduce.ring_of_streams import Ring
from ..allreduce.two_hops import HEAD, Streams, TwoHops, all_reduce_pieces
from ..errors import InvalidArgument
from ..ops.error_bound import BLOCK, bounded_capacity
from ..types import Array
from .ghost import Ghost, as_array
from .ghost_ops import GhostOps
from .link import RecordingLink

SCHEDULES: dict[str, type[Streams]] = {"two_hops:ratio=": TwoHops, "ring:ratio=": Ring}  # by the prefix of a name
ASSUMED = ("codes of sums are taken to be as short as those of the ranks, and no block escapes; auto would run the "
           "exact all-reduce if it were faster")


def is_name(what: str) -> bool:
    """Return True for a name such as ``two_hops:ratio=6``."""
    return what.startswith(tuple(SCHEDULES))


def name_of(given: str) -> str:
    """Return the name of a word of ``--ratio``: a ratio, or ``ring:`` and a ratio."""
    prefix = "ring:ratio=" if given.startswith("ring:") else "two_hops:ratio="
    name = prefix + given.removeprefix("ring:")
    parts_of(name)
    return name


def parts_of(what: str) -> tuple[type[Streams], float]:
    """Return schedule and compression ratio of a name."""
    prefix = next(prefix for prefix in SCHEDULES if what.startswith(prefix))
    given = what.removeprefix(prefix)
    try:
        ratio = float(given)
    except ValueError:
        ratio = 0.0
    if not (isfinite(ratio) and ratio >= 1):
        raise InvalidArgument(f"the compression ratio of an all-reduce with an error bound must be a number from 1, "
                              f"got {given!r}")
    return SCHEDULES[prefix], ratio


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


def play(link: RecordingLink, ops: GhostOps, n: int, dtype: np.dtype, what: str) -> None:
    """Run the all-reduce of ``n`` elements called ``what`` as the rank of ``link``."""
    schedule, ratio = parts_of(what)
    vector = as_array(Ghost(ops, n, dtype))
    pieces = all_reduce_pieces(link, vector, vector, BLOCK, by_nodes=schedule is TwoHops)
    buffers: dict[str, Ghost] = {}

    def scratch(n: int, dtype: npt.DTypeLike = np.uint8, slot: str = "") -> Array:
        if slot not in buffers:  # with the length of a stream, which a received message brings
            nbytes = n // bounded_capacity(BLOCK, vector.dtype) * BLOCK * vector.dtype.itemsize
            head = np.array([nbytes / ratio], np.int64).view(np.uint8)
            buffers[slot] = Ghost(ops, n, dtype, head)
        return as_array(buffers[slot])

    assert np.dtype(np.int64).itemsize == HEAD, "a head is what scratch gives"
    schedule(link, pieces, GhostCodes(ops.work, dtype, ratio), scratch).run()

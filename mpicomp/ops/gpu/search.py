"""Launchers of searches for thresholds, for which the host waits once; see :mod:`..oracle.search`."""

from __future__ import annotations

from math import ceil, log

import numpy as np

from ..arguments import Bounds, Found, Samples, require_sampled, require_targets
from ..search import CORRECTIONS, RATIO, STAGES, normal_quantile
from . import base
from .arguments import kind_of, memory_or_null, remember
from .collect import GUESS, select_through, table_of
from .cuda_runtime import (
    MAX_BLOCKS,
    MOMENTS_PIECE,
    REAL,
    THREADS,
    TILE_BYTES,
    WARP,
    Array,
    blocks_for,
    kept_on_device,
    launch,
    on_device,
    to_host,
    xp,
)
from .largest import kth_cuts
from .selection import sample

KNOWN = 6  # words of 8 bytes a span: `Search` in search.cu, and where its list ends
TRIES = (CORRECTIONS + 1) * (CORRECTIONS + 2) // 2  # `tries` there
FURTHER = 4  # stages that are queued where the first were too few


class _Search:
    """State on the device of a search for the thresholds of some spans, and its launches."""

    def __init__(self, memory: Array | None, grad: Array, spans: Bounds, more: int = 0) -> None:
        self.t, self.m, self.grad, self.spans = kind_of(grad, "grad", REAL), memory_or_null(memory, grad), grad, spans
        self.pieces, self.table = table_of(spans, MOMENTS_PIECE)
        self.known = xp().zeros((KNOWN + more) * len(spans), np.int64)

    def run(self, name: str, *args: Array) -> None:
        scalars = self.table, np.int64(len(self.spans))
        launch("search", name, min(MAX_BLOCKS, self.pieces), self.m, self.grad, *scalars, *args, self.known)

    def found(self, wanted: int) -> tuple[Found, bool]:
        """All that reach the thresholds so far, about so many; and whether any goes on. Waits for the device."""
        count, n = len(self.spans), sum(stop - start for start, stop in self.spans)
        room = min(n, max(n // GUESS, 2 * wanted) + TILE_BYTES)
        cuts, ends = self.known[:count], self.known[(KNOWN - 1) * count : KNOWN * count]
        indices, _ = select_through(self.m, self.grad, self.spans, cuts, room, ends)
        left, _, lams, until = to_host(self.known[2 * count : KNOWN * count]).reshape(4, count)
        until = np.maximum.accumulate([0, *until])  # a span of no elements has no tile that says where it ends
        if until[-1] > room:
            indices, _ = select_through(self.m, self.grad, self.spans, cuts, int(until[-1]))
        indices = remember(indices[: int(until[-1])], self.grad.size)
        return Found(indices, np.diff(until).tolist(), lams.view(np.float64).tolist()), bool(left.any())


@on_device
def select_normal(memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    require_targets(memory, grad, spans, targets)
    search = _Search(memory, grad, spans, TRIES)
    goals = _goals(targets, [stop - start for start, stop in spans])
    sums = base.empty(3 * search.pieces, np.float64)
    search.run(f"first_threshold<{search.t}, true>", goals, sums)
    search.run(f"correct_thresholds<{search.t}>", goals, search.known[KNOWN * len(spans) :])
    return search.found(sum(targets))[0]


@on_device
def select_exponential(memory: Array | None, grad: Array, spans: Bounds, targets: list[int]) -> Found:
    require_targets(memory, grad, spans, targets)
    search, sizes = _Search(memory, grad, spans), [stop - start for start, stop in spans]
    goals = _goals(targets, sizes)
    sums, kept = base.empty(3 * search.pieces, np.float64), base.empty(grad.size // 2, grad.dtype)
    passed = base.empty(search.pieces * (THREADS // WARP), np.int32)
    search.run(f"first_threshold<{search.t}, false>", goals, sums)
    stage, until = 0, _stages(targets, sizes)
    while True:
        for number in range(stage, until):
            search.run(f"fit_stage<{search.t}, {str(number == 0).lower()}>", goals, kept, passed, sums)
        found, unfinished = search.found(sum(targets))
        if not unfinished or until == STAGES:
            return found
        stage, until = until, min(STAGES, until + FURTHER)


def _stages(targets: list[int], sizes: list[int]) -> int:
    """Number of stages queued at first: those of exponential tails, each of which leaves a quarter, and one more, or
    two for many spans, of which some take longer. A launch too many costs little.
    """
    ratio = min((target / n for target, n in zip(targets, sizes, strict=True) if n), default=1.0)
    return min(STAGES, max(1, ceil(log(ratio, RATIO))) + (1 if len(sizes) == 1 else 2))


@on_device
def select_sampled(memory: Array | None, grad: Array, spans: Bounds, samples: Samples, counts: list[int]) -> Found:
    places = require_sampled(memory, grad, spans, samples, counts)
    search = _Search(memory, grad, spans)
    values = base.empty(places[-1][1] if places else 0, grad.dtype)
    sample(memory, grad, samples, values)
    cuts, count = kth_cuts(values, places, counts), np.int64(len(spans))
    launch("search", f"accept_cuts<{search.t}>", blocks_for(count), cuts, count, search.known)
    return search.found(sum(k * stride for k, (_, stride, _) in zip(counts, samples, strict=True)))[0]


@kept_on_device
def _goals(targets: list[int], sizes: list[int]) -> Array:
    """On the device, how many are wanted of each span; then the quantiles of the normal distribution."""
    quantiles = [normal_quantile(n, k) if k < n else 0.0 for k, n in zip(targets, sizes, strict=True)]
    return xp().asarray(np.array([*targets, *quantiles], np.float64))

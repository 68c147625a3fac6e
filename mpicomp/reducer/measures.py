"""Effects of compression on a step, for analysis: errors, memories and index sets, over all workers of all ranks."""

from __future__ import annotations

import math

import numpy as np

from ..ops.protocol import Ops
from ..schemes.interfaces import Memory, StepContext
from ..schemes.stateful import Stateful
from ..schemes.values import Compensated, Sent, State, StepStats
from ..types import Array


class Measures(Stateful):
    """Works out the measures of every ``interval``-th step (0: of none, at no cost).

    All are the same on every rank; w workers, of whom worker i selected S_i and really sent I_i of its u_i:

    ==================  ==================================================================================
    density             mean of a worker's sent elements / elements of the vector
    wire_bytes          bytes per rank handed to MPI in the step, mean over ranks; without those of measuring
    compression_error   mean of ||u_i - sent_i||^2
    total_error         the sum of compression_error over all measured steps so far; part of the state
    contraction         compression_error / mean of ||u_i||^2: 0 where all was sent, 1 where nothing was
    memory_norm         mean of the Euclidean norms of the error memories after the step
    memory_cosine       mean cosine of the memories of two workers, over all pairs of memories that are not zero;
                        1 if there is no such pair
    hamming             mean of |S_i xor I_i| / (|S_i| + |I_i|): 0 where workers send what they chose themselves
    build_up            |union of all I_i| / sum of |I_i|: 1 if no two sets overlap, 1/w if all are the same
    ==================  ==================================================================================

    Schedule: before the exchange u_i is copied, and selected from once more; after it, two dense all-reduces (the sum
    of normalised memories, the union of index sets) and one of a few numbers.

    Reference: Sahu et al., NeurIPS 2021 (total error); Chen et al., ScaleCom, NeurIPS 2020, section 3 (cosine and
    Hamming distance, build-up).
    """

    def __init__(self, interval: int, memories: list[Memory]) -> None:
        self.interval, self._memories = interval, memories
        self._total_error = 0.0
        self._u: list[Array] = []
        self._chosen: list[Array | None] = []

    def due(self, number: int) -> bool:
        """True if step ``number`` is measured; then what was sent is to be kept."""
        return bool(self.interval) and number % self.interval == 0

    def begin(self, us: list[Compensated], ctx: StepContext) -> None:
        """Note what the step's update will overwrite."""
        self._u = [ctx.whole(u) for u in us]
        self._chosen = [self._choice(u, ctx) for u in us]

    def end(self, sent: list[Sent], stats: StepStats, ctx: StepContext) -> dict[str, float]:
        """The measures of the step (collective)."""
        squares = [ctx.ops.squared_norm(u) for u in self._u]
        hamming = [_hamming(own, one, u, ctx) for own, one, u in zip(self._chosen, sent, self._u, strict=True)]
        errors = [ctx.ops.squared_norm(one.taken_from(u, ctx.ops)) for u, one in zip(self._u, sent, strict=True)]
        counts = [_count(one.indices, ctx) for one in sent]
        norms = [math.sqrt(memory.squared_norm(ctx.ops)) for memory in self._memories]
        sums = np.array([sum(errors), sum(squares), sum(norms), sum(hamming), sum(counts), stats.bytes_sent],
                        np.float64)
        ctx.comm.allreduce_in_place(sums, "native")
        error, square, norm, distance = (sums[:4] / ctx.workers.total).tolist()
        count = float(sums[4])
        self._total_error += error
        measures = {
            "density": count / (ctx.workers.total * max(1, ctx.n)),
            "wire_bytes": float(sums[5]) / ctx.comm.size,
            "compression_error": error,
            "total_error": self._total_error,
            "contraction": error / square if square else 0.0,
            "memory_norm": norm,
            "memory_cosine": self._cosine(ctx),
            "hamming": distance,
            "build_up": _union(sent, ctx) / count if count else 0.0,
        }
        if ctx.trace is not None:
            for name, value in measures.items():
                ctx.trace.metric(name, ctx.timer.number, value)
        return measures

    def _choice(self, u: Compensated, ctx: StepContext) -> Array | None:
        """The selector's choice from one worker's u; it has no say of its own if ranks first agree."""
        if self._memories[0].is_local(ctx.number):
            return ctx.ops.arange(0)
        if ctx.selector.agreed or not ctx.n:
            return None
        return ctx.select(u)[1]

    def _cosine(self, ctx: StepContext) -> float:
        """From the sum s of all w unit vectors: ||s||^2 = w + the sum of the cosines of all ordered pairs."""
        ops, total, number = ctx.ops, ctx.ops.zeros(ctx.n, ctx.dtype), np.zeros(1)
        for memory in self._memories:
            norm = math.sqrt(memory.squared_norm(ops))
            residual = memory.state(ops).get("residual")
            if residual is not None and 0 < norm < math.inf:
                ops.axpby(total, 1.0, total, 1.0 / norm, ops.from_host(residual))
                number += 1
        ctx.comm.allreduce_in_place(number, "native")
        ctx.comm.allreduce_in_place(total, ctx.algorithm)
        w = float(number[0])
        return (ops.squared_norm(total) - w) / (w * (w - 1)) if w > 1 else 1.0

    def state(self, ops: Ops) -> State:
        return {"total_error": np.array(self._total_error)} if self.interval else {}

    def load(self, state: State) -> None:
        self._total_error = float(state.get("total_error", 0.0))


def _hamming(own: Array | None, sent: Sent, u: Array, ctx: StepContext) -> float:
    """Normalised Hamming distance of a worker's own selection to what it sent."""
    ops, indices = ctx.ops, sent.indices
    if ctx.selector.agreed and indices is not None:
        own = ops.top_k(None, u, [(0, u.size)], [indices.size])
    counts = _count(own, ctx), _count(indices, ctx)
    both = min(counts) if own is None or indices is None else ops.common(own, indices)[0].size
    return (sum(counts) - 2 * both) / sum(counts) if sum(counts) else 0.0


def _count(indices: Array | None, ctx: StepContext) -> int:
    return ctx.n if indices is None else indices.size


def _union(sent: list[Sent], ctx: StepContext) -> float:
    """The number of coordinates that any worker sent."""
    marks = ctx.ops.zeros(ctx.n, ctx.dtype)
    for one in sent:
        if one.indices is None:
            marks[:] = 1
        else:
            ones = ctx.ops.zeros(one.indices.size, ctx.dtype)
            ones[:] = 1
            ctx.ops.scatter(marks, one.indices, ones)
    ctx.comm.allreduce_in_place(marks, ctx.algorithm, "max")
    return ctx.ops.squared_norm(marks)

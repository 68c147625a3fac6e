"""What compression does to a step, for analysis: errors, memories and index sets, over all workers of all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..types import Array, Compensated, Sent, StepStats


class Measures:
    """Works out the measures of every ``interval``-th step (0: of none, at no cost).

    All are the same on every rank; w workers, of whom worker i selected S_i and really sent I_i of its u_i:

    ==================  ==================================================================================
    density             mean of a worker's sent elements / elements of the vector
    wire_bytes          bytes a rank handed to MPI in the step, mean over ranks; without those of measuring
    compression_error   mean of ||u_i - sent_i||^2
    total_error         the sum of compression_error over all measured steps so far; part of the state
    contraction         compression_error / mean of ||u_i||^2: 0 where all was sent, 1 where nothing was
    memory_norm         mean of the Euclidean norms of the error memories after the step
    memory_cosine       mean cosine of the memories of two workers, over all pairs of memories that are not zero;
                        1 where there is no pair
    hamming             mean of |S_i xor I_i| / (|S_i| + |I_i|): 0 where workers send what they chose themselves
    build_up            |union of all I_i| / sum of |I_i|: 1 where no two sets overlap, 1/w where all are the same
    ==================  ==================================================================================

    Schedule: before the exchange u_i is copied, and selected from once more; after it, two dense all-reduces (the sum
    of normalised memories, the union of index sets) and one of a few numbers.

    Reference: Sahu et al., NeurIPS 2021 (total error); Chen et al., ScaleCom, NeurIPS 2020, section 3 (cosine and
    Hamming distance, build-up).
    """

    def __init__(self, interval: int, step: Any, memories: list[Any]) -> None:
        self.interval, self._step, self._memories = interval, step, memories
        self._total_error = 0.0
        self._u: list[Array] = []
        self._chosen: list[Array | None] = []

    def begin(self, workers: list[Compensated]) -> bool:
        """Whether this step is measured; then note what its update will overwrite."""
        step = self._step
        if not self.interval:
            return False
        measured = step.number % self.interval == 0
        step.remembers = measured or any(memory.remembers for memory in self._memories)  # what was sent is to be kept
        if not measured:
            return False
        self._u = [step.whole(u, f"measures-{worker}") for worker, u in enumerate(workers)]
        self._chosen = [self._choice(u) for u in workers]
        return True

    def end(self, sent: list[Sent], stats: StepStats) -> dict[str, float]:
        """The measures of the step (collective)."""
        step, squares = self._step, [self._step.ops.squared_norm(u) for u in self._u]
        hamming = [self._hamming(own, one, u) for own, one, u in zip(self._chosen, sent, self._u, strict=True)]
        errors = [step.ops.squared_norm(one.taken_from(u, step.ops)) for u, one in zip(self._u, sent, strict=True)]
        counts = [self._count(one.indices) for one in sent]
        norms = [math.sqrt(memory.squared_norm(step.ops)) for memory in self._memories]
        sums = np.array([*map(sum, (errors, squares, norms, hamming, counts)), stats.bytes_sent], np.float64)
        step.comm.allreduce_in_place(sums, "native")
        error, square, norm, distance = (sums[:4] / step.total_workers).tolist()
        count = float(sums[4])
        self._total_error += error
        measures = {
            "density": count / (step.total_workers * max(1, step.n)),
            "wire_bytes": float(sums[5]) / step.comm.size,
            "compression_error": error,
            "total_error": self._total_error,
            "contraction": error / square if square else 0.0,
            "memory_norm": norm,
            "memory_cosine": self._cosine(),
            "hamming": distance,
            "build_up": self._union(sent) / count if count else 0.0,
        }
        if step.trace is not None:
            for name, value in measures.items():
                step.trace.metric(name, step.number, value)
        return measures

    def _choice(self, u: Compensated) -> Array | None:
        """What the selector chooses from one worker's u; it has no say of its own where ranks first agree."""
        step = self._step
        if self._memories[0].silent(step.number):
            return step.ops.arange(0)
        if not hasattr(step.selector, "select") or not step.n:
            return None
        return step.selector.expand(step.selector.select(u, step), step)

    def _hamming(self, own: Array | None, sent: Sent, u: Array) -> float:
        """Normalised Hamming distance of a worker's own selection to what it sent."""
        ops, indices = self._step.ops, sent.indices
        if hasattr(self._step.selector, "sketch") and indices is not None:
            own = ops.top_k(None, u, indices.size)
        total = self._count(own) + self._count(indices)
        if own is None or indices is None:
            both = min(self._count(own), self._count(indices))
        else:
            both = ops.common(own, indices)[0].size
        return (total - 2 * both) / total if total else 0.0

    def _count(self, indices: Array | None) -> int:
        return self._step.n if indices is None else indices.size

    def _cosine(self) -> float:
        """From the sum s of all w unit vectors: ||s||^2 = w + the sum of the cosines of all ordered pairs."""
        step = self._step
        ops, total, number = step.ops, step.ops.zeros(step.n, step.dtype), np.zeros(1)
        for memory in self._memories:
            norm = math.sqrt(memory.squared_norm(ops))
            residual = memory.state(ops).get("residual")
            if residual is not None and 0 < norm < math.inf:
                ops.axpby(total, 1.0, total, 1.0 / norm, ops.from_host(residual))
                number += 1
        step.comm.allreduce_in_place(number, "native")
        step.comm.allreduce_in_place(total, step.algorithm)
        w = float(number[0])
        return (ops.squared_norm(total) - w) / (w * (w - 1)) if w > 1 else 1.0

    def _union(self, sent: list[Sent]) -> float:
        """How many coordinates any worker sent."""
        step = self._step
        marks = step.ops.zeros(step.n, step.dtype)
        for one in sent:
            if one.indices is None:
                marks[:] = 1
            else:
                ones = step.ops.zeros(one.indices.size, step.dtype)
                ones[:] = 1
                step.ops.scatter(marks, one.indices, ones)
        step.comm.allreduce_in_place(marks, step.algorithm, "max")
        return step.ops.squared_norm(marks)

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        return {"total_error": np.array(self._total_error)} if self.interval else {}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._total_error = float(state.get("total_error", 0.0))

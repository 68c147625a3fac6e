"""SketchedSGD: added count sketches show where the sum is large, a second round asks for its values there."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgument
from ...types import Array, Compensated, Exchanged, Mean, Sent
from ..options import Option
from ..wire import index_lists
from ..wire.index_lists import Pairs
from ._stateless import Stateless


class Sketch(Stateless):
    """The k largest of the sum of all workers' vectors, as nearly as a count sketch shows them.

    Schedule: all-reduce of a count sketch of every worker's whole vector; the ``factor`` k elements of each span with
    the largest estimates are the same on all ranks; all-reduce of their values; the k largest sums are kept, and count
    as sent. Hashes change from step to step. Where sketch and values would be no shorter than the vector, all values
    are added instead, and no sketch.
    Cost: 2 (p-1)/p (rows columns + factor k) values a rank, which does not grow with p; with the default columns, 40 k
    to 80 k for the sketch: for densities far below 1/100. Local work: rows passes over the vector, one dense array of
    estimates.
    Restrictions: an element that is large in one worker only, or far below the noise (norm / sqrt(columns)), is missed.
    The sketch is not narrowed by ``values``. What is not sent is kept with a memory only.
    Reference: Ivkin et al., Communication-efficient distributed SGD with sketching, NeurIPS 2019.
    """

    name = "sketch"
    options = (
        Option("rows", int, 5, "rows of the sketch: an estimate is the median over them", low=1, high=15),
        Option("columns", int, None, "columns of the sketch, a power of two; else the next one from 8 k", low=1),
        Option("factor", int, 4, "candidates whose values are asked for, in units of k (P in the paper)", low=1),
    )
    reference = "Ivkin et al. 2019 (SketchedSGD)"
    takes = "counted"
    codecs = "float"
    early = False

    def __init__(self, rows: int, columns: int | None, factor: int) -> None:
        if columns is not None and columns & (columns - 1):
            below = 1 << (columns.bit_length() - 1)
            raise InvalidArgument(f"columns must be a power of two, got {columns}: take {below} or {2 * below}")
        self.rows, self.columns, self.factor = rows, columns, factor

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        return [step.overflows(u) for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        counts = step.selector.counts(step)
        columns = self.columns or 1 << (8 * sum(counts) - 1).bit_length()
        everything = self.rows * columns + self.factor * sum(counts) >= step.n
        self._counts, self._columns = counts, 0 if everything else columns
        self._table = step.scratch("sketch-table", self.rows * self._columns, step.dtype)
        for worker, u in enumerate(workers if self._columns else ()):
            table = step.scratch("sketch-next", self._table.size, step.dtype) if worker else self._table
            step.ops.count_sketch(*u, self.rows, columns, self._seed(step), table)
            if worker:
                step.ops.add(self._table, table)
        return []

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        asked = self._candidates(step)
        places = [step.place(worker, asked) for worker in range(len(workers))]
        codes = step.encode_together([u.at(asked, step.ops) for u in workers], places)
        own = [step.codec.decode(one, place, step) for one, place in zip(codes, places, strict=True)]
        mean = Pairs(asked, step.mean_of(codes, places[0]))
        positions = index_lists.largest(mean, index_lists.by_span(mean, step), self._counts, step)
        final = mean
        if positions is not None:
            final, own = mean.at(positions, step), [values[positions] for values in own]
        bits = 8.0 * (self._table.nbytes + codes[0].nbytes)
        return Exchanged(Mean(*final, step.n), [Sent(final.indices, values) for values in own], bits)

    def _candidates(self, step: Any) -> Array:
        """Ascending indices of what may be large in the sum; all, where that costs less."""
        ops = step.ops
        if not self._columns:
            return ops.arange(step.n)
        step.comm.allreduce_in_place(self._table, step.algorithm)
        estimates = step.scratch("sketch-estimates", step.n, step.dtype)
        ops.sketch_estimate(self._table, self.rows, self._columns, self._seed(step), estimates)
        asked = [min(self.factor * count, stop - start)
                 for (start, stop), count in zip(step.spans, self._counts, strict=True)]  # fmt: skip
        return ops.top_k_spans(None, estimates, step.spans, asked)

    def _seed(self, step: Any) -> int:
        """Of this step's hashes; row r takes seed + r, so that steps share none."""
        return step.key(0).seed + step.number * self.rows

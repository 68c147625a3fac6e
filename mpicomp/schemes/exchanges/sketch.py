"""SketchedSGD: added count sketches show where the sum is large, a second round asks for its values there."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import InvalidArgument
from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Exchanged, Mean, Sent
from ..wire import index_lists
from ..wire.index_lists import Pairs


class Table(NamedTuple):
    """Choice and message: the workers' u, the target of each span, the sketch and its columns (0: no sketch)."""

    us: list[Compensated]
    counts: list[int]
    columns: int
    nonfinite: list[int]
    table: Array | None = None  # the sum of the workers' sketches
    sent: None = None


class Sketch(Exchange[Table, Table]):
    """The k largest of the sum of all workers' vectors, as nearly as a count sketch shows them.

    Schedule: all-reduce of a count sketch of every worker's whole vector; the ``factor`` k elements of each span with
    the largest estimates are the same on all ranks; all-reduce of their values; the k largest sums are kept, and count
    as sent. Hashes change from step to step. Where sketch and values would be no shorter than the vector, all values
    are added instead, and no sketch.
    Cost: 2 (p-1)/p (rows columns + factor k) values per rank, which does not grow with p; with the default columns,
    40 k to 80 k for the sketch: for densities far below 1/100. Local work: rows passes over the vector, one dense array
    of estimates.
    Restrictions: an element that is large in one worker only, or far below the noise (norm / sqrt(columns)), is missed.
    The sketch is not narrowed by ``values``. Only a memory keeps the elements that are not sent.
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

    def __init__(self, rows: int, columns: int | None, factor: int) -> None:
        if columns is not None and columns & (columns - 1):
            below = 1 << (columns.bit_length() - 1)
            raise InvalidArgument(f"columns must be a power of two, got {columns}: take {below} or {2 * below}")
        self.rows, self.columns, self.factor = rows, columns, factor

    def choose(self, us: list[Compensated], ctx: StepContext) -> Table:
        counts = ctx.selector.counts(ctx)
        columns = self.columns or 1 << (8 * sum(counts) - 1).bit_length()
        everything = self.rows * columns + self.factor * sum(counts) >= ctx.n
        return Table(us, counts, 0 if everything else columns, [ctx.overflows(u) for u in us])

    def encode(self, us: list[Compensated], choice: Table, ctx: StepContext) -> Table:
        return choice._replace(table=self._sketch(choice, ctx)) if choice.columns else choice

    def combine(self, message: Table, ctx: StepContext) -> Exchanged:
        us, counts = message.us, message.counts
        asked = self._candidates(message, ctx)
        common = averaging.encode_common(asked, [u.at(asked, ctx.ops) for u in us], ctx,
                                         more_bits=8.0 * self.rows * message.columns * ctx.dtype.itemsize)
        result = common.mean(ctx)
        mean = Pairs(asked, result.mean.values)
        positions = index_lists.largest(mean, index_lists.by_span(mean, ctx), counts, ctx)
        if positions is None:
            return result
        final = mean.at(positions, ctx)
        return result._replace(mean=Mean(*final, ctx.n),
                               sent=[Sent(final.indices, one.values[positions]) for one in common.sent])

    def _candidates(self, message: Table, ctx: StepContext) -> Array:
        """Ascending indices of what may be large in the sum; all, if that costs less."""
        ops, table, columns = ctx.ops, message.table, message.columns
        if table is None:
            return ops.arange(ctx.n)
        ctx.comm.allreduce_in_place(table, ctx.algorithm)
        estimates = ops.empty(ctx.n, ctx.dtype)
        ops.sketch_estimate(table, self.rows, columns, self._seed(ctx), estimates)
        asked = [min(self.factor * count, stop - start)
                 for (start, stop), count in zip(ctx.spans, message.counts, strict=True)]  # fmt: skip
        return ops.top_k(None, estimates, ctx.spans, asked)

    def _sketch(self, choice: Table, ctx: StepContext) -> Array:
        """The sum of the count sketches of this rank's workers."""
        total, *others = (self._count_sketch(u, choice.columns, ctx) for u in choice.us)
        for other in others:
            ctx.ops.add(total, other)
        return total

    def _count_sketch(self, u: Compensated, columns: int, ctx: StepContext) -> Array:
        table = ctx.ops.empty(self.rows * columns, ctx.dtype)
        ctx.ops.count_sketch(*u, self.rows, columns, self._seed(ctx), table)
        return table

    def _seed(self, ctx: StepContext) -> int:
        """Seed of this step's hashes; row r takes seed + r, so that steps share none."""
        return ctx.seed + ctx.number * self.rows

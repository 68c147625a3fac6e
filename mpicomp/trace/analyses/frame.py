"""Columns of a trace as all analyses use them: classes of events, clocks, nesting, and statistics over groups."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...errors import CorruptFile, InvalidArgument
from .. import schema, tables
from ..files import Source
from ..read import Trace, open_trace
from ..tables import Result, Table
from .nesting import Pieces, cut

#: Kinds of events of each class. Any other kind, and time of a step that no event covers, is "other".
CLASSES = {
    "compute": "compute forward backward evaluate loss optimizer apply",
    "compression": "select compress update encode decode compensate decompress pack unpack error_feedback",
    "communication": "exchange collective allreduce agree broadcast bcast gather allgather gather_to_all "
                     "reduce_scatter alltoall barrier sketch wait send recv p2p",
}  # fmt: skip
CLASS_NAMES = ("other", *CLASSES)
OTHER, COMPUTE, COMPRESSION, COMMUNICATION = range(4)
#: Code of a kind's class; other kinds are OTHER.
CLASS_OF = {kind: code for code, name in enumerate(CLASSES, 1) for kind in CLASSES[name].split()}
ALLREDUCE_KINDS = ("collective", "allreduce")  # kinds whose sizes are those of an all-reduce
BLOCKS, SURE = 10, 3.0  # blocks of steps whose medians distinguish a change from noise; standard errors of one
_BLOCK = 1 << 20  # events whose nesting is computed at a time: bounds the memory
_RANKS = 2.0**24  # no run has more


class Frame:
    """Columns of /events and quantities derived from them, each computed on first use."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.n_ranks = trace, trace.n_ranks
        self.kinds = trace.vocabulary("kind")
        self.classes = np.array([CLASS_OF.get(kind, OTHER) for kind in self.kinds], np.uint8)

    def column(self, name: str) -> np.ndarray:
        return self.trace.events(name)[name]

    @cached_property
    def rank(self) -> np.ndarray:
        rank = self.column("rank")
        if np.any(rank[1:] < rank[:-1]):
            raise CorruptFile(f"{self.trace.path}: /events is not sorted by rank")
        return rank

    @property
    def kind(self) -> np.ndarray:
        return self.column("kind")

    @property
    def step(self) -> np.ndarray:
        return self.column("step")

    @property
    def dense(self) -> np.ndarray:
        """Events without a scheme, which would send other bytes than their algorithm."""
        return self.column("scheme") == self.trace.code("scheme", "none")

    @property
    def duration(self) -> np.ndarray:
        return np.maximum(self.column("t_end") - self.column("t_start"), 0)

    @cached_property
    def steps(self) -> Table:
        """The columns of /steps, with ranks in their valid range."""
        return self.trace.bounded("steps")

    def code(self, kind: str) -> int:
        return self.kinds.index(kind) if kind in self.kinds else -1

    def rows_of(self, kind: str) -> np.ndarray:
        return np.flatnonzero(self.kind == self.code(kind))

    # -- clocks

    def corrected(self, rows: np.ndarray, column: str) -> np.ndarray:
        """A time column of some rows on the reference rank's clock."""
        return self.trace.corrected(self.rank[rows], self.column(column)[rows])

    @cached_property
    def uncertainty(self) -> np.ndarray:
        """Largest error (ns) of each rank's clock against the reference: half its longest kept round trip."""
        samples, result = self.trace.table("clock"), np.zeros(self.n_ranks, np.int64)
        foreign = (samples["shared"] == 0) & (samples["rank"] >= 0) & (samples["rank"] < self.n_ranks)
        np.maximum.at(result, samples["rank"][foreign], samples["rtt"][foreign] // 2)
        return result

    # -- nesting

    @cached_property
    def pieces(self) -> Pieces:
        """The time of all ranks, cut wherever an event begins or ends."""
        bits = np.left_shift(1, self.classes)[self.kind].astype(np.uint8)
        parts = [self.pieces_of(slice(first, last), bits) for first, last in self._blocks()]
        return Pieces(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def pieces_of(self, part: slice, bits: np.ndarray) -> Pieces:
        found = cut(self.rank[part], self.column("t_start")[part], self.column("t_end")[part], bits[part])
        return found._replace(event=found.event + part.start)

    def _blocks(self) -> list[tuple[int, int]]:
        ends = np.searchsorted(self.rank, np.arange(self.n_ranks), side="right")
        bounds = [0]
        for end in ends.tolist():
            if end - bounds[-1] >= _BLOCK:
                bounds.append(end)
        if bounds[-1] < len(self.rank) or len(bounds) == 1:
            bounds.append(len(self.rank))
        return list(itertools.pairwise(bounds))

    @property
    def open_communication(self) -> np.ndarray:
        """Pieces in which a communication is open."""
        return (self.pieces.mask >> COMMUNICATION & 1).astype(bool)

    @cached_property
    def enclosed(self) -> np.ndarray:
        """Pieces of communication recorded wholly inside a computation: hidden only if the calls do not block."""
        return self._inside(COMPUTE, COMMUNICATION)[self.pieces.event]

    def outermost(self, of_class: int) -> np.ndarray:
        """Events of a class that no other event of it encloses."""
        return self.not_enclosed(self.classes[self.kind] == of_class)

    def not_enclosed(self, chosen: np.ndarray) -> np.ndarray:
        """Those of the chosen events that no other one of them, of an earlier row, encloses."""
        rows, result = np.flatnonzero(chosen), chosen.copy()
        rank = self.rank[rows]
        result[rows] = tables.outermost(rank, self.on_axis(rank, self.column("t_end")[rows]))
        return result

    def _inside(self, outer: int, inner: int) -> np.ndarray:
        """Events of class ``inner`` that lie in an event of class ``outer`` of an earlier row."""
        cls = self.classes[self.kind]
        rows = np.flatnonzero((cls == outer) | (cls == inner))
        end = self.on_axis(self.rank[rows], self.column("t_end")[rows])
        reach = np.maximum.accumulate(np.where(cls[rows] == outer, end, -1))
        result = np.zeros(len(cls), bool)
        result[rows[1:]] = (cls[rows[1:]] == inner) & (reach[:-1] >= end[1:])
        return result

    def hidden(self, enclosed: bool = True) -> np.ndarray:
        """Pieces in which a rank works while a communication is open, which then costs no time.

        Compression counts if it began inside the communication; a broadcast inside a compression is waited for.
        """
        top = self.classes[self.kind[self.pieces.event]]
        computing = (self.pieces.mask >> COMPUTE & 1).astype(bool)
        found: np.ndarray = self.open_communication & (computing | (top == COMPRESSION))
        return found if enclosed else found & ~self.enclosed

    def ranks_in(self, steps: np.ndarray) -> np.ndarray:
        """Number of ranks that recorded time in each of the (ascending) steps, at least 1."""
        _, (step, _) = compact(self.step[self.pieces.event], self.rank[self.pieces.event])
        return np.maximum(np.bincount(np.searchsorted(steps, step[np.isin(step, steps)]), minlength=len(steps)), 1)

    def by_rank(self, weights: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Sums of a quantity of pieces, over the chosen ones of each rank."""
        return np.bincount(self.rank[self.pieces.event[chosen]], weights[chosen], self.n_ranks)

    @cached_property
    def carriers(self) -> np.ndarray:
        """Events whose bytes are not counted again in another one around them."""
        return self.not_enclosed((self.column("nbytes_sent") > 0) | (self.column("nbytes_recv") > 0))

    @cached_property
    def _extent(self) -> tuple[np.ndarray, np.ndarray]:
        """First begin and last end of each rank, on its own clock; 0 for a rank that recorded nothing."""
        starts = np.flatnonzero(np.diff(self.rank, prepend=-1))
        first, last = np.zeros(self.n_ranks, np.int64), np.zeros(self.n_ranks, np.int64)
        if len(starts):
            first[self.rank[starts]] = np.minimum.reduceat(self.column("t_start"), starts)
            last[self.rank[starts]] = np.maximum.reduceat(self.column("t_end"), starts)
        return first, np.maximum(last, first)

    @property
    def span(self) -> np.ndarray:
        """ns from the first begin to the last end of each rank."""
        first, last = self._extent
        return last - first

    def on_axis(self, rank: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Local times of all ranks on one axis, one rank's after the other's, to sort and search them together."""
        return rank.astype(np.int64) * (int(self.span.max(initial=0)) + 1) + (t - self._extent[0][rank])


Given: TypeAlias = Source | Trace | Frame  # whatever an analysis accepts as a trace


@contextmanager
def opened(path: Given) -> Iterator[Frame]:
    """The frame of a trace, which is opened here unless it is open already."""
    if isinstance(path, (Trace, Frame)):
        yield path if isinstance(path, Frame) else Frame(path)
        return
    with open_trace(path) as trace:
        yield Frame(trace)


def quantities(duration: np.ndarray) -> Result:
    """Count, percentiles, least, greatest and sum of durations, under the names that all tables use."""
    median, p90, p99 = np.percentile(duration, [50, 90, 99]).tolist()
    return {
        "count": len(duration),
        "median": median,
        "p90": p90,
        "p99": p99,
        "min": int(duration.min()),
        "max": int(duration.max()),
        "total": int(duration.sum()),
    }


def mean_by_step(metric: Table) -> tuple[np.ndarray, np.ndarray]:
    """Steps of a metric, ascending, and its mean over ranks at each."""
    order, starts = tables.blocks(metric["step"])
    counts = np.diff(np.append(starts, len(order)))
    values = metric["value"][order]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(values, starts) / counts
        scaled = np.add.reduceat(values / _RANKS, starts) / counts * _RANKS  # leaves room for sums beyond the largest
        return metric["step"][order][starts], np.where(np.isfinite(mean), mean, scaled)


def grouped(key: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Key and first row of each group, and the columns sorted by key, then by the first column."""
    order = np.lexsort((columns[0], key))
    ordered = key[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1)) if len(ordered) else order
    return ordered[starts], starts, [column[order] for column in columns]


def quantiles(key: np.ndarray, values: np.ndarray, *shares: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct keys, and quantiles of each one's values (nearest two ranks, interpolated)."""
    keys, starts, (ordered,) = grouped(key, np.asarray(values, np.float64))
    counts = np.diff(np.append(starts, len(ordered)))
    result = []
    for share in shares:
        place = share * (counts - 1)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, counts - 1)
        a, b = ordered[starts + low], ordered[starts + high]
        result.append(a + (b - a) * (place - low))
    return keys, result


def median_of(key: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys, (middle,) = quantiles(key, values, 0.5)
    return keys, middle


def compact(*keys: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Number each row's combination of keys in ascending order; returns numbers, and the keys of each number."""
    order, starts = tables.blocks(*keys)
    number = np.empty(len(order), np.int64)
    block = np.zeros(len(order), np.int64)
    block[starts[1:]] = 1
    number[order] = np.cumsum(block)
    return number, [np.asarray(key)[order][starts] for key in keys]


def block_medians(values: np.ndarray) -> np.ndarray:
    """Medians of `BLOCKS` blocks of consecutive steps, which are less correlated than neighbouring steps."""
    return np.array([np.median(block) for block in np.array_split(values, BLOCKS)])


def spread_of(values: np.ndarray) -> float:
    """Robust standard deviation, from the median absolute deviation."""
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def choose(name: str, value: str, choices: Collection[str]) -> str:
    if value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def collective_kinds(frame: Frame) -> list[str]:
    """Kinds of communication in the trace, the best measure of lateness first."""
    present = np.unique(frame.kind[frame.classes[frame.kind] == COMMUNICATION])
    names = [frame.kinds[code] for code in present]
    return sorted(names, key=lambda kind: (kind not in schema.COLLECTIVE_KINDS, kind))

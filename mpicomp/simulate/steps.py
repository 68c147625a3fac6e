"""A step of a scheme on one simulated rank: kinds of steps, the script of each, and its assumptions."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np

from .._util.plurals import count
from ..ops import ops_for
from ..reducer.context import context_of
from ..reducer.layout import Bucket
from ..reducer.levels import levels_of
from ..reducer.run_step import Pipeline
from ..schemes.codecs._groups import column_starts
from ..schemes.interfaces import StepContext
from ..schemes.parts import Parts
from ..schemes.registry import Scheme
from ..schemes.values import Once
from ..schemes.workers import Workers
from .comm import PAIRWISE, RecordingComm, Script
from .ghost import Ghost, as_array
from .ghost_ops import BIN, CALL, STEP, GhostOps, as_ops
from .levels import RecordingLevels
from .link import Place
from .models import Model

FLOAT = np.dtype(np.float32)
NEVER = 1 << 62  # steps
MOST_MORE = 0.05  # of the elements sent, for the sake of equal regions


def kinds(scheme: Scheme) -> list[tuple[int, float]]:
    """Return, per kind of step, the number of one and its share of all steps, the most frequent kind first."""
    estimates = scheme.part_names["exchange"] == "balanced"  # thresholds and regions, in the first step of a period
    resets = scheme.part_names["memory"] == "error-reset"  # in the last one
    period = scheme.options["period"] if estimates or resets else 1
    numbers = [0, 1, period - 1] if period > 2 else range(period)
    kind_of = {number: (estimates and number == 0, resets and number == period - 1) for number in numbers}
    counts = Counter(kind_of.values())
    counts[kind_of[min(1, period - 1)]] += period - len(kind_of)
    first = {kind: number for number, kind in reversed(kind_of.items())}
    return [(first[kind], count / period) for kind, count in counts.most_common()]


class Rehearsal:
    """Steps of a scheme on a model's gradients, one worker a rank, as many ranks as asked for."""

    def __init__(self, scheme: Scheme, model: Model, place: Place, algorithm: str, few: int) -> None:
        self.scheme = scheme.replace(warmup=0) if scheme.options.get("warmup") else scheme  # as after its warm-up
        self.size, self._per_node = place.size, place.ranks_per_node
        self._algorithm = algorithm
        self._of_layout: dict[int, Once] = {}  # results of the first rank that ran, by slice
        self._largest: dict[int, list[list[int]] | None] = {}  # numbers on a node, by step, where slices may differ
        self.sliced = slices(scheme, place)
        # Ranks with one script: of many ranks those of a node, all of which are taken to have the first slice.
        self.each = self._per_node if self.sliced and self.size > few else 1
        self.one_node = place.nodes == 1
        self.slow = place.slow(place.fewest if self.sliced else 1)
        arrays = {f"{at} {name}": np.empty(shape, FLOAT) for at, (name, shape, _) in enumerate(model.layers)}
        self.layout = Bucket(arrays, 1, scheme.options["dense"])  # which looks at shapes and names alone
        self.passing = _passing(scheme, max(1, self.layout.n))

    @cached_property
    def _estimates(self) -> dict[str, np.ndarray]:
        """State of rank 0, and of all, after the step in which thresholds and regions are estimated."""
        parts = self.scheme.parts(1)
        self._run(parts, 0, 0, None)
        return parts.exchange.state(ops_for(np.empty(0)))

    def script(self, rank: int, number: int, like: Script | None = None) -> Script:
        """Return a rank's script of a step, with the same sums over all ranks as the script ``like``."""
        if self.sliced and self.each == 1 and number not in self._largest:
            self._largest[number] = None  # at first every rank's own
            first = self._script(0, number, None)
            node = [first, *(self._script(place, number, first) for place in range(1, self._per_node))]
            self._largest[number] = [list(map(max, zip(*every, strict=True)))
                                     for every in zip(*(one.numbers for one in node), strict=True)]
        return self._script(rank, number, like)

    def _script(self, rank: int, number: int, like: Script | None) -> Script:
        parts = self.scheme.parts(1)
        if parts.exchange.name == "balanced" and number:
            parts.exchange.load(self._estimates)
        return self._run(parts, rank, number, like)

    def _run(self, parts: Parts, rank: int, number: int, like: Script | None) -> Script:
        """The step as a reducer does it: what a rank does alone, the agreement, what follows."""
        script, layout = Script(), self.layout
        comm = RecordingComm(script, rank, self.size, like, self.one_node, self.slow)
        which = rank % self._per_node if self.sliced else 0
        if self.sliced:
            comm.levels = RecordingLevels(comm, script, self._per_node, which, like, self._largest.get(number),
                                          alike=self.each > 1)
        levels = levels_of(comm, self.sliced)

        def work(kernel: str, elements: int) -> None:
            script.tape.work(kernel, elements)
            script.tape.work(CALL, bool(elements))

        ops = GhostOps(work, layout.n, self.passing)
        gradient, options = [as_array(Ghost(ops, layout.total, FLOAT))], self.scheme.options
        ctx = context_of(layout, comm, Workers.equal(1, self.size), parts, options["layers"] == "per-tensor",
                         options["seed"], self._algorithm, check_finite=True, ops=as_ops(ops),
                         of_layout=self._of_layout.setdefault(which, Once()))
        ctx = levels.at_step(levels.context(ctx), number, False, None, [])
        ops.n = ctx.n  # of a slice: where indices may lie
        _settle(parts, ctx, ops)
        pipeline = Pipeline(parts, levels)
        script.tape.work(STEP, 1)
        levels.stopped(failed=False)
        prepared = pipeline.prepare(gradient, ctx)
        assert prepared is not None, "no rank fails"
        if pipeline.local_steps.covers(number):
            levels.stopped(failed=False)
        else:
            comm.agree("")
        pipeline.run(prepared, ctx)
        return script


def evened(scheme: Scheme, n: int, place: Place) -> tuple[Scheme, list[str]]:
    """Return the scheme with a few more elements sent, so that all ranks' regions hold as many, and notes on it."""
    sliced, size = slices(scheme, place), place.size
    if sliced:
        n, size = n // place.ranks_per_node, place.nodes
    if scheme.part_names["exchange"] != "balanced" or scheme.options["layers"] != "whole" or n < size:
        return scheme, []
    wanted = max(1, round(_passing(scheme, n) * n))
    k = min(n // size, -(-wanted // size)) * size
    if k == wanted or abs(k - wanted) > MOST_MORE * wanted:
        return scheme, []
    more = {"density": k / n} if sliced else {"k": k}
    return scheme.replace(**more), [f"{k} elements sent instead of {wanted}: so all ranks have regions of one length"]


def even_pieces(scheme: Scheme, model: Model, size: int) -> tuple[Model, list[str]]:
    """Return the model as columns of one length, as many in each rank's piece, and notes on it."""
    if scheme.part_names["exchange"] != "pieces" or scheme.options["dense"] != "none":
        return model, []
    by_column = scheme.part_names["codec"] == "one-bit"
    columns = column_starts(model.tensors, scheme.options["column"]).size if by_column else 0
    each = max(1, round((columns + size) / size))  # a column that two pieces share counts in both
    rows = -(-model.n // (each * size))
    n = rows * each * size
    if n > (1 + MOST_MORE) * model.n:
        return model, []
    longer = f"{n} elements instead of {model.n}, " if n != model.n else ""
    note = f"{longer}{count(each, 'column')} in each rank's piece: so all are alike"
    return Model(model.name, (("columns", (each * size, rows), model.flops),)), [note]


def _settle(parts: Parts, ctx: StepContext, ops: GhostOps) -> None:
    """Give parts the state that is assumed of the steps that are simulated."""
    if parts.schedule.name == "accordion":
        parts.schedule.load({"critical": np.zeros(len(ctx.spans), bool), "due": np.array(NEVER)})
    if parts.memories[0].takes_shift:
        parts.memories[0].set_shift(*(as_array(Ghost(ops, ctx.n, FLOAT)) for _ in range(2)))


def _passing(scheme: Scheme, n: int) -> float:
    """Return the fraction of the elements that passes a threshold, if the scheme has one."""
    k = scheme.options.get("k")
    return min(1.0, k / n) if k else scheme.options.get("density", 1.0)


def slices(scheme: Scheme, place: Place) -> bool:
    """Return True if ranks compress slices of their nodes' means.

    Slices of nodes with unequal numbers of ranks are not simulated: ``nodes=auto`` compresses whole vectors there.
    """
    unequal = place.fewest != place.ranks_per_node and scheme.options["nodes"] == "auto"
    return scheme.slices and 1 < place.ranks_per_node < place.size and not unequal


def assumed(scheme: Scheme, place: Place) -> list[str]:
    """Return the assumptions about the elements, one sentence each."""
    parts, options, size = scheme.part_names, scheme.options, place.size
    exchange, selector = parts["exchange"], parts["selector"]
    notes = []
    if exchange in ("gather", "merge", "balanced") and selector != "all":
        notes.append("ranks are taken to choose independently, and equally many")
    if exchange == "balanced":
        notes.append("regions are taken to hold equally many, and known thresholds to let k pass, as when memories "
                     "have filled; thresholds and regions are estimated anew in one step of "
                     f"{options['period']}, which counts in the mean")
    if exchange in ("balanced", "pieces"):
        how = "Bruck's" if size > PAIRWISE else "one in pairs"
        notes.append(f"MPI's own all-to-all, of lengths, is taken for {how}")
    if exchange in ("balanced", "pieces", "gather"):
        notes.append("MPI's own all-gather, of lengths, is taken for Bruck's")
    if selector == "threshold":
        passing = f"{options['density']:g} of the" if options["k"] is None else options["k"]
        notes.append(f"the threshold is taken to let {passing} elements pass")
    if selector in ("gaussian", "sidco"):
        notes.append("the first threshold is taken to let the target pass")
    if selector == "bins":
        notes.append(f"of every bin {BIN} elements are taken to be sent")
    if parts["codec"] == "stochastic":
        notes.append("the largest magnitude is taken to be 1")
    if parts["schedule"] == "accordion":
        notes.append("no array is taken to be in its critical regime")
    if options.get("warmup"):
        notes.append("a step after the warm-up")
    if slices(scheme, place):
        notes.append("all slices are taken to be alike")
    elif scheme.slices and 1 < place.ranks_per_node < size:
        notes.append("ranks compress whole vectors, not slices, since not all nodes have as many")
    if parts["memory"] == "error-reset":
        notes.append(f"the mean of a period of {options['period']} steps")
    return notes

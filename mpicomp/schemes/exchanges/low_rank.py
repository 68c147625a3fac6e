"""PowerSGD: matrices averaged as products of two thin ones, by one step of power iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...errors import InvalidArgument
from ...ops.arguments import Matrices
from ...ops.protocol import Ops
from ...types import Array
from .. import averaging
from ..interfaces import Exchange, StepContext
from ..options import Option
from ..values import Compensated, Exchanged, Mean, Sent, State


class Matrix(NamedTuple):
    """A tensor treated as a matrix: where it lies in the vector, and the columns of its P and Q."""

    start: int
    stop: int
    rows: int
    rank: int

    @property
    def columns(self) -> int:
        return (self.stop - self.start) // self.rows


class Layout(NamedTuple):
    """Which tensors are matrices and which parts of the vector go dense."""

    matrices: list[Matrix]
    dense: list[tuple[int, int]]

    @property
    def p_size(self) -> int:
        """Elements of all P, which are packed one behind another."""
        return sum(one.rows * one.rank for one in self.matrices)

    @property
    def q_size(self) -> int:
        return sum(one.columns * one.rank for one in self.matrices)

    def transposed(self) -> Layout:
        """The transposed layout, as the factors see it; the elements keep their places in the vector."""
        return self._replace(matrices=[one._replace(rows=one.columns) for one in self.matrices])


class Factors(NamedTuple):
    """Choice and message: the layout, and the workers' u, of which P and Q are made."""

    layout: Layout
    us: list[Compensated]
    nonfinite: list[int]
    sent: None = None


# (memory, gradient, matrices, factor, out)
Product = Callable[[Array | None, Array, Matrices, Array, Array], None]


class LowRank(Exchange[Factors, Factors]):
    """The mean of every matrix M of at least two dimensions, as P Q^T with ``rank`` columns.

    Schedule: orthogonalise each Q; P = M Q; all P in one all-reduce, mean; orthogonalise each P; Q = M^T P; all Q in
    one all-reduce, mean; the mean is P Q^T. Q is the next step's first guess (``warm=yes``), else drawn anew by all
    ranks alike. The paper does not orthogonalise Q: the product is the same, but P has the square of the gradient's
    size, which overflows or loses its digits where the gradient is large or small. Vectors, and
    matrices for which P and Q would be no smaller, go dense in one more all-reduce. Workers of a rank add up first.
    Cost: 2 (p-1)/p bytes times r (rows + columns) of all matrices and the elements that go dense. Two passes over the
    gradient and the memory, one to write the mean.
    With ``orthogonal=columns`` every M is taken as its transpose: the columns' factor is made orthogonal. As published,
    and in PyTorch, it is that of the outputs: rows of weights stored outputs x inputs, columns of those stored inputs x
    outputs. At rank 1 it can matter.
    Restrictions: keeps what the product misses only with a memory. A tensor of shape (a, b, c, ...) is a matrix of a
    rows. What follows the second all-reduce is computed by every rank for itself: the same bits where ranks run the
    same code on the same kind of processor.
    Reference: Vogels et al., PowerSGD, NeurIPS 2019, algorithms 1 and 2.
    """

    name = "low-rank"
    options = (
        Option("rank", int, 4, "columns of P and Q: the rank of every matrix' mean", low=1),
        Option("warm", str, "yes", "start from the last step's Q", choices=("yes", "no")),
        Option("orthogonal", str, "rows", "whose factor is made orthogonal; best the outputs'",
               choices=("rows", "columns")),
    )
    reference = "Vogels et al. 2019 (PowerSGD)"
    takes = "all"
    codecs = "float"
    stateful = True

    def __init__(self, rank: int, warm: str, orthogonal: str) -> None:
        self.rank, self.warm, self.transposed = rank, warm == "yes", orthogonal == "columns"
        self._q: Array | None = None  # all Q of the last step, packed
        self._next: tuple[int, Array] | None = None  # number of a step, which may be refused yet, and its Q
        self._loaded: np.ndarray | None = None

    def choose(self, us: list[Compensated], ctx: StepContext) -> Factors:
        return Factors(self._layout(ctx), us, [ctx.overflows(u) for u in us])

    def encode(self, us: list[Compensated], choice: Factors, ctx: StepContext) -> Factors:
        return choice

    def combine(self, message: Factors, ctx: StepContext) -> Exchanged:
        layout, us = message.layout, message.us
        mean = averaging.room_for_mean(us, ctx)
        bits = self._matrices(us, layout, mean, ctx) if layout.matrices else 0.0
        sent = [Sent(None, mean)] * len(us)
        if layout.dense:
            dense, more = _dense(us, layout, mean, ctx)
            sent, bits = [_sent(mean, own, layout, ctx) for own in dense], bits + more
        return Exchanged(Mean(None, mean, ctx.n), sent, bits)

    def check(self, ctx: StepContext) -> None:
        size = self._seen(self._layout(ctx)).q_size
        if self._loaded is not None and self._loaded.size != size:
            raise InvalidArgument(f"the saved Q has {self._loaded.size} elements, the gradients' has {size}: resume "
                                  "with arrays of the same shapes")

    def _layout(self, ctx: StepContext) -> Layout:
        return ctx.of_layout("low-rank-layout", lambda: lay_out(ctx.tensors, self.rank))

    def _seen(self, layout: Layout) -> Layout:
        """The matrices as the first factor sees them: each as its transpose if ``orthogonal=columns``."""
        return layout.transposed() if self.transposed else layout

    def _matrices(self, us: list[Compensated], layout: Layout, mean: Array, ctx: StepContext) -> float:
        """Write the matrices' means; the bits that travelled."""
        ops = ctx.ops
        seen = ctx.of_layout("low-rank-seen", lambda: self._seen(layout))
        factors = ctx.of_layout("low-rank-factors", seen.transposed)
        there: Product = ops.project
        back: Product = ops.project_back
        if self.transposed:
            there, back = back, there
        q = self._last_q(seen, ctx)
        ops.orthogonalise(q, factors.matrices)  # P then has the gradient's size, not its square
        p, p_bits = _mean(_sum(us, there, layout, q, seen.p_size, ctx), ctx)
        ops.orthogonalise(p, seen.matrices)
        q, q_bits = _mean(_sum(us, back, layout, p, seen.q_size, ctx), ctx)
        ops.low_rank_product(*((q, p) if self.transposed else (p, q)), layout.matrices, mean)
        if self.warm and not ops.count_nonfinite(q)[0]:  # else the step is refused, or all is lost
            self._next = ctx.number, q
        return p_bits + q_bits

    def _last_q(self, seen: Layout, ctx: StepContext) -> Array:
        """The last step's Q, a loaded one, or one that all ranks draw alike."""
        if self._loaded is not None:
            return ctx.ops.from_host(self._loaded.astype(ctx.dtype))
        if self._q is not None:
            return self._q.copy()  # it stays as it is if the step fails
        seed = [ctx.key(0).seed, *([] if self.warm else [ctx.number])]
        drawn = [np.random.default_rng([*seed, number]).standard_normal((one.columns, one.rank))
                 for number, one in enumerate(seen.matrices)]
        return ctx.ops.from_host(np.concatenate([one.ravel() for one in drawn]).astype(ctx.dtype))

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        if self._next is not None and self._next[0] == ctx.number:
            self._q, self._loaded = self._next[1], None
        self._next = None

    def state(self, ops: Ops) -> State:
        q = self._loaded if self._q is None else ops.to_host(self._q)
        return {} if q is None else {"q": np.array(q)}

    def load(self, state: State) -> None:
        self._q, self._loaded = None, state.get("q")


def lay_out(tensors: list[tuple[int, int, tuple[int, ...]]], rank: int) -> Layout:
    """Which tensors are worth a product of two thin matrices, and where everything lies; adjacent dense ones as one."""
    matrices: list[Matrix] = []
    dense: list[tuple[int, int]] = []
    for start, stop, shape in tensors:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, stop - start)
        r = min(rank, rows, columns)
        if r * (rows + columns) < rows * columns:
            matrices.append(Matrix(start, stop, rows, r))
        elif dense and dense[-1][1] == start:
            dense[-1] = dense[-1][0], stop
        elif stop > start:
            dense.append((start, stop))
    return Layout(matrices, dense)


def _sum(us: list[Compensated], product: Product, layout: Layout, factor: Array, size: int, ctx: StepContext) -> Array:
    """The products of all matrices with their factors, packed, added up over this rank's workers."""
    total = ctx.ops.empty(size, ctx.dtype)
    for worker, u in enumerate(us):
        target = ctx.ops.empty(size, ctx.dtype) if worker else total
        product(*u, layout.matrices, factor, target)
        if worker:
            ctx.ops.add(total, target)
    return total


def _dense(us: list[Compensated], layout: Layout, mean: Array, ctx: StepContext) -> tuple[list[Array], float]:
    """Write the mean of what goes dense; what each worker sent of it, as decoded, and its bits."""
    own = [_pack(u, layout, ctx) for u in us]
    places = [ctx.place(worker, None)._replace(stop=own[0].size) for worker in range(len(us))]
    codes = averaging.encode_all(own, places, ctx)
    own = [ctx.codec.decode(code, place, ctx) for code, place in zip(codes, places, strict=True)]
    _unpack(averaging.mean_of_codes(codes, places[0], ctx), layout, mean, ctx.ops)
    return own, 8.0 * codes[0].nbytes


def _sent(mean: Array, own: Array, layout: Layout, ctx: StepContext) -> Sent:
    """Sent values of a worker: of matrices the mean, so that its memory keeps the difference; else its own values."""
    values = ctx.ops.empty(ctx.n, ctx.dtype)
    values[:] = mean
    _unpack(own, layout, values, ctx.ops)
    return Sent(None, values)


def _pack(u: Compensated, layout: Layout, ctx: StepContext) -> Array:
    """The parts of u that go dense, one behind another."""
    packed = _packed(u.gradient, layout, ctx)
    if u.memory is not None:
        ctx.ops.add(packed, _packed(u.memory, layout, ctx))
    return packed


def _packed(vector: Array, layout: Layout, ctx: StepContext) -> Array:
    packed = ctx.ops.empty(sum(stop - start for start, stop in layout.dense), ctx.dtype)
    ctx.ops.pack([vector[start:stop] for start, stop in layout.dense], packed)
    return packed


def _unpack(packed: Array, layout: Layout, vector: Array, ops: Ops) -> None:
    """Write the parts that go dense to their places."""
    ops.unpack(packed, [vector[start:stop] for start, stop in layout.dense])


def _mean(total: Array, ctx: StepContext) -> tuple[Array, float]:
    """The mean over all workers of a rank's sum, and the bits that travel."""
    place = ctx.place(0, None)._replace(stop=total.size)
    codes = ctx.codec.encode(total, place, ctx)
    nbytes = codes.nbytes
    target = codes if codes.dtype == ctx.dtype else None
    return averaging.start_mean(codes, lambda begin, end: codes[begin:end], ctx, place, target)(), 8.0 * nbytes

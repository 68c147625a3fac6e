"""PowerSGD: matrices averaged as products of two thin ones, by one step of power iteration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidArgument
from ...types import Array, Compensated, Exchanged, Mean, Sent
from ..options import Option


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
        """The same with rows for columns, as the factors see it; the elements in the vector stay where they are."""
        return self._replace(matrices=[one._replace(rows=one.columns) for one in self.matrices])


class LowRank:
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
    early = False

    def __init__(self, rank: int, warm: str, orthogonal: str) -> None:
        self.rank, self.warm, self.transposed = rank, warm == "yes", orthogonal == "columns"
        self._q: Array | None = None  # all Q of the last step, packed
        self._loaded: np.ndarray | None = None

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._layout = step.kept("low-rank-layout", lambda: lay_out(step.tensors, self.rank))
        self._seen = step.kept("low-rank-seen", lambda: self._layout.transposed() if self.transposed else self._layout)
        self._factors = step.kept("low-rank-factors", self._seen.transposed)
        if self._loaded is not None and self._loaded.size != self._seen.q_size:  # here, where all ranks hear of it
            raise InvalidArgument(f"the saved Q has {self._loaded.size} elements, the gradients' has "
                                  f"{self._seen.q_size}: resume with arrays of the same shapes")
        return [step.overflows(u) for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        return []

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        layout = self._layout
        mean = step.ops.empty(step.n, step.dtype)
        bits = self._matrices(workers, mean, step) if layout.matrices else 0.0
        sent = [Sent(None, mean)] * len(workers)
        if layout.dense:
            dense, more = self._dense(workers, mean, step)
            sent, bits = [self._sent(mean, own, step) for own in dense], bits + more
        return Exchanged(Mean(None, mean, step.n), sent, bits)

    def _matrices(self, workers: list[Compensated], mean: Array, step: Any) -> float:
        """Write the matrices' means; the bits that travelled."""
        ops, seen = step.ops, self._seen
        there, back = ops.project_all, ops.project_back_all
        if self.transposed:
            there, back = back, there
        p = self._sum(workers, there, self._first_guess(step), seen.p_size, step)
        p, p_bits = _mean(p, step)
        ops.orthogonalise_all(p, seen.matrices)
        q = self._sum(workers, back, p, seen.q_size, step)
        q, q_bits = _mean(q, step)
        ops.low_rank_product_all(*((q, p) if self.transposed else (p, q)), self._layout.matrices, mean)
        if self.warm and not ops.count_nonfinite(q)[0]:  # else the step is refused, or all is lost
            self._q, self._loaded = q, None
        return p_bits + q_bits

    def _sum(self, workers: list[Compensated], product: Any, factor: Array, size: int, step: Any) -> Array:
        """The products of all matrices with their factors, packed, added up over this rank's workers."""
        total = step.ops.empty(size, step.dtype)
        for worker, u in enumerate(workers):
            target = step.ops.empty(size, step.dtype) if worker else total
            product(*u, self._layout.matrices, factor, target)
            if worker:
                step.ops.add(total, target)
        return total

    def _dense(self, workers: list[Compensated], mean: Array, step: Any) -> tuple[list[Array], float]:
        """Write the mean of what goes dense; what each worker sent of it, as decoded, and its bits."""
        own = [self._pack(u, step) for u in workers]
        places = [step.place(worker, None)._replace(stop=own[0].size) for worker in range(len(workers))]
        codes = step.encode_together(own, places)
        own = [step.codec.decode(code, place, step) for code, place in zip(codes, places, strict=True)]
        self._unpack(step.mean_of(codes, places[0]), mean, step.ops)
        return own, 8.0 * codes[0].nbytes

    def _sent(self, mean: Array, own: Array, step: Any) -> Sent:
        """What a worker sent: of matrices the mean, so that its memory keeps what that misses; else its own values."""
        values = mean.copy()
        self._unpack(own, values, step.ops)
        return Sent(None, values)

    def _pack(self, u: Compensated, step: Any) -> Array:
        """The parts of u that go dense, one behind another."""
        packed = self._packed(u.gradient, step)
        if u.memory is not None:
            step.ops.add(packed, self._packed(u.memory, step))
        return packed

    def _packed(self, vector: Array, step: Any) -> Array:
        packed = step.ops.empty(sum(stop - start for start, stop in self._layout.dense), step.dtype)
        step.ops.pack([vector[start:stop] for start, stop in self._layout.dense], packed)
        return packed

    def _unpack(self, packed: Array, vector: Array, ops: Any) -> None:
        """Write the parts that go dense to their places."""
        ops.unpack(packed, [vector[start:stop] for start, stop in self._layout.dense])

    def _first_guess(self, step: Any) -> Array:
        """The Q to start from, its columns orthonormal: P then has the gradient's size, not its square."""
        q = self._last_q(step)
        step.ops.orthogonalise_all(q, self._factors.matrices)
        return q

    def _last_q(self, step: Any) -> Array:
        """The last step's Q, a loaded one, or one that all ranks draw alike."""
        if self._loaded is not None:
            return step.ops.from_host(self._loaded.astype(step.dtype))
        if self._q is not None:
            return self._q.copy()  # it stays as it is if the step fails
        seed = [step.key(0).seed, *([] if self.warm else [step.number])]
        drawn = [np.random.default_rng([*seed, number]).standard_normal((one.columns, one.rank))
                 for number, one in enumerate(self._seen.matrices)]
        return step.ops.from_host(np.concatenate([one.ravel() for one in drawn]).astype(step.dtype))

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        q = self._loaded if self._q is None else ops.to_host(self._q)
        return {} if q is None else {"q": np.array(q)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._q, self._loaded = None, state.get("q")


def lay_out(tensors: list[tuple[int, int, tuple[int, ...]]], rank: int) -> Layout:
    """Which tensors are worth a product of two thin matrices, and where everything lies."""
    matrices, dense = [], []
    for start, stop, shape in tensors:
        rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, stop - start)
        r = min(rank, rows, columns)
        if r * (rows + columns) >= rows * columns:
            dense += [(start, stop)] if stop > start else []
            continue
        matrices.append(Matrix(start, stop, rows, r))
    return Layout(matrices, dense)


def _mean(total: Array, step: Any) -> tuple[Array, float]:
    """The mean over all workers of a rank's sum, and the bits that travel."""
    place = step.place(0, None)._replace(stop=total.size)
    codes = step.codec.encode(total, place, step)
    nbytes = codes.nbytes
    target = codes if codes.dtype == step.dtype else None
    return step.start_mean(codes, lambda begin, end: codes[begin:end], place, target)(), 8.0 * nbytes

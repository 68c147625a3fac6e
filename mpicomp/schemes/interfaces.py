"""The five parts of a scheme, and the context of a step that they are given.

A step is ``compensate -> choose -> agree -> encode -> combine || update``. Values of a step are passed from verb to
verb; a part keeps in attributes only what its ``state`` saves. A protocol also holds defaults, for parts to inherit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..comm.interfaces import Communicator, Request
from ..errors import InvalidArgument, NonFiniteGradient
from ..ops.arguments import Coded, Key
from ..ops.protocol import Ops
from ..types import Array
from .options import Option
from .stateful import Stateful
from .timing import PhaseTimer, Trace
from .values import Choice, Compensated, Exchanged, Mean, Message, Misfits, Once, Place, Sent, Span, Tensor
from .workers import Workers


@dataclass(frozen=True)
class StepContext:
    """Context of one step: everything that the parts of a scheme know of it."""

    comm: Communicator
    workers: Workers  #: Virtual workers of all ranks.
    selector: Selector  #: Like codec and schedule, a part of the scheme that its exchange asks.
    codec: Codec
    schedule: DensitySchedule
    ops: Ops
    n: int  #: Elements of one worker's vector that the scheme treats.
    dtype: np.dtype  #: Of computation.
    spans: list[Span]  #: The parts of the vector that a selector treats separately.
    tensors: list[Tensor]  #: Where each array lies in the vector, whether or not they are treated separately.
    densities: list[float | None]  #: The caller's own, by span.
    seed: int
    algorithm: str  #: The dense all-reduce that adds values.
    plain: bool  #: A plain average, which keeps nothing and is no larger than the largest gradient.
    limit: float  #: Magnitudes of u from here on are refused, as NaN is; infinity for plain averages.
    check_finite: bool  #: NaN and infinity are refused, or the step is left out; else they are averaged.
    #: Largest number of the result's dtype, and the least that becomes infinite, if it is narrower than ``dtype``.
    result: tuple[float, float] | None
    timer: PhaseTimer
    trace: Trace | None
    first_worker: int  #: The number of this rank's first worker.
    of_layout: Once = field(default_factory=Once)  #: Results that follow from the layout, in all steps.
    in_flight: list[Request] = field(default_factory=list)
    number: int = -1  #: The step's, from 0.
    remembers: bool = True  #: A memory, or the step's measures, read what was sent.
    #: Where a dense mean may be written once all ranks have agreed, the gradient's own memory or none of it: ask
    #: `averaging.room_for_mean`, which looks at what memories still read.
    target: Array | None = None
    left_out: Sequence[Span] = ()  #: Of the vector, which take no part in the step.
    all_ranks: StepContext | None = None  #: Of whole vectors, if this is of a slice of the nodes' means.
    once: Once = field(default_factory=Once)  #: Results of this step that elements do not change.

    def at_step(self, number: int, measured: bool = False, target: Array | None = None, left_out: Sequence[Span] = (),
                all_ranks: StepContext | None = None) -> StepContext:
        """The context of step ``number``; a ``measured`` one reads what was sent."""
        context = object.__new__(StepContext)  # a tenth of the time of dataclasses.replace
        context.__dict__.update(self.__dict__, number=number, remembers=self.remembers or measured, target=target,
                                left_out=left_out, all_ranks=all_ranks, once=Once())
        return context

    def using(self, selector: Selector, codec: Codec, remembers: bool, plain: bool) -> StepContext:
        """The same step with other parts."""
        context = object.__new__(StepContext)
        context.__dict__.update(self.__dict__, selector=selector, codec=codec, remembers=remembers, plain=plain)
        return context

    def density(self, target: float, span: int) -> float:
        """The density of a span in this step, ``target`` being the scheme's: the caller's or the schedule's."""
        own = self.densities[span]
        density = self.schedule.density(target if own is None else own, span, self.number)
        if not isinstance(density, (float, Real)) or not 0 < density <= 1:  # float first: most are
            raise InvalidArgument(f"schedule {self.schedule.name} must return a density above 0 and up to 1, got "
                                  f"{density!r} for span {span} in step {self.number}: correct its density()")
        return density

    def place(self, local: int, indices: Array | None) -> Place:
        """The place of the values of one of this rank's workers."""
        return Place(self.first_worker + local, indices, 0, self.n, Once())

    def key(self, worker: int) -> Key:
        """Key of a worker's random numbers in this step. Numbers from ``workers.total`` on are for ranks."""
        return Key(self.seed, self.number, worker)

    def whole(self, u: Compensated) -> Array:
        """u as one array, which the caller may overwrite."""
        return u.copy_to(self.ops.empty(u.n, u.gradient.dtype), self.ops)

    def select(self, u: Compensated) -> tuple[Array | None, Array | None]:
        """The selector's selection as it travels, and as ascending indices (None: all).

        It travels in its compact form if the selector's ``wire_like`` describes that, else as the indices.
        """
        wire = self.selector.select(u, self)
        if wire is None:
            return None, None
        indices = self._checked(self.selector.expand_own(wire, self), u.n)
        return wire if wire is indices or self.describes(wire) else indices, indices

    def describes(self, wire: Array) -> bool:
        """True if the selector's ``wire_like`` describes its selections; a selection unlike it is refused."""
        like = self.selector.wire_like(self)
        if like is not None and (wire.dtype, wire.size) != (like.dtype, like.size):
            raise InvalidArgument(f"selector {self.selector.name} must select an array like its wire_like, of "
                                  f"{like.size} {like.dtype}, got {wire.size} {wire.dtype}")
        return like is not None

    def _checked(self, indices: Array, n: int) -> Array:
        """A selection's indices, refused on this rank if other ranks would take them for a damaged message."""
        if (given := getattr(indices, "dtype", type(indices).__name__)) != (dtype := self.ops.index_dtype(n)):
            raise InvalidArgument(f"selector {self.selector.name} must give indices as an array of {dtype}, "
                                  f"ctx.ops.index_dtype(u.n), got {given}")
        if not self.ops.ascends(indices, n):
            raise InvalidArgument(f"selector {self.selector.name} must give indices that ascend within [0, {n}), none "
                                  "twice: sort them, leave out repeated ones, and take n from u.n")
        return indices

    def read(self, u: Compensated, indices: Array | None) -> tuple[Array, int]:
        """The selected values of u, and how many elements of u are to be refused: by these, if they show it."""
        values, found = u.counted_at(indices, self.ops, self.limit)
        return values, found if self.selector.finds_nonfinite else self.overflows(u)

    def overflows(self, u: Compensated) -> int:
        """Number of elements of u that are not finite, or too large to compute with."""
        return self.ops.count_beyond(*u, self.limit)

    def refuse_overflow(self, values: Array) -> None:
        """Raise if the codec's narrower numbers became infinite in the mean, or the sum, that all ranks have."""
        if self.check_finite and self.codec.may_overflow(self.dtype) and self.ops.count_nonfinite(values)[0]:
            raise self.overflow

    @property
    def overflow(self) -> NonFiniteGradient:
        """The error about a mean in which the codec's narrower numbers became infinite."""
        return NonFiniteGradient(f"values={self.codec.kind or self.codec.wire_dtype(self.dtype)} overflowed in "
                                 f"step {self.number}: use values=same")

    def misfits(self, values: Array) -> Misfits | None:
        """The ``values`` that become infinite in the result's dtype; None if there are none."""
        return None if self.result is None else Misfits.among(values, *self.result, self.ops)

    def add_at(self, total: Array, indices: Array | None, values: Array) -> None:
        """``total[indices] += values``; everywhere if indices is None."""
        if indices is None:
            self.ops.add(total, values)
        else:
            self.ops.scatter_add(total, indices, values)

    def scale(self, total: Array) -> Array:
        """A sum over all workers turned into their mean, in place."""
        self.ops.scale(total, 1.0 / self.workers.total)
        return total


class Part(Protocol):
    """Any part of a scheme: declared name, publication, options whose values the constructor gets by name."""

    name: str
    reference: str
    options: tuple[Option, ...]


class Memory(Part, Stateful, Protocol):
    """Error memory of one worker: it holds back the unsent part of one step and adds it in the next.

    A memory changes in ``update`` alone, once all ranks have agreed on the step.
    """

    remembers: bool = True  #: False for the memory that keeps nothing.
    beta: float = 1.0  #: Low-pass factor of what is held back; 1 is plain error feedback.
    takes_momentum: bool = False  #: Workers take the momentum before they hold back; the optimizer must have none.
    diverges: bool = False  #: Ranks do not get the same result, so they do not have the same model.
    estimates: bool = False  #: The result estimates the whole gradient in every step, also where nothing was sent.
    takes_shift: bool = False  #: ``set_shift`` is supported.
    local_steps: bool = False  #: In some steps, those of which ``is_local`` is true, nothing is sent.

    @abstractmethod
    def compensate(self, gradient: Array, ctx: StepContext) -> Compensated:
        """The gradient with what was held back."""

    @abstractmethod
    def update(self, u: Compensated, sent: Sent, ctx: StepContext) -> Iterator[None]:
        """Hold back what was not sent, piece by piece, so that it can fill the time that an exchange waits."""

    def local(self, u: Compensated, sent: Sent, ctx: StepContext) -> Array | None:
        """Fresh array that this worker adds to the common mean for its own rank; None for nothing."""
        return None

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """See the mean of a step, which all ranks hold alike, after ``update``."""
        return

    def is_local(self, number: int) -> bool:
        """True for a step that sends nothing at all (local SGD)."""
        return False

    def for_dense(self) -> DenseMean:
        """Treatment of the mean of arrays that go dense; one object per rank, however many workers."""
        return DenseMean()

    @abstractmethod
    def squared_norm(self, ops: Ops) -> float:
        """Squared Euclidean norm of what is held back; 0 before the first step."""

    def check(self, n: int, dtype: np.dtype) -> None:
        """Refuse a loaded state of vectors that have not ``n`` elements of ``dtype``."""
        return

    def set_shift(self, shift: Array, mean: Array) -> None:
        """Take the worker's shift and the mean of all; the arrays are the memory's from now on."""
        raise TypeError(f"memory {self.name} takes no shift")


class DenseMean(Stateful):
    """Treatment of the mean of arrays that go dense: it is the result, and nothing is kept."""

    def overflows(self, gradient: Array, ctx: StepContext) -> int:
        """Number of elements to refuse in one worker's dense arrays."""
        return ctx.ops.count_nonfinite(gradient)[0]

    def apply(self, mean: Array, ctx: StepContext) -> Array:
        """The optimizer's input in place of ``mean``, which may be overwritten; good until the next step."""
        return mean

    def keep(self) -> None:
        """Keep what ``apply`` worked out: nothing refuses the step any more."""
        return

    def check(self, n: int, dtype: np.dtype, number: int, rank: int) -> None:
        """Refuse a loaded state that is not of ``n`` elements of ``dtype``, before step ``number``."""
        return


class Selector(Part, Protocol):
    """Chooses the coordinates of u that are sent."""

    finds_nonfinite: bool = False  #: NaN and infinity are selected first, so the selected values show them.
    selects_all: bool = False  #: The selection is every coordinate; no index is written.
    counted: bool = False  #: Exactly ``counts(ctx)`` elements are selected.
    broadcasts: bool = False  #: ``wire_like`` describes a selection, so that a leader can send one.
    agreed: bool = False  #: All ranks select the same, by ``sketch`` and ``pick``, not by ``select`` and ``expand``.
    has_threshold: bool = False  #: All elements of at least ``threshold(ctx)`` are selected, and no others.
    by_magnitude: bool = False  #: Elements of a whole span compete; an array of small ones may have none selected.
    per_span: bool = False  #: Each span has a density of its own, ``ctx.density(target, span)``.
    nominal_density: float = 1.0  #: Density that the options name; 0 for a number of elements, 1 if they do not tell.

    def warning_texts(self) -> Iterator[str]:
        """Sentences on options that are rarely useful."""
        return iter(())

    @abstractmethod
    def select(self, u: Compensated, ctx: StepContext) -> Array | None:
        """One worker's selection in the compact form it has on the wire; None for all coordinates."""

    @abstractmethod
    def expand(self, wire: Array, ctx: StepContext) -> Array:
        """The ascending indices of a selection that is not None, an array of ``ctx.ops.index_dtype(ctx.n)``."""

    def expand_own(self, wire: Array, ctx: StepContext) -> Array:
        """``expand`` for a selection of this step's ``select``, which needs no validation."""
        return self.expand(wire, ctx)

    def wire_like(self, ctx: StepContext) -> Array | None:
        """An empty array like a selection; None if only the selecting rank knows the length: indices travel then."""
        return None

    def counts(self, ctx: StepContext) -> list[int]:
        """Number of elements selected from each span, if that is known before."""
        raise TypeError(f"selector {self.name} does not know how many it selects")

    def threshold(self, ctx: StepContext) -> float:
        """The smallest magnitude that is selected."""
        raise TypeError(f"selector {self.name} has no threshold")

    def sketch(self, u: Compensated, ctx: StepContext) -> Array:
        raise TypeError(f"selector {self.name} is not agreed on")

    def pick(self, total: Array, ctx: StepContext) -> Array:
        raise TypeError(f"selector {self.name} is not agreed on")


class AgreedSelector(Selector, Protocol):
    """A selector that all ranks agree on: coordinates follow from a sum of sketches, or from the seed alone."""

    agreed: bool = True

    def select(self, u: Compensated, ctx: StepContext) -> Array | None:
        raise TypeError(f"selector {self.name} does not select by itself")

    def expand(self, wire: Array, ctx: StepContext) -> Array:
        raise TypeError(f"selector {self.name} does not select by itself")

    @abstractmethod
    def sketch(self, u: Compensated, ctx: StepContext) -> Array:
        """An array that is added up over all workers; empty if nothing of u is needed."""

    @abstractmethod
    def pick(self, total: Array, ctx: StepContext) -> Array:
        """The ascending indices that follow from the sum of all sketches."""


class Codec(Part, Protocol):
    """Writes values as bytes and reads them."""

    addable: bool = False  #: Codes may be summed by an all-reduce.
    shares_scale: bool = False  #: All workers use one scale, that of the largest ``peak``, by ``share``.
    kind: str | None = None  #: The type's name for an all-reduce of codes, if NumPy lacks it.
    needs_threshold: bool = False  #: Without an option ``lam`` of its own, the codec sends the selector's threshold.
    block: int | None = None  #: Parts cut at multiples of it have codes of their own, which decode to the same bits.
    shows_nonfinite: bool = False  #: NaN and infinity are read as NaN or infinity.
    finer: str = ""  #: Options that make ``error_factor`` smaller, for advice.

    @property
    def error_factor(self) -> float:
        """Largest expected square of the error, over that of the values; 0 if it cannot make a memory grow."""
        return 0.0

    @abstractmethod
    def encode(self, values: Array, place: Place, ctx: StepContext) -> Array:
        """The codes of one worker's values, which may not be written into: they may be the caller's gradient."""

    @abstractmethod
    def decode(self, codes: Array, place: Place, ctx: StepContext) -> Array:
        """Values that a receiver reads from codes, also given as bytes."""

    def coded(self, codes: Array, place: Place, ctx: StepContext) -> Array | Coded:
        """Values that a receiver reads, which operations on coded values may decode on the way."""
        return self.decode(codes, place, ctx)

    def decode_into(self, values: Array, codes: Array, place: Place, ctx: StepContext) -> None:
        """Write what a receiver reads into ``values``."""
        values[:] = self.decode(codes, place, ctx)

    def wire_dtype(self, dtype: np.dtype) -> np.dtype:
        """The wire's dtype for values of ``dtype``, of codecs that write every value by itself."""
        raise TypeError(f"codec {self.name} does not write every value by itself")

    def sends_unchanged(self, dtype: np.dtype) -> bool:
        """True if codes are the values themselves."""
        return False

    def code_nbytes(self, count: int, dtype: np.dtype) -> int:
        """Bytes of the codes of ``count`` values, of codecs with a ``block``."""
        raise TypeError(f"codec {self.name} has no block")

    def half(self, dtype: np.dtype) -> str | None:
        """The half precision that values of ``dtype`` travel in, if ``ops.narrow`` and ``ops.widen`` are the codec."""
        return None

    def may_overflow(self, dtype: np.dtype) -> bool:
        """True if a finite value of ``dtype`` may become infinite, by itself or in a sum of few."""
        return False

    def peak(self, values: list[Array], ctx: StepContext) -> float:
        """The largest magnitude of this rank's values, if the scale is shared."""
        raise TypeError(f"codec {self.name} shares no scale")

    def share(self, peak: float, ctx: StepContext) -> None:
        """Take the largest peak of all ranks."""
        raise TypeError(f"codec {self.name} shares no scale")

    def check_workers(self, total: int) -> None:
        """Refuse a number of workers that the codec cannot serve."""
        return


C = TypeVar("C", bound=Choice)
M = TypeVar("M", bound=Message)


class Exchange(Part, Stateful, Protocol[C, M]):
    """Moves what workers send, and adds it up. Lasting state changes in ``combine`` alone."""

    takes: str  #: Selectors that fit, one of any, all, some, counted and agreed.
    codecs: str  #: Codecs that fit, one of any, addable and float.
    second_memory: bool = False  #: The exchange quantises a second time and keeps that error.
    chooses: bool = False  #: Each step takes selector, codec and exchange of one of the candidates.
    candidates: Sequence[Candidate] = ()  #: An option lists their schemes.

    def check(self, ctx: StepContext) -> None:
        """Refuse a loaded state that does not fit the layout."""
        return

    def context(self, ctx: StepContext) -> StepContext:
        """The context of the next step's parts, if an exchange changes them from step to step."""
        return ctx

    def instead(self, ctx: StepContext) -> StepContext | None:
        """The context in which a step whose codes overflowed is done again; None if it is refused."""
        return None

    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """See the end of a step and its mean, after all memories have changed (collective)."""
        return

    def may_refuse(self, ctx: StepContext) -> bool:
        """True if ``combine`` may refuse the step, on all ranks, before anything has changed."""
        return ctx.codec.may_overflow(ctx.dtype)

    @abstractmethod
    def choose(self, us: list[Compensated], ctx: StepContext) -> C:
        """All that a rank can do by itself, before ranks agree on the step."""

    @abstractmethod
    def encode(self, us: list[Compensated], choice: C, ctx: StepContext) -> M:
        """Message of all local workers (collective, if coordinates are agreed on)."""

    @abstractmethod
    def combine(self, message: M, ctx: StepContext) -> Exchanged:
        """Move and add; the mean over all workers (collective)."""


AnyExchange = Exchange[Any, Any]


class Candidate(NamedTuple):
    """A scheme that an exchange may choose for a step: its text, and the parts that it does not share with others.

    ``keeps`` is False if it sends all of u and leaves nothing in the memory: what its codes do not hold is lost.
    """

    text: str
    selector: Selector
    codec: Codec
    exchange: AnyExchange
    keeps: bool


class DensitySchedule(Part, Stateful, Protocol):
    """Changes the density from step to step, the same on all ranks; from step ``settled_from`` on it stays."""
    settled_from: float = float("inf")

    @abstractmethod
    def density(self, target: float, span: int, number: int) -> float:
        """The density of a span in step ``number``, the scheme's own being ``target``."""

    @abstractmethod
    def observe(self, mean: Mean, ctx: StepContext) -> None:
        """See the mean of a step, which all ranks hold alike."""

    @abstractmethod
    def learning_rate_dropped(self) -> None:
        """Hear that training has come to another phase."""

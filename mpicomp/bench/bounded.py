"""The error-bounded all-reduce as the bench times it, and its errors against the result in float64."""

from __future__ import annotations

from functools import cached_property, partial
from math import inf, log10
from typing import NamedTuple

import numpy as np

from .._util.partition import pieces
from ..comm.allreduce_call import AVG
from ..comm.bounded_exchange import BoundedStats
from ..comm.comm import Comm
from ..comm.mpi_types import MPI_OPS
from ..comm.safety.collective_errors import run_collectively
from ..ops import ops_for
from ..ops.device import ready
from ..types import Array
from .data import NEVER, same_bits
from .dense import Call, then
from .devices import to_device
from .fields import field
from .plan import BOUNDED_ALGORITHMS, Plan, bounded_name
from .timing import Facts, Implementation

PIECE = 1 << 20  # elements that are compared at a time


class Exact(NamedTuple):
    """The exact result."""

    result: np.ndarray  # in float64
    rounding: np.ndarray  # largest error of a result that is added in the field's own precision, in any order


class Errors(NamedTuple):
    """Differences of a result from the exact one, on this rank."""

    wrong: int = 0  # elements beyond what is allowed
    largest: float = 0.0
    psnr_db: float | None = None  # None if there is no difference


class Fields:
    """Field and result of a rank, shared by all bounds."""

    def __init__(self, comm: Comm, plan: Plan, n: int) -> None:
        self.comm, self.op, self.n = comm, plan.op, n
        self.host = run_collectively(comm, lambda: field(plan, n, comm.rank, comm.size))
        self.send: Array = to_device(self.host, plan.device)
        self.receive: Array = to_device(np.zeros_like(self.host), plan.device)

    @cached_property
    def exact(self) -> Exact:
        """The exact result (collective)."""
        total, absolute = self.host.astype(np.float64), np.abs(self.host)
        self.comm.allreduce_in_place(total, "native")
        self.comm.allreduce_in_place(absolute, "native")
        terms = self.comm.size if self.op == AVG else 1
        with np.errstate(all="ignore"):  # of NaN, infinity and huge values
            total /= terms
            absolute *= (self.comm.size + 1) / terms * np.finfo(self.host.dtype).eps
        return Exact(total, absolute)

    def errors(self, limit: float) -> Errors:
        """Compare the result with the exact one, from which it may differ by ``limit`` and rounding (collective)."""
        found, exact = ops_for(self.receive).to_host(self.receive), self.exact
        wrong, finite, largest, squares, low, high = 0, 0, 0.0, 0.0, inf, -inf
        with np.errstate(all="ignore"):
            for begin, end in pieces(0, self.n, PIECE):
                wanted, had = exact.result[begin:end], found[begin:end]
                error = np.abs(had - wanted)
                same = np.isnan(wanted) & np.isnan(had) | (wanted.astype(had.dtype) == had)
                wrong += int(np.count_nonzero(~(same | (error <= limit + exact.rounding[begin:end]))))
                error, wanted = error[np.isfinite(error)], wanted[np.isfinite(wanted)]
                largest, squares = max(largest, error.max(initial=0.0)), squares + float(error @ error)
                finite += error.size
                low, high = min(low, wanted.min(initial=low)), max(high, wanted.max(initial=high))
        psnr = 10 * log10((high - low) ** 2 * finite / squares) if squares and 0 < high - low < inf else None
        return Errors(wrong + (not same_bits(self.comm, found)), float(largest), psnr)


class Bounded(Implementation):
    """One algorithm with one bound, in one place."""

    def __init__(self, algorithm: str, bound: float, plan: Plan, fields: Fields, place: str) -> None:
        self.algorithm, self.bound, self.plan, self.fields, self.place = algorithm, bound, plan, fields, place
        self.name = bounded_name(algorithm, bound, plan.relative)
        self._stats, self._errors = BoundedStats(""), Errors()
        send, op = None if place == "in" else fields.send, AVG if plan.op == AVG else MPI_OPS[plan.op]
        call = partial(fields.comm.Allreduce, send, fields.receive, op, algorithm, bound, plan.relative)
        self.step: Call = then(call, partial(ready, fields.receive)) if plan.device == "gpu" else call

    def begin(self) -> None:
        if self.place == "in":
            self.fields.receive[:] = self.fields.send
            if self.plan.device == "gpu":
                ready(self.fields.receive)

    def end(self) -> None:
        """Keep the communicator's record of the step."""
        stats = self.fields.comm.bounded_stats
        assert stats is not None, "of the step"
        self._stats = stats

    def check(self) -> int:
        self.fields.receive[:] = NEVER
        self.begin()
        self.step()
        self.end()
        self._errors = self.fields.errors(self._stats.largest_error)
        return self._errors.wrong

    def facts(self, rounds: int) -> Facts:
        """Path, and errors of the last check, the largest of all ranks (collective)."""
        stats, psnr = self._stats, self._errors.psnr_db
        worst = np.array([self._errors.largest, -inf if psnr is None else -psnr])
        self.fields.comm.allreduce_in_place(worst, "native", "max")
        largest, psnr = float(worst[0]), -float(worst[1])
        return Facts(
            algorithm=self.algorithm, place=self.place, bound=self.bound, relative=self.plan.relative,
            data=self.plan.data, ran=stats.algorithm, reason=stats.reason or None, error_limit=stats.largest_error,
            max_error=largest if self.plan.check else None, psnr_db=psnr if psnr < inf else None,
        )  # fmt: skip


def bounded(comm: Comm, plan: Plan, n: int) -> list[Bounded]:
    """Every bound and algorithm of ``plan`` in every place, on fields of ``n`` elements."""
    if not plan.bounds:
        return []
    fields = Fields(comm, plan, n)
    return [Bounded(algorithm, bound, plan, fields, place) for place in plan.places for bound in plan.bounds
            for algorithm in BOUNDED_ALGORITHMS]

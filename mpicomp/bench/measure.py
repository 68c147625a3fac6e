"""One run of the bench: size by size, prepare, check, time, check again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .._util.progress import Progress
from ..comm.comm import Comm
from .bounded import bounded
from .compressed import compressed
from .dense import dense
from .devices import choose_device
from .plan import Plan, show_size
from .rows import compare_with_first, make_row, share_local
from .schema import Row
from .timing import Implementation, Timer
from .watchdog import Watchdog


def measure(comm: Comm, plan: Plan, progress: Progress) -> Iterator[list[Row]]:
    """The rows of each size, the same on every rank (collective); raises at once if the plan cannot be measured."""
    plan.check_job(comm.size)
    if plan.device == "gpu":
        choose_device(comm)
    return _each_size(comm, plan, progress)


def _each_size(comm: Comm, plan: Plan, progress: Progress) -> Iterator[list[Row]]:
    work = [(cycle, part, n) for cycle in range(1, plan.cycles + 1) for part in plan.parts
            for n in dict.fromkeys(part.count(nbytes, comm.size) for nbytes in plan.sizes)]  # fmt: skip
    with Watchdog(comm, plan.timeout) as watchdog:
        for index, (cycle, part, n) in enumerate(work):
            rows = _Size(comm, part, n, watchdog, _at(progress, index / len(work))).rows()
            for row in rows:
                row["cycle"] = cycle if plan.cycles > 1 else None
            yield rows


def _at(progress: Progress, done: float) -> Callable[[str], None]:
    return lambda text: progress(text, done)


class _Size:
    """The measurement of one size: ``n`` elements, per vector or per block."""

    def __init__(self, comm: Comm, plan: Plan, n: int, watchdog: Watchdog, progress: Callable[[str], None]) -> None:
        self._comm, self._plan, self._n, self._watchdog, self._progress = comm, plan, n, watchdog, progress
        self._size = show_size(n * plan.itemsize * (comm.size if plan.what.blocks else 1))
        self._say("preparing")
        self._watch("preparation")
        self._implementations: list[Implementation] = [*dense(comm, plan, n), *bounded(comm, plan, n),
                                                       *compressed(comm, plan, n)]

    def rows(self) -> list[Row]:
        """Check, time, check again; one row per implementation."""
        plan, many = self._plan, len(self._implementations)
        wrong = np.zeros(many, np.int64)
        if plan.check:
            self._say(f"checking {many} implementations")
            wrong = self._check()
        self._say(f"timing {many} implementations")
        shuffle = [plan.seed, self._n] if plan.shuffle else None
        timer = Timer(self._comm, self._implementations, self._watch, shuffle, plan.steps_per_barrier)
        samples, warmup = timer.run(plan)
        if plan.check:
            wrong = np.maximum(wrong, self._check())  # again, after hundreds of steps
            self._comm.allreduce_in_place(wrong, "native")
        rows = [make_row(plan, one, sample, self._n, self._comm.size)
                for one, sample in zip(self._implementations, samples, strict=True)]  # fmt: skip
        for row, n_wrong in zip(rows, wrong.tolist(), strict=True):
            row["warmup"] = warmup
            if plan.check:
                row["n_wrong"], row["ok"] = n_wrong, n_wrong == 0
        compare_with_first(rows)
        share_local(rows)
        return rows

    def _say(self, what: str) -> None:
        self._progress(f"{self._plan.collective} {self._size}: {what}")

    def _watch(self, what: str) -> None:
        self._watchdog.watch(f"{self._plan.collective} {what} at {self._size}")

    def _check(self) -> np.ndarray:
        """Number of wrong elements of each implementation, on this rank."""
        wrong = []
        for implementation in self._implementations:
            self._watch(f"check of {implementation.name}")
            wrong.append(implementation.check())
        return np.array(wrong, np.int64)

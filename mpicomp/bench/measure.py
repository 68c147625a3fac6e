"""One run of the bench: size by size, prepare, check, time, check again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from .devices import choose_device
from .plan import Plan, show_size
from .rows import full, row, share_local
from .timing import Timer
from .watchdog import Watchdog

Rows = list[dict[str, Any]]


def measure(comm: Any, plan: Plan, progress: Callable[..., None]) -> Iterator[Rows]:
    """The rows of each size, the same on every rank (collective); refuses at once what cannot be measured."""
    plan.check_job(comm.size)
    if plan.device == "gpu":
        choose_device(comm)
    return _each_size(comm, plan, progress)


def _each_size(comm: Any, plan: Plan, progress: Callable[..., None]) -> Iterator[Rows]:
    work = [(cycle, part, n) for cycle in range(1, plan.cycles + 1) for part in plan.parts
            for n in dict.fromkeys(part.count(nbytes, comm.size) for nbytes in plan.sizes)]  # fmt: skip
    with Watchdog(comm, plan.timeout) as watchdog:
        for index, (cycle, part, n) in enumerate(work):
            rows = _Size(comm, part, n, watchdog, _at(progress, index / len(work))).rows()
            yield [{**one, "cycle": cycle if plan.cycles > 1 else None} for one in rows]


def _at(progress: Callable[..., None], done: float) -> Callable[[str], None]:
    return lambda text: progress(text, done)


class _Size:
    """The measurement of one size: ``n`` elements, or elements a block."""

    def __init__(self, comm: Any, plan: Plan, n: int, watchdog: Watchdog, progress: Callable[[str], None]) -> None:
        self._comm, self._plan, self._n, self._watchdog, self._progress = comm, plan, n, watchdog, progress
        self._size = show_size(n * plan.itemsize * (comm.size if plan.what.blocks else 1))
        self._say("preparing")
        self._watch("preparation")
        module = import_module(plan.what.target)
        self._implementations = module.implementations(comm, plan, n)

    def rows(self) -> Rows:
        plan, many = self._plan, len(self._implementations)
        wrong = np.zeros(many, np.int64)
        if plan.check:
            self._say(f"checking {many} implementations")
            wrong = self._check()
        self._say(f"timing {many} implementations")
        shuffle = [plan.seed, self._n] if plan.shuffle else None
        timer = Timer(self._comm, self._implementations, self._watch, shuffle, plan.steps_a_round)
        samples, warmup = timer.run(plan)
        if plan.check:
            wrong = np.maximum(wrong, self._check())  # again, after hundreds of steps
            self._comm.allreduce_in_place(wrong, "native")
        rows = []
        for one, sample, n_wrong in zip(self._implementations, samples, wrong.tolist(), strict=True):
            found = row(plan, one, sample, self._n, self._comm.size, self._baseline(one, samples))
            verdict = {"n_wrong": n_wrong, "ok": n_wrong == 0} if plan.check else {}
            rows.append({**found, "warmup": warmup, **verdict})
        share_local(rows)
        return [full(row) for row in rows]

    def _baseline(self, implementation: Any, samples: list[Any]) -> Any:
        """The first implementation in the same place; schemes have none and compare with the very first."""
        alike = (i for i, one in enumerate(self._implementations) if one.place == implementation.place)
        return samples[next(alike) if implementation.place else 0]

    def _say(self, what: str) -> None:
        self._progress(f"{self._plan.collective} {self._size}: {what}")

    def _watch(self, what: str) -> None:
        self._watchdog.watch(f"{self._plan.collective} {what} at {self._size}")

    def _check(self) -> np.ndarray:
        """Wrong elements of each implementation, on this rank."""
        wrong = []
        for implementation in self._implementations:
            self._watch(f"check of {implementation.name}")
            wrong.append(implementation.check())
        return np.array(wrong, np.int64)

"""The bench: implementations of a collective, timed against each other and checked against the exact result.

``run`` measures a ``Plan``; how rows are printed is the command's business. A new collective is one module with a
function ``implementations(comm, plan, n)``, and one line in ``COLLECTIVES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from .plan import Plan, show_size
from .rows import row
from .timing import Timer
from .watchdog import Watchdog

__all__ = ["COLLECTIVES", "Plan", "run"]

COLLECTIVES = {"allreduce": "mpicomp.bench.allreduce"}


def run(comm: Any, plan: Plan, progress: Callable[[str], None] = lambda text: None) -> Iterator[list[dict[str, Any]]]:
    """Measure ``plan`` size by size (collective); yields the rows of each size, the same on every rank.

    Parameters
    ----------
    comm : mpicomp.Comm
    plan : Plan
    progress : callable
        Called with a line of text when something new begins.
    """
    with Watchdog(comm, plan.timeout) as watchdog:
        for nbytes in plan.sizes:
            yield _measure(comm, plan, plan.count(nbytes), watchdog, progress)


def _measure(
    comm: Any, plan: Plan, n: int, watchdog: Watchdog, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All rows of one size."""
    size = show_size(n * np.dtype(plan.dtype).itemsize)

    def watch(what: str) -> None:
        watchdog.watch(f"{plan.collective} {what} at {size}")

    progress(f"{plan.collective} {size}: preparing")
    watch("preparation")
    implementations = import_module(COLLECTIVES[plan.collective]).implementations(comm, plan, n)
    wrong = np.zeros(len(implementations), np.int64)
    if plan.check:
        progress(f"{plan.collective} {size}: checking {len(implementations)} implementations")
        wrong = _check(implementations, watch)
    progress(f"{plan.collective} {size}: timing {len(implementations)} implementations")
    samples, warmup = Timer(comm, implementations, watch).run(plan)
    if plan.check:
        wrong = np.maximum(wrong, _check(implementations, watch))  # again, after hundreds of steps
        comm.allreduce_in_place(wrong, "native")
    found = zip(implementations, samples, wrong.tolist(), strict=True)
    return [
        {
            **row(plan, implementation, sample, n, comm.size, baseline=samples[0]),
            "warmup": warmup,
            "n_wrong": n_wrong if plan.check else None,
            "ok": n_wrong == 0 if plan.check else None,
        }
        for implementation, sample, n_wrong in found
    ]


def _check(implementations: list[Any], watch: Callable[[str], None]) -> np.ndarray:
    wrong = []
    for implementation in implementations:
        watch(f"check of {implementation.name}")
        wrong.append(implementation.check())
    return np.array(wrong, np.int64)

"""This job's machine for `mpicomp simulate` and `advise`, calibrated by short steps; the noise meanwhile."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np

from .._util.progress import Progress
from ..bench import check, environment, probe
from ..simulate import machine, program_of, replay
from ..simulate.ghost_ops import CALL, STEP
from ..simulate.models import named

if TYPE_CHECKING:
    from ..comm.comm import Comm


SCHEMES = ("scalecom:chunk=112", "topk-global", "dgc", "onebit")  # whose steps call few and many operations
SHORT, ROUNDS = 1000, 3  # elements of a short step; measurements of every scheme, in turn


def noise_of(share: float) -> list[str]:
    """A warning if other processes used enough of the CPUs to make a measurement doubtful."""
    if share <= environment.FOREIGN_LIMIT:
        return []
    return [f"noise: other processes used {share:.0%} of the CPUs: repeat on a quiet machine"]


def this_machine(comm: Comm, say: Progress, source: str) -> machine.Machine:
    """Measure messages and operations, and what these do not explain of short steps (collective).

    The unexplained time of several schemes is split along a line: ``call`` counts for each operation that a step
    calls, ``step`` once in every step of any scheme; neither in a dense all-reduce. They contain Python's own time
    and, where ranks share cores, that in which a waiting rank finds its peer not running. Schemes of many more
    messages wait more often, which this model does not cover.
    """
    found, model = machine.load(probe.machine(comm, say), source), named(str(SHORT))
    assert model is not None, "a number is a model"
    free = machine.Wire(0.0, math.inf)
    calls_alone = replace(found, between=free, within=free, kernels={"copy": 0.0, CALL: 1.0})
    rounds = [check.steps(comm, SCHEMES, [("short", (SHORT,), 0.0)]) for _ in range(ROUNDS)]
    calls, rest = [], []
    for scheme in SCHEMES:
        program = program_of(scheme, model, found.place(comm.size))
        explained, counted = (float(replay(program, one).finish.max()) for one in (found, calls_alone))
        calls.append(counted)
        rest.append(max(0.0, median(one[scheme] for one in rounds) - explained))
    per_call = max(0.0, float(np.polyfit(calls, rest, 1)[0]))
    per_step = max(0.0, mean(rest) - per_call * mean(calls))
    return replace(found, kernels={**found.kernels, STEP: per_step, CALL: per_call})

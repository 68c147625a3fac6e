"""This job's machine for `mpicomp simulate` and `advise`, calibrated by a short step of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..bench import check, probe
from ..simulate import machine, program_of, replay
from ..simulate.ghost_ops import STEP
from ..simulate.models import named

if TYPE_CHECKING:
    from ..comm.comm import Comm


def this_machine(comm: Comm, say: Callable[[str, float], None], source: str) -> machine.Machine:
    """Measure messages and operations, and as ``step`` what these do not explain of a short step (collective).

    ``step`` counts once in every step of any scheme, never for a dense all-reduce. It contains the time that neither
    grows with the vector nor is a message or an operation: first Python's own time in a step of one rank alone, which
    ``probe`` measures; and added here, the time of a step among all ranks beyond that and beyond the latencies and
    overheads of its messages. If ranks share cores, that is most of it: a waiting rank finds its peer not running, in
    every step of any scheme. The value comes from steps of one scheme of few messages; schemes of many more messages
    wait more often, which this model does not cover.
    """
    found = machine.load(probe.machine(comm, say), source)
    scheme, n = probe.SHORT_SCHEME, probe.SHORT
    seconds = check.steps(comm, [scheme], [("short", (n,), 0.0)])[scheme]
    model = named(str(n))
    assert model is not None, "a number is a model"
    explained = float(replay(program_of(scheme, model, found.place(comm.size)), found).finish.max())
    step = found.kernels[STEP] + max(0.0, seconds - explained)
    return replace(found, kernels={**found.kernels, STEP: step})

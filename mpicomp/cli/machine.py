"""This job's machine, for `mpicomp simulate` and `advise`: what is measured, made to explain a real short step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..bench import check, probe
from ..simulate import machine, program_of, replay
from ..simulate.ghost_ops import STEP
from ..simulate.models import named


def this_machine(comm: Any, say: Callable[[str, float], None], source: str) -> machine.Machine:
    """Messages, operations, and as ``step`` what these leave unexplained of a short step of all ranks (collective).

    ``step`` counts once in every step of any scheme, never for a dense all-reduce. It holds what neither grows with the
    vector nor is a message or an operation: first Python's own time in a step of a rank alone, which ``probe``
    measures; and added here, what a step among all ranks takes beyond that and beyond the latencies and overheads of
    its messages. Where ranks share cores that is most of it: they find each other not running when they wait, and pay
    for that in every step, whatever the scheme. It is taken from steps of one scheme of few messages; schemes of many
    more wait more often, which it does not tell.
    """
    found = machine.load(probe.machine(comm, say), source)
    what, n = probe.SHORT_SCHEME, probe.SHORT
    seconds = check.steps(comm, [what], [("short", (n,), 0.0)])[what]
    model = named(str(n))
    assert model is not None, "a number is a model"
    explained = float(replay(program_of(what, model, found.place(comm.size)), found).finish.max())
    step = found.kernels[STEP] + max(0.0, seconds - explained)
    return replace(found, kernels={**found.kernels, STEP: step})

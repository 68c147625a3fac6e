"""Advice on compression for a machine: step times dense and compressed, their break-even, a verdict.

All times come from playing the same programs as ``mpicomp simulate``; what a training loses is what was published.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import TypedDict

from .._util.progress import Progress, silent
from ..allreduce.segments import SLOW
from ..errors import InvalidArgument
from .machine import Machine
from .models import Model
from .predict import Prediction, overlap, predict, times_of_kinds
from .program import Program, program_of

DENSE = ("ring", "halving_doubling")
SCHEMES = ("scalecom", "topk-global", "oktopk", "dgc", "powersgd", "half", "signsgd", "onebit", "qsgd")
WORTH = 1.05  # a step must be so many times as fast to be worth what compression may cost in fidelity
FACTORS = (1e-6, 1e6)  # of the bandwidth, between which breaking even is looked for
HALVINGS = 20


class Results(TypedDict):
    """The table of published results."""

    sources: dict[str, str]
    rows: list[dict[str, str | float]]  # of a scheme beside dense training


@dataclass(frozen=True)
class Line:
    """One dense algorithm or scheme."""

    prediction: Prediction
    dense: bool
    break_even: float | None  # bytes per second of a node's link above which dense is faster; 0: on any; None: no links
    published: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return self.prediction.what


@dataclass(frozen=True)
class Advice:
    """The answer: ``lines`` with the fastest steps first, and what follows from them."""

    lines: tuple[Line, ...]
    compress: bool
    verdict: str
    left_out: tuple[str, ...] = ()  # schemes, and why they could not be recorded

    def best(self, dense: bool, of: str = "step") -> Line:
        return min((line for line in self.lines if line.dense == dense), key=lambda line: getattr(line.prediction, of))


def advise(model: Model, machine: Machine, ranks: int, compute: float, schemes: Sequence[str] = SCHEMES,
           native: float | None = None, progress: Progress = silent) -> Advice:
    """Compare steps of ``compute`` seconds on ``ranks`` ranks.

    Parameters
    ----------
    native : float, optional
        Seconds of MPI's own all-reduce of the model, where it was measured.
    """
    if ranks < 2:
        raise InvalidArgument("one rank alone exchanges no gradients: start more, mpirun -n 4 mpicomp advise")
    place, quiet = machine.place(ranks), machine.quiet()
    names = [*DENSE, *(("node_shared",) if machine.ranks_per_node > 1 and ranks % machine.ranks_per_node == 0 else ())]
    programs, left_out = {}, []
    for number, what in enumerate([*names, *schemes]):
        progress(what, number / (len(names) + len(schemes)))
        try:
            programs[what] = program_of(what, model, place)
        except InvalidArgument as error:
            if what in names:
                raise
            left_out.append(f"{what} is left out: {error}")
    if len(programs) == len(names):
        raise InvalidArgument("; ".join(left_out) or "no scheme to compare with: give --scheme")
    dense = [programs[what] for what in names]
    lines = [Line(predict(program, quiet, compute), True, None) for program in dense]
    if native is not None:
        lines.append(Line(measured(native, lines[0].prediction), True, None))
    # Breaking even is looked for on links of any bandwidth, so with messages in the lengths that most of these bring.
    uncut = programs if place.bandwidth >= SLOW else {
        what: program_of(what, model, replace(place, bandwidth=math.inf)) for what in programs}
    for what in list(programs)[len(names):]:
        even = break_even(uncut[what], [uncut[name] for name in names], quiet)
        lines.append(Line(predict(programs[what], quiet, compute), False, even, published(what)))
    lines.sort(key=lambda line: (line.prediction.step, line.what))
    return replace(judge(lines), left_out=tuple(left_out))


def measured(seconds: float, like: Prediction) -> Prediction:
    """MPI's own all-reduce as it was timed; how much of it is a rank's own work cannot be told."""
    return replace(
        like, what="native", exchange=seconds, local=0.0, step=like.compute + seconds,
        overlapped=overlap(like.compute, seconds, 0.0), recorded="measured", notes=(),
    )


def break_even(scheme: Program, dense: Sequence[Program], machine: Machine) -> float | None:
    """Return the bytes per second of a node's link at which ``scheme`` takes as long as the fastest of ``dense``.

    Inf if it is faster on any link, 0 if on none; None on one node, which has no link.
    """
    if scheme.place.nodes == 1:
        return None

    def seconds(program: Program, on: Machine) -> float:
        return sum(share * exchange for share, exchange, _ in times_of_kinds(program, on))

    def gain(factor: float) -> float:
        on = machine.faster(factor)
        return min(seconds(one, on) for one in dense) - seconds(scheme, on)

    low, high = FACTORS
    if gain(high) > 0:
        return float("inf")
    if gain(low) <= 0:
        return 0.0
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    return low * machine.between.bandwidth


def judge(lines: Sequence[Line]) -> Advice:
    """The verdict in plain words."""
    advice = Advice(tuple(lines), False, "")
    dense, scheme = advice.best(dense=True), advice.best(dense=False)
    gain = dense.prediction.step / scheme.prediction.step
    beside = (advice.best(True, "overlapped").prediction.overlapped
              / advice.best(False, "overlapped").prediction.overlapped)
    if gain < WORTH:
        faster = f"only {gain:.2f} times as fast" if gain > 1 else f"{1 / gain:.2f} times as slow"
        return replace(advice, verdict=f"Do not compress here: a step with {scheme.what}, the fastest scheme, is "
                       f"{faster} as one with {dense.what}.")
    text = f"Compress: a step with {scheme.what} is {gain:.2f} times as fast as one with {dense.what}."
    if beside < WORTH:
        text += (f" But not if the exchange overlaps the backward pass: then it is {beside:.2f} times as "
                 "fast, too little to be worth the loss.")
    else:
        text += f" If the exchange overlaps the backward pass, {beside:.2f} times."
    if not scheme.published:
        text += " The table of published results has no accuracy cost for it: compare a run with one without."
    return replace(advice, compress=True, verdict=text)


def published(scheme: str) -> tuple[str, ...]:
    """Return published results on the fidelity of a scheme, by its name."""
    table = results()
    names = {scheme.partition(":")[0], scheme.partition(":")[0].removesuffix("-global")}
    return tuple(_sentence(row, table["sources"]) for row in table["rows"] if row["scheme"] in names)


def results() -> Results:
    """Read the table of published results."""
    table: Results = json.loads(resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return table


def _sentence(row: dict[str, str | float], sources: dict[str, str]) -> str:
    workers = f", {row['workers']} workers" if row["workers"] else ""
    return (f"{row['model']}, {row['data']}{workers}, {row['rate']}: {row['metric']} {row['dense']:g} -> "
            f"{row['compressed']:g} ({row['better']} is better; {sources[str(row['source'])]})")

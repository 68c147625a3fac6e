"""Predictions from programs: seconds of a training step, and the fraction that is not computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from .._util.plurals import count
from .._util.progress import Progress, silent
from .machine import Machine
from .models import Model
from .program import Program, program_of
from .replay import Times, replay

FORWARD = 1 / 3  # of a step's computing: no gradient is there before
JITTERED_STEPS = 20

Player = Callable[..., Times]  # plays a program on a machine, like ``replay``


@dataclass(frozen=True)
class Prediction:
    """A step of one algorithm or scheme; times in seconds, bytes of the busiest rank."""

    what: str
    ranks: int
    nodes: int
    compute: float
    exchange: float  # from the moment all ranks begin to exchange, without jitter, until the last is through
    local: float  # of the exchange: copies, additions and compression on the busiest rank
    step: float  # computing, then exchanging, with jitter
    overlapped: float  # if the exchange goes on beside the backward pass, as far as one device does both
    bytes_sent: int  # in messages
    messages: int
    bytes_shared: int  # written into memory that the ranks of a node share
    recorded: str
    replayed_in: float
    notes: tuple[str, ...]

    @property
    def share(self) -> float:
        """Fraction of the step that is not computing."""
        return 1 - self.compute / self.step if self.step else 0.0

    def row(self) -> dict[str, object]:
        return {**asdict(self), "share": self.share}


def predict(program: Program, machine: Machine, compute: float, steps: int = JITTERED_STEPS,
            play: Player = replay) -> Prediction:
    """Predict a step of ``program`` with ``compute`` seconds of computing; with jitter, the mean of ``steps``."""
    begun = time.monotonic()
    kinds = times_of_kinds(program, machine, play)
    exchange, local = (sum(share * times[at] for share, *times in kinds) for at in range(2))
    step = compute + exchange
    if machine.jitter.distribution != "none":
        step = _mean(program, lambda one: np.mean([
            times.finish.max() for times in jittered(one, machine, compute, steps, play)]))
    return Prediction(
        what=program.name, ranks=program.place.size, nodes=program.place.nodes, compute=compute, exchange=exchange,
        local=local, step=step, overlapped=sum(share * overlap(compute, *times) for share, *times in kinds),
        bytes_sent=round(_mean(program, lambda one: one.bytes_sent.max())),
        messages=round(_mean(program, lambda one: one.messages.max())),
        bytes_shared=round(_mean(program, lambda one: one.bytes_shared.max())), recorded=program.how,
        replayed_in=time.monotonic() - begun, notes=tuple(program.notes),
    )


def times_of_kinds(program: Program, machine: Machine, play: Player = replay) -> list[tuple[float, float, float]]:
    """Share of each kind of step, seconds until the last rank is through, and of the busiest's work, without jitter."""
    plays = [(one.share, play(one, machine)) for one in (program, *program.mixed)]
    return [(share, float(times.finish.max()), float(times.local.max())) for share, times in plays]


def _mean(program: Program, of: Callable[[Program], float]) -> float:
    """Over all kinds of steps of a program."""
    return float(sum(one.share * of(one) for one in (program, *program.mixed)))


def jittered(program: Program, machine: Machine, compute: float, steps: int, play: Player = replay) -> list[Times]:
    """Plays of a step like the program itself on ranks that computed ``compute`` seconds and a delay of their own."""
    delays = machine.jitter.delays(steps, program.place.size)
    return [play(program, machine, np.maximum(0.0, compute + one)) for one in delays]


def overlap(compute: float, exchange: float, local: float) -> float:
    """A step whose exchange goes on beside the backward pass: the device is never idle, or the exchange never is."""
    return max(compute + local, FORWARD * compute + exchange)


def scaling(model: Model, machine: Machine, ranks: Sequence[int], whats: Sequence[str], compute: float,
            algorithm: str = "auto", steps: int = JITTERED_STEPS,
            progress: Progress = silent, play: Player = replay) -> list[Prediction]:
    """A prediction of everything in ``whats`` on every number of ranks; ``play`` may be an ``on_simgrid.Platform``."""
    found: list[Prediction] = []
    for size in ranks:
        for what in whats:
            def say(text: str, title: str = f"{what} on {count(size, 'rank')}") -> None:
                progress(f"{title}: {text}", len(found) / (len(ranks) * len(whats)))

            program = program_of(what, model, machine.place(size), algorithm, say)
            found.append(predict(program, machine, compute, steps, partial(play, say=say)))
    return found

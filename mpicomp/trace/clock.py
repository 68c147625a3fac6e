"""Offsets between the clocks of ranks, and their uncertainty.

CLOCK_MONOTONIC of two hosts differs by the hosts' boot times and drifts by some parts per million. A ping-pong
bounds the difference: if the reference answers ``t`` between my ``before`` and ``after``, its clock is ahead by
``t - (before + after) / 2``, wrong by at most half the round trip. The shortest of several round trips is kept.
Ranks under one kernel read the same clock: there the difference is exactly zero, and no measurement beats that.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from .tables import Table

if TYPE_CHECKING:
    from ..comm.comm import Comm

REFERENCE = 0
_ROUNDS = 16
_TAG = 31_415  # below 32767, the smallest upper bound that MPI allows


class Comparison(TypedDict):
    """One comparison with the reference rank's clock, ns."""

    t_local: int
    offset: int
    rtt: int


def measure(comm: Comm) -> Comparison:
    """Compare this rank's clock with the reference rank's. Collective; ranks are served one after the other.

    Cost: 16 round trips per rank, one rank at a time.
    """
    best: Comparison = {"t_local": monotonic_ns(), "offset": 0, "rtt": 0}
    if comm.rank == REFERENCE:
        for rank in range(comm.size):
            if rank != REFERENCE:
                _answer(comm, rank)
    else:
        best = min((_ask(comm) for _ in range(_ROUNDS)), key=lambda sample: sample["rtt"])
    return best


def _answer(comm: Comm, rank: int) -> None:
    ball = np.zeros(1, np.int64)
    for _ in range(_ROUNDS):
        comm.Recv(ball, source=rank, tag=_TAG)
        ball[0] = monotonic_ns()
        comm.Send(ball, dest=rank, tag=_TAG)


def _ask(comm: Comm) -> Comparison:
    ball = np.zeros(1, np.int64)
    before = monotonic_ns()
    comm.Send(ball, dest=REFERENCE, tag=_TAG)
    comm.Recv(ball, source=REFERENCE, tag=_TAG)
    after = monotonic_ns()
    middle = (before + after) // 2
    return {"t_local": middle, "offset": int(ball[0]) - middle, "rtt": after - before}


def identity() -> str:
    """Name of the clock that this process reads: equal on two ranks exactly if they read the same one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""  # not Linux: never equal, so the measurement is used


def corrected(t: np.ndarray, samples: Table) -> np.ndarray:
    """Times on the reference clock: ``t`` plus the offset interpolated between the comparisons of its rank."""
    if not len(samples["t_local"]) or samples["shared"].all():
        return t
    order = np.argsort(samples["t_local"])
    origin = samples["t_local"][order[0]]  # int64 ns exceed the 53 bits of a float: interpolate small differences
    base = samples["offset"][order[0]]
    shift = np.interp(t - origin, samples["t_local"][order] - origin, samples["offset"][order] - base)
    return t + base + np.rint(shift).astype(np.int64)


def uncertainty(samples: Table) -> int:
    """Half the longest of the kept round trips (ns); 0 if all ranks read one clock."""
    foreign = samples["rtt"][samples["shared"] == 0]
    return int(foreign.max()) // 2 if len(foreign) else 0

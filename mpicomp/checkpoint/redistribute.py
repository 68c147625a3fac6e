"""Redistribution of a reducer's state to another number of ranks or workers.

Parts of a scheme declare the rules of their entries in ``redistribution`` (name -> rule); the default follows the kind:

=======  ==========================================================================================
add      error memories and velocities: a worker keeps its own; of fewer workers each takes the sum of a run of
         consecutive old ones; additional workers begin at zero. So the sum over all workers is kept (to rounding,
         if memories are added).
same     state common to all ranks: thresholds, factors, schedules, measures, the velocity of dense arrays
cut      a vector that ranks own pieces of (1-bit SGD's second memory) is cut anew
anew     depends on the number of ranks and is estimated again in the next step
stay     cannot leave its worker: refused if the number of workers changes
=======  ==========================================================================================

A mean over w workers takes 1/w of the memories. With the linear scaling rule (learning rate as w) keeping the sum
keeps the total update; at a constant learning rate the update is w_old/w_new times as large.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from .._util.partition import partition
from ..errors import InvalidArgument
from ..reducer.saved_state import check_whole
from ..schemes.exchanges.pieces import NOTHING
from ..schemes.registry import Scheme

Entries: TypeAlias = dict[str, Any]  # a reducer's state: arrays and plain values
DEFAULT = {"memory": "add", "dense": "same", "exchange": "same", "schedule": "same", "measures": "same"}


def redistribute(old: Callable[[int], Entries], had: Sequence[int], now: Sequence[int], rank: int) -> Entries:
    """The state for ``rank`` to load.

    Parameters
    ----------
    old : callable
        The saved state of an old rank, in the form of ``Reducer.state_dict``.
    had, now : sequence of int
        Workers on each rank, of the job that saved and of this one.

    Raises
    ------
    InvalidArgument
        A state cannot be redistributed, or an old rank's lacks a memory.
    """
    scheme = Scheme.parse(old(0)["scheme"])
    if "slice" in old(0):
        raise InvalidArgument(f"the error memories of slices, which {scheme} keeps on several nodes, cannot be given "
                              f"to other ranks: resume on {len(had)} ranks with the nodes and workers that saved them")

    def whole(other: int) -> Entries:
        check_whole(state := old(other), scheme, had[other])
        return state

    first = whole(0)
    rules = _rules(first["scheme"])
    state = {"scheme": first["scheme"], "step": first["step"], "workers": now[rank], "rank": rank, "ranks": len(now)}
    state |= _memories(whole, had, now, rank, rules)
    for name, value in first.items():
        kind, _, rest = name.partition("/")
        if kind in DEFAULT and kind != "memory" and rules.get((kind, rest), DEFAULT[kind]) == "same":
            state[name] = value
    if ("exchange", "start") in rules and "exchange/start" in first:
        state |= _piece(whole, len(had), len(now), rank)
    return state


def estimated_anew(scheme: str) -> list[str]:
    """Names of the entries of a scheme's state that are lost."""
    return [name for (_, name), rule in _rules(scheme).items() if rule == "anew"]


def _rules(scheme: str) -> dict[tuple[str, str], str]:
    parts = Scheme.parse(scheme).parts(1)
    return {
        (kind, name): rule
        for kind, part in (("memory", parts.memories[0]), ("exchange", parts.exchange), ("schedule", parts.schedule))
        for name, rule in part.redistribution
    }


def sources(had: int, now: int, worker: int) -> range:
    """The old workers, of ``had``, whose state a worker of ``now`` takes over."""
    if now >= had:
        return range(worker, min(worker + 1, had))
    counts, displs = partition(had, now)
    return range(displs[worker], displs[worker] + counts[worker])


def _memories(old: Callable[[int], Entries], had: Sequence[int], now: Sequence[int], rank: int,
              rules: dict[tuple[str, str], str]) -> Entries:
    ends, total = list(accumulate(had)), (sum(had), sum(now))
    state: Entries = {}
    for local in range(now[rank]):
        taken: Entries = {}
        for worker in sources(*total, sum(now[:rank]) + local):
            owner = bisect_right(ends, worker)
            prefix = f"memory/{worker - (ends[owner] - had[owner])}/"
            entries = {name[len(prefix):]: value for name, value in old(owner).items() if name.startswith(prefix)}
            for name, value in entries.items():
                if rules.get(("memory", name)) == "stay" and total[0] != total[1]:
                    raise InvalidArgument(f"the {name} of a worker cannot be given to others: resume with {total[0]} "
                                          f"workers, got {total[1]}")
                taken[name] = taken[name] + value if name in taken else value
        if not taken:  # by a new worker
            taken = {name[len("memory/0/"):]: np.zeros_like(value)
                     for name, value in old(0).items() if name.startswith("memory/0/")}
        state |= {f"memory/{local}/{name}": value for name, value in taken.items()}
    return state


def _piece(old: Callable[[int], Entries], had: int, now: int, rank: int) -> Entries:
    """This rank's piece of a vector that the old ranks owned pieces of."""
    if int(old(0)["exchange/start"]) == NOTHING:  # no step has been sent yet, on any rank
        return {name: old(0)[name] for name in ("exchange/residual", "exchange/start")}
    n = sum(old(other)["exchange/residual"].size for other in range(had))
    counts, displs = partition(n, now)
    start, stop = displs[rank], displs[rank] + counts[rank]
    parts = [np.empty(0, old(0)["exchange/residual"].dtype)]
    for other in range(had):
        piece, at = old(other)["exchange/residual"], int(old(other)["exchange/start"])
        parts.append(piece[max(0, start - at) : max(0, stop - at)])
    return {"exchange/residual": np.concatenate(parts), "exchange/start": np.array(start)}

"""Redistribution of a reducer's state to other ranks, workers or nodes.

Parts of a scheme declare the rules of their entries in ``redistribution`` (name -> rule); the default follows the kind:

=======  ==========================================================================================
add      error memories and velocities: a worker keeps its own; of fewer workers each takes the sum of a run of
         consecutive old ones; additional workers begin at zero. So the sum over all workers is kept (to rounding,
         if memories are added).
same     state common to all ranks: thresholds, factors, schedules, measures, the velocity of dense arrays
cut      a vector that ranks own pieces of (1-bit SGD's second memory) is cut anew
anew     depends on the number of ranks and is estimated again in the next step
stay     cannot leave its worker, or its rank in exchange and schedule: refused if their number changes
=======  ==========================================================================================

Where ranks keep slices, the nodes are the workers. A node's memory counts for all workers on the node, so the sum is
kept here, too. The state of exchange and schedule is that of a slice: estimated anew if slices change.

A mean over w workers takes 1/w of the memories. With the linear scaling rule (learning rate as w) keeping the sum
keeps the total update; at a constant learning rate the update is w_old/w_new times as large.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from .._util.partition import partition
from .._util.plurals import count
from ..errors import InvalidArgument
from ..reducer.saved_state import check_whole
from ..schemes.exchanges.pieces import NOTHING
from ..schemes.registry import Scheme

Entries: TypeAlias = dict[str, Any]  # a reducer's state: arrays and plain values
DEFAULT = {"memory": "add", "dense": "same", "exchange": "same", "schedule": "same", "measures": "same"}
OF_A_SLICE = ("exchange", "schedule")  # kinds of entries that differ between slices


@dataclass(frozen=True)
class Keepers:
    """The ranks of a job as keepers of error memories: each those of its workers, or a slice of its node's.

    Attributes
    ----------
    workers : list of int
        On each rank.
    places : list of [int, int]
        Node and slice of each rank; empty if ranks keep whole vectors.
    """

    workers: list[int]
    places: list[list[int]] = field(default_factory=list)

    def __str__(self) -> str:
        nodes = f" in slices of {count(self.memories, 'node')}" if self.places else ""
        return f"{count(sum(self.workers), 'worker')} on {count(len(self.workers), 'rank')}{nodes}"

    @property
    def memories(self) -> int:
        """The workers of the scheme."""
        return 1 + max(node for node, _ in self.places) if self.places else sum(self.workers)

    @property
    def slices(self) -> int:
        """In how many slices ranks keep a vector: as many as the smallest node has ranks; 0 for whole vectors."""
        return min(Counter(node for node, _ in self.places).values(), default=0)

    def of(self, rank: int) -> range:
        """The memories that a rank keeps, or keeps a slice of."""
        if self.places:
            return range(self.places[rank][0], self.places[rank][0] + 1)
        first = sum(self.workers[:rank])
        return range(first, first + self.workers[rank])

    def parts(self, memory: int) -> list[tuple[int, int]]:
        """The ranks that keep a memory, in the order of its elements, and its number on each of them."""
        if self.places:
            return [(rank, 0) for rank in self.in_order() if self.places[rank][0] == memory]
        ends = list(accumulate(self.workers))
        owner = bisect_right(ends, memory)
        return [(owner, memory - (ends[owner] - self.workers[owner]))]

    def in_order(self) -> list[int]:
        """The ranks in the order of the pieces that they own of one vector: slice by slice, there by node."""
        places = self.places or [[rank, 0] for rank in range(len(self.workers))]
        return sorted(range(len(places)), key=lambda rank: places[rank][::-1])


def whole(vector: np.ndarray) -> slice:
    """All elements of a vector."""
    return slice(0, vector.size)


def redistribute(old: Callable[[int], Entries], had: Keepers, now: Keepers, rank: int, place: Mapping[str, int],
                 own: Callable[[np.ndarray], slice] = whole) -> Entries:
    """The state for ``rank`` to load.

    Parameters
    ----------
    old : callable
        The saved state of an old rank, in the form of ``Reducer.state_dict``.
    had, now : Keepers
        Of the job that saved and of this one.
    place : mapping of str to int
        ``Reducer.place``.
    own : callable
        ``Reducer.kept``: the elements that this rank keeps of a vector.

    Raises
    ------
    InvalidArgument
        A state cannot be redistributed, or an old rank's lacks a memory.
    """
    scheme = Scheme.parse(old(0)["scheme"])

    def checked(other: int) -> Entries:
        check_whole(state := old(other), scheme, len(had.of(other)))
        return state

    first = checked(0)
    rules = scheme.parts(1).redistribution
    state = {"scheme": first["scheme"], "step": first["step"], "workers": now.workers[rank],
             "arrays": first.get("arrays"), **place}
    state |= _memories(checked, had, now, rank, rules, own) | _common(checked, had, now, rank, rules)
    if ("exchange", "start") in rules and "exchange/start" in first:
        state |= _piece(checked, had, now, rank, own)
    return state


def estimated_anew(scheme: str) -> list[str]:
    """Names of the entries of a scheme's state that are lost."""
    return [name for (_, name), rule in Scheme.parse(scheme).parts(1).redistribution.items() if rule == "anew"]


def sources(had: int, now: int, worker: int) -> range:
    """The old workers, of ``had``, whose state a worker of ``now`` takes over."""
    if now >= had:
        return range(worker, min(worker + 1, had))
    counts, displs = partition(had, now)
    return range(displs[worker], displs[worker] + counts[worker])


def _memories(old: Callable[[int], Entries], had: Keepers, now: Keepers, rank: int,
              rules: dict[tuple[str, str], str], own: Callable[[np.ndarray], slice]) -> Entries:
    total = (had.memories, now.memories)
    # Of the workers of the job that a memory counts for: before against now.
    factor = sum(had.workers) * now.memories / (had.memories * sum(now.workers))
    state: Entries = {}
    for local, memory in enumerate(now.of(rank)):
        taken: Entries = {}
        for source in sources(*total, memory):
            for name, value in _memory(old, had, source).items():
                stays = rules.get(("memory", name)) == "stay"
                if stays and total[0] != total[1]:
                    raise InvalidArgument(f"the {name} of a worker cannot be given to others: resume with {total[0]} "
                                          f"workers, got {total[1]}")
                part = value[own(value)]
                part = part if stays or factor == 1 else part * value.dtype.type(factor)
                taken[name] = taken[name] + part if name in taken else part
        if not taken:  # by a new worker
            taken = {name: np.zeros_like(value[own(value)]) for name, value in _memory(old, had, 0).items()}
        state |= {f"memory/{local}/{name}": value for name, value in taken.items()}
    return state


def _memory(old: Callable[[int], Entries], had: Keepers, number: int) -> Entries:
    """The whole vectors of one memory."""
    found: dict[str, list[np.ndarray]] = {}
    for rank, local in had.parts(number):
        prefix = f"memory/{local}/"
        for name, value in old(rank).items():
            if name.startswith(prefix):
                found.setdefault(name[len(prefix):], []).append(value)
    return {name: values[0] if len(values) == 1 else np.concatenate(values) for name, values in found.items()}


def _common(old: Callable[[int], Entries], had: Keepers, now: Keepers, rank: int, rules: dict[tuple[str, str], str]
            ) -> Entries:
    """The entries common to all ranks, or to all that keep the same slice."""
    alike = [other for other, (_, piece) in enumerate(had.places)
             if had.slices == now.slices and piece == now.places[rank][1]]
    left_out = ("memory", *OF_A_SLICE) if (had.slices or now.slices) and not alike else ("memory",)
    state: Entries = {}
    for name, value in old(alike[0] if alike else 0).items():
        kind, _, rest = name.partition("/")
        rule = rules.get((kind, rest), DEFAULT.get(kind))
        if kind in OF_A_SLICE and rule == "stay":
            raise InvalidArgument(f"{name} is a rank's own and cannot be given to others: resume with {had}, got {now}")
        if kind not in left_out and rule == "same":
            state[name] = value
    return state


def _piece(old: Callable[[int], Entries], had: Keepers, now: Keepers, rank: int,
           own: Callable[[np.ndarray], slice]) -> Entries:
    """This rank's piece of a vector that the old ranks owned pieces of."""
    names = ("exchange/residual", "exchange/start")
    if int(old(0)[names[1]]) == NOTHING:  # no step has been sent yet, on any rank
        return {name: old(0)[name] for name in names}
    sizes = {other: old(other)[names[0]].size for other in had.in_order()}
    dtype = old(0)[names[0]].dtype
    kept = own(np.empty(sum(sizes.values()), dtype))
    owners, owner = (now.memories, now.places[rank][0]) if now.places else (len(now.workers), rank)
    counts, displs = partition(kept.stop - kept.start, owners)
    start = kept.start + displs[owner]
    stop, at, parts = start + counts[owner], 0, [np.empty(0, dtype)]
    for other, size in sizes.items():
        if start < at + size and at < stop:
            parts.append(old(other)[names[0]][max(0, start - at) : stop - at])
        at += size
    return {names[0]: np.concatenate(parts), names[1]: np.array(displs[owner])}

"""When messages leave and arrive: links that serve one message after the other, for many messages at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .machine import LONG, Machine


class Route(NamedTuple):
    """Which of some messages cross between nodes, and by which nodes' links."""

    outside: np.ndarray  # places of messages between nodes
    inside: np.ndarray  # and of those within one
    leaves: np.ndarray  # the node each message between nodes leaves
    enters: np.ndarray  # and the one it reaches
    single: bool  # no two of them share a link in one direction


class Network:
    """The links of all nodes, with the time from which each is free.

    What stays on a node takes none: its receiver's own core copies it (``replay``).
    """

    def __init__(self, machine: Machine, nodes: int) -> None:
        self.between, self.within = machine.between, machine.within
        self._out = np.full(nodes, -np.inf)
        self._in = np.full(nodes, -np.inf)

    def send(self, route: Route, nbytes: np.ndarray, ready: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When each message, given to the network at ``ready``, has left its sender, and when it has arrived."""
        left, arrived = np.empty(len(ready)), np.empty(len(ready))
        if len(route.inside):
            at = route.inside
            left[at] = ready[at]
            arrived[at] = ready[at] + self.within.latency + self.within.handshake * (nbytes[at] >= LONG)
        if len(route.outside):
            at, wire = route.outside, self.between
            seconds, rest = nbytes[at] / wire.bandwidth, wire.burst / wire.bandwidth
            agreed = ready[at] + wire.handshake * (nbytes[at] >= LONG)
            left[at] = serve(self._out, route.leaves, agreed, seconds, rest, route.single)
            # Cut-through: the first byte is on its way while the last ones wait to leave.
            first = left[at] + wire.latency - seconds
            arrived[at] = np.maximum(serve(self._in, route.enters, first, seconds, rest, route.single),
                                     left[at] + wire.latency)
        return left, arrived


def serve(free: np.ndarray, where: np.ndarray, ready: np.ndarray, seconds: np.ndarray, rest: float,
          single: bool = False) -> np.ndarray:
    """When resources ``where`` are through with requests that come at ``ready`` and take ``seconds`` each.

    Each serves in the order of ``ready``; ``free`` is updated. One that has rested makes up for up to ``rest`` seconds.
    """
    if single:
        end = free[where] = np.maximum(free[where], ready - rest) + seconds
        return np.maximum(end, ready)
    order = np.lexsort((ready, where))
    group = where[order]
    numbers = np.arange(len(group))
    first = np.concatenate([[True], group[1:] != group[:-1]])
    turn = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    end = np.empty(len(where))
    for number in range(turn.max() + 1):  # the first request of every resource, then the second, ...
        at = order[turn == number]
        end[at] = free[where[at]] = np.maximum(free[where[at]], ready[at] - rest) + seconds[at]
    return np.maximum(end, ready)

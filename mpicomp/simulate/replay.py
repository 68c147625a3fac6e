"""Plays a program on a machine: when every rank is through, and how long each of them worked itself.

Each rank follows its own tape; a message leaves when the links let it (``Network``), a wait ends when it has arrived.
All ranks that can do something do their next event together, as vectors. Where nodes have several ranks, which share a
link, only those go on whose time has come, up to a latency; elsewhere messages to one node may be served in the
order in which they are looked at, which differs from that of their times by little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgument
from .machine import Machine
from .network import Network, Route
from .program import Program, Say, silent
from .tape import DRAIN, POOL, RECEIVED, SEND, SENT, SYNC, WORK, XOR

GONE = np.empty(0)  # in the place of times that are not needed any more: the memory of many ranks

NOTHING = -1
SAID = 1 << 12  # events, or rounds of them, after which it says how far it is
MOST_BYTES = 8 << 30
PEER_BYTES, MESSAGE_BYTES = 64, 16  # of a rank that is played, for each it sends to and each message on its way


@dataclass(frozen=True)
class Times:
    """Seconds of every rank, from the start of the exchange."""

    finish: np.ndarray
    local: np.ndarray  # of them in its own memory: copies, additions, compression


class Clocks:
    """The ranks' times, and the work they have in store for while they wait."""

    def __init__(self, machine: Machine, start: np.ndarray) -> None:
        self.now, self.local = start.astype(float), np.zeros(len(start))
        self._pool, self._owed = np.zeros((2, len(start)))
        self._rates, self._within, self._between = machine.rates(), machine.within, machine.between

    def work(self, at: np.ndarray | slice, kernel: np.ndarray | int, elements: np.ndarray | int) -> None:
        seconds = self._rates[kernel] * elements
        self.now[at] += seconds
        self.local[at] += seconds

    def post(self, at: np.ndarray | slice, outside: np.ndarray, nbytes: np.ndarray | int) -> None:
        """Count the sender's cost of a message; ``outside``: between nodes."""
        self.now[at] += np.where(outside, self._between.overhead, self._within.overhead)
        carrying = np.where(outside, nbytes * self._between.processor / 2, 0.0)
        self._owed[at] += carrying
        self.local[at] += carrying

    def take(self, at: np.ndarray | slice, outside: np.ndarray, nbytes: np.ndarray | int) -> None:
        """Count the receiver's cost: the network delivers messages between nodes, its own core copies those within."""
        copying = np.where(outside, 0, nbytes / self._within.bandwidth)
        self.post(at, outside, nbytes)
        self.now[at] += copying
        self.local[at] += copying

    def store(self, at: np.ndarray | slice, kernel: np.ndarray | int, elements: np.ndarray | int) -> None:
        self._pool[at] += self._rates[kernel] * elements

    def drain(self, at: np.ndarray | slice) -> None:
        self.now[at] += self._pool[at]
        self.local[at] += self._pool[at]
        self._pool[at] = 0

    def finish(self) -> np.ndarray:
        """Return the times at which the ranks are through, with the work for messages that no wait was left for."""
        return self.now + self._owed

    def wait(self, at: np.ndarray | slice, until: np.ndarray, idle: np.ndarray | int = 0) -> None:
        gap = np.maximum(until - self.now[at], 0)
        carried = np.minimum(gap, self._owed[at])
        self._owed[at] -= carried
        done = np.minimum(gap - carried, self._pool[at]) * (1 - idle)
        self._pool[at] -= done
        self.local[at] += done
        self.now[at] += gap


def replay(program: Program, machine: Machine, start: np.ndarray | None = None, say: Say = silent) -> Times:
    """Play ``program``; rank r begins at ``start[r]`` (all together at 0 without)."""
    size = program.place.size
    start = np.zeros(size) if start is None else np.asarray(start, float)
    if start.shape != (size,) or not np.isfinite(start).all():
        raise InvalidArgument(f"start must be {size} finite numbers, a time for each rank, got {start}")
    if program.uniform:
        return _as_one(program, machine, start, np.ptp(start) == 0, say)
    return _Each(program, machine, start).run(say)


# ---- all ranks do the same

def _as_one(program: Program, machine: Machine, start: np.ndarray, together: bool, say: Say) -> Times:
    """Event by event, all ranks at once. Where they also begin together, those of one node stand for all others."""
    size, per_node = program.place.size, program.place.ranks_per_node
    lanes = per_node if together and size % per_node == 0 else size
    _refuse_too_much(program, lanes)
    clocks, network = Clocks(machine, start[:lanes]), Network(machine, -(-lanes // per_node))
    routes: dict[int, tuple[Route, np.ndarray, np.ndarray]] = {}
    left: dict[int, np.ndarray] = {}
    on_the_way: dict[tuple[int, int], tuple[np.ndarray, int]] = {}
    everyone = slice(None)
    for number, (kind, who, which, amount) in enumerate(program.tables[0].tolist()):
        if number % SAID == 0:
            say(f"playing event {number} of {len(program.tables[0])}")
        if kind == WORK:
            clocks.work(everyone, who, amount)
        elif kind in (SEND, SEND + XOR):
            peer = who + (kind & XOR) * size
            if peer not in routes:
                routes[peer] = _route_of(program, who, kind == SEND + XOR, lanes)
            route, outside, sender = routes[peer]
            clocks.post(everyone, outside, amount)
            out, arrived = network.send(route, np.full(lanes, float(amount)), clocks.now)
            left[len(left)] = out
            on_the_way[peer, which] = arrived[sender], amount
        elif kind == SENT:
            clocks.wait(everyone, left[which], amount)
            left[which] = GONE
        elif kind in (RECEIVED, RECEIVED + XOR):
            back = (size - who) % size if kind == RECEIVED else who + XOR * size
            arrived, nbytes = on_the_way.pop((back, which))
            clocks.wait(everyone, arrived, amount)
            _, outside, sender = routes[back]
            clocks.take(everyone, outside[sender], nbytes)
        elif kind == POOL:
            clocks.store(everyone, who, amount)
        elif kind == DRAIN:
            clocks.drain(everyone)
        elif kind == SYNC:
            nodes = np.arange(lanes) // per_node
            latest = np.full(nodes[-1] + 1, -np.inf)
            np.maximum.at(latest, nodes, clocks.now)
            clocks.wait(everyone, latest[nodes])
    times = -(-size // lanes)
    return Times(np.tile(clocks.finish(), times)[:size], np.tile(clocks.local, times)[:size])


def _refuse_too_much(program: Program, lanes: int) -> None:
    """Refuse what would not fit into memory: messages to very many others of ranks that are all played."""
    kinds, who = program.tables[0][:, 0] & ~XOR, program.tables[0][:, 1]
    on_their_way = np.cumsum((kinds == SEND).astype(int) - (kinds == RECEIVED)).max(initial=0)
    nbytes = lanes * (PEER_BYTES * len(np.unique(who[kinds == SEND])) + MESSAGE_BYTES * int(on_their_way))
    if nbytes > MOST_BYTES:
        size = program.place.size
        raise InvalidArgument(
            f"each of {size} ranks, which send to so many others, would have to be played: about {nbytes >> 30} GiB. "
            f"Without jitter and on full nodes of 1, 2, 4, 8, ... ranks those of one node stand for all; else take at "
            f"most about {int(size * (MOST_BYTES / nbytes) ** 0.5)} ranks")


def _route_of(program: Program, peer: int, xor: bool, lanes: int) -> tuple[Route, np.ndarray, np.ndarray]:
    """Return the route of messages to a peer, which of them leave the node, and each lane's sender."""
    source, size, per_node = np.arange(lanes), program.place.size, program.place.ranks_per_node
    target = source ^ peer if xor else (source + peer) % size
    outside = target // per_node != source // per_node
    target %= lanes
    leaves, enters = source[outside] // per_node, target[outside] // per_node
    single = len(np.unique(leaves)) == len(leaves) and len(np.unique(enters)) == len(enters)
    route = Route(np.flatnonzero(outside), np.flatnonzero(~outside), leaves, enters, single)
    return route, outside, np.argsort(target)


# ---- every rank for itself

class _Each:
    """One play of a program in which ranks do different things."""

    def __init__(self, program: Program, machine: Machine, start: np.ndarray) -> None:
        self.events = program.linked
        size, per_node = program.place.size, program.place.ranks_per_node
        self.node = np.arange(size) // per_node
        self.on_node = np.bincount(self.node)
        self.clocks = Clocks(machine, start)
        self.network = Network(machine, len(self.on_node))
        self.next = np.concatenate([[0], self.events.ends[:-1]])
        self.left = np.empty(self.events.messages)
        self.arrived = np.full(self.events.messages, np.nan)
        self.waits_for = np.full(size, NOTHING)
        self.synced, self.latest = np.zeros(len(self.on_node), int), np.full(len(self.on_node), -np.inf)
        self.window = machine.between.latency if per_node > 1 else np.inf

    def run(self, say: Say) -> Times:
        rounds, begun, active = 0, self.next.copy(), np.flatnonzero(self.next < self.events.ends)
        while len(active):
            if rounds % SAID == 0:
                say(f"playing, {np.sum(self.next - begun) / self.events.ends[-1]:.0%} of the events done")
            rounds += 1
            here, later = active, active[:0]
            if self.window < np.inf:
                now = self.clocks.now[active]
                due = now <= now.min() + self.window
                here, later = active[due], active[~due]
            kinds = self.events.kind[self.next[here]]
            on = [getattr(self, name)(here[kinds == kind]) for kind, name in VERBS.items() if np.any(kinds == kind)]
            active = np.concatenate([later, *on])
            active = active[self.next[active] < self.events.ends[active]]
        stuck = np.flatnonzero(self.next < self.events.ends)
        assert not len(stuck), f"the program never ends on ranks {stuck[:8]}"
        return Times(self.clocks.finish(), self.clocks.local)

    def _work(self, ranks: np.ndarray) -> np.ndarray:
        at = self.next[ranks]
        self.clocks.work(ranks, self.events.who[at], self.events.amount[at])
        return self._done(ranks)

    def _pool(self, ranks: np.ndarray) -> np.ndarray:
        at = self.next[ranks]
        self.clocks.store(ranks, self.events.who[at], self.events.amount[at])
        return self._done(ranks)

    def _drain(self, ranks: np.ndarray) -> np.ndarray:
        self.clocks.drain(ranks)
        return self._done(ranks)

    def _send(self, ranks: np.ndarray) -> np.ndarray:
        ranks = np.sort(ranks)  # of messages at one time on one link the lowest rank's goes first
        at = self.next[ranks]
        target, numbers = self.events.who[at], self.events.number[at]
        outside = self.node[ranks] != self.node[target]
        route = Route(np.flatnonzero(outside), np.flatnonzero(~outside), self.node[ranks[outside]],
                      self.node[target[outside]], len(ranks) == 1)
        nbytes = self.events.nbytes[numbers]
        self.clocks.post(ranks, outside, nbytes)
        self.left[numbers], self.arrived[numbers] = self.network.send(route, nbytes, self.clocks.now[ranks])
        woken = target[self.waits_for[target] == numbers]
        self.waits_for[woken] = NOTHING
        return np.concatenate([self._done(ranks), woken])

    def _sent(self, ranks: np.ndarray) -> np.ndarray:
        at = self.next[ranks]
        self.clocks.wait(ranks, self.left[self.events.number[at]], self.events.amount[at])
        return self._done(ranks)

    def _received(self, ranks: np.ndarray) -> np.ndarray:
        """Take messages that were sent; the sender of any other one wakes its receiver."""
        at = self.next[ranks]
        numbers = self.events.number[at]
        arrived = self.arrived[numbers]
        blocked = np.isnan(arrived)
        self.waits_for[ranks[blocked]] = numbers[blocked]
        ranks, here = ranks[~blocked], at[~blocked]
        self.clocks.wait(ranks, arrived[~blocked], self.events.amount[here])
        outside = self.node[self.events.who[here]] != self.node[ranks]
        self.clocks.take(ranks, outside, self.events.nbytes[numbers[~blocked]])
        return self._done(ranks)

    def _sync(self, ranks: np.ndarray) -> np.ndarray:
        """The last rank of a node lets all of them go on."""
        np.add.at(self.synced, self.node[ranks], 1)
        np.maximum.at(self.latest, self.node[ranks], self.clocks.now[ranks])
        full = self.synced == self.on_node
        together = np.flatnonzero(full[self.node])
        self.clocks.wait(together, self.latest[self.node[together]])
        self.synced[full], self.latest[full] = 0, -np.inf
        return self._done(together)

    def _done(self, ranks: np.ndarray) -> np.ndarray:
        self.next[ranks] += 1
        return ranks


# Sends come first: a wait in the same round may be for one of them.
VERBS = {SEND: "_send", WORK: "_work", POOL: "_pool", DRAIN: "_drain", SENT: "_sent", RECEIVED: "_received",
         SYNC: "_sync"}

"""Programs: what every rank of a job does in one all-reduce or one step of a scheme, recorded from the real code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from .. import allreduce
from .._util.plurals import count
from ..errors import InvalidArgument
from ..schemes.registry import Scheme
from . import bounded, roles
from .comm import RecordingComm, Script
from .ghost import Ghost, Unknown, as_array
from .ghost_ops import GhostOps
from .link import Place, RecordingLink
from .models import Model
from .steps import FLOAT, MOST_MORE, Rehearsal, assumed, even_pieces, evened, kinds
from .tape import RECEIVED, SEND, SENT, XOR, Tape

FEW = 64  # ranks, up to which every one is recorded in any case
MOST_EVENTS = 60_000_000  # 32 bytes each, and as much again while they are put in order
PADDING = 0.01  # of a vector, at most, for the sake of equal blocks
ROUGHLY = 1.0  # of an all-reduce of a scheme on very many ranks, at most: else each would have to be recorded

Run = Callable[[Place, Tape], None]
Say = Callable[[str], None]  # reports progress


def silent(text: str) -> None:
    """Report nothing."""


@dataclass
class Program:
    """The events of all ranks.

    Attributes
    ----------
    tables : list of array
        Events of each rank, see ``Tape``; where all ranks do the same, one table alone, with peers counted from the
        rank on, or, in events with XOR, as the bits in which the two ranks' numbers differ.
    bytes_sent, messages, bytes_shared : array
        Of each table's rank; the last, what it wrote for others into memory that they share.
    how : str
        Which ranks were recorded.
    share : float
        Of all steps, those that are like this one; ``mixed`` are the programs of the others.
    """

    place: Place
    tables: list[np.ndarray]
    bytes_sent: np.ndarray
    messages: np.ndarray
    bytes_shared: np.ndarray
    how: str
    name: str = ""
    notes: list[str] = field(default_factory=list)
    schedules: set[str] = field(default_factory=set)  # the dense ones that run
    share: float = 1.0
    mixed: list[Program] = field(default_factory=list)

    @property
    def uniform(self) -> bool:
        return len(self.tables) == 1 < self.place.size

    @cached_property
    def linked(self) -> Linked:
        return Linked(self.tables)


class Linked:
    """All events one after the other, every wait with the number of its message among all messages."""

    def __init__(self, tables: list[np.ndarray]) -> None:
        size = len(tables)
        lengths = np.array([len(table) for table in tables])
        self.ends = np.cumsum(lengths)
        events = np.concatenate(tables)
        self.kind = events[:, 0].astype(np.int8)
        self.who, self.amount = events[:, 1].astype(np.int32), events[:, 3].copy()
        which, rank = events[:, 2].copy(), np.repeat(np.arange(size), lengths)
        del events
        sends, waits = np.flatnonzero(self.kind == SEND), np.flatnonzero(self.kind == RECEIVED)
        self.messages, self.nbytes = len(sends), self.amount[sends].astype(float)  # of each message
        self.number = which  # of the message, among all
        firsts = np.searchsorted(rank[sends], np.arange(size))
        leaves = self.kind == SENT
        self.number[leaves] += firsts[rank[leaves]]
        span = 1 + max((int(which[part].max()) for part in (sends, waits) if len(part)), default=0)
        sent = (rank[sends] * size + self.who[sends]) * span + which[sends]
        awaited = (self.who[waits].astype(np.int64) * size + rank[waits]) * span + which[waits]
        order = np.argsort(sent)
        places = np.searchsorted(sent[order], awaited)
        assert len(sends) == len(waits) and np.array_equal(sent[order][places], awaited), "a message has no partner"
        self.number[sends] = np.arange(len(sends))
        self.number[waits] = order[places]

def program_of(what: str, model: Model, place: Place, algorithm: str = "auto", say: Say = silent) -> Program:
    """The program of an algorithm, of ``ring:ratio=R`` and the like, or of a scheme that adds by ``algorithm``."""
    padded = model.padded(place.size, PADDING) if place.size > FEW else model
    named = what in allreduce.names()
    if bounded.is_name(what):
        program = of_bounded(what, padded.n, place, say=say)
    else:
        program = (of_algorithm(what, padded.n, place, say=say) if named
                   else of_scheme(what, padded, place, algorithm, say))
    if padded is not model:
        program.notes.append(f"{padded.n} elements instead of {model.n}: so all ranks have blocks of one length")
    return program


def of_algorithm(name: str, n: int, place: Place, say: Say = silent) -> Program:
    """The all-reduce of ``n`` elements by a schedule of ``mpicomp.allreduce``, or ``auto``."""
    allreduce.check_name(name)
    script = Script()
    vector = Ghost(GhostOps(lambda kernel, count: None, n), n, FLOAT)
    RecordingComm(script, 0, place.size).allreduce_in_place(as_array(vector), name)

    def run(place: Place, tape: Tape) -> None:
        script.play(_link(place, tape, n))

    program = record(run, place, say)
    program.name, program.notes = name, _notes(script.schedules(_link(place, Tape(), n)), name)
    return program


def simulated(text: str | Scheme) -> Scheme:
    """The scheme; raises InvalidArgument for one that follows the clock."""
    scheme = Scheme.parse(text)
    if scheme.chooses:
        raise InvalidArgument(f"scheme {scheme} chooses while it runs, by measured seconds, so it cannot be simulated: "
                              "simulate its candidates")
    return scheme


def of_bounded(what: str, n: int, place: Place, say: Say = silent) -> Program:
    """The all-reduce of ``n`` elements with an error bound, at the compression ratio in its name."""
    bounded.parts_of(what)

    def run(place: Place, tape: Tape) -> None:
        ops = GhostOps(tape.work, n)
        bounded.play(RecordingLink(tape, place, ops), ops, n, FLOAT, what)

    program = record(run, place, say)
    program.name, program.notes = what, [bounded.ASSUMED]
    return program


def of_scheme(text: str | Scheme, model: Model, place: Place, algorithm: str = "auto", say: Say = silent) -> Program:
    """Steps of a scheme on a model's gradients, one worker a rank: the most frequent kind, the others mixed in.

    Of many ranks, what all but rank 0 do between messages is recorded once, if it is the same on a sample of them.
    """
    scheme = simulated(text)
    allreduce.check_name(algorithm)
    even = scheme
    notes: list[str] = []
    if place.size > FEW:
        even, notes = evened(scheme, model.n, place)
        model, more = even_pieces(scheme, model, place.size)
        notes += more
    rehearsal = Rehearsal(even, model, place, algorithm, FEW)
    try:
        first, *others = (_of_step(rehearsal, number, share, place, say) for number, share in kinds(scheme))
    except Unknown as error:
        raise InvalidArgument(f"{scheme} cannot be simulated: {error}; what parts of your own may use stands in "
                              "docs/simulate.md") from error
    first.name, first.mixed = str(scheme), others
    first.notes = [*_notes({name for one in (first, *others) for name in one.schedules}, algorithm),
                   *assumed(scheme, place), *notes, *first.notes]
    return first


def _of_step(rehearsal: Rehearsal, number: int, share: float, place: Place, say: Say) -> Program:
    """A step of this number."""
    say("own work of rank 0")
    n, first, size, each = rehearsal.layout.total, rehearsal.script(0, number), place.size, rehearsal.each

    @lru_cache(FEW)
    def script_of(group: int) -> Script:
        rank = group * each
        if size > FEW:
            say(f"own work of rank {rank}")
        return rehearsal.script(rank, number, first) if rank else first

    def unlike(groups: Sequence[int]) -> None:
        _refuse_too_many(lambda place, tape: script_of(place.rank // each).play(_link(place, tape, n)), place,
                         [group * each for group in groups])

    groups = size // each
    leader = number % groups  # of schemes with a leader
    of_group, how = roles.scripts(script_of, groups, {0, leader}, unlike) if groups > FEW else (script_of, None)
    notes = [f"own work: recorded on {how}"] if how else []
    if how and all(of_group(group) == first for group in (1, leader, groups - 1)):
        longer, stretched = first.stretched(size, MOST_MORE if size <= roles.MANY else ROUGHLY)
        of_group = lambda group: longer  # noqa: E731
        notes += [f"an all-reduce of {length} elements is taken for one of {more}: so all blocks are of one length"
                  for length, more in stretched.items()]
    program = record(lambda place, tape: of_group(place.rank // each).play(_link(place, tape, n)), place, say)
    program.share, program.schedules = share, first.schedules(_link(place, Tape(), n))
    program.notes += notes
    return program


def _link(place: Place, tape: Tape, n: int) -> RecordingLink:
    return RecordingLink(tape, place, GhostOps(tape.work, n))


def record(run: Run, place: Place, say: Say = silent) -> Program:
    """Record every rank; of more than FEW ranks one that stands for all, if a sample of them is found alike."""
    first, size = _tape(run, place, 0), place.size
    if size > FEW:
        uniform = _uniform(run, place, first, say)
        if uniform:
            table, ranks = uniform
            how = f"{len(ranks)} of {size} ranks, found alike, stand for all"
            return Program(place, [table], *_sent([first]), how)
        _refuse_too_many(run, place, (1, 2, size // 2, size - 1))
    tapes = [first]
    for rank in range(1, size):
        if rank % (size // FEW + 1) == 0:
            say(f"messages of rank {rank}")
        tapes.append(_tape(run, place, rank))
    return Program(place, [tape.table() for tape in tapes], *_sent(tapes), f"all {count(size, 'rank')}")


def _refuse_too_many(run: Run, place: Place, ranks: Sequence[int]) -> None:
    """Refuse ranks that do not all do the same if they have, as some of them tell, too many events."""
    events = place.size * np.mean([len(_tape(run, place, rank).table()) for rank in ranks])
    if events > MOST_EVENTS:
        raise InvalidArgument(
            f"about {events / 1e6:.0f} million events of {place.size} ranks that do not all do the same would be too "
            f"many to record (at most {MOST_EVENTS / 1e6:.0f} million): take fewer ranks, halving_doubling, or a "
            "number of elements (of Ok-Topk: k, too) that is a multiple of the number of ranks"
        )


def _sent(tapes: list[Tape]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sent, messages, shared = zip(*((tape.bytes_sent, tape.messages, tape.bytes_shared) for tape in tapes), strict=True)
    return np.array(sent), np.array(messages), np.array(shared)


def _tape(run: Run, place: Place, rank: int) -> Tape:
    tape = Tape()
    run(replace(place, rank=rank), tape)
    return tape


def _uniform(run: Run, place: Place, first: Tape, say: Say) -> tuple[np.ndarray, list[int]] | None:
    """Events by which every rank of a sample does what rank 0 does, and the sample; None where there are none.

    A peer is counted from the rank on, or as the bits in which the two ranks' numbers differ, event by event; rank 0's
    peers are the same by either count. By bits, all have their peers on the same side of the network only if nodes have
    1, 2, 4, 8, ... ranks; otherwise their clocks drift apart, and links would not serve them in the order of time.
    """
    size, per_node, table = place.size, place.ranks_per_node, first.table().copy()
    by_bits = size & (size - 1) == 0 and (place.nodes == 1 or per_node & (per_node - 1) == 0)
    messages = np.flatnonzero((table[:, 0] == SEND) | (table[:, 0] == RECEIVED))
    peers = table[messages, 1]
    shifts, bits = np.full(len(messages), True), np.full(len(messages), by_bits)
    ranks = roles.sample(size)
    for rank in ranks:
        say(f"messages of rank {rank}")
        other = _tape(run, place, rank).table().copy()
        if len(other) != len(table):
            return None
        theirs = other[messages, 1]
        other[messages, 1] = peers
        shifts &= (theirs - rank) % size == peers
        bits &= theirs ^ rank == peers
        if not np.all(shifts | bits) or not np.array_equal(other, table):
            return None
    table[messages[~shifts], 0] += XOR
    return table, [0, *ranks]


def _notes(choices: set[str], asked: str) -> list[str]:
    notes = []
    if asked == "auto" and choices - {"native"}:
        notes.append(f"auto took {', '.join(sorted(choices))}")
    if "native" in choices:
        notes.append("MPI's own all-reduce is taken for recursive doubling (short vectors) or halving-doubling")
    return notes

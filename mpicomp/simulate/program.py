"""Programs: what every rank of a job does in one all-reduce or one step of a scheme, recorded from the real code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import allreduce
from ..errors import InvalidArgument
from ..pipeline import Pipeline
from ..schemes import Scheme
from ..step import Step
from .comm import RecordingComm, Script
from .ghost import STEP, Ghost, GhostOps, Unknown
from .link import Place, RecordingLink
from .models import Model
from .tape import RECEIVED, SEND, XOR, Tape

FEW = 64  # ranks, up to which every one is recorded in any case
MOST_EVENTS = 60_000_000  # 32 bytes each, and as much again while they are put in order
PADDING = 0.01  # of a vector, at most, for the sake of equal blocks
SAMPLE = 8  # ranks looked at to see whether all are alike
FLOAT = np.dtype(np.float32)
EXCHANGES = ("dense", "leader", "gather", "agreed", "low-rank")
MEMORIES = ("none", "residual", "momentum-corrected")

Run = Callable[[Place, Tape], None]


@dataclass
class Program:
    """The events of all ranks.

    Attributes
    ----------
    tables : list of array
        Events of each rank, see ``Tape``; where all ranks do the same, one table alone, with peers counted from the
        rank on, or, in events with XOR, as the bits in which the two ranks' numbers differ.
    bytes_sent, messages : array
        Of each table's rank.
    how : str
        Which ranks were recorded.
    """

    place: Place
    tables: list[np.ndarray]
    bytes_sent: np.ndarray
    messages: np.ndarray
    how: str
    name: str = ""
    linked: Any = field(default=None, repr=False)  # kept by the replay
    notes: list[str] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        return len(self.tables) == 1 < self.place.size


def program_of(what: str, model: Model, place: Place, algorithm: str = "auto") -> Program:
    """The program of an algorithm or, where the name is none, of a scheme that adds by ``algorithm``."""
    padded = model.padded(place.size, PADDING) if place.size > FEW else model
    named = what in allreduce.names()
    program = of_algorithm(what, padded.n, place) if named else of_scheme(what, padded, place, algorithm)
    if padded is not model:
        program.notes.append(f"{padded.n} elements instead of {model.n}: so all ranks have blocks of one length")
    return program


def of_algorithm(name: str, n: int, place: Place, dtype: Any = FLOAT) -> Program:
    """The all-reduce of ``n`` elements by a schedule of ``mpicomp.allreduce``, or ``auto``."""
    allreduce.check_name(name)
    script = Script()
    vector = Ghost(GhostOps(lambda kernel, count: None, n), n, dtype)
    RecordingComm(script, 0, place.size).allreduce_in_place(vector, name)

    def run(place: Place, tape: Tape) -> None:
        script.play(_link(place, tape, n))

    program = record(run, place)
    program.name, program.notes = name, _notes(script.schedules(_link(place, Tape(), n)), name)
    return program


def of_scheme(text: str | Scheme, model: Model, place: Place, algorithm: str = "auto") -> Program:
    """One step of a scheme on a model's gradients, one worker a rank: the leader, where there is one, is rank 0.

    Of many ranks, what all but rank 0 do between messages is recorded once, if it is the same on a sample of them.
    """
    scheme = Scheme.parse(text)
    check(scheme)
    allreduce.check_name(algorithm)
    template = Step(SimpleNamespace(rank=0), [1] * place.size, scheme.parts(1), 0, algorithm, None)

    def script(rank: int) -> Script:
        made = Script()
        ops = GhostOps(made.tape.work, model.n, _passing(scheme, model.n))
        _step(scheme, model, RecordingComm(made, rank, place.size), ops, template)
        return made

    try:
        first = script(0)
        others = [script(rank) for rank in _sample(place.size)] if place.size > FEW else []
    except Unknown as error:
        raise InvalidArgument(f"{scheme} cannot be simulated: {error}; {supported()}") from error
    common = others[0] if others and all(one == others[0] for one in others) else None

    def run(place: Place, tape: Tape) -> None:
        own = first if place.rank == 0 else common or script(place.rank)
        own.play(_link(place, tape, model.n))

    program = record(run, place)
    program.name = str(scheme)
    program.notes = _notes(first.schedules(_link(place, Tape(), model.n)), algorithm) + _assumed(scheme)
    if common is not None:
        program.notes.append(f"own work: recorded on rank 0 and {len(others)} others, which were found alike")
    return program


def _link(place: Place, tape: Tape, n: int) -> RecordingLink:
    return RecordingLink(tape, place, GhostOps(tape.work, n))


def check(scheme: Scheme) -> None:
    """Refuse what cannot be simulated, as far as it shows in the parts' names."""
    parts = scheme.part_names
    if parts["exchange"] not in EXCHANGES or parts["memory"] not in MEMORIES:
        raise InvalidArgument(f"{scheme} cannot be simulated: its messages depend on the data; {supported()}")


def supported() -> str:
    return (f"simulated are schemes with exchange {', '.join(EXCHANGES)} and memory {', '.join(MEMORIES)}, for "
            "example scalecom, topk, dgc, randomk, powersgd, qsgd, signsgd, onebit:exchange=gather")


def _step(scheme: Scheme, model: Model, comm: RecordingComm, ops: GhostOps, template: Step) -> None:
    """Run a step as a reducer does: what a rank does alone, the agreement, what follows."""
    ops.work(STEP, 1)
    parts = scheme.parts(1)
    step = template.on_rank(comm, parts)
    whole = [(0, model.n)]
    spans = [tensor[:2] for tensor in model.tensors] if scheme.options["layers"] == "per-tensor" else whole
    bucket = SimpleNamespace(ops=ops, n=model.n, compute=FLOAT, tensors=model.tensors)
    step.begin(0, bucket, spans, [None] * len(spans))
    pipeline = Pipeline(parts, step, check_finite=True)
    gradient = [Ghost(ops, model.n, FLOAT)]
    workers, _ = pipeline.select(gradient)
    comm.agree()
    pipeline.run(gradient, workers)


def record(run: Run, place: Place) -> Program:
    """Record every rank; where that is too much, one that stands for all, if a sample of them is found alike."""
    first, size = _tape(run, place, 0), place.size
    events = len(first.table()) * size
    if size > FEW:
        alike = _alike(run, place, first)
        if alike:
            table, ranks = alike
            how = f"{len(ranks)} of {size} ranks, found alike, stand for all"
            return Program(place, [table], np.array([first.bytes_sent]), np.array([first.messages]), how)
        if events > MOST_EVENTS:
            raise InvalidArgument(
                f"about {events / 1e6:.0f} million events of {size} ranks that do not all do the same would be too "
                f"many to record (at most {MOST_EVENTS / 1e6:.0f} million): take fewer ranks, halving_doubling, or a "
                "number of elements that is a multiple of the number of ranks"
            )
    tapes = [first, *(_tape(run, place, rank) for rank in range(1, size))]
    sent = np.array([tape.bytes_sent for tape in tapes])
    messages = np.array([tape.messages for tape in tapes])
    return Program(place, [tape.table() for tape in tapes], sent, messages, f"all {size} ranks")


def _tape(run: Run, place: Place, rank: int) -> Tape:
    tape = Tape()
    run(Place(rank, place.size, place.ranks_per_node), tape)
    return tape


def _alike(run: Run, place: Place, first: Tape) -> tuple[np.ndarray, list[int]] | None:
    """Events by which every rank of a sample does what rank 0 does, and the sample; None where there are none.

    A peer is counted from the rank on, or as the bits in which the two ranks' numbers differ, event by event; rank 0's
    peers are the same by either count.
    """
    size, table = place.size, first.table().copy()
    messages = np.flatnonzero((table[:, 0] == SEND) | (table[:, 0] == RECEIVED))
    peers = table[messages, 1]
    shifts, bits = np.full(len(messages), True), np.full(len(messages), size & (size - 1) == 0)
    ranks = _sample(size)
    for rank in ranks:
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


def _sample(size: int) -> list[int]:
    """Ranks to look at, beside rank 0, to see whether all are alike."""
    drawn = np.random.default_rng(size).integers(1, size, SAMPLE).tolist()
    return sorted({1, 2, size // 2, size - 2, size - 1, *drawn})


def _passing(scheme: Scheme, n: int) -> float:
    """The fraction of the elements that passes a threshold, where there is one."""
    k = scheme.options.get("k")
    density: float = k / n if k else scheme.options.get("density", 1.0)
    return density


def _notes(choices: set[str], asked: str) -> list[str]:
    notes = []
    if asked == "auto" and choices - {"native"}:
        notes.append(f"auto took {', '.join(sorted(choices))}")
    if "native" in choices:
        notes.append("MPI's own all-reduce is taken for recursive doubling (to 10 KiB) or halving-doubling")
    return notes


def _assumed(scheme: Scheme) -> list[str]:
    notes = []
    if scheme.part_names["exchange"] == "gather" and scheme.part_names["selector"] != "all":
        notes.append("ranks are taken to choose independently, and equally many")
    if scheme.part_names["selector"] == "threshold":
        notes.append(f"the threshold is taken to let {scheme.options['density']:g} of the elements pass")
    return notes

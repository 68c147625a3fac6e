"""Every rank owns a piece: codes go to their owner, who averages, quantises again, and sends to all."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from ..._util.partition import partition
from ...errors import CorruptMessage, InvalidArgument
from ...types import Array, Compensated, Exchanged, Mean, Place, Sent
from ..options import Option
from ..wire import validation

BYTE = np.dtype(np.uint8)
NOTHING = -1
# The second memory before anything was sent.
UNUSED: dict[str, np.ndarray] = {"residual": np.empty(0, np.float32), "start": np.array(NOTHING)}


class Pieces:
    """1-bit SGD's exchange: quantised on the way to the owner of a piece, and again on the way back.

    Schedule: the vector is cut into a piece a rank (empty ones are left out); workers quantise each piece by itself
    and send its code to its owner (all-to-all); the owner decodes, averages in the order of the workers, adds what it
    kept back, quantises again and keeps the error (the second memory); all-gather of these codes.
    Cost: 2 (p-1)/p C bytes a rank, C those of a code of n values ((w+1) (p-1)/p C with w workers a rank), and 8 bytes
    a message for its length, 8 for that of each code in it. It does not grow with the number of ranks.
    Restrictions: a selector that takes all; any codec. ``second=no`` loses the owner's error: it is for unbiased
    codecs whose error may be larger than the value (QSGD with few levels), which a memory would let grow.
    Reference: Seide et al., 1-bit stochastic gradient descent, Interspeech 2014, section 3.1.
    """

    name = "pieces"
    options = (
        Option("second", str, "yes", "whether the owner of a piece keeps the error of its second quantisation",
               choices=("yes", "no")),
    )
    reference = "Seide et al. 2014"
    takes = "all"
    codecs = "any"
    early = True
    keeps = ("residual", "start")  # a state of any step but the first must have them
    spread = (("residual", "cut"), ("start", "cut"))  # see mpicomp/checkpoint/redistribute.py

    def __init__(self, second: str) -> None:
        self.second = second == "yes"
        self._residual: Array | None = None
        self._start = 0
        self._resting: list[tuple[int, int]] = []
        self._loaded: dict[str, np.ndarray] | None = None

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._check_loaded(step)  # here, where all ranks hear of it before anything is sent
        # A code whose error may be larger than the value lets this memory grow from step to step.
        grows = getattr(step.codec, "spread", 0.0) >= 1
        kept = step.overflows(Compensated(None, self._residual)) if grows and self._residual is not None else 0
        return [step.overflows(u) + kept for u in workers]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        vectors = [u.gradient if u.memory is None else step.whole(u, f"pieces-{local}")
                   for local, u in enumerate(workers)]
        places = [Place(step.first_worker + local, None, start, stop)
                  for local in range(len(workers)) for _, start, stop in _cut(step)]
        values = [vectors[place.worker - step.first_worker][place.start : place.stop] for place in places]
        self._codes = step.encode_together(values, places)
        if not step.remembers:
            return [Sent(None, one) for one in vectors]  # nobody reads it
        sent = [step.scratch(f"pieces-sent-{local}", step.n, step.dtype) for local in range(len(workers))]
        for codes, place in zip(self._codes, places, strict=True):
            step.decode_into(sent[place.worker - step.first_worker][place.start : place.stop], codes, place)
        return [Sent(None, one) for one in sent]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        start, stop = self._piece(step)
        total = self._average(self._swap(step), sent, step)
        residual = self._open(total, step)
        step.ops.add(total, residual)
        resting = self._resting_in(start, stop)
        for part in resting:
            total[part] = 0
        mine = [Place(step.total_workers + step.comm.rank, None, start, stop)] if total.size else []
        codes = step.encode_together([total] * len(mine), mine)
        mean = self._gather(codes, step)
        # A narrow wire may have overflowed: then the step is refused, and this memory stays as it was, too.
        if self.second and not (step.codec.may_overflow(step.dtype) and step.ops.count_nonfinite(mean)[0]):
            misfits = step.misfits(mean)
            if misfits is not None:  # this memory keeps what the result cannot hold
                step.ops.scatter(mean, misfits.positions, misfits.held)
            kept = [residual[part].copy() for part in resting]
            step.ops.axpby(residual, 1.0, total, -1.0, mean[start:stop])
            for part, values in zip(resting, kept, strict=True):
                residual[part] = values
        bits = 8.0 * sum(one.nbytes for one in self._codes) / len(workers)
        return Exchanged(Mean(None, mean, step.n), sent, bits)

    # -- the second memory

    def state(self, ops: Any) -> dict[str, np.ndarray]:
        """What this rank keeps back of its piece, and where that begins: NOTHING before the first that was sent."""
        if self._residual is None:
            return self._loaded or dict(UNUSED)
        return {"residual": np.array(ops.to_host(self._residual)), "start": np.array(self._start)}

    def load(self, state: dict[str, np.ndarray]) -> None:
        kept = {name: state[name] for name in self.keeps if name in state}
        self._residual, self._loaded = None, kept if kept and int(kept["start"]) != NOTHING else None

    def set_aside(self, spans: list[tuple[int, int]]) -> None:
        """Let what is kept back of some spans rest, until ``put_back``."""
        self._resting = spans

    def put_back(self, ops: Any) -> None:
        self._resting = []

    def _resting_in(self, start: int, stop: int) -> list[slice]:
        """The resting parts of a piece."""
        return [slice(max(first, start) - start, min(last, stop) - start) for first, last in self._resting
                if max(first, start) < min(last, stop)]

    def _check_loaded(self, step: Any) -> None:
        """Refuse a state of other pieces than this job's."""
        if not self._loaded or self._residual is not None:
            return
        start, stop = self._piece(step)
        begin, size = int(self._loaded["start"]), self._loaded["residual"].size
        if (begin, size) != (start, stop - start):
            raise InvalidArgument(f"the state must be of the piece [{start}, {stop}), got {size} elements from {begin}"
                                  ": load it with as many ranks as saved it")
        if (dtype := self._loaded["residual"].dtype) != step.dtype:
            raise InvalidArgument(f"the saved second memory is {dtype}, the gradients are computed in {step.dtype}: "
                                  "go on with gradients of the saved dtype, or begin anew without the state")

    def _open(self, like: Array, step: Any) -> Array:
        if self._residual is None:
            self._residual, self._start = step.ops.zeros(like.size, like.dtype), self._piece(step)[0]
            if self._loaded:
                self._residual[:] = step.ops.from_host(self._loaded["residual"])
            self._loaded = None
        return self._residual

    # -- the two halves of the exchange

    def _piece(self, step: Any) -> tuple[int, int]:
        counts, displs = partition(step.n, step.comm.size)
        start = displs[step.comm.rank]
        return start, start + counts[step.comm.rank]

    def _swap(self, step: Any) -> dict[int, Array]:
        """Codes to their owners; the messages with the others' codes of this rank's piece, by rank."""
        me, size = step.comm.rank, step.comm.size
        owned = self._by_owner(step)
        messages = dict(zip(owned, _pack(list(owned.values()), step.ops), strict=True))
        theirs = step.comm.swap_lengths([messages[rank].size if rank in messages else 0 for rank in range(size)])
        validation.counts(theirs, step.workers.most * validation.longest(step), "bytes")
        after = [(me + distance) % size for distance in range(1, size)]  # so that not all send to one rank at once
        outgoing = {rank: messages[rank] for rank in after if rank in messages}
        incoming = {rank: theirs[rank] for rank in reversed(after) if theirs[rank]}
        like = messages.get(me, step.ops.empty(0, BYTE))
        return step.comm.send_and_receive(outgoing, incoming, like)

    def _by_owner(self, step: Any) -> dict[int, list[Array]]:
        """The codes that each owner of a piece gets, one a worker; this rank's own first."""
        me, pieces = step.comm.rank, _cut(step)
        codes = {rank: self._codes[at :: len(pieces)] for at, (rank, _, _) in enumerate(pieces)}
        return {me: codes[me], **codes} if me in codes else codes

    def _average(self, messages: dict[int, Array], sent: list[Sent], step: Any) -> Array:
        """The mean of this rank's piece over all workers, added in their order."""
        start, stop = self._piece(step)
        total, me = step.ops.zeros(stop - start, step.dtype), step.comm.rank
        if not total.size:
            return total
        theirs = _unpack({rank: (one, step.workers.on(rank)) for rank, one in messages.items()}, step.ops)
        for rank in range(step.comm.size):
            first = step.workers.first(rank)
            if rank == me and step.remembers:
                for one in sent:
                    step.ops.add(total, one.values[start:stop])
                continue
            if rank != me and rank not in theirs:
                raise CorruptMessage(f"rank {rank} sent no codes of the piece [{start}, {stop}) to its owner")
            for worker, codes in enumerate(self._by_owner(step)[me] if rank == me else theirs[rank], first):
                step.ops.add(total, step.codec.decode(codes, Place(worker, None, start, stop), step))
        return step.scale(total)

    def _gather(self, codes: list[Array], step: Any) -> Array:
        """All owners' codes, decoded into the whole mean."""
        mine = codes[0].view(BYTE) if codes else step.ops.empty(0, BYTE)
        flat, lengths = step.comm.gather_to_all(mine)
        mean, at = step.scratch("pieces-mean", step.n, step.dtype), 0
        for rank, start, stop in _cut(step):
            place = Place(step.total_workers + rank, None, start, stop)
            theirs = codes[0] if rank == step.comm.rank else flat[at : at + lengths[rank]].copy()
            step.decode_into(mean[start:stop], theirs, place)
            at += lengths[rank]
        return mean


def _cut(step: Any) -> list[tuple[int, int, int]]:
    """The rank, start and stop of every piece that is not empty."""
    counts, displs = partition(step.n, step.comm.size)
    return [(rank, start, start + count) for rank, (count, start) in enumerate(zip(counts, displs, strict=True))
            if count]


def _pack(owned: list[list[Array]], ops: Any) -> list[Array]:
    """A message to each owner: the length of each worker's code, then the codes. One array holds all of them."""
    lengths = np.array([[one.nbytes for one in codes] for codes in owned], np.int64)
    heads, each = ops.from_host(lengths.ravel().view(BYTE)), 8 * lengths.shape[1]
    arrays = [[heads[at * each : (at + 1) * each], *(one.view(BYTE) for one in codes)]
              for at, codes in enumerate(owned)]
    together, ends = ops.concatenate(list(chain(*arrays)), BYTE), accumulate((each + lengths.sum(axis=1)).tolist())
    return [together[begin:end] for begin, end in pairwise([0, *ends])]


def _unpack(messages: dict[int, tuple[Array, int]], ops: Any) -> dict[int, list[Array]]:
    """The codes in messages by rank, given with the number of their workers; each in memory of its own, where any type
    is aligned.
    """
    codes: dict[int, list[Array]] = {}
    heads = validation.lengths_at_heads(messages, 1, ops)
    for rank, (message, workers) in messages.items():
        at, lengths = 8 * workers, [length for (length,) in heads[rank]]
        if min(lengths) < 0 or at + sum(lengths) != message.size:
            raise CorruptMessage(f"codes of {lengths} bytes do not fit a message of {message.size}")
        ends = accumulate(lengths, initial=at)
        codes[rank] = [message[begin:end].copy() for begin, end in pairwise(ends)]
    return codes

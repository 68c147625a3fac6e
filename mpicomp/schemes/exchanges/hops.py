"""Two hops of coded pieces: to the owner of each, who averages, and from there to all; in segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

import numpy as np

from ..._util.partition import chunk_count, partition
from ...allreduce.segments import EAGER_BYTES, ahead
from ...comm.interfaces import Messages
from ...errors import CorruptMessage, NonFiniteGradient
from ...ops.arguments import Coded
from ...ops.device import device_of
from ...ops.protocol import Ops
from ...types import Array, overlap
from .. import averaging
from ..interfaces import StepContext
from ..values import Compensated, Place
from ..wire import validation

BYTE = np.dtype(np.uint8)
ALIGNED = 8  # bytes, for codes of any type
SEGMENT_BYTES = 512 << 10  # of codes in a message, at most
LEAST_BYTES = 128 << 10  # of codes: of shorter messages a fast network's take longer than their overlap saves
LEAST_SEGMENTS = 4  # of a piece, so that its hops overlap


class Segments:
    """The pieces of a vector, one a rank, in segments that are exchanged one after the other."""

    def __init__(self, ctx: StepContext, like: Array) -> None:
        self._counts, self._displs = partition(ctx.n, ctx.comm.size)
        longest, block = self._counts[0], ctx.codec.block
        self.fixed = block is not None  # codes have lengths that all ranks know; otherwise a piece is one segment
        self.length, self.most = longest, None  # most bytes in a message, if that matters
        if block is not None and device_of(like) is None:  # a device does one piece faster than its segments
            each = ctx.workers.most * ctx.codec.code_nbytes(block, ctx.dtype)
            nbytes = each * chunk_count(longest, block)
            self.length = block * max(1, max(LEAST_BYTES, min(SEGMENT_BYTES, nbytes // LEAST_SEGMENTS)) // each)
            if nbytes > EAGER_BYTES and ctx.comm.slow:
                self.most = EAGER_BYTES
        self.indices = range(chunk_count(longest, self.length))  # of the segments of the longest piece

    @property
    def many(self) -> bool:
        """True if pieces have several segments."""
        return len(self.indices) > 1

    def place(self, worker: int, owner: int, index: int) -> Place:
        """The place of a worker's values in a segment of an owner's piece, which may be empty."""
        start, stop = self.piece(owner)
        return Place(worker, None, min(stop, start + index * self.length), min(stop, start + (index + 1) * self.length))

    def piece(self, owner: int) -> tuple[int, int]:
        return self._displs[owner], self._displs[owner] + self._counts[owner]

    def nbytes(self, owner: int, index: int, ctx: StepContext) -> int:
        """Bytes of one worker's codes of a segment, if they are ``fixed``."""
        size = self.place(0, owner, index).size
        return ctx.codec.code_nbytes(size, ctx.dtype) if size else 0

    def owners(self, index: int) -> list[int]:
        """The ranks whose pieces have a segment of this index: longer pieces come first."""
        return [owner for owner, count in enumerate(self._counts) if count > index * self.length]


class Encoder:
    """The codes of this rank's workers by segment, each made when it is first asked for."""

    def __init__(self, us: list[Compensated], segments: Segments, ctx: StepContext) -> None:
        self.us, self._segments, self._ctx = us, segments, ctx
        self._made: dict[tuple[int, int, int], tuple[Array, Array | Coded | None]] = {}
        self._whole: dict[int, Array] = {}  # u by worker, if a piece is one segment
        self.nbytes = 0  # of all codes so far
        self.workers = len(us)

    def codes(self, local: int, owner: int, index: int) -> Array:
        """The codes of one worker's segment."""
        key = local, owner, index
        if key not in self._made:
            place = self._place(*key)
            codes = self._ctx.codec.encode(self.values(place), place, self._ctx)
            self.nbytes += codes.nbytes
            self._made[key] = codes, None
        return self._made[key][0]

    def coded(self, local: int, owner: int, index: int) -> Array | Coded:
        """The values that receivers read, the same object each time."""
        codes, values = self.codes(local, owner, index), self._made[local, owner, index][1]
        if values is None:
            values = self._ctx.codec.coded(codes, self._place(local, owner, index), self._ctx)
            self._made[local, owner, index] = codes, values
        return values

    def all_coded(self, local: int) -> list[tuple[int, Array | Coded]]:
        """The first element and the values of each of a worker's segments, in ascending order."""
        keys = [(local, owner, index) for owner in self._segments.owners(0)
                for index in self._segments.indices if self._place(local, owner, index).size]
        return [(self._place(*key).start, self.coded(*key)) for key in keys]

    def decoded(self, local: int) -> Array:
        """One worker's values as receivers read them."""
        values, made = self._ctx.ops.empty(self._ctx.n, self._ctx.dtype), self._made
        for key in [key for key in made if key[0] == local]:
            codes, place = made[key][0], self._place(*key)
            self._ctx.codec.decode_into(values[place.start : place.stop], codes, place, self._ctx)
            made[key] = codes, values[place.start : place.stop]
        return values

    def forget(self, index: int) -> None:
        """Free the codes of a segment, unless a memory reads them."""
        if not self._ctx.remembers:
            for key in [key for key in self._made if key[-1] == index]:
                del self._made[key]

    def values(self, place: Place) -> Array:
        """A worker's values."""
        local = place.worker - self._ctx.first_worker
        u = self.us[local].span(place.start, place.stop)
        if u.memory is None:
            return u.gradient
        if self._segments.many:
            return self._ctx.whole(u)
        if local not in self._whole:  # one pass for all pieces
            self._whole[local] = self._ctx.whole(self.us[local])
        return self._whole[local][place.start : place.stop]

    def _place(self, local: int, owner: int, index: int) -> Place:
        return self._segments.place(self._ctx.first_worker + local, owner, index)


class PieceAverager:
    """One step's two hops of all segments, with the codes of several workers, memories and any codec.

    `mpicomp.allreduce.two_hops` adds streams of one rank each, without a step.

    Parameters
    ----------
    kept : array or None
        The second memory of this rank's piece.
    whole : bool
        Keep the ``total`` of all segments.

    Attributes
    ----------
    total : array
        After the first hop: the mean of this rank's piece, as it is quantised again; if not ``whole``, room for a
        segment of it, which stays in the cache.
    """

    def __init__(self, segments: Segments, encoder: Encoder, kept: Array | None, whole: bool, ctx: StepContext) -> None:
        self._segments, self._encoder, self._kept, self._whole, self._ctx = segments, encoder, kept, whole, ctx
        self._start, stop = segments.piece(ctx.comm.rank)
        room = stop - self._start if whole else min(segments.length, stop - self._start)
        self.total = ctx.ops.empty(room, ctx.dtype)
        size, rank = ctx.comm.size, ctx.comm.rank
        self._peers = [(rank + distance) % size for distance in range(1, size)]  # so that not all send to one at once

    def add(self) -> None:
        """The first hop: while a segment is averaged, the next one is on its way to its owner.

        Raises
        ------
        NonFiniteGradient
            On all ranks, of codes that show it: the mean is not finite.
        """
        for _ in self._averages():
            pass

    def run(self, mean: Array) -> None:
        """Both hops, the second of which writes the ``mean`` of all pieces; raises as `add` does, before that."""
        codes = [self._quantised(place, totals) for place, totals in self._averages()]
        for index, messages in ahead(lambda index: self._send_again(index, codes[index]), self._segments.indices):
            self._decode(index, {**self._landed(messages), self._ctx.comm.rank: codes[index]}, mean)

    def _averages(self) -> Iterator[tuple[Place, list[Array]]]:
        """Yield the mean of each of this rank's segments; at the end ranks agree that all are finite."""
        ctx, looks, finite = self._ctx, shown_by_mean(self._kept is not None, self._ctx), True
        for index, messages in ahead(self._send, self._segments.indices):
            place, totals = self._add(index, self._landed(messages))
            self._encoder.forget(index)
            finite = finite and not (looks and any(ctx.overflows(Compensated(None, total)) for total in totals))
            yield place, totals
        if looks and not ctx.comm.extremes(int(finite))[0]:
            raise NonFiniteGradient(f"the mean overflowed in step {ctx.number}: magnitudes must stay below "
                                    f"{ctx.limit:g} in {ctx.dtype}; nothing has changed. Divide the loss by a constant")

    def _send(self, index: int) -> Messages:
        """Start the first hop: the codes of every owner's segment."""
        ctx, me, segments = self._ctx, self._ctx.comm.rank, self._segments
        owners = segments.owners(index)
        mine_first = [owner for owner in (me, *self._peers) if owner in owners]
        codes = [[self._encoder.codes(local, owner, index) for local in range(self._encoder.workers)]
                 for owner in mine_first]
        if segments.fixed:
            packed = [joined(one, ctx.ops) for one in codes]
            nbytes = segments.nbytes(me, index, ctx)
            theirs = {rank: nbytes * ctx.workers.on(rank) for rank in self._peers}
        else:
            packed = pack(codes, ctx.ops)
        messages = dict(zip(mine_first, packed, strict=True))
        if not segments.fixed:
            lengths = ctx.comm.swap_lengths([messages[rank].size if rank in messages else 0
                                             for rank in range(ctx.comm.size)])
            validation.counts(lengths, ctx.workers.most * validation.longest(ctx), "bytes")
            theirs = {rank: lengths[rank] for rank in self._peers}
        like = messages.pop(me, ctx.ops.empty(0, BYTE))
        return self._start_messages(messages, theirs, like)

    def _quantised(self, place: Place, totals: list[Array]) -> Array:
        """The codes of the mean of this rank's segment; none if it has none."""
        codes = averaging.encode_all(totals, [place] * len(totals), self._ctx)
        if not codes:
            return self._ctx.ops.empty(0, BYTE)
        own = codes[0].view(BYTE)
        return own.copy() if not self._whole and overlap(own, totals[0]) else own

    def _add(self, index: int, messages: dict[int, Array]) -> tuple[Place, list[Array]]:
        """The mean of this rank's segment over all workers, added in their order; none if it has no segment."""
        ctx, rank = self._ctx, self._ctx.comm.rank
        place = self._segments.place(ctx.workers.total + rank, rank, index)
        totals = []
        if place.size:
            begin, end = place.start - self._start, place.stop - self._start
            totals = [self.total[begin:end] if self._whole else self.total[: place.size]]
            kept = None if self._kept is None else self._kept[begin:end]
            ctx.ops.coded_mean(self._everyone(index, messages), 1.0 / ctx.workers.total, kept, totals[0])
            for part in left_out_of(place.start, place.stop, ctx):
                totals[0][part] = 0
        return place, totals

    def _everyone(self, index: int, messages: dict[int, Array]) -> Iterable[Array | Coded]:
        """The values that all workers sent of this rank's segment."""
        ctx, me = self._ctx, self._ctx.comm.rank
        missing = [rank for rank in self._peers if rank not in messages]
        if missing:
            raise CorruptMessage(f"rank {min(missing)} sent no codes of the piece {self._segments.piece(me)} to its "
                                 "owner")
        counted = {rank: (one, ctx.workers.on(rank)) for rank, one in messages.items()}
        theirs = split_evenly(counted) if self._segments.fixed else unpack(counted, ctx.ops)
        for rank in range(ctx.comm.size):
            if rank == me:
                yield from (self._encoder.coded(local, me, index) for local in range(self._encoder.workers))
                continue
            for worker, codes in enumerate(theirs[rank], ctx.workers.first(rank)):
                yield ctx.codec.coded(codes, self._segments.place(worker, me, index), ctx)

    def _send_again(self, index: int, codes: Array) -> Messages:
        """Start the second hop: the codes of this rank's averaged segment, to all."""
        ctx, segments = self._ctx, self._segments
        if segments.fixed:
            theirs = {rank: segments.nbytes(rank, index, ctx) for rank in self._peers}
        else:
            lengths = ctx.comm.lengths_of_all(codes.nbytes)
            validation.counts(lengths, validation.longest(ctx), "bytes")
            theirs = {rank: lengths[rank] for rank in self._peers}
        return self._start_messages(dict.fromkeys(self._peers, codes), theirs, codes)

    def _decode(self, index: int, codes: dict[int, Array], mean: Array) -> None:
        """Write a segment of every owner's piece into the mean."""
        ctx = self._ctx
        for owner in self._segments.owners(index):
            place = self._segments.place(ctx.workers.total + owner, owner, index)
            if owner not in codes:
                raise CorruptMessage(f"rank {owner} sent no codes of the mean of {self._segments.piece(owner)}")
            ctx.codec.decode_into(mean[place.start : place.stop], codes[owner], place, ctx)

    def _start_messages(self, outgoing: dict[int, Array], theirs: dict[int, int], like: Array) -> Messages:
        incoming = {rank: theirs[rank] for rank in reversed(self._peers) if theirs[rank]}
        messages = self._ctx.comm.start_messages(outgoing, incoming, like, self._segments.most)
        self._ctx.in_flight.append(messages)
        return messages

    def _landed(self, messages: Messages) -> dict[int, Array]:
        averaging.land(messages, self._ctx)
        return messages.received


def shown_by_mean(second_memory: bool, ctx: StepContext) -> bool:
    """True if NaN and infinity are looked for in the means of pieces, not in what each worker sends."""
    return ctx.check_finite and ctx.codec.shows_nonfinite and not ctx.remembers and not second_memory


def left_out_of(start: int, stop: int, ctx: StepContext) -> list[slice]:
    """The parts of a piece that take no part in the step."""
    return [slice(max(first, start) - start, min(last, stop) - start) for first, last in ctx.left_out
            if max(first, start) < min(last, stop)]


def joined(codes: list[Array], ops: Ops) -> Array:
    """A message of equally long codes, one a worker."""
    views = [one.view(BYTE) for one in codes]
    return views[0] if len(views) == 1 else ops.concatenate(views, BYTE)


def pack(owned: list[list[Array]], ops: Ops) -> list[Array]:
    """A message to each owner: the length of each worker's code, then the codes. One array holds all of them."""
    lengths = np.array([[one.nbytes for one in codes] for codes in owned], np.int64)
    heads, each = ops.from_host(lengths.ravel().view(BYTE)), 8 * lengths.shape[1]
    arrays = [[heads[at * each : (at + 1) * each], *(one.view(BYTE) for one in codes)]
              for at, codes in enumerate(owned)]
    together, ends = ops.concatenate(list(chain(*arrays)), BYTE), accumulate((each + lengths.sum(axis=1)).tolist())
    return [together[begin:end] for begin, end in pairwise([0, *ends])]


def unpack(messages: dict[int, tuple[Array, int]], ops: Ops) -> dict[int, list[Array]]:
    """The codes in messages by rank, given with the number of their workers; each aligned for any type."""
    codes: dict[int, list[Array]] = {}
    heads = validation.lengths_at_heads(messages, 1, ops)
    for rank, (message, workers) in messages.items():
        at, lengths = 8 * workers, [length for (length,) in heads[rank]]
        if min(lengths) < 0 or at + sum(lengths) != message.size:
            raise CorruptMessage(f"codes of {lengths} bytes do not fit a message of {message.size}")
        ends = accumulate(lengths, initial=at)
        codes[rank] = [validation.aligned(message[begin:end], ALIGNED) for begin, end in pairwise(ends)]
    return codes


def split_evenly(messages: dict[int, tuple[Array, int]]) -> dict[int, list[Array]]:
    """The codes in messages of equally long ones by rank, given with the number of their workers."""
    return {rank: [validation.aligned(message[begin:end], ALIGNED) for begin, end in
                   pairwise(range(0, message.size + 1, message.size // workers))]
            for rank, (message, workers) in messages.items()}

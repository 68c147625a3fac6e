"""All-gather of index and value pairs, in one message a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from ...types import Array, Compensated, Exchanged, Mean, Place, Sent
from ..options import Option
from ..wire import index_lists, message_format, validation
from ..wire.index_lists import Pairs
from ._stateless import Stateless


class Gather(Stateless):
    """Every rank receives every worker's pairs and adds them, worker by worker in rank order.

    Schedule: one all-gather of messages of varying length: a header of 32 bytes a worker, indices, codes. Where the
    messages together would be longer than a dense all-reduce (all ranks see it from the lengths), that is done
    instead (``switch=auto``).
    Cost: a rank receives the pairs of all others, (size-1) k (v + i) bytes: it grows with the number of ranks, and the
    union of the coordinates with it (gradient build-up), until the switch at 2 n v. Memory: all pairs.
    Restrictions: none; codes need not be addable, and may stand for every coordinate.
    Reference: Lin et al., Deep Gradient Compression, ICLR 2018; the switch: Renggli et al., SparCML, SC 2019; cost in
    Li and Hoefler, PPoPP 2022.
    """

    name = "gather"
    options = (
        Option("indices", str, "auto", "how indices are written; auto: the shortest",
               choices=("auto", "plain", "gaps", "bitmap")),
        Option("switch", str, "auto", "go over to a dense all-reduce where pairs would be longer",
               choices=("auto", "never")),
    )
    reference = "Lin et al. 2018; Renggli et al. 2019; Li and Hoefler 2022"
    takes = "any"
    codecs = "any"

    def __init__(self, indices: str, switch: str) -> None:
        self.indices, self.switch = indices, switch

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._wires = [step.selector.select(u, step) for u in workers]
        self._chosen = [step.selector.expand(wire, step) for wire in self._wires]
        both = [step.read(u, indices) for u, indices in zip(workers, self._chosen, strict=True)]
        self._values = [values for values, _ in both]
        return [found for _, found in both]

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        places = [step.place(worker, indices) for worker, indices in enumerate(self._chosen)]
        codes = step.encode_together(self._values, places)
        self._parts = [
            message_format.part(indices, wire if wire is not indices else None, code, values.size, self.indices, step)
            for indices, wire, code, values in zip(self._chosen, self._wires, codes, self._values, strict=True)
        ]
        self._places = places
        values = self._decoded(step) if step.remembers else self._values  # which nobody reads
        return [Sent(*one) for one in zip(self._chosen, values, strict=True)]

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        message = message_format.pack(self._parts, step.ops)
        bits = sum(part.bits for part in self._parts) / len(self._parts)
        lengths = step.comm.lengths_of_all(message.size)
        validation.counts(lengths, step.workers.most * validation.longest(step), "bytes")
        own = (one.values for one in sent) if step.remembers else self._decoded(step)
        if self.switch == "auto" and sum(lengths) > 2 * step.n * step.dtype.itemsize:
            return Exchanged(self._dense(own, step), sent, 8.0 * step.n * step.dtype.itemsize)
        flat, _ = step.comm.gather_to_all(message, lengths)
        return Exchanged(self._sum(flat, lengths, own, step), sent, bits)

    def _decoded(self, step: Any) -> Iterator[Array]:
        """What receivers read of this rank's workers."""
        return (step.codec.decode(one.codes, place, step) for one, place in zip(self._parts, self._places, strict=True))

    def _sum(self, flat: Array, lengths: list[int], own: Iterable[Array], step: Any) -> Mean:
        """The mean of all workers' values, where this rank's ``own`` are known."""
        pairs = self._pairs(flat, lengths, own, step)
        if self._chosen[0] is not None:
            known = list(pairs)
            lists = [Pairs(indices, values) for indices, values in known if indices is not None]
            if len(lists) == len(known):
                total = index_lists.add(lists, step)
                return Mean(total.indices, step.scale(total.values), step.n)
            pairs = iter(known)
        mean = step.scratch("gather-mean", step.n, step.dtype)
        mean[:] = 0
        for indices, values in pairs:
            step.add_at(mean, indices if indices is None else validation.ascending(indices, step), values)
        return Mean(None, step.scale(mean), step.n)

    def _pairs(self, flat: Array, lengths: list[int], own: Iterable[Array], step: Any
               ) -> Iterator[tuple[Array | None, Array]]:
        """The indices and values of all workers in their order; whether indices ascend is still to be seen."""
        me = step.comm.own_message
        messages = {rank: flat[end - length : end]
                    for rank, (length, end) in enumerate(zip(lengths, accumulate(lengths), strict=True)) if rank != me}
        heads = message_format.heads(messages, step)
        for rank in range(len(lengths)):
            if rank == me:
                yield from zip(self._chosen, own, strict=True)
                continue
            theirs = message_format.unpack(messages[rank], heads[rank], step)
            for worker, (indices, codes) in enumerate(theirs, step.workers.first(rank)):
                yield indices, step.codec.decode(codes, Place(worker, indices, 0, step.n), step)

    def _dense(self, own: Iterable[Array], step: Any) -> Mean:
        """The mean by an all-reduce of dense vectors."""
        total = step.ops.zeros(step.n, step.dtype)
        for indices, values in zip(self._chosen, own, strict=True):
            step.add_at(total, indices, values)
        step.comm.allreduce_in_place(total, step.algorithm)
        return Mean(None, step.scale(total), step.n)
